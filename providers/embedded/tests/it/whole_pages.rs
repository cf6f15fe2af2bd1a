//! A file that takes only what a file system takes around the page cache.

use std::{io, sync::Arc};

use super::StorageFile;

/// The page of the disk, in bytes.
const PAGE: usize = 4096;

/// A file that takes only whole pages from aligned memory, or nothing.
#[derive(Debug)]
pub(crate) struct WholePages {
    pub(crate) file: Arc<dyn StorageFile>,
    /// The most pages that it takes at once.
    pub(crate) pages_max: usize,
}

impl StorageFile for WholePages {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let lengths = [offset as usize, data.len(), data.as_ptr().addr()];
        assert_eq!(lengths.map(|length| length % PAGE), [0; 3], "whole pages");
        if data.len() > self.pages_max * PAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_at(data, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.file.allocate(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
