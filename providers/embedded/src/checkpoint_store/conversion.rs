//! The conversion from format 1 to format 2: the blocks of the checkpoint store get checksums.
//!
//! The store of format 1 is a file as redb wrote it. The conversion first verifies all of redb's
//! own checksums, which is the last chance to detect earlier damage. It then copies everything to a
//! new store beside the old one. The new store takes the name once it is durable. A crash before
//! that leaves the old store, and a crash after it the new one. Only then does the `format` record
//! say 2. While it says 1, a start recognises either store by its content. If the disk has no room
//! for both, nothing changes.

use std::{io, sync::Arc};

use redb::{Database, ReadableDatabase, StorageBackend, TableDefinition, TableError};

use super::{
    CACHE_BYTES_ONCE, CheckpointStore, EXPIRIES, META, RECORDS, StoreError, blocks, boxed,
    database_in,
};
use crate::{error::OpenError, storage::StorageFile};

impl CheckpointStore {
    /// Converts a store of format 1. Leaves other stores alone.
    pub(super) fn convert(&self) -> Result<(), OpenError> {
        let opened = self
            .storage
            .open(&self.path)
            .and_then(|file| Ok((blocks::is_plain(&*file)?, file)));
        let (is_plain, file) =
            opened.map_err(OpenError::io(format!("read {}", self.path.display())))?;
        if !is_plain {
            return Ok(());
        }
        let converted = database_in(Plain { file }, CACHE_BYTES_ONCE).and_then(|mut plain| {
            plain.check_integrity().map_err(boxed)?;
            self.replace(|database| copy(&plain, database))
        });
        converted.map_err(OpenError::checkpoint(&self.path))?;
        tracing::info!(file = %self.path.display(), "the checkpoint store now has checksums");
        Ok(())
    }
}

/// Copies all tables, in one durable transaction.
fn copy(from: &Database, to: &Database) -> Result<(), StoreError> {
    let read = from.begin_read().map_err(boxed)?;
    let write = to.begin_write().map_err(boxed)?;
    copy_table(&read, &write, RECORDS)?;
    copy_table(&read, &write, EXPIRIES)?;
    copy_table(&read, &write, META)?;
    write.commit().map_err(boxed)
}

fn copy_table<K: redb::Key, V: redb::Value>(
    read: &redb::ReadTransaction,
    write: &redb::WriteTransaction,
    definition: TableDefinition<'static, K, V>,
) -> Result<(), StoreError> {
    use redb::ReadableTable as _;
    let from = match read.open_table(definition) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(boxed(error)),
    };
    let mut to = write.open_table(definition).map_err(boxed)?;
    for entry in from.iter().map_err(boxed)? {
        let (key, value) = entry.map_err(boxed)?;
        to.insert(key.value(), value.value()).map_err(boxed)?;
    }
    Ok(())
}

/// A file as redb wrote it.
#[derive(Debug)]
struct Plain {
    file: Arc<dyn StorageFile>,
}

impl StorageBackend for Plain {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.file.len()? {
            self.file.allocate(len)
        } else {
            self.file.set_len(len)
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(data, offset)
    }
}
