//! The launcher: builds a sandbox around itself, step by step, and becomes the function.
//!
//! ```text
//!  launcher   joins its control groups; enters new namespaces; waits for init
//!   init      first process of its namespace: files, loopback, listener; gives up all rights;
//!             reaps, and reports the end
//!    function limits, system call filter, exec
//! ```
//!
//! A spare ([spare]) takes these steps in another order. Its interpreter is executed first, without
//! any rights, and init gives up its own rights once it knows the function.
//!
//! The launcher is this program, started again. It has one thread and runs before anything else, so
//! it may fork, and its steps affect no other process. It inherits three descriptors: the socket as
//! its stdin, and the two pipes.
//!
//! Invariants
//! - Each death causes the next. The launcher dies with the server's thread that started it, init
//!   dies with the launcher, and everything in the sandbox dies with init, the first process of its
//!   namespace.
//! - Without namespaces, every process that the function leaves becomes the launcher's child. The
//!   launcher ends all of them before itself: when the function has ended, when the server orders
//!   it, and when the server is gone.
//! - After exec the function holds nothing it has no right to: no descriptor but those of its
//!   order, no capability, and no way to new ones.
//!
//! From the notes of the kernel on namespaces (`namespaces(7)`, `user_namespaces(7)`,
//! `pid_namespaces(7)`).

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
        fd::{AsFd, AsRawFd as _},
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
        wait::{WaitStatus, waitpid},
    },
    unistd::{
        ForkResult, Gid, Pid, Uid, execve, getpid, getppid, setgroups, setresgid, setresuid, setsid,
    },
};

pub use crate::order::LAUNCHER_ARGUMENT;
use crate::{
    order::{Launch, Network, Order, Role, TASK_ROOT, TRIAL_ARGUMENT, served_at},
    system::{close_on_exec, forked, raise_loopback, send_with, take_standard_input, wait_for_any},
};

/// The first of the users for functions, where the launcher may choose. Each of the last [`USERS`]
/// launchers has its own.
const FIRST_USER: u32 = 0x6000_0000;
const USERS: u32 = 1 << 22;
const OPEN_FILES_MAX: u64 = 4096;
/// The data limit of a process, where no control group bounds its memory, as a multiple of its
/// memory: a process maps data that it does not use. Shared memory does not count as data. A bound
/// on the whole address space (`RLIMIT_AS`) would end interpreters that reserve much more than they
/// use. A bound on files (`RLIMIT_FSIZE`) bounds each file, not their number.
const DATA_FACTOR: u64 = 4;
const DATA_MORE_BYTES: u64 = 256 << 20;
/// The exit status of a launcher that failed.
const FAILED: i32 = 125;
/// The exit status of a function that could not be started.
const NOT_STARTED: i32 = 127;

/// Runs the launcher, and never returns. Nothing else may have run in this process.
pub fn launcher_main() -> ! {
    let is_trial = env::args_os()
        .nth(2)
        .is_some_and(|second| second == TRIAL_ARGUMENT);
    let status = if is_trial { try_isolation() } else { launch() };
    let status = status.unwrap_or_else(|error| {
        print_error(&format!("the sandbox could not be built: {error}"));
        FAILED
    });
    exit(status)
}

fn print_error(what: &str) {
    // If this fails, the exit status remains.
    let _ = io::stderr().write_all(format!("landfast: {what}\n").as_bytes());
}

fn about<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl FnOnce(E) -> io::Error {
    move |error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{what}: {error}"))
    }
}

fn launch() -> io::Result<i32> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let socket = take_standard_input().ok_or(io::ErrorKind::NotConnected)?;
    // A copy, which is closed on exec.
    let mut socket = UnixStream::from(socket.try_clone()?);
    // A process group spans namespaces. In the server's group, a function of the same user could
    // end the server by `kill(0, SIGKILL)`, and Ctrl-C at the server's terminal would end every
    // function at once.
    own_session()?;
    let order = Order::read(&mut socket)?;
    if getppid() != Pid::from_raw(order.parent as i32) {
        return Err(io::Error::other("the server has gone"));
    }
    for members in &order.groups {
        fs::write(members, "0").map_err(about(members.display()))?;
    }
    let user = if order.isolation.is_isolated {
        isolate(&order)?
    } else {
        own_user()
    };
    let remains = if order.isolation.is_isolated {
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
    // With the descriptors of the order: a channel must close when the function closes it.
    drop((socket, is_there, order));
    if let Some(remains) = remains {
        return remains.end_after(child);
    }
    status_of(child)?;
    Ok(0)
}

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

/// Builds the isolation of a function, and ends.
fn try_isolation() -> io::Result<i32> {
    let order = Order::trial();
    let user = isolate(&order)?;
    match forked()? {
        ForkResult::Child => build(&order, user).map(|()| 0),
        ForkResult::Parent { child } => status_of(child),
    }
}

/// A user for this function alone, if the launcher may choose.
fn own_user() -> Option<u32> {
    Uid::effective()
        .is_root()
        .then(|| FIRST_USER + getpid().as_raw() as u32 % USERS)
}

/// Enters new namespaces. Returns the user for the function; none: the present one.
fn isolate(order: &Order) -> io::Result<Option<u32>> {
    let mut namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    if order.launch.network == Network::None {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    if Uid::effective().is_root() {
        // Each function has its own user, so that per-user limits apply per function.
        unshare(namespaces).map_err(about("new namespaces"))?;
        return Ok(own_user());
    }
    let (user, group) = (Uid::effective(), Gid::effective());
    unshare(namespaces | CloneFlags::CLONE_NEWUSER).map_err(about("a user namespace"))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    Ok(None)
}

fn build(order: &Order, user: Option<u32>) -> io::Result<()> {
    files::build(order, user)?;
    nix::unistd::sethostname("landfast")?;
    if order.launch.network == Network::None {
        raise_loopback().map_err(about("its loopback"))?;
    }
    Ok(())
}

fn init(
    mut order: Order,
    mut socket: UnixStream,
    user: Option<u32>,
    is_there: &io::PipeReader,
) -> io::Result<i32> {
    if order.isolation.is_isolated {
        build(&order, user)?;
    }
    let listener = TcpListener::bind("127.0.0.1:0").map_err(about("a listener"))?;
    let address = listener.local_addr()?.to_string();
    let function = match order.role {
        Role::Function => {
            give_up_rights(user, order.isolation.is_isolated, is_there)?;
            // This is the function's user by now, unless the launcher may not choose.
            send_listener(&socket, &listener, None)?;
            drop(listener);
            forked_function(|| become_function(&order, &address, None))?
        }
        Role::Spare => spare::adopted(&mut order, &mut socket, user, is_there, listener)?,
    };
    order.launch.descriptors.clear();
    let status = reap_until(function)?;
    socket.write_all(&status.to_le_bytes())?;
    Ok(0)
}

/// Becomes `user`, gives up every way to other rights, and asks to die with the launcher.
fn give_up_rights(
    user: Option<u32>,
    is_isolated: bool,
    is_there: &io::PipeReader,
) -> io::Result<()> {
    if let Some(user) = user {
        match become_user(user) {
            // Root that may not choose users has no rights beyond its files.
            Err(Errno::EPERM) if !is_isolated => {}
            became => became?,
        }
    }
    prctl::set_no_new_privs()?;
    // Changing the user resets this, so it comes after.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if has_gone(is_there)? {
        return Err(io::Error::other("the launcher has gone"));
    }
    Ok(prctl::set_dumpable(false)?)
}

/// Forks a child that `becomes` the function.
fn forked_function(becomes: impl FnOnce() -> io::Error) -> io::Result<Pid> {
    match forked()? {
        ForkResult::Child => {
            print_error(&format!("the function could not be started: {}", becomes()));
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

/// Whether the launcher, which holds the other end of this pipe and never writes, has ended.
fn has_gone(is_there: &io::PipeReader) -> io::Result<bool> {
    let mut polled = [PollFd::new(is_there.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut polled, PollTimeout::ZERO)? > 0)
}

/// Sends the server the listener and the function's user: `user`, or else the present one.
fn send_listener(socket: &UnixStream, listener: &TcpListener, user: Option<u32>) -> io::Result<()> {
    let descriptors = [listener.as_fd().as_raw_fd()];
    let user = user
        .unwrap_or_else(|| Uid::effective().as_raw())
        .to_le_bytes();
    send_with(socket, &user, &descriptors).map(drop)
}

/// Reaps processes of the namespace until the function has ended. Returns its wait status.
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

/// Leaves the session, process group and terminal of the parent.
fn own_session() -> io::Result<()> {
    match setsid() {
        // It leads its own already.
        Ok(_) | Err(Errno::EPERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Executes the function, and returns only on an error. The program keeps `kept` and the
/// descriptors of the order, beside the first three.
fn become_function(order: &Order, address: &str, kept: Option<&UnixStream>) -> io::Error {
    let executed = program(order, address).and_then(|(arguments, environment)| {
        let program = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
        prepare(order, kept).map_err(about(program.to_string_lossy()))?;
        execve(program, &arguments, &environment).map_err(about(program.to_string_lossy()))
    });
    match executed {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

/// The arguments and the environment of an execution.
fn program(order: &Order, address: &str) -> io::Result<(Vec<CString>, Vec<CString>)> {
    let Launch {
        command,
        environment,
        has_objects,
        descriptors,
        ..
    } = &order.launch;
    let arguments = command.iter().map(|part| c_string(part));
    let own = |name: &str| environment.iter().any(|(own, _)| own == name);
    let served_at = served_at(address, *has_objects).filter(|(name, _)| !own(name));
    let served_at = served_at.map(|(name, value)| (name.into(), value.into()));
    let descriptors = descriptors.iter().map(|(name, descriptor)| {
        let number = descriptor.as_raw_fd().to_string();
        (name.into(), number.into())
    });
    let all = environment.iter().cloned();
    let environment = all.chain(served_at).chain(descriptors);
    let environment = environment.map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        c_string(&variable)
    });
    Ok((
        arguments.collect::<io::Result<_>>()?,
        environment.collect::<io::Result<_>>()?,
    ))
}

fn prepare(order: &Order, kept: Option<&UnixStream>) -> io::Result<()> {
    let directory = match order.role {
        // A process keeps the mount of its working folder.
        Role::Spare => Path::new("/"),
        Role::Function if order.isolation.is_isolated => Path::new(TASK_ROOT),
        Role::Function => order.launch.code.as_path(),
    };
    env::set_current_dir(directory).map_err(about(directory.display()))?;
    let null = fs::OpenOptions::new().read(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    own_session()?;
    if !order.isolation.is_isolated {
        // Without a namespace that ends with init, at least the function itself ends with it.
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
    // The server may have inherited descriptors without this mark from a shell or a supervisor.
    close_on_exec()?;
    let all = order
        .launch
        .descriptors
        .iter()
        .map(|(_, descriptor)| descriptor.as_fd());
    for kept in all.chain(kept.map(AsFd::as_fd)) {
        fcntl(kept, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    // Last, because it forbids some of the above.
    filter::install()
}

fn limits(order: &Order) -> Vec<(Resource, u64)> {
    let mut limits = Vec::new();
    if order.isolation.is_isolated {
        limits.push((
            Resource::RLIMIT_NPROC,
            u64::from(order.launch.processes_max) + 2,
        ));
    }
    if !order.isolation.is_memory_grouped {
        let bytes = order.launch.memory_bytes.saturating_mul(DATA_FACTOR) + DATA_MORE_BYTES;
        limits.push((Resource::RLIMIT_DATA, bytes));
    }
    limits
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in an argument"))
}
