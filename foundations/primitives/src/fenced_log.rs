//! A log with one writer at a time, on nothing but put-if-absent.
//!
//! Slot n is put if absent and holds its writer's epoch. A successor takes a higher epoch and puts a seal
//! into the next free slot: whatever its predecessor still tries to append meets the seal, or an occupied
//! slot, and fails. So taking over is sealing the one place through which all the predecessor's writes must
//! pass (`protocols.md`, the fenced log).
//!
//! Promises
//! - **S1** An append that returned [`Appended::At`] stays in its slot for ever, until it is trimmed.
//! - **S2** After [`FencedLog::take_over`] returned, no append of an earlier writer succeeds.
//! - **S3** Slots are read in order without a gap, and a slot of a lower epoch behind a seal reads as void.
//! - **S4** A writer acknowledges a slot only after all earlier ones: it appends one at a time.
//!
//! Cost: one write per append; a take-over reads the slots from where the caller is and writes twice.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Condition, Error, ErrorKind, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{Action, Name, Outcome, Scan, Value},
};

const EPOCH: &str = "epoch";
const PAYLOAD: &str = "payload";

/// How many slots one page of a read holds.
const PAGE_SLOTS: usize = 256;

/// How often an append or a seal whose outcome is unknown is looked up before the error is passed on.
const ATTEMPTS_MAX: u32 = 8;

/// A place in the log, counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SlotIndex(pub u64);

impl SlotIndex {
    /// The place after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Grows with each writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// What a slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// What a writer appended.
    Payload(Bytes),
    /// Where a writer took over.
    Seal,
    /// An append that came too late: it does not count.
    Void,
}

/// How an append ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It stands in this slot.
    At(SlotIndex, Receipt),
    /// Another writer has taken over; this one appends no more.
    Fenced,
}

/// A log in one partition of a store.
#[derive(Debug, Clone)]
pub struct FencedLog {
    store: Arc<dyn KeyValue>,
    partition: Bytes,
}

/// The one who may append, until somebody else takes over.
#[derive(Debug)]
pub struct Writer {
    log: FencedLog,
    epoch: Epoch,
    next: SlotIndex,
}

impl FencedLog {
    /// The log in `partition` of `store`. The partition is the log's alone, and so is the one named
    /// `partition` with `/epoch` behind it.
    pub fn new(store: Arc<dyn KeyValue>, partition: impl Into<Bytes>) -> Self {
        Self { store, partition: partition.into() }
    }

    /// Becomes the writer: takes a new epoch, reads what stands from `from` on, and seals the next slot.
    /// Returns the writer and what it has to replay, the seal not included.
    ///
    /// `from` must not lie behind a slot that was never written.
    pub async fn take_over(&self, from: SlotIndex) -> Result<(Writer, Vec<(SlotIndex, Entry)>)> {
        let epoch = self.new_epoch().await?;
        let mut standing = Vec::new();
        let mut next = from;
        loop {
            standing.extend(self.read(next, usize::MAX).await?);
            next = standing.last().map_or(from, |(index, _)| index.next());
            match self.put(next, epoch, None).await? {
                Put::Done(_) => return Ok((Writer { log: self.clone(), epoch, next: next.next() }, standing)),
                Put::Taken(slot) if slot.epoch > epoch => {
                    return Err(Error::unavailable("take over a log that a later writer has taken over"));
                }
                Put::Taken(_) => {}
            }
        }
    }

    /// Up to `slots_max` slots from `from` on, as far as they are written (S3).
    pub async fn read(&self, from: SlotIndex, slots_max: usize) -> Result<Vec<(SlotIndex, Entry)>> {
        let mut slots = Vec::new();
        let mut expected = from;
        let mut epoch = Epoch(0);
        while slots.len() < slots_max {
            let items_max = PAGE_SLOTS.min(slots_max - slots.len());
            let from = Bytes::copy_from_slice(&expected.0.to_be_bytes());
            let scan = Scan { from, ..Scan::partition(self.partition.clone(), items_max) };
            let page = self.store.scan(&scan).await?.value;
            let more = page.next.is_some();
            for (sort, item) in page.items {
                if sort.as_ref() != expected.0.to_be_bytes() {
                    return Ok(slots); // beyond a gap nothing counts yet
                }
                let slot = Stored::read(&item)?;
                let is_void = slot.epoch < epoch;
                epoch = epoch.max(slot.epoch);
                slots.push((expected, if is_void { Entry::Void } else { slot.entry }));
                expected = expected.next();
            }
            if !more {
                break;
            }
        }
        Ok(slots)
    }

    /// Removes a slot that nobody will read again. Slots are trimmed from the front.
    pub async fn trim(&self, index: SlotIndex) -> Result<()> {
        self.store.update(Update::delete(self.key(index))).await.map(|_| ())
    }

    async fn new_epoch(&self) -> Result<Epoch> {
        let key = Key::new([&self.partition, b"/epoch".as_slice()].concat(), []);
        let update = Update::modify(key, vec![Action::Add(EPOCH.into(), 1)]);
        match self.store.update(update).await?.outcome {
            Outcome::Done(Some(item)) => Ok(Epoch(item.integer(EPOCH).unwrap_or_default() as u64)),
            _ => Err(Error::corrupt("count a log's writers")),
        }
    }

    /// Puts a slot if it is free; what the answer was is found out, however often it is lost.
    async fn put(&self, index: SlotIndex, epoch: Epoch, payload: Option<&Bytes>) -> Result<Put> {
        let mut attributes: Vec<(Name, Value)> = vec![(EPOCH.into(), Value::Integer(epoch.0 as i64))];
        attributes.extend(payload.map(|payload| (PAYLOAD.into(), Value::Bytes(payload.clone()))));
        let mut attempts = 0;
        loop {
            let update = Update::put(self.key(index), attributes.clone()).when(Condition::Absent);
            let updated = match self.store.update(update).await {
                Ok(updated) => updated,
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown && attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            return match updated.outcome {
                Outcome::Done(_) => Ok(Put::Done(updated.receipt)),
                Outcome::Conflict(Some(item)) => {
                    let slot = Stored::read(&item)?;
                    let is_ours = slot.epoch == epoch && slot.payload() == payload;
                    Ok(if is_ours { Put::Done(updated.receipt) } else { Put::Taken(slot) })
                }
                Outcome::Conflict(None) => continue, // trimmed in between
            };
        }
    }

    fn key(&self, index: SlotIndex) -> Key {
        Key::new(&self.partition, index.0.to_be_bytes())
    }
}

impl Writer {
    /// Where the next append goes.
    pub fn next(&self) -> SlotIndex {
        self.next
    }

    /// This writer's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Appends `payload` (S1, S4). After an error the caller does not know whether it stands; it takes over
    /// again and reads.
    pub async fn append(&mut self, payload: Bytes) -> Result<Appended> {
        match self.log.put(self.next, self.epoch, Some(&payload)).await? {
            Put::Done(receipt) => {
                let index = self.next;
                self.next = index.next();
                Ok(Appended::At(index, receipt))
            }
            Put::Taken(_) => Ok(Appended::Fenced),
        }
    }
}

enum Put {
    Done(Receipt),
    Taken(Stored),
}

struct Stored {
    epoch: Epoch,
    entry: Entry,
}

impl Stored {
    fn read(item: &Item) -> Result<Self> {
        let epoch = item.integer(EPOCH).ok_or_else(|| Error::corrupt("read the epoch of a log's slot"))?;
        let entry = item.bytes(PAYLOAD).map_or(Entry::Seal, |payload| Entry::Payload(payload.clone()));
        Ok(Self { epoch: Epoch(epoch as u64), entry })
    }

    fn payload(&self) -> Option<&Bytes> {
        match &self.entry {
            Entry::Payload(payload) => Some(payload),
            _ => None,
        }
    }
}
