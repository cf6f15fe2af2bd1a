//! Collection: deletes the versions that no read may name any more, and then the rows that
//! remember them.
//!
//! The horizon is stored before any version goes, and reads check it after they have read. The
//! change rows name the keys that were written, so only those are looked at; after a pin is removed,
//! all are. Every step can be repeated.
//!
//! Installed slots arm the task. It ends when nothing is left to collect.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{Item, Update, key_value::Scan};

use super::{Volume, install::finish, stage::BEGUN};
use crate::{
    Error, Result,
    broken::Broken,
    serializable::{
        apply::Change,
        model::{Key, Slot, StageId},
        registry::record,
        rows::{self, ChangeRow, InstalledState, ObjectId, OutcomeRow, VersionRow},
    },
};

/// The wait between two rounds.
const COLLECT_EVERY: Duration = Duration::from_secs(10);
/// How long change rows are kept.
const CHANGES_KEPT_MS: u64 = 15 * 60_000;
/// How long a stage is kept that no slot names.
const STAGES_KEPT_MS: u64 = 30 * 60_000;
/// How long outcomes of clients' ids are kept.
const OUTCOMES_KEPT_MS: u64 = 7 * 24 * 60 * 60_000;
/// How often they are looked through.
const OUTCOMES_SWEPT_EVERY_MS: u64 = 6 * 60 * 60_000;
/// Rows in one page.
const PAGE_ROWS: usize = 256;

/// A version of a key, as its row tells.
struct Version {
    slot: Slot,
    sort: Bytes,
    /// Whether it needs no older one.
    is_whole: bool,
    is_gone: bool,
    /// The object that its value lies in.
    object: Option<ObjectId>,
}

impl Volume {
    /// Has old versions collected, if no task does already.
    pub(crate) fn arm_collection(self: &Arc<Self>) {
        if !self.context.config.collects {
            return;
        }
        {
            let mut state = self.state();
            if !state.has_garbage() || std::mem::replace(&mut state.collects, true) {
                return;
            }
        }
        let volume = Arc::clone(self);
        self.context
            .spawn(async move { volume.collect_all().await });
    }

    async fn collect_all(self: Arc<Self>) {
        loop {
            self.context.clock.sleep(COLLECT_EVERY).await;
            if self.check().is_err() {
                return;
            }
            let collected = self.collect().await;
            let mut state = self.state();
            if let Err(error) = collected {
                tracing::warn!(%error, "old versions of a volume are not collected; trying again");
            } else if !state.has_garbage() {
                state.collects = false;
                return;
            }
        }
    }

    /// One round.
    async fn collect(&self) -> Result<()> {
        let now = self.context.clock.monotonic();
        let (horizon, collected, rescans) = {
            let mut state = self.state();
            let visible = state.visible;
            state.snapshots.note(visible, now);
            let horizon = state.snapshots.horizon(now).unwrap_or_default();
            let horizon = if self.context.breaks(Broken::CollectsAboveHorizon) {
                state.installed.slot
            } else {
                horizon.min(state.installed.slot)
            };
            let horizon = horizon.max(state.installed.horizon);
            (horizon, state.installed.collected, state.rescans)
        };
        if horizon > collected {
            self.set_installed(|installed| installed.horizon = horizon)
                .await?;
            self.collect_changed(collected, horizon).await?;
        }
        if rescans {
            self.state().rescans = false;
            let rescanned = self.collect_everything(horizon).await;
            self.state().rescans |= rescanned.is_err();
            rescanned?;
            if !self.state().rescans {
                let rescan = Update::delete(rows::rescan(self.keyspace));
                self.store.finish(&rescan).await?;
            }
        }
        self.collect_objects().await?;
        self.collect_changes().await?;
        self.collect_stages().await?;
        self.collect_outcomes().await
    }

    /// Changes the installed state, on the store first.
    pub(super) async fn set_installed(
        &self,
        change: impl FnOnce(&mut InstalledState),
    ) -> Result<()> {
        let _installing = self.installing.lock().await;
        let mut installed = self.state().installed.clone();
        change(&mut installed);
        finish(&self.store, &self.put_installed(&installed)).await?;
        self.state().installed = installed;
        Ok(())
    }

    /// Collects the versions of the keys that were written after `from` and up to `horizon`.
    async fn collect_changed(&self, from: Slot, horizon: Slot) -> Result<()> {
        let mut keys = BTreeSet::new();
        self.each_change(from, horizon, |row| {
            keys.extend(row.keys);
            true
        })
        .await?;
        for key in &keys {
            self.collect_key(key, horizon).await?;
        }
        self.set_installed(|installed| installed.collected = horizon)
            .await
    }

    /// Collects the versions of all keys.
    async fn collect_everything(&self, horizon: Slot) -> Result<()> {
        for partition in rows::version_shards(self.keyspace) {
            let mut scan = Scan::partition(partition, PAGE_ROWS);
            let mut last = None::<Key>;
            loop {
                let page = self.store.scan(&scan).await?.value;
                for (sort, _) in page.items {
                    let (key, _) = rows::version_of(&sort).ok_or_else(corrupt)?;
                    if last.as_ref() != Some(&key) {
                        self.collect_key(&key, horizon).await?;
                        last = Some(key);
                    }
                }
                match page.next {
                    Some(next) => scan.from = next,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Deletes the versions of `key` that no read at or after `horizon` needs, and no pin.
    async fn collect_key(&self, key: &Key, horizon: Slot) -> Result<()> {
        let scan = rows::versions(self.keyspace, key, horizon, PAGE_ROWS);
        let partition = scan.partition.clone();
        let (items, _) = self.store.scan_all(scan).await?;
        let versions = items.into_iter().map(|(sort, item)| version(sort, &item));
        let versions: Vec<Version> = versions.collect::<Result<_>>()?;
        let mut moments: Vec<Slot> = vec![horizon];
        if !self.context.breaks(Broken::CollectsPinned) {
            moments.extend(self.state().pins.values().filter(|pin| **pin < horizon));
        }
        let mut kept = BTreeSet::new();
        for moment in moments {
            let older = versions.iter().filter(|version| version.slot <= moment);
            for version in older {
                kept.insert(version.slot);
                if version.is_whole {
                    break;
                }
            }
        }
        let oldest = kept.first().copied();
        // Oldest first: a value that a deletion hides must not come back. The deletion goes after
        // the value.
        let gone = |version: &&Version| {
            let is_bottom = self.parents.is_empty() && oldest == Some(version.slot);
            let is_unneeded = version.is_gone && is_bottom;
            !kept.contains(&version.slot) || is_unneeded
        };
        for version in versions.iter().rev().filter(gone) {
            if let Some(object) = version.object {
                self.doubt(object).await?;
            }
            let row = ports::Key::new(&partition, &version.sort);
            self.store.finish(&Update::delete(row)).await?;
        }
        Ok(())
    }

    /// Deletes change rows that are collected and old.
    async fn collect_changes(&self) -> Result<()> {
        let (from, until) = {
            let state = self.state();
            let collected = state.installed.collected;
            (state.installed.changes_from, state.changes_until(collected))
        };
        if from >= until {
            return Ok(());
        }
        let (old, through) = self.old_changes(from, until).await?;
        if through > from {
            self.set_installed(|installed| installed.changes_from = through)
                .await?;
        }
        let partition = rows::changes(self.keyspace);
        for sort in old {
            let row = ports::Key::new(&partition, sort);
            self.store.finish(&Update::delete(row)).await?;
        }
        Ok(())
    }

    /// The change rows after `from` and up to `until` that are kept no longer, and the slot up to
    /// which there is no other.
    async fn old_changes(&self, from: Slot, until: Slot) -> Result<(Vec<Bytes>, Slot)> {
        let now = self.context.clock.now().0;
        let (mut old, mut through) = (Vec::new(), from);
        let mut scan = Scan {
            from: rows::change(self.keyspace, Slot(from.0 + 1), 0).sort(),
            until: Some(rows::change(self.keyspace, Slot(until.0 + 1), 0).sort()),
            ..Scan::partition(rows::changes(self.keyspace), PAGE_ROWS)
        };
        loop {
            let page = self.store.scan(&scan).await?.value;
            for (sort, item) in page.items {
                let row = ChangeRow::decode(record(&item)?)?;
                if now.saturating_sub(row.written_ms) < CHANGES_KEPT_MS {
                    return Ok((old, through));
                }
                through = rows::change_slot(&sort).ok_or_else(corrupt)?;
                old.push(sort);
            }
            match page.next {
                Some(next) => scan.from = next,
                None => return Ok((old, until)),
            }
        }
    }

    /// Deletes stages that no slot has named for long.
    async fn collect_stages(&self) -> Result<()> {
        let now = self.context.clock.now().0;
        let scan = Scan::partition(rows::stages(self.keyspace), PAGE_ROWS);
        let (items, _) = self.store.scan_all(scan).await?;
        for (sort, item) in items {
            let begun = item.integer(BEGUN).unwrap_or_default() as u64;
            let id = <[u8; 16]>::try_from(&sort[..]).map_err(|_| corrupt())?;
            if now.saturating_sub(begun) > STAGES_KEPT_MS {
                self.drop_stage(StageId(id)).await?;
            }
        }
        Ok(())
    }

    /// Deletes outcomes of clients' ids that are kept no longer.
    async fn collect_outcomes(&self) -> Result<()> {
        let now = self.context.clock.now().0;
        let swept = self.state().installed.outcomes_swept_ms;
        if now.saturating_sub(swept) < OUTCOMES_SWEPT_EVERY_MS {
            return Ok(());
        }
        for partition in rows::outcome_buckets(self.keyspace) {
            let scan = Scan::partition(partition.clone(), PAGE_ROWS);
            let (items, _) = self.store.scan_all(scan).await?;
            for (sort, item) in items {
                let row = OutcomeRow::decode(record(&item)?)?;
                if now.saturating_sub(row.written_ms) > OUTCOMES_KEPT_MS {
                    let row = ports::Key::new(&partition, &sort);
                    self.store.finish(&Update::delete(row)).await?;
                }
            }
        }
        self.set_installed(|installed| installed.outcomes_swept_ms = now)
            .await
    }
}

fn version(sort: Bytes, item: &Item) -> Result<Version> {
    let (_, slot) = rows::version_of(&sort).ok_or_else(corrupt)?;
    let (is_whole, is_gone, object) = match VersionRow::decode(record(item)?)? {
        rows::Version::Here(change) => (!change.needs_base(), change == Change::Delete, None),
        rows::Version::Placed(place) => (true, false, Some(place.object)),
    };
    Ok(Version {
        slot,
        sort,
        is_whole,
        is_gone,
        object,
    })
}

fn corrupt() -> Error {
    Error::Corrupt("a row of a volume has a key that no writer makes".into())
}
