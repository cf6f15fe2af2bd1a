//! Stages: large write sets that are stored in parts before their proposal.
//!
//! A slot names its stage. Its writes are installed like those of other slots, and then the stage is
//! deleted.

use std::collections::BTreeMap;

use bytes::Bytes;
use ports::{
    Condition, DurabilityPoint, Update,
    key_value::{Name, Scan, Value},
};

use super::Volume;
use crate::{
    Error, Result,
    broken::Broken,
    model::KeyspaceId,
    serializable::{
        deletion,
        model::{
            StageId, Write, Writes,
            proposal::{PART_BYTES_MAX, PARTS_MAX, decode_part},
        },
        registry::{put, record},
        rows,
        slots::{Changes, VolumeSlot},
    },
    storage::store::Store,
};

/// Parts in one page: some MiB.
const PAGE_PARTS: usize = 16;
/// A stage that is older is refused.
const STAGE_AGE_MS_MAX: u64 = 15 * 60_000;
/// When a stage began, by the wall clock in milliseconds: in the row that lists it.
pub(super) const BEGUN: &str = "begun";

impl Volume {
    /// Stores one part of a stage.
    pub(crate) async fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> Result<DurabilityPoint> {
        self.check()?;
        if writes.len() > PART_BYTES_MAX || part >= PARTS_MAX {
            return Err(Error::TooLarge("a stage has 65,536 parts of 300 KiB"));
        }
        self.context.check_room()?;
        let is_listed = {
            let mut state = self.state();
            if state.stages_used.contains(&stage) {
                return Err(Error::Invalid("the stage has been committed"));
            }
            state.is_stage_listed(stage)
        };
        if !is_listed {
            // Listed before a part is stored, so that a collector finds all of them.
            let begun = Value::Integer(self.context.clock.now().0 as i64);
            let listed = Update::put(
                rows::stage_listed(self.keyspace, stage),
                vec![(Name::from(BEGUN), begun)],
            );
            self.store.update(listed.when(Condition::Absent)).await?;
            self.state().stages_listed.push_back(stage);
        }
        let row = put(rows::stage_part(self.keyspace, stage, part), writes);
        let (_, point) = self.store.update(row).await?;
        Ok(point)
    }

    /// The writes of a stage; empty if they are in the proposal. `None`: the stage is incomplete,
    /// not the one that the proposal means, or too old.
    pub(super) async fn staged(&self, writes: &Writes) -> Result<Option<Vec<Write>>> {
        let Writes::Staged {
            stage,
            parts,
            bytes,
            crc,
        } = writes
        else {
            return Ok(Some(Vec::new()));
        };
        let listed = rows::stage_listed(self.keyspace, *stage);
        let listed = self.store.get(&listed).await?.value;
        let begun = listed.and_then(|item| item.integer(BEGUN));
        let now = self.context.clock.now().0;
        let is_fresh =
            begun.is_some_and(|begun| now.saturating_sub(begun as u64) <= STAGE_AGE_MS_MAX);
        if !is_fresh {
            return Ok(None);
        }
        let stored = read_parts(&self.store, self.keyspace, *stage, *parts).await?;
        if stored.len() != *parts as usize && !self.context.breaks(Broken::SlotBeforeStage) {
            return Ok(None);
        }
        let mut crc32 = crc32fast::Hasher::new();
        for part in &stored {
            crc32.update(part);
        }
        let length: usize = stored.iter().map(Bytes::len).sum();
        let is_whole = length as u64 == *bytes && crc32.finalize() == *crc;
        if !is_whole && !self.context.breaks(Broken::SlotBeforeStage) {
            return Ok(None);
        }
        let decoded = stored.iter().map(|part| decode_part(part));
        // Bytes of a client: if they do not decode, they are no stage.
        Ok(decoded
            .collect::<Result<Vec<_>>>()
            .ok()
            .map(|parts| parts.concat()))
    }

    /// Deletes a stage.
    pub(super) async fn drop_stage(&self, stage: StageId) -> Result<()> {
        let partition = rows::stage(self.keyspace, stage);
        deletion::delete_partition(&self.store, partition).await?;
        let listed = Update::delete(rows::stage_listed(self.keyspace, stage));
        self.store.finish(&listed).await?;
        self.state().stages_listed.retain(|other| *other != stage);
        Ok(())
    }
}

/// The writes of each stage that a slot names. Errors: `Corrupt` if one is missing.
pub(super) async fn of_slot(
    store: &Store,
    keyspace: KeyspaceId,
    slot: &VolumeSlot,
) -> Result<BTreeMap<StageId, Vec<Write>>> {
    let mut staged = BTreeMap::new();
    for commit in &slot.commits {
        if let Changes::Staged { stage, parts, .. } = commit.changes {
            let stored = read_parts(store, keyspace, stage, parts).await?;
            if stored.len() != parts as usize {
                let why = "the stage of a commit is missing";
                return Err(Error::Corrupt(why.into()));
            }
            let writes = stored.iter().map(|part| decode_part(part));
            staged.insert(stage, writes.collect::<Result<Vec<_>>>()?.concat());
        }
    }
    Ok(staged)
}

/// The stored parts of a stage up to `parts`.
async fn read_parts(
    store: &Store,
    keyspace: KeyspaceId,
    stage: StageId,
    parts: u32,
) -> Result<Vec<Bytes>> {
    let scan = Scan {
        until: Some(Bytes::copy_from_slice(&parts.to_be_bytes())),
        ..Scan::partition(rows::stage(keyspace, stage), PAGE_PARTS)
    };
    let (items, _) = store.scan_all(scan).await?;
    let parts = items.iter().map(|(_, item)| Ok(record(item)?.clone()));
    parts.collect()
}
