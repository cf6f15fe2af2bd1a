//! A volume of the pure parts. It does the work of the shell in memory and at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use parking_lot::Mutex;
use ports::{DurabilityPoint, Read, key_value::Scan};
use primitives::Mutant;

use super::super::{Candidate, Decision, Limits, Noted, Outcome, Validator};
use crate::{
    Error, Result,
    broken::Broken,
    model::{KeyspaceId, NodeId},
    serializable::{
        VolumeStore,
        apply::Fold,
        lock_table::LockTable,
        model::{
            At, BlockBytes, Changed, Entry, Granted, Groups, Key, KeyRange, Lock, Owner, Page,
            PageLimits, PinName, Proposal, ProposalId, Refusal, SessionId, Slot, Snapshot, StageId,
            Usage, Values, Verdict, Write, Writes, proposal::decode_part,
        },
        rows::{self, ChangeRow, LateCheck, Version, VersionRow},
        slots::VolumeSlot,
    },
};

const KEYSPACE: KeyspaceId = KeyspaceId(1);

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) validator: Validator,
    limits: Limits,
    mutant: Mutant<Broken>,
    log: BTreeMap<Slot, Bytes>,
    versions: BTreeMap<(Bytes, Bytes), Bytes>,
    changes: BTreeMap<Slot, Bytes>,
    stages: BTreeMap<StageId, BTreeMap<u32, Bytes>>,
    locks: LockTable,
    /// How often rows were needed.
    pub(super) outdated: u64,
    /// How often numbers were loaded.
    pub(super) loaded: u64,
}

impl Engine {
    pub(super) fn new(limits: Limits, mutant: Mutant<Broken>) -> Self {
        Self {
            validator: Validator::broken(Slot(0), limits, mutant),
            limits,
            mutant,
            log: BTreeMap::new(),
            versions: BTreeMap::new(),
            changes: BTreeMap::new(),
            stages: BTreeMap::new(),
            locks: LockTable::default(),
            outdated: 0,
            loaded: 0,
        }
    }

    pub(super) fn last(&self) -> Slot {
        self.validator.last()
    }

    fn page(&self, scan: &Scan) -> impl Iterator<Item = (Key, Slot, &Bytes)> {
        let from = (scan.partition.clone(), scan.from.clone());
        let until = (scan.partition.clone(), scan.until.clone().expect("bounded"));
        let is_some = from < until;
        let found = is_some.then(|| self.versions.range(from..until));
        found.into_iter().flatten().map(|((_, sort), row)| {
            let (key, slot) = rows::version_of(sort).expect("a version");
            (key, slot, row)
        })
    }

    pub(super) fn get(&self, key: &Key, at: Slot) -> Option<Bytes> {
        let mut fold = Fold::default();
        for (_, _, row) in self.page(&rows::versions(KEYSPACE, key, at, 9)) {
            let Ok(Version::Here(change)) = VersionRow::decode(row) else {
                panic!("not sound");
            };
            if fold.add(change) {
                break;
            }
        }
        fold.value()
    }

    pub(super) fn keys(&self) -> BTreeSet<Key> {
        let sorts = self.versions.keys();
        sorts
            .map(|(_, sort)| rows::version_of(sort).expect("a version").0)
            .collect()
    }

    fn staged(&self, proposal: &Proposal) -> Result<Vec<Write>, Refusal> {
        let (stage, count, bytes, crc) = match &proposal.writes {
            Writes::Inline(writes) => return Ok(writes.clone()),
            Writes::Staged {
                stage,
                parts,
                bytes,
                crc,
            } => (stage, *parts, *bytes, *crc),
        };
        let parts = self.stages.get(stage).ok_or(Refusal::Stage)?;
        let whole: Vec<u8> = parts.values().flatten().copied().collect();
        if parts.len() != count as usize
            || whole.len() as u64 != bytes
            || crc32fast::hash(&whole) != crc
        {
            return Err(Refusal::Stage);
        }
        let writes = parts.values().map(|part| decode_part(part).expect("sound"));
        Ok(writes.flatten().collect())
    }

    /// Decides all, in one slot up to a proposal that needs rows or numbers.
    pub(super) fn decide(&mut self, proposals: &[Proposal]) -> Vec<Verdict> {
        let writes: Vec<Result<Vec<Write>, Refusal>> = proposals
            .iter()
            .map(|proposal| self.staged(proposal))
            .collect();
        let mut checked: Vec<Slot> = proposals.iter().map(|proposal| proposal.at).collect();
        let mut verdicts = Vec::new();
        while verdicts.len() < proposals.len() {
            let first = verdicts.len();
            let (mut draft, mut after, mut needs) = (self.validator.draft(), Vec::new(), None);
            for (place, proposal) in proposals.iter().enumerate().skip(first) {
                let candidate = Candidate {
                    proposal,
                    writes: writes[place].as_deref().unwrap_or_default(),
                    checked: checked[place],
                    refusal: writes[place].as_ref().err(),
                };
                match draft.decide(&candidate, &self.locks) {
                    Decision::Now(verdict) => after.push(Outcome::Fails(verdict)),
                    Decision::AfterSlot(outcome) => after.push(outcome),
                    other => {
                        needs = Some(other);
                        break;
                    }
                }
            }
            let is_empty = draft.is_empty();
            let (slot, noted) = draft.finish(1, NodeId(1));
            let number = Slot(self.last().0 + 1);
            verdicts.extend(after.into_iter().map(|outcome| outcome.verdict(number)));
            if !is_empty {
                self.write(number, &slot, noted);
            }
            let place = verdicts.len();
            match needs {
                Some(Decision::Wants(keys)) => self.load(&keys),
                Some(Decision::Outdated(_)) => {
                    self.outdated += 1;
                    checked[place] = self.last();
                    verdicts.extend(self.judge(&proposals[place], self.last()));
                }
                _ => {}
            }
        }
        verdicts
    }

    pub(super) fn close(&mut self, id: &ProposalId) -> Verdict {
        let mut draft = self.validator.draft();
        match draft.close(id) {
            Decision::Now(verdict) => verdict,
            Decision::AfterSlot(outcome) => {
                let (slot, noted) = draft.finish(1, NodeId(1));
                let number = Slot(self.last().0 + 1);
                self.write(number, &slot, noted);
                outcome.verdict(number)
            }
            other => panic!("{other:?}"),
        }
    }

    fn load(&mut self, keys: &[Key]) {
        self.loaded += 1;
        for key in keys {
            let (at, value) = (self.last(), self.get(key, self.last()));
            assert!(self.validator.learn(key, at, value.as_ref()));
        }
    }

    fn judge(&self, proposal: &Proposal, to: Slot) -> Option<Verdict> {
        let after = Slot(proposal.at.0 + 1);
        let mut check = LateCheck::new(proposal);
        for (_, row) in self.changes.range(after..=to.max(after)) {
            check.add(&ChangeRow::decode(row).expect("sound"));
        }
        check.verdict()
    }

    /// Appends the slot, and installs it.
    fn write(&mut self, number: Slot, slot: &VolumeSlot, noted: Noted) {
        let payload = slot.encode();
        let decoded = VolumeSlot::decode(&payload).expect("sound");
        assert_eq!(decoded, *slot);
        let folded = self.folded(&decoded);
        let keys: Vec<Key> = folded.keys().cloned().collect();
        assert!(noted.written.iter().eq(&keys), "{noted:?}");
        for (key, change) in folded {
            let item = rows::version(KEYSPACE, &key, number);
            let place = (
                Bytes::copy_from_slice(item.partition()),
                item.sort().clone(),
            );
            self.versions.insert(place, VersionRow::encode(&change));
        }
        let row = ChangeRow {
            written_ms: slot.written_ms,
            keys,
            decided: slot.decided(number).collect(),
        };
        self.changes.insert(number, row.encode());
        self.log.insert(number, payload);
        self.validator.note(number, slot, noted);
    }

    fn folded(&self, slot: &VolumeSlot) -> BTreeMap<Key, crate::serializable::apply::Change> {
        let stages = slot.stages().into_iter().map(|stage| {
            let parts = self.stages[&stage].values();
            let writes = parts.flat_map(|part| decode_part(part).expect("sound"));
            (stage, writes.collect())
        });
        slot.folded(&stages.collect()).expect("all stages")
    }

    /// Another node's validator, from the slots after some point and the rows before it.
    pub(super) fn take_over(&mut self, random: &mut fastrand::Rng) {
        let oldest = Slot(random.u64(0..=self.last().0));
        self.validator = Validator::broken(oldest, self.limits, self.mutant);
        let after = Slot(oldest.0 + 1);
        for (number, payload) in self.log.range(after..) {
            let slot = VolumeSlot::decode(payload).expect("sound");
            let noted = Noted {
                written: self.folded(&slot).into_keys().collect(),
                numbers: BTreeMap::new(),
            };
            self.validator.note(*number, &slot, noted);
        }
    }
}

/// The engine as a volume; pins, sessions and locks are the shell's.
#[derive(Debug)]
pub(super) struct EngineVolume(Mutex<Engine>);

impl EngineVolume {
    pub(super) fn new(limits: Limits) -> Self {
        Self(Mutex::new(Engine::new(limits, Mutant::NONE)))
    }
}

fn now<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, Result<Read<T>>> {
    ready(Ok(Read::durable(value))).boxed()
}

fn absent<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T>> {
    ready(Err(Error::unavailable("not in this test"))).boxed()
}

impl VolumeStore for EngineVolume {
    fn block_bytes(&self) -> BlockBytes {
        BlockBytes::new(4096).expect("a power of two")
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        let slot = self.0.lock().last();
        now(Snapshot { slot })
    }

    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        let engine = self.0.lock();
        let slot = slot_of(&engine, at);
        let found = keys.iter().map(|key| engine.get(key, slot)).collect();
        now(Values { slot, found })
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>> {
        let engine = self.0.lock();
        let slot = slot_of(&engine, at);
        let scan = rows::versions_in(KEYSPACE, range, 1_000);
        let found = engine.page(&scan);
        let keys: BTreeSet<Key> = found.map(|(key, ..)| key).collect();
        let (mut entries, mut bytes, mut next) = (Vec::new(), 0, None);
        for key in keys {
            let Some(value) = engine.get(&key, slot) else {
                continue;
            };
            let more = key.name().len() + value.len();
            if !limits.admit(entries.len(), bytes, more) {
                next = Some(key.name().clone());
                break;
            }
            bytes += more;
            let name = key.name().clone();
            entries.push(Entry { name, value });
        }
        now(Page {
            slot,
            entries,
            next,
        })
    }

    fn changed_since<'a>(
        &'a self,
        slot: Slot,
        groups: &'a Groups,
    ) -> BoxFuture<'a, Result<Read<Changed>>> {
        let engine = self.0.lock();
        let rows = engine.changes.range(Slot(slot.0 + 1)..);
        let keys = rows.flat_map(|(_, row)| ChangeRow::decode(row).expect("sound").keys);
        let keys: BTreeSet<Key> = keys.filter(|key| groups.contain(key)).collect();
        now(Changed::Keys {
            to: engine.last(),
            keys: keys.into_iter().collect(),
        })
    }

    fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> BoxFuture<'_, Result<DurabilityPoint>> {
        let stages = &mut self.0.lock().stages;
        stages.entry(stage).or_default().insert(part, writes);
        ready(Ok(DurabilityPoint::DURABLE)).boxed()
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        let mut verdicts = self.0.lock().decide(&[proposal]);
        now(verdicts.remove(0))
    }

    fn externalize(&self, _: DurabilityPoint) -> BoxFuture<'_, Result<()>> {
        absent()
    }

    fn pin(&self, _: PinName, _: Slot) -> BoxFuture<'_, Result<()>> {
        absent()
    }

    fn unpin<'a>(&'a self, _: &'a PinName) -> BoxFuture<'a, Result<()>> {
        absent()
    }

    fn lock(&self, _: Owner, _: Lock) -> BoxFuture<'_, Result<Granted>> {
        absent()
    }

    fn hold(&self, _: SessionId, _: Key) -> BoxFuture<'_, Result<()>> {
        absent()
    }

    fn release<'a>(&'a self, _: SessionId, _: &'a Key) -> BoxFuture<'a, Result<()>> {
        absent()
    }

    fn is_held<'a>(&'a self, _: &'a Key) -> BoxFuture<'a, Result<bool>> {
        absent()
    }

    fn end_session(&self, _: SessionId) -> BoxFuture<'_, Result<()>> {
        absent()
    }

    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>> {
        absent()
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        absent()
    }
}

fn slot_of(engine: &Engine, at: At) -> Slot {
    match at {
        At::Tail => engine.last(),
        At::Slot(slot) => slot,
    }
}
