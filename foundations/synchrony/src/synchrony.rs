//! The handle to a shard: opened, drained and released.

use std::{sync::Arc, time::Duration};

use ports::{Clock, Entropy, Error, ErrorKind, Key, Result, Update, key_value::Outcome};
use tokio::sync::watch;

use crate::{
    engine::{Engine, Stores},
    health::{Ended, Health},
    lane::Lane,
    layout::OWNER,
    opening::{Awaited, Opening},
    options::Options,
    owner::{End, FarOwner},
};

const PAUSE: Duration = Duration::from_millis(100);

/// The owner of a shard. To drop it is like the death of its process: nothing is drained, and the
/// next [`Synchrony::open`] finds the writes that were ordered near.
#[derive(Debug)]
pub struct Synchrony(Arc<Engine>);

impl Synchrony {
    /// Takes the shard, and all writes that an earlier start has left unsent. If another process may
    /// own the shard, this waits until that process releases it or its lease has expired.
    ///
    /// Errors: `Invalid` if the stores cannot be paired; those of the stores that no retry can help.
    pub async fn open(
        stores: Stores,
        options: Options,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        let awaited = watch::Sender::default();
        Self::open_with_progress(stores, options, (clock, entropy), awaited).await
    }

    /// The same; `awaited` shows what the opening waits for. The channel serves this opening alone,
    /// and closes when it is over.
    pub async fn open_with_progress(
        stores: Stores,
        options: Options,
        (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>),
        awaited: watch::Sender<Awaited>,
    ) -> Result<Self> {
        let opening = Opening {
            stores,
            clock,
            entropy,
            options,
            awaited,
        };
        let engine = Arc::new(opening.open().await?);
        engine.spawn_part(Arc::clone(&engine).send());
        engine.spawn_part(Arc::clone(&engine).clean_and_evict());
        engine.cleaning.notify_one();
        Ok(Self(engine))
    }

    /// A lane with an order of its own, for one run of a workflow. Its writes stay in order far, and
    /// wait only for what the lane has read. Dropping the last handle to the lane releases it.
    ///
    /// Errors: `Unavailable` while [`Options::lanes_max`] lanes are held or not drained.
    pub fn lane(&self) -> Result<Lane> {
        Lane::open(&self.0)
    }

    /// Returns the cause once this instance has ended. The end is noticed by the next call to a
    /// store.
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + use<> {
        let engine = Arc::clone(&self.0);
        async move {
            engine.ended().await;
            engine.state().ended.expect("it has ended")
        }
    }

    /// The present health.
    pub fn health(&self) -> Health {
        let now = self.0.clock.monotonic();
        let state = self.0.state();
        Health {
            answered: state.lease.proven.map(|proven| now.since(proven)),
            failing: state.failing.clone(),
            ended: state.ended.map(|ended| ended.error().kind()),
            ..state.stream.health(now)
        }
    }

    /// How many lanes are held.
    pub fn lanes_held(&self) -> usize {
        self.0.state().stream.lanes_held()
    }

    /// About how many bytes rows and payloads take of the near store.
    pub async fn near_bytes(&self) -> usize {
        self.0.order.lock().await.resident_bytes
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// Refuses new writes, and returns when all earlier ones are durable far.
    ///
    /// Errors: that of the first poisoned lane. The other lanes are drained all the same while the
    /// caller repeats the call.
    pub async fn drain(&self) -> Result<()> {
        self.0.state().is_draining = true;
        self.0.changed.notify_waiters();
        // Waits for the present writer.
        drop(self.0.order.lock().await);
        let everything = self.0.state().stream.everything();
        self.0.wait_until_far(&everything).await
    }

    /// Drains and releases the shard, so that the next owner need not wait for the lease.
    pub async fn release(self) -> Result<()> {
        self.drain().await?;
        let engine = &self.0;
        let key = Key::new(&engine.stores.shard, OWNER);
        let far = &engine.stores.far;
        let position = engine.order.lock().await.position;
        // The next owner may begin as soon as the row is stored, so our lease proves nothing more.
        engine.end(Ended::Closed);
        loop {
            let row = FarOwner::decode(far.get(&key).await?.value.as_deref())?;
            if row.epoch != engine.epoch || row.claim != engine.claim {
                let what = "release a shard that is another's";
                return Err(Error::new(ErrorKind::Lost, what));
            }
            let (epoch, mut ends) = (engine.epoch, engine.ends.clone());
            ends.push(End { epoch, position });
            let condition = row.unchanged();
            let released = FarOwner {
                is_released: true,
                ends,
                ..row
            };
            let update = Update::of(key.clone(), released.change()).when(condition);
            match far.update(update).await {
                Ok(updated) if matches!(updated.outcome, Outcome::Done(_)) => {
                    return far.externalize(updated.receipt.point).await;
                }
                Ok(_) => {}
                Err(error) if error.is_retryable() => engine.clock.sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Synchrony {
    fn drop(&mut self) {
        self.0.end(Ended::Closed);
    }
}
