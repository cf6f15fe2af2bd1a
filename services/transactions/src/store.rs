//! Every conditional write: version items, decision rows, write sets; and what the store's answers say of the store.
//!
//! Invariants
//! - A decision row is decided by one conditional write, and never changes its mind (rule T-2): every transition of
//!   `docs/design/0003-transactions.md`, section 4.2, is one function here.
//! - Every write can be repeated, so an answer that was lost is asked for again. No operation ids are needed.
//! - An answer of a later start of the store than the node began on ends the node: what was not durable is gone, and
//!   with it anything that rests on it. [`Store::fall`] says so to whoever starts the next one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use ports::{
    Clock, Condition, DurabilityPoint, Entropy, ErrorKind, Incarnation, Item, Key as ItemKey, Position,
    Update,
    key_value::{Action, Name, Outcome, Read, Scan, SharedKeyValue, Test, Value},
};
use primitives::{Backoff, retry, retry_repeatable};
use tokio::sync::Notify;

use crate::{
    Error, Result, layout,
    model::{Attempt, Key, TransactionId},
    records::{CommitRecord, RECORD_VERSION, StoredRecord, Write, WriteSet, decode, encode},
};

/// The transaction's id, of a version item.
const ID: &str = "id";
/// The write's number within its attempt, of a version item.
const WRITE: &str = "write";
/// The value, of a version item.
const VALUE: &str = "value";
/// One: the key is deleted, of a version item.
const GONE: &str = "gone";
/// Who may decide, of a decision row.
const ATTEMPT: &str = "attempt";
/// How it was decided; absent: not yet. Of a decision row.
const STATE: &str = "state";
/// The record of a decision row, and what other rows hold.
const RECORD: &str = "record";

const COMMITTED: i64 = 1;
const ABORTED: i64 = 2;
const EXPIRED: i64 = 4;

/// Version items in one page: with values of up to 64 KiB, a page stays within some megabytes.
const PAGE_ITEMS: usize = 100;

/// For reads whose caller waits.
const READ_AGAIN: Backoff =
    Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(200), attempts_max: 6 };

/// For writes that have to come to an end: as long as the node lives.
const WRITE_AGAIN: Backoff =
    Backoff { first: Duration::from_millis(5), longest: Duration::from_secs(1), attempts_max: u32::MAX };

/// The store as one node sees it.
#[derive(Debug)]
pub(crate) struct Store {
    key_value: SharedKeyValue,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    incarnation: Incarnation,
    /// The last position seen in it.
    reached: AtomicU64,
    fallen: AtomicBool,
    /// Woken when the node cannot go on.
    fell: Arc<Notify>,
}

/// How a transaction was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Undecided,
    Committed(StoredRecord),
    Aborted,
    /// Nobody knows any more, and nobody commits it any more.
    Expired,
}

/// A decision row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) attempt: Attempt,
    pub(crate) state: State,
}

/// How a transition of a decision row ended: done, or what stands there instead. Both rest on the point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decided {
    Done(DurabilityPoint),
    Refused(Option<Decision>, DurabilityPoint),
}

/// A version item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionItem {
    pub(crate) id: TransactionId,
    pub(crate) write: u32,
    /// None: the key is deleted.
    pub(crate) value: Option<Bytes>,
}

impl Store {
    pub(crate) fn new(
        key_value: SharedKeyValue,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        fell: Arc<Notify>,
    ) -> Self {
        let DurabilityPoint { incarnation, position } = key_value.point();
        let (fallen, reached) = (AtomicBool::new(false), AtomicU64::new(position.0));
        Self { key_value, clock, entropy, incarnation, reached, fallen, fell }
    }

    pub(crate) fn key_value(&self) -> &SharedKeyValue {
        &self.key_value
    }

    /// The node cannot go on: another has to take its place.
    pub(crate) fn fall(&self) {
        if !self.fallen.swap(true, Ordering::SeqCst) {
            self.fell.notify_one();
        }
    }

    /// Errors: `Unavailable` once the node cannot go on.
    pub(crate) fn standing(&self) -> Result<()> {
        if self.fallen.load(Ordering::SeqCst) {
            return Err(Error::unavailable("the node starts over"));
        }
        Ok(())
    }

    /// The store as it is now is the one the node began on: no call, and no wait.
    pub(crate) fn look(&self) -> Result<()> {
        self.seen(self.key_value.point()).map(drop)
    }

    /// An answer rests on `point`.
    pub(crate) fn seen(&self, point: DurabilityPoint) -> Result<DurabilityPoint> {
        if point.incarnation > self.incarnation {
            self.fall();
        } else if point.incarnation == self.incarnation {
            self.reached.fetch_max(point.position.0, Ordering::SeqCst);
        }
        self.standing().map(|()| point)
    }

    /// Waits until `point` is durable.
    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let attempt = || self.key_value.externalize(point);
        match retry(READ_AGAIN, &*self.clock, &*self.entropy, attempt).await {
            Ok(()) => Ok(()),
            Err(error) => {
                if error.kind() == ErrorKind::Lost {
                    self.fall();
                }
                Err(error.into())
            }
        }
    }

    /// Checks that the store is of a layout this build knows, and says so in a new one.
    pub(crate) async fn check_format(&self) -> Result<()> {
        let version = i64::from(RECORD_VERSION);
        let attributes = vec![
            (Name::from("version"), Value::Integer(version)),
            (Name::from("buckets"), Value::Integer(i64::from(layout::BUCKET_COUNT))),
        ];
        let update = Update::put(layout::format(), attributes).when(Condition::Absent);
        let (outcome, _) = self.update(update).await?;
        let Outcome::Conflict(Some(item)) = outcome else { return Ok(()) };
        let found = (item.integer("version"), item.integer("buckets"));
        if found != (Some(version), Some(i64::from(layout::BUCKET_COUNT))) {
            let (version, buckets) = (found.0.unwrap_or_default(), found.1.unwrap_or_default());
            let why = format!("the store has transactions of format {version} with {buckets} buckets");
            return Err(Error::Corrupt(why.into()));
        }
        Ok(())
    }

    // ---- version items

    /// Writes a version. What a later write of the same attempt left there stays.
    pub(crate) async fn put_version(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        write: &Write,
        value: Option<Bytes>,
    ) -> Result<()> {
        let number = i64::from(write.write);
        let held = match value {
            Some(value) => (Name::from(VALUE), Value::Bytes(value)),
            None => (Name::from(GONE), Value::Integer(1)),
        };
        let attributes = vec![
            (Name::from(ID), Value::Bytes(id.as_bytes().clone())),
            (Name::from(WRITE), Value::Integer(number)),
            held,
        ];
        let is_mine =
            Condition::Any(vec![Condition::Absent, Condition::attribute(WRITE, Test::Below(number))]);
        let update = Update::put(layout::version(&write.key, attempt), attributes).when(is_mine);
        self.update(update).await.map(drop)
    }

    /// Deletes a version that does not count.
    pub(crate) async fn delete_version(&self, key: &Key, attempt: Attempt) -> Result<()> {
        self.finish(&Update::delete(layout::version(key, attempt))).await.map(drop)
    }

    /// Every version item of `key`, decided or not, with its attempt; and the point this rests on.
    pub(crate) async fn versions(&self, key: &Key) -> Result<(Vec<(Attempt, VersionItem)>, DurabilityPoint)> {
        let mut scan = layout::versions(key, PAGE_ITEMS);
        let mut versions = Vec::new();
        loop {
            let page = self.scan(&scan).await?;
            for (sort, item) in page.value.items {
                let attempt = layout::attempt_of(&sort).ok_or_else(|| corrupt("a version's key"))?;
                versions.push((attempt, VersionItem::decode(&item)?));
            }
            match page.value.next {
                Some(next) => scan.from = next,
                None => return Ok((versions, page.point)),
            }
        }
    }

    /// One version item.
    pub(crate) async fn version(&self, key: &Key, attempt: Attempt) -> Result<Option<VersionItem>> {
        let read = self.get(&layout::version(key, attempt)).await?;
        read.value.map(|item| VersionItem::decode(&item)).transpose()
    }

    // ---- write sets

    /// Writes the parts of a write set, all at once: they are issued before what comes after them.
    pub(crate) async fn put_write_set(&self, attempt: Attempt, parts: &[Vec<Write>]) -> Result<()> {
        let parts = stream::iter((0..).zip(parts).map(Ok));
        let put = |(part, writes)| async move {
            let attributes = vec![(Name::from(RECORD), Value::Bytes(encode(writes)))];
            self.update(Update::put(layout::write_set_part(attempt, part), attributes)).await.map(drop)
        };
        parts.try_for_each_concurrent(None, put).await
    }

    /// A write set, read together if it is in parts. Parts that were never written are left out.
    pub(crate) async fn write_set(&self, attempt: Attempt, set: &WriteSet) -> Result<Vec<Write>> {
        let parts = match set {
            WriteSet::Inline(writes) => return Ok(writes.clone()),
            WriteSet::Parts(parts) => *parts,
        };
        let mut writes = Vec::new();
        for part in 0..parts {
            let read = self.get(&layout::write_set_part(attempt, part)).await?;
            if let Some(bytes) = read.value.as_ref().and_then(|item| item.bytes(RECORD)) {
                writes.extend(decode::<Vec<Write>>(bytes, "a part of a write set")?);
            }
        }
        Ok(writes)
    }

    /// Deletes the parts of a write set that does not count.
    pub(crate) async fn delete_write_set(&self, attempt: Attempt, set: &WriteSet) -> Result<()> {
        let WriteSet::Parts(parts) = set else { return Ok(()) };
        for part in 0..*parts {
            self.finish(&Update::delete(layout::write_set_part(attempt, part))).await?;
        }
        Ok(())
    }

    // ---- decision rows

    /// The decision row of `id`, and the point this rests on.
    pub(crate) async fn decision(&self, id: &TransactionId) -> Result<(Option<Decision>, DurabilityPoint)> {
        let read = self.get(&layout::decision(id)).await?;
        Ok((read.value.map(|item| Decision::decode(&item)).transpose()?, read.point))
    }

    /// A committed row as the record that memory shares.
    pub(crate) async fn record(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        stored: &StoredRecord,
        point: DurabilityPoint,
    ) -> Result<CommitRecord> {
        let StoredRecord { version, position, writes, .. } = stored;
        let writes = self.write_set(attempt, writes).await?;
        Ok(CommitRecord { id: id.clone(), attempt, version: *version, position: *position, writes, point })
    }

    /// `begin(named)`: takes the row, unless it is decided for good.
    pub(crate) async fn begin_named(&self, id: &TransactionId, attempt: Attempt) -> Result<Decided> {
        let open = Condition::Any(vec![
            Condition::attribute(STATE, Test::Absent),
            Condition::attribute(STATE, Test::is_integer(ABORTED)),
        ]);
        let actions = vec![set_attempt(attempt), Action::unset(STATE)];
        self.decide(Update::modify(layout::decision(id), actions).when(open)).await
    }

    /// `commit(generated)`: the row is absent.
    pub(crate) async fn commit_generated(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        record: &StoredRecord,
    ) -> Result<Decided> {
        let actions = committing(attempt, record);
        let update = Update::modify(layout::decision(id), actions).when(Condition::Absent);
        self.decide_mine(update, attempt).await
    }

    /// `commit(named)`: the row is this attempt's, and undecided.
    pub(crate) async fn commit_named(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        record: &StoredRecord,
    ) -> Result<Decided> {
        let actions = committing(attempt, record);
        let update = Update::modify(layout::decision(id), actions).when(undecided(attempt));
        self.decide_mine(update, attempt).await
    }

    /// The same as nobody may: whoever's row it is. For tests that show what attempts are for.
    pub(crate) async fn commit_any_attempt(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        record: &StoredRecord,
    ) -> Result<Decided> {
        self.decide(Update::modify(layout::decision(id), committing(attempt, record))).await
    }

    /// `close(generated)`: aborted, if there is no row.
    pub(crate) async fn close_generated(&self, id: &TransactionId, attempt: Attempt) -> Result<Decided> {
        let actions = vec![set_attempt(attempt), Action::set_integer(STATE, ABORTED)];
        let update = Update::modify(layout::decision(id), actions).when(Condition::Absent);
        self.finish_decision(&update).await
    }

    /// `close(named)`: aborted, if the row is this attempt's and undecided.
    pub(crate) async fn close_named(&self, id: &TransactionId, attempt: Attempt) -> Result<Decided> {
        let actions = vec![Action::set_integer(STATE, ABORTED)];
        let update = Update::modify(layout::decision(id), actions).when(undecided(attempt));
        self.finish_decision(&update).await
    }

    /// `forget`: a named begin that left nothing; the row goes if it is still its own and undecided. A name that may
    /// be a generated id keeps a closed row: its first owner could take an absent one for its own.
    pub(crate) async fn forget(&self, id: &TransactionId, attempt: Attempt) -> Result<Decided> {
        if id.generated().is_some() {
            return self.close_named(id, attempt).await;
        }
        self.finish_decision(&Update::delete(layout::decision(id)).when(undecided(attempt))).await
    }

    /// Nobody commits this id any more, if there is no row.
    pub(crate) async fn expire(&self, id: &TransactionId, attempt: Attempt) -> Result<Decided> {
        let actions = vec![set_attempt(attempt), Action::set_integer(STATE, EXPIRED)];
        let update = Update::modify(layout::decision(id), actions).when(Condition::Absent);
        self.finish_decision(&update).await
    }

    /// A commit: finding one's own is success, since then an answer was lost.
    async fn decide_mine(&self, update: Update, attempt: Attempt) -> Result<Decided> {
        Ok(match self.decide(update).await? {
            Decided::Refused(Some(Decision { attempt: other, state: State::Committed(_) }), point)
                if other == attempt =>
            {
                Decided::Done(point)
            }
            decided => decided,
        })
    }

    async fn decide(&self, update: Update) -> Result<Decided> {
        let (outcome, point) = self.update(update).await?;
        Decided::decode(outcome, point)
    }

    async fn finish_decision(&self, update: &Update) -> Result<Decided> {
        let (outcome, point) = self.finish(update).await?;
        Decided::decode(outcome, point)
    }

    // ---- calls

    pub(crate) async fn get(&self, key: &ItemKey) -> Result<Read<Option<Arc<Item>>>> {
        let read = retry(READ_AGAIN, &*self.clock, &*self.entropy, || self.key_value.get(key)).await?;
        self.seen(read.point)?;
        Ok(read)
    }

    pub(crate) async fn scan(&self, scan: &Scan) -> Result<Read<ports::key_value::Page>> {
        let read = retry(READ_AGAIN, &*self.clock, &*self.entropy, || self.key_value.scan(scan)).await?;
        self.seen(read.point)?;
        Ok(read)
    }

    /// Changes an item, however often it has to be asked for: for changes that come to the same when repeated.
    /// Errors: `NoRoom` and `Corrupt`, and nothing changed; `Unavailable` once the node cannot go on, and it may
    /// have changed.
    pub(crate) async fn update(&self, update: Update) -> Result<(Outcome, DurabilityPoint)> {
        self.repeat(&update, |kind| kind != ErrorKind::NoRoom).await
    }

    /// The same for what makes room, or must not be left undone for want of it.
    pub(crate) async fn finish(&self, update: &Update) -> Result<(Outcome, DurabilityPoint)> {
        self.repeat(update, |_| true).await
    }

    async fn repeat(
        &self,
        update: &Update,
        may_repeat: impl Fn(ErrorKind) -> bool,
    ) -> Result<(Outcome, DurabilityPoint)> {
        let mut delays = WRITE_AGAIN.delays();
        loop {
            self.standing()?;
            match self.key_value.update(update.clone().resting_on(self.basis())).await {
                Ok(updated) => {
                    let point = self.seen(updated.receipt.point)?;
                    return Ok((updated.outcome, point));
                }
                Err(error) if error.is_retryable() && may_repeat(error.kind()) => {
                    self.pause(&mut delays).await;
                }
                Err(error) if error.kind() == ErrorKind::Lost => {
                    self.fall();
                    self.standing()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// All that the node has seen of the store: what it changes rests on that. A change that is under way while the
    /// store goes back must not arrive there: a row would be committed whose data are gone.
    fn basis(&self) -> DurabilityPoint {
        let position = Position(self.reached.load(Ordering::SeqCst));
        DurabilityPoint { incarnation: self.incarnation, position }
    }

    /// Tries something a few times that does no harm when it is repeated.
    pub(crate) async fn again<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = ports::Result<T>>,
    {
        Ok(retry_repeatable(READ_AGAIN, &*self.clock, &*self.entropy, attempt).await?)
    }

    /// Waits before something is tried again.
    pub(crate) async fn pause(&self, delays: &mut primitives::Delays) {
        let delay = delays.next_delay(&*self.entropy).unwrap_or(WRITE_AGAIN.longest);
        self.clock.sleep(delay).await;
    }

    /// How long to wait between attempts at what has to come to an end.
    pub(crate) fn delays() -> primitives::Delays {
        WRITE_AGAIN.delays()
    }
}

impl Decision {
    fn decode(item: &Item) -> Result<Self> {
        let attempt = item.bytes(ATTEMPT).and_then(|bytes| Attempt::from_bytes(bytes));
        let state = match (item.integer(STATE), item.bytes(RECORD)) {
            (None, _) => State::Undecided,
            (Some(COMMITTED), Some(record)) => State::Committed(decode(record, "a commit record")?),
            (Some(ABORTED), _) => State::Aborted,
            (Some(EXPIRED), _) => State::Expired,
            _ => return Err(corrupt("a decision row's state")),
        };
        Ok(Self { attempt: attempt.ok_or_else(|| corrupt("a decision row's attempt"))?, state })
    }
}

impl Decided {
    fn decode(outcome: Outcome, point: DurabilityPoint) -> Result<Self> {
        Ok(match outcome {
            Outcome::Done(_) => Self::Done(point),
            Outcome::Conflict(item) => {
                Self::Refused(item.map(|item| Decision::decode(&item)).transpose()?, point)
            }
        })
    }
}

impl VersionItem {
    fn decode(item: &Item) -> Result<Self> {
        let id = item.bytes(ID).cloned().ok_or_else(|| corrupt("a version's transaction"))?;
        let write = item.integer(WRITE).and_then(|write| u32::try_from(write).ok());
        let value = item.bytes(VALUE).cloned();
        if value.is_none() && item.integer(GONE).is_none() {
            return Err(corrupt("a version's value"));
        }
        let write = write.ok_or_else(|| corrupt("a version's write"))?;
        Ok(Self { id: TransactionId::new(id)?, write, value })
    }
}

impl WriteSet {
    /// `writes` in itself if they take no more than `bytes_max`, else in parts of about as much each.
    pub(crate) fn split(writes: &[Write], bytes_max: usize) -> (Self, Vec<Vec<Write>>) {
        if writes.iter().map(Write::bytes_len).sum::<usize>() <= bytes_max {
            return (Self::Inline(writes.to_vec()), Vec::new());
        }
        let mut parts: Vec<Vec<Write>> = Vec::new();
        let mut room = 0;
        for write in writes {
            let bytes = write.bytes_len();
            if bytes > room || parts.is_empty() {
                parts.push(Vec::new());
                room = bytes_max.max(bytes);
            }
            room -= bytes;
            parts.last_mut().expect("pushed above").push(write.clone());
        }
        (Self::Parts(parts.len() as u32), parts)
    }
}

fn set_attempt(attempt: Attempt) -> Action {
    Action::set(ATTEMPT, attempt.to_bytes().to_vec())
}

fn committing(attempt: Attempt, record: &StoredRecord) -> Vec<Action> {
    vec![set_attempt(attempt), Action::set_integer(STATE, COMMITTED), Action::set(RECORD, encode(record))]
}

fn undecided(attempt: Attempt) -> Condition {
    Condition::All(vec![
        Condition::attribute(ATTEMPT, Test::is(attempt.to_bytes().to_vec())),
        Condition::attribute(STATE, Test::Absent),
    ])
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt(format!("decode {what}").into())
}
