//! What one attempt has put into packs.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{Entry, Hold, Located, PackId, Packed};
use crate::{
    Result,
    attempts::transaction::Transaction,
    broken::Broken,
    engine::Core,
    model::Key,
    storage::records::{Place, Write},
};

/// What an attempt has put into packs, for as long as it may write items that name them.
#[derive(Debug, Default)]
pub(crate) struct Written {
    holds: Vec<Hold>,
    /// Where the last value of each key lies, and how long it is.
    places: BTreeMap<Key, (PackId, u64)>,
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
    located: BTreeMap<u32, Located>,
    packed: Option<Packed>,
    is_waited_for: bool,
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

impl Core {
    /// Puts into packs what of these values goes there. What they replace of the same attempt is dead.
    pub(crate) fn pack_writes<'a>(
        self: &Arc<Self>,
        transaction: &Transaction,
        writes: impl Iterator<Item = (&'a Write, Option<&'a Bytes>)>,
    ) -> OnTheirWay {
        let Transaction { attempt, node, .. } = transaction;
        if self.objects.is_none() {
            return OnTheirWay::default();
        }
        let (mut entries, mut replacing) = (Vec::new(), Vec::new());
        for (write, value) in writes {
            match (write.place, value) {
                (Place::Packed { .. }, Some(value)) => entries.push(Entry {
                    key: write.key.clone(),
                    attempt: *attempt,
                    write: write.write,
                    value: value.clone(),
                }),
                _ => replacing.push(&write.key),
            }
        }
        let numbers: Vec<_> = entries
            .iter()
            .map(|entry| (entry.key.clone(), entry.write))
            .collect();
        let lengths: Vec<_> = entries
            .iter()
            .map(|entry| entry.value.len() as u64)
            .collect();
        let packed = (!entries.is_empty()).then(|| self.pack(node, entries));
        let mut state = transaction.state();
        let written = &mut state.packed;
        let mut located = BTreeMap::new();
        let mut replaced: Vec<_> = replacing
            .into_iter()
            .filter_map(|key| written.places.remove(key))
            .collect();
        if let Some(packed) = &packed {
            written.holds.extend(packed.holds.iter().cloned());
            for (((key, write), bytes), place) in
                numbers.into_iter().zip(lengths).zip(&packed.located)
            {
                located.insert(write, *place);
                replaced.extend(written.places.insert(key, (place.pack, bytes)));
            }
        }
        drop(state);
        for (pack, bytes) in replaced {
            node.store.free(pack, bytes);
        }
        OnTheirWay {
            located,
            packed,
            is_waited_for: !self.context.config.is_broken(Broken::RecordBeforePack),
        }
    }
}
