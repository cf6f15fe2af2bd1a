//! What one attempt has put into packs.

use std::collections::BTreeMap;

use crate::{Result, model::Key, storage::records::Write};

use super::{Hold, Located, PackId, Packed};

/// What an attempt has put into packs, for as long as it may write items that name them.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) holds: Vec<Hold>,
    /// Where the last value of each key lies, and how long it is.
    pub(crate) places: BTreeMap<Key, (PackId, u64)>,
}

impl Written {
    /// Where everything lay that it wrote and that is deleted now.
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
    /// Where the value of a write will lie, if it goes into a pack.
    pub(crate) fn located(&self, write: &Write) -> Option<Located> {
        self.located.get(&write.write).copied()
    }

    /// Waits until all of them lie there.
    pub(crate) async fn are_put(&self) -> Result<()> {
        match &self.packed {
            Some(packed) if self.is_waited_for => packed.is_put().await,
            _ => Ok(()),
        }
    }
}
