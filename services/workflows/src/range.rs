//! A range of a far store that is open here, and what other processes on the same near store see of that.
//!
//! One of them has a range at a time, and the others wait until it is given back or its owner is silent for a lease. So who has runs
//! under way there says that it is alive, also while they neither write nor wait; and who has nothing there gives the range back, so
//! that whoever is asked next has it at once.

use std::{sync::Arc, time::Duration};

use functions::manifest::workflow::Synchrony as Said;
use ports::{Clock, Entropy};
use synchrony::{Awaited, Ended, Health, Lane, Mode, Stores, Synchrony};
use tokio::sync::watch;
use transactions::Engine;

use crate::{Options, Result, outbox::Outbox, store::Store};

/// How long a write waits for others to travel with it: about what a short run takes, whose end then sends all of it at once.
const LINGER: Duration = Duration::from_millis(10);
/// Lanes of a range beside those of runs: what callers ask takes one each.
const LOOKS_MAX: usize = 2_000;
/// How often a range that others may want is looked after: a fraction of its lease, and of what a caller elsewhere waits.
pub(crate) const LOOK_AFTER: Duration = Duration::from_secs(1);

/// What it takes to open one.
#[derive(Debug)]
pub(crate) struct Opening<'range> {
    pub(crate) stores: Stores,
    pub(crate) said: Said,
    /// The epoch of the last one that was open here, if that has ended or is being given back.
    pub(crate) ended_epoch: Option<u64>,
    pub(crate) tells: watch::Sender<Awaited>,
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) options: &'range Options,
}

#[derive(Debug)]
pub(crate) struct Range {
    synchrony: Synchrony,
    outbox: Arc<Outbox>,
    said: Said,
    /// A store was asked for since it was looked after last.
    is_used: bool,
}

impl Range {
    pub(crate) async fn open(opening: Opening<'_>) -> Result<Self> {
        let Opening {
            stores,
            said,
            ended_epoch,
            tells,
            engine,
            clock,
            entropy,
            options,
        } = opening;
        let terms = synchrony::Options {
            mode: mode(said),
            linger: LINGER,
            lanes_max: options.runs_max + LOOKS_MAX,
            near_is_shared: options.among_others,
            ended_epoch,
            ..synchrony::Options::default()
        };
        let (its_clock, its_entropy) = (Arc::clone(&clock), Arc::clone(&entropy));
        let synchrony =
            Synchrony::open_telling(stores, terms, (its_clock, its_entropy), tells).await?;
        let outbox = Outbox::open(synchrony.lane()?, engine, (clock, entropy), options).await?;
        Ok(Self {
            synchrony,
            outbox,
            said,
            is_used: true,
        })
    }

    /// A place for one run, or one look, with a lane of its own.
    pub(crate) fn store(&mut self, options: &Options) -> Result<Store> {
        self.is_used = true;
        Ok(Store::of_range(
            Arc::new(self.synchrony.lane()?),
            Arc::clone(&self.outbox),
            options,
        ))
    }

    /// That of its outbox.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        self.outbox.lane()
    }

    pub(crate) fn health(&self) -> Health {
        self.synchrony.health()
    }

    /// Returns once it serves nobody any more, with why.
    pub(crate) fn ended(&self) -> impl Future<Output = Ended> + Send + use<> {
        self.synchrony.ended()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.synchrony.epoch()
    }

    pub(crate) fn says(&self) -> Said {
        self.said
    }

    /// From here on its writes return as that says.
    pub(crate) fn say(&mut self, said: Said) {
        self.said = said;
        self.synchrony.set_mode(mode(said));
    }

    /// Whether nothing is under way here, and nothing was since this was asked last.
    pub(crate) fn is_idle(&mut self) -> bool {
        let was_used = std::mem::take(&mut self.is_used);
        let health = self.synchrony.health();
        // What a permanent error has stopped is sent again by who opens the range next: that is for whoever starts a server to ask for.
        let is_done =
            health.pending_records == 0 && health.poisoned_lanes == 0 && health.ended.is_none();
        !was_used && is_done && self.outbox.is_empty() && self.synchrony.lanes_held() == 1
    }

    /// Sends nothing more: it serves nobody any more.
    pub(crate) fn stop(&self) {
        self.outbox.stop();
    }

    /// Gives it back, drained, so that whoever is next does not wait. One that cannot be is left to its lease.
    pub(crate) async fn give_back(self, place: &str) {
        self.outbox.stop();
        let drained = self.synchrony.drain().await;
        let waits = self.synchrony.health().pending_records > 0;
        let released = match drained {
            Ok(()) => self.synchrony.release().await,
            failed => failed,
        };
        match released {
            Err(error) if waits => {
                tracing::warn!(far = %place, %error, "what is not far yet is sent by the next start");
            }
            // Its lease runs out by itself.
            Err(error) => tracing::info!(far = %place, %error, "a far store was not given back"),
            Ok(()) => {}
        }
    }
}

fn mode(said: Said) -> Mode {
    match said {
        Said::External => Mode::External,
        Said::Serial => Mode::Serial,
        Said::Sync => Mode::Sync,
    }
}
