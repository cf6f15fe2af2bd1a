//! The stop of the service, in two stages.
//!
//! A server that stops waits for functions at work. A run would otherwise begin its next step in
//! that time, and keep the server waiting for as long as it has steps. So runs pause between steps
//! first. Later all runs end where they are, and their callers learn why.

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

/// How far the service is on its way to its end.
#[derive(Debug)]
pub(crate) struct Stop(watch::Sender<Stage>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(Stage::Serving))
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
        self.0.send_modify(|now| *now = stage.max(*now));
    }

    /// Returns at once, or never if the stop has begun.
    pub(crate) async fn unless_begun(&self) {
        if *self.0.borrow() > Stage::Serving {
            future::pending::<()>().await;
        }
    }

    /// Waits until no run continues.
    pub(crate) async fn interrupted(&self) {
        // No error: the sender lives as long as `self`.
        let interrupted = |stage: &Stage| *stage == Stage::Interrupted;
        let _ = self.0.subscribe().wait_for(interrupted).await;
    }
}
