//! What files take of a disk that can be filled: each block that was allocated or written. What a file was only extended
//! by is a hole, and takes nothing until it is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    path::{Path, PathBuf},
};

const BLOCK_BYTES: u64 = 4096;

/// A file, whatever it is called by now.
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
    /// The file at `path`; one that was not known takes its `length`.
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

    /// What all files take together.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks
            .values()
            .map(|blocks| blocks.len() as u64 * BLOCK_BYTES)
            .sum()
    }

    /// What the files of one folder take.
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

    /// Has `file` take the bytes of `range`, of a disk of `capacity` bytes in all; zero: of one that is never full.
    pub(super) fn take(
        &mut self,
        file: FileId,
        range: Range<u64>,
        capacity: u64,
    ) -> io::Result<()> {
        let in_all = self.bytes();
        // One that was removed takes nothing any more.
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

    /// `file` has `length` bytes now: what it had behind them is given back.
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
