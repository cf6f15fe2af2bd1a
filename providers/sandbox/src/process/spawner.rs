//! The thread that spawns launchers.
//!
//! The kernel ends a child with the *thread* that spawned it, where the child asks for that. So one
//! thread, which lives as long as the server, spawns all of them.

use std::{
    io,
    process::{Child, Command},
    thread,
    time::Duration,
};

use tokio::sync::{
    mpsc::{Receiver, Sender, channel},
    oneshot,
};

use super::alive::Alive;

/// The most children that wait to be spawned. One more caller waits for a place among them.
const STARTS_MAX: usize = 64;
/// How long such a place may take to become free.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Hands commands to the thread.
#[derive(Debug)]
pub(super) struct Spawner(Sender<Start>);

/// A child to spawn. It counts as alive until it is spawned or given up, even if its caller is
/// gone.
#[derive(Debug)]
struct Start {
    command: Command,
    alive: Alive,
    started: oneshot::Sender<io::Result<Spawned>>,
}

/// A spawned child that no caller has taken yet. Dropping it ends the child, which counts as alive
/// until then.
#[derive(Debug)]
pub(super) struct Spawned {
    child: Option<Child>,
    alive: Option<Alive>,
}

impl Spawner {
    pub(super) fn new() -> io::Result<Self> {
        let (starts, waiting) = channel(STARTS_MAX);
        thread::Builder::new()
            .name("function launcher".into())
            .spawn(move || spawn_all(waiting))?;
        Ok(Self(starts))
    }

    /// Spawns `command`.
    pub(super) async fn spawn(&self, command: Command, alive: Alive) -> io::Result<Spawned> {
        let (started, child) = oneshot::channel();
        let gone = || io::Error::other("the thread that launches functions has ended");
        let start = Start {
            command,
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

fn spawn_all(mut waiting: Receiver<Start>) {
    while let Some(start) = waiting.blocking_recv() {
        start.spawn();
    }
}

impl Start {
    fn spawn(self) {
        let Self {
            mut command,
            alive,
            started,
        } = self;
        if started.is_closed() {
            // The caller is gone.
            return;
        }
        let child = command.spawn();
        // The command still holds the ends of the pipes that the child has now.
        drop(command);
        // If the caller is gone by now, the returned value is dropped here, which ends the child.
        drop(started.send(child.map(|child| Spawned {
            child: Some(child),
            alive: Some(alive),
        })));
    }
}

impl Spawned {
    pub(super) fn take(mut self) -> (Child, Alive) {
        const ONCE: &str = "it is taken once";
        (
            self.child.take().expect(ONCE),
            self.alive.take().expect(ONCE),
        )
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        path::Path,
    };

    use futures_util::{future::join_all, poll};

    use super::{super::alive::AliveCount, *};

    /// A spawner whose thread is the test.
    fn spawner() -> (Spawner, Receiver<Start>) {
        let (starts, waiting) = channel(1);
        (Spawner(starts), waiting)
    }

    /// The end of all processes waits even for one that the thread may still spawn for a caller
    /// that is gone.
    #[tokio::test]
    async fn a_process_still_to_be_spawned_counts_though_its_caller_is_gone() {
        let ((spawner, mut waiting), count) = (spawner(), AliveCount::default());
        let mut asked = Box::pin(spawner.spawn(Command::new("true"), count.one_more()));
        assert!(poll!(&mut asked).is_pending());
        drop(asked);
        assert_eq!(count.get(), 1);
        waiting.try_recv().expect("it waits").spawn();
        assert_eq!(count.get(), 0);
    }

    #[tokio::test]
    async fn a_process_ends_if_its_caller_is_gone_when_it_is_spawned() {
        let ((spawner, mut waiting), count) = (spawner(), AliveCount::default());
        let (number, stdout) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$; exec sleep 600"])
            .stdout(stdout);
        let mut asked = Box::pin(spawner.spawn(command, count.one_more()));
        assert!(poll!(&mut asked).is_pending());
        waiting.try_recv().expect("it waits").spawn();
        let mut process = String::new();
        BufReader::new(number)
            .read_line(&mut process)
            .expect("it prints its number");
        let process = Path::new("/proc").join(process.trim());
        assert!(process.exists() && count.get() == 1);
        drop(asked);
        assert!(!process.exists() && count.get() == 0);
    }

    /// Of many starts at a time, some were refused.
    #[tokio::test]
    async fn callers_beyond_the_bound_of_waiting_starts_wait_too() {
        let ((spawner, mut waiting), count) = (spawner(), AliveCount::default());
        let asked = (0..5).map(|_| spawner.spawn(Command::new("true"), count.one_more()));
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
