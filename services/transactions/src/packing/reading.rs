//! Reading from packs by ranges, with neighbouring small ranges merged into one request.
//!
//! A version item holds the position of its value. The value may be moved between the read of the
//! item and that of the object, so a reader that finds no object reads the item again. If an item
//! keeps naming a missing object, the store is damaged; the version was not collected.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ports::objects::{self, ObjectError, ObjectStoreExt as _};
use tokio::sync::oneshot;

use crate::{
    Error, Result,
    model::{Attempt, Located, PackId},
    node::Node,
    packing::Packing,
    packs::Wanted,
    storage::records::{Place, Write},
};

/// Reads of one pack within this many bytes are merged.
const JOINED_BYTES_MAX: u64 = 64 << 10;
/// How often a moving value is looked up.
const LOOKS_MAX: usize = 3;
/// Ranges of one pack read at a time.
const RANGES_AT_ONCE: usize = 8;

impl Packing {
    /// A packed value; `None` if it is missing.
    pub(crate) async fn packed_value(
        self: &Arc<Self>,
        node: &Arc<Node>,
        attempt: Attempt,
        write: &Write,
    ) -> Result<Option<Bytes>> {
        let Place::Packed { bytes, crc } = write.place else {
            return Ok(None);
        };
        if self.objects.is_none() {
            // Another node was given an object store since this one began. A node that cannot read
            // all values must not serve.
            node.store.fence();
            return Err(Error::unavailable(
                "the store keeps values in an object store, and none is configured",
            ));
        }
        let mut missed = None;
        for _ in 0..LOOKS_MAX {
            let item = node.store.version(&write.key, attempt).await?;
            let item = item.filter(|item| item.write == write.write);
            let Some(located) = item.and_then(|item| item.packed) else {
                return Ok(None);
            };
            let Some(value) = self.read_pack(node, located, bytes).await? else {
                let pack = located.pack;
                if missed.replace(pack) == Some(pack) {
                    let path = pack.path(self.home()?);
                    return Err(Error::Corrupt(
                        format!("the object {path} is not there").into(),
                    ));
                }
                continue;
            };
            if value.len() != bytes as usize || crc32fast::hash(&value) != crc {
                return Err(Error::Corrupt(
                    format!("a value of {attempt} is not what was written").into(),
                ));
            }
            return Ok(Some(value));
        }
        Ok(None)
    }

    /// A range of a pack; `None` if the pack is missing. Concurrent small reads are merged.
    async fn read_pack(
        self: &Arc<Self>,
        node: &Arc<Node>,
        located: Located,
        bytes: u32,
    ) -> Result<Option<Bytes>> {
        let Located { pack, offset } = located;
        let range = offset..offset + u64::from(bytes);
        if u64::from(bytes) > JOINED_BYTES_MAX {
            return self.read_range(node, pack, range).await;
        }
        let (told, hears) = oneshot::channel();
        let is_first = {
            let mut state = node.packs.state();
            let wanted = state.wanted.entry(pack).or_default();
            wanted.push(Wanted { range, told });
            wanted.len() == 1
        };
        if is_first {
            // Reads that arrive before this task runs are served with it.
            let (packing, node) = (Arc::clone(self), Arc::clone(node));
            self.context
                .spawn(async move { packing.read_wanted(&node, pack).await });
        }
        hears
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the engine stops")))
    }

    async fn read_wanted(&self, node: &Arc<Node>, pack: PackId) {
        let mut wanted = node.packs.state().wanted.remove(&pack).unwrap_or_default();
        wanted.sort_by_key(|wanted| wanted.range.start);
        let joined = join(wanted);
        let reads = stream::iter(joined).for_each_concurrent(
            RANGES_AT_ONCE,
            |(range, wanted)| async move {
                let read = self.read_range(node, pack, range.clone()).await;
                for Wanted { range: part, told } in wanted {
                    // Sending fails if the reading transaction has ended.
                    let _ = told.send(
                        read.clone()
                            .map(|bytes| bytes.and_then(|bytes| cut(&bytes, &range, part))),
                    );
                }
            },
        );
        reads.await;
    }

    /// The values at these positions of a pack, in order; `None` if there is no such pack.
    pub(super) async fn read_places(
        &self,
        node: &Arc<Node>,
        pack: PackId,
        places: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>> {
        let mut values = Vec::with_capacity(places.len());
        for (range, parts) in join(places.to_vec()) {
            let Some(bytes) = self.read_range(node, pack, range.clone()).await? else {
                return Ok(None);
            };
            for part in parts {
                values.push(cut(&bytes, &range, part).ok_or_else(|| {
                    Error::Corrupt(
                        format!("pack {} of node {} is too short", pack.number, pack.node.0).into(),
                    )
                })?);
            }
        }
        Ok(Some(values))
    }

    pub(super) async fn read_range(
        &self,
        node: &Node,
        pack: PackId,
        range: Range<u64>,
    ) -> Result<Option<Bytes>> {
        let (objects, path) = (self.objects()?, pack.path(self.home()?));
        let read = || async {
            match objects.get_range(&path, range.clone()).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(ObjectError::NotFound { .. }) => Ok(None),
                Err(error) => Err(objects::failed(format!("read {path}"), error)),
            }
        };
        node.store.again(read).await
    }
}

/// A part of a pack to read.
trait Part {
    fn range(&self) -> &Range<u64>;
}

impl Part for Wanted {
    fn range(&self) -> &Range<u64> {
        &self.range
    }
}

impl Part for Range<u64> {
    fn range(&self) -> &Range<u64> {
        self
    }
}

/// Sorts parts by their begin and groups them into ranges that each serve several.
fn join<T: Part>(parts: Vec<T>) -> Vec<(Range<u64>, Vec<T>)> {
    let mut joined: Vec<(Range<u64>, Vec<T>)> = Vec::new();
    for part in parts {
        let range = part.range().clone();
        match joined.last_mut() {
            Some((last, parts)) if range.end.max(last.end) - last.start <= JOINED_BYTES_MAX => {
                last.end = last.end.max(range.end);
                parts.push(part);
            }
            _ => joined.push((range, vec![part])),
        }
    }
    joined
}

/// The bytes of `part` from `bytes`, which are those of `range`. Copied where a slice would keep
/// much other data in memory.
fn cut(bytes: &Bytes, range: &Range<u64>, part: Range<u64>) -> Option<Bytes> {
    let part = (part.start - range.start) as usize..(part.end - range.start) as usize;
    let is_all = part.len() == bytes.len();
    if is_all {
        Some(bytes.clone())
    } else {
        bytes.get(part).map(Bytes::copy_from_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_reads_beside_each_other_are_one() {
        let parts = vec![
            0..10,
            10..20,
            15..18,
            65_000..65_536,
            65_530..65_540,
            200_000..300_000,
            300_000..300_001,
        ];
        let joined: Vec<_> = join(parts.clone())
            .into_iter()
            .map(|(range, parts)| (range, parts.len()))
            .collect();
        assert_eq!(
            joined,
            [
                (0..65_536, 4),
                (65_530..65_540, 1),
                (200_000..300_000, 1),
                (300_000..300_001, 1)
            ]
        );
        let pack: Bytes = (0..=255).cycle().take(300_001).collect::<Vec<u8>>().into();
        for (range, parts) in join(parts) {
            let bytes = pack.slice(range.start as usize..range.end as usize);
            for part in parts {
                let whole = pack.slice(part.start as usize..part.end as usize);
                assert_eq!(cut(&bytes, &range, part), Some(whole));
            }
        }
        assert_eq!(cut(&Bytes::from_static(b"short"), &(0..10), 2..9), None);
    }
}
