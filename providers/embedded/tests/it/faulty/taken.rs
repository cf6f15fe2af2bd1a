//! The space that files take on a disk that can be full: each block that was allocated or written.
//! A hole left by an extension takes nothing until it is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    path::{Path, PathBuf},
};

const BLOCK_BYTES: u64 = 4096;

/// A file, independent of its present name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64);

/// The files of a disk, and their blocks.
#[derive(Debug, Default)]
pub(super) struct Taken {
    names: BTreeMap<PathBuf, FileId>,
    blocks: BTreeMap<FileId, BTreeSet<u64>>,
    made: u64,
}

impl Taken {
    /// The file at `path`. An unknown file takes its `length`.
    pub(super) fn file(&mut self, path: &Path, length: u64) -> FileId {
        if let Some(file) = self.names.get(path) {
            return *file;
        }
        self.made += 1;
        let file = FileId(self.made);
        self.names.insert(path.to_owned(), file);
        self.blocks
            .insert(file, (0..length.div_ceil(BLOCK_BYTES)).collect());
        file
    }

    /// The bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks
            .values()
            .map(|blocks| blocks.len() as u64 * BLOCK_BYTES)
            .sum()
    }

    /// The bytes of the files in one folder.
    pub(super) fn bytes_in(&self, folder: &Path) -> u64 {
        let files = self
            .names
            .iter()
            .filter(|(path, _)| path.parent() == Some(folder));
        files.map(|(_, file)| self.bytes_of(*file)).sum()
    }

    pub(super) fn bytes_of(&self, file: FileId) -> u64 {
        self.blocks
            .get(&file)
            .map_or(0, |blocks| blocks.len() as u64 * BLOCK_BYTES)
    }

    /// Gives `file` the bytes of `range`, on a disk of `capacity` bytes; zero: unbounded.
    pub(super) fn take(
        &mut self,
        file: FileId,
        range: Range<u64>,
        capacity: u64,
    ) -> io::Result<()> {
        let in_all = self.bytes();
        // A removed file takes nothing.
        let Some(blocks) = self.blocks.get_mut(&file) else {
            return Ok(());
        };
        let wanted = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let missing: Vec<_> = wanted.filter(|block| !blocks.contains(block)).collect();
        let more = missing.len() as u64 * BLOCK_BYTES;
        if capacity > 0 && more > 0 && in_all + more > capacity {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        blocks.extend(missing);
        Ok(())
    }

    /// Cuts `file` to `length` bytes, and frees its space after that.
    pub(super) fn cut(&mut self, file: FileId, length: u64) {
        if let Some(blocks) = self.blocks.get_mut(&file) {
            blocks.split_off(&length.div_ceil(BLOCK_BYTES));
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        if let Some(file) = self.names.remove(from)
            && let Some(replaced) = self.names.insert(to.to_owned(), file)
        {
            self.blocks.remove(&replaced);
        }
    }

    pub(super) fn remove(&mut self, path: &Path) {
        if let Some(file) = self.names.remove(path) {
            self.blocks.remove(&file);
        }
    }
}
