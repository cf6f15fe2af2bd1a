//! The rules of POSIX, as a process sees them on a mount of a volume.

use std::{
    cell::Cell,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{
        self,
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::PathBuf,
};

use files::reaper::reap;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2},
    libc,
    unistd::{Whence, lseek},
};

use crate::volume::{Calls, Mounted, mounted, program, text, volume};

/// A mount for `test`, by each way in which calls become transactions.
fn each_mount(test: &str, scenario: impl Fn(&Mounted, Calls)) {
    for calls in [Calls::Each, Calls::Together] {
        if let Some(mounted) = mounted(&volume(), 1, calls, test) {
            scenario(&mounted, calls);
        }
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: Errno) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.raw_os_error(), Some(errno as i32), "{error}");
}

fn at(mounted: &Mounted) -> impl Fn(&str) -> PathBuf {
    |name| mounted.path().join(name)
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

#[test]
fn names_have_their_limits() {
    each_mount("posix::names_have_their_limits", |mounted, _| {
        let at = at(mounted);
        for name in ["n".repeat(255), "\u{e4}".repeat(127)] {
            fs::write(at(&name), "a").expect("255 bytes are allowed");
            assert_eq!(fs::read(at(&name)).expect("it is there"), b"a");
        }
        refused(fs::write(at(&"n".repeat(256)), "a"), Errno::ENAMETOOLONG);
        refused(fs::create_dir(at(&"n".repeat(256))), Errno::ENAMETOOLONG);
        refused(
            unix::fs::symlink("x".repeat(5_000), at("s")),
            Errno::ENAMETOOLONG,
        );
        let bytes = std::ffi::OsStr::from_bytes(b"\xff\x01 \n*");
        fs::create_dir(mounted.path().join(bytes)).expect("names are bytes");
        let names = fs::read_dir(mounted.path())
            .expect("it lists")
            .map(|entry| entry.expect("an entry").file_name());
        assert_eq!(names.filter(|name| name == bytes).count(), 1);
    });
}

#[test]
fn an_open_file_outlives_its_last_name() {
    each_mount(
        "posix::an_open_file_outlives_its_last_name",
        |mounted, calls| {
            let at = at(mounted);
            let mut file = both().create_new(true).open(at("f")).expect("it is new");
            file.write_all(b"hello").expect("written");
            fs::remove_file(at("f")).expect("removed");
            if calls == Calls::Each {
                let reaped = mounted.runtime.block_on(reap(&mounted.files));
                assert_eq!(reaped, Ok(0), "it is open");
            }
            file.write_all(b", world").expect("written");
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).expect("rewound");
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, "hello, world");
            let metadata = file.metadata().expect("it lives");
            assert_eq!((metadata.nlink(), metadata.len()), (0, 12));
            file.set_len(5).expect("it lives");
            refused(fs::metadata(at("f")), Errno::ENOENT);
            drop(file);
            if calls == Calls::Each {
                // The kernel sends the release in the background.
                let is_reaped = || mounted.runtime.block_on(reap(&mounted.files)) == Ok(1);
                wait_until(is_reaped);
            }
        },
    );
}

/// Waits at most 10 s.
fn wait_until(holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "it never holds");
        std::thread::yield_now();
    }
}

#[test]
fn renames_follow_their_rules() {
    each_mount("posix::renames_follow_their_rules", |mounted, _| {
        let at = at(mounted);
        let rename = |from: &str, to: &str| fs::rename(at(from), at(to));
        let flagged = |from: &str, to: &str, flags| {
            renameat2(AT_FDCWD, &at(from), AT_FDCWD, &at(to), flags).map_err(io::Error::from)
        };
        mounted.text("mkdir -p d/e empty full; touch full/x; echo a > a; echo b > b; ln a same");
        refused(rename("missing", "x"), Errno::ENOENT);
        refused(rename("d", "d/e/f"), Errno::EINVAL);
        refused(rename("a", "d"), Errno::EISDIR);
        refused(rename("d", "a"), Errno::ENOTDIR);
        refused(rename("d", "full"), Errno::ENOTEMPTY);
        refused(rename("a", "b/x"), Errno::ENOTDIR);
        rename("a", "same").expect("two names of one file");
        assert_eq!(mounted.text("cat a same"), "a\na\n");
        rename("d", "empty").expect("an empty directory is replaced");
        assert_eq!(mounted.text("ls empty; stat -c %h . empty"), "e\n4\n3\n");
        let mut replaced = File::open(at("b")).expect("it opens");
        rename("a", "b").expect("a file is replaced");
        let mut text = String::new();
        replaced
            .read_to_string(&mut text)
            .expect("it is still open");
        assert_eq!(text, "b\n");
        refused(
            flagged("b", "same", RenameFlags::RENAME_NOREPLACE),
            Errno::EEXIST,
        );
        flagged("b", "new", RenameFlags::RENAME_NOREPLACE).expect("it is free");
        flagged("full", "new", RenameFlags::RENAME_EXCHANGE).expect("both exist");
        assert_eq!(mounted.text("ls new; cat full"), "x\na\n");
        refused(
            flagged("full", "missing", RenameFlags::RENAME_EXCHANGE),
            Errno::ENOENT,
        );
        refused(
            flagged("full", "x", RenameFlags::RENAME_WHITEOUT),
            Errno::EINVAL,
        );
        rename("new/x", "empty/e/x").expect("between directories");
        assert_eq!(
            mounted.text("find . | sort"),
            ".\n./empty\n./empty/e\n./empty/e/x\n./full\n./new\n./same\n"
        );
    });
}

#[test]
fn appends_of_several_descriptors_do_not_overwrite_each_other() {
    let test = "posix::appends_of_several_descriptors_do_not_overwrite_each_other";
    let volume = volume();
    let two = [1, 2].map(|session| mounted(&volume, session, Calls::Each, test));
    let [Some(first), Some(second)] = two else {
        return;
    };
    let open = |mounted: &Mounted| {
        let mut options = OpenOptions::new();
        let file = options
            .append(true)
            .create(true)
            .open(mounted.path().join("log"));
        file.expect("it opens")
    };
    let files = [open(&first), open(&first), open(&second)];
    std::thread::scope(|scope| {
        for (number, mut file) in files.into_iter().enumerate() {
            scope.spawn(move || {
                for line in 0..100 {
                    let line = format!("{number} {line:03} {}\n", "x".repeat(500));
                    file.write_all(line.as_bytes()).expect("it is appended");
                }
            });
        }
    });
    let text = fs::read_to_string(first.path().join("log")).expect("it is there");
    assert_eq!(text.lines().count(), 300);
    for number in 0..3 {
        let prefix = format!("{number} ");
        let lines = text.lines().filter(|line| line.starts_with(&prefix));
        let lines: Vec<_> = lines.map(|line| line[2..5].to_owned()).collect();
        let expected: Vec<_> = (0..100).map(|line| format!("{line:03}")).collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn files_may_have_holes_and_any_length() {
    each_mount(
        "posix::files_may_have_holes_and_any_length",
        |mounted, calls| {
            let path = at(mounted)("f");
            let file = both().create_new(true).open(&path).expect("it is new");
            let far = 1 << 40;
            file.write_all_at(b"end", far).expect("far away");
            assert_eq!(fs::metadata(&path).expect("it is there").len(), far + 3);
            let mut bytes = [1; 8];
            file.read_exact_at(&mut bytes, far - 5).expect("a hole");
            assert_eq!(&bytes, b"\0\0\0\0\0end");
            let seek = |offset: u64, whence| lseek(&file, offset.cast_signed(), whence);
            // While the kernel keeps writes, a file is all data.
            let (data, hole) = match calls {
                Calls::Each => (far & !((16 << 10) - 1), 0),
                Calls::Together => (0, far + 3),
            };
            assert_eq!(seek(0, Whence::SeekData), Ok(data.cast_signed()));
            assert_eq!(seek(0, Whence::SeekHole), Ok(hole.cast_signed()));
            assert_eq!(seek(far, Whence::SeekHole), Ok((far + 3).cast_signed()));
            assert_eq!(seek(far + 3, Whence::SeekData), Err(Errno::ENXIO));
            file.set_len(10).expect("shorter");
            file.set_len(100_000).expect("longer");
            file.write_all_at(&vec![7; 50_000], 20_000)
                .expect("written");
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, punch, 30_000, 20_000).expect("a hole");
            let mut expected = vec![0; 100_000];
            expected[20_000..30_000].fill(7);
            expected[50_000..70_000].fill(7);
            assert!(fs::read(&path).expect("it is there") == expected);
            fallocate(&file, FallocateFlags::empty(), 0, 200_000).expect("longer");
            fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 300_000).expect("as long");
            fallocate(&file, FallocateFlags::FALLOC_FL_ZERO_RANGE, 60_000, 150_000).expect("zeros");
            assert_eq!(file.metadata().expect("it is there").len(), 210_000);
            expected.resize(210_000, 0);
            expected[60_000..].fill(0);
            assert!(fs::read(&path).expect("it is there") == expected);
            let collapse = FallocateFlags::FALLOC_FL_COLLAPSE_RANGE;
            assert_eq!(
                fallocate(&file, collapse, 0, 16_384),
                Err(Errno::EOPNOTSUPP)
            );
            let truncated = OpenOptions::new().write(true).truncate(true).open(&path);
            assert_eq!(
                truncated
                    .expect("it opens")
                    .metadata()
                    .expect("it is there")
                    .len(),
                0
            );
        },
    );
}

#[test]
fn links_count_and_lead() {
    each_mount("posix::links_count_and_lead", |mounted, _| {
        let at = at(mounted);
        fs::write(at("a"), "text").expect("written");
        fs::create_dir(at("d")).expect("made");
        for number in 0..20 {
            fs::hard_link(at("a"), at(&format!("d/{number}"))).expect("a name");
        }
        assert_eq!(fs::metadata(at("a")).expect("it is there").nlink(), 21);
        fs::remove_file(at("a")).expect("removed");
        let metadata = fs::metadata(at("d/7")).expect("it is there");
        assert_eq!((metadata.nlink(), metadata.len()), (20, 4));
        refused(fs::hard_link(at("d"), at("e")), Errno::EPERM);
        refused(fs::hard_link(at("d/1"), at("d/2")), Errno::EEXIST);
        refused(fs::remove_dir(at("d")), Errno::ENOTEMPTY);
        refused(fs::remove_file(at("d")), Errno::EISDIR);
        unix::fs::symlink("d/7", at("s")).expect("a link");
        unix::fs::symlink("loop", at("loop")).expect("a link");
        unix::fs::symlink("nowhere", at("dangling")).expect("a link");
        assert_eq!(
            fs::read_link(at("s")).expect("a link"),
            PathBuf::from("d/7")
        );
        assert_eq!(fs::symlink_metadata(at("s")).expect("a link").len(), 3);
        assert_eq!(fs::read_to_string(at("s")).expect("it leads there"), "text");
        refused(fs::read(at("loop")), Errno::ELOOP);
        refused(fs::read(at("dangling")), Errno::ENOENT);
        let no_follow = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(at("s"));
        refused(no_follow, Errno::ELOOP);
        let script = "mkfifo -m 620 p; (echo through > p &); cat p; stat -c '%F %a %s' p; rm p";
        assert_eq!(mounted.text(script), "through\nfifo 620 0\n");
        if nix::unistd::getuid().is_root() {
            let script =
                "mknod c c 1 3; mknod b b 7 300; stat -c '%F %t %T' c b; cat c 2>&1 || true";
            assert_eq!(
                mounted.text(script),
                "character special file 1 3\nblock special file 7 12c\ncat: c: Permission denied\n"
            );
        }
    });
}

#[test]
fn times_and_modes_are_kept() {
    each_mount("posix::times_and_modes_are_kept", |mounted, _| {
        let script =
            "umask 027; mkdir d; touch d/f; stat -c %a d d/f; chmod 6754 d/f; stat -c %a d/f
            touch -d '1960-01-02 03:04:05.678 UTC' d/f; TZ=UTC stat -c %y d/f
            touch -a -d '2200-01-01 UTC' d/f; TZ=UTC stat -c '%x %y' d/f";
        assert_eq!(
            mounted.text(script),
            "750\n640\n6754\n1960-01-02 03:04:05.678000000 +0000\n\
            2200-01-01 00:00:00.000000000 +0000 1960-01-02 03:04:05.678000000 +0000\n"
        );
        let path = at(mounted)("d/f");
        let before = fs::metadata(&path).expect("it is there");
        fs::write(&path, "x").expect("written");
        let after = fs::metadata(&path).expect("it is there");
        assert!(after.mtime() > before.mtime() && after.ctime() >= before.ctime());
        let script = "mkdir -m 2775 g; chgrp 4242 g; chmod g+s g; touch g/f; mkdir g/d; stat -c '%g %a' g/f g/d";
        if nix::unistd::getuid().is_root() {
            assert_eq!(mounted.text(script), "4242 644\n4242 2755\n");
        }
    });
}

/// Root may do anything, so only root can take the part of another user.
#[test]
fn the_kernel_checks_permissions() {
    let test = "posix::the_kernel_checks_permissions";
    if !nix::unistd::getuid().is_root() {
        eprintln!("skipped: {test}: it needs root to run a process as another user");
        return;
    }
    each_mount(test, |mounted, _| {
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        mounted.text(
            "mkdir -m 700 mine; echo secret > mine/f; echo a > readable; echo b > private
            chmod 600 private; mkdir -m 1777 tmp; touch tmp/rooted; mkdir theirs; chown 65534 theirs
            printf '#!/bin/sh\necho run' > theirs/suid; chmod 6777 theirs/suid; chown 65534 theirs/suid; chmod 6777 theirs/suid",
        );
        let script = "cat readable; cat private || echo refused; cat mine/f || echo refused
            echo x > new || echo refused; rm -f tmp/rooted || echo refused; echo x > tmp/ours; rm tmp/ours
            chmod 777 readable || echo refused; chown 0 theirs || echo refused
            echo more >> theirs/suid; stat -c '%a' theirs/suid; touch theirs/f; stat -c '%u %g' theirs/f";
        let user = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            script,
        ];
        assert_eq!(
            text(mounted.path(), "setpriv", &user),
            "a\nrefused\nrefused\nrefused\nrefused\nrefused\nrefused\n777\n65534 65534\n"
        );
    });
}

#[test]
fn extended_attributes_are_kept() {
    each_mount("posix::extended_attributes_are_kept", |mounted, _| {
        let script = "
import errno, os
open('f', 'w').close()
os.setxattr('f', 'user.a', b'one')
os.setxattr('f', 'user.b', b'', os.XATTR_CREATE)
os.setxattr('f', 'user.large', bytes(60000))
assert os.getxattr('f', 'user.a') == b'one'
assert os.getxattr('f', 'user.b') == b''
assert os.getxattr('f', 'user.large') == bytes(60000)
assert sorted(os.listxattr('f')) == ['user.a', 'user.b', 'user.large']
def refused(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError('not refused')
refused(errno.EEXIST, os.setxattr, 'f', 'user.a', b'x', os.XATTR_CREATE)
refused(errno.ENODATA, os.setxattr, 'f', 'user.c', b'x', os.XATTR_REPLACE)
refused(errno.ENODATA, os.getxattr, 'f', 'user.c')
refused(errno.EOPNOTSUPP, os.getxattr, 'f', 'system.posix_acl_access')
os.setxattr('f', 'user.a', b'two', os.XATTR_REPLACE)
os.removexattr('f', 'user.b')
refused(errno.ENODATA, os.removexattr, 'f', 'user.b')
assert os.getxattr('f', 'user.a') == b'two'
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.getxattr(b'f', b'user.a', None, 0) == 3
assert libc.getxattr(b'f', b'user.a', ctypes.create_string_buffer(2), 2) == -1
assert ctypes.get_errno() == errno.ERANGE
assert libc.listxattr(b'f', None, 0) == len(b'user.a\\0user.large\\0')
assert libc.listxattr(b'f', ctypes.create_string_buffer(3), 3) == -1
assert ctypes.get_errno() == errno.ERANGE
";
        text(mounted.path(), "python3", &["-c", script]);
    });
}

/// Prints `had` and keeps its lock until it is told to end.
const HOLDER: &str = "
import fcntl, sys
file = open('f', 'r+')
getattr(fcntl, sys.argv[1])(file, fcntl.LOCK_EX)
print('had', flush=True)
sys.stdin.read()
";

/// The call of a second process, which must not wait.
const TRY: &str = "
import fcntl, sys
file = open('f', 'r+')
try:
    getattr(fcntl, sys.argv[1])(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print('free')
except BlockingIOError:
    print('locked')
";

#[test]
fn locks_of_processes_exclude_each_other() {
    let (test, volume) = ("posix::locks_of_processes_exclude_each_other", volume());
    let two = [1, 2].map(|session| mounted(&volume, session, Calls::Each, test));
    if let [Some(first), Some(second)] = two {
        locks(&first, &first);
        locks(&first, &second);
        let inside = mounted(&volume, 3, Calls::Together, test).expect("as before");
        locks(&inside, &inside);
    }
}

fn locks(first: &Mounted, second: &Mounted) {
    first.text(": > f");
    for (style, other) in [("lockf", "flock"), ("flock", "lockf")] {
        let check = |style| text(second.path(), "python3", &["-c", TRY, style]);
        let mut holder = program(first.path(), "python3", &["-c", HOLDER, style])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = [0; 4];
        let stdout = holder.stdout.as_mut().expect("a pipe");
        stdout.read_exact(&mut line).expect("it locks");
        assert_eq!(check(style), "locked\n");
        assert_eq!(check(other), "free\n", "{other} and {style} are apart");
        let waiter = format!("import fcntl; f = open('f', 'r+'); fcntl.{style}(f, fcntl.LOCK_EX)");
        let mut waiter = program(second.path(), "python3", &["-c", &waiter])
            .spawn()
            .expect("it starts");
        let timeout = format!(
            "import fcntl, signal; f = open('f', 'r+'); signal.setitimer(signal.ITIMER_REAL, 0.3); fcntl.{style}(f, fcntl.LOCK_EX)"
        );
        let killed = program(second.path(), "python3", &["-c", &timeout]).status();
        assert!(
            !killed.expect("it runs").success(),
            "a signal ends the wait"
        );
        assert!(waiter.try_wait().expect("a child").is_none(), "it waits");
        drop(holder.stdin.take());
        assert!(holder.wait().expect("it ends").success());
        assert!(waiter.wait().expect("it ends").success());
        wait_until(|| check(style) == "free\n");
    }
}

#[test]
fn deleting_while_listing_skips_nothing() {
    each_mount(
        "posix::deleting_while_listing_skips_nothing",
        |mounted, _| {
            let at = at(mounted);
            fs::create_dir(at("d")).expect("made");
            for number in 0..1_500 {
                File::create(at(&format!("d/{number}"))).expect("made");
            }
            let mut listed = 0;
            for entry in fs::read_dir(at("d")).expect("it lists") {
                let entry = entry.expect("an entry");
                assert!(entry.file_type().expect("a type").is_file());
                fs::remove_file(entry.path()).expect("removed");
                listed += 1;
            }
            assert_eq!(listed, 1_500);
            fs::remove_dir(at("d")).expect("it is empty");
            let script = "
import os
os.mkdir('e')
directory = os.open('e', os.O_RDONLY)
assert os.listdir(directory) == []
open('e/a', 'w').close()
assert os.listdir(directory) == ['a'], 'a rewind lists anew'
";
            text(mounted.path(), "python3", &["-c", script]);
        },
    );
}

#[test]
fn one_of_two_mounts_creates_a_name() {
    let (test, volume) = ("posix::one_of_two_mounts_creates_a_name", volume());
    let two = [1, 2].map(|session| mounted(&volume, session, Calls::Each, test));
    let [Some(first), Some(second)] = two else {
        return;
    };
    let race = |options: &OpenOptions, name: &str| {
        let open = |mounted: &Mounted| options.open(mounted.path().join(name)).is_ok();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| open(&second));
            usize::from(open(&first)) + usize::from(other.join().expect("it ends"))
        })
    };
    for round in 0..100 {
        let (mut exclusive, mut shared) = (both(), both());
        exclusive.create_new(true);
        shared.create(true);
        assert_eq!(race(&exclusive, &format!("exclusive{round}")), 1);
        assert_eq!(race(&shared, &format!("shared{round}")), 2);
    }
}

const UNNAMED: &str = "
import os, stat
def unnamed(flags=0):
    file = os.open('d', os.O_TMPFILE | os.O_RDWR | flags, 0o666)
    assert os.write(file, b'text') == 4
    return file
def link(file, name):
    os.link(f'/proc/self/fd/{file}', name, src_dir_fd=here, follow_symlinks=True)
here = os.open('.', os.O_RDONLY)
os.umask(0o027)
os.mkdir('d')
file = unnamed()
status = os.fstat(file)
assert (status.st_nlink, status.st_size, stat.S_IMODE(status.st_mode)) == (0, 4, 0o640), status
assert os.listdir('d') == []
link(file, 'd/named')
assert os.fstat(file).st_nlink == 1
os.close(file)
assert open('d/named').read() == 'text'
secret = unnamed(os.O_EXCL)
try:
    link(secret, 'd/secret')
except FileNotFoundError:
    pass
else:
    raise AssertionError('O_EXCL forbids a name')
os.unlink('d/named')
assert os.pread(secret, 9, 0) == b'text'
os.close(secret)
";

/// `O_TMPFILE`. The file is deleted once it is closed without a name.
#[test]
fn a_file_may_be_made_without_a_name() {
    each_mount(
        "posix::a_file_may_be_made_without_a_name",
        |mounted, calls| {
            text(mounted.path(), "python3", &["-c", UNNAMED]);
            if calls == Calls::Each {
                // Two files: one whose name was removed, and one that had none.
                let deleted = Cell::new(0);
                wait_until(|| {
                    let reaped = mounted.runtime.block_on(reap(&mounted.files));
                    deleted.set(deleted.get() + reaped.expect("reaped"));
                    deleted.get() == 2
                });
            }
        },
    );
}

#[test]
fn files_may_be_mapped_and_run() {
    each_mount("posix::files_may_be_mapped_and_run", |mounted, _| {
        let script = "
import mmap
with open('m', 'w+b') as file:
    file.truncate(20000)
    with mmap.mmap(file.fileno(), 20000) as mapped:
        mapped[9990:10000] = b'0123456789'
        mapped.flush()
    file.seek(9990)
    assert file.read(10) == b'0123456789'
    assert file.seek(0, 2) == 20000
";
        text(mounted.path(), "python3", &["-c", script]);
        assert_eq!(
            mounted.text(
                "cp /bin/echo .; ./echo run; printf '#!/bin/sh\necho script' > s; chmod +x s; ./s"
            ),
            "run\nscript\n"
        );
    });
}

/// O_SYNC and O_DSYNC: the reply to a write waits for the disk.
#[test]
fn synchronous_writes_survive_a_crash_of_the_server() {
    let test = "posix::synchronous_writes_survive_a_crash_of_the_server";
    let volume = volume();
    let Some(mounted) = mounted(&volume, 1, Calls::Each, test) else {
        return;
    };
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        let path = mounted.path().join(name);
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create(true).custom_flags(flag).open(&path);
        let mut file = file.expect("it opens");
        file.write_all(b"kept").expect("it is written");
        volume.crash();
        assert_eq!(fs::read(&path).expect("it is there"), b"kept", "{name}");
    }
}
