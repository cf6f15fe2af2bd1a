//! A transaction's own writes, until it commits.
//!
//! Invariants
//! - Each key is there once, with its last value; a deletion is an entry without one.
//! - A key that is written again gets a higher write number, so that the store can tell the later
//!   write from the earlier.
//! - A spilled value stays readable here until the store has confirmed it. Its memory is no longer
//!   counted here from the moment the spill begins: the spill counts it.
//!
//! From AFT, section 3.3.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    model::Key,
    storage::records::{Place, Write},
};

/// The overhead of an entry beside its bytes.
const ENTRY_BYTES: usize = 96;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Buffered {
    /// Its number within the attempt, from one.
    pub write: u32,
    /// Where its value goes.
    pub place: Place,
    /// Where it is.
    pub held: Held,
}

/// Where the value of a buffered write is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    /// Here.
    Memory(Bytes),
    /// In memory, and on its way to the store.
    Leaving(Bytes),
    /// In the store.
    Stored,
    /// Nowhere: the key is deleted.
    Gone,
}

impl Buffered {
    pub(crate) fn value(&self) -> Option<&Bytes> {
        match &self.held {
            Held::Memory(value) | Held::Leaving(value) => Some(value),
            Held::Stored | Held::Gone => None,
        }
    }

    /// The bytes of buffered values that are not written yet.
    fn unwritten_bytes(&self) -> usize {
        match &self.held {
            Held::Memory(value) => value.len(),
            Held::Leaving(_) | Held::Stored | Held::Gone => 0,
        }
    }

    fn bytes(&self, key: &Key) -> usize {
        entry_bytes(key) + self.unwritten_bytes()
    }
}

/// Which values are spilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that are stored in chunks.
    Large,
    /// All.
    All,
}

#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    writes: BTreeMap<Key, Buffered>,
    bytes: usize,
    unwritten_bytes: usize,
    left_bytes: u64,
    last: u32,
}

impl WriteBuffer {
    pub(crate) fn get(&self, key: &Key) -> Option<&Buffered> {
        self.writes.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes of buffered values that are not written yet.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    /// The bytes that it writes in all, including spilled values that were replaced.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.left_bytes + self.unwritten_bytes as u64
    }

    /// The memory that the buffer would take with this write.
    pub(crate) fn bytes_with(&self, key: &Key, value: Option<&Bytes>) -> usize {
        let replaced = self.writes.get(key).map_or(0, |old| old.bytes(key));
        self.bytes - replaced + entry_bytes(key) + value.map_or(0, Bytes::len)
    }

    /// The bytes that it would write in all with this write, including spilled values that were
    /// replaced.
    pub(crate) fn written_bytes_with(&self, key: &Key, value: Option<&Bytes>) -> u64 {
        let replaced = self.writes.get(key).map_or(0, Buffered::unwritten_bytes);
        self.left_bytes + (self.unwritten_bytes - replaced + value.map_or(0, Bytes::len)) as u64
    }

    /// Writes `value` to `key`, or deletes it if `None`; the value goes to `place`.
    pub(crate) fn write(&mut self, key: Key, place: Place, value: Option<Bytes>) {
        self.bytes = self.bytes_with(&key, value.as_ref());
        self.last += 1;
        let held = value.map_or(Held::Gone, Held::Memory);
        let buffered = Buffered {
            write: self.last,
            place,
            held,
        };
        self.unwritten_bytes += buffered.unwritten_bytes();
        let replaced = self.writes.insert(key, buffered);
        self.unwritten_bytes -= replaced.map_or(0, |old| old.unwritten_bytes());
    }

    /// Takes these values, which from now on are on their way to the store.
    pub(crate) fn leave(&mut self, which: Which) -> Vec<(Write, Bytes)> {
        let mut leaving = Vec::new();
        for (key, buffered) in &mut self.writes {
            let Held::Memory(value) = &buffered.held else {
                continue;
            };
            if which == Which::Large && buffered.place.chunks() == 0 {
                continue;
            }
            let value = value.clone();
            buffered.held = Held::Leaving(value.clone());
            let write = Write {
                key: key.clone(),
                write: buffered.write,
                place: buffered.place,
            };
            leaving.push((write, value));
        }
        let bytes: usize = leaving.iter().map(|(_, value)| value.len()).sum();
        self.bytes -= bytes;
        self.unwritten_bytes -= bytes;
        self.left_bytes += bytes as u64;
        leaving
    }

    /// The store has confirmed `write`. Does nothing if a later write has replaced it.
    pub(crate) fn stored(&mut self, write: &Write) {
        if let Some(buffered) = self.writes.get_mut(&write.key)
            && buffered.write == write.write
        {
            buffered.held = Held::Stored;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Buffered)> {
        self.writes.iter()
    }

    pub(crate) fn write_set(&self) -> Vec<Write> {
        let writes = self.writes.iter().map(|(key, buffered)| Write {
            key: key.clone(),
            write: buffered.write,
            place: buffered.place,
        });
        writes.collect()
    }
}

fn entry_bytes(key: &Key) -> usize {
    ENTRY_BYTES + key.name().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str) -> Key {
        Key::new(name).expect("short")
    }

    /// Puts a value of `bytes` bytes, or a deletion if `None`; beyond 20 it goes into chunks.
    fn put(buffer: &mut WriteBuffer, name: &'static str, bytes: Option<usize>) {
        let value = bytes.map(|bytes| Bytes::from(vec![0; bytes]));
        buffer.write(key(name), Place::of(value.as_ref(), 20, 10), value);
    }

    /// T3.
    #[test]
    fn the_last_write_of_a_key_stands_under_a_higher_number() {
        let mut buffer = WriteBuffer::default();
        put(&mut buffer, "a", Some(1));
        put(&mut buffer, "b", Some(1));
        put(&mut buffer, "a", None);
        assert_eq!(
            buffer.get(&key("a")),
            Some(&Buffered {
                write: 3,
                place: Place::Gone,
                held: Held::Gone
            })
        );
        assert_eq!(buffer.get(&key("c")), None);
        let set = buffer.write_set();
        let set: Vec<_> = set
            .iter()
            .map(|write| (write.key.name().as_ref(), write.write, write.place))
            .collect();
        assert_eq!(
            set,
            [
                (&b"a"[..], 3, Place::Gone),
                (b"b", 2, Place::Inline { bytes: 1 })
            ]
        );
    }

    #[test]
    fn its_bytes_are_those_of_what_stands() {
        let mut buffer = WriteBuffer::default();
        let mut random = fastrand::Rng::with_seed(6);
        for _ in 0..1_000 {
            let name = ["a", "bb", "ccc"][random.usize(..3)];
            let bytes = random.bool().then(|| random.usize(..50));
            let value = bytes.map(|bytes| Bytes::from(vec![0; bytes]));
            let expected = buffer.bytes_with(&key(name), value.as_ref());
            let written = buffer.written_bytes_with(&key(name), value.as_ref());
            put(&mut buffer, name, bytes);
            let sums = |buffer: &WriteBuffer| {
                let all = || buffer.iter();
                let unwritten: usize = all().map(|(_, entry)| entry.unwritten_bytes()).sum();
                (
                    all().map(|(key, entry)| entry.bytes(key)).sum::<usize>(),
                    unwritten,
                )
            };
            assert_eq!((buffer.bytes(), buffer.unwritten_bytes()), sums(&buffer));
            assert_eq!(buffer.bytes(), expected);
            if random.usize(..3) == 0 {
                let which = if random.bool() {
                    Which::All
                } else {
                    Which::Large
                };
                let leaving = buffer.leave(which);
                assert!(leaving.iter().all(|(write, value)| which == Which::All
                    || write.place.chunks() as usize == value.len().div_ceil(10)));
                if let Some((write, value)) = leaving.first() {
                    assert_eq!(
                        buffer.get(&write.key).and_then(Buffered::value),
                        Some(value)
                    );
                    buffer.stored(write);
                    assert_eq!(buffer.get(&write.key).and_then(Buffered::value), None);
                }
                assert_eq!((buffer.bytes(), buffer.unwritten_bytes()), sums(&buffer));
            }
            assert_eq!(buffer.left_bytes + buffer.unwritten_bytes() as u64, written);
        }
    }

    #[test]
    fn what_replaced_a_value_that_left_is_not_taken_for_it() {
        let mut buffer = WriteBuffer::default();
        put(&mut buffer, "a", Some(30));
        let leaving = buffer.leave(Which::Large);
        assert_eq!(buffer.leave(Which::All), [], "once");
        put(&mut buffer, "a", Some(5));
        buffer.stored(&leaving[0].0);
        assert_eq!(
            buffer
                .get(&key("a"))
                .and_then(Buffered::value)
                .map(Bytes::len),
            Some(5)
        );
    }
}
