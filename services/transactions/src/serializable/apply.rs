//! How writes change values: the changes of a commit, and folding changes into values.
//!
//! [`resolve`] turns the writes of one proposal into one [`Change`] for each key. After that only
//! `Put`, `Delete` and `Patch` are left: numbers are computed when the proposal is ordered, so that
//! slots and rows hold results. Reading folds the changes of a key, from the newest down to a whole
//! value.
//!
//! Pure: no I/O, no clock.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::serializable::model::{
    Key, Patch, Refusal, VALUE_BYTES_MAX, Write, number_bytes, number_in,
};

/// The length of a number in bytes.
const NUMBER_BYTES: usize = 8;

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The value is this.
    Put(Bytes),
    /// The key is absent.
    Delete,
    /// The parts of the value are replaced, in order. A missing value is empty, and gaps are zeros.
    Patch(Vec<Piece>),
}

/// A part of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Where it begins.
    pub offset: u32,
    /// The part.
    pub data: Patch,
}

impl Change {
    /// The value after it, given the value before it. Without a [`Change::Patch`] the latter is not
    /// looked at.
    pub fn apply(&self, base: Option<&Bytes>) -> Option<Bytes> {
        match self {
            Self::Put(value) => Some(value.clone()),
            Self::Delete => None,
            Self::Patch(pieces) => Some(patched(base, pieces)),
        }
    }

    /// This change and then `later`, as one.
    pub fn then(self, later: Self) -> Self {
        match (self, later) {
            (Self::Patch(mut pieces), Self::Patch(later)) => {
                pieces.extend(later);
                Self::Patch(pieces)
            }
            (Self::Put(value), Self::Patch(pieces)) => Self::Put(patched(Some(&value), &pieces)),
            (Self::Delete, Self::Patch(pieces)) => Self::Put(patched(None, &pieces)),
            (_, later) => later,
        }
    }

    /// Whether the value before it matters.
    pub fn needs_base(&self) -> bool {
        matches!(self, Self::Patch(_))
    }

    /// The length of its longest possible result, without its base, in bytes.
    pub fn end(&self) -> usize {
        match self {
            Self::Put(value) => value.len(),
            Self::Delete => 0,
            Self::Patch(pieces) => pieces.iter().map(Piece::end).max().unwrap_or_default(),
        }
    }

    /// Its approximate encoded length in bytes.
    pub fn bytes_len(&self) -> usize {
        4 + match self {
            Self::Put(value) => value.len(),
            Self::Delete => 0,
            Self::Patch(pieces) => pieces.iter().map(Piece::bytes_len).sum(),
        }
    }
}

impl Piece {
    /// The byte after it.
    pub fn end(&self) -> usize {
        self.offset as usize + self.data.len()
    }

    fn bytes_len(&self) -> usize {
        8 + match &self.data {
            Patch::Bytes(bytes) => bytes.len(),
            Patch::Zeros(_) => 4,
        }
    }
}

/// The value `base` with its parts replaced, in their order. A missing value is empty, and gaps are
/// zeros.
pub fn patched(base: Option<&Bytes>, pieces: &[Piece]) -> Bytes {
    let base = base.map_or(&[][..], |base| base);
    let end = pieces.iter().map(Piece::end).max().unwrap_or_default();
    let mut value = BytesMut::with_capacity(end.max(base.len()));
    value.extend_from_slice(base);
    value.resize(end.max(base.len()), 0);
    for piece in pieces {
        let part = &mut value[piece.offset as usize..piece.end()];
        match &piece.data {
            Patch::Bytes(bytes) => part.copy_from_slice(bytes),
            Patch::Zeros(_) => part.fill(0),
        }
    }
    value.freeze()
}

/// Collects the changes of one key from the newest to older ones, until its value is known.
#[derive(Debug, Default)]
pub struct Fold(Option<Change>);

impl Fold {
    /// Adds a change that is older than all before. Returns whether the value is known now.
    pub fn add(&mut self, older: Change) -> bool {
        let folded = match self.0.take() {
            None => older,
            Some(newer) => older.then(newer),
        };
        let is_known = !folded.needs_base();
        self.0 = Some(folded);
        is_known
    }

    /// The value, if the key had none before the oldest change that was added.
    pub fn value(&self) -> Option<Bytes> {
        self.0.as_ref()?.apply(None)
    }

    /// All of it as one change; `None` if there was none.
    pub fn into_change(self) -> Option<Change> {
        self.0
    }
}

/// The sequencer's knowledge of a value that is used as a number. Only a short value can be a
/// number, or become one by a patch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The value, of at most eight bytes; `None`: the key is absent.
    Short(Option<Bytes>),
    /// A longer value.
    Long,
}

impl Base {
    /// That of a value.
    pub fn of(value: Option<&Bytes>) -> Self {
        match value {
            Some(value) if value.len() > NUMBER_BYTES => Self::Long,
            value => Self::Short(value.cloned()),
        }
    }

    /// The number that it is; zero if it is absent, `None` if it is no number.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Short(value) => number_in(value.as_ref()),
            Self::Long => None,
        }
    }

    /// The same after `change`.
    pub fn after(&self, change: &Change) -> Self {
        match self {
            _ if change.end() > NUMBER_BYTES => Self::Long,
            Self::Long if change.needs_base() => Self::Long,
            Self::Long => Self::of(change.apply(None).as_ref()),
            Self::Short(value) => Self::of(change.apply(value.as_ref()).as_ref()),
        }
    }
}

/// The writes of a proposal, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resolved {
    /// The change of each written key.
    pub changes: BTreeMap<Key, Change>,
    /// The position of each append.
    pub appended_at: Vec<u64>,
}

/// The keys whose values `writes` use as numbers; some more than once.
pub fn numbers_of(writes: &[Write]) -> impl Iterator<Item = &Key> {
    writes.iter().filter_map(|write| match write {
        Write::Add { key, .. } | Write::Max { key, .. } => Some(key),
        Write::Append { length, .. } => Some(length),
        Write::Put { .. } | Write::Delete { .. } | Write::Patch { .. } => None,
    })
}

/// Computes the changes of `writes`, in their order. `base` knows the present value of each of
/// [`numbers_of`] them. Refuses writes whose result no state can hold.
pub fn resolve(writes: &[Write], base: impl Fn(&Key) -> Base) -> Result<Resolved, Refusal> {
    let mut drafts = Drafts {
        base,
        keys: BTreeMap::new(),
    };
    let mut appended_at = Vec::new();
    for write in writes {
        match write {
            Write::Put { key, value } => drafts.replace(key, Change::Put(value.clone())),
            Write::Delete { key } => drafts.replace(key, Change::Delete),
            Write::Patch { key, offset, data } => drafts.patch(
                key.clone(),
                Piece {
                    offset: *offset,
                    data: data.clone(),
                },
            ),
            Write::Add { key, delta } => {
                let sum = drafts.number(key)?.checked_add_signed(*delta);
                let sum = sum.ok_or_else(|| Refusal::OutOfRange(key.clone()))?;
                drafts.replace(key, Change::Put(number_bytes(sum)));
            }
            Write::Max { key, value } => {
                if drafts.number(key)? < *value {
                    drafts.replace(key, Change::Put(number_bytes(*value)));
                }
            }
            Write::Append {
                length,
                blocks,
                block_bytes,
                data,
            } => {
                let start = drafts.number(length)?;
                let end = start.checked_add(data.len() as u64);
                let end = end.ok_or_else(|| Refusal::OutOfRange(length.clone()))?;
                drafts.append(blocks, u64::from(*block_bytes), start, data);
                if end > start {
                    drafts.replace(length, Change::Put(number_bytes(end)));
                }
                appended_at.push(start);
            }
        }
    }
    let changes = drafts.keys.into_iter();
    Ok(Resolved {
        changes: changes.map(|(key, draft)| (key, draft.finish())).collect(),
        appended_at,
    })
}

/// The changes so far. A patch is applied once, at the end: a proposal may patch one large value
/// many times.
struct Drafts<F> {
    base: F,
    keys: BTreeMap<Key, Draft>,
}

/// A key's last whole value or deletion, if there was one, and the pieces after it.
#[derive(Default)]
struct Draft {
    whole: Option<Change>,
    pieces: Vec<Piece>,
}

impl Draft {
    fn finish(self) -> Change {
        match self.whole {
            None => Change::Patch(self.pieces),
            Some(whole) if self.pieces.is_empty() => whole,
            Some(whole) => whole.then(Change::Patch(self.pieces)),
        }
    }

    /// The base after this draft, given the base before it.
    fn after(&self, base: &Base) -> Base {
        let whole = self.whole.as_ref().map(|whole| base.after(whole));
        let whole = whole.unwrap_or_else(|| base.clone());
        if self.pieces.is_empty() {
            return whole;
        }
        whole.after(&Change::Patch(self.pieces.clone()))
    }
}

impl<F: Fn(&Key) -> Base> Drafts<F> {
    fn replace(&mut self, key: &Key, whole: Change) {
        let draft = self.keys.entry(key.clone()).or_default();
        draft.whole = Some(whole);
        draft.pieces.clear();
    }

    fn patch(&mut self, key: Key, piece: Piece) {
        self.keys.entry(key).or_default().pieces.push(piece);
    }

    fn number(&self, key: &Key) -> Result<u64, Refusal> {
        let base = (self.base)(key);
        let now = self.keys.get(key).map(|draft| draft.after(&base));
        let number = now.unwrap_or(base).number();
        number.ok_or_else(|| Refusal::NoNumber(key.clone()))
    }

    fn append(&mut self, blocks: &Key, block_bytes: u64, start: u64, data: &Bytes) {
        let mut done = 0;
        while done < data.len() {
            let position = start + done as u64;
            let offset = position % block_bytes;
            let part = data.len().min(done + (block_bytes - offset) as usize);
            let key = blocks.block(position / block_bytes);
            let piece = Piece {
                offset: offset as u32,
                data: Patch::Bytes(data.slice(done..part)),
            };
            self.patch(key.expect("the write was checked"), piece);
            done = part;
        }
    }
}

/// Whether a decoded change stays within the bounds of values.
pub(super) fn is_in_bounds(change: &Change) -> bool {
    change.end() <= VALUE_BYTES_MAX
}
