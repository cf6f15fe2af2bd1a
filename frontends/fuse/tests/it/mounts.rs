//! A real mount of a file system in memory, used by unmodified programs.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead as _, ErrorKind},
    os::unix::{self, process::ExitStatusExt as _},
    path::Path,
    process::{Child, Command, Output},
    sync::Arc,
};

use fuse_frontend::{
    Handler, Mount, MountError, Unmounted, mount,
    mount::{Options, Readers},
    wire::{
        LockStyle, Notification, ROOT_INODE,
        init::{REQUIRED, Wishes},
    },
};
use nix::{
    fcntl::{AT_FDCWD, FallocateFlags, FcntlArg, Flock, FlockArg, OFlag, fcntl},
    libc,
    sys::stat::Mode,
};

use crate::memory::{Memory, State};

/// Mounts a file system in memory for `test`, which is skipped if this user may not mount.
fn mounted(test: &str) -> Option<(tempfile::TempDir, Arc<Memory>, Mount)> {
    let directory = tempfile::tempdir().expect("a directory");
    let (memory, mount) = mounted_on(directory.path(), test)?;
    Some((directory, memory, mount))
}

fn mounted_on(path: &Path, test: &str) -> Option<(Arc<Memory>, Mount)> {
    let memory = Memory::new();
    let handler: Arc<dyn Handler> = Arc::<Memory>::clone(&memory);
    match mount(path, &options(), &handler) {
        Ok(mount) => Some((memory, mount)),
        Err(error) if may_not_mount(&error) => {
            eprintln!("skipped: mounts::{test}: this machine does not let the test mount: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn may_not_mount(error: &MountError) -> bool {
    match error {
        MountError::Device(_) => true,
        MountError::Point(_, error) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}

fn options() -> Options {
    Options {
        source: "memory".to_owned(),
        readers: Readers::Threads(2),
        wishes: Wishes::default(),
        is_read_only: false,
        allow_other: true,
        checks_permissions: true,
    }
}

/// Runs a script in a directory. It is killed after a minute, so that a fault cannot hang the test.
fn sh(directory: &Path, script: &str) -> Output {
    let mut command = Command::new("timeout");
    let command = command.args(["--signal=KILL", "60", "sh", "-c", script]);
    command.current_dir(directory).output().expect("sh runs")
}

fn text(directory: &Path, script: &str) -> String {
    let output = sh(directory, script);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{script}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn programs_make_write_list_and_remove_files() {
    let Some((directory, memory, mount)) = mounted("programs_make_write_list_and_remove_files")
    else {
        return;
    };
    let at = directory.path();
    assert_eq!(text(at, "echo hello > a; cat a"), "hello\n");
    assert_eq!(
        text(at, "echo again >> a; cat a; echo x > a; cat a"),
        "hello\nagain\nx\n"
    );
    assert_eq!(
        text(at, "mkdir d; echo y > d/b; ls; ls d; stat -c %s d/b"),
        "a\nd\nb\n2\n"
    );
    assert_eq!(text(at, "rm d/b; rmdir d; ls"), "a\n");
    assert!(!sh(at, "cat missing").status.success());
    memory.wait_until(|state| state.forgotten > 0);
    assert_eq!(mount.unmount().expect("it unmounts"), Unmounted::Now);
    assert!(memory.of(|state| state.has_ended));
    let terms = memory
        .of(|state| state.terms)
        .expect("the handler has started");
    assert_eq!(terms.flags & REQUIRED, REQUIRED);
    assert_eq!(
        fs::read_dir(at)
            .expect("the directory is as before")
            .count(),
        0
    );
}

#[test]
fn a_write_of_a_mebibyte_and_many_names_pass() {
    let Some((directory, _memory, mount)) = mounted("a_write_of_a_mebibyte_and_many_names_pass")
    else {
        return;
    };
    let (at, data) = (directory.path(), vec![7; 3 << 20]);
    fs::write(at.join("large"), &data).expect("it is written");
    assert!(fs::read(at.join("large")).expect("it is read") == data);
    text(
        at,
        "for i in $(seq 500); do : > file-with-a-long-name-$i; done",
    );
    assert_eq!(text(at, "ls | wc -l").trim(), "501");
    mount.unmount().expect("it unmounts");
}

#[test]
fn locks_of_flock_and_fcntl_reach_the_handler_apart() {
    let Some((directory, memory, mount)) =
        mounted("locks_of_flock_and_fcntl_reach_the_handler_apart")
    else {
        return;
    };
    let at = directory.path();
    let file = fs::File::create(at.join("f")).expect("a file");
    let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("it is free");
    assert!(
        !sh(at, "flock -n f true").status.success(),
        "another open file has the lock"
    );
    let other = fs::File::options()
        .write(true)
        .open(at.join("f"))
        .expect("it opens");
    let whole = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&other, FcntlArg::F_SETLK(&whole)).expect("locks of flock do not hinder those of fcntl");
    assert_eq!(
        memory.of(State::styles),
        [LockStyle::Flock, LockStyle::Posix]
    );
    drop(other);
    let file = held.unlock().expect("it unlocks");
    assert!(sh(at, "flock -n f true").status.success());
    drop(file);
    memory.wait_until(|state| state.styles().is_empty());
    mount.unmount().expect("it unmounts");
}

/// A process that waits for the lock of the file `f`.
fn waiter_for_a_lock(folder: &Path) -> Child {
    let mut command = Command::new("flock");
    command.args(["f", "true"]).current_dir(folder);
    command.spawn().expect("it starts")
}

/// The fault of a front end that answers interrupts with ENOSYS: nothing could kill the process.
#[test]
fn a_process_that_waits_for_a_lock_can_be_killed() {
    let Some((directory, memory, mount)) = mounted("a_process_that_waits_for_a_lock_can_be_killed")
    else {
        return;
    };
    let at = directory.path();
    let file = fs::File::create(at.join("f")).expect("a file");
    let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("it is free");
    for round in 1..=3 {
        let mut waiter = waiter_for_a_lock(at);
        memory.wait_until(|state| state.waiting() == 1);
        waiter.kill().expect("the signal is sent");
        memory.wait_until(|state| state.interrupts == round && state.waiting() == 0);
        assert_eq!(
            waiter.wait().expect("it ends").signal(),
            Some(libc::SIGKILL)
        );
    }
    let mut waiter = waiter_for_a_lock(at);
    memory.wait_until(|state| state.waiting() == 1);
    drop(held);
    assert!(
        waiter.wait().expect("it ends").success(),
        "the released lock wakes the waiter"
    );
    mount.unmount().expect("it unmounts");
}

/// The requests that no program above makes, as the kernel sends them.
#[test]
fn every_other_request_of_the_kernel_decodes() {
    let Some((directory, memory, mount)) = mounted("every_other_request_of_the_kernel_decodes")
    else {
        return;
    };
    let at = |name: &str| directory.path().join(name);
    assert_eq!(
        text(directory.path(), "echo hello > f; stat -c '%W %s' f"),
        "1234567 6\n"
    );
    assert_eq!(text(directory.path(), "stat -f -c '%s %l' f"), "4096 255\n");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(at("f"))
        .expect("it opens");
    unix::fs::symlink("target", at("s")).expect_err("unsupported");
    fs::hard_link(at("f"), at("g")).expect_err("unsupported");
    fs::rename(at("f"), at("h")).expect_err("unsupported");
    nix::unistd::mkfifo(&at("p"), Mode::S_IRUSR).expect_err("unsupported");
    nix::fcntl::openat(
        AT_FDCWD,
        directory.path(),
        OFlag::O_TMPFILE | OFlag::O_RDWR,
        Mode::S_IRUSR,
    )
    .expect_err("unsupported");
    let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&file, keep, 3, 5).expect_err("unsupported");
    nix::unistd::lseek(&file, 2, nix::unistd::Whence::SeekHole).expect_err("unsupported");
    sh(
        directory.path(),
        "mv --no-clobber f h; mv -T --exchange f h; getfattr -n user.a f",
    );
    let unsupported = memory.of(|state| state.unsupported.join("\n"));
    for expected in [
        "1 Symlink { name: [115], target: [116, 97, 114, 103, 101, 116] }",
        "1 Link { inode: 2, name: [103] }",
        "1 Rename { directory_new: 1, flags: 0, name: [102], name_new: [104] }",
        "1 Rename { directory_new: 1, flags: 1, name: [102], name_new: [104] }",
        "1 MkNod { mode: 4352, rdev: 0, umask:",
        "1 TmpFile { flags:",
        "2 Fallocate { handle: 1, offset: 3, length: 5, mode: 1 }",
        "2 LSeek { handle: 1, offset: 2, whence: 4 }",
    ] {
        assert!(
            unsupported.contains(expected),
            "{expected} is not in\n{unsupported}"
        );
    }
    drop(file);
    mount.unmount().expect("it unmounts");
}

#[test]
fn a_mount_point_may_be_named_by_a_link() {
    let directory = tempfile::tempdir().expect("a directory");
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::create_dir(&real).expect("a directory");
    unix::fs::symlink(&real, &link).expect("a link");
    let Some((memory, mount)) = mounted_on(&link, "a_mount_point_may_be_named_by_a_link") else {
        return;
    };
    text(&real, "echo hello > a");
    assert_eq!(mount.unmount().expect("it unmounts"), Unmounted::Now);
    assert!(memory.of(|state| state.has_ended));
}

#[test]
fn a_busy_mount_ends_with_its_last_open_file() {
    let Some((directory, memory, mount)) = mounted("a_busy_mount_ends_with_its_last_open_file")
    else {
        return;
    };
    let file = fs::File::create(directory.path().join("f")).expect("a file");
    assert_eq!(mount.unmount().expect("it unmounts"), Unmounted::WhenUnused);
    assert!(
        !directory.path().join("f").exists(),
        "the name is gone at once"
    );
    assert!(!memory.of(|state| state.has_ended));
    drop(file);
    memory.wait_until(|state| state.has_ended);
}

#[test]
fn an_unmount_from_outside_ends_the_mount() {
    let Some((directory, memory, mount)) = mounted("an_unmount_from_outside_ends_the_mount") else {
        return;
    };
    let umount = Command::new("umount")
        .arg(directory.path())
        .status()
        .expect("umount runs");
    assert!(umount.success());
    memory.wait_until(|state| state.has_ended);
    assert!(mount.has_ended());
    mount.wait();
}

#[test]
fn the_kernel_takes_every_notification() {
    let Some((directory, memory, mount)) = mounted("the_kernel_takes_every_notification") else {
        return;
    };
    text(directory.path(), "echo hello > f; cat f");
    let terms = memory
        .of(|state| state.terms)
        .expect("the handler has started");
    let (name, directory) = (&b"f"[..], ROOT_INODE);
    for notification in [
        Notification::InvalidateInode {
            inode: 2,
            offset: 0,
            length: 0,
        },
        Notification::InvalidateEntry(directory, name),
        Notification::Store {
            inode: 2,
            offset: 0,
            data: b"other",
        },
        Notification::Delete {
            directory,
            inode: 2,
            name,
        },
        Notification::InvalidateEntry(directory, b"never looked up"),
    ] {
        let sent = mount.notifier().send(&notification);
        sent.unwrap_or_else(|error| panic!("{notification:?}: {error}"));
    }
    if terms.minor >= 38 {
        mount
            .notifier()
            .send(&Notification::ExpireEntry(directory, name))
            .expect("7.38");
    }
    if terms.minor >= 44 {
        mount
            .notifier()
            .send(&Notification::IncrementEpoch)
            .expect("7.44");
    }
    mount.unmount().expect("it unmounts");
}

#[test]
fn a_mount_point_must_be_a_directory() {
    let missing = Path::new("/missing/mount/point");
    let handler: Arc<dyn Handler> = Memory::new();
    let Err(error) = mount(missing, &options(), &handler) else {
        panic!("it is mounted")
    };
    match error {
        MountError::Point(path, _) => assert_eq!(path.as_os_str(), OsStr::new(missing)),
        MountError::Device(error) => {
            eprintln!("skipped: mounts::a_mount_point_must_be_a_directory: no device: {error}");
        }
        other => panic!("{other}"),
    }
}

/// Tells the test below that it is the process that dies.
const MOUNT_POINT: &str = "LANDFAST_TEST_MOUNT_POINT";

#[test]
fn a_mount_whose_process_was_killed_is_replaced() {
    let test = "a_mount_whose_process_was_killed_is_replaced";
    if let Some(point) = std::env::var_os(MOUNT_POINT) {
        let mounted = mounted_on(Path::new(&point), test);
        // It must not use its own mount: a process that dies cannot answer the close of its files.
        println!("mounted");
        // It dies by the signal of its parent. Its end of the pipe tells it if the parent is gone.
        io::stdin().read_line(&mut String::new()).expect("a pipe");
        drop(mounted);
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    if mounted_on(directory.path(), test).is_none() {
        return;
    }
    for _ in 0..2 {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("mounts::{test}"), "--nocapture"])
            .env(MOUNT_POINT, directory.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let printed = io::BufReader::new(process.stdout.take().expect("a pipe"));
        let mut lines = printed.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("mounted")), "it mounts");
        process.kill().expect("it runs");
        process.wait().expect("it ends");
        let error = fs::read_dir(directory.path()).expect_err("the mount is dead");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    }
    let (_memory, mount) = mounted_on(directory.path(), test).expect("as before");
    assert_eq!(text(directory.path(), "echo hello > a; cat a"), "hello\n");
    assert_eq!(mount.unmount().expect("it unmounts"), Unmounted::Now);
    let left = fs::read_dir(directory.path()).expect("nothing is mounted");
    assert_eq!(left.count(), 0);
}
