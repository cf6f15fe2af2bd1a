//! The processes that a function leaves where no namespace ends with it.
//!
//! The launcher becomes their parent, even if they moved to other sessions and groups. It ends them
//! all, then itself. The server's order and the server's death both reach it as a signal that it
//! waits for. A launcher that was killed would leave them without a parent that ends them.

use std::{io, process, thread, time::Duration};

use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
    },
    unistd::{Pid, getppid},
};

use crate::{machine::descendants_of, system::ended_child};

/// The most sweeps over the remaining processes. A function that starts others faster reaches its
/// bound on processes.
const SWEEPS_MAX: usize = 2000;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Remains {
    signals: SigSet,
}

/// Makes the launcher the parent of orphans. Errors: the server, which is `parent`, is gone.
pub(super) fn keep(parent: u32) -> io::Result<Remains> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGCHLD);
    signals.thread_block()?;
    prctl::set_child_subreaper(true)?;
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    if getppid() != Pid::from_raw(parent as i32) {
        return Err(io::Error::other("the server has gone"));
    }
    Ok(Remains { signals })
}

impl Remains {
    /// Restores the signals, in a child.
    pub(super) fn leave(self) -> io::Result<()> {
        Ok(self.signals.thread_unblock()?)
    }

    /// Waits until `init` has ended or the server orders the end; then ends everything.
    pub(super) fn end_after(self, init: Pid) -> io::Result<i32> {
        while self.signals.wait()? != Signal::SIGTERM {
            // One signal may stand for many.
            let mut has_ended = false;
            while let Ok(Some(ended)) = ended_child() {
                has_ended |= ended == init;
            }
            if has_ended {
                break;
            }
        }
        for _ in 0..SWEEPS_MAX {
            for process in descendants_of(process::id()) {
                // It may have ended meanwhile.
                let _ = kill(Pid::from_raw(process as i32), Signal::SIGKILL);
            }
            loop {
                match ended_child() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // None is left.
                    Err(_) => return Ok(0),
                }
            }
            thread::sleep(PAUSE);
        }
        Err(io::Error::other(
            "the processes of the function cannot be ended",
        ))
    }
}
