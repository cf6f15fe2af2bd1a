//! The store as one node sees it: how calls are repeated, and what their answers imply. Every
//! conditional write is a function of [`decisions`] or [`versions`]; [`chunks`] holds values too
//! long for an item.
//!
//! Invariants
//! - Every write can be repeated, so a lost answer is resolved by asking again. No operation ids
//!   are needed.
//! - An answer from a later incarnation of the store than the node began on ends the node: data
//!   that were not durable are gone, with everything that depends on them. [`Store::fence`] fences
//!   the node and wakes the task that starts the next one.

mod chunks;
mod decisions;
mod versions;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Clock, Condition, DurabilityPoint, Entropy, ErrorKind, Incarnation, Item, Key as ItemKey,
    Position, Update,
    key_value::{Name, Outcome, Read, Scan, SharedKeyValue, Value},
};
use primitives::{Appended, Backoff, Writer, retry, retry_repeatable};
use tokio::sync::Notify;

use crate::{
    Error, Result,
    model::PackId,
    storage::{
        layout::{self, Buckets},
        records::RECORD_VERSION,
    },
};

pub(crate) use self::{
    decisions::refused,
    decisions::{Decided, Decision, State},
    versions::VersionItem,
};

/// For reads that a caller waits for.
const READ_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(5),
    longest: Duration::from_millis(200),
    attempts_max: 6,
};

/// For writes that must complete: repeated as long as the node lives.
const WRITE_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(5),
    longest: Duration::from_secs(1),
    attempts_max: u32::MAX,
};

/// The store as one node sees it.
#[derive(Debug)]
pub(crate) struct Store {
    key_value: SharedKeyValue,
    buckets: Buckets,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    incarnation: Incarnation,
    /// The last position seen in it.
    reached: AtomicU64,
    fenced: AtomicBool,
    /// Woken when the node is fenced.
    on_fence: Arc<Notify>,
    /// The bytes that died in each pack since the last query.
    freed: Mutex<BTreeMap<PackId, u64>>,
}

/// Held while a slot of a log is written. If its writer is dropped meanwhile, the slot's outcome is
/// unknown here, and the next writer could take its answer for its own. The node then restarts and
/// reads the store.
#[derive(Debug)]
#[must_use]
pub(crate) struct Writing<'a>(&'a Store);

impl Writing<'_> {
    pub(crate) fn has_ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fence();
    }
}

impl Store {
    pub(crate) fn new(
        key_value: SharedKeyValue,
        buckets: Buckets,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        on_fence: Arc<Notify>,
    ) -> Self {
        let DurabilityPoint {
            incarnation,
            position,
        } = key_value.point();
        let (fenced, reached) = (AtomicBool::new(false), AtomicU64::new(position.0));
        let freed = Mutex::default();
        Self {
            key_value,
            buckets,
            clock,
            entropy,
            incarnation,
            reached,
            fenced,
            on_fence,
            freed,
        }
    }

    pub(crate) fn key_value(&self) -> &SharedKeyValue {
        &self.key_value
    }

    /// The buckets of versions and decisions.
    pub(crate) fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// The incarnation of the store that the node began on.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Fences the node: it cannot go on, and another must replace it.
    pub(crate) fn fence(&self) {
        if !self.fenced.swap(true, Ordering::SeqCst) {
            self.on_fence.notify_one();
        }
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// Errors: `Unavailable` once the node is fenced.
    pub(crate) fn check_fence(&self) -> Result<()> {
        if self.is_fenced() {
            return Err(Error::unavailable("the node restarts"));
        }
        Ok(())
    }

    /// Checks, without a call or a wait, that the store is still the one the node began on.
    pub(crate) fn check_incarnation(&self) -> Result<()> {
        self.seen(self.key_value.point()).map(drop)
    }

    /// Notes that an answer depends on `point`.
    pub(crate) fn seen(&self, point: DurabilityPoint) -> Result<DurabilityPoint> {
        if point.incarnation > self.incarnation {
            self.fence();
        } else if point.incarnation == self.incarnation {
            self.reached.fetch_max(point.position.0, Ordering::SeqCst);
        }
        self.check_fence().map(|()| point)
    }

    /// Waits until `point` is durable.
    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let attempt = || self.key_value.externalize(point);
        match retry(READ_AGAIN, &*self.clock, &*self.entropy, attempt).await {
            Ok(()) => Ok(()),
            Err(error) => {
                if error.kind() == ErrorKind::Lost {
                    self.fence();
                }
                Err(error.into())
            }
        }
    }

    /// Notes that `bytes` of a pack are dead.
    pub(crate) fn free(&self, pack: PackId, bytes: u64) {
        *self.freed.lock().entry(pack).or_default() += bytes;
    }

    /// Takes the bytes that died since the last call.
    pub(crate) fn take_freed(&self) -> BTreeMap<PackId, u64> {
        std::mem::take(&mut *self.freed.lock())
    }

    /// Forgets the dead bytes of a pack that is gone.
    pub(crate) fn forget_freed(&self, pack: PackId) {
        self.freed.lock().remove(&pack);
    }

    pub(crate) fn has_freed(&self) -> bool {
        !self.freed.lock().is_empty()
    }

    /// Checks that this build knows the layout of the store, and records it in a new store.
    pub(crate) async fn check_format(&self) -> Result<()> {
        let (version, buckets) = (i64::from(RECORD_VERSION), i64::from(self.buckets.count()));
        let attributes = vec![
            (Name::from("version"), Value::Integer(version)),
            (Name::from("buckets"), Value::Integer(buckets)),
        ];
        let update = Update::put(layout::format(), attributes).when(Condition::Absent);
        let (outcome, _) = self.update(update).await?;
        let Outcome::Conflict(Some(item)) = outcome else {
            return Ok(());
        };
        let found = (item.integer("version"), item.integer("buckets"));
        if found != (Some(version), Some(buckets)) {
            let (version, buckets) = (found.0.unwrap_or_default(), found.1.unwrap_or_default());
            let why =
                format!("the store has transactions of format {version} with {buckets} buckets");
            return Err(Error::Corrupt(why.into()));
        }
        Ok(())
    }

    // ---- calls

    pub(crate) async fn get(&self, key: &ItemKey) -> Result<Read<Option<Arc<Item>>>> {
        let get = || self.key_value.get(key);
        let read = retry(READ_AGAIN, &*self.clock, &*self.entropy, get).await?;
        self.seen(read.point)?;
        Ok(read)
    }

    pub(crate) async fn scan(&self, scan: &Scan) -> Result<Read<ports::key_value::Page>> {
        let read = || self.key_value.scan(scan);
        let read = retry(READ_AGAIN, &*self.clock, &*self.entropy, read).await?;
        self.seen(read.point)?;
        Ok(read)
    }

    /// All items of `scan`, page by page, and the point that they depend on.
    pub(crate) async fn scan_all(
        &self,
        mut scan: Scan,
    ) -> Result<(Vec<(Bytes, Arc<Item>)>, DurabilityPoint)> {
        let mut items = Vec::new();
        loop {
            let page = self.scan(&scan).await?;
            items.extend(page.value.items);
            match page.value.next {
                Some(next) => scan.from = next,
                None => return Ok((items, page.point)),
            }
        }
    }

    /// Changes an item, repeating the call as often as needed; the change must be idempotent.
    /// Errors: `NoRoom` and `Corrupt`: nothing changed. `Unavailable` once the node cannot go on:
    /// it may have changed.
    pub(crate) async fn update(&self, update: Update) -> Result<(Outcome, DurabilityPoint)> {
        self.repeat(&update, |kind| kind != ErrorKind::NoRoom).await
    }

    /// As [`Store::update`], for changes that free space, or must not fail for lack of it.
    pub(crate) async fn finish(&self, update: &Update) -> Result<(Outcome, DurabilityPoint)> {
        self.repeat(update, |_| true).await
    }

    async fn repeat(
        &self,
        update: &Update,
        may_repeat: impl Fn(ErrorKind) -> bool,
    ) -> Result<(Outcome, DurabilityPoint)> {
        let mut delays = WRITE_AGAIN.delays();
        // An earlier try may still be executed after a later one was refused. Then only an answer
        // that shows its outcome ends this.
        let mut is_uncertain = false;
        loop {
            self.check_fence()?;
            match self
                .key_value
                .update(update.clone().depends_on(self.basis()))
                .await
            {
                Ok(updated) => {
                    let point = self.seen(updated.receipt.point)?;
                    return Ok((updated.outcome, point));
                }
                Err(error)
                    if error.is_retryable() && (is_uncertain || may_repeat(error.kind())) =>
                {
                    is_uncertain |= error.kind() == ErrorKind::OutcomeUnknown;
                    self.pause(&mut delays).await;
                }
                Err(error) if error.kind() == ErrorKind::Lost || is_uncertain => {
                    self.fence();
                    self.check_fence()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The causal dependency of the node's changes: everything that it has seen of the store. A
    /// change under way while the store is reset must not arrive there, or a row would be committed
    /// whose data are gone.
    pub(crate) fn basis(&self) -> DurabilityPoint {
        let position = Position(self.reached.load(Ordering::SeqCst));
        DurabilityPoint {
            incarnation: self.incarnation,
            position,
        }
    }

    /// Tries an idempotent operation a few times.
    pub(crate) async fn again<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = ports::Result<T>>,
    {
        Ok(retry_repeatable(READ_AGAIN, &*self.clock, &*self.entropy, attempt).await?)
    }

    /// Marks a slot as being written, until [`Writing::has_ended`].
    pub(crate) fn writing(&self) -> Writing<'_> {
        Writing(self)
    }

    /// Appends to a log, repeating the call as often as needed. Errors: those of [`Store::update`].
    /// Where other tasks use the same writer, the caller holds [`Store::writing`].
    pub(crate) async fn append(
        &self,
        writer: &mut Writer,
        payload: Bytes,
    ) -> Result<(u64, DurabilityPoint)> {
        let mut delays = Self::delays();
        loop {
            self.check_fence()?;
            // First resolves what a lost answer left: appended again, it would be there twice. Its
            // slot is certain, so only that answer resolves it, even for lack of space.
            let (appended, is_certain) = match writer.settle().await {
                Ok(None) => (writer.append(payload.clone()).await, true),
                Ok(Some(settled)) => (Ok(settled), true),
                Err(error) => (Err(error), false),
            };
            match appended {
                Ok(Appended::At(slot, point)) => return Ok((slot.0, self.seen(point)?)),
                Ok(Appended::Fenced) => self.fence(),
                Err(error) if error.kind() == ErrorKind::Lost => self.fence(),
                Err(error) if !is_certain && !error.is_retryable() => self.fence(),
                Err(error) if is_certain && error.kind() == ErrorKind::NoRoom => {
                    return Err(Error::NoRoom);
                }
                Err(error) if error.is_retryable() => self.pause(&mut delays).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Appends to a log and makes `changes` in one step, which depends on all that the node has
    /// seen. `None`: nothing was done, and a plain append tells the reason. Errors:
    /// `OutcomeUnknown`, which a plain append of the same resolves.
    pub(crate) async fn append_with(
        &self,
        writer: &mut Writer,
        payload: Bytes,
        changes: Vec<Update>,
    ) -> Result<Option<(u64, DurabilityPoint)>> {
        self.check_fence()?;
        let basis = self.basis();
        let changes = changes
            .into_iter()
            .map(|change| change.depends_on(basis))
            .collect();
        match writer.append_with(payload, changes).await {
            // The step changed the store even if the node was fenced meanwhile.
            Ok(Some((slot, point))) => {
                let point = self.seen(point).map_err(|_| Error::OutcomeUnknown)?;
                Ok(Some((slot.0, point)))
            }
            Ok(None) => Ok(None),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => Err(Error::OutcomeUnknown),
            Err(error) => {
                tracing::debug!(%error, "a group of commits continues step by step");
                Ok(None)
            }
        }
    }

    /// Breaks a rule, for tests: makes `changes` in one step without a slot.
    pub(crate) async fn transact(&self, changes: Vec<Update>) -> Result<()> {
        self.again(|| self.key_value.transact(changes.clone()))
            .await
            .map(drop)
    }

    /// As [`Store::append`], for a slot that decides about earlier writes of the node. It depends
    /// on all of them, because a store that was reset may have lost them but not the earlier slots.
    pub(crate) async fn append_resting(
        &self,
        writer: &mut Writer,
        payload: Bytes,
    ) -> Result<(u64, DurabilityPoint)> {
        if let Err(error) = writer.depend_on(self.basis()).await {
            if error.kind() == ErrorKind::Lost {
                self.fence();
                self.check_fence()?;
            }
            return Err(error.into());
        }
        self.append(writer, payload).await
    }

    /// Waits before something is tried again.
    pub(crate) async fn pause(&self, delays: &mut primitives::Delays) {
        let delay = delays
            .next_delay(&*self.entropy)
            .unwrap_or(WRITE_AGAIN.longest);
        self.clock.sleep(delay).await;
    }

    /// The delays between tries of an operation that must complete.
    pub(crate) fn delays() -> primitives::Delays {
        WRITE_AGAIN.delays()
    }
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt(format!("decode {what}").into())
}
