//! Unmodified programs.

use super::*;

#[test]
fn shell_redirections_and_cat_meet_in_the_volume() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "echo hello > $AT/f; echo world >> $AT/f; cat $AT/f; cat < $AT/f | tr a-z A-Z",
    );
    assert_eq!(text, "hello\nworld\nHELLO\nWORLD\n");
    assert_eq!(world.read("f"), None);
    assert!(world.commit(server));
    assert_eq!(world.read("f").as_deref(), Some("hello\nworld\n"));
}

#[test]
fn python_opens_reads_and_writes() {
    let world = World::new();
    let server = world.transaction();
    let script = "
import os
at = os.environ['AT']
with open(at + '/f', 'w') as f: f.write('hello')
with open(at + '/f') as f: assert f.read() == 'hello'
os.mkdir(at + '/d')
os.rename(at + '/f', at + '/d/g')
print(os.listdir(at), os.listdir(at + '/d'), os.stat(at + '/d/g').st_size)
";
    let output = command(&server, "python3").args(["-c", script]).output();
    let output = output.expect("python starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "['d'] ['g'] 5\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn core_programs_work_in_the_volume() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "mkdir -p $AT/a/b; cd $AT/a; pwd; echo one > b/one; cp -r b ../c; mv ../c/one ../c/two
         ln -s ../c/two link; cat link; readlink link; ln link hard; ls -R $AT
         chmod 600 b/one; touch -d @1000 b/one; stat -c '%a %Y %s %F' b/one
         rm -r b; ls; cd ..; ls -la | wc -l; [ -f a/hard ] && echo there
         find . -type f | sort; du -a . > /dev/null; df . > /dev/null; test ! -e $AT/none
         printf 'b\\na\\n' > s; sort s; sort -o s s; head -n 1 s; tail -n 1 s; wc -c < s
         sed -i s/a/z/ s; cat s; grep -n z s; dd if=s of=t bs=1 count=2 2>/dev/null; cmp -n 2 s t
         truncate -s 10 t; stat -c %s t; realpath a/link; mktemp -p . | wc -l",
    );
    let expected = "/landfast-test/demo/a
one
../c/two
/landfast-test/demo:
a
c

/landfast-test/demo/a:
b
hard
link

/landfast-test/demo/a/b:
one

/landfast-test/demo/c:
two
600 1000 4 regular file
hard
link
5
there
./c/two
a
b
a
b
4
z
b
1:z
10
/landfast-test/demo/c/two
1
";
    assert_eq!(text, expected);
}

#[test]
fn bash_builtins_write_to_the_volume() {
    let world = World::new();
    let server = world.transaction();
    let script = "set -e; cd $AT; echo one > f; printf 'two\\n' >> f; { echo three; ls /; } > g
        head -n 1 g; while read -r line; do echo \"<$line>\"; done < f; echo $(<f) > h; cat h
        echo back; exec 3>i; echo four >&3; exec 3>&-; cat i; echo *; cat <<< here > j; cat j";
    let output = command(&server, "bash").args(["-c", script]).output();
    let output = output.expect("bash starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = "three\n<one>\n<two>\none two\nback\nfour\nf g h i\nhere\n";
    assert_eq!(text, expected, "{error}");
}

#[test]
fn git_makes_commits_in_the_volume() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "export HOME=$AT GIT_CONFIG_NOSYSTEM=1; cd $AT; git init -q repo; cd repo
         git config user.email a@b; git config user.name n
         for i in 1 2 3; do echo $i > f$i; done; git add .; git commit -qm first
         echo more >> f1; git commit -qam second; git log --format=%s; git status --short
         git fsck 2>&1; git gc -q; git clone -q $AT/repo ../clone; cat ../clone/f1; ls ../clone",
    );
    assert_eq!(text, "second\nfirst\n1\nmore\nf1\nf2\nf3\n");
}

#[test]
fn tar_packs_and_unpacks() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "cd $AT; mkdir in; for i in 1 2 3; do head -c 100000 /dev/zero | tr '\\0' $i > in/$i; done
         tar czf a.tgz in; mkdir out; tar xzf a.tgz -C out; diff -r in out/in && echo same
         (cd in; sha256sum *) > sums; (cd out/in; sha256sum -c ../../sums)",
    );
    assert_eq!(text, "same\n1: OK\n2: OK\n3: OK\n");
}

#[test]
fn sqlite_works_from_two_processes() {
    let world = World::new();
    let server = world.transaction();
    let script = "
import os, sqlite3, shutil, subprocess, sys
at = os.environ['AT']
db = sqlite3.connect(at + '/db', timeout=30)
db.execute('create table t (n integer primary key, who)')
db.commit()
work = '''
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30)
for i in range(20):
    with db: db.execute('insert into t (who) values (?)', (sys.argv[2],))
'''
children = [subprocess.Popen([sys.executable, '-c', work, at + '/db', who]) for who in 'ab']
assert [child.wait() for child in children] == [0, 0]
print(db.execute('select who, count(*) from t group by who order by who').fetchall())
print(db.execute('pragma integrity_check').fetchall())
db.close()
os.mkdir(at + '/d')
shutil.copy(at + '/db', at + '/d/copy')
shutil.copytree(at + '/d', at + '/e')
shutil.rmtree(at + '/d')
print(sorted(os.listdir(at)), os.path.getsize(at + '/e/copy') > 4096)
";
    let output = command(&server, "python3").args(["-c", script]).output();
    let output = output.expect("python starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "[('a', 20), ('b', 20)]\n[('ok',)]\n['db', 'e'] True\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
