//! The rows of volumes: partitions and sort keys in both directions, and the records that the
//! log is installed into.
//!
//! All partitions begin with `t/`, as those of [`layout`]. Versions are spread over 256 shards by
//! their groups, so that a scan, which stays within a group, reads one partition.
//!
//! Invariants
//! - The versions of one key are one range of one partition, newest first. Ranges of two keys do
//!   not touch: a zero byte in a group or name becomes `00 FF`, and `00 01` ends it.
//! - Keys are in the order of their names within a group.
//! - No sort key is longer than [`layout::SORT_BYTES_MAX`].

#[cfg(test)]
mod tests;

use bytes::{BufMut as _, Bytes, BytesMut};
use ports::{Key as ItemKey, key_value::Scan};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    model::KeyspaceId,
    serializable::{
        FORMAT,
        apply::{Change, Piece, is_in_bounds},
        model::{
            GROUP_BYTES_MAX, Key, KeyRange, NAME_BYTES_MAX, PinName, Predicate, Proposal,
            ProposalId, Refusal, Slot, StageId, VALUE_BYTES_MAX, Verdict,
        },
    },
    storage::layout,
};

/// The partition of the volumes' own rows.
pub const VOLUMES: &[u8] = b"t/vol";
/// The prefix of partitions of versions.
pub const VERSIONS: &[u8] = b"t/x/";
/// The prefix of partitions of stages.
pub const STAGES: &[u8] = b"t/xs/";
/// The prefix of partitions of changes.
pub const CHANGES: &[u8] = b"t/xc/";
/// The prefix of partitions of installed states.
pub const INSTALLED: &[u8] = b"t/xi/";
/// The prefix of partitions of pins.
pub const PINS: &[u8] = b"t/xp/";
/// The prefix of partitions of objects.
pub const OBJECTS: &[u8] = b"t/xo/";
/// The prefix of partitions of the outcomes of client ids.
pub const OUTCOMES: &[u8] = b"t/xn/";

/// The sort key of a row among the pins that is none: no name is these bytes.
pub const RESCAN: &[u8] = b"\xff";
/// The prefix of the names of pins that keep the snapshots that clones read.
const PINS_OF_CLONES: &str = "clone/";
/// Ends a group and a name.
const END: [u8; 2] = [0, 1];
/// After all versions of a name, and after all names of a group.
const AFTER_END: [u8; 2] = [0, 2];
/// The length of a slot in a sort key.
const SLOT_BYTES: usize = 8;
/// The longest sort key: every byte escaped, both ends, and the slot.
const SORT_BYTES_MAX: usize = 2 * (GROUP_BYTES_MAX + NAME_BYTES_MAX) + 2 * END.len() + SLOT_BYTES;
const _: () = assert!(SORT_BYTES_MAX <= layout::SORT_BYTES_MAX);

/// The row of a volume.
pub fn volume(name: &str) -> ItemKey {
    ItemKey::new(VOLUMES, name)
}

/// The row that counts the keyspaces of volumes.
pub fn keyspaces() -> ItemKey {
    ItemKey::new(b"t/counter", b"volumes")
}

/// The row that gives out a volume's numbers.
pub fn numbers(keyspace: KeyspaceId) -> ItemKey {
    ItemKey::new(
        b"t/counter",
        [&b"ino/"[..], &keyspace.0.to_be_bytes()].concat(),
    )
}

/// The row of a volume's installed state.
pub fn installed(keyspace: KeyspaceId) -> ItemKey {
    ItemKey::new(of_keyspace(INSTALLED, keyspace), b"state")
}

/// The row that asks for a collection of all versions: a pin that kept some is removed.
pub fn rescan(keyspace: KeyspaceId) -> ItemKey {
    ItemKey::new(pins(keyspace), RESCAN)
}

/// The partition of a volume's pins.
pub fn pins(keyspace: KeyspaceId) -> Bytes {
    of_keyspace(PINS, keyspace)
}

/// The row of a pin.
pub fn pin(keyspace: KeyspaceId, name: &PinName) -> ItemKey {
    ItemKey::new(pins(keyspace), name.as_str())
}

/// The pin that keeps the snapshot that a clone reads.
pub fn pin_of_clone(keyspace: KeyspaceId) -> PinName {
    let name = PinName::new(format!("{PINS_OF_CLONES}{}", keyspace.0));
    name.expect("it is short")
}

/// Whether a pin is one of [`pin_of_clone`].
pub fn is_of_clone(name: &PinName) -> bool {
    name.as_str().starts_with(PINS_OF_CLONES)
}

/// The row of the outcome of a client's id.
pub fn outcome(keyspace: KeyspaceId, id: &Bytes) -> ItemKey {
    let bucket = crc32fast::hash(id) as u8;
    let partition = [OUTCOMES, &keyspace.0.to_be_bytes(), &[bucket]].concat();
    ItemKey::new(partition, id)
}

/// The partition of a stage.
pub fn stage(keyspace: KeyspaceId, stage: StageId) -> Bytes {
    [STAGES, &keyspace.0.to_be_bytes(), &stage.0]
        .concat()
        .into()
}

/// A part of a stage.
pub fn stage_part(keyspace: KeyspaceId, id: StageId, part: u32) -> ItemKey {
    ItemKey::new(stage(keyspace, id), part.to_be_bytes())
}

/// The partition that lists a volume's stages.
pub fn stages(keyspace: KeyspaceId) -> Bytes {
    of_keyspace(STAGES, keyspace)
}

/// The row that lists a stage, with the time at which it began.
pub fn stage_listed(keyspace: KeyspaceId, id: StageId) -> ItemKey {
    ItemKey::new(stages(keyspace), id.0)
}

/// The partition of a volume's changes.
pub fn changes(keyspace: KeyspaceId) -> Bytes {
    of_keyspace(CHANGES, keyspace)
}

/// A row of the changes of one slot. A slot with many keys has several rows, from part 0.
pub fn change(keyspace: KeyspaceId, slot: Slot, part: u32) -> ItemKey {
    let sort = [&slot.0.to_be_bytes()[..], &part.to_be_bytes()].concat();
    ItemKey::new(changes(keyspace), sort)
}

/// The slot of the change row with this sort key.
pub fn change_slot(sort: &[u8]) -> Option<Slot> {
    let (slot, part) = sort.split_first_chunk()?;
    (part.len() == 4).then_some(Slot(u64::from_be_bytes(*slot)))
}

/// The partition of a volume's objects.
pub fn objects(keyspace: KeyspaceId) -> Bytes {
    of_keyspace(OBJECTS, keyspace)
}

/// The row of an object.
pub fn object(keyspace: KeyspaceId, id: ObjectId) -> ItemKey {
    ItemKey::new(objects(keyspace), id.0)
}

/// The version of `key` that `slot` wrote.
pub fn version(keyspace: KeyspaceId, key: &Key, slot: Slot) -> ItemKey {
    let mut sort = prefix(key, END);
    sort.put_u64(!slot.0);
    ItemKey::new(shard(keyspace, key.group()), sort)
}

/// The versions of `key` at or before slot `at`, newest first.
pub fn versions(keyspace: KeyspaceId, key: &Key, at: Slot, items_max: usize) -> Scan {
    let mut from = prefix(key, END);
    from.put_u64(!at.0);
    Scan {
        partition: shard(keyspace, key.group()),
        from: from.freeze(),
        until: Some(prefix(key, AFTER_END).freeze()),
        items_max,
    }
}

/// All versions of all keys in `range`.
pub fn versions_in(keyspace: KeyspaceId, range: &KeyRange, items_max: usize) -> Scan {
    let bound = |name: &[u8]| {
        let mut sort = group_prefix(range.group(), END);
        layout::escape(name, &mut sort);
        sort.freeze()
    };
    let until = match range.until() {
        Some(until) => bound(until),
        None => group_prefix(range.group(), AFTER_END).freeze(),
    };
    Scan {
        partition: shard(keyspace, range.group()),
        from: bound(range.from()),
        until: Some(until),
        items_max,
    }
}

/// The key and the slot of the version with this sort key.
pub fn version_of(sort: &[u8]) -> Option<(Key, Slot)> {
    let (group, rest) = up_to_end(sort)?;
    let (name, slot) = up_to_end(rest)?;
    let slot = u64::from_be_bytes(slot.try_into().ok()?);
    Some((Key::new(group, name).ok()?, Slot(!slot)))
}

/// The partition of the versions of a group's shard.
pub fn shard(keyspace: KeyspaceId, group: &[u8]) -> Bytes {
    let shard = crc32fast::hash(group) as u8;
    [VERSIONS, &keyspace.0.to_be_bytes(), &[shard]]
        .concat()
        .into()
}

/// The partitions of a volume's versions.
pub fn version_shards(keyspace: KeyspaceId) -> impl Iterator<Item = Bytes> {
    each_byte(of_keyspace(VERSIONS, keyspace))
}

/// The partitions of the outcomes of a volume's client ids.
pub fn outcome_buckets(keyspace: KeyspaceId) -> impl Iterator<Item = Bytes> {
    each_byte(of_keyspace(OUTCOMES, keyspace))
}

/// All partitions that hold the rows of a volume, except those of its stages.
pub fn partitions(keyspace: KeyspaceId) -> impl Iterator<Item = Bytes> {
    let single = [CHANGES, INSTALLED, PINS, OBJECTS].map(|prefix| of_keyspace(prefix, keyspace));
    let versions = version_shards(keyspace);
    versions.chain(outcome_buckets(keyspace)).chain(single)
}

fn each_byte(prefix: Bytes) -> impl Iterator<Item = Bytes> {
    (0..=u8::MAX).map(move |byte| Bytes::from([&prefix[..], &[byte]].concat()))
}

fn of_keyspace(prefix: &[u8], keyspace: KeyspaceId) -> Bytes {
    [prefix, &keyspace.0.to_be_bytes()].concat().into()
}

fn group_prefix(group: &[u8], end: [u8; 2]) -> BytesMut {
    let mut sort = BytesMut::with_capacity(SORT_BYTES_MAX);
    layout::escape(group, &mut sort);
    sort.put_slice(&end);
    sort
}

fn prefix(key: &Key, end: [u8; 2]) -> BytesMut {
    let mut sort = group_prefix(key.group(), END);
    layout::escape(key.name(), &mut sort);
    sort.put_slice(&end);
    sort
}

/// The bytes up to the first end, and the rest after it.
fn up_to_end(escaped: &[u8]) -> Option<(Bytes, &[u8])> {
    let (bytes, rest) = layout::unescape(escaped);
    Some((bytes, rest.strip_prefix(&END)?))
}

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRow {
    /// The CRC-32 of the encoded change: a damaged value is an error of its key alone.
    crc: u32,
    change: Bytes,
}

impl VersionRow {
    /// Encodes a change.
    pub fn encode(change: &Change) -> Bytes {
        let change = FORMAT.encode(change, change.bytes_len() + 8);
        let crc = crc32fast::hash(&change);
        let bytes_len = change.len() + 16;
        FORMAT.encode(&Self { crc, change }, bytes_len)
    }

    /// Encodes the place of a whole value.
    pub fn encode_placed(place: Place) -> Bytes {
        let change = FORMAT.encode(&Stored::Placed(place), 64);
        let crc = crc32fast::hash(&change);
        FORMAT.encode(&Self { crc, change }, 96)
    }

    /// Decodes the bytes of [`VersionRow::encode`] or [`VersionRow::encode_placed`]. Errors:
    /// `Corrupt`.
    pub fn decode(row: &[u8]) -> Result<Version> {
        let Self { crc, change } = FORMAT.decode(row, "a version of a volume")?;
        if crc32fast::hash(&change) != crc {
            let why = "a version of a volume does not match its checksum";
            return Err(Error::Corrupt(why.into()));
        }
        let change = match FORMAT.decode(&change, "a version of a volume")? {
            Stored::Put(value) => Change::Put(value),
            Stored::Delete => Change::Delete,
            Stored::Patch(pieces) => Change::Patch(pieces),
            Stored::Placed(place) if place.bytes as usize <= VALUE_BYTES_MAX => {
                return Ok(Version::Placed(place));
            }
            Stored::Placed(_) => return Err(too_long()),
        };
        if !is_in_bounds(&change) {
            return Err(too_long());
        }
        Ok(Version::Here(change))
    }
}

fn too_long() -> Error {
    Error::Corrupt("a version of a volume is longer than any value".into())
}

/// The name of an object that holds values of a volume: random bytes, used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId(pub [u8; 16]);

/// The place of a value in an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The object.
    pub object: ObjectId,
    /// Where the value begins there.
    pub offset: u32,
    /// Its length.
    pub bytes: u32,
    /// Its CRC-32.
    pub crc: u32,
}

/// The content of a version's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// A change.
    Here(Change),
    /// A whole value that lies in an object.
    Placed(Place),
}

/// The encoded form of a [`Version`].
#[derive(Serialize, Deserialize)]
enum Stored {
    Put(Bytes),
    Delete,
    Patch(Vec<Piece>),
    Placed(Place),
}

/// The versions that lay in an object when it was put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// The bytes of the object.
    pub bytes: u64,
    /// The keys and slots of its versions.
    pub versions: Vec<(Key, Slot)>,
}

impl ObjectRow {
    /// Encodes it.
    pub fn encode(&self) -> Bytes {
        let keys = self.versions.iter().map(|(key, _)| key.bytes_len() + 16);
        FORMAT.encode(self, keys.sum::<usize>() + 16)
    }

    /// Decodes the bytes of [`ObjectRow::encode`]. Errors: `Corrupt`.
    pub fn decode(row: &[u8]) -> Result<Self> {
        Ok(FORMAT.decode(row, "an object of a volume")?)
    }
}

/// The keys that a slot wrote, and the proposals that it decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRow {
    /// When the slot was written, by its writer's wall clock, in milliseconds.
    pub written_ms: u64,
    /// Its keys, sorted.
    pub keys: Vec<Key>,
    /// Its proposals.
    pub decided: Vec<(ProposalId, Verdict)>,
}

impl ChangeRow {
    /// A key of the slot that `proposal` has read or scanned.
    fn conflict(&self, proposal: &Proposal) -> Option<&Key> {
        let written = |key: &Key| Some(&self.keys[self.keys.binary_search(key).ok()?]);
        let read = proposal.reads.iter().find_map(written);
        read.or_else(|| {
            proposal
                .predicates
                .iter()
                .find_map(|predicate| match predicate {
                    Predicate::Untouched(range) => self.keys.iter().find(|key| range.contains(key)),
                    Predicate::Number { .. } | Predicate::LockFree(_) => None,
                })
        })
    }

    /// Encodes it.
    pub fn encode(&self) -> Bytes {
        let keys = self.keys.iter().map(Key::bytes_len).sum::<usize>();
        FORMAT.encode(self, keys + 64 * self.decided.len() + 32)
    }

    /// Decodes the bytes of [`ChangeRow::encode`]. Errors: `Corrupt`.
    pub fn decode(row: &[u8]) -> Result<Self> {
        let row: Self = FORMAT.decode(row, "the changes of a slot")?;
        if !row.keys.is_sorted_by(|one, next| one < next) {
            let why = "the changes of a slot are not in the order of keys";
            return Err(Error::Corrupt(why.into()));
        }
        Ok(row)
    }
}

/// How far a volume's log is installed, and the content of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InstalledState {
    /// The last installed slot. Rows of later slots do not count.
    pub slot: Slot,
    /// Reads before it are too old, except at pins.
    pub horizon: Slot,
    /// The versions that the changes up to this slot replaced are deleted.
    pub collected: Slot,
    /// When the outcomes of clients' ids were last looked through, in milliseconds.
    pub outcomes_swept_ms: u64,
    /// Every change row after this slot exists.
    pub changes_from: Slot,
    /// Bytes of names and newest values.
    pub bytes: u64,
    /// Present keys.
    pub keys: u64,
    /// For each take-over, the last slot before it and its seal. Slots between the two were lost
    /// with an end of the store.
    pub gaps: Vec<(Slot, Slot)>,
}

impl InstalledState {
    /// Encodes it.
    pub fn encode(&self) -> Bytes {
        FORMAT.encode(self, 64 + 20 * self.gaps.len())
    }

    /// Decodes the bytes of [`InstalledState::encode`]. Errors: `Corrupt`.
    pub fn decode(row: &[u8]) -> Result<Self> {
        Ok(FORMAT.decode(row, "the installed state of a volume")?)
    }
}

/// The outcome of a client's id, which a repeat days later finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeRow {
    /// The latest attempt that was decided.
    pub id: ProposalId,
    /// Its verdict.
    pub verdict: Verdict,
    /// When the slot was written, by its writer's wall clock, in milliseconds.
    pub written_ms: u64,
}

impl OutcomeRow {
    /// The verdict on the proposal `asked`, if the row tells it.
    pub fn verdict_on(&self, asked: &ProposalId) -> Option<Verdict> {
        verdict_of(&self.id, &self.verdict, asked)
    }

    /// Encodes it.
    pub fn encode(&self) -> Bytes {
        FORMAT.encode(self, 64 + self.id.id().len())
    }

    /// Decodes the bytes of [`OutcomeRow::encode`]. Errors: `Corrupt`.
    pub fn decode(row: &[u8]) -> Result<Self> {
        Ok(FORMAT.decode(row, "the outcome of a proposal")?)
    }
}

/// Checks one old proposal against the change rows of the slots after its `at`, in their order.
#[derive(Debug)]
pub struct LateCheck<'a> {
    proposal: &'a Proposal,
    decided: Option<Verdict>,
    conflict: Option<Key>,
}

impl<'a> LateCheck<'a> {
    /// Before the first row.
    pub fn new(proposal: &'a Proposal) -> Self {
        Self {
            proposal,
            decided: None,
            conflict: None,
        }
    }

    /// Adds the next row.
    pub fn add(&mut self, row: &ChangeRow) {
        let mut latest_first = row.decided.iter().rev();
        let known =
            latest_first.find_map(|(id, verdict)| verdict_of(id, verdict, &self.proposal.id));
        // The last word counts, as in memory: a later attempt may have committed.
        self.decided = known.or(self.decided.take());
        if self.conflict.is_none() {
            self.conflict = row.conflict(self.proposal).cloned();
        }
    }

    /// The verdict, if the rows decide.
    pub fn verdict(self) -> Option<Verdict> {
        let conflict = self.conflict.map(|key| Verdict::Conflict { key });
        self.decided.or(conflict)
    }
}

/// The verdict on the proposal `asked`, given that on `id`; `None` if `id` says nothing about it.
/// Of the attempts of one transaction at most one commits, and a later one closes the earlier.
pub(super) fn verdict_of(
    id: &ProposalId,
    verdict: &Verdict,
    asked: &ProposalId,
) -> Option<Verdict> {
    let is_final = matches!(verdict, Verdict::Committed { .. }) || id.attempt() == asked.attempt();
    match () {
        () if id.id() != asked.id() => None,
        () if is_final => Some(verdict.clone()),
        () if id.attempt() > asked.attempt() => Some(Verdict::Refused(Refusal::Superseded)),
        () => None,
    }
}
