//! The keys in the two partitions of a shard, and the encoding of their values.
//!
//! The first byte of a sort key is its kind. Users' keys are encoded whole, so the keys of one user
//! partition are neighbours, in order.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Error, Item, Key, KeyValue, Result,
    key_value::{
        Change, Name, Scan, Value, Version,
        evaluate::{Memory, Stored},
    },
};
use serde::{Deserialize, Serialize};

pub(crate) const OWNER: &[u8] = b"o";
pub(crate) const ITEMS: u8 = b'i';
/// Far: cursors of our lanes.
pub(crate) const CURSORS: u8 = b'c';
pub(crate) const PAYLOADS: u8 = b'p';
pub(crate) const RECORDS: u8 = b's';

/// A row, record, payload or cursor in one attribute.
pub(crate) const BODY: &str = "r";
/// Far: an item's version.
pub(crate) const VERSION: &str = "v";
/// Far: its attributes; none: it is deleted.
pub(crate) const ATTRIBUTES: &str = "a";
/// Far: the operations it remembers.
pub(crate) const MEMORY: &str = "m";
/// Far: the last sequence of a lane.
pub(crate) const SEQUENCE: &str = "q";

/// The sort key of a row, the same near and far.
pub(crate) type RowKey = Bytes;

/// A lane, by its number in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct LaneId {
    pub(crate) epoch: u64,
    pub(crate) number: u32,
}

impl LaneId {
    pub(crate) fn at(self, sequence: u64) -> RecordId {
        RecordId {
            lane: self,
            sequence,
        }
    }
}

/// The position of a record in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RecordId {
    pub(crate) lane: LaneId,
    pub(crate) sequence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PayloadId {
    pub(crate) position: u64,
    pub(crate) index: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Content {
    /// None: the key is deleted, or known to be absent far.
    #[default]
    Nothing,
    /// Attributes fetched from the far store.
    Inline(Bytes),
    /// The payload of a record, and its length.
    At(PayloadId, u32),
}

/// A key's state near.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) version: Version,
    pub(crate) memory: Option<Box<Memory>>,
    pub(crate) content: Content,
    /// The record that wrote it, and its position; none: it was fetched.
    pub(crate) writer: Option<(RecordId, u64)>,
}

impl Row {
    pub(crate) fn payload(&self) -> Option<PayloadId> {
        match self.content {
            Content::At(payload, _) => Some(payload),
            Content::Nothing | Content::Inline(_) => None,
        }
    }

    /// About how many bytes it takes of the near store, with its payload.
    pub(crate) fn bytes(&self, key: &RowKey) -> usize {
        let content = match &self.content {
            Content::Nothing => 0,
            Content::Inline(bytes) => bytes.len(),
            Content::At(_, bytes) => *bytes as usize,
        };
        ROW_BYTES + key.len() + content
    }

    pub(crate) fn stored(&self, attributes: Option<&Bytes>) -> Result<Stored> {
        let item = attributes
            .map(|bytes| decode_attributes(self.version, bytes))
            .transpose()?;
        Ok(Stored {
            item,
            version: self.version,
            memory: self.memory.clone(),
        })
    }
}

/// About how many bytes a row takes beside its key and content.
const ROW_BYTES: usize = 64;

/// One key's change in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) key: RowKey,
    pub(crate) version: Version,
    pub(crate) memory: Option<Box<Memory>>,
    /// None: the key was deleted.
    pub(crate) payload: Option<PayloadId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) position: u64,
    pub(crate) place: RecordId,
    /// The records that must be durable far before this one is sent.
    pub(crate) dependencies: Vec<RecordId>,
    pub(crate) changes: Vec<Written>,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value)
        .expect("memory is all that encoding needs")
        .into()
}

pub(crate) fn decode<'bytes, T: Deserialize<'bytes>>(
    bytes: &'bytes [u8],
    what: &'static str,
) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| Error::corrupt(what).caused_by(error))
}

pub(crate) fn decode_body<T: for<'bytes> Deserialize<'bytes>>(
    item: &Item,
    what: &'static str,
) -> Result<T> {
    decode(item.bytes(BODY).ok_or_else(|| Error::corrupt(what))?, what)
}

pub(crate) fn encode_attributes(item: &Item) -> Bytes {
    encode(&item.attributes())
}

fn decode_attributes(version: Version, bytes: &Bytes) -> Result<Arc<Item>> {
    let attributes: Vec<(Name, Value)> = decode(bytes, "read an item's attributes")?;
    Ok(Arc::new(Item::from_parts(version, attributes)))
}

/// The row of a user's item.
pub(crate) fn item_row(key: &Key) -> RowKey {
    prefixed(ITEMS, key.as_bytes())
}

fn prefixed(kind: u8, rest: &[u8]) -> Bytes {
    [&[kind], rest].concat().into()
}

pub(crate) fn record_sort(place: RecordId) -> Bytes {
    let lane = lane_sort(RECORDS, place.lane);
    [&lane[..], &place.sequence.to_be_bytes()].concat().into()
}

pub(crate) fn cursor_sort(lane: LaneId) -> Bytes {
    lane_sort(CURSORS, lane).into()
}

fn lane_sort(kind: u8, lane: LaneId) -> Vec<u8> {
    let (epoch, number) = (lane.epoch.to_be_bytes(), lane.number.to_be_bytes());
    [&[kind][..], &epoch, &number].concat()
}

/// The lane of a far cursor.
pub(crate) fn lane_of(sort: &[u8]) -> Option<LaneId> {
    let (kind, rest) = sort.split_first()?;
    let (epoch, number) = (rest.get(..8)?, rest.get(8..)?);
    let id = LaneId {
        epoch: u64::from_be_bytes(epoch.try_into().ok()?),
        number: u32::from_be_bytes(number.try_into().ok()?),
    };
    (*kind == CURSORS).then_some(id)
}

/// The position of a lane's far cursor.
pub(crate) fn cursor_of(item: &Item) -> Option<u64> {
    item.integer(SEQUENCE).map(|sequence| sequence as u64)
}

pub(crate) fn payload_sort(payload: PayloadId) -> Bytes {
    let position = payload.position.to_be_bytes();
    prefixed(
        PAYLOADS,
        &[&position[..], &payload.index.to_be_bytes()].concat(),
    )
}

/// A scan of all rows of one kind.
pub(crate) fn scan_kind(shard: &Bytes, kind: u8, items_max: usize) -> Scan {
    Scan {
        partition: shard.clone(),
        from: Bytes::copy_from_slice(&[kind]),
        until: Some(Bytes::copy_from_slice(&[kind + 1])),
        items_max,
    }
}

/// A near row or record, as an item that replaces what is there.
pub(crate) fn body(value: &impl Serialize) -> Change {
    Change::Put(vec![(BODY.into(), Value::Bytes(encode(value)))])
}

/// A key's far state as an item. An absent key without remembered operations needs none.
pub(crate) fn far_change(
    version: Version,
    memory: Option<&Memory>,
    attributes: Option<&Bytes>,
) -> Change {
    let memory = memory.filter(|memory| !memory.is_empty());
    if attributes.is_none() && memory.is_none() {
        return Change::Delete;
    }
    let mut item: Vec<(Name, Value)> = vec![(VERSION.into(), Value::Integer(version.0 as i64))];
    item.extend(attributes.map(|bytes| (ATTRIBUTES.into(), Value::Bytes(bytes.clone()))));
    item.extend(memory.map(|memory| (MEMORY.into(), Value::Bytes(encode(memory)))));
    Change::Put(item)
}

/// The near row of a far item, or of its absence.
pub(crate) fn row_of_far(item: Option<&Item>) -> Result<Row> {
    let Some(item) = item else {
        return Ok(Row::default());
    };
    let version = item
        .integer(VERSION)
        .ok_or_else(|| Error::corrupt("read the version of a far item"))?;
    let memory = item
        .bytes(MEMORY)
        .map(|bytes| decode(bytes, "read what a far item remembers"))
        .transpose()?;
    let content = item
        .bytes(ATTRIBUTES)
        .map_or(Content::Nothing, |bytes| Content::Inline(bytes.clone()));
    Ok(Row {
        version: Version(version as u64),
        memory,
        content,
        writer: None,
    })
}

/// The items of a shard in the far store, in the order of their keys: a causal prefix of the writes
/// (E2). The caller need not own the shard.
pub async fn far_items(far: &dyn KeyValue, shard: &Bytes) -> Result<Vec<(Key, Arc<Item>)>> {
    let mut items = Vec::new();
    let mut scan = scan_kind(shard, ITEMS, PAGE_ITEMS);
    loop {
        let page = far.scan(&scan).await?.value;
        for (sort, item) in page.items {
            let key = Key::from_bytes(sort.slice(1..))
                .ok_or_else(|| Error::corrupt("read a far item's key"))?;
            let row = row_of_far(Some(&item))?;
            if let Content::Inline(attributes) = &row.content {
                items.push((key, decode_attributes(row.version, attributes)?));
            }
        }
        match page.next {
            Some(next) => scan.from = next,
            None => return Ok(items),
        }
    }
}

/// Items read in one page.
pub(crate) const PAGE_ITEMS: usize = 200;
