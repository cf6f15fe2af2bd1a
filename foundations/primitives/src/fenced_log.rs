//! The fenced log: records in numbered slots, written by one writer at a time even if several
//! believe to be it.
//!
//! Slot n is an item that is put if absent and never changed. A writer fills slot after slot with
//! its epoch and a payload. A successor reads to the first free slot and puts a *seal* there with a
//! higher epoch. The predecessor's next append finds the seal, and the predecessor knows that it is
//! fenced. A slot of a lower epoch after a seal is void: a pipelined append, or an append after the
//! store lost a slot, wrote it over a gap. It was never acknowledged. The log asks only
//! put-if-absent of a store.
//!
//! The slots before a slot alone decide whether it counts as written. They never change, so every
//! reader comes to the same result at any later time. A reader carries the epoch that it has
//! reached in its [`Cursor`].
//!
//! An append returns once its slot is visible. The caller acknowledges it to the outside once its
//! point is durable. Durable means a prefix, so all slots before it are durable then. Each slot
//! depends on the ones before it (promise D4): if the store restarts under a writer and loses its
//! last slot, it refuses the writer's next one (S12).
//!
//! Trimming keeps the seals. The next slot of a fenced writer is its successor's seal or a void
//! slot before the seal. If a trim removed them, that writer would find a free slot (S13). They
//! cost one small item per takeover. For the same reason a trim moves the start of the log before
//! it removes slots, and a takeover reads the start after it put its seal: a seal in a hole that a
//! trim left fences no writer.
//!
//! From `protocols.md`, "the fenced log".

mod writer;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use ports::{
    Condition, DurabilityPoint, Error, Item, Key, Result, Update,
    key_value::{Action, Outcome, Read, Scan, SharedKeyValue, Test},
};
use serde::{Deserialize, Serialize};

pub use writer::{Appended, Writer};

/// The writer's epoch, in slots and in the trim mark.
const EPOCH: &str = "epoch";
/// The payload. A slot without one is a seal.
const PAYLOAD: &str = "payload";
/// The start of the log, in the trim mark.
const START: &str = "start";

/// The sort key of the trim mark: before those of all slots.
const TRIM_MARK: &[u8] = b"mark";
/// The first byte of the sort keys of slots.
const SLOT_PREFIX: u8 = b's';
/// The first sort key after all slots.
const AFTER_SLOTS: &[u8] = b"t";

/// Slots read in one page.
const PAGE_SLOTS: usize = 100;

/// The epoch of a log's writer. Each takeover raises it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// The number of a log's slot. The first one is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotIndex(pub u64);

/// The position of a reader. Keep it whole: the epoch decides which of the next slots are void.
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
    /// Its index.
    pub index: SlotIndex,
    /// The epoch of its writer.
    pub epoch: Epoch,
    /// Its payload.
    pub payload: Bytes,
}

impl Slot {
    /// The position of a reader after this slot.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            next: SlotIndex(self.index.0 + 1),
            epoch: self.epoch,
        }
    }
}

/// A page of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// Its records, in order. Seals and void slots are left out.
    pub slots: Vec<Slot>,
    /// Where the next page starts.
    pub cursor: Cursor,
    /// Whether the page reaches the end of the log.
    pub is_tail: bool,
    /// The page depends on nothing after this point (rule P4).
    pub point: DurabilityPoint,
}

/// A log in a partition of its own.
#[derive(Debug, Clone)]
pub struct FencedLog {
    key_value: SharedKeyValue,
    partition: Bytes,
    /// How far this log, or a clone of it, has completed a trim.
    trimmed: Arc<Mutex<Cursor>>,
}

/// The content of a slot's item.
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

    /// The start of the log: after the trimmed slots.
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

    /// Up to about `slots_max` records from `from` on. Stops at the first free slot (S9).
    ///
    /// Errors: `Invalid` if `from` lies before the start of a trimmed log and a slot exists after
    /// that start. Until one does, such a log reads as empty. Callers that trim should leave the
    /// last slots to late readers.
    pub async fn read(&self, from: Cursor, slots_max: usize) -> Result<Slots> {
        let (slots, has_gap) = self.read_page(from, slots_max).await?;
        // A gap is left by a trim or by a void slot's writer. Reading the start costs a call, so
        // only then.
        if has_gap && slots.slots.is_empty() && slots.cursor.next < self.start().await?.next {
            return Err(Error::invalid(format!(
                "read the trimmed log slot {}",
                from.next.0
            )));
        }
        Ok(slots)
    }

    /// A page of the log, and whether it ends at a gap instead of the end.
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

    /// Every record from `from` to the first free slot.
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

    /// Deletes the records before `until`, which every reader must have passed. Seals stay, and so
    /// do void slots, without their payloads (S13). A trim is safe to repeat and to abandon
    /// halfway. The first trim after a log was opened scans all slots that are left before `until`.
    /// Later trims continue where the one before them ended.
    pub async fn trim(&self, until: Cursor) -> Result<()> {
        self.trim_depending_on(until, DurabilityPoint::DURABLE)
            .await
    }

    /// As [`FencedLog::trim`], but depends on `point`, up to which the caller knows the
    /// log. A store that went back writes new slots where the old ones are trimmed.
    pub async fn trim_depending_on(&self, until: Cursor, point: DurabilityPoint) -> Result<()> {
        self.move_trim_mark(until, point).await?;
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
            let mut updates = Vec::with_capacity(page.items.len());
            for (sort, item) in page.items {
                let slot = Stored::decode(&item).ok_or_else(|| self.corrupt(&sort))?;
                let key = Key::new(&self.partition, &sort);
                if slot.payload.is_some() {
                    let update = if slot.epoch < epoch {
                        Update::modify(key, vec![Action::unset(PAYLOAD)]).when(Condition::Exists)
                    } else {
                        Update::delete(key)
                    };
                    updates.push(self.key_value.update(update.depends_on(point)));
                }
                epoch = epoch.max(slot.epoch);
            }
            // In any order, because the seals stay: they alone fence earlier writers.
            try_join_all(updates).await?;
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

    /// Moves the start of the log forward, so that a reader that finds a hole there knows the
    /// reason.
    async fn move_trim_mark(&self, until: Cursor, point: DurabilityPoint) -> Result<()> {
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
            .depends_on(point);
        self.key_value.update(update).await.map(drop)
    }

    /// Puts a slot if it is absent. Otherwise returns the slot that is there.
    async fn put(
        &self,
        index: SlotIndex,
        slot: &Stored,
        depends_on: DurabilityPoint,
    ) -> Result<(Option<Stored>, DurabilityPoint)> {
        let updated = self
            .key_value
            .update(self.filling(index, slot).depends_on(depends_on))
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

    /// The update that puts a slot if it is absent.
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
