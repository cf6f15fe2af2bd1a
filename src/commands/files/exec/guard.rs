//! The processes between `exec` and its command, which are this program, started again:
//!
//! ```text
//!  exec      has the mount, the transaction and many threads
//!   guard    enters a PID namespace; ends it when exec asks or ends
//!    init    first process of that namespace: /proc, working directory; reaps
//!     command
//! ```
//!
//! Without namespaces the guard itself starts the command. Processes whose parent dies become its
//! children, and it kills them all at the end.
//!
//! A process that has entered a PID namespace can start no more threads, so `exec` itself cannot.
//! The command cannot be the first process, because that one has no default actions of signals,
//! and must reap the orphans of the namespace.
//!
//! Invariants
//! - Each death causes the next: the guard dies with `exec`, init with the guard, and everything in
//!   the namespace with init. A guard without namespaces kills the rest when `exec` dies.
//! - When the guard has ended by itself, no process of the command is left.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    path::Path,
    process::{Command, ExitStatus, exit},
};

use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Gid, Pid, Uid, setsid},
};

use preload_frontend::environment::check_loaded;

use super::namespace::{Identity, Right, enter_user_namespace};

/// The first argument of the guard.
const GUARD: &str = "files-exec-guard";
/// The first argument of init.
const INIT: &str = "files-exec-init";
/// The argument that tells init that the command keeps init's identity.
const SAME: &str = "same";
const OF_USER: &str = "user-namespace";
const WITHOUT: &str = "without-namespaces";

/// The exit code of `exec` and its processes when they, and not the command, failed.
pub(super) const FAILED: i32 = 125;
/// The exit code of a command that exists and cannot be run.
const NOT_RUNNABLE: i32 = 126;
/// The exit code of a command that does not exist.
const NOT_FOUND: i32 = 127;
/// A command that ended by a signal has an exit code of this and the signal's number.
pub(super) const BY_SIGNAL: i32 = 128;

/// The guard of `command`, to be spawned by a thread that lives as long as the command, because the
/// guard dies with it. SIGTERM ends the command. The exit code is the command's.
pub(super) fn guard(right: Right, directory: &Path, command: &[OsString]) -> Command {
    let mut guard = Command::new("/proc/self/exe");
    let right = match right {
        Right::None => WITHOUT,
        Right::Own => SAME,
        Right::UserNamespace => OF_USER,
    };
    guard.args([GUARD, right]).arg(directory).args(command);
    guard
}

/// Runs the guard or init and never returns, if the arguments of this process ask for one of them.
/// Nothing else may have run in this process.
pub(crate) fn run_if_asked() {
    let mut arguments = env::args_os().skip(1);
    let Some(role) = arguments.next() else {
        return;
    };
    let ended = if role == GUARD {
        run_guard(arguments)
    } else if role == INIT {
        run_init(arguments)
    } else {
        return;
    };
    exit(ended.unwrap_or_else(|error| {
        say(&format!("the command could not be started: {error}"));
        FAILED
    }))
}

fn say(what: &str) {
    // If this fails, the exit code remains.
    let _ = io::stderr().write_all(format!("landfast: {what}\n").as_bytes());
}

fn about<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl FnOnce(E) -> io::Error {
    move |error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{what}: {error}"))
    }
}

fn run_guard(mut arguments: impl Iterator<Item = OsString>) -> io::Result<i32> {
    let right = arguments.next().unwrap_or_default();
    if right == WITHOUT {
        return run_reaper(arguments);
    }
    let namespaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    let identity = if right == OF_USER {
        // Init needs the rights of root there, to mount /proc, and an execution leaves these rights
        // to root alone.
        let outside = Identity::current();
        enter_user_namespace(namespaces, Identity::ROOT, outside)
            .map_err(about("a user namespace"))?;
        format!("{}:{}", outside.user, outside.group)
    } else {
        unshare(namespaces).map_err(about("a PID namespace"))?;
        SAME.to_owned()
    };
    let expected = awaited(Signal::SIGKILL)?;
    let mut init = Command::new("/proc/self/exe");
    let mut init = init.args([INIT, &identity]).args(arguments).spawn()?;
    loop {
        if let Some(status) = init.try_wait()? {
            return Ok(code_of(status));
        }
        if expected.wait()? == Signal::SIGTERM {
            init.kill()?;
        }
    }
}

/// Begins a session, and blocks the signals that a guard waits for. `at_death` is the signal that
/// it gets when `exec` dies.
fn awaited(at_death: Signal) -> io::Result<SigSet> {
    // Ctrl-C at the terminal is for `exec` alone, which then ends the command. It fails only for
    // the leader of a process group, which a new process is not, unless it was started by hand.
    let _ = setsid();
    let mut expected = SigSet::empty();
    expected.add(Signal::SIGCHLD);
    expected.add(Signal::SIGTERM);
    expected.thread_block()?;
    signal_at_death(at_death)?;
    Ok(expected)
}

/// Guards the command without namespaces, in an environment that shows the volume to this process.
fn run_reaper(mut arguments: impl Iterator<Item = OsString>) -> io::Result<i32> {
    check_loaded()?;
    let directory = arguments.next().unwrap_or_default();
    let program = arguments.next().unwrap_or_default();
    prctl::set_child_subreaper(true)?;
    let expected = awaited(Signal::SIGTERM)?;
    enter(&directory)?;
    // The command would inherit the blocked signals.
    expected.thread_unblock()?;
    let started = started(&program, arguments);
    expected.thread_block()?;
    let command = match started {
        Ok(command) => command,
        Err(code) => return Ok(code),
    };
    let code = loop {
        // First, because it may have ended while the signals were not blocked.
        if let Some(code) = reaped(command, Some(WaitPidFlag::WNOHANG)) {
            break code;
        }
        let signal = expected.wait()?;
        if signal == Signal::SIGTERM {
            break BY_SIGNAL + signal as i32;
        }
    };
    // Each process that dies makes its own children ours.
    while has_children() {
        for child in children()? {
            let _ = kill(child, Signal::SIGKILL);
        }
        let _ = waitpid(None, None);
    }
    Ok(code)
}

fn has_children() -> bool {
    let flags = Some(WaitPidFlag::WNOHANG);
    while let Ok(status) = waitpid(None, flags) {
        if status == WaitStatus::StillAlive {
            return true;
        }
    }
    false
}

/// The processes whose parent is this one.
fn children() -> io::Result<Vec<Pid>> {
    let own = Pid::this().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may have ended by now.
        let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // The name of the program, which may have any bytes, ends with the last parenthesis. Its
        // state and its parent follow.
        let parent = status
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1))
            .and_then(|parent| parent.parse().ok());
        if parent == Some(own) {
            found.push(Pid::from_raw(number));
        }
    }
    Ok(found)
}

/// Asks the kernel for a signal to this process when its parent dies.
fn signal_at_death(signal: Signal) -> io::Result<()> {
    prctl::set_pdeathsig(signal)?;
    // The parent may be dead already. Its number is 0 in another PID namespace, dead or not, so we
    // look at stdout: the other end is open in `exec` alone.
    let stdout = io::stdout();
    let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO)?;
    let events = polled[0].revents().unwrap_or(PollFlags::empty());
    if events.contains(PollFlags::POLLERR) {
        return Err(io::Error::other("exec has ended"));
    }
    Ok(())
}

fn code_of(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map_or(FAILED, |signal| BY_SIGNAL + signal);
    status.code().unwrap_or_else(by_signal)
}

fn run_init(mut arguments: impl Iterator<Item = OsString>) -> io::Result<i32> {
    let identity = arguments.next().unwrap_or_default();
    let directory = arguments.next().unwrap_or_default();
    let program = arguments.next().unwrap_or_default();
    signal_at_death(Signal::SIGKILL)?;
    SigSet::empty().thread_set_mask()?;
    // The /proc of outside shows other numbers of processes. Some containers refuse to mount
    // another one, and few programs need it.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>);
    enter(&directory)?;
    if let Some(identity) = identity_in(&identity) {
        enter_user_namespace(CloneFlags::empty(), identity, Identity::ROOT)
            .map_err(about("a user namespace"))?;
    }
    match started(&program, arguments) {
        Ok(command) => Ok(reap_until(command)),
        Err(code) => Ok(code),
    }
}

/// Changes the working directory. The path leads into the volume where the volume covers it.
fn enter(directory: &OsStr) -> io::Result<()> {
    let what = format!("the working directory {}", directory.display());
    env::set_current_dir(directory).map_err(about(what))
}

/// Starts the command. Errors: the exit code, after it is said why.
fn started(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> Result<Pid, i32> {
    let (why, code) = match Command::new(program).args(arguments).spawn() {
        Ok(command) => return Ok(Pid::from_raw(command.id() as i32)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ("no such command".to_owned(), NOT_FOUND)
        }
        Err(error) => (error.to_string(), NOT_RUNNABLE),
    };
    say(&format!("{}: {why}", program.display()));
    Err(code)
}

fn identity_in(text: &OsStr) -> Option<Identity> {
    let (user, group) = text.to_str()?.split_once(':')?;
    Some(Identity {
        user: Uid::from_raw(user.parse().ok()?),
        group: Gid::from_raw(group.parse().ok()?),
    })
}

/// Reaps the processes of the namespace until `command` has ended. Returns its exit code.
fn reap_until(command: Pid) -> i32 {
    loop {
        if let Some(code) = reaped(command, None) {
            return code;
        }
    }
}

/// Reaps processes that have ended, and with `None` waits for one. Returns the exit code of
/// `command` if it is among them.
fn reaped(command: Pid, flags: Option<WaitPidFlag>) -> Option<i32> {
    loop {
        match waitpid(None, flags) {
            Ok(WaitStatus::Exited(ended, code)) if ended == command => return Some(code),
            Ok(WaitStatus::Signaled(ended, signal, _)) if ended == command => {
                return Some(BY_SIGNAL + signal as i32);
            }
            Ok(WaitStatus::StillAlive) => return None,
            Ok(_) | Err(Errno::EINTR) => {}
            // A process ended by a real-time signal, for which `nix` has no name.
            Err(_) if kill(command, None) == Err(Errno::ESRCH) => return Some(BY_SIGNAL),
            Err(_) => return None,
        }
    }
}
