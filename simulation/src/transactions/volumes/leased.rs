//! The memory of a client that has read leases, by the rules in
//! `transactions::serializable::model::leases`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use ports::DurabilityPoint;
use transactions::serializable::model::{Key, LEASE, Recall, Slot, Write};

/// A value, where it was read, and a point at or after it.
pub type Kept = (Option<Bytes>, Slot, DurabilityPoint);

/// The values that a client may answer from.
#[derive(Debug, Default)]
pub struct Memory {
    /// The leases hold until then.
    until: Duration,
    /// The number to acknowledge.
    pub number: u64,
    leased: BTreeSet<Bytes>,
    values: BTreeMap<Key, Kept>,
    /// The groups of commits without a verdict.
    written: Vec<Bytes>,
    /// The last slot of an own commit.
    own: Slot,
    /// Counts the recalls.
    recalls: u64,
    dropped: BTreeMap<Bytes, u64>,
    all_dropped: u64,
    /// The process makes no step before.
    pub stopped_until: Duration,
}

impl Memory {
    /// The value of a key, if it is known at `now`.
    pub fn get(&mut self, key: &Key, now: Duration) -> Option<Kept> {
        self.drop_if_over(now);
        let may_answer = self.leased.contains(key.group()) && !self.written.contains(key.group());
        may_answer.then(|| self.values.get(key).cloned()).flatten()
    }

    /// What a call of `get_leased` has to remember.
    pub fn sends(&self) -> u64 {
        self.recalls
    }

    /// Takes an answer to a call of `get_leased` that was sent at `sent`.
    pub fn take(
        &mut self,
        (key, kept): (Key, Kept),
        groups: &[Bytes],
        (sent, recalls): (Duration, u64),
        now: Duration,
    ) {
        self.drop_if_over(now);
        if groups.is_empty() || self.all_dropped > recalls {
            return;
        }
        self.until = self.until.max(sent + LEASE);
        for group in groups {
            if self.dropped.get(group).is_none_or(|at| *at <= recalls) {
                self.leased.insert(group.clone());
            }
        }
        let is_leased = self.leased.contains(key.group()) && groups.contains(key.group());
        let is_old = self.written.contains(key.group()) || kept.1 < self.own;
        if is_leased && !is_old {
            self.values.insert(key, kept);
        }
    }

    /// Takes an answer to a call of `recalled` that was sent at `sent`.
    pub fn recall(&mut self, recall: &Recall, sent: Duration, now: Duration) {
        self.drop_if_over(now);
        self.recalls += 1;
        for group in &recall.groups {
            self.leased.remove(group);
            self.dropped.insert(group.clone(), self.recalls);
        }
        if recall.has_lapsed {
            self.leased.clear();
            self.all_dropped = self.recalls;
        }
        let leased = &self.leased;
        self.values.retain(|key, _| leased.contains(key.group()));
        self.until = self.until.max(sent + LEASE);
        self.number = recall.number;
    }

    /// A commit of `writes` is sent. Nothing is answered from their groups before its verdict.
    pub fn begin(&mut self, writes: &[Write]) {
        self.written.extend(groups(writes));
    }

    /// The verdict has come; `slot`: it has committed there.
    pub fn end(&mut self, writes: &[Write], slot: Option<Slot>) {
        let groups: Vec<Bytes> = groups(writes).collect();
        self.values.retain(|key, _| !groups.contains(key.group()));
        for group in groups {
            if let Some(place) = self.written.iter().position(|other| *other == group) {
                self.written.remove(place);
            }
        }
        self.own = self.own.max(slot.unwrap_or_default());
    }

    fn drop_if_over(&mut self, now: Duration) {
        if now >= self.until {
            self.leased.clear();
            self.values.clear();
        }
    }
}

fn groups(writes: &[Write]) -> impl Iterator<Item = Bytes> {
    writes.iter().flat_map(|write| match write {
        Write::Put { key, .. }
        | Write::Delete { key }
        | Write::Patch { key, .. }
        | Write::Add { key, .. }
        | Write::Max { key, .. } => vec![key.group().clone()],
        Write::Append { length, blocks, .. } => {
            vec![length.group().clone(), blocks.group().clone()]
        }
    })
}
