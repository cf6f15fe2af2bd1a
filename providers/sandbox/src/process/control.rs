//! Control of a launched process: ending it, freezing it, and its use of memory.

use std::{
    io,
    process::Child,
    sync::atomic::{AtomicBool, Ordering},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;

use super::group::Group;
use crate::machine::{descendants_of, is_running};

#[derive(Debug)]
pub(crate) struct Control {
    /// None once it is reaped: then its number may be another process's.
    launcher: Mutex<Option<Child>>,
    pub(crate) group: Group,
    /// Whether all processes end with the launcher's child.
    is_isolated: bool,
    /// Whether the server ends it, or has ended it.
    pub(super) was_killed: AtomicBool,
}

impl Control {
    pub(super) fn new(launcher: Child, group: Group, is_isolated: bool) -> Self {
        Self {
            launcher: Mutex::new(Some(launcher)),
            group,
            is_isolated,
            was_killed: AtomicBool::new(false),
        }
    }

    /// Ends the process and everything it has started, at once.
    pub(crate) fn kill(&self) {
        self.was_killed.store(true, Ordering::Release);
        if let Some(launcher) = &mut *self.launcher.lock() {
            if self.is_isolated {
                // The launcher's child dies with it, and is the first process of all others in its
                // namespace.
                let _ = launcher.kill();
            } else {
                // The launcher ends what the function has left, and then itself.
                let _ = kill(Pid::from_raw(launcher.id() as i32), Signal::SIGTERM);
            }
        }
        // Frozen processes die when they are thawed.
        let _ = self.group.kill();
    }

    /// Begins to freeze the process. [`Self::is_frozen`] says when nothing of it runs.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        match self.group.freeze(true) {
            Some(frozen) => frozen,
            None => self.signal_all(Signal::SIGSTOP),
        }
    }

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

    pub(crate) fn thaw(&self) -> io::Result<()> {
        match self.group.freeze(false) {
            Some(thawed) => thawed,
            None => self.signal_all(Signal::SIGCONT),
        }
    }

    /// Reaps the launcher, if it has ended. Whether there is none left to reap.
    pub(super) fn reap(&self) -> bool {
        let mut launcher = self.launcher.lock();
        if let Some(Ok(None)) = launcher.as_mut().map(Child::try_wait) {
            return false;
        }
        *launcher = None;
        true
    }

    /// Signals the launcher's descendants, but not the launcher.
    fn signal_all(&self, signal: Signal) -> io::Result<()> {
        let launcher = self.launcher.lock();
        let Some(launcher) = launcher.as_ref() else {
            return Ok(());
        };
        for process in descendants_of(launcher.id()) {
            match kill(Pid::from_raw(process as i32), signal) {
                // This one has ended meanwhile; the others still need the signal.
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
