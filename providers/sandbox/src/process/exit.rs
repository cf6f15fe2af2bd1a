//! The end of a launched process: its cause, and the removal of everything it leaves.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ports::instances::Death;
use tokio::{net::UnixStream, runtime::Handle};

use super::{control::Control, handshake, spawner::Alive};

/// How long an empty control group may take to be empty for the kernel too.
const GROUP_GONE_MAX: Duration = Duration::from_secs(2);
const GROUP_POLL: Duration = Duration::from_millis(5);

/// The end of a process. Dropping it at any point ends the process, and soon nothing is left of
/// that.
#[derive(Debug)]
pub(crate) struct Exit(Option<Watched>);

#[derive(Debug)]
struct Watched {
    socket: UnixStream,
    control: Arc<Control>,
    _alive: Alive,
}

impl Exit {
    pub(super) fn new(socket: UnixStream, control: Arc<Control>, alive: Alive) -> Self {
        Self(Some(Watched {
            socket,
            control,
            _alive: alive,
        }))
    }

    /// Returns once the process has ended and nothing is left of it.
    pub(crate) async fn wait(&mut self) -> Death {
        let watched = self.0.as_mut().expect("it is waited for once");
        let death = watched.end().await;
        self.0 = None;
        death
    }

    /// The socket to the process. Errors: it has ended.
    pub(super) fn socket(&mut self) -> io::Result<&mut UnixStream> {
        let watched = self.0.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(&mut watched.socket)
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        let Some(mut watched) = self.0.take() else {
            return;
        };
        watched.control.kill();
        // Without a runtime nothing waits for the rest; the next start removes it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { watched.end().await });
        }
    }
}

impl Watched {
    async fn end(&mut self) -> Death {
        let status = handshake::status(&mut self.socket).await;
        let was_killed_by_us = self.control.was_killed.load(Ordering::Acquire);
        self.control.kill();
        // It was killed, so this takes too little time for a thread. Its number stays ours until
        // then.
        while !self.control.reap() {
            tokio::time::sleep(GROUP_POLL).await;
        }
        let death = match status {
            Some(status) if libc::WIFEXITED(status) => Death::Exited(libc::WEXITSTATUS(status)),
            Some(status) => Death::Killed(libc::WTERMSIG(status)),
            None => Death::Killed(libc::SIGKILL),
        };
        // The kernel may have ended a child for lack of memory long before, and the function went
        // on.
        let is_by_the_kernel = death == Death::Killed(libc::SIGKILL) && !was_killed_by_us;
        let is_out_of_memory = is_by_the_kernel && self.control.group.out_of_memory_kills() > 0;
        self.remove_group().await;
        if is_out_of_memory {
            Death::OutOfMemory
        } else {
            death
        }
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
            // A process in it is still ending.
            self.control.kill();
            tokio::time::sleep(GROUP_POLL).await;
        }
    }
}
