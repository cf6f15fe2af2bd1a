//! The layout of the store: partitions and sort keys, in both directions.
//!
//! All partitions begin with `t/`; integers in keys are big-endian and of fixed width, so that they
//! sort. Versions and decisions are spread over [`Buckets`]. A partition for each key would cost an
//! index of its own on some stores, and a bucket can be scanned completely for items that no log
//! names any more.
//!
//! Invariants
//! - The versions of one key are one range of one partition, and ranges of two keys do not touch: a
//!   zero byte in a key becomes `00 FF`, and `00 01` ends it.
//! - Keys are in the order of their ranges within a bucket, except for keys too long for that. Long
//!   keys are placed by their first [`HEAD_BYTES_MAX`] escaped bytes, after the key that equals
//!   these bytes, and among themselves by their SHA-256. Their items hold the full key.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{Key as ItemKey, key_value::Scan};
use sha2::{Digest, Sha256};

use crate::{
    model::{Attempt, Key, KeyspaceId, NodeId, PackId, TransactionId},
    storage::records::RECORD_VERSION,
};

/// The buckets over which the versions and the decisions of a store are spread. A store never
/// changes them: the format row holds their number, and a node configured otherwise does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets(u8);

/// The maximum, 256.
impl Default for Buckets {
    fn default() -> Self {
        Self(u8::MAX)
    }
}

impl Buckets {
    /// This bucket and all before it: each sweep scans all of them, twice.
    pub const fn through(last: u8) -> Self {
        Self(last)
    }

    /// Their number.
    pub fn count(self) -> u32 {
        u32::from(self.0) + 1
    }

    /// Each of them.
    pub fn all(self) -> impl Iterator<Item = u8> {
        0..=self.0
    }

    /// The row that decides a transaction.
    pub fn decision(self, id: &TransactionId) -> ItemKey {
        ItemKey::new(decision_bucket(self.bucket(id.as_bytes())), id.as_bytes())
    }

    /// The version of `key` that `attempt` wrote.
    pub fn version(self, key: &Key, attempt: Attempt) -> ItemKey {
        let mut sort = version_prefix(key, END);
        sort.put_slice(&attempt.to_bytes());
        ItemKey::new(self.version_partition(key), sort)
    }

    /// The versions of one bucket of the default keyspace from the place `from` (inclusive) to
    /// `until` (exclusive), `items_max` to a page.
    pub fn listed(self, bucket: u8, from: Bytes, until: Bytes, items_max: usize) -> Scan {
        let partition = version_bucket(KeyspaceId::default(), bucket);
        Scan {
            partition,
            from,
            until: Some(until),
            items_max,
        }
    }

    /// All versions of `key`, `items_max` to a page.
    pub fn versions(self, key: &Key, items_max: usize) -> Scan {
        Scan {
            partition: self.version_partition(key),
            from: version_prefix(key, END).freeze(),
            until: Some(version_prefix(key, AFTER_END).freeze()),
            items_max,
        }
    }

    fn version_partition(self, key: &Key) -> Bytes {
        version_bucket(key.keyspace(), self.bucket(key.name()))
    }

    fn bucket(self, bytes: &[u8]) -> u8 {
        (crc32fast::hash(bytes) % self.count()) as u8
    }
}

/// The partition of nodes' rows.
pub const NODES: &[u8] = b"t/n";
/// The prefix of partitions of decision rows.
pub const DECISIONS: &[u8] = b"t/d/";
/// The prefix of partitions of versions.
pub const VERSIONS: &[u8] = b"t/v/";
/// The prefix of partitions of chunks.
pub const CHUNKS: &[u8] = b"t/c/";
/// The prefix of partitions of nodes' logs.
pub const LOGS: &[u8] = b"t/l/";
/// The prefix of partitions of outbox rows.
pub const OUTBOXES: &[u8] = b"t/o/";
/// The prefix of partitions of large effects.
pub const EFFECTS: &[u8] = b"t/e/";
/// The partition of the retention buckets of client ids.
pub const PERIODS: &[u8] = b"t/r";
/// The prefix of partitions of kept client ids.
pub const KEPT_NAMES: &[u8] = b"t/r/";
/// The prefix of partitions of write sets' parts.
pub const WRITE_SETS: &[u8] = b"t/w/";

/// The partition of packs' rows.
pub const PACKS: &[u8] = b"t/p";
/// The partition of keyspaces' rows.
pub const KEYSPACES: &[u8] = b"t/k";
/// The prefix of partitions of sequencers' logs.
pub const SEQUENCERS: &[u8] = b"t/s/";

/// A key whose versions would have longer sort keys than this takes its long form. It is the limit
/// of the tightest store, and the same on all, so that stored data do not depend on a writer's
/// limits.
pub const SORT_BYTES_MAX: usize = 1_024;

/// How many escaped bytes of a long key are in its place, before its SHA-256.
pub const HEAD_BYTES_MAX: usize =
    SORT_BYTES_MAX - 1 - LONG.len() - DIGEST_BYTES - END.len() - Attempt::BYTES;

/// The first byte of all places of keys.
const PLACE: u8 = 1;
/// Separates the head of a long key from its SHA-256.
const LONG: [u8; 2] = [0, 3];
/// The length of a SHA-256.
const DIGEST_BYTES: usize = 32;
/// A zero byte within a key.
const ESCAPED_ZERO: [u8; 2] = [0, 0xff];
/// The end of a key.
const END: [u8; 2] = [0, 1];
/// After all versions of a key.
const AFTER_END: [u8; 2] = [0, 2];

/// The row that holds the record format of the store.
pub fn format() -> ItemKey {
    ItemKey::new(b"t/format", [RECORD_VERSION])
}

/// Counts the starts of nodes.
pub fn node_counter() -> ItemKey {
    ItemKey::new(b"t/counter", b"node")
}

/// A node's row.
pub fn node(node: NodeId) -> ItemKey {
    ItemKey::new(NODES, node.0.to_be_bytes())
}

/// The node whose row has this sort key.
pub fn node_of(sort: &[u8]) -> Option<NodeId> {
    Some(NodeId(u32::from_be_bytes(sort.try_into().ok()?)))
}

/// The partition of a node's log.
pub fn log(node: NodeId) -> Bytes {
    [LOGS, &node.0.to_be_bytes()].concat().into()
}

/// A keyspace's row.
pub fn keyspace(keyspace: KeyspaceId) -> ItemKey {
    ItemKey::new(KEYSPACES, keyspace.0.to_be_bytes())
}

/// The keyspace whose row has this sort key.
pub fn keyspace_of(sort: &[u8]) -> Option<KeyspaceId> {
    Some(KeyspaceId(u32::from_be_bytes(sort.try_into().ok()?)))
}

/// The partition of the log that orders a keyspace. The log of the default keyspace orders all
/// sequenced ones, except volumes: each volume has its own.
pub fn sequencer_log(keyspace: KeyspaceId) -> Bytes {
    [SEQUENCERS, &keyspace.0.to_be_bytes()].concat().into()
}

/// The rows of one bucket.
pub fn decision_bucket(bucket: u8) -> Bytes {
    [DECISIONS, &[bucket]].concat().into()
}

/// A retention bucket of client ids, by its end in milliseconds.
pub fn period(end: u64) -> ItemKey {
    ItemKey::new(PERIODS, end.to_be_bytes())
}

/// The retention bucket whose row has this sort key.
pub fn period_of(sort: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(sort.try_into().ok()?))
}

/// The client ids kept in a retention bucket, oldest first.
pub fn kept_names(end: u64) -> Bytes {
    [KEPT_NAMES, &end.to_be_bytes()].concat().into()
}

/// A client id that was noted at `kept`, in milliseconds.
pub fn kept_name(end: u64, kept: u64, id: &TransactionId) -> ItemKey {
    kept_name_at(end, [&kept.to_be_bytes(), &id.as_bytes()[..]].concat())
}

/// A kept client id by its sort key.
pub fn kept_name_at(end: u64, sort: impl AsRef<[u8]>) -> ItemKey {
    ItemKey::new(kept_names(end), sort)
}

/// The client id that was noted under this sort key.
pub fn kept_name_of(sort: &Bytes) -> Option<TransactionId> {
    (sort.len() > 8).then(|| TransactionId::new(sort.slice(8..)).ok())?
}

/// A part of a write set too large for its row.
pub fn write_set_part(attempt: Attempt, part: u32) -> ItemKey {
    ItemKey::new(
        [WRITE_SETS, &attempt.to_bytes()].concat(),
        part.to_be_bytes(),
    )
}

/// The chunks of an attempt's writes.
pub fn chunks(attempt: Attempt) -> Bytes {
    [CHUNKS, &attempt.to_bytes()].concat().into()
}

/// A chunk of one of them.
pub fn chunk(attempt: Attempt, write: u32, chunk: u32) -> ItemKey {
    ItemKey::new(
        chunks(attempt),
        [write.to_be_bytes(), chunk.to_be_bytes()].concat(),
    )
}

/// The row of a pack.
pub fn pack(id: PackId) -> ItemKey {
    ItemKey::new(PACKS, id.to_bytes())
}

/// The secret that the nodes of the store share.
pub fn secret() -> ItemKey {
    ItemKey::new(b"t/format", b"secret")
}

/// The row that names the place of the packs in the object store.
pub fn packs_home() -> ItemKey {
    ItemKey::new(b"t/format", b"packs")
}

/// The unsent effects of a node's attempts.
pub fn outbox(node: NodeId) -> Bytes {
    [OUTBOXES, &node.0.to_be_bytes()].concat().into()
}

/// The unsent effects of an attempt.
pub fn outbox_row(attempt: Attempt) -> ItemKey {
    ItemKey::new(outbox(attempt.node), attempt.sequence.to_be_bytes())
}

/// The sequence of the attempt whose outbox row has this sort key.
pub fn outbox_sequence(sort: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(sort.try_into().ok()?))
}

/// An effect that does not fit the outbox row of its attempt.
pub fn effect(attempt: Attempt, place: u32) -> ItemKey {
    ItemKey::new([EFFECTS, &attempt.to_bytes()].concat(), place.to_be_bytes())
}

/// The length of the sort key of a version of `key`.
pub fn version_sort_bytes(key: &Key) -> usize {
    let key_bytes = if is_long(key) {
        escaped_bytes(head(key.name())) + LONG.len() + DIGEST_BYTES
    } else {
        escaped_bytes(key.name())
    };
    1 + key_bytes + END.len() + Attempt::BYTES
}

/// The place of a key within its keyspace; keys are listed in the order of their places.
pub fn place(key: &Key) -> Bytes {
    version_prefix(key, END).freeze()
}

/// The range of places of all keys that begin with `prefix`, from the first result (inclusive) to
/// the second (exclusive). If `prefix` is longer than a head, the range also holds other keys with
/// its head.
pub fn places_of(prefix: &[u8]) -> (Bytes, Bytes) {
    let mut from = BytesMut::new();
    from.put_u8(PLACE);
    escape(head(prefix), &mut from);
    let mut until = from.to_vec();
    while until.last() == Some(&u8::MAX) {
        until.pop();
    }
    *until
        .last_mut()
        .expect("the first byte of a place is not the last one there is") += 1;
    (from.freeze(), until.into())
}

/// The first place after that of `key`.
pub fn behind(key: &Key) -> Bytes {
    version_prefix(key, AFTER_END).freeze()
}

/// Whether `key` takes its long form: then its version items hold it as well.
pub fn is_long(key: &Key) -> bool {
    1 + escaped_bytes(key.name()) + END.len() + Attempt::BYTES > SORT_BYTES_MAX
}

/// The attempt that wrote the version with this sort key.
pub fn attempt_of(sort: &[u8]) -> Option<Attempt> {
    Attempt::from_bytes(sort.last_chunk::<{ Attempt::BYTES }>()?)
}

/// The key and the attempt of the version at `item`; `long` is the key in the item if it is in its
/// long form.
pub fn version_of(item: &ItemKey, long: Option<&Bytes>) -> Option<(Key, Attempt)> {
    let place = item.partition().strip_prefix(VERSIONS)?;
    let (keyspace, _bucket) = place.split_first_chunk::<4>()?;
    let sort = item.sort();
    let (place, attempt) = sort.split_last_chunk::<{ Attempt::BYTES }>()?;
    let keyspace = KeyspaceId(u32::from_be_bytes(*keyspace));
    let key = match long {
        None => {
            let escaped = place.strip_prefix(&[PLACE])?.strip_suffix(&END)?;
            let (name, rest) = unescape(escaped);
            if !rest.is_empty() {
                return None;
            }
            Key::in_keyspace(keyspace, name).ok()?
        }
        Some(long) => {
            let key = Key::in_keyspace(keyspace, long.clone()).ok()?;
            if !is_long(&key) || version_prefix(&key, END)[..] != *place {
                return None;
            }
            key
        }
    };
    Some((key, Attempt::from_bytes(attempt)?))
}

/// The versions of one bucket.
pub fn version_bucket(keyspace: KeyspaceId, bucket: u8) -> Bytes {
    [VERSIONS, &keyspace.0.to_be_bytes(), &[bucket]]
        .concat()
        .into()
}

fn version_prefix(key: &Key, end: [u8; 2]) -> BytesMut {
    let mut sort = BytesMut::with_capacity(version_sort_bytes(key));
    sort.put_u8(PLACE);
    if is_long(key) {
        escape(head(key.name()), &mut sort);
        sort.put_slice(&LONG);
        sort.put_slice(&digest(key.name()));
    } else {
        escape(key.name(), &mut sort);
    }
    sort.put_slice(&end);
    sort
}

/// Writes `name` so that its order stays, and none of its bytes looks like its end.
pub(crate) fn escape(name: &[u8], into: &mut BytesMut) {
    for byte in name {
        match byte {
            0 => into.put_slice(&ESCAPED_ZERO),
            byte => into.put_u8(*byte),
        }
    }
}

fn escaped_bytes(name: &[u8]) -> usize {
    name.iter()
        .map(|byte| if *byte == 0 { ESCAPED_ZERO.len() } else { 1 })
        .sum()
}

/// The part of `name` that is in a place, at most.
fn head(name: &[u8]) -> &[u8] {
    let mut escaped = 0;
    let mut fits = |byte: &u8| {
        escaped += escaped_bytes(&[*byte]);
        escaped <= HEAD_BYTES_MAX
    };
    &name[..name.iter().take_while(|byte| fits(byte)).count()]
}

fn digest(name: &[u8]) -> [u8; DIGEST_BYTES] {
    Sha256::digest(name).into()
}

/// The name that [`escape`] wrote, and the rest from its end on: a zero that is not escaped.
pub(crate) fn unescape(escaped: &[u8]) -> (Bytes, &[u8]) {
    let mut name = BytesMut::with_capacity(escaped.len());
    let mut rest = escaped;
    loop {
        if let Some(after) = rest.strip_prefix(&ESCAPED_ZERO) {
            name.put_u8(0);
            rest = after;
        } else {
            match rest {
                [] | [0, ..] => return (name.freeze(), rest),
                [byte, after @ ..] => {
                    name.put_u8(*byte);
                    rest = after;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_key(random: &mut fastrand::Rng) -> Key {
        let alphabet = [0, 1, 2, b'a', 0xfe, 0xff];
        let name: Vec<u8> = (0..random.usize(0..6))
            .map(|_| alphabet[random.usize(..6)])
            .collect();
        Key::new(name).expect("short")
    }

    #[test]
    fn a_version_is_found_in_the_range_of_its_key_alone() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let (key, other) = (random_key(&mut random), random_key(&mut random));
            let buckets = Buckets::through(random.u8(..));
            let attempt = Attempt {
                node: NodeId(random.u32(..)),
                sequence: random.u64(..),
            };
            let item = buckets.version(&other, attempt);
            let range = buckets.versions(&key, 1);
            let sort = item.sort();
            let in_range = sort >= range.from && Some(&sort) < range.until.as_ref();
            assert_eq!(in_range, key == other, "{key:?} {other:?}");
            assert_eq!(
                key < other,
                buckets.version(&key, attempt).sort() < sort && key != other,
                "{key:?} {other:?}"
            );
            assert_eq!(version_of(&item, None), Some((other.clone(), attempt)));
            assert_eq!(attempt_of(&sort), Some(attempt));
            assert_eq!(sort.len(), version_sort_bytes(&other));
        }
    }

    #[test]
    fn the_places_of_a_prefix_are_those_of_the_keys_that_begin_with_it() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let (key, other) = (random_key(&mut random), random_key(&mut random));
            let (from, until) = places_of(key.name());
            let is_within = (from..until).contains(&place(&other));
            assert_eq!(
                is_within,
                other.name().starts_with(key.name()),
                "{key:?} {other:?}"
            );
            assert_eq!(
                place(&other) >= behind(&key),
                other > key,
                "{key:?} {other:?}"
            );
        }
    }

    /// Keys that differ in their first [`HEAD_BYTES_MAX`] bytes are in order, however long they
    /// are.
    #[test]
    fn long_keys_lie_among_others() {
        let mut random = fastrand::Rng::with_seed(6);
        let any = |random: &mut fastrand::Rng| {
            let mut name = random_key(random).name().to_vec();
            name.resize(
                *random
                    .choice(&[name.len(), 1_008, 1_009, 1_010, 1_024])
                    .expect("some"),
                b'k',
            );
            Key::new(name).expect("short enough")
        };
        for _ in 0..20_000 {
            let (key, other) = (any(&mut random), any(&mut random));
            if head(key.name()) != head(other.name()) {
                assert_eq!(
                    place(&key) < place(&other),
                    key < other,
                    "{key:?} {other:?}"
                );
                assert_eq!(
                    place(&key) >= behind(&other),
                    key > other,
                    "{key:?} {other:?}"
                );
            }
            let prefix = &key.name()[..random.usize(..=key.name().len())];
            let (from, until) = places_of(prefix);
            assert!(
                (from..until).contains(&place(&key)),
                "{key:?} {}",
                prefix.escape_ascii()
            );
        }
    }

    #[test]
    fn a_key_too_long_for_a_sort_key_lies_by_its_hash_and_in_no_range_of_another() {
        let (attempt, buckets) = (
            Attempt {
                node: NodeId(1),
                sequence: 2,
            },
            Buckets::default(),
        );
        let key = |length: usize, last: u8| {
            let mut name = vec![b'k'; length];
            name[length - 1] = last;
            Key::new(name).expect("short enough")
        };
        let longest_literal = SORT_BYTES_MAX - 1 - END.len() - Attempt::BYTES;
        let zeros = Key::new(vec![0; 1_024]).expect("as long as a key may be");
        let keys = [
            key(longest_literal, b'a'),
            key(longest_literal + 1, b'a'),
            key(1_024, b'a'),
            zeros,
        ];
        for (place, key) in keys.iter().enumerate() {
            let item = buckets.version(key, attempt);
            assert!(item.sort().len() <= SORT_BYTES_MAX, "{place}");
            assert_eq!(item.sort().len(), version_sort_bytes(key));
            assert_eq!(is_long(key), place > 0);
            let long = is_long(key).then(|| key.name());
            assert_eq!(version_of(&item, long), Some((key.clone(), attempt)));
            assert_eq!(
                version_of(&item, Some(&Bytes::from_static(b"another"))),
                None
            );
            for other in &keys {
                let range = buckets.versions(other, 1);
                let in_range =
                    item.sort() >= range.from && Some(&item.sort()) < range.until.as_ref();
                assert_eq!(in_range, key == other);
            }
        }
        // The last byte matters too: the hash covers the whole key.
        let version = |last| buckets.version(&key(1_024, last), attempt);
        assert_ne!(version(b'a'), version(b'b'));
    }

    #[test]
    fn what_is_no_version_is_not_taken_for_one() {
        for (partition, sort) in [
            (&b"t/v/\0\0\0\0"[..], &b"\x01"[..]),
            (b"t/d/x", b"\x01k\0\x01aaaaaaaaaaaa"),
            (b"t/v/\0\0\0\0b", b"\x01k\0xaaaaaaaaaaaa"),
            (b"t/v/\0\0\0\0b", b"\x01\0k\0\x01aaaaaaaaaaaa"),
        ] {
            assert_eq!(
                version_of(&ItemKey::new(partition, sort), None),
                None,
                "{}",
                sort.escape_ascii()
            );
        }
    }

    #[test]
    fn keyspaces_and_nodes_lie_apart() {
        let first = Key::in_keyspace(KeyspaceId(1), "k").expect("short");
        let second = Key::in_keyspace(KeyspaceId(2), "k").expect("short");
        let buckets = Buckets::default();
        assert_ne!(
            buckets.versions(&first, 1).partition,
            buckets.versions(&second, 1).partition
        );
        assert_ne!(log(NodeId(1)), log(NodeId(2)));
        assert_eq!(node_of(&node(NodeId(9)).sort()), Some(NodeId(9)));
    }
}
