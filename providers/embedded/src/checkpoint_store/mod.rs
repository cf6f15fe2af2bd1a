//! The checkpoint store: the state as of some position, in a copy-on-write B-tree on disk (redb).
//!
//! Only checkpoints write it, each in one transaction. It is therefore exactly the state at the end
//! of one group, and it records where in the journal that group ends. Readers use a view of the
//! last checkpoint until the next one is complete. A deleted item that only remembers operations is
//! found by its expiry, and removed once that has passed.
//!
//! After a failed operation redb refuses everything until it is opened again;
//! [`CheckpointStore::reopen`] does that. Every block is checked before redb sees it ([`blocks`]),
//! so damage fails the operation that met it, with file and offset.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend, TableDefinition, TableError,
};
use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    directory::{format::Format, layout},
    error::OpenError,
    records::{self, Record, RecordKey, Table, overlay::Slot},
    storage::{Storage, is_about_room},
};

mod blocks;
mod verification;

use self::blocks::{Blocks, Checking, Writes};
pub(crate) use blocks::Damage;
pub(crate) use verification::{Inspection, inspect, verify};

type Bytewise = &'static [u8];

/// The part of the cache's bytes that redb's pages may take.
const PAGES_PART: u64 = 4;

/// The memory for redb's cache when nothing is read twice.
const CACHE_BYTES_ONCE: usize = 4 << 20;

const RECORDS: TableDefinition<'static, Bytewise, Bytewise> = TableDefinition::new("records");
/// (expiry in milliseconds, big-endian | record key): deleted items that only remember operations.
const EXPIRIES: TableDefinition<'static, Bytewise, ()> = TableDefinition::new("expiries");
const META: TableDefinition<'static, &str, Bytewise> = TableDefinition::new("meta");
const CHECKPOINT_END: &str = "place";

/// The expired operation memories that a transaction removes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expiring {
    /// Memories that expired by this time, in milliseconds since the epoch.
    pub(crate) now_ms: u64,
    /// At most this many memories.
    pub(crate) count_max: usize,
}

impl Expiring {
    /// The bound of a whole checkpoint.
    pub(crate) fn by(now_ms: u64) -> Self {
        Self {
            now_ms,
            count_max: 100_000,
        }
    }
}

/// The point in the journal up to which a checkpoint covers everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CheckpointEnd {
    /// The last mutation it covers.
    pub(crate) position: u64,
    /// The last journal record it covers.
    pub(crate) sequence: u64,
    /// The incarnation that made the checkpoint.
    pub(crate) incarnation: u64,
}

/// An error of redb.
pub(crate) type StoreError = Box<redb::Error>;

/// Whether redb failed because the disk is full.
pub(crate) fn is_full(error: &redb::Error) -> bool {
    matches!(error, redb::Error::Io(error) if is_about_room(error))
}

fn boxed(error: impl Into<redb::Error>) -> StoreError {
    Box::new(error.into())
}

/// The name of a store that is not complete yet.
const UNFINISHED: &str = "state.redb.new";

/// Whether a data directory has a store.
pub(crate) fn is_there(storage: &dyn Storage, data_dir: &Path) -> io::Result<bool> {
    Ok(storage
        .list(data_dir)?
        .iter()
        .any(|name| name == layout::CHECKPOINT_STORE))
}

/// The open store. Only checkpoints write it.
#[derive(Debug)]
pub(crate) struct CheckpointStore {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    salt: u32,
    cache_bytes: usize,
    checking: Checking,
    database: Mutex<Option<Database>>,
    /// The last damage met.
    damage: Mutex<Option<Damage>>,
    /// Grows by two when the store is opened again or closed; odd while a checkpoint in parts is
    /// incomplete.
    interruptions: AtomicU64,
}

impl CheckpointStore {
    /// Opens the store of a data directory, and creates it if it is missing.
    pub(crate) fn open(config: &Config, format: Format) -> Result<Self, OpenError> {
        let checkpoint_store = Self {
            path: layout::checkpoint_store(&config.data_dir),
            storage: Arc::clone(&config.storage),
            salt: format.salt,
            cache_bytes: (config.cache_bytes / PAGES_PART) as usize,
            checking: if config.skip_block_checksums {
                Checking::Skipped
            } else {
                Checking::Done
            },
            database: Mutex::default(),
            damage: Mutex::default(),
            interruptions: AtomicU64::default(),
        };
        checkpoint_store
            .create()
            .map_err(OpenError::checkpoint(&checkpoint_store.path))?;
        checkpoint_store
            .reopen()
            .map_err(OpenError::checkpoint(&checkpoint_store.path))?;
        Ok(checkpoint_store)
    }

    /// The path of its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a missing store, under another name first: an incomplete store would not open. A new
    /// store that cannot be completed leaves nothing.
    fn create(&self) -> Result<(), StoreError> {
        let directory = self
            .path
            .parent()
            .expect("the store lies in the data directory");
        if is_there(&*self.storage, directory).map_err(boxed)? {
            return Ok(());
        }
        let unfinished = directory.join(UNFINISHED);
        self.write_new(&unfinished).inspect_err(|_| {
            // The incomplete file takes space, and the next attempt starts anew.
            let _ = self.storage.remove(&unfinished);
        })?;
        self.storage
            .rename(&unfinished, &self.path)
            .and_then(|()| self.storage.sync_directory(directory))
            .map_err(boxed)
    }

    /// Writes an empty store to `path`, and makes it durable.
    fn write_new(&self, path: &Path) -> Result<(), StoreError> {
        let file = self.storage.open(path).map_err(boxed)?;
        let blocks = Blocks::create(Arc::clone(&file), path, self.salt).map_err(boxed)?;
        drop(database_in(blocks, self.cache_bytes)?);
        file.sync_data().map_err(boxed)
    }

    /// Opens the store again. The caller must have dropped every [`View`].
    pub(crate) fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self.database.lock();
        // Views of a backup may still be open, and must not be used any more.
        self.interruptions.fetch_add(2, Ordering::SeqCst);
        drop(database.take());
        let file = self.storage.open(&self.path).map_err(boxed)?;
        let opened = Blocks::open(file, &self.path, self.salt, Writes::Kept)
            .map_err(boxed)
            .and_then(|blocks| database_in(blocks.checking(self.checking), self.cache_bytes));
        *database = Some(opened.inspect_err(|error| self.note_damage(error))?);
        Ok(())
    }

    /// The last damage met, if any.
    pub(crate) fn damage(&self) -> Option<Damage> {
        self.damage.lock().clone()
    }

    /// Remembers and logs damage, if damage caused `error`.
    pub(crate) fn note_damage(&self, error: &redb::Error) {
        let Some(met) = Damage::in_error(error) else {
            return;
        };
        let known = self.damage.lock().replace(met.clone());
        if known.as_ref() != Some(met) {
            let (file, offset) = (met.file.display(), met.offset);
            tracing::error!(%file, offset, "stored bytes are damaged: requests that need them are refused; restore the whole data directory from a copy");
        }
    }

    /// A view of the last checkpoint; none before the first one.
    pub(crate) fn view(&self) -> Result<Option<View>, StoreError> {
        let read = self.with_database(|database| database.begin_read().map_err(boxed))?;
        let Some(checkpoint_end) = checkpoint_end_in(&read)? else {
            return Ok(None);
        };
        let table = read.open_table(RECORDS).map_err(boxed)?;
        Ok(Some(View {
            table,
            checkpoint_end,
        }))
    }

    /// Writes records in one durable transaction, after which the store covers the journal up to
    /// `checkpoint_end`.
    pub(crate) fn write<'records>(
        &self,
        records: impl Iterator<Item = (&'records RecordKey, &'records Slot)>,
        checkpoint_end: CheckpointEnd,
        expiring: Expiring,
    ) -> Result<(), StoreError> {
        self.with_database(|database| transact(database, records, checkpoint_end, expiring))
            .inspect_err(|error| self.note_damage(error))
    }

    fn with_database<T>(
        &self,
        act: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let guard = self.database.lock();
        act(guard
            .as_ref()
            .ok_or_else(|| boxed(redb::Error::PreviousIo))?)
    }

    /// How many allocated bytes of disk are free inside the store. Reads the whole store.
    pub(crate) fn room(&self) -> Result<u64, StoreError> {
        let stats = self.with_database(|database| {
            let write = database.begin_write().map_err(boxed)?;
            let stats = write.stats().map_err(boxed)?;
            write.abort().map_err(boxed)?;
            Ok(stats)
        })?;
        let disk = self
            .storage
            .open(&self.path)
            .and_then(|file| file.disk_bytes())
            .map_err(boxed)?;
        Ok(disk.saturating_sub(stats.allocated_pages() * blocks::SLOT_BYTES))
    }

    /// A number that changes before a view may stop being the state at its end; none while a view
    /// would not be one.
    pub(crate) fn interruptions(&self) -> Option<u64> {
        let count = self.interruptions.load(Ordering::SeqCst);
        count.is_multiple_of(2).then_some(count)
    }

    /// Notes that a checkpoint in parts begins: until it ends, the store is ahead of the end that
    /// it records.
    pub(crate) fn begin_parts(&self) {
        self.interruptions.fetch_or(1, Ordering::SeqCst);
    }

    /// Notes that a whole checkpoint ended.
    pub(crate) fn end_parts(&self) {
        if self.interruptions().is_none() {
            self.interruptions.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Closes the store.
    pub(crate) fn close(&self) {
        self.interruptions.fetch_add(2, Ordering::SeqCst);
        drop(self.database.lock().take());
    }
}

fn database_in(backend: impl StorageBackend, cache_bytes: usize) -> Result<Database, StoreError> {
    Builder::new()
        .set_cache_size(cache_bytes)
        .create_with_backend(backend)
        .map_err(boxed)
}

fn transact<'records>(
    database: &Database,
    folded: impl Iterator<Item = (&'records RecordKey, &'records Slot)>,
    checkpoint_end: CheckpointEnd,
    expiring: Expiring,
) -> Result<(), StoreError> {
    let now_ms = expiring.now_ms;
    let mut write = database.begin_write().map_err(boxed)?;
    write.set_durability(Durability::Immediate).map_err(boxed)?;
    write.set_quick_repair(true);
    {
        let mut stored = write.open_table(RECORDS).map_err(boxed)?;
        let mut expiries = write.open_table(EXPIRIES).map_err(boxed)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for (record_key, slot) in folded {
            key.clear();
            record_key.write(&mut key);
            let Some(record) = slot
                .record
                .as_ref()
                .filter(|record| !is_expired(record, now_ms))
            else {
                stored.remove(&*key).map_err(boxed)?;
                continue;
            };
            value.clear();
            record.encode(&mut value);
            stored.insert(&*key, &*value).map_err(boxed)?;
            if let Some(expiry) = expiry_of(record) {
                expiries
                    .insert(&*expiry_key(expiry, &key), ())
                    .map_err(boxed)?;
            }
        }
        expire(&mut stored, &mut expiries, expiring)?;
        let mut meta = write.open_table(META).map_err(boxed)?;
        value.clear();
        records::put(&checkpoint_end, &mut value);
        meta.insert(CHECKPOINT_END, &*value).map_err(boxed)?;
    }
    write.commit().map_err(boxed)
}

fn is_expired(record: &Record, now_ms: u64) -> bool {
    matches!(record, Record::Item(item) if item.is_expired(now_ms))
}

fn expiry_of(record: &Record) -> Option<u64> {
    match record {
        Record::Item(item) if item.stored.item.is_none() => Some(item.expires_ms),
        _ => None,
    }
}

fn expiry_key(expires_ms: u64, key: &[u8]) -> Vec<u8> {
    let mut expiry = expires_ms.to_be_bytes().to_vec();
    expiry.extend_from_slice(key);
    expiry
}

fn expire(
    records: &mut redb::Table<'_, Bytewise, Bytewise>,
    expiries: &mut redb::Table<'_, Bytewise, ()>,
    Expiring { now_ms, count_max }: Expiring,
) -> Result<(), StoreError> {
    let mut passed = Vec::new();
    for entry in expiries
        .range::<&[u8]>(..now_ms.to_be_bytes().as_slice())
        .map_err(boxed)?
        .take(count_max)
    {
        passed.push(entry.map_err(boxed)?.0.value().to_vec());
    }
    for expiry in passed {
        let key = &expiry[8..];
        let stale = match records.get(key).map_err(boxed)? {
            Some(value) => Record::decode(Table::Item, Bytes::copy_from_slice(value.value()))
                .is_some_and(|record| is_expired(&record, now_ms)),
            None => false,
        };
        if stale {
            records.remove(key).map_err(boxed)?;
        }
        expiries.remove(&*expiry).map_err(boxed)?;
    }
    Ok(())
}

/// The end of the last checkpoint; none before the first one.
fn checkpoint_end_in(read: &ReadTransaction) -> Result<Option<CheckpointEnd>, StoreError> {
    match read.open_table(RECORDS) {
        Ok(_) => {}
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(boxed(error)),
    }
    let meta = read.open_table(META).map_err(boxed)?;
    let encoded = meta.get(CHECKPOINT_END).map_err(boxed)?;
    let checkpoint_end = encoded.and_then(|encoded| records::read(encoded.value()));
    checkpoint_end
        .map(Some)
        .ok_or_else(|| boxed(redb::Error::Corrupted("no checkpoint end".to_owned())))
}

/// The state as of one checkpoint.
#[derive(Debug)]
pub(crate) struct View {
    table: ReadOnlyTable<Bytewise, Bytewise>,
    pub(crate) checkpoint_end: CheckpointEnd,
}

impl View {
    /// The encoded record under the encoded key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let value = self.table.get(key).map_err(boxed)?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    /// The records with encoded keys from `from` up to and without `until`, in order.
    pub(crate) fn range(&self, from: &[u8], until: &[u8]) -> Result<ViewRange, StoreError> {
        self.table
            .range::<&[u8]>(from..until)
            .map(|range| ViewRange { range })
            .map_err(boxed)
    }
}

/// Records of a view, in order, with their values still encoded.
pub(crate) struct ViewRange {
    range: redb::Range<'static, Bytewise, Bytewise>,
}

impl Iterator for ViewRange {
    type Item = Result<(RecordKey, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.range.next()?.map_err(boxed);
        Some(entry.and_then(|(key, value)| {
            let unknown = || boxed(redb::Error::Corrupted("a key without a table".to_owned()));
            let key = RecordKey::read(key.value()).ok_or_else(unknown)?;
            Ok((key, Bytes::copy_from_slice(value.value())))
        }))
    }
}

#[cfg(test)]
mod tests;
