//! The overlay: every record changed since the last checkpoint, above the checkpoint store.
//!
//! There are two generations. The active one takes changes. During a checkpoint the frozen one is
//! being written to the checkpoint store, and still hides it. A change marks its key dirty. A group
//! commit takes the dirty keys with their state at that moment. A record changed ten times within a
//! group is therefore written once. A record created and deleted within a group is not written at
//! all, so a group may be empty although mutations were ordered.
//!
//! Invariants
//! - A lookup that misses here may ask the checkpoint store: every record that differs from it is
//!   in one of the two generations.
//! - A frozen generation holds no dirty record: it is exactly the state at the end of one group.
//! - `pending_bytes` bounds what the dirty records take in the journal (rule P6).
//! - Records that need not survive a crash are in no group. [`UNJOURNALED_BYTES_MAX`] bounds them,
//!   because they do not lengthen the journal and so never trigger the checkpoint that would drop
//!   them.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    ops::Bound,
    sync::Arc,
};

use foldhash::fast::RandomState;

use super::{Record, RecordKey, Table};

/// The state of a record in a generation.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The record; none if it was deleted.
    pub(crate) record: Option<Record>,
    /// Whether it changed since the last group was taken.
    dirty: bool,
    /// Whether the journal or a lower level holds a value, so that a deletion must be written.
    known: bool,
    /// Whether a lower level may hold a value, so that a deletion must stay here to hide it.
    shadows: bool,
    /// Whether a group wrote or will write a change of it since the last freeze.
    journaled: bool,
    /// The bound of its size, which counts in `pending_bytes` while it is dirty.
    estimate: u32,
}

/// One generation: slots by key, and the order of the keys that are read in order.
///
/// Most operations are lookups, so the slots are hashed. Messages come and go with every request.
/// Only recovery reads them in order, and it replays them into the order too.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    slots: HashMap<RecordKey, Slot, RandomState>,
    order: BTreeSet<RecordKey>,
}

impl Generation {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Its slots, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RecordKey, &Slot)> {
        self.slots.iter()
    }

    /// Its slots in the order of their keys.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (&RecordKey, &Slot)> {
        let mut slots: Vec<_> = self.slots.iter().collect();
        slots.sort_unstable_by_key(|(key, _)| *key);
        slots.into_iter()
    }

    fn get(&self, key: &RecordKey) -> Option<&Slot> {
        self.slots.get(key)
    }

    fn remove(&mut self, key: &RecordKey) {
        if self.slots.remove(key).is_some() {
            self.order.remove(key);
        }
    }

    fn range(
        &self,
        bounds: (Bound<RecordKey>, Bound<RecordKey>),
    ) -> impl Iterator<Item = (&RecordKey, &Slot)> {
        self.order.range(bounds).map(|key| (key, &self.slots[key]))
    }
}

/// Whether a running store reads records of this table in order.
fn is_read_in_order(key: &RecordKey) -> bool {
    !matches!(key.table, Table::Message | Table::MessageId)
}

/// A group to write: absolute states, with none for a deletion.
pub(crate) type Group = Vec<(RecordKey, Option<Record>)>;

/// The overlay's knowledge about a record.
#[derive(Debug)]
pub(crate) enum Known<'overlay> {
    /// The record exists.
    Present(&'overlay Record),
    /// The record was deleted.
    Deleted,
    /// The overlay does not know. Ask the checkpoint store.
    Nothing,
}

/// The overhead of a frame entry beside its key and record: two kinds and two lengths.
pub(crate) const ENTRY_BYTES: usize = 16;

/// How many bytes records may grow between two checkpoints without being journaled. Beyond that
/// they are journaled like others.
const UNJOURNALED_BYTES_MAX: u64 = 16 << 20;

/// The two generations and the dirty keys.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    active: Generation,
    frozen: Option<Arc<Generation>>,
    dirty: Vec<RecordKey>,
    pending_bytes: u64,
    /// The number of journaled slots of the active generation.
    journaled: usize,
    /// An upper bound of the growth of the active generation that was not journaled.
    unjournaled_bytes: u64,
}

impl Overlay {
    /// An overlay filled by recovery.
    pub(crate) fn recovered(active: Generation) -> Self {
        Self {
            journaled: active.len(),
            active,
            ..Self::default()
        }
    }

    pub(crate) fn get(&self, key: &RecordKey) -> Known<'_> {
        let slot = self
            .active
            .get(key)
            .or_else(|| self.frozen.as_ref()?.get(key));
        match slot {
            None => Known::Nothing,
            Some(Slot {
                record: Some(record),
                ..
            }) => Known::Present(record),
            Some(_) => Known::Deleted,
        }
    }

    /// Sets a record; none deletes it. `below` says whether a lower level may hold it, or an earlier
    /// state of it.
    pub(crate) fn set(&mut self, key: RecordKey, record: Option<Record>, below: bool) {
        let estimate = entry_bound(&key, record.as_ref()) as u32;
        if let Some(slot) = self.active.slots.get_mut(&key) {
            if slot.dirty {
                self.pending_bytes -= u64::from(slot.estimate);
            }
            if record.is_none() && !slot.known && !slot.shadows {
                self.journaled -= usize::from(slot.journaled);
                self.active.slots.remove(&key);
                if is_read_in_order(&key) {
                    self.active.order.remove(&key);
                }
                return;
            }
            (slot.record, slot.estimate) = (record, estimate);
            self.journaled += usize::from(!std::mem::replace(&mut slot.journaled, true));
            if !std::mem::replace(&mut slot.dirty, true) {
                self.dirty.push(key);
            }
        } else if record.is_none() && !below {
            return;
        } else {
            if is_read_in_order(&key) {
                self.active.order.insert(key.clone());
            }
            self.dirty.push(key.clone());
            let slot = Slot {
                record,
                dirty: true,
                known: below,
                shadows: below,
                journaled: true,
                estimate,
            };
            self.active.slots.insert(key, slot);
            self.journaled += 1;
        }
        self.pending_bytes += u64::from(estimate);
    }

    /// Sets a record that need not be journaled, so that it takes no room in the journal. Returns
    /// false and sets nothing in two cases: the record is larger than an earlier state that still
    /// waits for the journal, or too many bytes are unjournaled already.
    pub(crate) fn set_unjournaled(
        &mut self,
        key: &RecordKey,
        record: &Record,
        below: bool,
    ) -> bool {
        let bytes = entry_bound(key, Some(record)) as u32;
        let counted = self.active.get(key).map_or(0, |slot| slot.estimate);
        let growth = u64::from(bytes.saturating_sub(counted));
        if growth > 0 && self.unjournaled_bytes + growth > UNJOURNALED_BYTES_MAX {
            return false;
        }
        match self.active.slots.entry(key.clone()) {
            Entry::Occupied(entry) if entry.get().dirty && growth > 0 => return false,
            Entry::Occupied(mut entry) => {
                let slot = entry.get_mut();
                slot.record = Some(record.clone());
                slot.estimate = slot.estimate.max(bytes);
            }
            Entry::Vacant(entry) => {
                if is_read_in_order(entry.key()) {
                    self.active.order.insert(entry.key().clone());
                }
                let (known, shadows, record) = (below, below, Some(record.clone()));
                entry.insert(Slot {
                    record,
                    dirty: false,
                    known,
                    shadows,
                    journaled: false,
                    estimate: bytes,
                });
            }
        }
        self.unjournaled_bytes += growth;
        true
    }

    /// An upper bound of the journal bytes of the dirty records.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Takes the dirty records in their present state.
    pub(crate) fn take_group(&mut self) -> Group {
        let dirty = std::mem::take(&mut self.dirty);
        let mut group = Vec::with_capacity(dirty.len());
        self.pending_bytes = 0;
        for key in dirty {
            let Some(slot) = self.active.slots.get_mut(&key) else {
                continue;
            };
            if !slot.dirty {
                continue;
            }
            slot.dirty = false;
            if slot.record.is_some() {
                slot.known = true;
                group.push((key, slot.record.clone()));
                continue;
            }
            let was_known = std::mem::replace(&mut slot.known, false);
            if !slot.shadows {
                self.journaled -= usize::from(slot.journaled);
                self.active.remove(&key);
            }
            if was_known {
                group.push((key, None));
            }
        }
        group
    }

    /// Freezes the active generation, right after a group was taken.
    pub(crate) fn freeze(&mut self) -> Arc<Generation> {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        assert!(
            self.dirty.is_empty(),
            "a frozen generation is the end of a group"
        );
        (self.unjournaled_bytes, self.journaled) = (0, 0);
        let frozen = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    pub(crate) fn frozen(&self) -> Option<&Arc<Generation>> {
        self.frozen.as_ref()
    }

    /// Drops the frozen generation, which the checkpoint store now holds. The caller frees it
    /// outside the lock.
    pub(crate) fn drop_frozen(&mut self) -> Option<Arc<Generation>> {
        self.frozen.take()
    }

    /// Merges the frozen generation back into the active one after a failed checkpoint. Later
    /// changes win, and a record deleted since need not be written at all. Parts of the frozen
    /// generation may have reached the checkpoint store.
    pub(crate) fn merge_frozen_back(&mut self) {
        let Some(frozen) = self.frozen.take() else {
            return;
        };
        let mut merged = match Arc::try_unwrap(frozen) {
            Ok(merged) => merged,
            Err(shared) => return self.frozen = Some(shared),
        };
        merged
            .slots
            .values_mut()
            .for_each(|slot| slot.shadows = true);
        let active = std::mem::take(&mut self.active);
        merged.order.extend(active.order);
        for (key, mut slot) in active.slots {
            if let Some(earlier) = merged.slots.get(&key) {
                slot.shadows = true;
                slot.journaled |= earlier.journaled;
            }
            merged.slots.insert(key, slot);
        }
        self.active = merged;
        self.journaled = self
            .active
            .iter()
            .filter(|(_, slot)| slot.journaled)
            .count();
    }

    pub(crate) fn len(&self) -> usize {
        self.active.len() + self.frozen.as_ref().map_or(0, |frozen| frozen.len())
    }

    /// The number of records with a journaled change since the last freeze. Renewals that need not
    /// survive a crash do not count, so that they alone never lead to a checkpoint.
    pub(crate) fn journaled_len(&self) -> usize {
        self.journaled
    }

    /// The records from `from` up to and without `until`, in order. Deleted records are included,
    /// because they hide lower levels.
    pub(crate) fn range<'overlay>(
        &'overlay self,
        from: &RecordKey,
        until: &RecordKey,
    ) -> impl Iterator<Item = (&'overlay RecordKey, Option<&'overlay Record>)> {
        let bounds = (
            Bound::Included(from.clone()),
            Bound::Excluded(until.clone()),
        );
        let mut active = self.active.range(bounds.clone()).peekable();
        let mut frozen = self
            .frozen
            .as_deref()
            .map(|frozen| frozen.range(bounds))
            .into_iter()
            .flatten()
            .peekable();
        std::iter::from_fn(move || {
            let take_active = match (active.peek(), frozen.peek()) {
                (Some((active_key, _)), Some((frozen_key, _))) => {
                    if active_key == frozen_key {
                        frozen.next();
                        true
                    } else {
                        active_key < frozen_key
                    }
                }
                (Some(_), None) => true,
                (None, _) => false,
            };
            let next = if take_active {
                active.next()
            } else {
                frozen.next()
            };
            next.map(|(key, slot)| (key, slot.record.as_ref()))
        })
    }
}

/// An upper bound of a record's bytes in a frame.
pub(crate) fn entry_bound(key: &RecordKey, record: Option<&Record>) -> usize {
    ENTRY_BYTES + key.key.len() + record.map_or(0, Record::encoded_bound)
}

/// Applies a journal entry during recovery. `over_store` says whether a checkpoint store lies
/// below.
pub(crate) fn replay(
    generation: &mut Generation,
    key: RecordKey,
    record: Option<Record>,
    over_store: bool,
) {
    if record.is_none() && !over_store {
        generation.remove(&key);
        return;
    }
    let known = record.is_some();
    generation.order.insert(key.clone());
    generation.slots.insert(
        key,
        Slot {
            record,
            dirty: false,
            known,
            shadows: over_store,
            journaled: true,
            estimate: 0,
        },
    );
}

#[cfg(test)]
mod tests;
