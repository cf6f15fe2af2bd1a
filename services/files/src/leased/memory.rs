//! The state of the memory, and its rules. Pure: the caller passes the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use ports::{DurabilityPoint, Monotonic, Read};
use primitives::Mutant;
use transactions::serializable::{
    apply::{Piece, patched},
    model::{Key, LEASE, Leased, Recall, SessionId, Slot, Verdict, Write, number_bytes, number_in},
};

use crate::{
    broken::Broken,
    entries::{Entries, Entry},
};

/// The client's leases end so much before those of the server: clocks may differ by 5 percent.
const MARGIN: Duration = Duration::from_millis(100);
/// Without a read for so long, the leases are given up.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// The most groups in memory. Beyond it all are dropped.
const GROUPS_MAX: usize = 65_536;
/// The most sessions that are to be ended. Beyond it one runs out instead.
const ABANDONED_MAX: usize = 16;

/// A call under way.
pub(super) type CallNumber = u64;

/// A value, or that there is none; `None` if neither is known.
pub(super) type Known = Option<Found>;

/// A value, or that there is none.
#[derive(Debug, Clone)]
pub(super) struct Found(pub(super) Option<Bytes>);

/// A call that waits for recalls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Poll {
    pub(super) session: SessionId,
    pub(super) acknowledged: u64,
    sent: Monotonic,
}

#[derive(Debug)]
pub(super) struct Memory {
    bytes_max: usize,
    mutant: Mutant<Broken>,
    session: SessionId,
    acknowledged: u64,
    /// Earlier sessions, which are to be ended.
    pub(super) abandoned: Vec<SessionId>,
    /// When the last call was sent that renewed the leases; `None`: there are none.
    renewed: Option<Monotonic>,
    /// The last read.
    used: Option<Monotonic>,
    /// The highest slot that was visible.
    known: Slot,
    point: DurabilityPoint,
    leased: BTreeSet<Bytes>,
    entries: Entries,
    /// The keys that own commits under way write, with their number.
    writing: BTreeMap<Key, usize>,
    /// The groups of blocks that they append to.
    appending: BTreeMap<Bytes, usize>,
    /// The calls under way, each with the keys whose result will count.
    calls: BTreeMap<CallNumber, BTreeSet<Key>>,
    calls_begun: CallNumber,
}

impl Memory {
    pub(super) fn new(session: SessionId, bytes_max: usize, mutant: Mutant<Broken>) -> Self {
        Self {
            bytes_max,
            mutant,
            session,
            acknowledged: 0,
            abandoned: Vec::new(),
            renewed: None,
            used: None,
            known: Slot::default(),
            point: DurabilityPoint::DURABLE,
            leased: BTreeSet::new(),
            entries: Entries::default(),
            writing: BTreeMap::new(),
            appending: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_begun: 0,
        }
    }

    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    pub(super) fn known(&self) -> Slot {
        self.known
    }

    pub(super) fn answer<T>(&self, value: T) -> Read<T> {
        let point = self.point;
        Read { value, point }
    }

    /// The values of `keys` that are in memory, now or also at a slot.
    pub(super) fn look_up(&mut self, keys: &[Key], at: Option<Slot>, now: Monotonic) -> Vec<Known> {
        self.notice_lapse(now);
        self.used = Some(now);
        let at = at.unwrap_or(self.known);
        keys.iter().map(|key| self.hit(key, at)).collect()
    }

    fn hit(&mut self, key: &Key, at: Slot) -> Known {
        let is_suspended = self.is_suspended(key) && !self.mutant.breaks(Broken::AnswersSuspended);
        if at > self.known || is_suspended {
            return None;
        }
        let entry = self.entries.read(key)?;
        (entry.from <= at).then(|| Found(entry.value.clone()))
    }

    fn is_suspended(&self, key: &Key) -> bool {
        self.writing.contains_key(key) || self.appending.contains_key(key.group())
    }

    /// Notes a slot that was visible, with the point of its answer.
    pub(super) fn learn(&mut self, slot: Slot, point: DurabilityPoint) {
        if point.incarnation > self.point.incarnation {
            self.drop_all();
            self.known = Slot::default();
        }
        if point.incarnation >= self.point.incarnation {
            self.known = self.known.max(slot);
        }
        self.point = self.point.max(point);
    }

    /// A read of keys is about to be sent.
    pub(super) fn begin_read(&mut self, keys: &[Key]) -> CallNumber {
        let counted = keys.iter().filter(|key| !self.is_suspended(key));
        let counted = counted.cloned().collect();
        self.begin(counted)
    }

    fn begin(&mut self, counted: BTreeSet<Key>) -> CallNumber {
        self.calls_begun += 1;
        self.calls.insert(self.calls_begun, counted);
        self.calls_begun
    }

    /// A call ends without an answer.
    pub(super) fn forget_call(&mut self, number: CallNumber) {
        self.calls.remove(&number);
    }

    /// Keeps what a read found, as far as it counts.
    pub(super) fn end_read(
        &mut self,
        number: CallNumber,
        (sent, now): (Monotonic, Monotonic),
        keys: &[Key],
        answer: &Read<Leased>,
    ) {
        let Leased { values, groups } = &answer.value;
        self.notice_lapse(now);
        self.learn(values.slot, answer.point);
        let Some(counted) = self.calls.remove(&number) else {
            return;
        };
        let is_late = now >= end_of(sent) && !self.mutant.breaks(Broken::AnswersAfterLapse);
        if is_late || answer.point.incarnation < self.point.incarnation {
            return;
        }
        let groups: BTreeSet<&Bytes> = groups.iter().collect();
        for (key, value) in keys.iter().zip(&values.found) {
            if counted.contains(key) && groups.contains(key.group()) {
                self.leased.insert(key.group().clone());
                self.renewed.get_or_insert(sent);
                self.keep(key, value.clone(), values.slot);
            }
        }
        if self.leased.len() > GROUPS_MAX {
            self.drop_all();
        }
    }

    fn keep(&mut self, key: &Key, value: Option<Bytes>, from: Slot) {
        let entry = Entry::new(value, from);
        self.entries.insert(key.clone(), entry, self.bytes_max);
    }

    /// An own commit is about to be sent: the keys that it writes are suspended.
    pub(super) fn begin_commit(&mut self, writes: &[Write]) -> CallNumber {
        let written = written(writes);
        let counted = written
            .iter()
            .filter(|key| self.leased.contains(key.group()) && !self.is_suspended(key));
        let counted = counted.cloned().collect();
        for call in self.calls.values_mut() {
            call.retain(|key| !written.contains(key));
        }
        for key in written {
            *self.writing.entry(key).or_default() += 1;
        }
        for group in appended(writes) {
            self.entries.remove_group(group);
            self.uncount(group);
            *self.appending.entry(group.clone()).or_default() += 1;
        }
        self.begin(counted)
    }

    /// The commit has its verdict.
    pub(super) fn end_commit(
        &mut self,
        number: CallNumber,
        writes: &[Write],
        answer: &Read<Verdict>,
    ) {
        let committed_at = match &answer.value {
            Verdict::Committed { slot, .. } => Some(*slot),
            _ => None,
        };
        self.learn(committed_at.unwrap_or_default(), answer.point);
        let counted = self.calls.remove(&number).unwrap_or_default();
        for group in appended(writes) {
            release(&mut self.appending, group);
        }
        for key in written(writes) {
            release(&mut self.writing, &key);
            if !counted.contains(&key) {
                self.entries.remove(&key);
                continue;
            }
            let Some(slot) = committed_at else {
                continue;
            };
            let base = self
                .entries
                .get(&key)
                .map(|entry| Found(entry.value.clone()));
            match folded(&key, base, writes) {
                Some(Found(value)) => self.keep(&key, value, slot),
                None => {
                    self.entries.remove(&key);
                }
            }
        }
    }

    /// The next call for recalls. `None`: nothing has been read lately.
    pub(super) fn next_poll(&mut self, now: Monotonic) -> Option<Poll> {
        self.notice_lapse(now);
        self.used.take_if(|used| now.since(*used) > IDLE_MAX);
        self.used?;
        Some(Poll {
            session: self.session,
            acknowledged: self.acknowledged,
            sent: now,
        })
    }

    /// Drops what is recalled. The next call acknowledges it.
    pub(super) fn recalled(&mut self, poll: &Poll, answer: &Read<Recall>, now: Monotonic) {
        if poll.session != self.session {
            return;
        }
        let recall = &answer.value;
        self.notice_lapse(now);
        self.learn(recall.visible, answer.point);
        self.acknowledged = self.acknowledged.max(recall.number);
        if recall.has_lapsed {
            self.drop_all();
        } else if let Some(renewed) = &mut self.renewed {
            *renewed = poll.sent.max(*renewed);
        }
        for group in &recall.groups {
            if !self.mutant.breaks(Broken::KeepsRecalled) {
                self.entries.remove_group(group);
                self.leased.remove(group);
            }
            if !self.mutant.breaks(Broken::FillsAfterRecall) {
                self.uncount(group);
            }
        }
    }

    /// The results of calls under way do not count for a group.
    fn uncount(&mut self, group: &Bytes) {
        for call in self.calls.values_mut() {
            call.retain(|key| key.group() != group);
        }
    }

    fn notice_lapse(&mut self, now: Monotonic) {
        let is_over = self.renewed.is_some_and(|renewed| now >= end_of(renewed));
        if is_over && !self.mutant.breaks(Broken::AnswersAfterLapse) {
            self.drop_all();
        }
    }

    /// Drops all leases. Own commits under way still suspend their keys.
    pub(super) fn drop_all(&mut self) {
        self.entries.clear();
        self.leased.clear();
        self.renewed = None;
        for call in self.calls.values_mut() {
            call.clear();
        }
    }

    /// Drops all, and takes another session. No commit of it is under way then.
    pub(super) fn abandon(&mut self, session: SessionId) {
        self.drop_all();
        if self.mutant.breaks(Broken::KeepsSessionInDoubt) {
            self.writing.clear();
            self.appending.clear();
            return;
        }
        if self.acknowledged > 0 && self.abandoned.len() < ABANDONED_MAX {
            self.abandoned.push(self.session);
        }
        self.session = session;
        self.acknowledged = 0;
        self.calls.clear();
        self.writing.clear();
        self.appending.clear();
    }
}

/// When a lease ends that a call renewed.
fn end_of(sent: Monotonic) -> Monotonic {
    sent + LEASE.saturating_sub(MARGIN)
}

fn release<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The keys that writes change, except blocks that are appended to.
fn written(writes: &[Write]) -> BTreeSet<Key> {
    writes.iter().map(|write| key_of(write).clone()).collect()
}

fn key_of(write: &Write) -> &Key {
    match write {
        Write::Put { key, .. }
        | Write::Delete { key }
        | Write::Patch { key, .. }
        | Write::Add { key, .. }
        | Write::Max { key, .. }
        | Write::Append { length: key, .. } => key,
    }
}

/// The groups of blocks that writes append to.
fn appended(writes: &[Write]) -> impl Iterator<Item = &Bytes> {
    writes.iter().filter_map(|write| match write {
        Write::Append { blocks, .. } => Some(blocks.group()),
        _ => None,
    })
}

/// The value of `key` after the writes, if it can be known.
fn folded(key: &Key, base: Known, writes: &[Write]) -> Known {
    let of_key = writes.iter().filter(|write| key_of(write) == key);
    of_key.fold(base, |value, write| {
        let number = || number_in(value.as_ref()?.0.as_ref());
        let raised = match write {
            Write::Put { value, .. } => return Some(Found(Some(value.clone()))),
            Write::Delete { .. } => return Some(Found(None)),
            Write::Patch { offset, data, .. } => {
                let (offset, data) = (*offset, data.clone());
                let base = value.as_ref()?.0.as_ref();
                return Some(Found(Some(patched(base, &[Piece { offset, data }]))));
            }
            Write::Max { value: least, .. } if number()? >= *least => return value,
            Write::Append { data, .. } if data.is_empty() => return value,
            Write::Max { value, .. } => *value,
            Write::Add { delta, .. } => number()?.checked_add_signed(*delta)?,
            Write::Append { data, .. } => number()?.checked_add(data.len() as u64)?,
        };
        Some(Found(Some(number_bytes(raised))))
    })
}
