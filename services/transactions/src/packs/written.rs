//! The packed values of one attempt: where they lie, and the holds that keep their packs from
//! compaction until its items are written.

use std::collections::BTreeMap;

use crate::{Result, model::Key, storage::records::Write};

use super::{Hold, Located, PackId, Packed};

/// The packed values of an attempt, kept as long as it may write items that name them.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) holds: Vec<Hold>,
    /// The pack of each key's last value, and its length.
    pub(crate) places: BTreeMap<Key, (PackId, u64)>,
}

impl Written {
    /// Takes the positions of all its writes, which are deleted now.
    pub(crate) fn take_places(&mut self) -> Vec<(PackId, u64)> {
        std::mem::take(&mut self.places).into_values().collect()
    }
}

/// Values on their way into packs.
#[derive(Debug, Default)]
pub(crate) struct OnTheirWay {
    pub(crate) located: BTreeMap<u32, Located>,
    pub(crate) packed: Option<Packed>,
    pub(crate) is_waited_for: bool,
}

impl OnTheirWay {
    /// The future position of a write's value, if it goes into a pack.
    pub(crate) fn located(&self, write: &Write) -> Option<Located> {
        self.located.get(&write.write).copied()
    }

    /// Waits until all of them are stored.
    pub(crate) async fn are_put(&self) -> Result<()> {
        match &self.packed {
            Some(packed) if self.is_waited_for => packed.is_put().await,
            _ => Ok(()),
        }
    }
}
