//! Unmodified programs on mounts of one volume.

use std::fs;

use crate::volume::{Calls, Mounted, mounted, program, text, volume};

const SETTINGS: &str = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com \
    GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com GIT_CONFIG_NOSYSTEM=1;";

fn git(mounted: &Mounted) {
    let script = format!(
        "{SETTINGS}
        git init -q -b main one; cd one
        for i in $(seq 40); do mkdir -p d$i; echo line $i > d$i/file; done
        git add .; git commit -qm first
        seq 1000 > d1/file; ln -s d1/file link; chmod +x d2/file
        git add -A; git commit -qm second; git gc -q; git fsck --full --strict
        cd ..; git clone -q one two; cd two; git log --oneline | wc -l
        git checkout -q HEAD~1; git checkout -q main; git status --porcelain
        cat link | wc -l; git mv d3/file moved; git commit -qm third; git push -q origin HEAD:other"
    );
    assert_eq!(mounted.text(&script), "2\n1000\n");
}

#[test]
fn shell_commands_work() {
    let test = "programs::shell_commands_work";
    let Some(mut mounted) = mounted(&volume(), 1, Calls::Each, test) else {
        return;
    };
    assert_eq!(
        mounted.text("mkdir d; echo hello > d/a; cat d/a; cp d/a d/b; ls d; stat -c %s d/b"),
        "hello\na\nb\n6\n"
    );
    assert_eq!(
        mounted.text("mv d/b c; rm d/a; rmdir d; echo more >> c; ls; cat c; stat -f -c %l ."),
        "c\nhello\nmore\n255\n"
    );
    assert_eq!(
        mounted.text("for i in $(seq 300); do : > f$i; done; ls | wc -l; rm f*; ls | wc -l"),
        "301\n1\n"
    );
    let script = "mkdir t; head -c 3000000 /dev/urandom > t/large; (cd t; sha256sum large > sum)
        tar cf t.tar t; rm -r t; tar xf t.tar; cd t; sha256sum --quiet -c sum; du --apparent-size -b large";
    assert_eq!(mounted.text(script), "3000000\tlarge\n");
    mounted.unmount();
    assert_eq!(
        fs::read_dir(mounted.path()).expect("a directory").count(),
        0
    );
}

#[test]
fn git_works() {
    let Some(mounted) = mounted(&volume(), 1, Calls::Each, "programs::git_works") else {
        return;
    };
    git(&mounted);
}

/// A transaction's calls take effect at its commit, and before that only its own mount sees them.
#[test]
fn git_works_within_a_transaction() {
    let (test, volume) = ("programs::git_works_within_a_transaction", volume());
    let Some(other) = mounted(&volume, 1, Calls::Each, test) else {
        return;
    };
    other.text("echo before > a");
    let Some(mut inside) = mounted(&volume, 2, Calls::Together, test) else {
        return;
    };
    git(&inside);
    assert_eq!(
        inside.text("cat a; echo inside > a; cat a; sync -f a"),
        "before\ninside\n"
    );
    assert_eq!(other.text("cat a; ls"), "before\na\n");
    let outcome = inside.commit();
    assert!(
        matches!(outcome, files::Outcome::Committed { .. }),
        "{outcome:?}"
    );
    assert_eq!(
        other.text("cat a; ls; git -C one fsck"),
        "inside\na\none\ntwo\n"
    );
    assert!(inside.runtime.block_on(inside.handler.take()).is_none());
}

/// The kernel keeps writes until a file is closed or synced. All of them are in the transaction, and
/// programs see them before.
#[test]
fn gathered_writes_are_seen_and_committed() {
    let (test, volume) = ("programs::gathered_writes_are_seen_and_committed", volume());
    let Some(other) = mounted(&volume, 1, Calls::Each, test) else {
        return;
    };
    other.text("printf 0123456789 > a; touch b");
    let Some(mut inside) = mounted(&volume, 2, Calls::Together, test) else {
        return;
    };
    let script = "
import os, subprocess
holes = os.open('holes', os.O_WRONLY | os.O_CREAT)
os.pwrite(holes, b'z', 1 << 20)
os.close(holes)
assert os.lseek(os.open('holes', os.O_RDONLY), 0, os.SEEK_DATA) == 1 << 20
a = os.open('a', os.O_RDWR)
for at in range(0, 8, 2):
    os.pwrite(a, b'x', at)
os.write(os.open('a', os.O_WRONLY | os.O_APPEND), b'end')
os.pwrite(a, b'y', 100000)
os.utime('b', (1, 2))
assert os.stat('a').st_size == 100001
found = os.lseek(a, 0, os.SEEK_DATA), os.lseek(a, 0, os.SEEK_HOLE)
assert found == (0, 100001), found
subprocess.run(['cp', '--sparse=auto', 'a', 'copy'], check=True)
for file in [a, 'copy']:
    os.truncate(file, 50000)
    os.truncate(file, 13)
";
    inside.text(&format!("python3 -c \"{script}\""));
    let outcome = inside.commit();
    assert!(
        matches!(outcome, files::Outcome::Committed { .. }),
        "{outcome:?}"
    );
    let seen = other.text("cat a copy; stat -c ' %Y' b");
    assert_eq!(seen, "x1x3x5x789endx1x3x5x789end 2\n");
}

#[test]
fn a_transaction_that_read_what_changed_conflicts() {
    let (test, volume) = (
        "programs::a_transaction_that_read_what_changed_conflicts",
        volume(),
    );
    let Some(other) = mounted(&volume, 1, Calls::Each, test) else {
        return;
    };
    other.text("echo before > a");
    let Some(mut inside) = mounted(&volume, 2, Calls::Together, test) else {
        return;
    };
    inside.text("cp a b");
    other.text("echo after > a");
    let outcome = inside.commit();
    assert!(
        matches!(outcome, files::Outcome::Conflict { key: Some(_) }),
        "{outcome:?}"
    );
    assert_eq!(other.text("ls"), "a\n");
}

/// Each process increments a number in a transaction, many times.
const INCREMENTS: &str = "
import sqlite3, sys
connection = sqlite3.connect('database', timeout=100, isolation_level=None)
connection.execute('PRAGMA journal_mode=' + sys.argv[1])
connection.execute('CREATE TABLE IF NOT EXISTS numbers (value)')
connection.execute('BEGIN IMMEDIATE')
if connection.execute('SELECT count(*) FROM numbers').fetchone()[0] == 0:
    connection.execute('INSERT INTO numbers VALUES (0)')
connection.execute('COMMIT')
for _ in range(int(sys.argv[2])):
    connection.execute('BEGIN IMMEDIATE')
    value = connection.execute('SELECT value FROM numbers').fetchone()[0]
    connection.execute('UPDATE numbers SET value = ?', (value + 1,))
    connection.execute('COMMIT')
connection.close()
";

const CHECK: &str = "
import sqlite3
connection = sqlite3.connect('database')
print(connection.execute('PRAGMA integrity_check').fetchone()[0])
print(connection.execute('SELECT value FROM numbers').fetchone()[0])
";

fn sqlite(journal: &str, mounts: [&Mounted; 2]) {
    // SQLite refuses at once if two processes change the journal's mode.
    text(
        mounts[0].path(),
        "python3",
        &["-c", INCREMENTS, journal, "0"],
    );
    let processes = mounts.map(|mounted| {
        let arguments = ["-c", INCREMENTS, journal, "50"];
        program(mounted.path(), "python3", &arguments)
            .spawn()
            .expect("it starts")
    });
    for mut process in processes {
        assert!(process.wait().expect("it ends").success());
    }
    for mounted in mounts {
        assert_eq!(text(mounted.path(), "python3", &["-c", CHECK]), "ok\n100\n");
    }
}

#[test]
fn sqlite_with_a_rollback_journal_works_across_mounts() {
    let test = "programs::sqlite_with_a_rollback_journal_works_across_mounts";
    let volume = volume();
    let two = [1, 2].map(|session| mounted(&volume, session, Calls::Each, test));
    let [Some(first), Some(second)] = two else {
        return;
    };
    sqlite("DELETE", [&first, &second]);
}

/// The log's index is mapped memory, which is coherent within one mount.
#[test]
fn sqlite_with_a_write_ahead_log_works_within_a_mount() {
    let test = "programs::sqlite_with_a_write_ahead_log_works_within_a_mount";
    let Some(mounted) = mounted(&volume(), 1, Calls::Each, test) else {
        return;
    };
    sqlite("WAL", [&mounted, &mounted]);
}

#[test]
fn mounts_see_each_others_changes_at_once() {
    let (test, volume) = ("programs::mounts_see_each_others_changes_at_once", volume());
    let two = [1, 2].map(|session| mounted(&volume, session, Calls::Each, test));
    let [Some(first), Some(second)] = two else {
        return;
    };
    for round in 0..50 {
        let (here, there) = if round % 2 == 0 {
            (&first, &second)
        } else {
            (&second, &first)
        };
        let (name, text) = (format!("f{round}"), format!("{round}\n").repeat(round + 1));
        fs::write(here.path().join(&name), &text).expect("it is written");
        assert_eq!(
            fs::read_to_string(there.path().join(&name)).expect("it is there"),
            text
        );
        fs::write(there.path().join("same"), &text).expect("it is written");
        let length = fs::metadata(here.path().join("same"))
            .expect("it is there")
            .len();
        assert_eq!(length as usize, text.len());
        fs::rename(there.path().join(&name), there.path().join("moved")).expect("it moves");
        fs::metadata(here.path().join(&name)).expect_err("it has moved");
        assert_eq!(
            fs::read_to_string(here.path().join("moved")).expect("it is there"),
            text
        );
    }
}
