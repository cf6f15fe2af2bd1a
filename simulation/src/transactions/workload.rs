//! The workload: transactions of a few functions that read and write keys with a skewed
//! distribution.
//!
//! The writes of an attempt are drawn before its first write. Every value names its writer and the
//! other writes of that attempt. The values alone then show whether reads are fractured, on any
//! store. They cost about 70 bytes each, like the metadata in the paper's measurements.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use fastrand::Rng;
use transactions::model::{Attempt, Key, TransactionId};

use super::history::Writer;

/// The prefix of an encoded [`Tag`].
const TAG_MAGIC: &[u8; 2] = b"LF";

/// The kind and number of transactions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mix {
    /// The functions of a transaction.
    pub functions: usize,
    /// The keys that each reads.
    pub reads: usize,
    /// The keys that each writes.
    pub writes: usize,
    /// The length of a value, at least that of its tag.
    pub value_bytes: usize,
    /// The number of keys.
    pub keys: usize,
    /// The exponent of Zipf's law for the keys; zero: uniform.
    pub zipf: f64,
    /// One in this many writes deletes its key; zero: none does.
    pub one_delete_in: usize,
    /// The number of concurrent clients.
    pub clients: usize,
    /// The total number of transactions.
    pub transactions: usize,
    /// Whether a function reads all its keys in one call.
    pub reads_together: bool,
    /// The effects of a transaction.
    pub effects: u32,
}

/// The paper's workload: two functions of two reads and a write each.
impl Default for Mix {
    fn default() -> Self {
        Self {
            functions: 2,
            reads: 2,
            writes: 1,
            value_bytes: 4_096,
            keys: 1_000,
            zipf: 1.0,
            one_delete_in: 0,
            clients: 10,
            transactions: 1_000,
            reads_together: false,
            effects: 0,
        }
    }
}

/// Zipf's law: the n-th key is drawn with a probability proportional to n to the power of minus
/// `exponent`.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// The cumulative distribution, up to one.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// Over `keys` keys, at least one.
    pub fn new(keys: usize, exponent: f64) -> Self {
        let weights: Vec<f64> = (1..=keys.max(1))
            .map(|rank| (rank as f64).powf(-exponent))
            .collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let cumulative = weights.iter().map(|weight| {
            sum += weight / total;
            sum
        });
        Self {
            cumulative: cumulative.collect(),
        }
    }

    /// The rank of the next key, from zero.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let drawn = rng.f64();
        self.cumulative
            .partition_point(|sum| *sum <= drawn)
            .min(self.cumulative.len() - 1)
    }
}

/// A planned write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// The key.
    pub key: Key,
    /// Whether it is a deletion.
    pub deletes: bool,
}

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Read these, in one call if there are several.
    Read(Vec<Key>),
    /// Write this one.
    Write(Planned),
}

/// The steps of one transaction, in each of its attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// In order.
    pub work: Vec<Work>,
}

impl Script {
    /// The next transaction of `mix`.
    pub fn draw(mix: &Mix, zipf: &Zipf, rng: &mut Rng) -> Self {
        let mut work = Vec::new();
        for _ in 0..mix.functions {
            let reads: Vec<Key> = (0..mix.reads).map(|_| key(zipf.draw(rng))).collect();
            if mix.reads_together {
                work.push(Work::Read(reads));
            } else {
                work.extend(reads.into_iter().map(|key| Work::Read(vec![key])));
            }
            for _ in 0..mix.writes {
                let deletes = mix.one_delete_in > 0 && rng.usize(..mix.one_delete_in) == 0;
                work.push(Work::Write(Planned {
                    key: key(zipf.draw(rng)),
                    deletes,
                }));
            }
        }
        Self { work }
    }

    /// Keeps only its reads.
    pub fn only_read(&mut self) {
        self.work.retain(|work| matches!(work, Work::Read(_)));
    }

    /// The final write set: the last write of each key.
    pub fn planned(&self) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        for work in &self.work {
            if let Work::Write(write) = work {
                planned.retain(|other| other.key != write.key);
                planned.push(write.clone());
            }
        }
        planned.sort();
        planned
    }
}

/// The key of this rank.
pub fn key(rank: usize) -> Key {
    Key::new(format!("k{rank}")).expect("short")
}

/// The metadata in a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// The writer.
    pub writer: Writer,
    /// The number of this write among the writer's.
    pub ordinal: u32,
    /// All writes of the writer.
    pub planned: Vec<Planned>,
}

impl Tag {
    /// Encodes it as a value, padded to `bytes`.
    pub fn to_value(&self, bytes: usize) -> Bytes {
        let mut value = BytesMut::with_capacity(bytes);
        value.put_slice(TAG_MAGIC);
        put_short(&mut value, self.writer.id.as_bytes());
        value.put_slice(&self.writer.attempt.to_bytes());
        value.put_u32(self.ordinal);
        value.put_u16(self.planned.len() as u16);
        for planned in &self.planned {
            value.put_u8(u8::from(planned.deletes));
            put_short(&mut value, planned.key.name());
        }
        if value.len() < bytes {
            value.resize(bytes, b'.');
        }
        value.freeze()
    }

    /// The tag of `value`; none: no writer of this workload wrote it.
    pub fn of(value: &Bytes) -> Option<Self> {
        let mut rest = value.strip_prefix(TAG_MAGIC)?;
        let id = TransactionId::new(take_short(&mut rest)?).ok()?;
        let (attempt, behind) = rest.split_at_checked(Attempt::BYTES)?;
        let attempt = Attempt::from_bytes(attempt)?;
        rest = behind;
        let ordinal = rest.try_get_u32().ok()?;
        let count = rest.try_get_u16().ok()?;
        let mut planned = Vec::new();
        for _ in 0..count {
            let deletes = rest.try_get_u8().ok()? != 0;
            planned.push(Planned {
                key: Key::new(take_short(&mut rest)?).ok()?,
                deletes,
            });
        }
        Some(Self {
            writer: Writer { id, attempt },
            ordinal,
            planned,
        })
    }

    /// Whether its writer writes `key`, and whether it deletes it.
    pub fn plan_for(&self, key: &Key) -> Option<&Planned> {
        self.planned.iter().find(|planned| planned.key == *key)
    }
}

fn put_short(value: &mut BytesMut, bytes: &Bytes) {
    value.put_u16(bytes.len() as u16);
    value.put_slice(bytes);
}

fn take_short(rest: &mut &[u8]) -> Option<Bytes> {
    let length = usize::from(rest.try_get_u16().ok()?);
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(Bytes::copy_from_slice(taken))
}

#[cfg(test)]
mod tests {
    use transactions::model::NodeId;

    use super::*;

    #[test]
    fn the_hottest_key_is_drawn_as_zipf_says() {
        let (zipf, mut rng) = (Zipf::new(1_000, 1.0), Rng::with_seed(1));
        let mut drawn = vec![0_u32; 1_000];
        for _ in 0..100_000 {
            drawn[zipf.draw(&mut rng)] += 1;
        }
        // The harmonic number of 1,000 is 7.485.
        assert!((13_000..13_800).contains(&drawn[0]), "{}", drawn[0]);
        assert!((6_300..7_100).contains(&drawn[1]), "{}", drawn[1]);
        assert!(drawn.iter().skip(500).any(|count| *count > 0));
    }

    #[test]
    fn without_an_exponent_all_keys_are_alike() {
        let (zipf, mut rng) = (Zipf::new(4, 0.0), Rng::with_seed(2));
        let mut drawn = [0_u32; 4];
        for _ in 0..10_000 {
            drawn[zipf.draw(&mut rng)] += 1;
        }
        assert!(
            drawn.iter().all(|count| (2_300..2_700).contains(count)),
            "{drawn:?}"
        );
    }

    #[test]
    fn a_value_names_its_writer_and_the_other_writes() {
        let mix = Mix {
            one_delete_in: 2,
            keys: 5,
            functions: 3,
            ..Mix::default()
        };
        let (zipf, mut rng) = (Zipf::new(5, 1.0), Rng::with_seed(3));
        for sequence in 0..100 {
            let script = Script::draw(&mix, &zipf, &mut rng);
            let id = TransactionId::new(format!("order-{sequence}")).expect("a name");
            let attempt = Attempt {
                node: NodeId(3),
                sequence,
            };
            let writer = Writer { id, attempt };
            let tag = Tag {
                writer,
                ordinal: 7,
                planned: script.planned(),
            };
            let value = tag.to_value(mix.value_bytes);
            assert_eq!((Tag::of(&value), value.len()), (Some(tag.clone()), 4_096));
            assert_eq!(Tag::of(&tag.to_value(0)), Some(tag));
            assert!(Tag::of(&value.slice(1..)).is_none() && Tag::of(&value.slice(..20)).is_none());
        }
    }

    #[test]
    fn one_seed_gives_one_script() {
        let (mix, zipf) = (Mix::default(), Zipf::new(1_000, 1.0));
        let draw = |seed| Script::draw(&mix, &zipf, &mut Rng::with_seed(seed));
        assert_eq!(draw(4), draw(4));
        assert_ne!(draw(4), draw(5));
        assert_eq!(draw(4).work.len(), 6);
    }
}
