//! The decision about a proposal, as the promises state it.

use std::{collections::BTreeMap, ops::Bound};

use bytes::{Bytes, BytesMut};

use super::State;
use crate::serializable::model::{
    Key, Patch, Predicate, Proposal, Refusal, Slot, StageId, Verdict, Write, Writes, number_bytes,
    number_in, proposal::decode_part,
};

/// The new values of keys; `None`: deleted.
type Written = BTreeMap<Key, Option<Bytes>>;

/// The state after some writes of a proposal, which none of the others sees yet.
struct Draft<'a> {
    state: &'a State,
    written: Written,
    appended_at: Vec<u64>,
}

impl State {
    pub(super) fn decide(&mut self, proposal: &Proposal) -> Verdict {
        let (id, attempt) = (proposal.id.id(), proposal.id.attempt());
        match self.decided.get(id) {
            Some((_, _, verdict @ Verdict::Committed { .. })) => return verdict.clone(),
            Some((_, closed, verdict)) if *closed == attempt => return verdict.clone(),
            Some((_, closed, _)) if *closed > attempt => {
                return Verdict::Refused(Refusal::Superseded);
            }
            _ => {}
        }
        if matches!(&proposal.writes, Writes::Inline(writes) if writes.is_empty()) {
            return self.decide_read_only(proposal);
        }
        if let Some(verdict) = self.late_read(proposal) {
            return verdict;
        }
        let slot = Slot(self.slot.0 + 1);
        let verdict = match self.failed_predicate(proposal) {
            Some(key) => Verdict::Conflict { key },
            None => match self.draft(&proposal.writes) {
                Ok((written, appended_at)) => {
                    for (key, value) in written {
                        self.versions.entry(key).or_default().insert(slot, value);
                    }
                    Verdict::Committed { slot, appended_at }
                }
                Err(refusal) => Verdict::Refused(refusal),
            },
        };
        // A refusal that could pass later is noted: no late copy of the proposal may commit.
        self.slot = slot;
        let decided = (slot, attempt, verdict.clone());
        self.decided.insert(id.clone(), decided);
        verdict
    }

    /// V4: it takes place at the slot that it read.
    fn decide_read_only(&self, proposal: &Proposal) -> Verdict {
        let is_locked = |predicate: &&Predicate| match predicate {
            Predicate::LockFree(key) => !self.locks.is_free_since(key, proposal.at),
            _ => false,
        };
        match proposal.predicates.iter().find(is_locked) {
            Some(Predicate::LockFree(key)) => Verdict::Conflict { key: key.clone() },
            _ => Verdict::Committed {
                slot: proposal.at,
                appended_at: Vec::new(),
            },
        }
    }

    /// The verdict if its reads were written since, or are forgotten.
    fn late_read(&self, proposal: &Proposal) -> Option<Verdict> {
        let at = proposal.at;
        if at < self.horizon || at > self.slot {
            return Some(Verdict::SnapshotTooOld);
        }
        let is_written = |key: &Key| {
            let after = (Bound::Excluded(at), Bound::Unbounded);
            let versions = self.versions.get(key);
            versions.is_some_and(|versions| versions.range(after).next().is_some())
        };
        let read = proposal.reads.iter().find(|key| is_written(key));
        let read = read.or_else(|| {
            proposal.predicates.iter().find_map(|predicate| {
                let Predicate::Untouched(range) = predicate else {
                    return None;
                };
                let keys = self.versions.range(range.first()..).map(|(key, _)| key);
                let mut keys = keys.take_while(|key| !range.is_before(key));
                keys.find(|key| is_written(key))
            })
        });
        let key = read?.clone();
        Some(Verdict::Conflict { key })
    }

    fn failed_predicate(&self, proposal: &Proposal) -> Option<Key> {
        let failed = proposal
            .predicates
            .iter()
            .find_map(|predicate| match predicate {
                Predicate::Untouched(_) => None,
                Predicate::Number { key, is } => {
                    let number = number_in(self.get(key, self.slot));
                    (!number.is_some_and(|number| is.holds(number))).then_some(key)
                }
                Predicate::LockFree(key) => {
                    (!self.locks.is_free_since(key, proposal.at)).then_some(key)
                }
            });
        failed.cloned()
    }

    fn draft(&self, writes: &Writes) -> Result<(Written, Vec<u64>), Refusal> {
        let mut draft = Draft {
            state: self,
            written: BTreeMap::new(),
            appended_at: Vec::new(),
        };
        match writes {
            Writes::Inline(writes) => writes.iter().try_for_each(|write| draft.write(write))?,
            Writes::Staged {
                stage,
                parts,
                bytes,
                crc,
            } => {
                let staged = self.staged(*stage, *parts, *bytes, *crc);
                let staged = staged.ok_or(Refusal::Stage)?;
                staged.iter().try_for_each(|write| draft.write(write))?;
            }
        }
        let Draft {
            written,
            appended_at,
            ..
        } = draft;
        let bytes_of = |key: &Key, value: &Bytes| (key.name().len() + value.len()) as u64;
        let (mut before, mut after) = (0, 0);
        for (key, value) in &written {
            let old = self.get(key, self.slot);
            before += old.map_or(0, |old| bytes_of(key, old));
            after += value.as_ref().map_or(0, |value| bytes_of(key, value));
        }
        let exceeds = |quota| self.usage().bytes - before + after > quota;
        if after > before && self.quota_bytes.is_some_and(exceeds) {
            return Err(Refusal::Quota);
        }
        Ok((written, appended_at))
    }

    fn staged(&self, stage: StageId, parts: u32, bytes: u64, crc: u32) -> Option<Vec<Write>> {
        let stored = self.stages.get(&stage)?;
        let parts = (0..parts).map(|part| stored.get(&part));
        let parts: Vec<&Bytes> = parts.collect::<Option<_>>()?;
        let whole = parts.iter().fold(Vec::new(), |mut whole, part| {
            whole.extend_from_slice(part);
            whole
        });
        if whole.len() as u64 != bytes || crc32fast::hash(&whole) != crc {
            return None;
        }
        let writes = parts.iter().map(|part| decode_part(part).ok());
        Some(writes.collect::<Option<Vec<_>>>()?.concat())
    }
}

impl Draft<'_> {
    fn get(&self, key: &Key) -> Option<Bytes> {
        match self.written.get(key) {
            Some(value) => value.clone(),
            None => self.state.get(key, self.state.slot).cloned(),
        }
    }

    fn number(&self, key: &Key) -> Result<u64, Refusal> {
        number_in(self.get(key).as_ref()).ok_or_else(|| Refusal::NoNumber(key.clone()))
    }

    fn set(&mut self, key: &Key, value: Option<Bytes>) {
        self.written.insert(key.clone(), value);
    }

    fn write(&mut self, write: &Write) -> Result<(), Refusal> {
        match write {
            Write::Put { key, value } => self.set(key, Some(value.clone())),
            Write::Delete { key } => self.set(key, None),
            Write::Patch {
                key,
                offset,
                data: Patch::Bytes(data),
            } => self.patch(key, *offset as usize, data),
            Write::Patch {
                key,
                offset,
                data: Patch::Zeros(count),
            } => self.patch(key, *offset as usize, &vec![0; *count as usize]),
            Write::Add { key, delta } => {
                let sum = self.number(key)?.checked_add_signed(*delta);
                let sum = sum.ok_or_else(|| Refusal::OutOfRange(key.clone()))?;
                self.set(key, Some(number_bytes(sum)));
            }
            Write::Max { key, value } => {
                if self.number(key)? < *value {
                    self.set(key, Some(number_bytes(*value)));
                }
            }
            Write::Append {
                length,
                blocks,
                block_bytes,
                data,
            } => {
                let start = self.number(length)?;
                let end = start.checked_add(data.len() as u64);
                let end = end.ok_or_else(|| Refusal::OutOfRange(length.clone()))?;
                let block_bytes = u64::from(*block_bytes);
                let mut position = start;
                while position < end {
                    let next = (position / block_bytes + 1)
                        .saturating_mul(block_bytes)
                        .min(end);
                    let part = &data[(position - start) as usize..(next - start) as usize];
                    let block = blocks.block(position / block_bytes);
                    let block = block.expect("the proposal was checked");
                    self.patch(&block, (position % block_bytes) as usize, part);
                    position = next;
                }
                if end > start {
                    self.set(length, Some(number_bytes(end)));
                }
                self.appended_at.push(start);
            }
        }
        Ok(())
    }

    fn patch(&mut self, key: &Key, offset: usize, data: &[u8]) {
        let mut value = BytesMut::from(&self.get(key).unwrap_or_default()[..]);
        if value.len() < offset + data.len() {
            value.resize(offset + data.len(), 0);
        }
        value[offset..offset + data.len()].copy_from_slice(data);
        self.set(key, Some(value.freeze()));
    }
}
