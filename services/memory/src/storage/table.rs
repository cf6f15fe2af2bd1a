//! Typed rows over the key-value port.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use bytes::Bytes;
use ports::{
    Clock, DurabilityPoint, Entropy, Error, ErrorKind, Item, Key, KeyValue, Receipt, Result,
    Timestamp, Update,
    key_value::{Change, Condition, Name, OperationId, Outcome, Scan, Transacted, Value, Version},
};
use primitives::{Backoff, Mutant, retry_repeatable};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    own::{self, MemberId, Own},
    rows::FORMAT,
};
use crate::{broken::Broken, fragment::SegmentId};

/// The attribute of a row's record.
const RECORD: &str = "r";
/// The rows in one page of a scan.
const PAGE_ROWS: usize = 200;

/// The most rows in a batch of changes. Further ones go into another.
const BATCH_ROWS_MAX: usize = 100;

/// A row as read.
#[derive(Debug, Clone)]
pub(crate) struct Found<T> {
    pub(crate) row: T,
    pub(crate) version: Version,
}

/// The rows of the service, and the time and chance that they need.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) key_value: Arc<dyn KeyValue>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// The rule that tests break.
    pub(crate) mutant: Mutant<Broken>,
    /// This server, if others share the store.
    pub(crate) own: Option<Arc<Own>>,
}

/// A page of rows.
pub(crate) struct Rows<T> {
    /// Sort keys and rows.
    pub(crate) found: Vec<(Bytes, Found<T>)>,
    /// Where the next page starts, if there may be one.
    pub(crate) next: Option<Bytes>,
    pub(crate) point: DurabilityPoint,
}

/// A change of one row.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    update: Update,
}

impl Write {
    /// Puts `row`, if the row is as `before` says.
    pub(crate) fn put<T: Serialize>(key: Key, row: &T, before: Option<Version>) -> Self {
        let attributes = vec![(Name::from(RECORD), Value::Bytes(FORMAT.encode(row, 256)))];
        Self::under(Update::put(key, attributes), before)
    }

    /// Puts `row` whatever was there.
    pub(crate) fn replace<T: Serialize>(key: Key, row: &T) -> Self {
        let attributes = vec![(Name::from(RECORD), Value::Bytes(FORMAT.encode(row, 256)))];
        Self {
            update: Update::put(key, attributes),
        }
    }

    /// Deletes the row, if it is at `before`.
    pub(crate) fn delete(key: Key, before: Version) -> Self {
        Self::under(Update::delete(key), Some(before))
    }

    /// Deletes the row, if it is there.
    pub(crate) fn delete_present(key: Key) -> Self {
        Self {
            update: Update::delete(key).when(Condition::Exists),
        }
    }

    /// Deletes the row, if it is there, and holds anyway.
    pub(crate) fn forget(key: Key) -> Self {
        Self {
            update: Update::delete(key),
        }
    }

    /// Changes nothing, and holds only if the row is there.
    pub(crate) fn check_present(key: Key) -> Self {
        Self {
            update: Update::check(key, Condition::Exists),
        }
    }

    /// Changes nothing, and holds only if the row is at `version`.
    pub(crate) fn check(key: Key, version: Version) -> Self {
        Self {
            update: Update::check(key, Condition::VersionIs(version)),
        }
    }

    fn under(update: Update, before: Option<Version>) -> Self {
        let (condition, known) = match before {
            Some(version) => (Condition::VersionIs(version), version),
            None => (Condition::Absent, Version(0)),
        };
        Self {
            update: Update {
                operation: None,
                ..update.when(condition)
            }
            .as_operation(OperationId(0), known),
        }
    }
}

impl Table {
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// This server's id, if others share the store.
    pub(crate) fn member(&self) -> Option<MemberId> {
        self.own.as_ref().map(|own| own.id())
    }

    /// The condition of each change that adds rows of this server alone: others have not taken it for
    /// gone. None: no other server shares the store.
    pub(crate) fn while_alive(&self) -> Option<Write> {
        let member = self.member()?;
        Some(Write::check_present(own::life(member)))
    }

    /// A number that was never drawn before: the time, then chance.
    pub(crate) fn unique(&self) -> u128 {
        let chance =
            u128::from(self.entropy.next_u64()) << 16 | u128::from(self.entropy.below(1 << 16));
        u128::from(self.now().0) << 80 | chance
    }

    /// No segment that is named from now on has a smaller id, unless the clock is set back.
    pub(crate) fn first_segment(&self) -> SegmentId {
        SegmentId(u128::from(self.now().0) << 80)
    }

    /// The row, and the point that the answer depends on.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        key: &Key,
        what: &'static str,
    ) -> Result<(Option<Found<T>>, DurabilityPoint)> {
        let read = self.retried(|| self.key_value.get(key)).await?;
        let found = read.value.map(|item| decode(&item, what)).transpose()?;
        Ok((found, read.point))
    }

    /// Deletes a row of which only this process knows.
    pub(crate) async fn forget(&self, key: &Key) -> Result<()> {
        let delete = || self.key_value.update(Update::delete(key.clone()));
        self.retried(delete).await.map(drop)
    }

    /// Makes all changes or none. `Some`: done. `None`: a row was not as expected.
    ///
    /// Errors: `OutcomeUnknown` if a row to be deleted is gone after an answer was lost.
    pub(crate) async fn write(&self, writes: Vec<Write>) -> Result<Option<Receipt>> {
        let first = self.unique();
        let updates = || {
            let is_new = self.mutant.breaks(Broken::ForgetsOperations);
            let id = OperationId(if is_new { self.unique() } else { first });
            let updates = writes.iter().map(|write| write.update.clone());
            let updates = updates.map(|update| match update.operation {
                Some(operation) => update.as_operation(id, operation.known),
                None => update,
            });
            updates.collect::<Vec<_>>()
        };
        let attempts = AtomicU32::new(0);
        let attempt = async || {
            attempts.fetch_add(1, Ordering::Relaxed);
            self.try_write(&updates()).await
        };
        let written = self.retried(attempt).await?;
        // A repeat does not recognise that the row was deleted by the first attempt.
        let deletes = |one: &Update| {
            one.change == Change::Delete
                && one.operation.is_none()
                && one.condition == Condition::Exists
        };
        let is_repeat = attempts.load(Ordering::Relaxed) > 1;
        if written.is_none() && is_repeat && updates().iter().any(deletes) {
            return Err(Error::new(ErrorKind::OutcomeUnknown, "change rows"));
        }
        Ok(written)
    }

    async fn try_write(&self, updates: &[Update]) -> Result<Option<Receipt>> {
        if let [update] = updates {
            let updated = self.key_value.update(update.clone()).await?;
            return Ok(match updated.outcome {
                Outcome::Done(_) => Some(updated.receipt),
                Outcome::Conflict(_) => None,
            });
        }
        match self.key_value.transact(updates.to_vec()).await? {
            Transacted::Done { receipt, .. } => Ok(Some(receipt)),
            Transacted::Conflict { .. } => Ok(None),
        }
    }

    /// Makes changes of one partition that have no condition, in batches.
    pub(crate) async fn write_all(&self, writes: &[Write]) -> Result<()> {
        let rows_max = self.key_value.limits().transact_items_max;
        for batch in writes.chunks(rows_max.clamp(1, BATCH_ROWS_MAX)) {
            self.write(batch.to_vec()).await?;
        }
        Ok(())
    }

    /// One page of `scan`.
    pub(crate) async fn scan<T: DeserializeOwned>(
        &self,
        scan: &Scan,
        what: &'static str,
    ) -> Result<Rows<T>> {
        let page = self.retried(|| self.key_value.scan(scan)).await?;
        let decoded = page
            .value
            .items
            .into_iter()
            .map(|(sort, item)| decode(&item, what).map(|found| (sort, found)));
        Ok(Rows {
            found: decoded.collect::<Result<_>>()?,
            next: page.value.next,
            point: page.point,
        })
    }

    /// A page of a partition from `from` on.
    pub(crate) fn page(partition: impl Into<Bytes>, from: Bytes) -> Scan {
        Scan {
            from,
            ..Scan::partition(partition, PAGE_ROWS)
        }
    }

    /// Waits until everything up to `point` is durable.
    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.key_value.externalize(point).await
    }

    async fn retried<T, F: Future<Output = Result<T>>>(
        &self,
        attempt: impl FnMut() -> F,
    ) -> Result<T> {
        retry_repeatable(Backoff::default(), &*self.clock, &*self.entropy, attempt).await
    }
}

fn decode<T: DeserializeOwned>(item: &Item, what: &'static str) -> Result<Found<T>> {
    let bytes = item.bytes(RECORD).cloned().unwrap_or_default();
    Ok(Found {
        row: FORMAT.decode(&bytes, what)?,
        version: item.version,
    })
}
