//! Listing: a page of the keys of plain state, in order, with their values.
//!
//! Keys are spread over buckets and each bucket is in order. A page is merged from the first few
//! versions of every bucket. It takes one scan of each bucket, a second one where the first held
//! few keys, and the decision rows of the versions found. The cost of a page does not grow with the
//! store. Listing costs commits nothing, because they maintain no stored list of keys.
//!
//! A page shows what the store holds, whether or not this node has applied it. Rows are read after
//! versions, and the versions that were newest when the page began are kept from collection until
//! it ends. Otherwise a version could be collected with its row between the two reads, and its key
//! would be missing although it existed all the time. If a key has more versions than were read,
//! all of them are read once the key is known to be in the page, because the index may lag among
//! several nodes.
//!
//! A page takes as many keys as requested and then omits those that are deleted or were never
//! committed. Its cost is bounded. It may hold fewer keys than requested, or none, although more
//! follow.
//!
//! Deliberately absent: a snapshot over pages, or within one. Each key is as it was at some moment
//! while its page was read.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::{DurabilityPoint, Read};

use crate::{
    Result,
    broken::Broken,
    calls::Calls,
    loader::{Pin, committed_version},
    model::{Attempt, Key, KeyspaceId},
    node::Node,
    storage::{
        layout,
        records::{CommitRecord, Place},
        store::{Store, VersionItem},
    },
};

/// The most keys in a page.
pub const KEYS_MAX: usize = 1_000;
/// Larger values are omitted from a page; the caller gets them separately.
pub const VALUE_BYTES_MAX: u64 = 64 << 10;
/// A page ends with the value that reaches this many bytes.
pub const VALUES_BYTES_MAX: usize = 1 << 20;

/// Buckets read at a time.
const SCANS_AT_ONCE: usize = 32;
/// Keys examined at a time.
const KEYS_AT_ONCE: usize = 64;
/// How much memory a page may use, out of the capacity for values being read.
const PAGE_BYTES: usize = 16 << 20;
/// Larger values are not kept from the first scan of their bucket, but read once they are known to
/// be in the page.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Which keys of plain state to list.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The prefix of the keys.
    pub prefix: Bytes,
    /// Only keys after this one, whether or not it exists.
    pub after: Option<Key>,
    /// How many keys to examine, from one to [`KEYS_MAX`].
    pub keys_max: usize,
}

/// A key that has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Key,
    /// The length of its value.
    pub bytes: u64,
    /// The value, or `None` if it is too long for a page.
    pub value: Option<Bytes>,
}

/// Keys in the order of their stored names. That is the order of their bytes, except for long keys
/// whose first [`HEAD_BYTES_MAX`](layout::HEAD_BYTES_MAX) bytes are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The keys.
    pub keys: Vec<Listed>,
    /// The last key examined, if more may follow.
    pub next: Option<Key>,
}

/// A key that has versions.
#[derive(Debug)]
struct KeyVersions {
    key: Key,
    versions: Vec<(Attempt, VersionItem)>,
    /// Whether these are all its versions in the store.
    is_whole: bool,
}

/// Keys of a bucket that were read and not taken yet.
#[derive(Debug)]
struct Bucket {
    number: u8,
    found: VecDeque<KeyVersions>,
    /// Where the unread part begins. `None` if all was read.
    rest: Option<Bytes>,
}

impl Calls {
    pub(crate) async fn list_now(self: &Arc<Self>, listing: &Listing) -> Result<Read<Page>> {
        let node = self.serving.node()?;
        let _room = self.loader.reserve_reading(PAGE_BYTES).await?;
        let _pin = (!self.context.breaks(Broken::ListsUnpinned)).then(|| Pin::new(&self.loader));
        let (found, has_more, mut point) = find(&node.store, listing).await?;
        let last = found.last().map(|found| found.key.clone());
        let begins = |found: &KeyVersions| found.key.name().starts_with(&listing.prefix);
        let wanted = found
            .into_iter()
            .filter(begins)
            .map(|found| self.newest(&node, found));
        let mut shown = stream::iter(wanted).buffered(KEYS_AT_ONCE);
        let mut page = Page {
            keys: Vec::new(),
            next: last.filter(|_| has_more),
        };
        let mut bytes = 0;
        while let Some(newest) = shown.try_next().await? {
            point = point.max(newest.point);
            let Some(listed) = newest.value else { continue };
            bytes += listed.value.as_ref().map_or(0, Bytes::len);
            if bytes >= VALUES_BYTES_MAX {
                page.next = Some(listed.key.clone());
            }
            page.keys.push(listed);
            if bytes >= VALUES_BYTES_MAX {
                break;
            }
        }
        drop(shown);
        self.loader
            .check_succession(&node, KeyspaceId::default())
            .await?;
        self.cluster.may_answer(&node)?;
        Ok(Read { value: page, point })
    }

    /// The newest committed value of a key, or `None`.
    async fn newest(
        self: &Arc<Self>,
        node: &Arc<Node>,
        found: KeyVersions,
    ) -> Result<Read<Option<Listed>>> {
        let KeyVersions {
            key,
            versions,
            is_whole,
        } = found;
        if !is_whole {
            return self.as_stored(node, key).await;
        }
        let known: Vec<Option<Arc<CommitRecord>>> = {
            let cache = self.cache.lock();
            let known = versions.iter().map(|(attempt, _)| cache.record(*attempt));
            known.collect()
        };
        let (mut newest, mut point) = (
            None::<(Arc<CommitRecord>, VersionItem)>,
            DurabilityPoint::DURABLE,
        );
        for ((attempt, item), known) in versions.into_iter().zip(known) {
            let (record, item, read_at) =
                committed_version(node, &key, attempt, item, known).await?;
            point = point.max(read_at);
            match record {
                // It may have committed and been collected since with its row. Then the value that
                // it had deleted must not reappear.
                None if item.place == Place::Gone => return self.as_stored(node, key).await,
                None => {}
                Some(record) => match &newest {
                    Some((newest, _)) if newest.version >= record.version => {}
                    _ => newest = Some((record, item)),
                },
            }
        }
        let Some((record, item)) = newest.filter(|(_, item)| item.place != Place::Gone) else {
            return Ok(Read { value: None, point });
        };
        let write = record
            .write_of(&key)
            .expect("a version that counts is one of its record's");
        let bytes = write.value_bytes();
        let value = if bytes > VALUE_BYTES_MAX {
            None
        } else if item.value.is_some() {
            item.value
        } else {
            let stored = self.loader.stored_value(node, record.attempt, write);
            let Some(value) = stored.await? else {
                // Superseded and collected: only possible if the pin was evicted.
                return self.as_stored(node, key).await;
            };
            Some(value)
        };
        let value = Some(Listed { key, bytes, value });
        Ok(Read { value, point })
    }

    /// Reads all its versions from the store. On a single node the index knows as much.
    async fn as_stored(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: Key,
    ) -> Result<Read<Option<Listed>>> {
        let Read { value, point } =
            if self.context.is_alone() || self.context.breaks(Broken::ListsFromMemory) {
                self.get_now(&key).await?
            } else {
                self.loader.get_stored(node, &key).await?
            };
        let listed = value.map(|value| {
            let bytes = value.len() as u64;
            Listed {
                key,
                bytes,
                value: Some(value).filter(|_| bytes <= VALUE_BYTES_MAX),
            }
        });
        Ok(Read {
            value: listed,
            point,
        })
    }
}

/// The first keys after `after`, in stored order; whether more may follow; and the point that this
/// depends on.
async fn find(
    store: &Store,
    listing: &Listing,
) -> Result<(Vec<KeyVersions>, bool, DurabilityPoint)> {
    let keys_max = listing.keys_max.clamp(1, KEYS_MAX);
    let (first, until) = layout::places_of(&listing.prefix);
    let from = listing
        .after
        .as_ref()
        .map_or(first.clone(), |after| first.max(layout::behind(after)));
    let (mut found, mut point) = (Vec::new(), DurabilityPoint::DURABLE);
    if from >= until {
        return Ok((found, false, point));
    }
    let buckets = store.buckets();
    // Twice a bucket's share of the page, so that few buckets need a second scan.
    let items_max = 1 + (2 * keys_max).div_ceil(buckets.count() as usize);
    let mut buckets: Vec<Bucket> = buckets
        .all()
        .map(|number| Bucket::new(number, &from))
        .collect();
    let mut heads = BTreeMap::new();
    loop {
        let dry = (0..)
            .zip(&mut buckets)
            .filter(|(_, bucket)| bucket.is_dry());
        let reads = dry.map(|(place, bucket)| bucket.read_on(store, &until, items_max, place));
        let mut read: Vec<(usize, DurabilityPoint)> = stream::iter(reads.collect::<Vec<_>>())
            .buffered(SCANS_AT_ONCE)
            .try_collect()
            .await?;
        for (place, read_at) in read.drain(..) {
            point = point.max(read_at);
            heads.extend(buckets[place].head().map(|head| (head, place)));
        }
        // Until one of them needs another scan: its next key may be the next overall.
        while let Some((_, place)) = heads.pop_first() {
            let bucket = &mut buckets[place];
            found.extend(bucket.found.pop_front());
            heads.extend(bucket.head().map(|head| (head, place)));
            if found.len() == keys_max || bucket.is_dry() {
                break;
            }
        }
        let has_more = !heads.is_empty() || buckets.iter().any(Bucket::is_dry);
        if found.len() == keys_max || !has_more {
            return Ok((found, has_more, point));
        }
    }
}

impl Bucket {
    fn new(number: u8, from: &Bytes) -> Self {
        Self {
            number,
            found: VecDeque::new(),
            rest: Some(from.clone()),
        }
    }

    /// Whether its next key is unknown.
    fn is_dry(&self) -> bool {
        self.found.is_empty() && self.rest.is_some()
    }

    /// The stored name of its first key that was not taken.
    fn head(&self) -> Option<Bytes> {
        self.found.front().map(|found| layout::place(&found.key))
    }

    /// Reads until it has a key or has reached its end. Returns `place` with the point that this
    /// depends on.
    async fn read_on(
        &mut self,
        store: &Store,
        until: &Bytes,
        items_max: usize,
        place: usize,
    ) -> Result<(usize, DurabilityPoint)> {
        let mut point = DurabilityPoint::DURABLE;
        while let Some(from) = self.rest.take_if(|_| self.found.is_empty()) {
            let read = store
                .listed(self.number, from, until.clone(), items_max)
                .await?;
            point = point.max(read.point);
            let (versions, next) = read.value;
            for (key, attempt, mut item) in versions {
                item.value = item.value.filter(|value| value.len() <= KEPT_BYTES_MAX);
                if let Some(last) = self.found.back_mut().filter(|last| last.key == key) {
                    last.versions.push((attempt, item));
                } else {
                    let versions = vec![(attempt, item)];
                    self.found.push_back(KeyVersions {
                        key,
                        versions,
                        is_whole: true,
                    });
                }
            }
            let last = self.found.back_mut();
            self.rest = next.map(|next| match last {
                // Its further versions are not read here: their number is unbounded.
                Some(last) if next.starts_with(&layout::place(&last.key)) => {
                    last.is_whole = false;
                    layout::behind(&last.key)
                }
                _ => next,
            });
        }
        Ok((place, point))
    }
}
