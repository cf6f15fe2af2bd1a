//! The contents of files, as sparse blocks.
//!
//! An absent block is zeros, and a short one ends in zeros. Bytes after the length are zeros or
//! absent, so a file that grows shows none of its former contents.

use std::{collections::BTreeSet, ops::Range};

use bytes::{Bytes, BytesMut};
use transactions::serializable::model::{Patch, Slot};

use super::{Steps, Transaction};
use crate::{
    broken::Broken,
    error::{Errno, Result},
    inode::{self, Field},
    model::{Allocation, Ino, Kind, Privileges, Seek},
};

/// The longest file, in bytes: offsets are signed.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The most bytes that one call reads. A read of more returns fewer.
pub const READ_BYTES_MAX: u64 = 1 << 20;
/// The most blocks that one call deletes. Of a longer range, only the blocks that exist count.
const BLOCKS_DELETED_MAX: u64 = 65_536;
/// How many blocks of a long range one step deletes.
const STEP_BLOCKS: u64 = 1_024;
/// So many blocks in a row tell that those after them are likely to exist too.
const ROW_BLOCKS: usize = 64;

impl Transaction {
    /// Up to `count` bytes from `offset` on, at most [`READ_BYTES_MAX`]; fewer at the end of the
    /// file. Errors: `EISDIR`, `EINVAL` for a symbolic link.
    pub async fn read(&mut self, ino: Ino, offset: u64, count: u64) -> Result<Bytes> {
        let (size, block_bytes) = (inode::field(ino, Field::Size), self.overlay.block_bytes());
        let count = count.min(READ_BYTES_MAX);
        let (first, end) = (offset / block_bytes, offset.saturating_add(count));
        let numbers = first..end.div_ceil(block_bytes);
        let mut keys: Vec<_> = numbers.map(|number| inode::block(ino, number)).collect();
        let fields = [inode::field(ino, Field::Existence), size.clone()];
        let all: Vec<_> = fields.iter().chain(&keys).cloned().collect();
        self.overlay.fetch(&all).await?;
        self.file(ino).await?;
        self.settle_append(ino).await?;
        let count = self.overlay.clamp(size, offset, count).await?;
        let blocks = (offset.saturating_add(count)).div_ceil(block_bytes) - first;
        keys.truncate(if count == 0 { 0 } else { blocks as usize });
        let blocks = self.overlay.get_all(&keys).await?;
        let mut data = BytesMut::zeroed(count as usize);
        for (number, block) in (first..).zip(blocks) {
            let Some(block) = block else { continue };
            // The part of the block that was asked for, in positions of the file.
            let start = number * block_bytes;
            let from = start.max(offset);
            let until = (start + block.len() as u64).min(offset + count);
            if from < until {
                let part = &block[(from - start) as usize..(until - start) as usize];
                data[(from - offset) as usize..(until - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(data.freeze())
    }

    /// Reads the length, and blocks that the caller knows as of `since`, unless one of them was written
    /// since then. Whether it does. Errors: `ENOENT`.
    pub async fn reread(&mut self, ino: Ino, since: Slot, blocks: &BTreeSet<u64>) -> Result<bool> {
        self.file(ino).await?;
        if self.slot().is_none_or(|at| at < since) {
            return Ok(false);
        }
        self.overlay.number(inode::field(ino, Field::Size)).await?;
        let keys = blocks.iter().map(|number| inode::block(ino, *number));
        let keys: Vec<_> = keys.collect();
        if self.context.mutant.breaks(Broken::RereadsNothing) {
            return Ok(true);
        }
        self.overlay.depend_on(&keys, since).await
    }

    /// Fetches the blocks of a range, for the cache of the volume.
    pub(crate) async fn read_ahead(&mut self, ino: Ino, range: Range<u64>) -> Result<()> {
        let block_bytes = self.overlay.block_bytes();
        let numbers = range.start / block_bytes..range.end.div_ceil(block_bytes);
        let keys: Vec<_> = numbers.map(|number| inode::block(ino, number)).collect();
        self.overlay.fetch(&keys).await
    }

    /// Writes `data` at `offset`, and lengthens the file if it ends before. It does not depend on
    /// the contents or the length. Errors: `EISDIR`, `EINVAL` for a symbolic link, `EFBIG`
    /// also for more than 1 GiB in one transaction.
    pub async fn write(
        &mut self,
        ino: Ino,
        offset: u64,
        privileges: Privileges,
        data: &Bytes,
    ) -> Result<()> {
        if !self.context.mutant.breaks(Broken::WritesWithoutInode) {
            self.file(ino).await?;
        }
        if data.is_empty() {
            return Ok(());
        }
        let end = end_of(offset, data.len() as u64)?;
        self.overlay.count_data(data)?;
        self.settle_append(ino).await?;
        self.clear_privileges(ino, privileges).await?;
        self.put_data(ino, offset, data);
        self.overlay.raise(inode::field(ino, Field::Size), end);
        self.touch(ino, &[Field::Mtime, Field::Ctime]);
        Ok(())
    }

    /// Writes `data` at the end of the file as it is at the commit. The transaction does not depend
    /// on the position unless a later call asks for it. Errors: as [`write`](Self::write).
    pub async fn append(&mut self, ino: Ino, privileges: Privileges, data: &Bytes) -> Result<()> {
        self.file(ino).await?;
        if data.is_empty() {
            return Ok(());
        }
        let length = inode::field(ino, Field::Size);
        if self.overlay.is_exact(&length) {
            let offset = self.overlay.number(length).await?;
            return self.write(ino, offset, privileges, data).await;
        }
        self.overlay.count_data(data)?;
        self.clear_privileges(ino, privileges).await?;
        self.overlay.append(length, inode::blocks(ino), data);
        self.touch(ino, &[Field::Mtime, Field::Ctime]);
        Ok(())
    }

    /// Copies up to `count` bytes between files, at most [`READ_BYTES_MAX`], and returns how many;
    /// fewer at the end of the source. Holes become zeros. Errors: as [`read`](Self::read) and
    /// [`write`](Self::write), and `EINVAL` for ranges of one file that overlap.
    pub async fn copy(
        &mut self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        count: u64,
        privileges: Privileges,
    ) -> Result<u64> {
        if from == to && from_offset.abs_diff(to_offset) < count {
            return Err(Errno::EINVAL);
        }
        let data = self.read(from, from_offset, count).await?;
        self.write(to, to_offset, privileges, &data).await?;
        Ok(data.len() as u64)
    }

    /// Sets the length. Errors: `EISDIR`, `EINVAL` for a symbolic link, `EFBIG` also if more than
    /// 65,536 blocks would go.
    pub async fn truncate(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.prefetch(ino, &[Field::Existence, Field::Size]).await?;
        self.file(ino).await?;
        end_of(size, 0)?;
        self.settle_append(ino).await?;
        let key = inode::field(ino, Field::Size);
        let before = self.overlay.number(key.clone()).await?;
        if size < before {
            let block_bytes = self.overlay.block_bytes();
            self.clear(ino, size, before.next_multiple_of(block_bytes))
                .await?;
        }
        self.overlay.put_number(key, size);
        self.touch(ino, &[Field::Mtime, Field::Ctime]);
        Ok(())
    }

    /// Allocates, clears or punches `count` bytes from `offset` on. Space is never reserved, so a
    /// later write may still meet `ENOSPC`. Errors: `EINVAL` for no bytes, `EISDIR`, `EFBIG` also if
    /// more than 65,536 blocks would go.
    pub async fn fallocate(
        &mut self,
        ino: Ino,
        allocation: Allocation,
        offset: u64,
        count: u64,
    ) -> Result<()> {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        let end = end_of(offset, count)?;
        self.file(ino).await?;
        self.settle_append(ino).await?;
        if matches!(allocation, Allocation::PunchHole | Allocation::ZeroRange) {
            self.clear(ino, offset, end).await?;
        }
        if matches!(allocation, Allocation::Extend | Allocation::ZeroRange) {
            self.overlay.raise(inode::field(ino, Field::Size), end);
        }
        if allocation != Allocation::KeepSize {
            self.touch(ino, &[Field::Mtime, Field::Ctime]);
        }
        Ok(())
    }

    /// The first offset at or after `offset` that has data, or is in a hole; the end of the file is
    /// a hole. Errors: `ENXIO` at or after the end, or if no data follow; `EISDIR`, `EINVAL`.
    pub async fn seek(&mut self, ino: Ino, seek: Seek, offset: u64) -> Result<u64> {
        self.file(ino).await?;
        self.settle_append(ino).await?;
        let size = self.overlay.number(inode::field(ino, Field::Size)).await?;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let block_bytes = self.overlay.block_bytes();
        let mut expected = offset / block_bytes;
        let mut rest = inode::block_range(ino, expected, Some(size.div_ceil(block_bytes)));
        loop {
            let keys_max = if seek == Seek::Data { 1 } else { 64 };
            let (found, next) = self.overlay.scan(&rest, keys_max).await?;
            for entry in found {
                let number = inode::number_of(&entry.name)?;
                if seek == Seek::Data {
                    return Ok(offset.max(number * block_bytes));
                }
                if number != expected {
                    return Ok(offset.max(expected * block_bytes));
                }
                expected += 1;
            }
            match next {
                Some(next) => rest = rest.starting_at(next).map_err(|_| Errno::EIO)?,
                None if seek == Seek::Data => return Err(Errno::ENXIO),
                None => return Ok(size.min(offset.max(expected * block_bytes))),
            }
        }
    }

    /// Gives data that wait for their position the one of the snapshot, which then is a read.
    pub(super) async fn settle_append(&mut self, ino: Ino) -> Result<()> {
        let length = inode::field(ino, Field::Size);
        let Some(data) = self.overlay.take_append(&length) else {
            return Ok(());
        };
        let offset = self.overlay.number(length.clone()).await?;
        let end = end_of(offset, data.len() as u64)?;
        self.put_data(ino, offset, &data);
        self.overlay.raise(length, end);
        Ok(())
    }

    /// Checks that the inode is a regular file.
    async fn file(&mut self, ino: Ino) -> Result<()> {
        match self.kind(ino).await? {
            Kind::File => Ok(()),
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    async fn clear_privileges(&mut self, ino: Ino, privileges: Privileges) -> Result<()> {
        if privileges == Privileges::Clear {
            let access = self.access(ino).await?;
            if access != access.without_privileges() {
                self.put_access(ino, access.without_privileges());
            }
        }
        Ok(())
    }

    fn put_data(&mut self, ino: Ino, offset: u64, data: &Bytes) {
        let block_bytes = self.overlay.block_bytes();
        let mut done = 0;
        while done < data.len() {
            let position = offset + done as u64;
            let start = position % block_bytes;
            let count = (block_bytes - start).min((data.len() - done) as u64) as usize;
            let key = inode::block(ino, position / block_bytes);
            let part = data.slice(done..done + count);
            if count as u64 == block_bytes {
                self.overlay.put(key, part);
            } else {
                self.overlay.patch(key, start as u32, Patch::Bytes(part));
            }
            done += count;
        }
    }

    /// Makes the bytes from `from` to `until` zeros: it deletes whole blocks, without looking if
    /// they are few, and patches the edges. Errors: `EFBIG` for more than [`BLOCKS_DELETED_MAX`].
    async fn clear(&mut self, ino: Ino, from: u64, until: u64) -> Result<()> {
        let block_bytes = self.overlay.block_bytes();
        let (first, last) = (from.div_ceil(block_bytes), until / block_bytes);
        if first > last {
            self.clear_within(ino, from, until);
            return Ok(());
        }
        self.clear_within(ino, from, first * block_bytes);
        self.clear_within(ino, last * block_bytes, until);
        if last - first <= BLOCKS_DELETED_MAX {
            for number in first..last {
                self.overlay.delete(inode::block(ino, number));
            }
            return Ok(());
        }
        let (mut rest, mut count) = (Some(inode::block_range(ino, first, Some(last))), 0);
        let count_max = match self.steps {
            Steps::None => BLOCKS_DELETED_MAX as usize,
            Steps::Ahead => ROW_BLOCKS,
        };
        while let Some(range) = rest {
            let keys_max = count_max.min(1_000);
            let (found, next) = self.overlay.scan(&range, keys_max).await?;
            count += found.len();
            if count > count_max || count == count_max && next.is_some() {
                self.too_long = Some((ino, first, last));
                return Err(Errno::EFBIG);
            }
            for entry in found {
                let number = inode::number_of(&entry.name)?;
                self.overlay.delete(inode::block(ino, number));
            }
            let following = next.map(|next| range.starting_at(next));
            rest = following.transpose().map_err(|_| Errno::EIO)?;
        }
        Ok(())
    }

    /// Deletes the first blocks of a range that is too long for one transaction. Returns the number
    /// at which to go on, or `None` if the range has none.
    pub(crate) async fn clear_step(
        &mut self,
        ino: Ino,
        first: u64,
        end: Option<u64>,
    ) -> Result<Option<u64>> {
        let range = inode::block_range(ino, first, end);
        let (found, _) = self.overlay.scan(&range, ROW_BLOCKS).await?;
        let numbers = found.iter().map(|entry| inode::number_of(&entry.name));
        let numbers: Vec<u64> = numbers.collect::<Result<_>>()?;
        let (Some(&least), Some(&most)) = (numbers.first(), numbers.last()) else {
            return Ok(None);
        };
        let is_row = most - least == numbers.len() as u64 - 1;
        if is_row && numbers.len() >= ROW_BLOCKS {
            // It does not read the rest: a block that does not exist is deleted without harm.
            let next = least.saturating_add(STEP_BLOCKS);
            let next = next.min(end.unwrap_or(u64::MAX));
            for number in least..next {
                self.overlay.delete(inode::block(ino, number));
            }
            return Ok(Some(next));
        }
        for number in numbers {
            self.overlay.delete(inode::block(ino, number));
        }
        Ok(Some(most.saturating_add(1)))
    }

    /// Clears bytes of one block.
    fn clear_within(&mut self, ino: Ino, from: u64, until: u64) {
        let block_bytes = self.overlay.block_bytes();
        if from < until {
            let key = inode::block(ino, from / block_bytes);
            let zeros = Patch::Zeros((until - from) as u32);
            self.overlay.patch(key, (from % block_bytes) as u32, zeros);
        }
    }
}

/// The end of a range. Errors: `EFBIG` beyond the longest file.
fn end_of(offset: u64, count: u64) -> Result<u64> {
    let end = offset.checked_add(count);
    end.filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)
}
