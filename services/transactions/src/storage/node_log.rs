//! A node's own log: announces writes that may leave data in the store, many at a time.
//!
//! A commit queues its entry and waits for the writer's lock; the first to get it writes all
//! waiting entries as one slot. While one slot is being written the next gathers. A slow store
//! therefore sees few large slots and a fast one many small ones, without a timer. Where the store
//! can, the data of commits are written with their slot, in one step.
//!
//! Invariants
//! - Timestamps are assigned when a slot is composed, by one writer at a time: they grow with the
//!   slots (T-1).
//! - An append is answered once its slot, and with it every slot before it, is confirmed.
//! - Data that go with a slot exist only with it. Once an append is answered they are there, or
//!   never will be.
//! - A slot is done once each of its entries is decided; a successor begins at the first that is
//!   not.
//!
//! From `protocols.md`, "the fenced log" and T-2.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use ports::{Clock, DurabilityPoint, Update};
use primitives::{Cursor, Epoch, Mutant, SlotIndex, Writer};
use tokio::sync::{self, oneshot};

use crate::{
    Error, Result,
    broken::Broken,
    model::{NodeId, Position, Timestamp, Version},
    storage::{
        frontier::Progress,
        hybrid_clock::HybridClock,
        node_registry::NodeRow,
        records::{Entry, StoredRecord, StoredSlot, encode},
        slot_ages::SlotAges,
        store::Store,
    },
};

/// The most bytes of values written with one slot: a store that executes that as one step keeps
/// other calls waiting meanwhile.
pub(crate) const GROUP_BYTES_MAX: usize = 1 << 20;

/// The precision of the ages of slots.
const AGE_GRAIN: Duration = Duration::from_secs(1);

/// An entry to announce.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The entry; the timestamp of a commit is filled in.
    entry: Entry,
    /// A commit's timestamp exceeds this one.
    floor: Timestamp,
    /// The data of a commit that is to be decided in the same step.
    data: Option<Data>,
}

/// The writes of a commit before its row.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) updates: Vec<Update>,
    /// The result that the commit keeps.
    pub(crate) result: Option<Bytes>,
    /// The bytes of all of it.
    pub(crate) bytes: usize,
}

impl From<Entry> for Draft {
    fn from(entry: Entry) -> Self {
        Self {
            entry,
            floor: Timestamp::default(),
            data: None,
        }
    }
}

impl Draft {
    /// A commit whose timestamp exceeds `floor`.
    pub(crate) fn above(self, floor: Timestamp) -> Self {
        Self { floor, ..self }
    }

    /// The same commit with its data, to be decided in the same step if the store supports it.
    pub(crate) fn with(self, data: Data) -> Self {
        Self {
            data: Some(data),
            ..self
        }
    }
}

/// The position of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) slot: u64,
    /// Of a `Committing` entry: its timestamp.
    pub(crate) timestamp: Timestamp,
    /// For an entry with its data: the point of the whole commit, if its outcome is known.
    pub(crate) committed: Option<DurabilityPoint>,
}

/// The bounds of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes of entries; further entries go into the next slot.
    pub(crate) slot_bytes: usize,
    /// Items written in one step with it; with 0, commits write theirs after it.
    pub(crate) group_items: usize,
}

type Waiting = (Draft, oneshot::Sender<Result<Placed>>);

/// The log of a live node.
#[derive(Debug)]
pub(crate) struct NodeLog {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    epoch: Epoch,
    /// The slot that its writer sealed before it wrote any.
    sealed: u64,
    bounds: Bounds,
    mutant: Mutant<Broken>,
    waiting: Mutex<VecDeque<Waiting>>,
    writer: sync::Mutex<Writer>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    clock: HybridClock,
    /// The slots up to which commits are decided.
    decided: Progress,
    /// The slots that need no more work or clean-up.
    settled: Progress,
    /// The last slot published for a successor.
    published: u64,
    ages: SlotAges,
    last: u64,
    slots: u64,
    /// The last assigned timestamp, for a mutant that observes no others.
    given: Timestamp,
}

impl NodeLog {
    pub(crate) fn new(
        store: Arc<Store>,
        writer: Writer,
        clock: Arc<dyn Clock>,
        highest: HybridClock,
        bounds: Bounds,
        mutant: Mutant<Broken>,
    ) -> Self {
        let sealed = writer.sealed().0;
        let progress = Progress::from(sealed);
        let state = State {
            clock: highest,
            decided: progress.clone(),
            settled: progress,
            published: sealed,
            ages: SlotAges::from(sealed, AGE_GRAIN),
            last: sealed,
            slots: 0,
            given: Timestamp::default(),
        };
        Self {
            epoch: writer.epoch(),
            sealed,
            store,
            clock,
            bounds,
            mutant,
            waiting: Mutex::default(),
            writer: sync::Mutex::new(writer),
            state: Mutex::new(state),
        }
    }

    /// Announces `draft`. Errors: `NoRoom` and `Corrupt`: it is not in the log. `Unavailable` once
    /// the node cannot go on: it may be in the log. `OutcomeUnknown` in that case if its data may
    /// be in the store, too.
    pub(crate) async fn append(&self, draft: Draft) -> Result<Placed> {
        let brings_data = draft.data.is_some();
        let (told, mut placed) = oneshot::channel();
        self.waiting.lock().push_back((draft, told));
        loop {
            let mut writer = self.writer.lock().await;
            // The previous holder of the writer may have written this as well.
            match placed.try_recv() {
                Ok(placed) => return placed,
                // The writer was dropped in the middle, and may have written it.
                Err(oneshot::error::TryRecvError::Closed) if brings_data => {
                    return Err(Error::OutcomeUnknown);
                }
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(Error::unavailable("the writer of the log is gone"));
                }
                Err(oneshot::error::TryRecvError::Empty) => self.write_waiting(&mut writer).await,
            }
        }
    }

    /// Every later timestamp is above this one.
    pub(crate) fn observe(&self, timestamp: Timestamp) {
        self.state().clock.observe(timestamp);
    }

    /// The highest timestamp given or observed.
    pub(crate) fn highest(&self) -> Timestamp {
        self.state().clock.last()
    }

    /// Whether any node can have assigned `timestamp` by now: it is not beyond what was assigned or
    /// observed here, nor beyond the wall clock plus `slack_ms`.
    pub(crate) fn is_plausible(&self, timestamp: Timestamp, slack_ms: u64) -> bool {
        let mut reached = self.state().clock;
        reached.observe(timestamp);
        let wall = ports::Timestamp(self.clock.now().0 + slack_ms);
        reached.ahead_ms(wall) <= self.state().clock.ahead_ms(wall)
    }

    /// Notes that a commit in `slot` is decided. Returns the slot up to which all are.
    pub(crate) fn decided(&self, slot: u64) -> u64 {
        let mut state = self.state();
        state.decided.finish(slot);
        state.decided.through()
    }

    /// Notes that an entry in `slot` needs no more work or clean-up.
    pub(crate) fn settled(&self, slot: u64) {
        self.state().settled.finish(slot);
    }

    /// The slot up to which no more work or clean-up is needed.
    pub(crate) fn settled_through(&self) -> u64 {
        self.state().settled.through()
    }

    /// The slots up to which commits are decided.
    pub(crate) fn decided_through(&self) -> u64 {
        self.state().decided.through()
    }

    /// The slot up to which all are at least `age` old.
    pub(crate) fn aged_through(&self, age: Duration) -> u64 {
        let now = self.clock.monotonic();
        self.state().ages.through(now, age)
    }

    /// When more slots will be that old; `None` if all are.
    pub(crate) fn next_due(&self, age: Duration) -> Option<Duration> {
        let now = self.clock.monotonic();
        self.state().ages.next_due(now, age)
    }

    /// The last slot.
    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    /// The number of slots it has written.
    pub(crate) fn slots(&self) -> u64 {
        self.state().slots
    }

    /// The position before its first slot.
    pub(crate) fn start(&self) -> Cursor {
        self.cursor_behind(self.sealed)
    }

    /// Where a reader of this log continues after `slot`.
    pub(crate) fn cursor_behind(&self, slot: u64) -> Cursor {
        Cursor {
            next: SlotIndex(slot + 1),
            epoch: self.epoch,
        }
    }

    /// The row to publish for a successor, once more than `slots_max` slots are done that the last
    /// one does not cover.
    pub(crate) fn unpublished(&self, node: NodeId, slots_max: u64) -> Option<NodeRow> {
        let mut state = self.state();
        let through = state.settled.through();
        if through < state.published + slots_max {
            return None;
        }
        state.published = through;
        let done = self.cursor_behind(through);
        Some(NodeRow::new(node, done, state.clock.last()))
    }

    /// Whether a commit with this data may be decided in one step with its slot.
    pub(crate) fn takes(&self, data: &Data) -> bool {
        // The slot and the row are two more.
        data.updates.len() + 2 <= self.bounds.group_items && data.bytes <= GROUP_BYTES_MAX
    }

    /// Writes the waiting entries, up to the bound of a slot, and answers their callers.
    async fn write_waiting(&self, writer: &mut Writer) {
        let (drafts, told): (Vec<Draft>, Vec<_>) = self.next_batch().into_iter().unzip();
        let (slot, given, group) = self.put_together(drafts, writer.next().0);
        let payload = encode(&slot);
        let writing = self.store.writing();
        let (written, committed) = match self.write_group(writer, &payload, group).await {
            Ok(Some((slot, point))) => (Ok(slot), Some(point)),
            Ok(None) => (
                self.store
                    .append(writer, payload)
                    .await
                    .map(|(slot, _)| slot),
                None,
            ),
            Err(Error::OutcomeUnknown) => {
                let settled = self
                    .store
                    .append(writer, payload)
                    .await
                    .map(|(slot, _)| slot);
                // The node cannot go on, and the group may have been executed.
                (settled.map_err(|_| Error::OutcomeUnknown), None)
            }
            Err(error) => (Err(error), None),
        };
        writing.has_ended();
        let now = self.clock.monotonic();
        if let Ok(index) = written {
            let committing = slot
                .entries
                .iter()
                .filter(|entry| matches!(entry, Entry::Committing { .. }));
            let mut state = self.state();
            state.decided.start(index, committing.count());
            state.settled.start(index, slot.entries.len());
            state.ages.note(index, now);
            state.last = index;
            state.slots += 1;
        }
        for (told, timestamp) in told.into_iter().zip(given) {
            // Sending fails only if the engine is being dropped.
            let _ = told.send(written.clone().map(|slot| Placed {
                slot,
                timestamp,
                committed,
            }));
        }
    }

    /// Writes the slot and the data of its commits in one step. `None`: it has no data, or must be
    /// done step by step.
    async fn write_group(
        &self,
        writer: &mut Writer,
        payload: &Bytes,
        group: Vec<Update>,
    ) -> Result<Option<(u64, DurabilityPoint)>> {
        if group.is_empty() {
            return Ok(None);
        }
        if self.mutant.breaks(Broken::GroupsBeforeSlot) {
            return self.store.transact(group).await.map(|()| None);
        }
        let written = self.store.append_with(writer, payload.clone(), group).await;
        if written == Err(Error::OutcomeUnknown) && self.mutant.breaks(Broken::RefusesUnclearGroups)
        {
            self.store.append(writer, payload.clone()).await?;
            return Err(Error::NoRoom);
        }
        written
    }

    fn next_batch(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock();
        let mut batch: Vec<Waiting> = Vec::new();
        let (mut bytes, mut items, mut data_bytes) = (0, 1, 0);
        while let Some((draft, _)) = waiting.front() {
            bytes += draft.entry.bytes_len();
            items += draft.data.as_ref().map_or(0, |data| data.updates.len() + 1);
            data_bytes += draft.data.as_ref().map_or(0, |data| data.bytes);
            let is_full = bytes > self.bounds.slot_bytes
                || items > self.bounds.group_items.max(1)
                || data_bytes > GROUP_BYTES_MAX;
            if is_full && !batch.is_empty() {
                break;
            }
            batch.extend(waiting.pop_front());
        }
        batch
    }

    /// Composes a slot, with number `slot`, of the waiting entries; the timestamp of each; and the
    /// updates written with it.
    fn put_together(
        &self,
        drafts: Vec<Draft>,
        slot: u64,
    ) -> (StoredSlot, Vec<Timestamp>, Vec<Update>) {
        let wall = self.clock.now();
        let mut state = self.state();
        let (mut entries, mut given) = (
            Vec::with_capacity(drafts.len()),
            Vec::with_capacity(drafts.len()),
        );
        let mut group = Vec::new();
        for Draft {
            mut entry,
            floor,
            data,
        } in drafts
        {
            if let Entry::Committing { timestamp, .. } = &mut entry {
                if self.mutant.breaks(Broken::StampsByWallClock) {
                    state.clock = HybridClock::default();
                    let given = state.given;
                    state.given = state.clock.tick(wall, given);
                } else {
                    state.clock.tick(wall, floor);
                }
                *timestamp = state.clock.last();
            }
            if let Some(data) = data {
                group.extend(data.updates);
                group.extend(self.row(&entry, slot, data.result.as_ref()));
            }
            entries.push(entry);
            given.push(state.clock.last());
        }
        (
            StoredSlot {
                written_ms: wall.0,
                timestamp: state.clock.last(),
                entries,
            },
            given,
            group,
        )
    }

    /// The row of a commit whose entry is in `slot`.
    fn row(&self, entry: &Entry, slot: u64, result: Option<&Bytes>) -> Option<Update> {
        let Entry::Committing {
            id,
            attempt,
            named,
            timestamp,
            writes,
        } = entry
        else {
            return None;
        };
        let (version, position) = (
            Version {
                timestamp: *timestamp,
                node: attempt.node,
            },
            Position {
                log: attempt.node,
                slot,
            },
        );
        let record = StoredRecord {
            version,
            position,
            writes: writes.clone(),
            effects: 0,
        };
        let decided = (&record, result);
        Some(self.store.committing(id, *attempt, *named, decided))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::poll;
    use ports::{
        faults::{Fault, FaultSchedule, FaultyKeyValue},
        key_value::Action,
    };
    use simulated::World;

    use super::*;
    use crate::{
        Config, Parts, Service,
        model::{Attempt, PackId, TransactionId},
        storage::{layout, records::WriteSet},
    };

    /// Once it is set, no transaction of the store is answered.
    #[derive(Debug, Default)]
    struct NoTransactions(AtomicBool);

    impl FaultSchedule for NoTransactions {
        fn next(&self, operation: &'static str) -> Fault {
            let hangs = operation == "key_value.transact" && self.0.load(Ordering::Relaxed);
            if hangs { Fault::Hang } else { Fault::None }
        }
    }

    /// A commit with data that is written with its slot.
    fn commit(node: NodeId, sequence: u64) -> Draft {
        let id = TransactionId::new(format!("t{sequence}")).expect("a name");
        let row = layout::pack(PackId {
            node,
            number: sequence,
        });
        let updates = vec![Update::modify(row, vec![Action::set_integer("n", 1)])];
        let attempt = Attempt { node, sequence };
        let entry = Entry::Committing {
            id,
            attempt,
            named: true,
            timestamp: Timestamp::default(),
            writes: WriteSet::Inline(Vec::new()),
        };
        Draft::from(entry).with(Data {
            updates,
            result: None,
            bytes: 1,
        })
    }

    /// T4: a commit in a group whose writer is dropped may have committed, and no later slot is
    /// written.
    #[test]
    fn what_becomes_of_a_group_whose_writer_is_dropped_is_not_known() {
        simulated::run(async {
            let (world, faults) = (World::new(1), Arc::<NoTransactions>::default());
            let key_value = FaultyKeyValue::new(world.key_value(), faults.clone(), world.clock());
            let parts = Parts {
                key_value: Arc::new(key_value),
                clock: world.clock(),
                entropy: world.entropy(),
            };
            let service = Service::new(parts, Config::default());
            service.start().await.expect("a calm world");
            let node = service
                .engine()
                .calls
                .serving
                .node()
                .expect("it has started");
            faults.0.store(true, Ordering::Relaxed);
            let plain = Entry::Began {
                id: TransactionId::new("t3").expect("a name"),
                attempt: Attempt {
                    node: node.id,
                    sequence: 3,
                },
            };
            let [mut writer, mut other, mut plain] =
                [commit(node.id, 1), commit(node.id, 2), plain.into()]
                    .map(|draft| Box::pin(node.log.append(draft)));
            let held = node.log.writer.lock().await;
            for waits in [&mut writer, &mut other, &mut plain] {
                assert!(poll!(waits).is_pending(), "another task writes");
            }
            drop(held);
            assert!(poll!(&mut writer).is_pending(), "the store does not answer");
            drop(writer);
            assert_eq!(other.await, Err(Error::OutcomeUnknown));
            assert!(matches!(plain.await, Err(Error::Unavailable(_))));
            assert!(node.store.is_fenced(), "it starts over");
        });
    }
}
