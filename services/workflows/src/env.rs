//! The time, randomness and settings that every part of the service uses, and how it waits between
//! retries.

use std::{sync::Arc, time::Duration};

use functions::stop::Stop;
use ports::{Clock, Entropy};
use primitives::{Backoff, Delays};

use crate::{Broken, Options};

/// The waits between retries of a call to a store. There is no last attempt.
pub(crate) const RETRY: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(2),
    attempts_max: u32::MAX,
};

#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) options: Options,
    pub(crate) stop: Stop,
}

impl Env {
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().0
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.options.mutant.breaks(rule)
    }

    pub(crate) async fn pause(&self, delays: &mut Delays) {
        let delay = delays.next_delay(&*self.entropy).unwrap_or(RETRY.longest);
        self.clock.sleep(delay).await;
    }
}
