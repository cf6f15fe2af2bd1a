//! What a function leaves where no namespace ends with it: processes that it has started and that have outlived it.
//!
//! Their parent becomes the launcher, whatever sessions and groups they have fled to. It ends them all, then itself. It hears of the
//! server's death as of the server's word, by a signal that it waits for: to be killed would leave them to nobody.

use std::{io, process, thread, time::Duration};

use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
    },
    unistd::{Pid, getppid},
};

use crate::{processes::descendants_of, system::ended_child};

/// How often all that is left is killed: who starts others faster than that is stopped by the bound of its processes.
const SWEEPS_MAX: usize = 2000;
const PAUSE: Duration = Duration::from_millis(1);

/// The right to all that the function leaves.
#[derive(Debug)]
pub(super) struct Remains {
    signals: SigSet,
}

/// From here on what the function leaves is ours. Errors: the server, which is `parent`, has gone.
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
    /// In a child: signals are what they were.
    pub(super) fn leave(self) -> io::Result<()> {
        Ok(self.signals.thread_unblock()?)
    }

    /// Waits until `init` has ended, or it is time; then ends everything.
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
                    // Nobody is left.
                    Err(_) => return Ok(0),
                }
            }
            thread::sleep(PAUSE);
        }
        Err(io::Error::other(
            "what the function has started cannot be ended",
        ))
    }
}
