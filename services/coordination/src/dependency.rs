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
    DurabilityPoint, Error, ErrorKind, Externalize, Incarnation, Item, Key, KeyValue, Result,
    Update,
    key_value::{Outcome, Page, Scan},
};

/// Everything that one piece of work has observed of one store.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dependency {
    point: DurabilityPoint,
    is_untracked: bool,
}

impl Dependency {
    /// The dependency of work that begins now on `store`. The default dependency has observed
    /// nothing.
    pub fn now<S: Externalize + ?Sized>(store: &S) -> Self {
        Self {
            point: store.point(),
            ..Self::default()
        }
    }

    /// The dependency of a mutant that updates any state it finds.
    pub(crate) fn untracked() -> Self {
        Self {
            is_untracked: true,
            ..Self::default()
        }
    }

    /// The incarnation of the store in which the work runs.
    pub fn incarnation(&self) -> Incarnation {
        self.point.incarnation
    }

    /// The last observed point, which updates name.
    pub fn point(&self) -> DurabilityPoint {
        if self.is_untracked {
            DurabilityPoint::DURABLE
        } else {
            self.point
        }
    }

    /// Adds an answer of the store.
    ///
    /// Errors: `Lost` if the store has restarted since the work began.
    pub fn observe(&mut self, point: DurabilityPoint) -> Result<()> {
        let is_first = self.point == DurabilityPoint::DURABLE || self.is_untracked;
        if !is_first && point.incarnation != self.point.incarnation {
            let (begun, now) = (self.point.incarnation.0, point.incarnation.0);
            return Err(Error::new(
                ErrorKind::Lost,
                format!(
                    "continue in incarnation {now} of a store with state observed in incarnation {begun}"
                ),
            ));
        }
        self.point = if self.is_untracked {
            point
        } else {
            self.point.max(point)
        };
        Ok(())
    }

    /// Adds everything that was read of `store` up to now.
    ///
    /// Errors: as [`Dependency::observe`].
    pub fn observe_store<S: Externalize + ?Sized>(&mut self, store: &S) -> Result<()> {
        self.observe(store.point())
    }

    /// Reads the item of `key` and observes the answer.
    pub(crate) async fn get(
        &mut self,
        store: &dyn KeyValue,
        key: &Key,
    ) -> Result<Option<Arc<Item>>> {
        let read = store.get(key).await?;
        self.observe(read.point)?;
        Ok(read.value)
    }

    /// Reads a page and observes the answer.
    pub(crate) async fn scan(&mut self, store: &dyn KeyValue, scan: &Scan) -> Result<Page> {
        let read = store.scan(scan).await?;
        self.observe(read.point)?;
        Ok(read.value)
    }

    /// Makes an update that depends on everything observed so far, and observes the answer.
    pub(crate) async fn update(&mut self, store: &dyn KeyValue, update: Update) -> Result<Outcome> {
        let updated = store.update(update.depends_on(self.point())).await?;
        self.observe(updated.receipt.point)?;
        Ok(updated.outcome)
    }
}

#[cfg(test)]
mod tests {
    use ports::Position;

    use super::*;

    fn point(incarnation: u64, position: u64) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: Incarnation(incarnation),
            position: Position(position),
        }
    }

    #[test]
    fn a_dependency_is_the_last_point_of_one_incarnation() {
        let mut dependency = Dependency::default();
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

    #[test]
    fn a_store_whose_every_answer_is_durable_is_never_lost() {
        let mut dependency = Dependency::default();
        dependency
            .observe(DurabilityPoint::DURABLE)
            .expect("durable");
        assert_eq!(dependency.point(), DurabilityPoint::DURABLE);
    }
}
