//! Causal dependencies: which state of a store a function has observed, although the store may
//! still lose it.
//!
//! Functions do not wait for the disk, so a row that a function reads, or a lock that it takes, may
//! not be durable yet. A store that fails to make it durable rolls back to its durable state. The
//! embedded store does so in process, while functions continue. It then assigns the same locks,
//! fencing numbers, zxids and attach numbers again, and a condition on one row cannot tell them
//! apart. So every update names the last point that its function has observed. The store refuses
//! the update if it has lost that point (promise D4). This costs no extra call, because each answer
//! contains its point.
//!
//! Invariants
//! - A dependency belongs to one incarnation of its store. Work that observes the next incarnation
//!   starts again from the state that it finds.
//! - Each store has its own dependency, because points of two stores cannot be compared.

use std::sync::Arc;

use ports::{
    DurabilityPoint, Error, ErrorKind, Incarnation, Item, Key, KeyValue, Result, Update,
    key_value::{Outcome, Page, Scan, Transacted},
};

/// A store, and everything that one piece of work has observed of it.
#[derive(Debug, Clone)]
pub struct TrackedStore {
    store: Arc<dyn KeyValue>,
    observed: DurabilityPoint,
    is_untracked: bool,
}

impl TrackedStore {
    /// `store` for work that has observed nothing yet.
    pub fn new(store: Arc<dyn KeyValue>) -> Self {
        Self {
            store,
            observed: DurabilityPoint::default(),
            is_untracked: false,
        }
    }

    /// `store` for work that begins now.
    pub fn now(store: Arc<dyn KeyValue>) -> Self {
        Self {
            observed: store.point(),
            ..Self::new(store)
        }
    }

    /// The same store for a mutant that updates any state it finds.
    pub(crate) fn untracked(&self) -> Self {
        Self {
            is_untracked: true,
            ..Self::new(self.store.clone())
        }
    }

    /// The store itself. Calls of it are not tracked.
    pub(crate) fn store(&self) -> &dyn KeyValue {
        &*self.store
    }

    /// The incarnation of the store in which the work runs.
    pub fn incarnation(&self) -> Incarnation {
        self.observed.incarnation
    }

    /// The last observed point, which updates name.
    pub fn point(&self) -> DurabilityPoint {
        if self.is_untracked {
            DurabilityPoint::DURABLE
        } else {
            self.observed
        }
    }

    /// Adds an answer of the store.
    ///
    /// Errors: `Lost` if the store has restarted since the work began.
    pub fn observe(&mut self, point: DurabilityPoint) -> Result<()> {
        if self.is_untracked {
            self.observed = point;
            return Ok(());
        }
        let is_first = self.observed == DurabilityPoint::DURABLE;
        if !is_first && point.incarnation != self.observed.incarnation {
            let (begun, now) = (self.observed.incarnation.0, point.incarnation.0);
            let attempted = format!(
                "continue in incarnation {now} of a store with state observed in incarnation {begun}"
            );
            return Err(Error::new(ErrorKind::Lost, attempted));
        }
        self.observed = self.observed.max(point);
        Ok(())
    }

    /// Adds everything that was read of the store up to now.
    ///
    /// Errors: as [`TrackedStore::observe`].
    pub fn observe_now(&mut self) -> Result<()> {
        self.observe(self.store.point())
    }

    /// Waits until everything observed is durable.
    pub(crate) async fn externalize(&self) -> Result<()> {
        self.store.externalize(self.point()).await
    }

    pub(crate) async fn get(&mut self, key: &Key) -> Result<Option<Arc<Item>>> {
        let read = self.store.get(key).await?;
        self.observe(read.point)?;
        Ok(read.value)
    }

    pub(crate) async fn scan(&mut self, scan: &Scan) -> Result<Page> {
        let read = self.store.scan(scan).await?;
        self.observe(read.point)?;
        Ok(read.value)
    }

    /// Makes all updates or none. All depend on everything observed so far, and on the points that
    /// they name themselves: the store refuses all if it has lost the point of one (D4).
    pub(crate) async fn transact(&mut self, mut updates: Vec<Update>) -> Result<Transacted> {
        if let Some(first) = updates.first_mut() {
            first.depends_on = first.depends_on.max(self.point());
        }
        let transacted = self.store.transact(updates).await?;
        let (Transacted::Done { receipt, .. } | Transacted::Conflict { receipt, .. }) = &transacted;
        self.observe(receipt.point)?;
        Ok(transacted)
    }

    /// Makes an update that depends on everything observed so far.
    pub(crate) async fn update(&mut self, update: Update) -> Result<Outcome> {
        let updated = self.store.update(update.depends_on(self.point())).await?;
        self.observe(updated.receipt.point)?;
        Ok(updated.outcome)
    }
}

#[cfg(test)]
mod tests {
    use ports::Position;
    use simulated::World;

    use super::*;

    fn store() -> TrackedStore {
        TrackedStore::new(World::new(1).key_value())
    }

    fn point(incarnation: u64, position: u64) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: Incarnation(incarnation),
            position: Position(position),
        }
    }

    #[test]
    fn a_dependency_is_the_last_point_of_one_incarnation() {
        let mut dependency = store();
        assert_eq!(dependency.point(), DurabilityPoint::DURABLE);
        for seen in [point(2, 7), point(2, 5)] {
            dependency.observe(seen).expect("one start");
        }
        assert_eq!(dependency.point(), point(2, 7));
        assert_eq!(
            dependency
                .observe(point(3, 8))
                .expect_err("another start")
                .kind(),
            ErrorKind::Lost
        );
        assert_eq!(
            dependency.point(),
            point(2, 7),
            "the other incarnation is not observed"
        );
    }

    /// D4.
    #[test]
    fn a_transaction_writes_no_row_if_its_dependency_is_lost() {
        simulated::run(async {
            let world = World::new(1);
            let keys = ["a", "b"].map(|row| Key::new("rows", row.as_bytes()));
            let updates = || keys.clone().map(|key| Update::put(key, Vec::new())).into();
            let mut begun = TrackedStore::new(world.key_value());
            let written = begun.transact(updates()).await;
            assert!(matches!(written, Ok(Transacted::Done { .. })));
            world.fall_back();
            let mut blind = begun.untracked();
            let refused = begun.transact(updates()).await.expect_err("it is lost");
            assert_eq!(refused.kind(), ErrorKind::Lost);
            let mut now = TrackedStore::new(world.key_value());
            for key in &keys {
                assert_eq!(now.get(key).await.expect("no fault is injected"), None);
            }
            let written = blind.transact(updates()).await;
            let is_done = matches!(written, Ok(Transacted::Done { .. }));
            assert!(is_done, "the dependency refuses it, nothing else");
        });
    }

    #[test]
    fn a_store_whose_every_answer_is_durable_is_never_lost() {
        let mut dependency = store();
        dependency
            .observe(DurabilityPoint::DURABLE)
            .expect("durable");
        assert_eq!(dependency.point(), DurabilityPoint::DURABLE);
    }
}
