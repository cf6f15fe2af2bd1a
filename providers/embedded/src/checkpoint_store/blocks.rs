//! The file of the checkpoint store below redb: each block has its own checksum.
//!
//! redb verifies its pages only in a repair or on request, never in a read. A flipped bit in a page
//! may reach a caller, hide a key, misdirect a lookup, or end the process. A checksum per record
//! would detect only the first of these. We therefore keep redb's file in blocks. Each block has a
//! checksum of its bytes, its number and the store's salt. A block that does not match fails the
//! read, with its offset in the file, before redb sees any byte of it.
//!
//! ```text
//! head (twice) | unused | block 1 | block 2 | ...
//! head:  magic u64 | sequence u64 | crc u32 | zero u32 | block 0
//! block: 4096 bytes | crc u32 | mark u32
//! ```
//!
//! Block 0 is redb's own head, and the only block written in place. It stays in memory, and only a
//! sync writes it, after everything else: first to one copy, which is synced, then to the second,
//! which the next sync covers. At any time one of the two copies is whole, so a damaged copy has an
//! intact one beside it.
//!
//! Invariants
//! - A block is written only while no committed page lies in it, because redb copies the pages it
//!   changes. A write torn by a crash is therefore in no block that a reader needs.
//! - Of two whole heads the one with the higher number is used. They differ only between two syncs.
//!
//! Not survived: a disk that tears one copy in a failed sync and, at a power loss, the other copy
//! in the next sync.
//!
//! Not detected here: an older but whole block, left when the disk lost a write that it had
//! acknowledged. [`verify`](super::verify) detects it, because redb's checksums lead from page to
//! page.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::storage::{StorageFile, is_about_room};

/// The unit of redb's reads and writes: its page.
const BLOCK_BYTES: usize = 4096;
/// The bytes of a block in the file, with its trailer.
pub(crate) const SLOT_BYTES: u64 = BLOCK_BYTES as u64 + 8;
/// The mark after every block. A block of zeros has none.
const MARK: u32 = 0x4b4c_424c; // "LBLK"

const MAGIC: u64 = 0x3130_4b42_534c_464c; // "LFLSBK01"
const HEAD_BYTES: usize = 24 + BLOCK_BYTES;
/// Where the copies of the head start. No sector holds parts of both.
const HEADS: [u64; 2] = [0, 8192];
/// Where block 1 starts.
const BLOCKS_START: u64 = 16384;

/// Stored bytes that differ from the written ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at byte {offset}", file.display())]
pub(crate) struct Damage {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
}

impl Damage {
    /// The damage that caused an error of redb's, if damage did.
    pub(crate) fn in_error(error: &redb::Error) -> Option<&Self> {
        match error {
            redb::Error::Io(error) => error.get_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

impl From<Damage> for io::Error {
    fn from(damage: Damage) -> Self {
        Self::new(io::ErrorKind::InvalidData, damage)
    }
}

/// The fate of redb's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// The file takes them.
    Kept,
    /// Memory holds them until the file is closed, so that an inspection changes nothing.
    Forgotten,
}

/// Whether reads compare blocks with their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checking {
    /// They do.
    Done,
    /// They do not: a broken variant for tests.
    Skipped,
}

/// The file in blocks. The directory's lock keeps other processes out, so the file has no lock of
/// its own.
#[derive(Debug)]
pub(crate) struct Blocks {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    salt: u32,
    checking: Checking,
    head: Mutex<Head>,
    /// Whether one of the two heads was not whole at open.
    had_torn_head: bool,
    /// The writes to forget, and the length of the file that would result; none if writes are kept.
    forgotten: Option<Mutex<Forgotten>>,
}

#[derive(Debug, Default)]
struct Forgotten {
    blocks: BTreeMap<u64, Vec<u8>>,
    file_bytes: u64,
}

/// Block 0.
#[derive(Debug)]
struct Head {
    sequence: u64,
    block: Vec<u8>,
    /// Whether it changed since the last sync.
    is_changed: bool,
}

impl Blocks {
    /// A new file in place of the content of `file`.
    pub(crate) fn create(file: Arc<dyn StorageFile>, path: &Path, salt: u32) -> io::Result<Self> {
        file.set_len(0)?;
        let head = Head {
            sequence: 0,
            block: vec![0; BLOCK_BYTES],
            is_changed: false,
        };
        Ok(Self::new(file, path, salt, head))
    }

    fn new(file: Arc<dyn StorageFile>, path: &Path, salt: u32, head: Head) -> Self {
        Self {
            file,
            path: path.to_owned(),
            salt,
            checking: Checking::Done,
            head: Mutex::new(head),
            had_torn_head: false,
            forgotten: None,
        }
    }

    /// Opens an existing file. Writes both heads again, the worse one first, because an earlier
    /// start may have died or failed to sync before they were durable.
    pub(crate) fn open(
        file: Arc<dyn StorageFile>,
        path: &Path,
        salt: u32,
        writes: Writes,
    ) -> io::Result<Self> {
        let copies = [
            Head::read(&*file, HEADS[0], salt)?,
            Head::read(&*file, HEADS[1], salt)?,
        ];
        let [first, second] = copies
            .each_ref()
            .map(|copy| copy.as_ref().map(|head| head.sequence));
        let Some(head) = copies
            .into_iter()
            .flatten()
            .max_by_key(|head| head.sequence)
        else {
            return Err(Damage {
                file: path.to_owned(),
                offset: HEADS[0],
            }
            .into());
        };
        let had_torn_head = first.is_none() || second.is_none();
        if had_torn_head {
            let file = path.display();
            tracing::warn!(%file, "a crash or damage tore one of the two heads of the checkpoint store; the other one is used");
        }
        if writes == Writes::Kept {
            let worse_first = if first < second {
                HEADS
            } else {
                [HEADS[1], HEADS[0]]
            };
            head.write(&*file, worse_first, salt)?;
        }
        let forgotten = match writes {
            Writes::Kept => None,
            Writes::Forgotten => Some(Mutex::new(Forgotten {
                blocks: BTreeMap::new(),
                file_bytes: file.len()?,
            })),
        };
        Ok(Self {
            had_torn_head,
            forgotten,
            ..Self::new(file, path, salt, head)
        })
    }

    /// Whether a crash or damage left one of the two heads not whole at open.
    pub(crate) fn had_torn_head(&self) -> bool {
        self.had_torn_head
    }

    pub(crate) fn checking(self, checking: Checking) -> Self {
        Self { checking, ..self }
    }

    /// Fills `out` with the blocks from number `first` on, after a check of each.
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let count = out.len() / BLOCK_BYTES;
        let mut slots = vec![0; count * SLOT_BYTES as usize];
        self.file.read_at(&mut slots, slot(first))?;
        let slots = slots.chunks_exact(SLOT_BYTES as usize);
        for ((number, slot_bytes), block) in
            (first..).zip(slots).zip(out.chunks_exact_mut(BLOCK_BYTES))
        {
            let (bytes, trailer) = slot_bytes.split_at(BLOCK_BYTES);
            if self.checking == Checking::Done && trailer != self.trailer(number, bytes) {
                return Err(Damage {
                    file: self.path.clone(),
                    offset: slot(number),
                }
                .into());
            }
            block.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn grow(&self, file_bytes: u64) -> io::Result<()> {
        let earlier = self.file.len()?;
        match self.file.allocate(file_bytes) {
            Err(error) if is_about_room(&error) => {
                // A file system may keep the part that it could allocate.
                self.file.set_len(earlier)?;
                self.file.set_len(file_bytes)
            }
            allocated => allocated,
        }
    }

    fn write_blocks(&self, first: u64, data: &[u8]) -> io::Result<()> {
        let mut slots = Vec::with_capacity(data.len() / BLOCK_BYTES * SLOT_BYTES as usize);
        for (number, block) in (first..).zip(data.chunks_exact(BLOCK_BYTES)) {
            slots.extend_from_slice(block);
            slots.extend_from_slice(&self.trailer(number, block));
        }
        self.file.write_at(&slots, slot(first))
    }

    /// The trailer of block `number` with the content `block`.
    fn trailer(&self, number: u64, block: &[u8]) -> [u8; 8] {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.salt);
        hasher.update(&number.to_le_bytes());
        hasher.update(block);
        let mut trailer = [0; 8];
        trailer[..4].copy_from_slice(&hasher.finalize().to_le_bytes());
        trailer[4..].copy_from_slice(&MARK.to_le_bytes());
        trailer
    }
}

/// The offset of block `number`; block 0 is the head.
fn slot(number: u64) -> u64 {
    BLOCKS_START + (number - 1) * SLOT_BYTES
}

/// The length of redb's file in a file of `file_bytes`.
fn blocks_bytes(file_bytes: u64) -> u64 {
    file_bytes
        .checked_sub(BLOCKS_START)
        .map_or(0, |bytes| (1 + bytes / SLOT_BYTES) * BLOCK_BYTES as u64)
}

/// The number of the block at `offset`. redb reads and writes whole blocks, except its head.
fn aligned(offset: u64, length: usize) -> io::Result<u64> {
    let block = BLOCK_BYTES as u64;
    if !offset.is_multiple_of(block) || !length.is_multiple_of(BLOCK_BYTES) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a part of a block",
        ));
    }
    Ok(offset / block)
}

impl Head {
    fn encode(&self, salt: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.block);
        let crc = head_checksum(&bytes, salt);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The copy at `offset`, if it is whole.
    fn read(file: &dyn StorageFile, offset: u64, salt: u32) -> io::Result<Option<Self>> {
        let mut bytes = vec![0; HEAD_BYTES];
        if file.len()? < BLOCKS_START {
            return Ok(None);
        }
        file.read_at(&mut bytes, offset)?;
        let sequence = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let head = Self {
            sequence,
            block: bytes[24..].to_vec(),
            is_changed: false,
        };
        Ok((head.encode(salt) == bytes).then_some(head))
    }

    /// Writes both copies in this order. The first is synced before the second is touched.
    fn write(&self, file: &dyn StorageFile, order: [u64; 2], salt: u32) -> io::Result<()> {
        let bytes = self.encode(salt);
        file.write_at(&bytes, order[0])?;
        file.sync_data()?;
        file.write_at(&bytes, order[1])
    }
}

/// The checksum of a head's bytes, without the checksum field.
fn head_checksum(bytes: &[u8], salt: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(&bytes[..16]);
    hasher.update(&bytes[20..]);
    hasher.finalize()
}

impl StorageBackend for Blocks {
    fn len(&self) -> io::Result<u64> {
        let file_bytes = match &self.forgotten {
            Some(forgotten) => forgotten.lock().file_bytes,
            None => self.file.len()?,
        };
        Ok(blocks_bytes(file_bytes))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() <= BLOCK_BYTES {
            out.copy_from_slice(&self.head.lock().block[..out.len()]);
            return Ok(());
        }
        let first = aligned(offset, out.len())?;
        let Some(forgotten) = &self.forgotten else {
            return self.read_blocks(first, out);
        };
        let forgotten = forgotten.lock();
        for (number, block) in (first..).zip(out.chunks_exact_mut(BLOCK_BYTES)) {
            match forgotten.blocks.get(&number) {
                Some(written) => block.copy_from_slice(written),
                None => self.read_blocks(number, block)?,
            }
        }
        Ok(())
    }

    /// Growth allocates the space at once if the disk has it. redb doubles its file, and on a
    /// nearly full disk a part of that may suffice. If it does not, a later write meets the full
    /// disk, and the checkpoint fails there.
    fn set_len(&self, length: u64) -> io::Result<()> {
        let blocks = aligned(length, 0)?;
        let file_bytes = if blocks == 0 { 0 } else { slot(blocks) };
        match &self.forgotten {
            Some(forgotten) => forgotten.lock().file_bytes = file_bytes,
            None if file_bytes > self.file.len()? => self.grow(file_bytes)?,
            None => self.file.set_len(file_bytes)?,
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.forgotten.is_some() {
            return Ok(());
        }
        self.file.sync_data()?;
        let mut head = self.head.lock();
        if head.is_changed {
            head.sequence += 1;
            head.write(&*self.file, HEADS, self.salt)?;
            head.is_changed = false;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset == 0 && data.len() <= BLOCK_BYTES {
            let mut head = self.head.lock();
            head.block[..data.len()].copy_from_slice(data);
            head.is_changed = true;
            return Ok(());
        }
        let first = aligned(offset, data.len())?;
        let Some(forgotten) = &self.forgotten else {
            return self.write_blocks(first, data);
        };
        let blocks = data.chunks_exact(BLOCK_BYTES).map(<[u8]>::to_vec);
        forgotten.lock().blocks.extend((first..).zip(blocks));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
