//! The state that descriptors share, conflicts of transactions, and refused calls.

use super::*;

/// Runs a Python program in which `at` is the volume, and returns its output.
#[track_caller]
fn python(server: &Server, script: &str) -> String {
    let script = format!("import os, sys\nat = os.environ['AT']\n{script}");
    let output = command(server, "python3").args(["-c", &script]).output();
    let output = output.expect("python starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn dup_fork_and_exec_share_the_position() {
    let world = World::new();
    let server = world.transaction();
    let text = python(
        &server,
        "
import subprocess
fd = os.open(at + '/f', os.O_CREAT | os.O_RDWR)
os.write(fd, b'0123456789')
os.lseek(fd, 0, os.SEEK_SET)
copy = os.dup(fd)
print(os.read(fd, 2), os.read(copy, 2))
if os.fork() == 0:
    print(os.read(fd, 2), flush=True)
    os._exit(0)
os.wait()
print(os.read(copy, 1), flush=True)
subprocess.run(['head', '-c', '1'], stdin=fd)
print(flush=True)
print(os.lseek(fd, 0, os.SEEK_CUR) >= 8)
",
    );
    assert_eq!(text, "b'01' b'23'\nb'45'\nb'6'\n7\nTrue\n");
}

#[test]
fn processes_that_append_lose_nothing() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "cd $AT; for i in 1 2 3 4; do (for j in 1 2 3 4 5; do echo $i$j; done) >> f & done; wait
         (for i in 1 2 3; do (echo x$i; echo y$i) & done; wait) > g
         wc -l < f; sort -u f | wc -l; wc -l < g",
    );
    assert_eq!(text, "20\n20\n6\n");
}

#[test]
fn a_transaction_that_read_what_another_wrote_conflicts() {
    let world = World::new();
    world.run("echo old > $AT/f; echo old > $AT/g");
    let (one, two) = (world.transaction(), world.transaction());
    output(&one, "cat $AT/f; echo one > $AT/h");
    output(&two, "cat $AT/f; echo two > $AT/f");
    assert!(world.commit(two));
    assert!(!world.commit(one));
    assert_eq!(world.read("f").as_deref(), Some("two\n"));
    assert_eq!(world.read("h"), None);
}

/// The issue: length predicates are exact under the preload library.
#[test]
fn only_reads_of_the_end_depend_on_the_length() {
    for (reads, commits) in [
        ("os.pread(fd, 4, 0)", true),
        ("os.pread(fd, 4, 8)", false),
        ("os.read(fd, 100)", false),
        ("os.pread(fd, 1, 20)", false),
        ("os.fstat(fd)", false),
        ("os.lseek(fd, 0, os.SEEK_CUR)", true),
        ("os.lseek(fd, 0, os.SEEK_END)", false),
    ] {
        let world = World::new();
        world.run("printf 0123456789 > $AT/f");
        let server = world.transaction();
        let open = "fd = os.open(at + '/f', os.O_RDWR | os.O_APPEND)";
        python(&server, &format!("{open}\n{reads}\nos.mkdir(at + '/d')"));
        // This changes another block than the reads name: for them only the length changes.
        world.run("truncate -s 100000 $AT/f");
        let committed = world.commit(server);
        assert_eq!(committed, commits, "{reads}");
    }
}

#[test]
fn errors_are_those_of_linux() {
    let world = World::new();
    let server = world.transaction();
    let text = python(
        &server,
        "
import errno
def fails(call, *arguments):
    try: call(*arguments); print('no error')
    except OSError as error: print(errno.errorcode[error.errno], end=' ')
f, d = at + '/f', at + '/d'
os.close(os.open(f, os.O_CREAT)); os.mkdir(d); os.symlink('loop', at + '/loop')
os.close(os.open(d + '/f', os.O_CREAT))
fails(os.open, at + '/none', os.O_RDONLY)
fails(os.open, f, os.O_CREAT | os.O_EXCL)
fails(os.open, d, os.O_WRONLY)
fails(os.open, f + '/x', os.O_RDONLY)
fails(os.open, f, os.O_DIRECTORY)
fails(os.open, at + '/loop', os.O_RDONLY)
fails(os.open, at + '/' + 'n' * 256, os.O_RDONLY)
print()
fails(os.mkdir, d); fails(os.rmdir, d); fails(os.rmdir, f); fails(os.unlink, d)
fails(os.rename, d, d + '/x'); fails(os.link, d, at + '/e'); fails(os.readlink, f)
fails(os.rename, f, '/tmp/f'); fails(os.mkfifo, at + '/p'); fails(os.chdir, f)
fails(os.listdir, f)
print()
fd = os.open(f, os.O_RDONLY)
fails(os.write, fd, b'x'); fails(os.ftruncate, fd, 1); fails(os.lseek, fd, -1, 0)
fails(os.pwrite, fd, b'x', 0)
import mmap
os.truncate(f, 10)
fails(mmap.mmap, fd, 10, mmap.MAP_SHARED, mmap.PROT_READ)
print(mmap.mmap(fd, 10, mmap.MAP_PRIVATE, mmap.PROT_READ)[:].count(0))
",
    );
    let expected = "ENOENT EEXIST EISDIR ENOTDIR ENOTDIR ELOOP ENAMETOOLONG \n\
        EEXIST ENOTEMPTY ENOTDIR EISDIR EINVAL EPERM EINVAL EXDEV EPERM ENOTDIR ENOTDIR \n\
        EBADF EINVAL EINVAL EBADF ENODEV 10\n";
    assert_eq!(text, expected);
}

#[test]
fn links_lead_into_and_out_of_the_volume() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "cd $AT; mkdir d; echo in > d/f; ln -s $AT/d/f absolute; ln -s /etc outside; ln -s d dir
         cat absolute dir/f; cat outside/hostname > /dev/null && echo out; ls outside/passwd
         cd dir; pwd -P; cat ../d/f; cd ..; cd ..; ls -d demo",
    );
    let expected = "in\nin\nout\noutside/passwd\n/landfast-test/demo/d\nin\ndemo\n";
    assert_eq!(text, expected);
}

/// The issue: permission refusals have the POSIX errno.
#[test]
fn permissions_are_those_of_a_file_system() {
    let world = World::new();
    world.run(
        "cd $AT; echo secret > secret; chmod 600 secret; echo text > text; mkdir open sticky shut
         chmod 777 open; chmod 1777 sticky; touch sticky/theirs shut/f; chmod 700 shut; mkdir open/d
         echo theirs > open/theirs; echo own > open/own; chown 7 open/own; chmod 666 sticky/theirs",
    );
    let user = User {
        uid: 7,
        groups: vec![7],
    };
    let server = world.transaction_of(Some(user));
    let text = python(
        &server,
        "
import errno
os.chdir(at)
def tries(call, *arguments, **more):
    try: call(*arguments, **more); print('done', end=' ')
    except OSError as error: print(errno.errorcode[error.errno], end=' ')
tries(open, 'text'); tries(open, 'text', 'a'); tries(open, 'secret'); tries(open, 'new', 'w')
tries(os.truncate, 'text', 0); tries(open, 'shut/f'); tries(os.stat, 'shut/f')
print()
tries(os.mkdir, 'new'); tries(os.mkdir, 'open'); tries(os.symlink, 'a', 'new'); tries(os.link, 'text', 'new')
tries(os.unlink, 'text'); tries(os.rename, 'text', 'open/text'); tries(os.rmdir, 'shut')
print()
tries(os.unlink, 'open/theirs'); tries(os.unlink, 'sticky/theirs'); tries(os.rename, 'open/own', 'sticky/theirs')
tries(os.rename, 'open/own', 'sticky/own'); tries(os.rename, 'open/d', 'sticky/d'); tries(os.listdir, 'shut')
print()
tries(os.chmod, 'text', 0o777); tries(os.chmod, 'sticky/own', 0o600); tries(os.chown, 'sticky/own', 8, -1)
tries(os.chown, 'sticky/own', -1, 7); tries(os.chown, 'sticky/own', -1, 8); tries(os.utime, 'text')
tries(os.utime, 'sticky/theirs'); tries(os.utime, 'sticky/theirs', (0, 0)); tries(os.setxattr, 'text', 'user.a', b'')
print()
",
    );
    let expected = "done EACCES EACCES EACCES EACCES EACCES EACCES 
EACCES EEXIST EACCES EACCES EACCES EACCES EACCES 
done EPERM EPERM done EACCES EACCES 
EPERM done EPERM done EPERM EACCES done EPERM EACCES 
";
    assert_eq!(text, expected);
}

#[test]
fn locks_exclude_the_processes_of_one_server() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "cd $AT; touch lock; exec 9> lock; flock 9
         flock -n lock echo taken || echo held; exec 9>&-; flock -n lock echo free",
    );
    assert_eq!(text, "held\nfree\n");
}

/// F-1: a lock is not asked for. The commit finds that another client has one.
#[test]
fn a_lock_conflicts_with_one_of_another_client() {
    let lockf = |how| {
        format!(
            "import fcntl, os; f = open(os.environ['AT'] + '/lock', 'r+'); \
             fcntl.lockf(f, fcntl.{how})"
        )
    };
    // `F_TEST` is asked for through `lockf` of the C library.
    let test =
        "import os; f = open(os.environ['AT'] + '/lock', 'r+'); os.lockf(f.fileno(), os.F_TEST, 0)";
    let python = |script: &str| format!("python3 -c \"{script}\"");
    for (script, is_locked) in [
        ("flock $AT/lock true".to_owned(), true),
        (python(&lockf("LOCK_EX")), true),
        (python(test), true),
        (python(&lockf("LOCK_UN")), false),
        ("cat $AT/lock".to_owned(), false),
    ] {
        let world = World::new();
        world.run("touch $AT/lock");
        for is_taken in [false, true] {
            let server = world.transaction();
            output(&server, &script);
            if is_taken {
                world.lock_outside("lock");
            }
            let commits = !(is_taken && is_locked);
            assert_eq!(world.commit(server), commits, "{script} {is_taken}");
        }
    }
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    let world = World::new();
    let server = world.transaction();
    let text = python(
        &server,
        "
fd = os.open(at + '/f', os.O_CREAT | os.O_RDWR)
os.unlink(at + '/f'); os.write(fd, b'still here'); print(os.pread(fd, 99, 0))
os.close(fd)
",
    );
    assert_eq!(text, "b'still here'\n");
}

#[test]
fn programs_keep_the_volume_when_they_clear_the_environment() {
    let world = World::new();
    let server = world.transaction();
    output(&server, "echo hello > $AT/f");
    let text = output(&server, "env -i /bin/cat $AT/f");
    assert_eq!(text, "hello\n");
}

#[test]
fn programs_that_make_system_calls_themselves_are_refused_by_name() {
    let world = World::new();
    let folder = tempfile::tempdir().expect("a folder");
    // An ELF header of a 64-bit program with one program header.
    let elf = |kind: u8, rest: &[u8]| {
        let mut elf = vec![0; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, kind);
        [&elf, rest].concat()
    };
    let note = b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0";
    let (data, interpreter) = (1, 3);
    for (name, bytes, complaint) in [
        ("static", elf(data, b""), "is a static program"),
        ("go", elf(interpreter, note), "is a Go program"),
    ] {
        let (program, script) = (folder.path().join(name), folder.path().join("script"));
        std::fs::write(&program, bytes).expect("written");
        let program = program.display();
        std::fs::write(&script, format!("#! {program} -e\n")).expect("written");
        let script = script.display();
        for started in [&program, &script] {
            let server = world.transaction();
            let output = sh(&server, &format!("chmod +x {program} {script}; {started}"));
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(error.contains(&format!("{program} {complaint}")), "{error}");
            assert!(!output.status.success());
        }
    }
}

#[test]
fn a_program_without_its_server_does_not_start() {
    let world = World::new();
    let server = world.transaction();
    let mut program = command(&server, "true");
    drop(server);
    let output = program.output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot reach the server"), "{error}");
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn writes_without_a_reply_are_seen_by_all_that_follow() {
    let world = World::new();
    let server = world.transaction();
    let text = python(
        &server,
        "
import subprocess
fd = os.open(at + '/f', os.O_CREAT | os.O_RDWR)
os.pwrite(fd, bytes(4096), 0)
for round in range(2000):
    # The bytes are cached, so the call does not wait.
    os.pwrite(fd, b'%04d' % round, round % 1000)
    assert os.pread(fd, 4, round % 1000) == b'%04d' % round
os.pwrite(fd, b'last', 100)
if os.fork() == 0:
    assert os.pread(fd, 4, 100) == b'last'
    os.pwrite(fd, b'more', 100)
    os._exit(0)
assert os.wait()[1] == 0
print(os.pread(fd, 4, 100), os.fsync(fd))
",
    );
    assert_eq!(text, "b'more' None\n");
    assert!(world.commit(server));
    assert_eq!(&world.read("f").expect("a file")[100..104], "more");
}

/// Attributes that were found take no request until something changes, in any process.
#[test]
fn attributes_are_asked_for_once_and_are_never_old() {
    let world = World::new();
    let server = world.transaction();
    output(&server, "echo 1 > $AT/f; mkdir $AT/d");
    let looks = "for _ in range(100):
    assert os.stat(at + '/f').st_size == 2 and os.access(at + '/d', os.R_OK)
    assert not os.path.exists(at + '/none') and os.path.isdir(at + '/d')";
    // A look asks again while another request is under way.
    let asked = [(); 3].map(|()| {
        let before = server.requests();
        python(&server, looks);
        server.requests() - before
    });
    let least = asked.iter().min().expect("some");
    assert!(*least < 20, "{asked:?} requests");
    let text = python(
        &server,
        "
import subprocess
f, g = at + '/f', at + '/g'
fd = os.open(f, os.O_RDWR)
for size in range(3, 100):
    os.pwrite(fd, bytes(size), 0)
    assert os.stat(f).st_size == os.fstat(fd).st_size == size
for _ in range(20):
    assert not os.path.exists(g)
    subprocess.run(['mv', f, g])
    assert os.path.exists(g) and not os.path.exists(f)
    subprocess.run(['mv', g, f])
    subprocess.run(['chmod', '600', f]); assert os.stat(f).st_mode & 0o777 == 0o600
    os.chmod(f, 0o644); assert os.stat(f).st_mode & 0o777 == 0o644
print('done')
",
    );
    assert_eq!(text, "done\n");
}

#[test]
fn what_shortens_a_file_ends_its_cached_bytes() {
    let world = World::new();
    let server = world.transaction();
    let text = python(
        &server,
        "
fd = os.open(at + '/f', os.O_CREAT | os.O_RDWR)
for shorten in (lambda: os.ftruncate(fd, 2), lambda: os.truncate(at + '/f', 2),
                lambda: os.close(os.open(at + '/f', os.O_WRONLY | os.O_TRUNC))):
    os.pwrite(fd, b'0123456789', 0)
    assert os.pread(fd, 10, 0) == b'0123456789'
    shorten()
    print(os.pread(fd, 10, 0), end=' ')
",
    );
    assert_eq!(text, "b'01' b'01' b'' ");
}

/// A client dies at any instant: others go on, and its buffers and locks are free again.
#[test]
fn killed_programs_leave_no_buffer_or_lock_behind() {
    let world = World::new();
    let server = world.transaction();
    let text = python(
        &server,
        "
import signal, subprocess, time
work = '''
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
while True:
    os.lseek(fd, 0, 0); os.write(fd, bytes(9000)); os.stat(sys.argv[1])
'''
children = [subprocess.Popen([sys.executable, '-c', work, at + '/f']) for _ in range(12)]
deadline = time.monotonic() + 20
while not os.path.exists(at + '/f') and time.monotonic() < deadline: pass
for child in children:
    os.stat(at + '/f')
    child.send_signal(signal.SIGKILL)
for child in children: child.wait()
fd = os.open(at + '/f', os.O_RDWR)
for _ in range(100): os.write(fd, b'x')
print(os.pread(fd, 100, 0) == b'x' * 100)
",
    );
    assert_eq!(text, "True\n");
}
