//! The names of the Redis keys, and their slots.
//!
//! Every key is `namespace{tag}kind...`. The part in braces is Redis Cluster's hash tag: all keys
//! of one partition or queue lie in one slot, so one script may touch them. The tag is the
//! partition's name with `}` and `%` escaped, because `}` would end it. Kinds have one letter, so
//! no name is a prefix of another.

use bytes::{BufMut, Bytes, BytesMut};
use ports::Key;

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The key names of one store.
#[derive(Debug, Clone)]
pub(crate) struct RedisKeys {
    namespace: String,
    /// The tag of all keys, if all are to lie in one slot.
    tag: Option<&'static str>,
}

impl RedisKeys {
    /// The names that begin with `namespace`; none if it could be mistaken for a hash tag or a
    /// pattern.
    pub(crate) fn new(namespace: &str) -> Option<Self> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        (!namespace.is_empty() && namespace.len() <= 64 && namespace.chars().all(is_plain)).then(
            || Self {
                namespace: namespace.to_owned(),
                tag: None,
            },
        )
    }

    /// Names that all carry `tag`. The usual tag follows after it.
    pub(crate) fn in_one_slot(&self, tag: &'static str) -> Self {
        Self {
            namespace: self.namespace.clone(),
            tag: Some(tag),
        }
    }

    fn name(&self, family: u8, tag: &[u8], kind: u8, rest: &[u8]) -> Bytes {
        match self.tag {
            None => self.tagged(family, tag, kind, &[rest]),
            Some(one) => {
                let length = (tag.len() as u32).to_be_bytes();
                self.tagged(b'o', one.as_bytes(), family, &[&[kind], &length, tag, rest])
            }
        }
    }

    fn tagged(&self, family: u8, tag: &[u8], kind: u8, rest: &[&[u8]]) -> Bytes {
        let bytes: usize = rest.iter().map(|part| part.len()).sum();
        let mut name = BytesMut::with_capacity(self.namespace.len() + tag.len() + bytes + 8);
        name.put_slice(self.namespace.as_bytes());
        name.put_u8(b'{');
        name.put_u8(family);
        for byte in tag {
            match byte {
                b'}' => name.put_slice(b"%7D"),
                b'%' => name.put_slice(b"%25"),
                byte => name.put_u8(*byte),
            }
        }
        name.put_u8(b'}');
        name.put_u8(kind);
        for part in rest {
            name.put_slice(part);
        }
        name.freeze()
    }

    /// The item under `key`.
    pub(crate) fn item(&self, key: &Key) -> Bytes {
        self.name(b'p', key.partition(), b'i', &key.sort())
    }

    /// The prefix of the names of a partition's items.
    pub(crate) fn item_prefix(&self, partition: &[u8]) -> Bytes {
        self.name(b'p', partition, b'i', &[])
    }

    /// The sorted set of a partition's sort keys.
    pub(crate) fn index(&self, partition: &[u8]) -> Bytes {
        self.name(b'p', partition, b's', &[])
    }

    /// One of a queue's keys.
    pub(crate) fn queue(&self, queue: &str, kind: u8) -> Bytes {
        self.name(b'q', queue.as_bytes(), kind, &[])
    }

    /// The store's clock: its incarnation and its position.
    pub(crate) fn clock(&self) -> Bytes {
        self.name(b'c', b"lock", b'c', &[])
    }

    /// The final positions of earlier incarnations.
    pub(crate) fn ends(&self) -> Bytes {
        self.name(b'c', b"lock", b'e', &[])
    }

    /// The version of the stored format.
    pub(crate) fn format(&self) -> Bytes {
        self.name(b'c', b"lock", b'f', &[])
    }

    /// The channel on which queues announce that a message may be available.
    pub(crate) fn channel(&self) -> String {
        format!("{}:ready", self.namespace)
    }
}

/// A key in the slot of `name` that a fence writes, so that replicas have a write to confirm.
pub(crate) fn fence_key_for(name: &[u8]) -> Bytes {
    let end = name
        .iter()
        .position(|byte| *byte == b'}')
        .map_or(name.len(), |at| at + 1);
    [&name[..end], b"z"].concat().into()
}

/// The slot of `name`, as Redis Cluster computes it: CRC-16 (XMODEM) of its hash tag.
pub(crate) fn slot(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = name[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &name[open + 1..open + 1 + length])
    });
    crc16(tag.unwrap_or(name)) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
    }

    #[test]
    fn any_partition_name_maps_to_one_slot() {
        let names = RedisKeys::new("test").expect("a plain namespace");
        for partition in [&b""[..], b"}", b"%7D", b"a}b{c", b"\xff\x00"] {
            let slots: Vec<u16> = [&b""[..], b"}", b"{x}"]
                .iter()
                .map(|sort| slot(&names.item(&Key::new(partition, sort))))
                .chain([slot(&names.index(partition))])
                .collect();
            assert!(
                slots.iter().all(|other| *other == slots[0]),
                "{partition:?}: {slots:?}"
            );
        }
        assert_ne!(names.index(b"}"), names.index(b"%7D"));
    }

    #[test]
    fn partitions_in_one_slot_have_distinct_names() {
        let names = RedisKeys::new("test")
            .expect("a plain namespace")
            .in_one_slot("x");
        let partitions = [&b""[..], b"a", b"ab", b"}", b"\xff\x00"];
        let sorts = [&b""[..], b"b", b"bc"];
        let items = |partition: &[u8]| sorts.map(|sort| names.item(&Key::new(partition, sort)));
        let all: Vec<Bytes> = partitions
            .iter()
            .flat_map(|partition| items(partition))
            .collect();
        assert!(
            all.iter()
                .all(|name| slot(name) == slot(&names.index(b"any")))
        );
        assert_eq!(
            all.iter().collect::<std::collections::BTreeSet<_>>().len(),
            all.len()
        );
    }

    #[test]
    fn a_namespace_that_could_end_a_tag_is_refused() {
        for namespace in ["", "a{b", "a*", "a b"] {
            assert!(RedisKeys::new(namespace).is_none(), "{namespace:?}");
        }
    }
}
