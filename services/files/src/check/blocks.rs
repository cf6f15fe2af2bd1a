//! The blocks of files.

use bytes::Bytes;
use transactions::serializable::model::Entry;

use super::{
    Check,
    reader::Part,
    report::Problem,
    tree::{Directories, Window, path_in},
};
use crate::{
    error::Result,
    inode,
    model::{Ino, Kind},
};

/// The most problems of a file of which each names its block. After them, damaged ranges are named
/// by their first blocks.
const PROBLEMS_MAX: usize = 1_000;

impl Check<'_> {
    /// Reads all blocks of the files of a window.
    pub(super) async fn blocks(
        &mut self,
        window: &Window,
        directories: &Directories,
    ) -> Result<()> {
        for (ino, inode) in &window.inodes {
            let problems = self.blocks_of(*ino, inode.kind, inode.size).await?;
            for problem in problems {
                let name = inode.name.as_ref();
                let path = name.map(|(parent, name)| path_in(directories, *parent, name));
                self.report.add(*ino, path, Bytes::new(), problem);
            }
        }
        Ok(())
    }

    async fn blocks_of(&mut self, ino: Ino, kind: Kind, size: u64) -> Result<Vec<Problem>> {
        let mut problems = Vec::new();
        if kind != Kind::File {
            return Ok(problems);
        }
        // The blocks that the file may have. After them a damaged range is not searched, as a whole
        // page of the store may be damaged, which spans any number of absent blocks.
        let blocks = size.div_ceil(self.reader.block_bytes());
        // Ranges of blocks that are to be read, the next one last. One with a damaged block is
        // halved until it is that block.
        let mut ranges = vec![(0, u64::MAX)];
        while let Some((first, end)) = ranges.pop() {
            let range = inode::block_range(ino, first, Some(end));
            match self.reader.scan(&range).await? {
                Part::Page(entries, next) => {
                    for entry in &entries {
                        problems.extend(self.block(entry, size)?);
                    }
                    let bytes: usize = entries.iter().map(|entry| entry.value.len()).sum();
                    self.advance(|counts| {
                        counts.blocks += entries.len() as u64;
                        counts.bytes += bytes as u64;
                    });
                    if let Some(next) = next {
                        ranges.push((inode::number_of(&next)?, end));
                    }
                }
                Part::Damaged
                    if end - first <= 1 || first >= blocks || problems.len() >= PROBLEMS_MAX =>
                {
                    problems.push(Problem::DamagedBlock { block: first });
                }
                Part::Damaged => {
                    let middle = if end > blocks {
                        blocks
                    } else {
                        first + (end - first) / 2
                    };
                    ranges.push((middle, end));
                    ranges.push((first, middle));
                }
            }
        }
        Ok(problems)
    }

    fn block(&self, entry: &Entry, size: u64) -> Result<Option<Problem>> {
        let block_bytes = self.reader.block_bytes();
        let block = inode::number_of(&entry.name)?;
        if entry.value.len() as u64 > block_bytes {
            return Ok(Some(Problem::LongBlock { block }));
        }
        // Zeros after the end are allowed: a punched hole leaves some.
        let within = size.saturating_sub(block.saturating_mul(block_bytes));
        let rest = entry.value.iter().skip(within.min(block_bytes) as usize);
        let is_data = rest.into_iter().any(|byte| *byte != 0);
        Ok(is_data.then_some(Problem::DataBeyondEnd { block, size }))
    }
}
