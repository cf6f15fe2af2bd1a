//! The stop of a service, in two stages.
//!
//! A server that stops waits for functions at work. Events are not taken meanwhile, and runs of
//! workflows pause between their steps, or they would keep the server waiting. Later everything
//! ends where it is, and callers learn why.
//!
//! A run whose last step has just ended must still store its end. Otherwise the caller learns it only
//! after the next start. So the server waits for the runs that advance.

use std::future;

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Serving,
    /// What is at work continues, with the steps that it calls. Nothing else begins.
    Stopping,
    /// Nothing continues.
    Interrupted,
}

/// How far a service is on its way to its end, and the work that it waits for.
#[derive(Debug, Default)]
pub struct Stop {
    stage: watch::Sender<Stage>,
    /// The number of invocations or runs that advance.
    advancing: watch::Sender<usize>,
}

/// Whether one invocation or run advances. Dropped, it no longer does.
#[derive(Debug)]
pub struct Advance<'of> {
    stop: &'of Stop,
    is_counted: bool,
}

impl Advance<'_> {
    /// Lets the stop wait for it, or no longer.
    pub fn set(&mut self, advances: bool) {
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
    /// Begins the stop.
    pub fn begin(&self) {
        self.reach(Stage::Stopping);
    }

    /// Ends all work.
    pub fn interrupt(&self) {
        self.reach(Stage::Interrupted);
    }

    fn reach(&self, stage: Stage) {
        self.stage.send_modify(|now| *now = stage.max(*now));
    }

    /// One more invocation or run, which advances from now on.
    pub fn advance(&self) -> Advance<'_> {
        let mut advance = Advance {
            stop: self,
            is_counted: false,
        };
        advance.set(true);
        advance
    }

    /// Waits until nothing advances.
    pub async fn idle(&self) {
        // No error: the sender lives as long as `self`.
        let _ = self
            .advancing
            .subscribe()
            .wait_for(|count| *count == 0)
            .await;
    }

    /// Returns at once, or never if the stop has begun.
    pub async fn unless_begun(&self) {
        if *self.stage.borrow() > Stage::Serving {
            future::pending::<()>().await;
        }
    }

    /// Waits until nothing continues.
    pub async fn interrupted(&self) {
        // No error: the sender lives as long as `self`.
        let interrupted = |stage: &Stage| *stage == Stage::Interrupted;
        let _ = self.stage.subscribe().wait_for(interrupted).await;
    }
}
