//! One run of the command: its streams, and the events that may end it.

use std::{
    ffi::OsString,
    fs::File,
    io::Seek as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::{sleep, timeout},
};

use super::{
    guard,
    namespace::Right,
    spool::{Held, Spool},
};

/// The time for the guard to end all processes. One may wait for a mount whose volume does not
/// answer; then the mount is aborted, which ends the wait.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// Variables of the environment, beside those of `exec`.
pub(super) type Variables = Vec<(OsString, OsString)>;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this exit code.
    Exited(i32),
    /// By its time limit.
    TimeUp,
    /// Because `exec` got this signal.
    Signalled(Signal),
}

/// The parameters of a run of the command.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) right: Right,
    /// The working directory, as a path that may lead into the volume.
    pub(super) directory: PathBuf,
    /// The mount point of the volume, if it is mounted.
    pub(super) point: Option<PathBuf>,
    pub(super) command: Vec<OsString>,
    /// The content of stdin. `None`: it is empty.
    pub(super) stdin: Option<File>,
    pub(super) time_max: Duration,
    pub(super) output_bytes_max: u64,
    pub(super) signals: Signals,
}

impl Program {
    /// Runs the command, of whose processes nothing is left afterwards. Errors: it could not be
    /// started, or its output could not be held.
    pub(super) async fn run(&mut self, variables: &Variables) -> anyhow::Result<(Ended, Held)> {
        let stdin = match &mut self.stdin {
            Some(file) => {
                file.rewind().context("--stdin")?;
                Stdio::from(file.try_clone().context("--stdin")?)
            }
            None => Stdio::null(),
        };
        let (mut spool, pipes) = Spool::start(self.output_bytes_max)?;
        let guard = guard::guard(self.right, &self.directory, &self.command);
        let mut guard = Command::from(guard);
        let guard = guard
            .stdin(stdin)
            .stdout(pipes.stdout)
            .stderr(pipes.stderr)
            .envs(variables.iter().cloned())
            .kill_on_drop(true);
        let mut guard = guard
            .spawn()
            .context("this program cannot be started again")?;
        let ended = tokio::select! {
            biased;
            signal = self.signals.next() => Ended::Signalled(signal),
            Ok(()) = &mut spool.stopped => Ended::Exited(guard::FAILED),
            () = sleep(self.time_max) => Ended::TimeUp,
            status = guard.wait() => {
                let code = status.context("the command")?.code();
                Ended::Exited(code.unwrap_or(guard::FAILED))
            }
        };
        end(&mut guard, self.point.as_deref()).await?;
        let held = tokio::task::spawn_blocking(|| spool.finish()).await??;
        Ok((ended, held))
    }
}

/// Ends a guard with the processes of the command, unless it has ended. They use the mount at
/// `point`.
async fn end(guard: &mut Child, point: Option<&Path>) -> anyhow::Result<()> {
    let Some(process) = guard.id() else {
        return Ok(());
    };
    kill(Pid::from_raw(process as i32), Signal::SIGTERM)?;
    if timeout(KILL_WAIT, guard.wait()).await.is_err() {
        if let Some(point) = point {
            umount2(point, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)?;
        }
        guard.wait().await?;
    }
    Ok(())
}

/// The signals that end `exec`.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    /// From now on they do not end this process by themselves.
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hang_up: unix::signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.hang_up.recv() => Signal::SIGHUP,
        }
    }
}
