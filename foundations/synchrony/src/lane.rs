//! A lane: the port as one workflow's run sees it.

use std::sync::Arc;

use async_trait::async_trait;
use ports::{
    DurabilityPoint, Error, Externalize, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{KeyValueLimits, Outcome, Page, Read, Scan, Transacted, Updated},
};

use crate::{
    engine::{Decision, Engine},
    layout::LaneId,
};

/// A [`KeyValue`] whose writes become far in their order, and after all that was read here.
///
/// A point from this lane covers all that the lane knows. Any lane that externalizes it waits for
/// all writes of this lane, and for its reads as long as a handle to it is held. Code that
/// continues in another lane with values read here, such as a called function, calls
/// [`Lane::join`].
#[derive(Debug)]
pub struct Lane {
    engine: Arc<Engine>,
    id: LaneId,
}

impl Lane {
    pub(crate) fn open(engine: &Arc<Engine>) -> Result<Self> {
        engine.check_open()?;
        let id = engine.state().stream.open_lane()?;
        let engine = Arc::clone(engine);
        Ok(Self { engine, id })
    }

    /// Later writes here follow all that `other` has written and read, and barriers here wait for
    /// it.
    ///
    /// Errors: `Invalid` if it is a lane of another shard or start.
    pub fn join(&self, other: &Lane) -> Result<()> {
        if !Arc::ptr_eq(&self.engine, &other.engine) {
            return Err(Error::invalid("join lanes of different shards"));
        }
        self.engine.state().stream.join(self.id, other.id);
        Ok(())
    }

    /// Another lane of the same shard, which has read nothing that this one has.
    ///
    /// Errors: as those of [`Synchrony::lane`](crate::Synchrony::lane).
    pub fn another(&self) -> Result<Self> {
        Self::open(&self.engine)
    }

    /// Gives a sign of life for half a lease at least. This is for an owner with work that neither
    /// writes nor waits, which a start elsewhere would otherwise take for dead. Makes one far call
    /// per half a lease; after a transient error it is not repeated.
    ///
    /// Errors: `Lost` if another process owns the shard now.
    pub async fn renew_lease(&self) -> Result<()> {
        self.engine.renew_early().await
    }

    /// Errors: `Lost` if a dependency of an update is lost (D4).
    async fn write(&self, updates: Vec<Update>) -> Result<(Decision, Receipt)> {
        for update in &updates {
            if let Err(error) = self.engine.places_of(update.depends_on) {
                let what = format!("update {:?}, which rests on what is lost", update.key);
                return Err(Error::new(error.kind(), what));
            }
        }
        let held = (self.id, self.clone());
        let (decision, point) = self.engine.write(held, updates).await?;
        Ok((decision, Receipt { point }))
    }
}

impl Clone for Lane {
    fn clone(&self) -> Self {
        self.engine.state().stream.hold(self.id);
        Self {
            engine: Arc::clone(&self.engine),
            id: self.id,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.engine.state().stream.let_go(self.id);
    }
}

#[async_trait]
impl Externalize for Lane {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.engine.barrier(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.engine.point(self.id)
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.engine.is_far_durable(point)
    }
}

#[async_trait]
impl KeyValue for Lane {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.engine.read(self.id, key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.engine.scan(self.id, scan).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        let (decision, receipt) = self.write(vec![update]).await?;
        let outcome = match decision {
            Ok(mut items) => Outcome::Done(items.pop().flatten()),
            Err((_, item)) => Outcome::Conflict(item),
        };
        Ok(Updated { outcome, receipt })
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let (decision, receipt) = self.write(updates).await?;
        Ok(match decision {
            Ok(items) => Transacted::Done { items, receipt },
            Err((index, item)) => Transacted::Conflict {
                index,
                item,
                receipt,
            },
        })
    }

    fn limits(&self) -> &KeyValueLimits {
        &self.engine.limits
    }

    fn has_room(&self) -> bool {
        self.engine.stores.near.has_room()
    }
}
