//! Verification: the whole checkpoint store is read back and checked.
//!
//! The verification reads every block in use through its checksum and follows redb's checksums from
//! page to page. Those also detect a page that is whole but older than it should be. It decodes
//! every record. It writes nothing: memory holds redb's writes, which are dropped at the end.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use redb::{ReadableDatabase, ReadableTable, TableError};

use super::{
    CACHE_BYTES_ONCE, CheckpointEnd, RECORDS, StoreError,
    blocks::{Blocks, Writes},
    boxed, checkpoint_end_in, database_in, is_there,
};
use crate::{
    directory::{format::Format, layout},
    error::OpenError,
    records::{Record, RecordKey},
    storage::{Storage, StorageFile},
};

/// Reads the whole store of `data_dir` and counts its records.
pub(crate) fn verify(
    storage: &dyn Storage,
    data_dir: &Path,
    format: Format,
) -> Result<u64, OpenError> {
    let path = layout::checkpoint_store(data_dir);
    let Some(opened) = open(storage, data_dir)? else {
        return Err(OpenError::Missing { file: path });
    };
    Blocks::open(opened, &path, format.salt, Writes::Forgotten)
        .map_err(boxed)
        .and_then(read_all)
        .map_err(OpenError::checkpoint(&path))
}

/// The result of [`inspect`].
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    /// How far the store covers the journal; none before the first checkpoint.
    pub(crate) checkpoint_end: Option<CheckpointEnd>,
    /// The file, if one of its two heads is not whole. The other head is used.
    pub(crate) torn: Option<PathBuf>,
}

/// Reads how far the store of `data_dir` covers the journal, and nothing else of it.
///
/// Errors: those with which a start would refuse the store.
pub(crate) fn inspect(
    storage: &dyn Storage,
    data_dir: &Path,
    format: Format,
) -> Result<Inspection, OpenError> {
    let Some(opened) = open(storage, data_dir)? else {
        return Ok(Inspection::default());
    };
    let path = layout::checkpoint_store(data_dir);
    let read = || {
        let blocks = Blocks::open(opened, &path, format.salt, Writes::Forgotten).map_err(boxed)?;
        let torn = blocks.had_torn_head().then(|| path.clone());
        let database = database_in(blocks, CACHE_BYTES_ONCE)?;
        let checkpoint_end = checkpoint_end_in(&database.begin_read().map_err(boxed)?)?;
        Ok(Inspection {
            checkpoint_end,
            torn,
        })
    };
    read().map_err(OpenError::checkpoint(&path))
}

/// The file of the store, if it exists.
fn open(storage: &dyn Storage, data_dir: &Path) -> Result<Option<Arc<dyn StorageFile>>, OpenError> {
    let path = layout::checkpoint_store(data_dir);
    let attempted = || OpenError::io(format!("read {}", path.display()));
    if !is_there(storage, data_dir).map_err(attempted())? {
        return Ok(None);
    }
    storage.open(&path).map(Some).map_err(attempted())
}

fn read_all(blocks: Blocks) -> Result<u64, StoreError> {
    let mut database = database_in(blocks, CACHE_BYTES_ONCE)?;
    if !database.check_integrity().map_err(boxed)? {
        return Err(boxed(redb::Error::Corrupted(
            "its pages do not fit together".to_owned(),
        )));
    }
    let read = database.begin_read().map_err(boxed)?;
    let records = match read.open_table(RECORDS) {
        Ok(records) => records,
        Err(TableError::TableDoesNotExist(_)) => return Ok(0),
        Err(error) => return Err(boxed(error)),
    };
    let mut count = 0;
    for entry in records.iter().map_err(boxed)? {
        let (key, value) = entry.map_err(boxed)?;
        let known = RecordKey::read(key.value())
            .and_then(|key| Record::decode(key.table, Bytes::copy_from_slice(value.value())));
        if known.is_none() {
            return Err(boxed(redb::Error::Corrupted(format!(
                "record {:x?} does not decode",
                key.value()
            ))));
        }
        count += 1;
    }
    Ok(count)
}
