//! The stop of the service, in two stages.
//!
//! A server that stops waits for functions at work. A run would otherwise begin its next step in
//! that time, and keep the server waiting for as long as it has steps. So runs pause between steps
//! first. Later all runs end where they are, and their callers learn why.
//!
//! A run whose last step has just ended must still store its end. Otherwise the caller learns it only
//! after the next start. So the server also waits until no run advances.

use std::future;

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// Steps at work continue, with the steps that they call. No other step begins.
    Stopping,
    /// No run continues.
    Interrupted,
}

/// How far the service is on its way to its end, and the runs that it waits for.
#[derive(Debug)]
pub(crate) struct Stop {
    stage: watch::Sender<Stage>,
    /// The number of runs that advance.
    advancing: watch::Sender<usize>,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            stage: watch::Sender::new(Stage::Serving),
            advancing: watch::Sender::new(0),
        }
    }
}

/// Whether one run advances. Dropped, it no longer does.
#[derive(Debug)]
pub(crate) struct Advance<'of> {
    stop: &'of Stop,
    is_counted: bool,
}

impl Advance<'_> {
    pub(crate) fn set(&mut self, advances: bool) {
        if advances == self.is_counted {
            return;
        }
        self.is_counted = advances;
        self.stop.advancing.send_modify(|count| {
            *count = if advances { *count + 1 } else { *count - 1 };
        });
    }
}

impl Drop for Advance<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl Stop {
    pub(crate) fn begin(&self) {
        self.reach(Stage::Stopping);
    }

    pub(crate) fn interrupt(&self) {
        self.reach(Stage::Interrupted);
    }

    fn reach(&self, stage: Stage) {
        self.stage.send_modify(|now| *now = stage.max(*now));
    }

    /// One more run, which advances from now on.
    pub(crate) fn advance(&self) -> Advance<'_> {
        let mut advance = Advance {
            stop: self,
            is_counted: false,
        };
        advance.set(true);
        advance
    }

    /// Waits until no run advances.
    pub(crate) async fn idle(&self) {
        // No error: the sender lives as long as `self`.
        let _ = self
            .advancing
            .subscribe()
            .wait_for(|count| *count == 0)
            .await;
    }

    /// Returns at once, or never if the stop has begun.
    pub(crate) async fn unless_begun(&self) {
        if *self.stage.borrow() > Stage::Serving {
            future::pending::<()>().await;
        }
    }

    /// Waits until no run continues.
    pub(crate) async fn interrupted(&self) {
        // No error: the sender lives as long as `self`.
        let interrupted = |stage: &Stage| *stage == Stage::Interrupted;
        let _ = self.stage.subscribe().wait_for(interrupted).await;
    }
}
