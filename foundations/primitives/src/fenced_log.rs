//! The fenced log: records in numbered slots, written by one writer at a time, whoever else believes it is.
//!
//! Slot n is an item that is put if absent, and never changed. A writer fills slot after slot with its epoch
//! and a payload. Who takes over reads to the first free slot and puts a *seal* there with a higher epoch:
//! the predecessor's next append finds it and knows that it has been fenced. A slot of a lower epoch behind
//! a seal is void: it was written over a gap (by a pipelined append, or after the store lost one) and was
//! never acknowledged. Put-if-absent is all this asks of a store.
//!
//! What counts as written is decided by the slots before it alone, and those never change, so every reader
//! comes to the same answer at any later time. A reader carries the epoch it has reached in its [`Cursor`].
//!
//! An append returns once its slot is visible. It is acknowledged outside once its point is durable; since
//! durable means a prefix, all slots before it are durable then. Each slot rests on the ones before it (promise D4): if
//! the store restarts under a writer and takes its last slot, the next one is refused (S12).
//!
//! Seals stay when a log is trimmed: the next slot of a fenced writer is the seal of its successor, or a void
//! slot before it, and were those gone, that writer would find a free slot (S13). That is one small item per
//! takeover. For the same reason a trim moves the start of the log before it takes slots away, and a takeover
//! looks at the start after it put its seal: in a hole that a trim left, a seal is worth nothing.
//!
//! From `protocols.md`, "the fenced log".

mod writer;

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Condition, DurabilityPoint, Error, Item, Key, Result, Update,
    key_value::{Action, Outcome, Read, Scan, SharedKeyValue, Test},
};
use serde::{Deserialize, Serialize};

pub use writer::{Appended, Writer};

/// The writer's epoch, in slots and in the trim mark.
const EPOCH: &str = "epoch";
/// The payload; a slot without one is a seal.
const PAYLOAD: &str = "payload";
/// Where the trim mark says the log starts.
const START: &str = "start";

/// The sort key of the trim mark: before those of all slots.
const TRIM_MARK: &[u8] = b"mark";
/// What the sort keys of slots begin with.
const SLOT_PREFIX: u8 = b's';
/// The first sort key behind all slots.
const AFTER_SLOTS: &[u8] = b"t";

/// Slots read in one page.
const PAGE_SLOTS: usize = 100;

/// Which writer of a log; grows with each takeover.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Which slot of a log; the first one is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotIndex(pub u64);

/// How far a reader has come. Keep it whole: the epoch decides what the next slots are worth.
///
/// Cursors of one log are ordered as its slots are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// The next slot to read.
    pub next: SlotIndex,
    /// The highest epoch before it.
    pub epoch: Epoch,
}

impl Cursor {
    /// Before the first slot.
    pub const START: Self = Self {
        next: SlotIndex(1),
        epoch: Epoch(0),
    };
}

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its place.
    pub index: SlotIndex,
    /// Its writer.
    pub epoch: Epoch,
    /// What it holds.
    pub payload: Bytes,
}

impl Slot {
    /// Where a reader stands that has read this slot.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            next: SlotIndex(self.index.0 + 1),
            epoch: self.epoch,
        }
    }
}

/// A piece of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// Its records, in order. Seals and void slots are left out.
    pub slots: Vec<Slot>,
    /// Where to read on.
    pub cursor: Cursor,
    /// Whether this was all there was.
    pub is_tail: bool,
    /// What the answer rests on lies at or before this point (rule P4).
    pub point: DurabilityPoint,
}

/// A log in a partition of its own.
#[derive(Debug, Clone)]
pub struct FencedLog {
    key_value: SharedKeyValue,
    partition: Bytes,
    /// Up to where a trim by this log or a clone of it has gone through to its end.
    trimmed: Arc<Mutex<Cursor>>,
}

/// What a slot's item holds.
#[derive(Debug, Clone)]
struct Stored {
    epoch: Epoch,
    /// None: a seal.
    payload: Option<Bytes>,
}

impl FencedLog {
    /// The log in `partition`, which holds nothing else.
    pub fn new(key_value: SharedKeyValue, partition: impl Into<Bytes>) -> Self {
        Self {
            key_value,
            partition: partition.into(),
            trimmed: Arc::new(Mutex::new(Cursor::START)),
        }
    }

    /// Where the log begins: behind what was trimmed.
    pub async fn start(&self) -> Result<Cursor> {
        let read = self.key_value.get(&self.trim_mark()).await?;
        let Some(item) = read.value else {
            return Ok(Cursor::START);
        };
        match (natural(&item, START), natural(&item, EPOCH)) {
            (Some(next), Some(epoch)) => Ok(Cursor {
                next: SlotIndex(next),
                epoch: Epoch(epoch),
            }),
            _ => Err(Error::corrupt(format!(
                "read the start of the log {:?}",
                self.trim_mark()
            ))),
        }
    }

    /// Up to about `slots_max` records from `from` on, to the first free slot at most (S9).
    ///
    /// Errors: `Invalid` if `from` lies before the start of a trimmed log, once there is a slot behind that start: until
    /// then such a log looks as if nothing had been appended. Who trims leaves the last slots to readers that are late.
    pub async fn read(&self, from: Cursor, slots_max: usize) -> Result<Slots> {
        let (slots, has_gap) = self.read_page(from, slots_max).await?;
        // A gap is what a trim left, or what a writer wrote over; asking which costs a call, so only then.
        if has_gap && slots.slots.is_empty() && slots.cursor.next < self.start().await?.next {
            return Err(Error::invalid(format!(
                "read the trimmed log slot {}",
                from.next.0
            )));
        }
        Ok(slots)
    }

    /// A page of the log, and whether it ends at a gap rather than at the end.
    async fn read_page(&self, from: Cursor, slots_max: usize) -> Result<(Slots, bool)> {
        let scan = Scan {
            partition: self.partition.clone(),
            from: slot_sort(from.next),
            until: Some(Bytes::from_static(AFTER_SLOTS)),
            items_max: slots_max.clamp(1, PAGE_SLOTS),
        };
        let Read { value: page, point } = self.key_value.scan(&scan).await?;
        let mut read = Slots {
            slots: Vec::new(),
            cursor: from,
            is_tail: page.next.is_none(),
            point,
        };
        for (sort, item) in page.items {
            let index = slot_of(&sort).ok_or_else(|| self.corrupt(&sort))?;
            if index != read.cursor.next {
                read.is_tail = true;
                return Ok((read, true));
            }
            let stored = Stored::decode(&item).ok_or_else(|| self.corrupt(&sort))?;
            read.cursor.next.0 += 1;
            if stored.epoch < read.cursor.epoch {
                continue;
            }
            read.cursor.epoch = stored.epoch;
            if let Some(payload) = stored.payload {
                read.slots.push(Slot {
                    index,
                    epoch: stored.epoch,
                    payload,
                });
            }
        }
        Ok((read, false))
    }

    /// Everything from `from` to the first free slot.
    async fn read_to_tail(&self, from: Cursor) -> Result<Slots> {
        let (mut all, _) = self.read_page(from, PAGE_SLOTS).await?;
        while !all.is_tail {
            let (page, _) = self.read_page(all.cursor, PAGE_SLOTS).await?;
            all.slots.extend(page.slots);
            all = Slots {
                slots: all.slots,
                ..page
            };
        }
        Ok(all)
    }

    /// Forgets the records before `until`, which every reader must have passed. Seals stay, and so do void
    /// slots, without their payloads (S13). Safe to repeat, and to leave off halfway: the first trim of a log that was opened
    /// anew looks at all that is left before `until`, the ones after it go on where the one before them ended.
    pub async fn trim(&self, until: Cursor) -> Result<()> {
        self.trim_resting_on(until, DurabilityPoint::DURABLE).await
    }

    /// The same, resting on what the caller knows of the log: a store that has gone back takes new slots where the old ones
    /// are trimmed.
    pub async fn trim_resting_on(&self, until: Cursor, basis: DurabilityPoint) -> Result<()> {
        self.move_trim_mark(until, basis).await?;
        let begun = *self.trimmed.lock();
        let (mut from, mut epoch) = (slot_sort(begun.next), begun.epoch);
        if begun.next >= until.next {
            return Ok(());
        }
        loop {
            let scan = Scan {
                partition: self.partition.clone(),
                from,
                until: Some(slot_sort(until.next)),
                items_max: PAGE_SLOTS,
            };
            let page = self.key_value.scan(&scan).await?.value;
            for (sort, item) in page.items {
                let slot = Stored::decode(&item).ok_or_else(|| self.corrupt(&sort))?;
                let key = Key::new(&self.partition, &sort);
                if slot.payload.is_some() {
                    let void = Update::modify(key.clone(), vec![Action::unset(PAYLOAD)])
                        .when(Condition::Exists);
                    let update = if slot.epoch < epoch {
                        void
                    } else {
                        Update::delete(key)
                    };
                    self.key_value.update(update.resting_on(basis)).await?;
                }
                epoch = epoch.max(slot.epoch);
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        let mut trimmed = self.trimmed.lock();
        *trimmed = (*trimmed).max(Cursor {
            next: until.next,
            epoch,
        });
        Ok(())
    }

    /// Moves the start of the log forward; a reader that finds a hole there knows why.
    async fn move_trim_mark(&self, until: Cursor, basis: DurabilityPoint) -> Result<()> {
        let actions = vec![
            Action::set_integer(START, until.next.0 as i64),
            Action::set_integer(EPOCH, until.epoch.0 as i64),
        ];
        let forward = Condition::Any(vec![
            Condition::Absent,
            Condition::attribute(START, Test::Below(until.next.0 as i64)),
        ]);
        let update = Update::modify(self.trim_mark(), actions)
            .when(forward)
            .resting_on(basis);
        self.key_value.update(update).await.map(drop)
    }

    /// Puts a slot if it is absent; otherwise says what is there.
    async fn put(
        &self,
        index: SlotIndex,
        slot: &Stored,
        basis: DurabilityPoint,
    ) -> Result<(Option<Stored>, DurabilityPoint)> {
        let updated = self
            .key_value
            .update(self.filling(index, slot).resting_on(basis))
            .await?;
        let point = updated.receipt.point;
        match updated.outcome {
            Outcome::Done(_) => Ok((None, point)),
            Outcome::Conflict(item) => {
                let there = item.as_deref().and_then(Stored::decode);
                Ok((
                    Some(there.ok_or_else(|| self.corrupt(&slot_sort(index)))?),
                    point,
                ))
            }
        }
    }

    /// What puts a slot if it is absent.
    fn filling(&self, index: SlotIndex, slot: &Stored) -> Update {
        let mut attributes = vec![Action::set_integer(EPOCH, slot.epoch.0 as i64)];
        attributes.extend(
            slot.payload
                .clone()
                .map(|payload| Action::set(PAYLOAD, payload)),
        );
        Update::modify(Key::new(&self.partition, slot_sort(index)), attributes)
            .when(Condition::Absent)
    }

    fn trim_mark(&self) -> Key {
        Key::new(&self.partition, TRIM_MARK)
    }

    fn corrupt(&self, sort: &[u8]) -> Error {
        Error::corrupt(format!(
            "read the log slot {:?}",
            Key::new(&self.partition, sort)
        ))
    }
}

impl Stored {
    fn decode(item: &Item) -> Option<Self> {
        Some(Self {
            epoch: Epoch(natural(item, EPOCH)?),
            payload: item.bytes(PAYLOAD).cloned(),
        })
    }
}

fn natural(item: &Item, name: &str) -> Option<u64> {
    u64::try_from(item.integer(name)?).ok()
}

fn slot_sort(index: SlotIndex) -> Bytes {
    let mut sort = vec![SLOT_PREFIX];
    sort.extend_from_slice(&index.0.to_be_bytes());
    sort.into()
}

fn slot_of(sort: &[u8]) -> Option<SlotIndex> {
    let digits = sort.strip_prefix(&[SLOT_PREFIX])?;
    Some(SlotIndex(u64::from_be_bytes(digits.try_into().ok()?)))
}
