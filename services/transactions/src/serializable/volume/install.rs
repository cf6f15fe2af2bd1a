//! Installation: the slots of the log become rows, and then the log is trimmed.
//!
//! Rows are written before the installed state that makes them count, and the state before the
//! trim. Every step can be repeated: the same slots give the same rows.
//!
//! The slots themselves arm the task, and it ends when all are installed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::{
    Condition, ErrorKind, Update,
    key_value::{Name, Outcome, Test, Transacted, Value},
};
use primitives::{Cursor, Epoch, SlotIndex};

use super::{Volume, objects::Places, order::is_of_client};
use crate::{
    Result,
    broken::Broken,
    model::KeyspaceId,
    serializable::{
        apply::Change,
        model::{Key, Slot, Write},
        newest::{Content, Stored},
        overlay::LoggedSlot,
        registry::{RECORD, put},
        rows::{self, ChangeRow, InstalledState, OutcomeRow, Place, VersionRow},
    },
    storage::store::Store,
};

/// The epoch of the log whose writer wrote the installed state: an attribute of its row.
pub(super) const EPOCH: &str = "epoch";
/// Whether leases may have been granted that are not over: an attribute of the same row.
pub(super) const MAY_LEASE: &str = "leases";
/// How long slots wait to be installed.
const INSTALL_EVERY: Duration = Duration::from_millis(250);
/// The bytes of slots from which they do not wait.
const PROMPT_BYTES: usize = INSTALL_BYTES_MAX;
/// The bytes of slots that are installed at once.
const INSTALL_BYTES_MAX: usize = 8 << 20;
/// The most bytes of rows in one step.
const STEP_BYTES_MAX: usize = 2 << 20;
/// How many rows are written at once, on a store that writes each alone.
const CONCURRENT_WRITES: usize = 16;
/// How many values are read at once.
const CONCURRENT_READS: usize = 16;
/// The most values that are kept while slots are installed.
const VALUES_MAX: usize = 4_096;
/// The most deltas of a key after a whole value.
const DELTAS_MAX: usize = 8;
/// The most bytes of keys in one change row.
const CHANGE_ROW_BYTES_MAX: usize = 128 << 10;

impl Volume {
    /// Has the slots installed, if no task does already.
    pub(crate) fn arm(self: &Arc<Self>) {
        let is_much = {
            let mut state = self.state();
            let is_much = state.overlay.bytes() > PROMPT_BYTES;
            if state.overlay.is_empty() || std::mem::replace(&mut state.installs, true) {
                if is_much {
                    self.much_waits.notify_one();
                }
                return;
            }
            is_much
        };
        if is_much {
            self.much_waits.notify_one();
        }
        let volume = Arc::clone(self);
        self.context
            .spawn(async move { volume.install_all().await });
    }

    async fn install_all(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.much_waits.notified() => {}
                () = self.context.clock.sleep(INSTALL_EVERY) => {}
            }
            if self.store.is_fenced() || self.state().is_deleted {
                return;
            }
            if let Err(error) = self.install().await {
                tracing::warn!(%error, "slots of a volume are not installed; trying again");
                self.context.clock.sleep(INSTALL_EVERY).await;
            }
            self.arm_collection();
            let mut state = self.state();
            if state.overlay.is_empty() {
                state.installs = false;
                return;
            }
            if state.overlay.bytes() > PROMPT_BYTES {
                self.much_waits.notify_one();
            }
        }
    }

    /// Installs the first slots, up to [`INSTALL_BYTES_MAX`].
    pub(super) async fn install(&self) -> Result<()> {
        // Held by all who write the installed state.
        let _installing = self.installing.lock().await;
        let (batch, mut installed, visible, is_all) = {
            let state = self.state();
            let batch = state.overlay.first(INSTALL_BYTES_MAX);
            let is_all = state.overlay.count() == batch.len();
            (batch, state.installed.clone(), state.visible, is_all)
        };
        let Some(last) = batch.last() else {
            return Ok(());
        };
        self.check()?;
        if self.context.breaks(Broken::TrimsBeforeInstalling) {
            self.trim(last).await?;
        }
        let (places, objects) = self.place(&batch).await?;
        let mut step = Step::new(self);
        for row in objects {
            step.add(row).await?;
        }
        let values = self
            .write_changes(&batch, &places, &mut step, &mut installed)
            .await?;
        // The slots after the last one wrote nothing.
        installed.slot = if is_all { visible } else { last.slot };
        step.end(&installed).await?;
        {
            let state = &mut *self.state();
            state.overlay.drop_through(installed.slot);
            state.installed = installed;
            for key in batch.iter().flat_map(|written| written.changes.keys()) {
                state.newest.remove(key);
            }
            for (key, stored) in values {
                state.newest.insert(key, stored);
            }
        }
        for stage in batch.iter().flat_map(|written| &written.stages) {
            self.drop_stage(*stage).await?;
        }
        self.trim(last).await
    }

    /// Writes the version and change rows of slots, and counts their effect on the space that the
    /// volume takes. Returns the last values of keys that it has written.
    async fn write_changes(
        &self,
        batch: &[Arc<LoggedSlot>],
        places: &Places<'_>,
        step: &mut Step<'_>,
        installed: &mut InstalledState,
    ) -> Result<BTreeMap<Key, Stored>> {
        let mut values = BTreeMap::<Key, Stored>::new();
        // Whether the newest installed values are those before this batch's next change.
        let mut are_known = true;
        for written in batch {
            let changes: Vec<_> = written.changes.iter().collect();
            for some in changes.chunks(CONCURRENT_READS) {
                if values.len() > VALUES_MAX {
                    // From here on the rows have all changes so far.
                    step.write_some().await?;
                    values.clear();
                    are_known = false;
                }
                self.load(some, written.slot, are_known, &mut values)
                    .await?;
                for (key, change) in some {
                    if let Some(stored) = values.get_mut(*key) {
                        let place = places.get(&(written.slot, *key)).copied();
                        let row = version(stored, change, key, place, installed);
                        stored.since = written.slot;
                        let row = put(rows::version(self.keyspace, key, written.slot), row);
                        step.add(row).await?;
                    }
                }
            }
            for row in change_rows(self, written) {
                step.add(row).await?;
            }
        }
        Ok(values)
    }

    /// Reads the values of keys before slot `at`, unless they are known.
    async fn load(
        &self,
        changes: &[(&Key, &Change)],
        at: Slot,
        are_known: bool,
        values: &mut BTreeMap<Key, Stored>,
    ) -> Result<()> {
        if are_known {
            let state = self.state();
            for (key, _) in changes {
                if !values.contains_key(*key)
                    && let Some(stored) = state.newest.get(key, Slot(at.0 - 1))
                {
                    values.insert((*key).clone(), stored.clone());
                }
            }
        }
        let unknown = changes.iter().map(|(key, _)| *key);
        let unknown: Vec<&Key> = unknown.filter(|key| !values.contains_key(key)).collect();
        let before = Slot(at.0 - 1);
        let reads: Vec<_> = unknown.iter().map(|key| self.stored(key, before)).collect();
        let stored = try_join_all(reads).await?;
        values.extend(unknown.into_iter().cloned().zip(stored));
        for (key, change) in changes {
            // A change that replaces a value needs its length alone.
            if change.needs_base()
                && let Some(stored) = values.get_mut(*key)
            {
                *stored = self.here(key, before, stored.clone()).await?;
            }
        }
        Ok(())
    }

    /// The update that writes the installed state, unless that of a later epoch is there: a node
    /// that was replaced may still install.
    pub(super) fn put_installed(&self, installed: &InstalledState) -> Update {
        let may_lease = self.leases.may_have_any(self.context.clock.monotonic());
        let row = put_state(self.keyspace, self.epoch, installed, may_lease);
        if self.context.breaks(Broken::InstallsBehindSuccessor) {
            return row;
        }
        row.when(Condition::Any(vec![
            Condition::attribute(EPOCH, Test::Absent),
            Condition::attribute(EPOCH, Test::Below(self.epoch.0 as i64 + 1)),
        ]))
    }

    /// Trims the log up to an installed slot, once that is worth the cost.
    async fn trim(&self, last: &LoggedSlot) -> Result<()> {
        // Slots before its own seal belong to an earlier epoch, and a start of the present epoch
        // before them would void them.
        if last.epoch != self.epoch && !self.state().overlay.is_empty() {
            return Ok(());
        }
        let next = SlotIndex(last.index.0.max(self.sealed.0) + 1);
        let until = Cursor {
            next,
            epoch: self.epoch,
        };
        self.store
            .again(|| self.log.trim_depending_on(until, self.store.basis()))
            .await
    }

    /// Whether `writes` would exceed the quota, the slots installed that are not.
    pub(super) async fn exceeds_quota(&self, writes: &[Write]) -> Result<bool> {
        let may_exceed = || {
            let state = self.state();
            let quota = state.quota_bytes?;
            let adds: usize = writes.iter().map(Write::bytes_len).sum();
            let most = state.installed.bytes + (state.overlay.bytes() + adds) as u64;
            (most > quota).then_some(quota)
        };
        if may_exceed().is_none() {
            return Ok(false);
        }
        while !self.state().overlay.is_empty() {
            self.install().await?;
        }
        let Some(quota) = may_exceed() else {
            return Ok(false);
        };
        let (slot, bytes) = {
            let state = self.state();
            (state.visible, state.installed.bytes)
        };
        let mut sizes = BTreeMap::<Key, (u64, u64)>::new();
        for write in writes {
            self.count(write, slot, &mut sizes).await?;
        }
        let (before, after) = sizes.values().fold((0, 0), |(before, after), (old, new)| {
            (before + old, after + new)
        });
        Ok(after > before && bytes.saturating_sub(before) + after > quota)
    }

    /// Counts the bytes of the keys of `write` before and after it.
    async fn count(
        &self,
        write: &Write,
        slot: Slot,
        sizes: &mut BTreeMap<Key, (u64, u64)>,
    ) -> Result<()> {
        let (key, end) = match write {
            Write::Put { key, value } => (key, Some(value.len())),
            Write::Patch { key, offset, data } => (key, Some(*offset as usize + data.len())),
            Write::Delete { key } => (key, None),
            Write::Add { key, .. } | Write::Max { key, .. } => (key, Some(8)),
            Write::Append { length, data, .. } => (length, Some(8 + data.len())),
        };
        let size = |bytes: usize| (key.name().len() + bytes) as u64;
        if !sizes.contains_key(key) {
            let old = self.content(key, slot).await?;
            let old = old.map_or(0, |old| size(old.bytes_len()));
            sizes.insert(key.clone(), (old, old));
        }
        if let Some((_, now)) = sizes.get_mut(key) {
            *now = match (write, end) {
                (_, None) => 0,
                (Write::Patch { .. }, Some(end)) => size(end).max(*now),
                (_, Some(end)) => size(end),
            };
        }
        Ok(())
    }
}

/// The row of an installed state, which the writer of `epoch` writes.
pub(super) fn put_state(
    keyspace: KeyspaceId,
    epoch: Epoch,
    installed: &InstalledState,
    may_lease: bool,
) -> Update {
    let record = Value::Bytes(installed.encode());
    let attributes = vec![
        (Name::from(RECORD), record),
        (Name::from(EPOCH), Value::Integer(epoch.0 as i64)),
        (Name::from(MAY_LEASE), Value::Integer(may_lease.into())),
    ];
    Update::put(rows::installed(keyspace), attributes)
}

/// The version row after `change`, and its effect on the value and the space that the volume takes.
fn version(
    stored: &mut Stored,
    change: &Change,
    key: &Key,
    place: Option<Place>,
    installed: &mut InstalledState,
) -> Bytes {
    let after = change.apply(stored.bytes());
    let name = key.name().len();
    if let Some(old) = &stored.value {
        installed.bytes = installed
            .bytes
            .saturating_sub((name + old.bytes_len()) as u64);
        installed.keys = installed.keys.saturating_sub(1);
    }
    if let Some(new) = &after {
        installed.bytes += (name + new.len()) as u64;
        installed.keys += 1;
    }
    let length = after.as_ref().map_or(0, Bytes::len);
    let is_delta =
        change.needs_base() && stored.deltas < DELTAS_MAX && 2 * change.bytes_len() < length;
    let row = if let Some(place) = place {
        stored.deltas = 0;
        VersionRow::encode_placed(place)
    } else if is_delta {
        stored.deltas += 1;
        VersionRow::encode(change)
    } else {
        stored.deltas = 0;
        let whole = after.clone().map_or(Change::Delete, Change::Put);
        VersionRow::encode(&whole)
    };
    stored.value = after.map(Content::Here);
    row
}

/// The change rows of a slot, and the outcomes of clients' ids.
fn change_rows(volume: &Volume, written: &LoggedSlot) -> Vec<Update> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for key in written.changes.keys() {
        bytes += key.bytes_len();
        if bytes > CHANGE_ROW_BYTES_MAX {
            bytes = key.bytes_len();
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(key.clone());
        }
    }
    let decided = (0..parts.len()).map(|part| match part {
        0 => written.decided.clone(),
        _ => Vec::new(),
    });
    let rows = decided.zip(parts).zip(0..);
    let rows = rows.map(|((decided, keys), part)| {
        let row = ChangeRow {
            written_ms: written.written_ms,
            keys,
            decided,
        };
        let key = rows::change(volume.keyspace, written.slot, part);
        put(key, row.encode())
    });
    let outcomes = written
        .decided
        .iter()
        .filter(|(id, _)| is_of_client(id.id()));
    let outcomes = outcomes.map(|(id, verdict)| {
        let row = OutcomeRow {
            id: id.clone(),
            verdict: verdict.clone(),
            written_ms: written.written_ms,
        };
        put(rows::outcome(volume.keyspace, id.id()), row.encode())
    });
    rows.chain(outcomes).collect()
}

/// Rows that are written together where the store can.
struct Step<'a> {
    volume: &'a Volume,
    rows: Vec<Update>,
    keys: BTreeSet<ports::Key>,
    bytes: usize,
    /// The most rows in one step; zero if the store writes each alone.
    rows_max: usize,
}

impl<'a> Step<'a> {
    fn new(volume: &'a Volume) -> Self {
        let limits = volume.store.key_value().limits();
        let rows_max = if limits.transact_across_partitions {
            limits.transact_items_max
        } else {
            0
        };
        Self {
            volume,
            rows: Vec::new(),
            keys: BTreeSet::new(),
            bytes: 0,
            rows_max,
        }
    }

    async fn add(&mut self, row: Update) -> Result<()> {
        let bytes = match &row.change {
            ports::key_value::Change::Put(attributes) => {
                attributes.iter().map(|(_, value)| value.bytes_len()).sum()
            }
            _ => 0,
        };
        // A step changes each item once, and two slots may decide one id.
        let is_full = self.rows.len() + 1 >= self.rows_max.max(CONCURRENT_WRITES);
        if is_full || self.bytes + bytes > STEP_BYTES_MAX || self.keys.contains(&row.key) {
            self.write_some().await?;
        }
        self.bytes += bytes;
        self.keys.insert(row.key.clone());
        self.rows.push(row);
        Ok(())
    }

    /// Writes the rows so far. With them the present state is written, which fails once a successor
    /// has claimed it: its rows of the same slots name other objects.
    async fn write_some(&mut self) -> Result<()> {
        if self.rows_max > 0 && !self.rows.is_empty() {
            let installed = self.volume.state().installed.clone();
            self.rows.push(self.volume.put_installed(&installed));
        }
        self.write().await
    }

    /// Writes the rest, and then or with it the installed state.
    async fn end(mut self, installed: &InstalledState) -> Result<()> {
        let state = self.volume.put_installed(installed);
        if self.rows_max == 0 {
            self.write().await?;
        }
        self.rows.push(state);
        self.write().await
    }

    async fn write(&mut self) -> Result<()> {
        let store = &self.volume.store;
        self.bytes = 0;
        self.keys.clear();
        let rows = std::mem::take(&mut self.rows);
        if self.rows_max == 0 || rows.len() == 1 {
            for some in rows.chunks(CONCURRENT_WRITES) {
                let writes = some.iter().map(|row| finish(store, row));
                let writes: Vec<_> = writes.collect();
                try_join_all(writes).await?;
            }
            return Ok(());
        }
        write_together(store, rows).await
    }
}

/// Writes a row. The state of a later epoch ends the node.
pub(super) async fn finish(store: &Store, row: &Update) -> Result<()> {
    if let (Outcome::Conflict(_), _) = store.finish(row).await? {
        store.fence();
    }
    store.check_fence()
}

/// Writes rows in one step, repeating it as often as needed. The state of a later epoch ends the
/// node.
async fn write_together(store: &Store, rows: Vec<Update>) -> Result<()> {
    let mut delays = Store::delays();
    loop {
        store.check_fence()?;
        let rows = rows.iter().cloned();
        let rows = rows.map(|row| row.depends_on(store.basis()));
        match store.key_value().transact(rows.collect()).await {
            Ok(Transacted::Done { receipt, .. }) => return store.seen(receipt.point).map(drop),
            Ok(Transacted::Conflict { .. }) => store.fence(),
            Err(error) if error.kind() == ErrorKind::Lost => store.fence(),
            Err(error) if error.is_retryable() => store.pause(&mut delays).await,
            Err(error) => return Err(error.into()),
        }
    }
}
