//! The shard of a far store that this process has open.
//!
//! One process owns a shard at a time. Others wait until the owner releases it or gives no sign of
//! life for one lease. So an owner with active runs renews its lease even while they neither write
//! nor wait. An owner without runs releases the shard, so that the next process has it at once.

use std::{sync::Arc, time::Duration};

use functions::manifest::workflow::Synchrony as Mode;
use synchrony::{Awaited, Stores, Synchrony};
use tokio::sync::watch;
use transactions::Engine;

use crate::{
    Options, Result,
    env::Env,
    storage::{Outbox, Store},
};

/// How long a write waits to share a batch with others: about one short run, whose end then sends
/// all its writes at once.
const LINGER: Duration = Duration::from_millis(10);
/// Lanes of a shard beyond one for each run: each request of a caller takes one.
const QUERY_LANES_MAX: usize = 2_000;
/// How often an owner checks whether it still needs a shard that other processes may want. This is a
/// fraction of the lease, and of the time that a caller elsewhere waits.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) synchrony: Synchrony,
    pub(super) outbox: Arc<Outbox>,
    /// Whether a store was requested since the last check.
    is_used: bool,
}

impl Shard {
    /// `ended_epoch` is the epoch in which this process last had the shard, once that has ended or is
    /// being released.
    pub(super) async fn open(
        stores: Stores,
        (mode, ended_epoch): (Mode, Option<u64>),
        awaited: watch::Sender<Awaited>,
        (engine, env): (Engine, &Arc<Env>),
    ) -> Result<Self> {
        let options = synchrony::Options {
            mode: far_mode(mode),
            linger: LINGER,
            lanes_max: env.options.runs_max + QUERY_LANES_MAX,
            near_is_shared: env.options.among_others,
            ended_epoch,
            ..synchrony::Options::default()
        };
        let parts = (Arc::clone(&env.clock), Arc::clone(&env.entropy));
        let synchrony = Synchrony::open_with_progress(stores, options, parts, awaited).await?;
        let outbox = Outbox::open(synchrony.lane()?, engine, env).await?;
        Ok(Self {
            synchrony,
            outbox,
            is_used: true,
        })
    }

    /// A store for one run or one request, with a lane of its own.
    pub(super) fn store(&mut self, options: &Options) -> Result<Store> {
        self.is_used = true;
        let (lane, outbox) = (self.synchrony.lane()?, Arc::clone(&self.outbox));
        Ok(Store::of_shard(Arc::new(lane), outbox, options))
    }

    /// Whether the shard has no work, and had none since the last call.
    pub(super) fn is_idle(&mut self) -> bool {
        let was_used = std::mem::take(&mut self.is_used);
        let health = self.synchrony.health();
        // The next owner would send again what a permanent error has stopped. Only a restart of the
        // server may cause that, so we keep such a shard.
        let is_done =
            health.pending_records == 0 && health.poisoned_lanes == 0 && health.ended.is_none();
        !was_used && is_done && self.outbox.is_empty() && self.synchrony.lanes_held() == 1
    }

    /// Drains and releases the shard. If that fails, the lease expires by itself.
    pub(super) async fn release(self, place: &str) {
        self.outbox.stop();
        let drained = self.synchrony.drain().await;
        let is_pending = self.synchrony.health().pending_records > 0;
        let released = match drained {
            Ok(()) => self.synchrony.release().await,
            failed => failed,
        };
        match released {
            Err(error) if is_pending => {
                tracing::warn!(
                    far = %place, %error,
                    "the far store lacks some writes; the next start sends them"
                );
            }
            Err(error) => tracing::info!(far = %place, %error, "a far store was not released"),
            Ok(()) => {}
        }
    }
}

fn far_mode(mode: Mode) -> synchrony::Mode {
    match mode {
        Mode::External => synchrony::Mode::External,
        Mode::Serial => synchrony::Mode::Serial,
        Mode::Sync => synchrony::Mode::Sync,
    }
}
