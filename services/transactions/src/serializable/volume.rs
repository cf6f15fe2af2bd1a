//! A volume on the store: its log, its rows, and its state in memory.
//!
//! ```text
//!  commit ──▶ waiting ──▶ order: validate in turn, one slot of the log ──▶ overlay, answers
//!                                                                            │
//!  reads ◀── overlay, then rows          rows ◀── install, trim the log ◀────┘
//! ```
//!
//! It belongs to one start of the node, and its log to one epoch. A successor of the node takes the
//! log over at the first use of the volume ([`take_over`]).
//!
//! A slot's number has its epoch in it, so that a slot which the store lost never has a successor
//! of the same number.
//!
//! Invariants
//! - Nothing depends on the future of a caller: a slot that is being written belongs to the volume,
//!   and the next caller finishes it.
//! - A visible slot is in the log. It is trimmed after its rows, and the installed state that names
//!   it, are written.

mod collect;
mod install;
mod late;
mod leases;
mod objects;
mod order;
mod reading;
mod sessions;
mod stage;
mod take_over;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use ports::{DurabilityPoint, Monotonic, Read};
use primitives::{AtomicCounter, Epoch, FencedLog, SlotIndex};
use tokio::sync::{self, Notify};

pub(crate) use self::take_over::read_installed;
use self::{
    leases::Leases,
    order::{Ordering, Waiting},
};
use crate::{
    Error, Result,
    context::Context,
    model::{KeyspaceId, NodeId},
    serializable::{
        lock_table::LockTable,
        model::{
            Changed, Groups, Key, NUMBERS_RESERVED, PAGE_BYTES_MAX, PinName, SessionId, Slot,
            Snapshot, StageId, Usage,
        },
        newest::Newest,
        overlay::Overlay,
        registry::put,
        rows::{self, InstalledState, ObjectId},
        snapshots::Snapshots,
    },
    storage::store::Store,
};

/// The most bytes of uninstalled slots. Beyond it, proposals wait for an installation.
const UNINSTALLED_BYTES_MAX: usize = 64 << 20;

/// How many numbers of slots an epoch leaves out, for slots of its predecessor that the store lost.
const LOST_SLOTS_MAX: u64 = 1 << 20;

/// The most stages that are remembered. Beyond it the oldest are forgotten.
const STAGES_MAX: usize = 1_024;

/// A volume of one start of the node.
#[derive(Debug)]
pub(crate) struct Volume {
    context: Arc<Context>,
    store: Arc<Store>,
    by: NodeId,
    keyspace: KeyspaceId,
    /// The volumes that it was cloned from, from its own origin on, and at which slots.
    parents: Vec<(KeyspaceId, Slot)>,
    log: FencedLog,
    epoch: Epoch,
    /// The slot of its seal.
    sealed: SlotIndex,
    waiting: Mutex<VecDeque<Waiting>>,
    ordering: sync::Mutex<Ordering>,
    /// Held while slots are installed.
    installing: sync::Mutex<()>,
    /// Much waits to be installed.
    much_waits: Notify,
    /// Locks were freed.
    freed: Notify,
    leases: Arc<Leases>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The last slot that reads at the tail see.
    visible: Slot,
    /// All up to it lies at or before this point.
    point: DurabilityPoint,
    installed: InstalledState,
    overlay: Overlay,
    newest: Newest,
    /// Whether a task installs.
    installs: bool,
    /// Whether a task collects.
    collects: bool,
    /// The last stages that slots have named.
    stages_used: VecDeque<StageId>,
    /// The last stages whose rows list them.
    stages_listed: VecDeque<StageId>,
    /// Objects that may have no version left, or no row.
    doubtful: BTreeSet<ObjectId>,
    /// Whether the next collection looks for objects that an earlier start left.
    lists_objects: bool,
    snapshots: Snapshots,
    pins: BTreeMap<PinName, Slot>,
    /// Whether the next collection looks at all versions.
    rescans: bool,
    locks: LockTable,
    holds: BTreeSet<(Key, SessionId)>,
    quota_bytes: Option<u64>,
    is_deleted: bool,
}

impl Volume {
    /// Its state at the tail.
    pub(crate) fn snapshot(&self) -> Result<Read<Snapshot>> {
        self.check()?;
        let mut state = self.state();
        let slot = state.visible;
        state.touch(slot, self.context.clock.monotonic());
        Ok(state.answer(Snapshot { slot }))
    }

    /// The space that it takes: that of the installed slots.
    pub(crate) fn usage(&self) -> Usage {
        let state = self.state();
        Usage {
            bytes: state.installed.bytes,
            keys: state.installed.keys,
            quota_bytes: state.quota_bytes,
        }
    }

    pub(crate) fn set_quota(&self, quota_bytes: Option<u64>) {
        self.state().quota_bytes = quota_bytes;
    }

    /// All further calls fail with `NoSuchVolume`. When it returns, no row is written any more.
    pub(crate) async fn delete(&self) {
        self.state().is_deleted = true;
        self.freed.notify_waiters();
        drop(self.ordering.lock().await);
        drop(self.installing.lock().await);
    }

    /// Numbers that no call returns again, also after a crash.
    pub(crate) async fn reserve_numbers(&self) -> Result<Range<u64>> {
        self.check()?;
        let counter =
            AtomicCounter::new(self.store.key_value().clone(), rows::numbers(self.keyspace));
        let amount = NUMBERS_RESERVED as i64;
        // A lost answer skips numbers.
        let counted = self.store.again(|| counter.add(amount)).await?;
        let point = self.store.seen(counted.receipt.point)?;
        self.store.externalize(point).await?;
        let first = counted.value as u64;
        Ok(first..first + NUMBERS_RESERVED)
    }

    /// Keeps the state at `slot` readable.
    pub(crate) async fn pin(&self, name: PinName, slot: Slot) -> Result<()> {
        self.check()?;
        // Noted first, so that no collection passes the slot meanwhile.
        let before = {
            let state = &mut *self.state();
            state.check_slot(slot)?;
            state.pins.insert(name.clone(), slot)
        };
        let row = put(
            rows::pin(self.keyspace, &name),
            slot.0.to_be_bytes().to_vec().into(),
        );
        let stored = match self.store.update(row).await {
            Ok((_, point)) => self.store.externalize(point).await,
            Err(error) => Err(error),
        };
        if stored.is_err() {
            let pins = &mut self.state().pins;
            pins.remove(&name);
            pins.extend(before.map(|before| (name, before)));
        }
        stored
    }

    /// Installs all slots up to `through`.
    pub(crate) async fn install_through(&self, through: Slot) -> Result<()> {
        loop {
            {
                let state = self.state();
                if state.installed.slot >= through || state.overlay.is_empty() {
                    return Ok(());
                }
            }
            self.install().await?;
        }
    }

    /// The rows of a new volume `to` that reads through to this one at `slot`, which a pin keeps.
    /// Its usage is that of now.
    pub(crate) async fn begin_clone(&self, slot: Slot, to: KeyspaceId) -> Result<()> {
        self.pin(rows::pin_of_clone(to), slot).await?;
        self.install_through(slot).await?;
        let (bytes, keys) = {
            let state = self.state();
            (state.installed.bytes, state.installed.keys)
        };
        let installed = InstalledState {
            bytes,
            keys,
            ..InstalledState::default()
        };
        let row = put(rows::installed(to), installed.encode());
        self.store.update(row).await?;
        let counter = |keyspace| {
            let key_value = self.store.key_value().clone();
            AtomicCounter::new(key_value, rows::numbers(keyspace))
        };
        let (from, to) = (counter(self.keyspace), counter(to));
        let given = self.store.again(|| from.read()).await?.value;
        let counted = self.store.again(|| to.add(given)).await?;
        self.store.seen(counted.receipt.point).map(drop)
    }

    /// The volumes that a clone of it at `slot` reads.
    pub(crate) fn parents_of_clone(&self, slot: Slot) -> Vec<(KeyspaceId, Slot)> {
        let own = std::iter::once((self.keyspace, slot));
        own.chain(self.parents.iter().copied()).collect()
    }

    /// Removes a pin.
    pub(crate) async fn unpin(self: &Arc<Self>, name: &PinName) -> Result<()> {
        self.check()?;
        let is_old = {
            let state = self.state();
            let pin = state.pins.get(name);
            pin.is_some_and(|slot| *slot < state.installed.horizon)
        };
        if is_old {
            let rescan = put(rows::rescan(self.keyspace), bytes::Bytes::new());
            self.store.finish(&rescan).await?;
        }
        let row = ports::Update::delete(rows::pin(self.keyspace, name));
        self.store.finish(&row).await?;
        let mut state = self.state();
        if let Some(slot) = state.pins.remove(name) {
            // Only a scan of all versions finds the versions that this pin alone has kept.
            state.rescans |= slot < state.installed.horizon;
        }
        drop(state);
        self.arm_collection();
        Ok(())
    }

    /// All pins except those of clones, in the order of their names.
    pub(crate) fn pins(&self) -> Result<Vec<(PinName, Slot)>> {
        self.check()?;
        let state = self.state();
        let pins = state.pins.iter();
        let pins = pins.filter(|(name, _)| !rows::is_of_clone(name));
        Ok(pins.map(|(name, slot)| (name.clone(), *slot)).collect())
    }

    /// The keys that were written after `slot`.
    pub(crate) async fn changed_since(&self, slot: Slot, groups: &Groups) -> Result<Read<Changed>> {
        self.check()?;
        let (to, installed, mut keys) = {
            let state = self.state();
            if state.is_unknown(slot) || slot < state.installed.changes_from {
                let to = state.visible;
                return Ok(state.answer(Changed::Everything { to }));
            }
            let keys: BTreeSet<Key> = state.overlay.written_since(slot).cloned().collect();
            (state.visible, state.installed.slot, keys)
        };
        let mut bytes = 0;
        let is_complete = self
            .each_change(slot, installed, |row| {
                bytes += row.keys.iter().map(Key::bytes_len).sum::<usize>();
                keys.extend(row.keys);
                bytes <= 4 * PAGE_BYTES_MAX
            })
            .await?;
        let state = self.state();
        keys.retain(|key| groups.contain(key));
        let bytes: usize = keys.iter().map(Key::bytes_len).sum();
        let is_known = is_complete && slot >= state.installed.changes_from;
        Ok(state.answer(if !is_known || bytes > PAGE_BYTES_MAX {
            Changed::Everything { to }
        } else {
            let keys = keys.into_iter().collect();
            Changed::Keys { to, keys }
        }))
    }

    /// Errors: `Unavailable` once the node is fenced, `NoSuchVolume` once it is deleted.
    fn check(&self) -> Result<()> {
        self.store.check_fence()?;
        if self.state().is_deleted {
            return Err(Error::NoSuchVolume);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The number of a slot of its log.
    fn number(&self, index: SlotIndex) -> Slot {
        number(self.epoch, index)
    }
}

impl State {
    fn answer<T>(&self, value: T) -> Read<T> {
        let point = self.point;
        Read { value, point }
    }

    /// Errors: `SnapshotTooOld`, or `Invalid` for a slot that is not written yet.
    fn check_slot(&self, slot: Slot) -> Result<()> {
        let is_pinned = || self.pins.values().any(|pin| *pin == slot);
        if slot > self.visible {
            return Err(Error::Invalid("the slot of a read is not written yet"));
        }
        if self.is_unknown(slot) || slot < self.installed.horizon && !is_pinned() {
            return Err(Error::SnapshotTooOld);
        }
        Ok(())
    }

    /// Up to which slot change rows may go: the transaction of a pin may still commit.
    fn changes_until(&self, slot: Slot) -> Slot {
        let pins = self
            .pins
            .iter()
            .filter(|(name, _)| !rows::is_of_clone(name));
        pins.map(|(_, pin)| *pin).fold(slot, Slot::min)
    }

    /// Whether there is, or will be, something to collect.
    fn has_garbage(&self) -> bool {
        let installed = &self.installed;
        let has_versions = installed.collected < installed.slot;
        let has_changes = installed.changes_from < self.changes_until(installed.slot);
        let has_objects = self.lists_objects || !self.doubtful.is_empty();
        let has_stages = !self.stages_listed.is_empty();
        has_versions || has_changes || self.rescans || has_stages || has_objects
    }

    /// Notes that a call names `slot`, which protects its versions.
    fn touch(&mut self, slot: Slot, now: Monotonic) {
        if slot >= self.installed.horizon && slot <= self.visible {
            self.snapshots.touch(slot, now);
        }
    }

    /// Notes the stages that a slot names.
    fn use_stages(&mut self, stages: &BTreeSet<StageId>) {
        self.stages_used.extend(stages);
        while self.stages_used.len() > STAGES_MAX {
            self.stages_used.pop_front();
        }
    }

    /// Whether it is known that the stage is listed.
    fn is_stage_listed(&mut self, stage: StageId) -> bool {
        while self.stages_listed.len() > STAGES_MAX {
            self.stages_listed.pop_front();
        }
        self.stages_listed.contains(&stage)
    }

    /// Whether the store has lost the slot.
    fn is_unknown(&self, slot: Slot) -> bool {
        let gaps = &self.installed.gaps;
        gaps.iter()
            .any(|(before, seal)| *before < slot && slot < *seal)
    }
}

/// The number of slot `index` of a volume's log, in `epoch`.
fn number(epoch: Epoch, index: SlotIndex) -> Slot {
    Slot(epoch.0 * LOST_SLOTS_MAX + index.0)
}
