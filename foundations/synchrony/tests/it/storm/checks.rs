//! Checks of the far store at any moment, and of the reads of a new start.

use std::collections::BTreeMap;

use bytes::Bytes;
use ports::{Item, Key, KeyValue};
use synchrony::{Lane, far_items};

use super::workload::{
    SHARED, Seen, Shared, Truth, WORKERS, counter, entry, flickering, seen_in, shared_key,
};

type Items = BTreeMap<Key, std::sync::Arc<Item>>;

/// A snapshot of the far store, read directly.
pub(super) struct Far {
    items: Items,
    pub(super) entries: Seen,
}

impl Far {
    pub(super) async fn look(far: &dyn KeyValue, shard: &Bytes) -> Self {
        let items = steady(far, shard).await;
        let mut entries = Seen::default();
        for (worker, count) in entries.iter_mut().enumerate() {
            *count = (1..=i64::MAX)
                .take_while(|n| items.contains_key(&entry(worker, *n)))
                .count() as i64;
        }
        Self { items, entries }
    }

    fn integer(&self, key: &Key, name: &str) -> Option<i64> {
        self.items.get(key)?.integer(name)
    }

    /// E2, E3, E4: a causal prefix with all externalized writes, each once.
    pub(super) fn check(&self, truth: &Truth) -> Vec<String> {
        let mut wrong = Vec::new();
        for worker in 0..WORKERS {
            let count = self.entries[worker];
            let partition = entry(worker, 0);
            let all = self
                .items
                .keys()
                .filter(|key| key.partition() == partition.partition())
                .count() as i64;
            if all != count {
                wrong.push(format!(
                    "E2: worker {worker} has {all} entries, with a hole behind {count}"
                ));
            }
            if count < truth.externalized[worker] {
                let externalized = truth.externalized[worker];
                wrong.push(format!(
                    "E3: {count} entries of {worker}, {externalized} were externalized"
                ));
            }
            let counted = self.integer(&counter(worker), "n").unwrap_or(0);
            if counted != count {
                wrong.push(format!(
                    "E4: worker {worker} has {count} entries and counted {counted}"
                ));
            }
            let flickered = self.integer(&flickering(worker), "n");
            if flickered != (count % 2 == 1).then_some(count) {
                wrong.push(format!(
                    "E2: worker {worker} has {count} entries beside {flickered:?}"
                ));
            }
        }
        wrong.extend(self.check_causes());
        wrong
    }

    /// E2: each entry has the entries that it had seen.
    fn check_causes(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, item) in self
            .items
            .iter()
            .filter(|(_, item)| item.integer("w").is_some())
        {
            for (worker, (seen, there)) in seen_in(item).into_iter().zip(self.entries).enumerate() {
                if seen > there {
                    wrong.push(format!(
                        "E2: {key:?} had seen {seen} of {worker}, {there} are there"
                    ));
                }
            }
        }
        wrong
    }
}

/// All that a start reads.
pub(super) struct Start {
    pub(super) entries: Seen,
    pub(super) known: Seen,
    pub(super) shared: BTreeMap<u64, u64>,
}

impl Start {
    pub(super) async fn read(lane: &Lane) -> Self {
        let (mut entries, mut shared) = (Seen::default(), BTreeMap::new());
        for (worker, count) in entries.iter_mut().enumerate() {
            while get(lane, &entry(worker, *count + 1)).await.is_some() {
                *count += 1;
            }
        }
        for key in 0..SHARED {
            let item = get(lane, &shared_key(key)).await;
            shared.insert(key, item.map_or(0, |item| item.version.0));
        }
        Self {
            entries,
            known: entries,
            shared,
        }
    }

    /// E9, E1: a start finds all acknowledged writes if the near store is kept, all externalized
    /// ones in any case, and all far ones.
    pub(super) fn check(&self, shared: &Shared, far: &Seen, keeps_everything: bool) {
        for (worker, (&found, &there)) in self.entries.iter().zip(far).enumerate() {
            let (acknowledged, externalized) = {
                let truth = shared.truth();
                (truth.acknowledged[worker], truth.externalized[worker])
            };
            if found < there {
                shared.violated(format!(
                    "E1: {there} entries of {worker} are far, a start finds {found}"
                ));
            }
            if found < externalized {
                shared.violated(format!(
                    "E3: a start finds {found} entries of {worker}, {externalized} were externalized"
                ));
            }
            if keeps_everything && found < acknowledged {
                shared.violated(format!(
                    "E9: a start finds {found} entries of {worker}, {acknowledged} were acknowledged"
                ));
            }
        }
    }
}

/// All items at one moment. Pages are read one after the other, so we read until two passes agree.
async fn steady(far: &dyn KeyValue, shard: &Bytes) -> Items {
    let mut last = None;
    loop {
        let Ok(items) = far_items(far, shard).await else {
            continue;
        };
        let items = Some(items.into_iter().collect::<Items>());
        if items == last
            && let Some(items) = items
        {
            return items;
        }
        last = items;
    }
}

async fn get(lane: &Lane, key: &Key) -> Option<std::sync::Arc<Item>> {
    lane.get(key).await.expect("it is calm").value
}
