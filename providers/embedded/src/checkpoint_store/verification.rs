//! Reading the whole checkpoint store back, for whoever asks whether it is what was written.
//!
//! Every block that counts is read through its checksum, redb's checksums from page to page are followed, which also
//! notice a page that is whole and older than it should be, and every record is decoded. Nothing is written: what redb
//! would write is held in memory and forgotten.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use redb::{ReadableDatabase, ReadableTable, TableError};

use super::{
    CACHE_BYTES_ONCE, CheckpointEnd, RECORDS, StoreError,
    blocks::{self, Blocks, Writes},
    boxed, checkpoint_end_in, database_in, is_there,
};
use crate::{
    directory::{format::Format, layout},
    error::OpenError,
    records::{Record, RecordKey},
    storage::{Storage, StorageFile},
};

/// How many records the store of `data_dir` holds, all of it read; none where it has no checksums yet.
pub(crate) fn verify(
    storage: &dyn Storage,
    data_dir: &Path,
    format: Format,
) -> Result<Option<u64>, OpenError> {
    let path = layout::checkpoint_store(data_dir);
    let Some(opened) = open(storage, data_dir)? else {
        return Err(OpenError::Missing { file: path });
    };
    if blocks::is_plain(&*opened).map_err(OpenError::io(format!("read {}", path.display())))? {
        return Ok(None);
    }
    Blocks::open(opened, &path, format.salt, Writes::Forgotten)
        .map_err(boxed)
        .and_then(read_all)
        .map(Some)
        .map_err(OpenError::checkpoint(&path))
}

/// What a inspect at a checkpoint finds.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    /// How far it holds the journal; none where it holds nothing yet.
    pub(crate) checkpoint_end: Option<CheckpointEnd>,
    /// Its file, if one of the two heads of that is not whole. The other one counts.
    pub(crate) torn: Option<PathBuf>,
}

/// Looks how far the store of `data_dir` holds the journal. Nothing else of it is read.
///
/// Errors: what a start would refuse it for.
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

/// The file of the store, if it is there.
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
