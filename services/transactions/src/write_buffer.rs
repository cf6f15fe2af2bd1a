//! A transaction's own writes, until it commits.
//!
//! Invariants
//! - Each key is there once, with its last value; a deletion is an entry without one.
//! - A key written again gets a higher write number, so that at rest the later write is told from the earlier.
//!
//! From AFT, section 3.3.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    model::Key,
    records::{Place, Write},
};

/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 96;

/// A buffered write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffered {
    /// Its number within the attempt, from one.
    pub write: u32,
    /// Its value; none: the key is deleted.
    pub value: Option<Bytes>,
}

/// The writes of one attempt.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    writes: BTreeMap<Key, Buffered>,
    bytes: usize,
    last: u32,
}

impl WriteBuffer {
    /// What was written to `key`.
    pub fn get(&self, key: &Key) -> Option<&Buffered> {
        self.writes.get(key)
    }

    /// How many keys are written.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// How much memory it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How much memory it would take with this write.
    pub fn bytes_with(&self, key: &Key, value: Option<&Bytes>) -> usize {
        let replaced = self.writes.get(key).map_or(0, |old| entry_bytes(key, old.value.as_ref()));
        self.bytes - replaced + entry_bytes(key, value)
    }

    /// Writes `value` to `key` (none: deletes it).
    pub fn write(&mut self, key: Key, value: Option<Bytes>) {
        self.bytes = self.bytes_with(&key, value.as_ref());
        self.last += 1;
        self.writes.insert(key, Buffered { write: self.last, value });
    }

    /// Its writes in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Buffered)> {
        self.writes.iter()
    }

    /// What its record will say.
    pub fn write_set(&self) -> Vec<Write> {
        let writes = self.writes.iter().map(|(key, buffered)| {
            let place = match &buffered.value {
                Some(value) => Place::Inline { bytes: value.len() as u32 },
                None => Place::Gone,
            };
            Write { key: key.clone(), write: buffered.write, place }
        });
        writes.collect()
    }
}

fn entry_bytes(key: &Key, value: Option<&Bytes>) -> usize {
    ENTRY_BYTES + key.name().len() + value.map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str) -> Key {
        Key::new(name).expect("short")
    }

    /// T3.
    #[test]
    fn the_last_write_of_a_key_stands_under_a_higher_number() {
        let mut buffer = WriteBuffer::default();
        buffer.write(key("a"), Some(Bytes::from_static(b"1")));
        buffer.write(key("b"), Some(Bytes::from_static(b"2")));
        buffer.write(key("a"), None);
        assert_eq!(buffer.get(&key("a")), Some(&Buffered { write: 3, value: None }));
        assert_eq!(buffer.get(&key("c")), None);
        let set = buffer.write_set();
        let set: Vec<_> =
            set.iter().map(|write| (write.key.name().as_ref(), write.write, write.place)).collect();
        assert_eq!(set, [(&b"a"[..], 3, Place::Gone), (b"b", 2, Place::Inline { bytes: 1 })]);
    }

    #[test]
    fn its_bytes_are_those_of_what_stands() {
        let mut buffer = WriteBuffer::default();
        let mut random = fastrand::Rng::with_seed(6);
        for _ in 0..1_000 {
            let name = ["a", "bb", "ccc"][random.usize(..3)];
            let value = random.bool().then(|| Bytes::from(vec![0; random.usize(..50)]));
            let expected = buffer.bytes_with(&key(name), value.as_ref());
            buffer.write(key(name), value);
            let sum: usize = buffer.iter().map(|(key, entry)| entry_bytes(key, entry.value.as_ref())).sum();
            assert_eq!((buffer.bytes(), buffer.bytes()), (expected, sum));
        }
    }
}
