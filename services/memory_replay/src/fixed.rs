//! A static cluster of functions, to compare with: nothing is added or released, and the objects used
//! least recently make room for new ones. All of it is the replay's model.

use std::collections::BTreeMap;

use memory::least_recently_used::LeastRecentlyUsed;
use ports::Entropy as _;

use crate::{
    chance::Chance,
    windowed::{CHUNKS, Fragment},
};

/// A function of a static cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FixedFunction {
    /// Its group.
    pub group: u32,
    /// Its index in the group.
    pub index: u8,
}

#[derive(Debug)]
struct Resident {
    group: u32,
    /// A bit per chunk.
    present: u16,
    bytes: u64,
}

/// A static cluster.
#[derive(Debug)]
pub struct Fixed {
    group_bytes: Vec<u64>,
    bytes_max: u64,
    recovers: bool,
    functions: u32,
    fragments: BTreeMap<Fragment, Resident>,
    order: LeastRecentlyUsed<Fragment>,
}

impl Fixed {
    /// An empty cluster. A function that fails is recovered, or loses its chunks.
    pub fn new(functions: u32, storage_bytes: u64, recovers: bool) -> Self {
        let groups = (functions / u32::from(CHUNKS)).max(1) as usize;
        Self {
            group_bytes: vec![0; groups],
            bytes_max: u64::from(functions) * storage_bytes,
            recovers,
            functions,
            fragments: BTreeMap::new(),
            order: LeastRecentlyUsed::default(),
        }
    }

    /// The functions.
    pub fn functions(&self) -> usize {
        self.functions as usize
    }

    /// Stores a fragment in the emptiest group.
    pub fn store(&mut self, fragment: Fragment, chunk_bytes: u64) {
        let bytes = chunk_bytes * u64::from(CHUNKS);
        self.forget(fragment);
        for gone in self.order.add(fragment, bytes, self.bytes_max) {
            self.drop_entry(gone);
        }
        let emptiest = self
            .group_bytes
            .iter()
            .enumerate()
            .min_by_key(|(_, of)| **of);
        let group = emptiest.map_or(0, |(group, _)| group);
        self.group_bytes[group] += bytes;
        let resident = Resident {
            group: group as u32,
            present: (1 << CHUNKS) - 1,
            bytes,
        };
        self.fragments.insert(fragment, resident);
    }

    /// Forgets a fragment.
    pub fn forget(&mut self, fragment: Fragment) {
        self.order.remove(fragment);
        self.drop_entry(fragment);
    }

    fn drop_entry(&mut self, fragment: Fragment) {
        if let Some(gone) = self.fragments.remove(&fragment) {
            self.group_bytes[gone.group as usize] -= gone.bytes;
        }
    }

    /// The functions with a chunk of the fragment.
    pub fn chunks(&self, fragment: Fragment) -> impl Iterator<Item = FixedFunction> {
        let resident = self.fragments.get(&fragment);
        resident.into_iter().flat_map(|resident| {
            let indices = (0..CHUNKS).filter(|index| resident.present & (1 << index) != 0);
            indices.map(|index| FixedFunction {
                group: resident.group,
                index,
            })
        })
    }

    /// Notes a read.
    pub fn accessed(&mut self, fragment: Fragment) {
        self.order.touch(fragment);
    }

    /// The chunks of a function.
    pub fn chunks_count(&self, function: FixedFunction) -> usize {
        let is_there = |one: &&Resident| {
            one.group == function.group && one.present & (1 << function.index) != 0
        };
        self.fragments.values().filter(is_there).count()
    }

    /// A random function fails. Returns it, and whether its chunks are recovered.
    pub fn fail_any(&mut self, chance: &Chance) -> (FixedFunction, bool) {
        let failed = FixedFunction {
            group: chance.below(self.group_bytes.len() as u64) as u32,
            index: chance.below(CHUNKS.into()) as u8,
        };
        if self.recovers {
            return (failed, true);
        }
        for resident in self.fragments.values_mut() {
            if resident.group == failed.group {
                resident.present &= !(1 << failed.index);
            }
        }
        (failed, false)
    }
}
