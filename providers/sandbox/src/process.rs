//! One isolated process: how it is launched, frozen, ended, and what its end was.
//!
//! Our own program is started anew as the [launcher](crate::launcher), which builds the isolation around itself and becomes
//! the function. What the two say to each other goes over one socket:
//!
//! ```text
//!  us  ->  launcher   the order: what to run, how much it may use
//!  us  <-  init       a listener on the loopback that it sees, and as whom the function runs; it is armed to die with us
//!  us  <-  init       how the function ended
//! ```
//!
//! A spare is launched by an order that names no function; its listener comes once its interpreter is ready. Between the two last lines
//! it is adopted, once: the order of a function goes to init, and one byte comes back when all is as if it had been launched by that.
//!
//! Whoever starts it is a thread that lives as long as we do: the kernel ends children with the *thread* that made them.

mod enforcement;
mod group;
mod wire;

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, UnixStream, unix::pipe},
    runtime::Handle,
    sync::{
        mpsc::{Receiver, Sender, channel},
        oneshot, watch,
    },
};

pub use enforcement::{Enforcement, Measure};

use self::group::{Group, Limits};
use crate::{
    archives::Code,
    launcher::LAUNCHER_ARGUMENT,
    peers::Peers,
    processes::{descendants_of, is_running},
};
pub(crate) use wire::{ADOPTED, Order, Role};

/// How many processes are to be made at the most; whoever asks for one more waits for a place among them.
const STARTS_MAX: usize = 64;
/// How long the isolation may take to be built, and before that such a place to become free.
const LAUNCH_MAX: Duration = Duration::from_secs(10);
/// How long a spare may take to become an instance; after that one is started.
const ADOPTION_MAX: Duration = Duration::from_secs(2);
/// How long all processes together may take to end.
const END_MAX: Duration = Duration::from_secs(3);
/// How long an empty control group may take to be empty for the kernel, too.
const GROUP_GONE_MAX: Duration = Duration::from_secs(2);
const GROUP_LOOK: Duration = Duration::from_millis(5);

/// What to launch. Paths are the host's.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Program and arguments as seen inside.
    pub command: Vec<OsString>,
    /// The whole environment, but for `AWS_LAMBDA_RUNTIME_API` and `LANDFAST_URL`, which say where its listener is unless they are here.
    pub environment: Vec<(OsString, OsString)>,
    /// Folders that its interpreter needs, seen inside at the same place.
    pub folders: Vec<PathBuf>,
    /// Appears read-only at `/var/task`, where it is started.
    pub code: PathBuf,
    /// Appears read-only at `/var/runtime`.
    pub runtime: PathBuf,
    /// What it may use.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes_max: u32,
    /// What fits in its `/tmp`.
    pub scratch_bytes: u64,
    /// What it reaches.
    pub network: Network,
}

/// What network a process reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Network {
    /// Its own loopback alone.
    None,
    /// That of the machine.
    Host,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// By the kernel, since it used more memory than it may.
    OutOfMemory,
}

/// Launches processes.
#[derive(Debug)]
pub struct Launcher {
    program: PathBuf,
    enforcement: Enforcement,
    starts: Sender<Start>,
    launched: Mutex<Launched>,
    alive: watch::Sender<usize>,
}

/// A process to be made. It counts as one until that is done or given up, whoever asked for it has gone meanwhile or not.
#[derive(Debug)]
struct Start {
    command: Command,
    alive: Alive,
    started: oneshot::Sender<io::Result<Made>>,
}

/// A process that was made and is nobody's yet. If it is dropped so, it ends, and counts until it has.
#[derive(Debug)]
struct Made {
    child: Option<Child>,
    alive: Option<Alive>,
}

#[derive(Debug, Default)]
struct Launched {
    /// What may still be there; at the most twice as many others.
    controls: Vec<Weak<Control>>,
    /// All of it was ended.
    is_over: bool,
}

/// A process that was launched.
#[derive(Debug)]
pub(crate) struct Process {
    /// Accepts what connects to it, which others than its peers may where the sandbox has the machine's network.
    pub(crate) listener: TcpListener,
    pub(crate) peers: Peers,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
    pub(crate) control: Arc<Control>,
    pub(crate) exit: Exit,
}

/// What can be done to a process.
#[derive(Debug)]
pub(crate) struct Control {
    /// None once it is reaped: then its number may be another's.
    launcher: Mutex<Option<Child>>,
    group: Group,
    /// Whether all processes end with the launcher's child.
    is_isolated: bool,
    /// Whether it ends, or has ended, by us.
    was_killed: AtomicBool,
}

/// What becomes of a process. Who drops it, wherever it stands, ends the process, and soon nothing is left of that.
#[derive(Debug)]
pub(crate) struct Exit(Option<Watched>);

/// A process whose end nobody has seen.
#[derive(Debug)]
struct Watched {
    socket: UnixStream,
    control: Arc<Control>,
    _alive: Alive,
}

/// One of the processes of which something may be left.
#[derive(Debug)]
struct Alive(watch::Sender<usize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.send_modify(|alive| *alive -= 1);
    }
}

impl Launcher {
    /// Launches by starting `program`, which is this program, as the launcher.
    pub fn new(program: PathBuf, enforcement: Enforcement) -> io::Result<Self> {
        let (starts, waiting) = channel(STARTS_MAX);
        thread::Builder::new()
            .name("function launcher".into())
            .spawn(move || start_all(waiting))?;
        let (launched, alive) = (Mutex::default(), watch::Sender::new(0));
        Ok(Self {
            program,
            enforcement,
            starts,
            launched,
            alive,
        })
    }

    /// Whether functions may change their code.
    pub(crate) fn code(&self) -> Code {
        if self.enforcement.separates_users() {
            Code::StaysAsItIs
        } else {
            Code::MayChange
        }
    }

    /// From here on whoever ends all of them waits for one more. Errors: they have been ended.
    fn one_more(&self) -> io::Result<Alive> {
        let launched = self.launched.lock();
        if launched.is_over {
            return Err(io::Error::other("nothing is launched any more"));
        }
        self.alive.send_modify(|alive| *alive += 1);
        Ok(Alive(self.alive.clone()))
    }

    /// Whoever ends all of them ends this one, too.
    fn note(&self, control: &Arc<Control>) {
        let mut launched = self.launched.lock();
        if launched.is_over {
            return control.kill();
        }
        let controls = &mut launched.controls;
        if controls.len() == controls.capacity() {
            controls.retain(|control| control.strong_count() > 0);
        }
        controls.push(Arc::downgrade(control));
    }

    /// Ends all that was launched, and returns once nothing of it is left, its control groups included; or after a while.
    pub(crate) async fn end(&self) {
        let launched = {
            let mut launched = self.launched.lock();
            launched.is_over = true;
            std::mem::take(&mut launched.controls)
        };
        launched
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|control| control.kill());
        let mut alive = self.alive.subscribe();
        if tokio::time::timeout(END_MAX, alive.wait_for(|alive| *alive == 0))
            .await
            .is_err()
        {
            tracing::warn!(
                "functions are still on their way out; the next start removes what they leave"
            );
        }
        self.enforcement.remove();
    }

    /// Starts what `launch` says; it is isolated as far as the machine lets us, and about to run.
    pub(crate) async fn start(&self, launch: Launch) -> io::Result<Process> {
        self.launch(Role::Function, launch).await
    }

    /// Starts an interpreter that waits to be adopted, where [spares can be had](Self::has_spares); it has imported what it will need.
    /// Its code is a folder that has that of all functions in it.
    pub(crate) async fn prepare(&self, launch: Launch) -> io::Result<Process> {
        self.launch(Role::Spare, launch).await
    }

    /// Whether an interpreter may wait: what it is to be isolated by later are namespaces.
    pub(crate) fn has_spares(&self) -> bool {
        self.enforcement.namespaces.is_enforced()
    }

    /// Has `spare` become what `launch` says. Errors: it is ended, and nobody has heard anything of it.
    pub(crate) async fn adopt(&self, spare: Process, launch: Launch) -> io::Result<Process> {
        let adopted = tokio::time::timeout(ADOPTION_MAX, async {
            spare.control.group.limit(Limits::of(&launch))?;
            let order = wire::Order::new(Role::Function, launch, &self.enforcement, Vec::new());
            wire::adopt(spare.exit.socket()?, &order).await
        });
        match adopted
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        {
            Ok(()) => Ok(spare),
            Err(error) => Err(with_last_words(&error, &spare.stderr)),
        }
    }

    async fn launch(&self, role: Role, launch: Launch) -> io::Result<Process> {
        // Before anything of it is there.
        let alive = self.one_more()?;
        let group = Group::make(&self.enforcement, Limits::of(&launch))?;
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        let (stdout, told_out) = pipe()?;
        let (stderr, told_err) = pipe()?;
        let mut command = Command::new(&self.program);
        command
            .arg(LAUNCHER_ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        command
            .stdout(Stdio::from(told_out))
            .stderr(Stdio::from(told_err));
        let (child, alive) = self.spawn(command, alive).await?.take();
        let control = Arc::new(Control {
            launcher: Mutex::new(Some(child)),
            group,
            is_isolated: self.enforcement.namespaces.is_enforced(),
            was_killed: AtomicBool::new(false),
        });
        // Who asked may go at any moment from here on.
        let exit = Exit(Some(Watched {
            socket: ours,
            control: Arc::clone(&control),
            _alive: alive,
        }));
        self.note(&control);
        let order = wire::Order::new(role, launch, &self.enforcement, control.group.members());
        let handed_over =
            tokio::time::timeout(LAUNCH_MAX, wire::hand_over(exit.socket()?, &order)).await;
        match handed_over.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((listener, peers)) => Ok(Process {
                listener,
                peers,
                stdout,
                stderr,
                control,
                exit,
            }),
            Err(error) => Err(with_last_words(&error, &stderr)),
        }
    }

    async fn spawn(&self, command: Command, alive: Alive) -> io::Result<Made> {
        let (started, child) = oneshot::channel();
        let gone = || io::Error::other("the thread that launches functions has ended");
        let given = tokio::time::timeout(
            LAUNCH_MAX,
            self.starts.send(Start {
                command,
                alive,
                started,
            }),
        );
        let too_many = || {
            io::Error::new(
                io::ErrorKind::TimedOut,
                "too many functions are being started",
            )
        };
        given.await.map_err(|_| too_many())?.map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.enforcement.remove();
    }
}

fn start_all(mut waiting: Receiver<Start>) {
    while let Some(start) = waiting.blocking_recv() {
        start.make();
    }
}

impl Start {
    fn make(self) {
        let Self {
            mut command,
            alive,
            started,
        } = self;
        if started.is_closed() {
            // Who asked has gone.
            return;
        }
        let child = command.spawn();
        // The command holds the ends that the child has now.
        drop(command);
        // If it has gone meanwhile, what comes back ends here.
        drop(started.send(child.map(|child| Made {
            child: Some(child),
            alive: Some(alive),
        })));
    }
}

impl Made {
    fn take(mut self) -> (Child, Alive) {
        const ONCE: &str = "it is taken once";
        (
            self.child.take().expect(ONCE),
            self.alive.take().expect(ONCE),
        )
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// With what a launcher said that could not do its work.
fn with_last_words(error: &io::Error, stderr: &pipe::Receiver) -> io::Error {
    let mut said = [0; 1024];
    let length = stderr.try_read(&mut said).unwrap_or(0);
    let said = String::from_utf8_lossy(&said[..length]);
    io::Error::new(error.kind(), format!("{error} {}", said.trim()))
}

/// A pipe whose reading end is ours.
fn pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let read = OwnedFd::from(read);
    nix::fcntl::fcntl(
        read.as_fd(),
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
    )?;
    Ok((pipe::Receiver::from_owned_fd(read)?, OwnedFd::from(write)))
}

impl Control {
    /// Ends it and everything it has started, at once.
    pub(crate) fn kill(&self) {
        self.was_killed.store(true, Ordering::Release);
        if let Some(launcher) = &mut *self.launcher.lock() {
            if self.is_isolated {
                // Its child dies with it, and that is the first process of all others in there.
                let _ = launcher.kill();
            } else {
                // It ends what the function has left, and then itself.
                let _ = kill(Pid::from_raw(launcher.id() as i32), Signal::SIGTERM);
            }
        }
        // What is frozen dies when it is thawed.
        let _ = self.group.kill();
    }

    /// Soon nothing of it runs until it is thawed; [`Self::is_frozen`] says when.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        match self.group.freeze(true) {
            Some(frozen) => frozen,
            None => self.signal_all(Signal::SIGSTOP),
        }
    }

    /// Whether nothing of it runs.
    pub(crate) fn is_frozen(&self) -> bool {
        self.group.is_frozen().unwrap_or_else(|| {
            let launcher = self.launcher.lock();
            let all = launcher
                .as_ref()
                .map(|launcher| descendants_of(launcher.id()))
                .unwrap_or_default();
            !all.into_iter().any(is_running)
        })
    }

    /// It runs again.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        match self.group.freeze(false) {
            Some(thawed) => thawed,
            None => self.signal_all(Signal::SIGCONT),
        }
    }

    /// The most memory it has used, where a control group counts it.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        self.group.memory_peak()
    }

    /// How many of its processes the kernel has ended for want of memory, where a control group counts them.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        self.group.out_of_memory_kills()
    }

    /// Signals the launcher's descendants, but not itself.
    fn signal_all(&self, signal: Signal) -> io::Result<()> {
        let launcher = self.launcher.lock();
        let Some(launcher) = launcher.as_ref() else {
            return Ok(());
        };
        for process in descendants_of(launcher.id()) {
            match kill(Pid::from_raw(process as i32), signal) {
                // It has ended meanwhile; the others are still to be signalled.
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Exit {
    /// Returns once it has ended and nothing is left of it.
    pub(crate) async fn wait(&mut self) -> ExitReason {
        let watched = self
            .0
            .as_mut()
            .expect("nobody waits again for what has ended");
        let reason = watched.end().await;
        self.0 = None;
        reason
    }

    /// Errors: it has ended.
    fn socket(&self) -> io::Result<&UnixStream> {
        Ok(&self.0.as_ref().ok_or(io::ErrorKind::NotConnected)?.socket)
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        let Some(mut watched) = self.0.take() else {
            return;
        };
        watched.control.kill();
        // Without a runtime nobody waits for what is left; the next start removes it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { watched.end().await });
        }
    }
}

impl Watched {
    async fn end(&mut self) -> ExitReason {
        let status = wire::status(&self.socket).await;
        let was_killed_by_us = self.control.was_killed.load(Ordering::Acquire);
        self.control.kill();
        self.reap_launcher().await;
        let reason = match status {
            Some(status) if libc::WIFEXITED(status) => {
                ExitReason::Exited(libc::WEXITSTATUS(status))
            }
            Some(status) => ExitReason::Signalled(libc::WTERMSIG(status)),
            None => ExitReason::Signalled(libc::SIGKILL),
        };
        // What it has forked may have been killed for want of memory long before, and it has gone on.
        let is_by_the_kernel = reason == ExitReason::Signalled(libc::SIGKILL) && !was_killed_by_us;
        let is_out_of_memory = is_by_the_kernel && self.control.group.out_of_memory_kills() > 0;
        self.remove_group().await;
        if is_out_of_memory {
            ExitReason::OutOfMemory
        } else {
            reason
        }
    }

    async fn reap_launcher(&self) {
        // It was killed, so this takes no time worth a thread; its number is ours until then.
        loop {
            match self.control.launcher.lock().as_mut().map(Child::try_wait) {
                Some(Ok(None)) => {}
                Some(_) => break,
                None => return,
            }
            tokio::time::sleep(GROUP_LOOK).await;
        }
        *self.control.launcher.lock() = None;
    }

    async fn remove_group(&self) {
        let until = tokio::time::Instant::now() + GROUP_GONE_MAX;
        while !self.control.group.remove() {
            if tokio::time::Instant::now() > until {
                tracing::warn!(
                    "the control group of a function that has ended is still in use; the next start removes it"
                );
                return;
            }
            // Something in it is still on its way out.
            let _ = self.control.group.kill();
            tokio::time::sleep(GROUP_LOOK).await;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.kill();
        if let Some(mut launcher) = self.launcher.lock().take() {
            let _ = launcher.wait();
        }
        self.group.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        path::Path,
    };

    use futures_util::{future::join_all, poll};

    use super::*;

    /// One whose thread does nothing by itself.
    fn launcher() -> (Launcher, Receiver<Start>) {
        let (starts, waiting) = channel(1);
        let (launched, alive) = (Mutex::default(), watch::Sender::new(0));
        let (program, enforcement) = (PathBuf::new(), Enforcement::nothing());
        (
            Launcher {
                program,
                enforcement,
                starts,
                launched,
                alive,
            },
            waiting,
        )
    }

    /// Whoever ends all processes waits for those, too, that a thread may still be making for somebody who has gone.
    #[tokio::test]
    async fn a_process_that_is_still_to_be_made_counts_though_nobody_waits_for_it() {
        let (launcher, mut waiting) = launcher();
        let alive = launcher.one_more().expect("nothing is over");
        let mut asked = Box::pin(launcher.spawn(Command::new("true"), alive));
        assert!(poll!(&mut asked).is_pending());
        drop(asked);
        assert_eq!(*launcher.alive.borrow(), 1);
        waiting.try_recv().expect("it waits").make();
        assert_eq!(*launcher.alive.borrow(), 0);
    }

    #[tokio::test]
    async fn a_process_ends_whose_asker_has_gone_while_it_was_made() {
        let (launcher, mut waiting) = launcher();
        let alive = launcher.one_more().expect("nothing is over");
        let (said, stdout) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$; exec sleep 600"])
            .stdout(stdout);
        let mut asked = Box::pin(launcher.spawn(command, alive));
        assert!(poll!(&mut asked).is_pending());
        waiting.try_recv().expect("it waits").make();
        let mut process = String::new();
        BufReader::new(said)
            .read_line(&mut process)
            .expect("it says its number");
        let process = Path::new("/proc").join(process.trim());
        assert!(process.exists() && *launcher.alive.borrow() == 1);
        drop(asked);
        assert!(!process.exists() && *launcher.alive.borrow() == 0);
    }

    /// Of many starts at a time some were refused.
    #[tokio::test]
    async fn who_asks_for_more_processes_than_may_wait_waits_too() {
        let (launcher, mut waiting) = launcher();
        let asked = (0..5).map(|_| {
            launcher.spawn(
                Command::new("true"),
                launcher.one_more().expect("nothing is over"),
            )
        });
        let make_all = async {
            while let Some(start) = waiting.recv().await {
                start.make();
            }
        };
        let asked = tokio::select! {
            biased;
            asked = join_all(asked) => asked,
            () = make_all => unreachable!("the launcher is there"),
        };
        for made in asked {
            made.expect("it is made");
        }
    }
}
