//! Objects put in parts: each piece is an item, and the object's own item lists their lengths.
//!
//! A piece is created under a condition, so two uploads of one name never mix: the second is told
//! that the object exists. Pieces of an upload that a crash ended stay until the object is deleted,
//! and no call shows them.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use futures_util::future::try_join_all;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart, path::Path};
use ports::{
    Condition, Item, Key, Update,
    key_value::{Outcome, Scan, Value},
};

use super::{CONTENT, ItemObjects, PAGE_ITEMS, exists, failed, key, not_found, put_result};

/// The attribute that holds the lengths of the pieces of an object put in parts.
const LENGTHS: &str = "lengths";
/// The largest piece. Larger parts are cut.
const PIECE_BYTES_MAX: usize = 2 << 20;

fn partition(location: &Path) -> Bytes {
    format!("objects/parts/{location}").into()
}

fn piece(location: &Path, index: u32) -> Key {
    Key::new(partition(location), index.to_be_bytes())
}

/// The lengths of the pieces of an object; none: it is whole in its item.
pub(super) fn lengths_of(item: &Item) -> Option<Vec<u64>> {
    let mut bytes = item.bytes(LENGTHS)?.clone();
    let mut lengths = Vec::with_capacity(bytes.len() / 4);
    while bytes.remaining() >= 4 {
        lengths.push(u64::from(bytes.get_u32()));
    }
    Some(lengths)
}

impl ItemObjects {
    /// Reads the piece `index`.
    pub(super) async fn read_piece(&self, location: &Path, index: u32) -> Result<Bytes> {
        let read = self.items.get(&piece(location, index)).await;
        let item = read.map_err(failed)?.value;
        let content = item.and_then(|item| item.bytes(CONTENT).cloned());
        content.ok_or_else(|| not_found(location))
    }

    /// Deletes the first `count` pieces.
    pub(super) async fn delete_pieces(&self, location: &Path, count: usize) -> Result<()> {
        let delete = |index| self.durably(Update::delete(piece(location, index)));
        try_join_all((0..count as u32).map(delete)).await.map(drop)
    }

    /// Deletes the pieces of an upload that did not end.
    pub(super) async fn delete_unshown(&self, location: &Path) -> Result<()> {
        loop {
            let scan = Scan::partition(partition(location), PAGE_ITEMS);
            let page = self.items.scan(&scan).await.map_err(failed)?.value;
            if page.items.is_empty() {
                return Ok(());
            }
            for (sort, _) in page.items {
                let key = Key::new(partition(location), sort);
                self.durably(Update::delete(key)).await?;
            }
        }
    }
}

/// An upload in parts.
#[derive(Debug)]
pub(super) struct Upload {
    objects: ItemObjects,
    location: Path,
    lengths: Vec<u32>,
    /// The pieces that this upload may have created.
    created: Arc<Mutex<Vec<u32>>>,
}

impl Upload {
    pub(super) fn new(objects: ItemObjects, location: Path) -> Self {
        Self {
            objects,
            location,
            lengths: Vec::new(),
            created: Arc::default(),
        }
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let mut rest = Bytes::from(data);
        let most = PIECE_BYTES_MAX.min(self.objects.limits().piece_bytes_max - CONTENT.len());
        let mut creates = Vec::new();
        while !rest.is_empty() {
            let content = rest.split_to(rest.len().min(most));
            let index = self.lengths.len() as u32;
            self.lengths.push(content.len() as u32);
            let key = piece(&self.location, index);
            let update = Update::put(key, vec![(CONTENT.into(), Value::Bytes(content))]);
            creates.push((index, update.when(Condition::Absent)));
        }
        let (objects, location) = (self.objects.clone(), self.location.clone());
        let created = Arc::clone(&self.created);
        Box::pin(async move {
            for (index, update) in creates {
                let done = objects.durably(update).await;
                if !matches!(done, Ok(Outcome::Conflict(_))) {
                    let mut created = created.lock().unwrap_or_else(PoisonError::into_inner);
                    created.push(index);
                }
                if let Outcome::Conflict(_) = done? {
                    return Err(exists(&location));
                }
            }
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let lengths = self.lengths.iter().flat_map(|length| length.to_be_bytes());
        let lengths = Value::Bytes(lengths.collect::<Vec<_>>().into());
        let update = Update::put(key(&self.location), vec![(LENGTHS.into(), lengths)]);
        match self.objects.durably(update.when(Condition::Absent)).await? {
            Outcome::Done(_) => Ok(put_result()),
            Outcome::Conflict(_) => Err(exists(&self.location)),
        }
    }

    async fn abort(&mut self) -> Result<()> {
        let created = self.created.lock().map(|mut all| std::mem::take(&mut *all));
        for index in created.unwrap_or_default() {
            let delete = Update::delete(piece(&self.location, index));
            self.objects.durably(delete).await?;
        }
        Ok(())
    }
}
