//! The thread that spawns launchers.
//!
//! The kernel ends a child with the *thread* that spawned it, where the child asks for that. So one
//! thread, which lives as long as the server, spawns all of them.

use std::{io, process::Command, thread, time::Duration};

use tokio::sync::{
    mpsc::{Sender, channel},
    oneshot,
};

use super::{control::Control, group::Group};

/// The most children that wait to be spawned. One more caller waits for a place among them.
const STARTS_MAX: usize = 64;
/// How long such a place may take to become free.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Counts as a process of which something may be left, until it is dropped.
pub(super) type Alive = Sender<()>;

#[derive(Debug)]
pub(super) struct Spawner(Sender<Start>);

/// A child to spawn, and how it is controlled. It counts as alive until it is spawned or given up,
/// even if its caller is gone.
#[derive(Debug)]
struct Start {
    command: Command,
    group: Group,
    is_isolated: bool,
    alive: Alive,
    started: oneshot::Sender<io::Result<Spawned>>,
}

/// A spawned child. Dropping it ends the child, which counts as alive until then.
type Spawned = (Control, Alive);

impl Spawner {
    pub(super) fn new() -> io::Result<Self> {
        let (starts, mut waiting) = channel::<Start>(STARTS_MAX);
        thread::Builder::new()
            .name("function launcher".into())
            .spawn(move || {
                while let Some(start) = waiting.blocking_recv() {
                    start.spawn();
                }
            })?;
        Ok(Self(starts))
    }

    /// Spawns `command` as the launcher of a process in `group`.
    pub(super) async fn spawn(
        &self,
        command: Command,
        group: Group,
        is_isolated: bool,
        alive: Alive,
    ) -> io::Result<Spawned> {
        let (started, child) = oneshot::channel();
        let gone = || io::Error::other("the thread that launches functions has ended");
        let start = Start {
            command,
            group,
            is_isolated,
            alive,
            started,
        };
        let given = tokio::time::timeout(PLACE_WAIT_MAX, self.0.send(start));
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

impl Start {
    fn spawn(mut self) {
        if self.started.is_closed() {
            // The caller is gone.
            return;
        }
        let child = self.command.spawn();
        // The command still holds the ends of the pipes that the child has now.
        drop(self.command);
        let (group, alive) = (self.group, self.alive);
        let child = child.map(|child| (Control::new(child, group, self.is_isolated), alive));
        // If the caller is gone by now, the returned value is dropped here, which ends the child.
        drop(self.started.send(child));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        path::Path,
    };

    use futures_util::{future::join_all, poll};

    use tokio::sync::mpsc::Receiver;

    use super::{super::enforcement::Enforcement, *};
    use crate::order::Launch;

    fn group() -> Group {
        Group::make(&Enforcement::nothing(), &Launch::default()).expect("made of nothing")
    }

    /// A spawner whose thread is the test.
    fn spawner() -> (Spawner, Receiver<Start>) {
        let (starts, waiting) = channel(1);
        (Spawner(starts), waiting)
    }

    /// The end of all processes waits even for one that the thread may still spawn for a caller
    /// that is gone.
    #[tokio::test]
    async fn a_process_still_to_be_spawned_counts_though_its_caller_is_gone() {
        let ((spawner, mut waiting), count) = (spawner(), channel(1).0);
        let mut asked = Box::pin(spawner.spawn(Command::new("true"), group(), true, count.clone()));
        assert!(poll!(&mut asked).is_pending());
        drop(asked);
        assert_eq!(count.strong_count(), 2);
        waiting.try_recv().expect("it waits").spawn();
        assert_eq!(count.strong_count(), 1);
    }

    #[tokio::test]
    async fn a_process_ends_if_its_caller_is_gone_when_it_is_spawned() {
        let ((spawner, mut waiting), count) = (spawner(), channel(1).0);
        let (number, stdout) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$; exec sleep 600"])
            .stdout(stdout);
        let mut asked = Box::pin(spawner.spawn(command, group(), true, count.clone()));
        assert!(poll!(&mut asked).is_pending());
        waiting.try_recv().expect("it waits").spawn();
        let mut process = String::new();
        BufReader::new(number)
            .read_line(&mut process)
            .expect("it prints its number");
        let process = Path::new("/proc").join(process.trim());
        assert!(process.exists() && count.strong_count() == 2);
        drop(asked);
        assert!(!process.exists() && count.strong_count() == 1);
    }

    /// Of many starts at a time, some were refused.
    #[tokio::test]
    async fn callers_beyond_the_bound_of_waiting_starts_wait_too() {
        let ((spawner, mut waiting), count) = (spawner(), channel(1).0);
        let asked =
            (0..5).map(|_| spawner.spawn(Command::new("true"), group(), true, count.clone()));
        let spawn_all = async {
            while let Some(start) = waiting.recv().await {
                start.spawn();
            }
        };
        let asked = tokio::select! {
            biased;
            asked = join_all(asked) => asked,
            () = spawn_all => unreachable!("the spawner is there"),
        };
        for spawned in asked {
            spawned.expect("it is spawned");
        }
    }
}
