//! Launches processes, and ends all of them.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, UnixStream, unix::pipe},
    sync::mpsc::{Receiver, channel},
    time::timeout,
};

use super::{
    control::Control,
    enforcement::Enforcement,
    exit::Exit,
    group::Group,
    handshake,
    peers::Peers,
    spawner::{Alive, Spawner},
};
use crate::order::{Isolation, LAUNCHER_ARGUMENT, Launch, Order, Role};

const LAUNCH_MAX: Duration = Duration::from_secs(10);
/// How long a spare may take to become an instance. After that, another process is started.
const ADOPTION_MAX: Duration = Duration::from_secs(2);
const END_MAX: Duration = Duration::from_secs(3);

/// Launches processes.
#[derive(Debug)]
pub struct Launcher {
    program: PathBuf,
    pub(crate) enforcement: Enforcement,
    spawner: Spawner,
    launched: Mutex<Launched>,
    /// Ends once nothing may be left of any process.
    all_gone: tokio::sync::Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct Launched {
    /// The processes that may still exist, and at most twice as many that do not.
    controls: Vec<Weak<Control>>,
    /// Cloned for each process; none: all of them were ended.
    alive: Option<Alive>,
}

#[derive(Debug)]
pub(crate) struct Process {
    /// Its listener, to which other peers can connect where the sandbox has the machine's network.
    pub(crate) listener: TcpListener,
    pub(crate) peers: Peers,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
    pub(crate) control: Arc<Control>,
    pub(crate) exit: Exit,
}

impl Launcher {
    /// A launcher that starts `program`, which is this program.
    pub fn new(program: PathBuf, enforcement: Enforcement) -> io::Result<Self> {
        let (alive, all_gone) = channel(1);
        let launched = Launched {
            controls: Vec::new(),
            alive: Some(alive),
        };
        Ok(Self {
            program,
            enforcement,
            spawner: Spawner::new()?,
            launched: Mutex::new(launched),
            all_gone: tokio::sync::Mutex::new(all_gone),
        })
    }

    fn register(&self, control: &Arc<Control>) {
        let mut launched = self.launched.lock();
        if launched.alive.is_none() {
            return control.kill();
        }
        let controls = &mut launched.controls;
        if controls.len() == controls.capacity() {
            controls.retain(|control| control.strong_count() > 0);
        }
        controls.push(Arc::downgrade(control));
    }

    /// Ends all processes. Returns once nothing of them is left, including their control groups, or
    /// after a bounded wait.
    pub(crate) async fn end(&self) {
        let launched = {
            let mut launched = self.launched.lock();
            launched.alive = None;
            std::mem::take(&mut launched.controls)
        };
        launched
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|control| control.kill());
        if timeout(END_MAX, async { self.all_gone.lock().await.recv().await })
            .await
            .is_err()
        {
            tracing::warn!("functions are still ending; the next start removes what they leave");
        }
        self.enforcement.remove();
    }

    /// Starts the program of `launch`. It is isolated as far as the machine allows, and about to
    /// run.
    pub(crate) async fn start(&self, launch: Launch) -> io::Result<Process> {
        self.launch(Role::Function, launch).await
    }

    /// Starts an interpreter that waits for adoption, if the machine has namespaces: only they can isolate it later.
    /// It has imported what most functions need. Its code is the folder with the code of all
    /// functions.
    pub(crate) async fn prewarm(&self, launch: Launch) -> io::Result<Process> {
        self.launch(Role::Spare, launch).await
    }

    /// Turns `spare` into the process of `launch`. Errors: the spare is ended, and ran no code of
    /// the function.
    pub(crate) async fn adopt(&self, mut spare: Process, launch: Launch) -> io::Result<Process> {
        let adopted = timeout(ADOPTION_MAX, async {
            spare.control.group.limit(&launch)?;
            let order = Order::new(Role::Function, launch, self.isolation(), Vec::new());
            handshake::adopt(spare.exit.socket()?, &order).await
        });
        match adopted
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        {
            Ok(()) => Ok(spare),
            Err(error) => Err(with_stderr(&error, &spare.stderr)),
        }
    }

    fn isolation(&self) -> Isolation {
        Isolation {
            is_isolated: self.enforcement.has_namespaces(),
            is_memory_grouped: self.enforcement.memory_groups.is_some(),
        }
    }

    async fn launch(&self, role: Role, launch: Launch) -> io::Result<Process> {
        // Counted before anything of it exists.
        let alive = self.launched.lock().alive.clone();
        let alive = alive.ok_or_else(|| io::Error::other("nothing is launched any more"))?;
        let group = Group::make(&self.enforcement, &launch)?;
        let groups = group.members();
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        let (stdout, their_stdout) = pipe()?;
        let (stderr, their_stderr) = pipe()?;
        let mut command = Command::new(&self.program);
        command
            .arg(LAUNCHER_ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(their_stdout))
            .stderr(Stdio::from(their_stderr));
        let isolation = self.isolation();
        let spawned = self
            .spawner
            .spawn(command, group, isolation.is_isolated, alive);
        let (control, alive) = spawned.await?;
        let control = Arc::new(control);
        // From here on, this call may be dropped at any point.
        let mut exit = Exit::new(ours, Arc::clone(&control), alive);
        self.register(&control);
        let order = Order::new(role, launch, isolation, groups);
        let handed_over = timeout(LAUNCH_MAX, handshake::hand_over(exit.socket()?, &order)).await;
        match handed_over.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((listener, peers)) => Ok(Process {
                listener,
                peers,
                stdout,
                stderr,
                control,
                exit,
            }),
            Err(error) => Err(with_stderr(&error, &stderr)),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.enforcement.remove();
    }
}

/// The error with the output of a launcher that failed.
fn with_stderr(error: &io::Error, stderr: &pipe::Receiver) -> io::Error {
    let mut output = [0; 1024];
    let length = stderr.try_read(&mut output).unwrap_or(0);
    let output = String::from_utf8_lossy(&output[..length]);
    io::Error::new(error.kind(), format!("{error} {}", output.trim()))
}

/// A pipe with a non-blocking reading end for the server.
fn pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let read = OwnedFd::from(read);
    nix::fcntl::fcntl(
        read.as_fd(),
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
    )?;
    Ok((pipe::Receiver::from_owned_fd(read)?, OwnedFd::from(write)))
}
