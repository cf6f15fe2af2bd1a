//! How a start of the node begins to write a volume's log.
//!
//! It seals the log, reads the installed state, and replays the later slots. Change rows have the
//! earlier writes and decisions ([`late`](super::late)).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use ports::{
    Condition, DurabilityPoint, Monotonic,
    key_value::{Outcome, Scan},
};
use primitives::{Cursor, Epoch, FencedLog};
use tokio::sync::{self, Notify};

use super::{
    State, Volume,
    install::{EPOCH, MAY_LEASE, put_state},
    leases::Leases,
    number,
    order::Ordering,
    stage,
};
use crate::{
    Error, Result,
    broken::Broken,
    context::Context,
    model::{KeyspaceId, NodeId},
    serializable::{
        lock_table::LockTable,
        model::{PinName, Slot},
        newest::Newest,
        overlay::{LoggedSlot, Overlay},
        registry::{VolumeRow, record},
        rows::{self, InstalledState, RESCAN},
        slots::VolumeSlot,
        snapshots::Snapshots,
        validate::{Limits, Noted, Validator},
    },
    storage::{layout, node_registry, store::Store},
};

/// The most take-overs that the installed state remembers. Proposals from before are too old.
const GAPS_MAX: usize = 64;
/// Pins in one page.
const PAGE_PINS: usize = 1_000;

impl Volume {
    /// Takes the log of the volume `row` over, for node `by`. Errors: `Unavailable`, also if there
    /// is a later start of the node.
    pub(crate) async fn take_over(
        context: &Arc<Context>,
        store: &Arc<Store>,
        by: NodeId,
        row: VolumeRow,
    ) -> Result<Self> {
        let keyspace = row.keyspace;
        let log = FencedLog::new(store.key_value().clone(), layout::sequencer_log(keyspace));
        let (writer, slots) = if context.breaks(Broken::VolumeDoesNotSeal) {
            let start = store.again(|| log.start()).await?;
            store.again(|| log.take_over_without_seal(start)).await?
        } else {
            store.again(|| log.take_over(Cursor::START)).await?
        };
        store.seen(writer.point())?;
        if context.is_alone() {
            check_newest(store, by).await?;
        }
        let (epoch, sealed) = (writer.epoch(), writer.sealed());
        let visible = number(epoch, sealed);
        let (installed, point, may_have_leases) =
            claim(context, store, keyspace, epoch, visible, &slots).await?;
        let mut validator =
            Validator::broken(installed.slot, Limits::default(), context.config.mutant);
        let overlay = replay(store, keyspace, &slots, installed.slot, &mut validator).await?;
        // The seal is a slot that writes nothing.
        validator.note(visible, &empty(by), Noted::default());
        tracing::info!(
            keyspace = keyspace.0,
            epoch = epoch.0,
            "the log of a volume is taken over"
        );
        let (pins, rescans) = read_pins(store, keyspace).await?;
        let state = State {
            pins,
            quota_bytes: row.quota_bytes,
            rescans,
            lists_objects: context.volume_objects.is_some(),
            snapshots: Snapshots::starting_at(visible, context.clock.monotonic()),
            ..State::starting_at(visible, point, installed, overlay)
        };
        Ok(Self {
            context: Arc::clone(context),
            store: Arc::clone(store),
            by,
            keyspace,
            parents: row.parents,
            log,
            epoch,
            sealed,
            waiting: Mutex::default(),
            ordering: sync::Mutex::new(Ordering::new(writer, validator)),
            installing: sync::Mutex::default(),
            much_waits: Notify::new(),
            freed: Notify::new(),
            leases: Leases::new(context, epoch, may_have_leases),
            state: Mutex::new(state),
        })
    }
}

/// Fences this node if a later one has started.
async fn check_newest(store: &Store, by: NodeId) -> Result<()> {
    let later = node_registry::list_from(store, NodeId(by.0 + 1)).await?;
    if later.is_empty() {
        return Ok(());
    }
    store.fence();
    store.check_fence()
}

/// Makes the installed state that of `epoch`, so that predecessors do not write it any more. Notes
/// that the slots between the last one in the log and the seal are lost. Returns the state, and
/// whether predecessors may have granted leases: that stays noted until those are over.
async fn claim(
    context: &Context,
    store: &Store,
    keyspace: KeyspaceId,
    epoch: Epoch,
    seal: Slot,
    slots: &[primitives::Slot],
) -> Result<(InstalledState, DurabilityPoint, bool)> {
    loop {
        let read = store.get(&rows::installed(keyspace)).await?;
        let (mut installed, condition, of, may_lease) = match &read.value {
            Some(item) => (
                InstalledState::decode(record(item)?)?,
                Condition::VersionIs(item.version),
                item.integer(EPOCH).map_or(0, |of| of as u64),
                item.integer(MAY_LEASE).is_some_and(|may| may != 0),
            ),
            None => (InstalledState::default(), Condition::Absent, 0, false),
        };
        if of > epoch.0 {
            store.fence();
            store.check_fence()?;
        }
        if of == epoch.0 {
            // The answer to an earlier try was lost.
            return Ok((installed, read.point, may_lease));
        }
        let seals = installed.gaps.iter().map(|(_, seal)| *seal);
        let written = slots.iter().map(|slot| number(slot.epoch, slot.index));
        let last = seals.chain(written).fold(installed.slot, Slot::max);
        if !context.breaks(Broken::ForgetsLostSlots) {
            installed.gaps.push((last, seal));
        }
        if installed.gaps.len() > GAPS_MAX {
            let (_, seal) = installed.gaps.remove(0);
            installed.changes_from = installed.changes_from.max(seal);
        }
        let claimed = put_state(keyspace, epoch, &installed, may_lease).when(condition);
        if let (Outcome::Done(_), point) = store.finish(&claimed).await? {
            return Ok((installed, point, may_lease));
        }
    }
}

impl State {
    fn starting_at(
        visible: Slot,
        point: DurabilityPoint,
        installed: InstalledState,
        overlay: Overlay,
    ) -> Self {
        Self {
            visible,
            point,
            installed,
            stages_used: overlay.stages().collect(),
            overlay,
            newest: Newest::new(),
            stages_listed: VecDeque::new(),
            doubtful: BTreeSet::new(),
            lists_objects: false,
            snapshots: Snapshots::starting_at(visible, Monotonic::default()),
            collects: false,
            rescans: false,
            installs: false,
            pins: BTreeMap::new(),
            locks: LockTable::starting_at(visible),
            holds: BTreeSet::new(),
            quota_bytes: None,
            is_deleted: false,
        }
    }
}

/// The slots after `installed`, which the validator notes.
async fn replay(
    store: &Store,
    keyspace: KeyspaceId,
    slots: &[primitives::Slot],
    installed: Slot,
    validator: &mut Validator,
) -> Result<Overlay> {
    let mut overlay = Overlay::default();
    for slot in slots {
        let at = number(slot.epoch, slot.index);
        if at <= installed {
            continue;
        }
        let decoded = VolumeSlot::decode(&slot.payload)?;
        let staged = stage::of_slot(store, keyspace, &decoded).await?;
        let written = LoggedSlot {
            slot: at,
            index: slot.index,
            epoch: slot.epoch,
            written_ms: decoded.written_ms,
            changes: decoded.folded(&staged)?,
            decided: decoded.decided(at).collect(),
            stages: decoded.stages(),
        };
        let noted = Noted {
            written: written.changes.keys().cloned().collect(),
            numbers: BTreeMap::new(),
        };
        validator.note(at, &decoded, noted);
        overlay.push(Arc::new(written));
    }
    Ok(overlay)
}

/// The installed state of a volume; that of an empty one if there is none.
pub(crate) async fn read_installed(store: &Store, keyspace: KeyspaceId) -> Result<InstalledState> {
    match store.get(&rows::installed(keyspace)).await?.value {
        Some(item) => InstalledState::decode(record(&item)?),
        None => Ok(InstalledState::default()),
    }
}

/// The pins, and whether a collection of all versions is due.
async fn read_pins(store: &Store, keyspace: KeyspaceId) -> Result<(BTreeMap<PinName, Slot>, bool)> {
    let scan = Scan::partition(rows::pins(keyspace), PAGE_PINS);
    let (mut items, _) = store.scan_all(scan).await?;
    let rescans = items.pop_if(|(sort, _)| sort == RESCAN).is_some();
    let corrupt = || Error::Corrupt("a pin of a volume".into());
    let pins = items.into_iter().map(|(sort, item)| {
        let name = std::str::from_utf8(&sort).map_err(|_| corrupt())?;
        let slot = <[u8; 8]>::try_from(&record(&item)?[..]).map_err(|_| corrupt())?;
        Ok((PinName::new(name)?, Slot(u64::from_be_bytes(slot))))
    });
    Ok((pins.collect::<Result<_>>()?, rescans))
}

fn empty(by: NodeId) -> VolumeSlot {
    VolumeSlot {
        written_ms: 0,
        by,
        commits: Vec::new(),
        closed: Vec::new(),
    }
}
