//! The window of function memory moves on with time. Groups that are no longer used are released.
//! Fragments that were read again move to the newest groups.
//!
//! While there is no group, there is no timer.

use std::{sync::Arc, time::Duration};

use ports::{Clock, Entropy};

use crate::{groups::Groups, residency::Residency};

/// Moves the window on.
#[derive(Debug, Clone)]
pub(crate) struct Sliding {
    pub(crate) groups: Arc<Groups>,
    pub(crate) residency: Arc<Residency>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// The time between two rounds of compaction, of which a GC interval has several.
    pub(crate) round: Duration,
}

impl Sliding {
    /// Runs until the service ends.
    pub(crate) async fn run(self) {
        loop {
            self.groups.wait_until_used().await;
            self.clock.sleep(self.round).await;
            let (released, moves) = self.groups.slide(&*self.entropy);
            self.residency.forget_groups(&released);
            if !released.is_empty() {
                tracing::info!(
                    groups = released.len(),
                    "function memory that was not used is released"
                );
            }
            for one in moves {
                self.residency.move_marked(one.chunk).await;
            }
        }
    }
}
