//! Reading values from packs.
//!
//! A version item holds the position of its value. The value may be moved between the read of the
//! item and that of the object, so a reader that finds no object reads the item again. If an item
//! keeps naming a missing object, the store is damaged; the version was not collected.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use ports::objects::ObjectStoreExt as _;

use crate::{
    Error, Result,
    model::{Attempt, PackId},
    node::Node,
    packing::Packing,
    storage::records::{Place, Write},
};

use super::find;

/// How often a moving value is looked up.
const LOOKS_MAX: usize = 8;

impl Packing {
    /// A packed value; `None` if it is missing.
    pub(crate) async fn packed_value(
        &self,
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
            let range = located.offset..located.offset + u64::from(bytes);
            let Some(value) = self.read_range(node, located.pack, range).await? else {
                if missed.replace(located.pack) == Some(located.pack) {
                    let path = located.pack.path(self.home()?);
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

    /// A range of a pack; `None` if the pack is missing.
    pub(super) async fn read_range(
        &self,
        node: &Node,
        pack: PackId,
        range: Range<u64>,
    ) -> Result<Option<Bytes>> {
        let (objects, path) = (self.objects()?, pack.path(self.home()?));
        let read = || objects.get_range(&path, range.clone());
        find(&node.store, "read", &path, read).await
    }
}
