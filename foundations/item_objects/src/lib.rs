//! Objects kept as items, for providers without an object store.
//!
//! One object is one item, so the promises about items give those about objects (O1 to O4). A
//! create is one conditional write, a get is one read, and a crash leaves no half of an object. A
//! larger object is put in parts ([`mod@parts`]). Objects are in one partition of their own, in the
//! order of their paths, so a list is a scan.

#![allow(
    clippy::default_trait_access,
    reason = "the defaults are of types that object_store does not pass on"
)]

mod parts;

use std::{collections::BTreeSet, fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, path::Path,
};
use ports::{
    Condition, Item, Key, KeyValue, Update,
    key_value::{Outcome, Scan, Value},
    objects::ObjectLimits,
};

use self::parts::Upload;

const PARTITION: &[u8] = b"objects";
/// The attribute that holds an object.
const CONTENT: &str = "content";
/// Objects in a page of a list. Few, because a page contains their content.
const PAGE_ITEMS: usize = 16;
/// The store's name in errors.
const STORE: &str = "items";

/// Objects in the items of one store.
#[derive(Debug, Clone)]
pub struct ItemObjects {
    items: Arc<dyn KeyValue>,
}

impl ItemObjects {
    /// Objects in `items`.
    pub fn new(items: Arc<dyn KeyValue>) -> Self {
        Self { items }
    }

    /// The limits: an object that is not put in parts is one item, read in one piece.
    pub fn limits(&self) -> ObjectLimits {
        let item_bytes_max = self.items.limits().item_bytes_max;
        ObjectLimits {
            object_bytes_max: item_bytes_max.saturating_sub(CONTENT.len()) as u64,
            takes_parts: true,
            piece_bytes_max: item_bytes_max,
        }
    }

    async fn read(&self, location: &Path) -> Result<Arc<Item>> {
        let read = self.items.get(&key(location)).await.map_err(failed)?;
        read.value.ok_or_else(|| not_found(location))
    }

    /// The bytes `range` of an object with pieces of these lengths, piece by piece.
    fn read_pieces(
        &self,
        location: &Path,
        lengths: &[u64],
        range: &Range<u64>,
    ) -> BoxStream<'static, Result<Bytes>> {
        let (mut start, mut wanted) = (0, Vec::new());
        for (index, length) in (0..).zip(lengths) {
            let end = start + length;
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                wanted.push((index, (from - start) as usize..(to - start) as usize));
            }
            start = end;
        }
        let (this, location) = (self.clone(), location.clone());
        let pieces = stream::iter(wanted).then(move |(index, part)| {
            let (this, location) = (this.clone(), location.clone());
            async move {
                let piece = this.read_piece(&location, index).await?;
                Ok(piece.slice(part))
            }
        });
        pieces.boxed()
    }

    async fn write(&self, location: &Path, content: Bytes, is_new: bool) -> Result<()> {
        let update = Update::put(key(location), vec![(CONTENT.into(), Value::Bytes(content))]);
        let update = if is_new {
            update.when(Condition::Absent)
        } else {
            update
        };
        match self.durably(update).await? {
            Outcome::Done(_) => Ok(()),
            Outcome::Conflict(_) => Err(exists(location)),
        }
    }

    /// Deletes the object before its pieces, so that it is never shown without them.
    async fn delete_one(&self, location: Path) -> Result<Path> {
        let read = self.items.get(&key(&location)).await.map_err(failed)?;
        let Some(item) = read.value else {
            self.delete_unshown(&location).await?;
            return Ok(location);
        };
        self.durably(Update::delete(key(&location))).await?;
        if let Some(lengths) = parts::lengths_of(&item) {
            self.delete_pieces(&location, lengths.len()).await?;
        }
        Ok(location)
    }

    /// Makes `update`, and returns once its outcome is durable. After a conflict, too: the other
    /// writer may have died before its object was durable, and the caller may depend on that object
    /// (O2).
    async fn durably(&self, update: Update) -> Result<Outcome> {
        let updated = self.items.update(update).await.map_err(failed)?;
        self.items
            .externalize(updated.receipt.point)
            .await
            .map_err(failed)?;
        Ok(updated.outcome)
    }

    /// A page of the objects whose paths begin with `prefix`, from the sort key `from` on. Also
    /// returns where the next page starts.
    async fn page(&self, prefix: &str, from: Bytes) -> Result<(Vec<ObjectMeta>, Option<Bytes>)> {
        let scan = Scan {
            from,
            ..Scan::partition(PARTITION, PAGE_ITEMS)
        };
        let page = self.items.scan(&scan).await.map_err(failed)?.value;
        let mut objects = Vec::with_capacity(page.items.len());
        for (sort, item) in &page.items {
            if !sort.starts_with(prefix.as_bytes()) {
                return Ok((objects, None));
            }
            let path = String::from_utf8_lossy(sort);
            let location = Path::parse(&path).map_err(|error| Error::Generic {
                store: STORE,
                source: error.into(),
            })?;
            objects.push(meta(location, bytes_of(item)));
        }
        Ok((objects, page.next))
    }
}

fn key(location: &Path) -> Key {
    Key::new(PARTITION, location.as_ref().as_bytes())
}

/// The size of an object.
fn bytes_of(item: &Item) -> u64 {
    match parts::lengths_of(item) {
        Some(lengths) => lengths.iter().sum(),
        None => item
            .bytes(CONTENT)
            .map_or(0, |content| content.len() as u64),
    }
}

fn not_found(location: &Path) -> Error {
    Error::NotFound {
        path: location.to_string(),
        source: "no item has this name".into(),
    }
}

fn exists(location: &Path) -> Error {
    Error::AlreadyExists {
        path: location.to_string(),
        source: "an item has this name".into(),
    }
}

fn put_result() -> PutResult {
    PutResult {
        e_tag: None,
        version: None,
        extensions: Default::default(),
    }
}

fn meta(location: Path, bytes: u64) -> ObjectMeta {
    // No caller reads `last_modified` (see the port).
    ObjectMeta {
        location,
        last_modified: Default::default(),
        size: bytes,
        e_tag: None,
        version: None,
    }
}

fn failed(error: ports::Error) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}

fn not_offered(what: &str) -> Error {
    Error::NotSupported {
        source: format!("{what}: objects kept as items are created, read, listed and deleted")
            .into(),
    }
}

impl fmt::Display for ItemObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects kept as items")
    }
}

#[async_trait]
impl ObjectStore for ItemObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let is_new = match opts.mode {
            PutMode::Create => true,
            PutMode::Overwrite => false,
            PutMode::Update(_) => return Err(not_offered("conditional replacement")),
        };
        self.write(location, payload.into(), is_new).await?;
        Ok(put_result())
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload::new(self.clone(), location.clone())))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let item = self.read(location).await?;
        let meta = meta(location.clone(), bytes_of(&item));
        options.check_preconditions(&meta)?;
        let range = match options.range {
            Some(range) => range.as_range(meta.size).map_err(|error| Error::Generic {
                store: STORE,
                source: Box::new(error),
            })?,
            None => 0..meta.size,
        };
        let pieces = if let Some(lengths) = parts::lengths_of(&item) {
            self.read_pieces(location, &lengths, &range)
        } else {
            let content = item.bytes(CONTENT).cloned().unwrap_or_default();
            let part = content.slice(range.start as usize..range.end as usize);
            stream::iter([Ok(part)]).boxed()
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(pieces),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location| {
            let this = this.clone();
            async move { this.delete_one(location).await }
        };
        locations.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix
            .map(|prefix| format!("{prefix}/"))
            .filter(|prefix| prefix != "/")
            .unwrap_or_default();
        let start = Some(Bytes::copy_from_slice(prefix.as_bytes()));
        let this = self.clone();
        let pages = stream::try_unfold(start, move |from| {
            let (this, prefix) = (this.clone(), prefix.clone());
            async move {
                let Some(from) = from else {
                    return Ok::<_, Error>(None);
                };
                let (objects, next) = this.page(&prefix, from).await?;
                Ok(Some((stream::iter(objects.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let root = Path::default();
        let prefix = prefix.unwrap_or(&root);
        let (mut objects, mut folders) = (Vec::new(), BTreeSet::new());
        for object in self.list(Some(prefix)).try_collect::<Vec<_>>().await? {
            let mut below = object.location.prefix_match(prefix).into_iter().flatten();
            let first = below.next();
            let is_deeper = below.next().is_some();
            drop(below);
            match first {
                Some(folder) if is_deeper => drop(folders.insert(prefix.clone().join(folder))),
                _ => objects.push(object),
            }
        }
        Ok(ListResult {
            objects,
            common_prefixes: folders.into_iter().collect(),
            extensions: Default::default(),
        })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_offered("a copy"))
    }
}
