//! A running process, addressed by its handle: the base of both function instances and the
//! instances port.

use std::{mem, pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use ports::instances::Death;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use super::{control::Control, exit::Exit};

/// How long all processes of an instance may take to freeze.
const FREEZE_MAX: Duration = Duration::from_secs(1);
const FREEZE_POLL: Duration = Duration::from_millis(1);
/// How long the work beside a process may go on after the process has ended.
const REST_MAX: Duration = Duration::from_secs(5);

/// A handle of a running process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) control: Arc<Control>,
    death: watch::Receiver<Option<Death>>,
    frost: Mutex<Frost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frost {
    None,
    /// Parts of it may still run.
    Freezing,
    Frozen,
}

impl Running {
    /// Watches the end of a process, and runs `beside` until then. `beside` learns of the end, and
    /// has [`REST_MAX`] to handle the data that the process has left. Afterwards this announces the
    /// death, and then calls `on_death`.
    pub(crate) fn watch<F>(
        control: Arc<Control>,
        mut exit: Exit,
        beside: impl FnOnce(oneshot::Receiver<()>) -> F,
        on_death: impl FnOnce() + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (announce, death) = watch::channel(None);
        let (end, has_ended) = oneshot::channel();
        let beside = beside(has_ended);
        tokio::spawn(async move {
            // One wait: dropped after it has read the exit status, it would lose the cause.
            let (mut wait, mut beside) = (pin!(exit.wait()), pin!(beside));
            let cause = tokio::select! {
                biased;
                cause = &mut wait => {
                    // Both errors mean that nothing is left to do.
                    let _ = end.send(());
                    let _ = timeout(REST_MAX, beside).await;
                    cause
                }
                () = &mut beside => wait.await,
            };
            announce.send_replace(Some(cause));
            on_death();
        });
        Self {
            control,
            death,
            frost: Mutex::new(Frost::None),
        }
    }

    pub(crate) fn death(&self) -> Option<Death> {
        *self.death.borrow()
    }

    pub(crate) async fn died(&self) -> Death {
        let mut death = self.death.clone();
        // An error means that the watching task ended with the server's runtime.
        let cause = death.wait_for(Option::is_some).await;
        cause
            .ok()
            .and_then(|cause| *cause)
            .unwrap_or(Death::Killed(libc::SIGKILL))
    }

    pub(crate) fn freeze(&self) {
        let mut frost = self.frost.lock();
        match self.control.freeze() {
            Ok(()) => *frost = Frost::Freezing,
            Err(error) => tracing::debug!(%error, "an idle instance could not be frozen"),
        }
    }

    /// Waits, after [`Self::freeze`], until nothing of it runs or it is thawed. False: it did not
    /// freeze in time.
    pub(crate) async fn is_still(&self) -> bool {
        let until = Instant::now() + FREEZE_MAX;
        loop {
            {
                let mut frost = self.frost.lock();
                if *frost != Frost::Freezing {
                    return true;
                }
                if self.control.is_frozen() {
                    *frost = Frost::Frozen;
                    return true;
                }
                // A process that was started while the others were stopped still runs.
                if let Err(error) = self.control.freeze() {
                    tracing::debug!(%error, "an idle instance could not be frozen");
                }
            }
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(FREEZE_POLL).await;
        }
    }

    /// Lets it run again. Whether it does.
    pub(crate) fn thaw(&self) -> bool {
        let mut frost = self.frost.lock();
        if mem::replace(&mut *frost, Frost::None) == Frost::None {
            return true;
        }
        match self.control.thaw() {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a frozen instance could not be thawed, and is ended");
                self.control.kill();
                false
            }
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        *self.frost.lock() == Frost::Frozen
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.kill();
    }
}
