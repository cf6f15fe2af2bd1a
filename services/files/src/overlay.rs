//! The reads and pending writes of one transaction: the state of one slot, its own changes on top,
//! and the proposal that they become.
//!
//! Reads of a value that the transaction has put itself are no reads of the volume. A patch, an
//! addition or an append that is never read stays blind: the volume applies it at the commit.
//!
//! Invariants
//! - All reads are at one slot, that of the first read. While the transaction reads from a client's
//!   memory, each step moves to a newer slot, at which all former reads are the same.
//! - A read of the volume is in the read set, or in a range or bound, before its value is returned.

mod reads;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use ports::{DurabilityPoint, Monotonic, Read};
use transactions::serializable::{
    VolumeStore,
    apply::{Piece, patched},
    model::{
        At, Changed, Entry, Groups, Is, KEYS_MAX, Key, KeyRange, PAGE_BYTES_MAX, PageLimits, Patch,
        Predicate, Proposal, ProposalId, Slot, StageId, Write, Writes, encode_part, number_bytes,
        number_in,
        proposal::{INLINE_BYTES_MAX, PART_BYTES_MAX, STAGED_BYTES_MAX},
    },
};

use crate::{
    error::{Errno, Result},
    inode,
    leased::LeasedVolume,
    model::Ino,
    remembered::{Known, Remembered},
};

/// The most bytes of values that a transaction keeps from the volume. Beyond it, it forgets all of
/// them and reads them again at its slot.
const CACHED_BYTES_MAX: usize = 64 << 20;
/// The most bytes of one append; a longer one is several, which follow each other.
const APPEND_BYTES_MAX: usize = 128 << 10;
/// How many parts of a stage are on their way at once: more than a write of 1 MiB has.
const STAGED_AT_ONCE: usize = 8;

/// The changes of one transaction over the state that it read.
#[derive(Debug)]
pub(crate) struct Overlay {
    store: Arc<dyn VolumeStore>,
    at: Option<Slot>,
    /// The volume's memory, while no read has fixed the slot.
    leased: Option<Arc<LeasedVolume>>,
    point: DurabilityPoint,
    failure: Option<transactions::Error>,
    cached: BTreeMap<Key, Option<Bytes>>,
    cached_bytes: usize,
    reads: BTreeSet<Key>,
    ranges: BTreeSet<KeyRange>,
    /// The bounds that the transaction knows of numbers of the volume: the least and the most.
    bounds: BTreeMap<Key, (u64, u64)>,
    /// Keys that no other session may lock.
    unlocked: BTreeSet<Key>,
    changes: BTreeMap<Key, Change>,
    /// Bytes of data that were written, overwritten ones included.
    written_bytes: u64,
    /// Lengths of files that the transaction makes: no other can write them.
    own: BTreeSet<Key>,
    /// The remembered values that the transaction may use without a read.
    remembered: Option<(Arc<Remembered>, Monotonic)>,
    /// The slot of the oldest remembered value that it uses.
    remembered_at: Option<Slot>,
    /// By the key of the length: the blocks, and data whose position nothing has asked for.
    appends: BTreeMap<Key, (Key, BytesMut)>,
}

/// A change of one key.
#[derive(Debug)]
enum Change {
    /// Its new value; `None`: it is deleted.
    Whole(Option<Bytes>),
    /// Changes of a value that was not read.
    Patches(Vec<Piece>),
    /// An addition to a number that was not read.
    Add(i64),
    /// The least that a number becomes.
    Max(u64),
}

impl Overlay {
    /// An overlay over the state at `at`; `None`: at the slot of the first read.
    pub(crate) fn new(store: Arc<dyn VolumeStore>, at: Option<Slot>) -> Self {
        Self {
            store,
            at,
            leased: None,
            point: DurabilityPoint::DURABLE,
            failure: None,
            cached: BTreeMap::new(),
            cached_bytes: 0,
            reads: BTreeSet::new(),
            ranges: BTreeSet::new(),
            bounds: BTreeMap::new(),
            unlocked: BTreeSet::new(),
            changes: BTreeMap::new(),
            written_bytes: 0,
            own: BTreeSet::new(),
            remembered: None,
            remembered_at: None,
            appends: BTreeMap::new(),
        }
    }

    pub(crate) fn at(&self) -> Option<Slot> {
        self.at
    }

    /// Lets it read from a client's memory, unless its slot is given.
    pub(crate) fn read_leased(&mut self, leased: Option<Arc<LeasedVolume>>) {
        if self.at.is_none() {
            self.leased = leased;
        }
    }

    /// Lets it use the values that are remembered at `now`. Then only its commit tells whether it
    /// has read one state.
    pub(crate) fn rest_on(&mut self, remembered: Arc<Remembered>, now: Monotonic) {
        self.remembered = Some((remembered, now));
    }

    /// Names, types and permissions that it has read, as of its slot. If it has committed at `at`:
    /// those that it has not changed, and those that it has put.
    pub(crate) fn known(&self, at: Option<Slot>, since: Monotonic) -> Vec<(Key, Known)> {
        let (Some(slot), is_committed) = (at.or(self.at), at.is_some()) else {
            return Vec::new();
        };
        let value_of = |key: &Key| match self.changes.get(key) {
            Some(Change::Whole(value)) if is_committed => Some(value.clone()),
            Some(_) if is_committed => None,
            _ => self.cached.get(key).cloned(),
        };
        let put = self.changes.keys().filter(|_| is_committed);
        let keys = put
            .chain(&self.reads)
            .filter(|key| inode::is_remembered(key));
        let of = |key: &Key| {
            let (at, value) = (slot, value_of(key)?);
            Some((key.clone(), Known { at, since, value }))
        };
        keys.filter_map(of).collect()
    }

    /// Notes that the transaction makes the file with this length, which is 0.
    pub(crate) fn make_length(&mut self, length: Key) {
        self.cached.insert(length.clone(), None);
        self.own.insert(length);
    }

    /// The point that all answers so far depend on.
    pub(crate) fn point(&self) -> DurabilityPoint {
        self.point
    }

    /// The error of the volume that the last refusal rests on.
    pub(crate) fn failure(&self) -> Option<&transactions::Error> {
        self.failure.as_ref()
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.store.block_bytes().get())
    }

    /// Counts data that a call is about to write. Errors: `EFBIG` if the transaction would write
    /// more than a proposal holds.
    pub(crate) fn count_data(&mut self, data: &[u8]) -> Result<()> {
        let sum = self.written_bytes + data.len() as u64;
        if sum > STAGED_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        self.written_bytes = sum;
        Ok(())
    }

    /// The inodes of which it changes keys.
    pub(crate) fn changed(&self) -> Vec<Ino> {
        let keys = self.changes.keys().chain(self.appends.keys());
        let mut inodes: Vec<Ino> = keys
            .filter_map(|key| Some(inode::owner_of(key)?.0))
            .collect();
        inodes.sort_unstable();
        inodes.dedup();
        inodes
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.changes.is_empty() && self.appends.is_empty()
    }

    /// Whether the end of the transaction is no question to the volume.
    pub(crate) fn needs_no_verdict(&self) -> bool {
        self.is_read_only() && self.unlocked.is_empty()
    }

    /// Requires that no session has a lock on `key` until the commit.
    pub(crate) fn require_unlocked(&mut self, key: Key) {
        self.unlocked.insert(key);
    }

    /// Values that the transaction does not depend on.
    pub(crate) async fn glance<const N: usize>(
        &mut self,
        keys: [Key; N],
    ) -> Result<[Option<Bytes>; N]> {
        self.fetch(&keys).await?;
        Ok(keys.map(|key| self.current(&key)))
    }

    /// Reads values. The transaction depends on all of them.
    pub(crate) async fn get_many<const N: usize>(
        &mut self,
        keys: [Key; N],
    ) -> Result<[Option<Bytes>; N]> {
        let found = self.get_all(&keys).await?;
        Ok(found.try_into().expect("as many values as keys"))
    }

    /// Reads the value of `key`.
    pub(crate) async fn get(&mut self, key: Key) -> Result<Option<Bytes>> {
        let [found] = self.get_many([key]).await?;
        Ok(found)
    }

    /// Reads values, in the order of their keys.
    pub(crate) async fn get_all(&mut self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        let is_outside = |key: &&Key| !matches!(self.changes.get(key), Some(Change::Whole(_)));
        let outside: Vec<Key> = keys.iter().filter(is_outside).cloned().collect();
        self.reads.extend(outside.iter().cloned());
        self.fetch(&outside).await?;
        Ok(keys.iter().map(|key| self.current(key)).collect())
    }

    /// Reads a number exactly.
    pub(crate) async fn number(&mut self, key: Key) -> Result<u64> {
        let (base, now) = self.peek(&key).await?;
        match self.changes.get(&key) {
            Some(Change::Whole(_)) => {}
            Some(Change::Max(most)) if base < *most => self.narrow(key, 0, now),
            _ => self.narrow(key, base, base),
        }
        Ok(now)
    }

    /// How many of `count` bytes after `offset` are within the length at `key`. The transaction
    /// depends on no more than the answer tells.
    pub(crate) async fn clamp(&mut self, key: Key, offset: u64, count: u64) -> Result<u64> {
        let (_, length) = self.peek(&key).await?;
        let end = offset.saturating_add(count);
        let own = match self.changes.get(&key) {
            Some(Change::Whole(_)) => return Ok(length.clamp(offset, end) - offset),
            Some(Change::Max(least)) => *least,
            _ => 0,
        };
        if length >= end {
            if own < end {
                self.narrow(key, end, u64::MAX);
            }
            Ok(count)
        } else if length <= offset {
            self.narrow(key, 0, offset);
            Ok(0)
        } else {
            Ok(self.number(key).await? - offset)
        }
    }

    /// Requires that the number at `key` is at least `bound`, and tells whether it is.
    pub(crate) async fn is_at_least(&mut self, key: Key, bound: u64) -> Result<bool> {
        let (_, now) = self.peek(&key).await?;
        if now < bound {
            return Ok(self.number(key).await? >= bound);
        }
        match self.changes.get(&key) {
            Some(Change::Whole(_)) => {}
            Some(Change::Add(delta)) => {
                let least = bound.saturating_add_signed(delta.saturating_neg());
                self.narrow(key, least, u64::MAX);
            }
            _ => self.narrow(key, bound, u64::MAX),
        }
        Ok(true)
    }

    /// The present keys of `range` and their values, at least `keys_max` of them unless the range
    /// ends, and the name at which more may follow. The transaction depends on the part that was
    /// looked at.
    pub(crate) async fn scan(
        &mut self,
        range: &KeyRange,
        keys_max: usize,
    ) -> Result<(Vec<Entry>, Option<Bytes>)> {
        let (mut found, mut rest) = (Vec::new(), range.clone());
        loop {
            let limits = PageLimits {
                keys_max: keys_max.clamp(1, KEYS_MAX),
                bytes_max: PAGE_BYTES_MAX,
            };
            let moment = match self.leased {
                Some(_) => At::Tail,
                None => self.moment(),
            };
            let answer = self.store.scan(moment, &rest, limits).await;
            let page = self.note(answer)?;
            self.fix_at(page.slot).await?;
            self.at.get_or_insert(page.slot);
            let until = page.next.clone().or_else(|| range.until().cloned());
            let part = KeyRange::new(range.group().clone(), rest.from().clone(), until);
            let part = part.map_err(|_| Errno::EIO)?;
            let entries = page.entries.into_iter();
            let mut present: BTreeMap<Bytes, Bytes> =
                entries.map(|entry| (entry.name, entry.value)).collect();
            let changes = self.changes.range(part.first()..);
            for (key, change) in changes.take_while(|(key, _)| !part.is_before(key)) {
                match change.applied(present.get(key.name())) {
                    Some(value) => present.insert(key.name().clone(), value),
                    None => present.remove(key.name()),
                };
            }
            self.ranges.insert(part);
            let present = present.into_iter();
            found.extend(present.map(|(name, value)| Entry { name, value }));
            match page.next {
                Some(next) if found.len() < keys_max => {
                    rest = range.starting_at(next).map_err(|_| Errno::EIO)?;
                }
                next => return Ok((found, next)),
            }
        }
    }

    /// Depends on `keys` as if it had read them, if none was
    /// written after `since`, and none is written by itself. Whether it does.
    pub(crate) async fn depend_on(&mut self, keys: &[Key], since: Slot) -> Result<bool> {
        let groups: BTreeSet<Bytes> = keys.iter().map(Key::group).cloned().collect();
        let groups = Groups::Of(groups.into_iter().collect());
        let answer = self.store.changed_since(since, &groups).await;
        let Changed::Keys { keys: changed, .. } = self.note(answer)? else {
            return Ok(false);
        };
        let changed: BTreeSet<Key> = changed.into_iter().collect();
        let is_changed = |key| changed.contains(key) || self.changes.contains_key(key);
        if keys.iter().any(is_changed) {
            return Ok(false);
        }
        self.reads.extend(keys.iter().cloned());
        Ok(true)
    }

    /// Drops the dependencies of the transaction in a range. Only mutants do.
    pub(crate) fn forget(&mut self, range: &KeyRange) {
        self.reads.retain(|key| !range.contains(key));
        self.ranges.retain(|other| other.group() != range.group());
    }

    /// Drops all reads. Only mutants do.
    pub(crate) fn forget_reads(&mut self) {
        self.reads.clear();
        self.remembered_at = None;
    }

    pub(crate) fn put(&mut self, key: Key, value: Bytes) {
        self.changes.insert(key, Change::Whole(Some(value)));
    }

    pub(crate) fn put_number(&mut self, key: Key, number: u64) {
        self.put(key, number_bytes(number));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.changes.insert(key, Change::Whole(None));
    }

    /// Replaces a part of a value, without reading the rest.
    pub(crate) fn patch(&mut self, key: Key, offset: u32, data: Patch) {
        let piece = Piece { offset, data };
        match self.changes.get_mut(&key) {
            Some(Change::Whole(value)) => *value = Some(patched(value.as_ref(), &[piece])),
            Some(Change::Patches(pieces)) => pieces.push(piece),
            _ => {
                self.changes.insert(key, Change::Patches(vec![piece]));
            }
        }
    }

    /// Adds to a number of links.
    pub(crate) fn add(&mut self, key: Key, delta: i64) {
        match self.changes.get_mut(&key) {
            Some(Change::Whole(value)) => {
                let sum = number_in(value.as_ref()).unwrap_or_default();
                *value = Some(number_bytes(sum.saturating_add_signed(delta)));
            }
            Some(Change::Add(sum)) => *sum += delta,
            _ => {
                self.changes.insert(key, Change::Add(delta));
            }
        }
    }

    /// Raises a length to `least`.
    pub(crate) fn raise(&mut self, key: Key, least: u64) {
        match self.changes.get_mut(&key) {
            Some(Change::Whole(value)) => {
                let length = number_in(value.as_ref()).unwrap_or_default();
                *value = Some(number_bytes(length.max(least)));
            }
            Some(Change::Max(most)) => *most = least.max(*most),
            _ => {
                self.changes.insert(key, Change::Max(least));
            }
        }
    }

    /// Whether the transaction knows the length already, as it has changed or read it.
    pub(crate) fn is_exact(&self, length: &Key) -> bool {
        let is_one = |(least, most): &(u64, u64)| least == most;
        self.changes.contains_key(length) || self.bounds.get(length).is_some_and(is_one)
    }

    /// Appends after a length that is not known, wherever it will be.
    pub(crate) fn append(&mut self, length: Key, blocks: Key, data: &[u8]) {
        let pending = self.appends.entry(length);
        let (_, pending) = pending.or_insert_with(|| (blocks, BytesMut::new()));
        pending.extend_from_slice(data);
    }

    /// Takes back the data that were appended after the length: the position is asked for.
    pub(crate) fn take_append(&mut self, length: &Key) -> Option<Bytes> {
        let (_, data) = self.appends.remove(length)?;
        Some(data.freeze())
    }

    /// The proposal that the transaction becomes. Large write sets are staged. Without a read, the
    /// transaction takes place at a snapshot of now.
    pub(crate) async fn propose(&mut self, id: ProposalId, stage: StageId) -> Result<Proposal> {
        let at = if let Some(at) = self.at.or(self.remembered_at) {
            at
        } else {
            let answer = self.store.snapshot().await;
            self.note(answer)?.slot
        };
        let at = self.remembered_at.map_or(at, |oldest| oldest.min(at));
        self.at = Some(at);
        let writes = self.writes();
        let bytes: usize = writes.iter().map(Write::bytes_len).sum();
        let writes = if bytes <= INLINE_BYTES_MAX {
            Writes::Inline(writes)
        } else {
            self.stage(stage, &writes).await?
        };
        let untouched = self.ranges.iter().cloned().map(Predicate::Untouched);
        let unlocked = self.unlocked.iter().cloned().map(Predicate::LockFree);
        let numbers = self.bounds.iter().flat_map(|(key, bounds)| {
            let of = |is| Predicate::Number {
                key: key.clone(),
                is,
            };
            match *bounds {
                (least, most) if least == most => vec![of(Is::Equals(least))],
                (0, most) => vec![of(Is::AtMost(most))],
                (least, u64::MAX) => vec![of(Is::AtLeast(least))],
                (least, most) => vec![of(Is::AtLeast(least)), of(Is::AtMost(most))],
            }
        });
        Ok(Proposal {
            at,
            id,
            reads: self.reads.iter().cloned().collect(),
            predicates: untouched.chain(numbers).chain(unlocked).collect(),
            writes,
        })
    }

    /// Keeps the durability point that an answer of the volume depends on, and maps its error.
    pub(crate) fn note<T>(&mut self, answer: transactions::Result<Read<T>>) -> Result<T> {
        match answer {
            Ok(Read { value, point }) => {
                self.point = self.point.max(point);
                Ok(value)
            }
            Err(error) => {
                let errno = errno_of(&error);
                self.failure = Some(error);
                Err(errno)
            }
        }
    }

    fn writes(&mut self) -> Vec<Write> {
        let mut writes = Vec::new();
        for (key, change) in &self.changes {
            let key = key.clone();
            match change {
                Change::Whole(Some(value)) => writes.push(Write::Put {
                    key,
                    value: value.clone(),
                }),
                Change::Whole(None) => writes.push(Write::Delete { key }),
                Change::Patches(pieces) => {
                    let patch = |piece: &Piece| Write::Patch {
                        key: key.clone(),
                        offset: piece.offset,
                        data: piece.data.clone(),
                    };
                    writes.extend(pieces.iter().map(patch));
                }
                Change::Add(delta) => writes.push(Write::Add { key, delta: *delta }),
                Change::Max(value) => writes.push(Write::Max { key, value: *value }),
            }
        }
        let block_bytes = self.store.block_bytes().get();
        for (length, (blocks, data)) in &self.appends {
            let append = |data: &[u8]| Write::Append {
                length: length.clone(),
                blocks: blocks.clone(),
                block_bytes,
                data: Bytes::copy_from_slice(data),
            };
            writes.extend(data.chunks(APPEND_BYTES_MAX).map(append));
        }
        writes
    }

    async fn stage(&mut self, stage: StageId, writes: &[Write]) -> Result<Writes> {
        let (mut parts, mut total, mut crc) = (0, 0, crc32fast::Hasher::new());
        let mut rest = writes;
        let store = Arc::clone(&self.store);
        // Encoded one by one, as room for another part in flight becomes free.
        let encoded = std::iter::from_fn(|| {
            if rest.is_empty() {
                return None;
            }
            let mut bytes = 16;
            let fits = |write: &&Write| {
                bytes += write.bytes_len();
                bytes <= PART_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let part = encode_part(&rest[..count]);
            crc.update(&part);
            total += part.len() as u64;
            rest = &rest[count..];
            parts += 1;
            Some(store.stage(stage, parts - 1, part))
        });
        let mut stored = stream::iter(encoded).buffered(STAGED_AT_ONCE);
        while let Some(stored) = stored.next().await {
            self.note(stored.map(|point| Read { value: (), point }))?;
        }
        drop(stored);
        Ok(Writes::Staged {
            stage,
            parts,
            bytes: total,
            crc: crc.finalize(),
        })
    }

    fn moment(&self) -> At {
        self.at.map_or(At::Tail, At::Slot)
    }

    /// The value of a key that is changed as a whole, or cached.
    fn current(&self, key: &Key) -> Option<Bytes> {
        let base = self.cached.get(key).and_then(Option::as_ref);
        match self.changes.get(key) {
            Some(change) => change.applied(base),
            None => base.cloned(),
        }
    }

    /// A number in the volume and after the changes, which the transaction does not depend on yet.
    async fn peek(&mut self, key: &Key) -> Result<(u64, u64)> {
        if !matches!(self.changes.get(key), Some(Change::Whole(_))) {
            self.fetch(std::slice::from_ref(key)).await?;
        }
        let base = self.cached.get(key).and_then(Option::as_ref);
        let base = number_in(base).ok_or(Errno::EIO)?;
        let now = number_in(self.current(key).as_ref()).ok_or(Errno::EIO)?;
        Ok((base, now))
    }

    fn narrow(&mut self, key: Key, least: u64, most: u64) {
        if self.own.contains(&key) {
            return;
        }
        let bounds = self.bounds.entry(key).or_insert((0, u64::MAX));
        *bounds = (bounds.0.max(least), bounds.1.min(most));
    }
}

impl Change {
    fn applied(&self, base: Option<&Bytes>) -> Option<Bytes> {
        let number = number_in(base).unwrap_or_default();
        match self {
            Self::Whole(value) => value.clone(),
            Self::Patches(pieces) => Some(patched(base, pieces)),
            Self::Add(delta) => Some(number_bytes(number.saturating_add_signed(*delta))),
            Self::Max(least) => Some(number_bytes(number.max(*least))),
        }
    }
}

fn errno_of(error: &transactions::Error) -> Errno {
    use transactions::Error;
    match error {
        Error::TooLarge(_) => Errno::EFBIG,
        Error::NoRoom => Errno::ENOSPC,
        Error::SnapshotTooOld => Errno::ESTALE,
        _ => Errno::EIO,
    }
}
