//! The launcher: builds a sandbox around itself, step by step, and becomes the function.
//!
//! ```text
//!  launcher   joins its control groups; new namespaces; waits for init
//!   init      first process of its namespace: files, loopback, listener; gives up all rights; reaps, and says how it ended
//!    function limits, filtered system calls, exec
//! ```
//!
//! A spare ([spare]) is the same in another order: its interpreter is executed first, without any rights, and init gives up its own once
//! it has been told for which function.
//!
//! It is this program started anew, single-threaded, before anything else has run: so it may fork, and what it does is not
//! done in a process that others live in. It inherits three descriptors: the socket as its stdin, and the two pipes.
//!
//! Invariants
//! - Who dies takes the next with it: the launcher dies with the thread of the server that started it, init with the
//!   launcher, and everything in the sandbox with init, since it is the first process of its namespace.
//! - Where there is no namespace, whatever the function leaves becomes the launcher's child, and it ends all of that before it ends
//!   itself: when the function has ended, when the server says so, and when the server is gone.
//! - From exec on nothing is held that the function has no right to: no descriptor, no capability, no way to new ones.
//!
//! From the notes of the kernel on namespaces (`namespaces(7)`, `user_namespaces(7)`, `pid_namespaces(7)`).

mod files;
mod filter;
mod remains;
mod spare;

use std::{
    env,
    ffi::{CString, OsStr},
    fs, io,
    io::Write as _,
    net::TcpListener,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{ffi::OsStrExt as _, net::UnixStream},
    },
    path::Path,
    process::exit,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::Signal,
        socket::{ControlMessage, MsgFlags, sendmsg},
        wait::{WaitStatus, waitpid},
    },
    unistd::{
        ForkResult, Gid, Pid, Uid, execve, getpid, getppid, setgroups, setresgid, setresuid, setsid,
    },
};

use crate::{
    command::{TASK_ROOT, served_at},
    process::{Network, Order, Role},
    system::{close_on_exec, forked, raise_loopback, take_standard_input, wait_for_any},
};

/// What the program is given to be a launcher.
pub const LAUNCHER_ARGUMENT: &str = "sandbox-launcher";

/// The first of the users that functions run as where we may choose, one for each of the last so many launchers.
const FIRST_USER: u32 = 0x6000_0000;
/// What they are called inside.
const USERS: u32 = 1 << 22;
/// Files that a function may have open.
const OPEN_FILES_MAX: u64 = 4096;
/// Where the data of a process is bounded in place of its memory: it maps what it does not use. What is shared is no data. To bound the
/// whole address space (`RLIMIT_AS`) would end interpreters that reserve much more than they use, and to bound files (`RLIMIT_FSIZE`)
/// bounds each of them, not how many there are.
const DATA_FACTOR: u64 = 4;
const DATA_MORE_BYTES: u64 = 256 << 20;
/// What a launcher exits with that could not do its work.
const FAILED: i32 = 125;
/// What a function exits with that could not be started.
const NOT_STARTED: i32 = 127;

/// What comes behind it where isolation is only tried.
pub(crate) const TRIAL_ARGUMENT: &str = "trial";

/// Is the launcher, and never returns. Nothing else may have run in this process.
pub fn launcher_main() -> ! {
    let is_trial = env::args_os()
        .nth(2)
        .is_some_and(|second| second == TRIAL_ARGUMENT);
    let status = if is_trial { try_isolation() } else { launch() };
    let status = status.unwrap_or_else(|error| {
        complain(&format!("the sandbox could not be built: {error}"));
        FAILED
    });
    exit(status)
}

fn complain(what: &str) {
    // If nobody hears it, the exit status has to do.
    let _ = io::stderr().write_all(format!("landfast: {what}\n").as_bytes());
}

/// An error that says what it was about.
fn about(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn launch() -> io::Result<i32> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let socket = take_standard_input().ok_or(io::ErrorKind::NotConnected)?;
    // A copy: what is executed later does not have it.
    let mut socket = UnixStream::from(socket.try_clone()?);
    // A process group reaches across namespaces: in the server's own, a function of the same user could end the server by
    // `kill(0, SIGKILL)`, and Ctrl-C at the server's terminal would end every function before it has finished.
    own_session()?;
    let order = Order::read(&mut socket)?;
    if getppid() != Pid::from_raw(order.parent as i32) {
        return Err(io::Error::other("the server has gone"));
    }
    for members in &order.groups {
        fs::write(members, "0").map_err(about(members.display()))?;
    }
    let user = if order.is_isolated {
        isolate(&order)?
    } else {
        own_user()
    };
    let remains = if order.is_isolated {
        None
    } else {
        Some(remains::keep(order.parent)?)
    };
    let (is_there, alive) = io::pipe()?;
    let child = match forked()? {
        ForkResult::Child => {
            drop(alive);
            if let Some(remains) = remains {
                remains.leave()?;
            }
            return init(order, socket, user, &is_there);
        }
        ForkResult::Parent { child } => child,
    };
    drop((socket, is_there));
    if let Some(remains) = remains {
        return remains.end_after(child);
    }
    status_of(child)?;
    Ok(0)
}

/// How a child has ended: what it exited with.
fn status_of(child: Pid) -> io::Result<i32> {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, status)) => return Ok(status),
            Ok(_) => return Ok(FAILED),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Builds what a function would be isolated by, and ends.
fn try_isolation() -> io::Result<i32> {
    let order = Order::trial();
    let user = isolate(&order)?;
    match forked()? {
        ForkResult::Child => build(&order, user).map(|()| 0),
        ForkResult::Parent { child } => status_of(child),
    }
}

/// A user for this function alone, where we may choose.
fn own_user() -> Option<u32> {
    Uid::effective()
        .is_root()
        .then(|| FIRST_USER + getpid().as_raw() as u32 % USERS)
}

/// Enters namespaces of its own. Returns the user that the function is to be; none: it is that already.
fn isolate(order: &Order) -> io::Result<Option<u32>> {
    let mut namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    if order.network == Network::None {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    if Uid::effective().is_root() {
        // Its own user, so that what is bounded for each user is bounded for each function.
        unshare(namespaces)
            .map_err(io::Error::from)
            .map_err(about("new namespaces"))?;
        return Ok(own_user());
    }
    let (user, group) = (Uid::effective(), Gid::effective());
    unshare(namespaces | CloneFlags::CLONE_NEWUSER)
        .map_err(io::Error::from)
        .map_err(about("a user namespace"))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    Ok(None)
}

/// Builds what the function sees.
fn build(order: &Order, user: Option<u32>) -> io::Result<()> {
    files::build(order, user)?;
    nix::unistd::sethostname("landfast")?;
    if order.network == Network::None {
        raise_loopback().map_err(about("its loopback"))?;
    }
    Ok(())
}

/// The first process of the namespace.
fn init(
    mut order: Order,
    mut socket: UnixStream,
    user: Option<u32>,
    is_there: &io::PipeReader,
) -> io::Result<i32> {
    if order.is_isolated {
        build(&order, user)?;
    }
    let listener = TcpListener::bind("127.0.0.1:0").map_err(about("a listener"))?;
    let address = listener.local_addr()?.to_string();
    let function = match order.role {
        Role::Function => {
            give_up_rights(user, order.is_isolated, is_there)?;
            // It is that user by now, unless nobody may choose here.
            send_listener(&socket, &listener, None)?;
            drop(listener);
            forked_function(|| become_function(&order, &address, None))?
        }
        Role::Spare => spare::adopted(&mut order, &mut socket, user, is_there, listener)?,
    };
    let status = reap_until(function)?;
    socket.write_all(&status.to_le_bytes())?;
    Ok(0)
}

/// What is done from here on is done as `user`, without a way to other rights, and dies with the launcher.
fn give_up_rights(
    user: Option<u32>,
    is_isolated: bool,
    is_there: &io::PipeReader,
) -> io::Result<()> {
    if let Some(user) = user {
        match become_user(user) {
            // Root that may not choose has no rights beyond its files.
            Err(Errno::EPERM) if !is_isolated => {}
            became => became?,
        }
    }
    prctl::set_no_new_privs()?;
    // Changing the user takes this back, so it comes after.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if has_gone(is_there)? {
        return Err(io::Error::other("the launcher has gone"));
    }
    Ok(prctl::set_dumpable(false)?)
}

/// A child that `becomes` the function.
fn forked_function(becomes: impl FnOnce() -> io::Error) -> io::Result<Pid> {
    match forked()? {
        ForkResult::Child => {
            complain(&format!("the function could not be started: {}", becomes()));
            exit(NOT_STARTED);
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

fn become_user(user: u32) -> nix::Result<()> {
    setgroups(&[])?;
    setresgid(
        Gid::from_raw(user),
        Gid::from_raw(user),
        Gid::from_raw(user),
    )?;
    setresuid(
        Uid::from_raw(user),
        Uid::from_raw(user),
        Uid::from_raw(user),
    )
}

/// Whether whoever holds the other end of this pipe, and never writes, has ended.
fn has_gone(is_there: &io::PipeReader) -> io::Result<bool> {
    let mut asked = [PollFd::new(is_there.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut asked, PollTimeout::ZERO)? > 0)
}

/// Tells the server where to listen, and as whom the function runs: as `user`, or else as who we are.
fn send_listener(socket: &UnixStream, listener: &TcpListener, user: Option<u32>) -> io::Result<()> {
    let descriptors = [listener.as_fd().as_raw_fd()];
    let user = user
        .unwrap_or_else(|| Uid::effective().as_raw())
        .to_le_bytes();
    let parts = [io::IoSlice::new(&user)];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None)?;
    Ok(())
}

/// Reaps whatever ends in the namespace until the function has. Returns its wait status.
fn reap_until(function: Pid) -> io::Result<i32> {
    loop {
        match wait_for_any() {
            Ok((ended, status)) if ended == function => return Ok(status),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Leaves the session, process group and terminal of whoever made us.
fn own_session() -> io::Result<()> {
    match setsid() {
        // It leads its own already.
        Ok(_) | Err(Errno::EPERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns only if that cannot be. What is executed has `kept` beside the three descriptors of every program.
fn become_function(order: &Order, address: &str, kept: Option<&UnixStream>) -> io::Error {
    let executed = said(order, address).and_then(
        |Said {
             arguments,
             environment,
         }| {
            let program = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
            prepare(order, kept).map_err(about(program.to_string_lossy()))?;
            execve(program, &arguments, &environment)
                .map_err(io::Error::from)
                .map_err(about(program.to_string_lossy()))
        },
    );
    match executed {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

/// What a program is told as it is executed.
struct Said {
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

fn said(order: &Order, address: &str) -> io::Result<Said> {
    let arguments = order
        .command
        .iter()
        .map(|part| c_string(part))
        .collect::<io::Result<Vec<_>>>()?;
    let own = |name: &str| order.environment.iter().any(|(own, _)| own == name);
    let served_at = served_at(address)
        .into_iter()
        .filter(|(name, _)| !own(name));
    let served_at = served_at.map(|(name, value)| (name.into(), value.into()));
    let environment =
        order
            .environment
            .iter()
            .cloned()
            .chain(served_at)
            .map(|(mut variable, value)| {
                variable.push("=");
                variable.push(value);
                c_string(&variable)
            });
    Ok(Said {
        arguments,
        environment: environment.collect::<io::Result<_>>()?,
    })
}

fn prepare(order: &Order, kept: Option<&UnixStream>) -> io::Result<()> {
    let directory = match order.role {
        // Who stands in a folder keeps what is mounted there.
        Role::Spare => Path::new("/"),
        Role::Function if order.is_isolated => Path::new(TASK_ROOT),
        Role::Function => order.code.as_path(),
    };
    env::set_current_dir(directory).map_err(about(directory.display()))?;
    let null = fs::OpenOptions::new().read(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    own_session()?;
    if !order.is_isolated {
        // Without a namespace that ends with init, at least the function itself does.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
    }
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(
        Resource::RLIMIT_NOFILE,
        OPEN_FILES_MAX.min(1024),
        OPEN_FILES_MAX,
    )?;
    if order.role == Role::Function {
        for (resource, most) in limits(order) {
            setrlimit(resource, most, most)?;
        }
    }
    // What the server inherited without this mark, from a shell or a supervisor, is not the function's.
    close_on_exec()?;
    if let Some(kept) = kept {
        fcntl(kept, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    // Last, since it forbids some of the above.
    if order.is_filtered {
        filter::install()?;
    }
    Ok(())
}

/// What each function has bounds of its own for.
fn limits(order: &Order) -> Vec<(Resource, u64)> {
    let mut limits = Vec::new();
    if order.is_isolated {
        limits.push((Resource::RLIMIT_NPROC, u64::from(order.processes_max) + 2));
    }
    if !order.is_memory_grouped {
        let bytes = order.memory_bytes.saturating_mul(DATA_FACTOR) + DATA_MORE_BYTES;
        limits.push((Resource::RLIMIT_DATA, bytes));
    }
    limits
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in an argument"))
}
