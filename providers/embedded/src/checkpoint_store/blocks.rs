//! The file of the checkpoint store as redb sees it: every block lies under a checksum of its own.
//!
//! redb checks its pages when it repairs a store or is asked to, never when it reads one: a bit that flips in
//! a page is served, hides a key or sends a lookup astray, and some of them end the process. A checksum beside
//! each record would see the first of these alone. So redb's file is kept in blocks, each with the checksum of
//! what is in it, of its number and of the store's salt; a block that does not match is an error of the read,
//! with its place in the file, before redb sees a byte of it.
//!
//! ```text
//! head (twice) | unused | block 1 | block 2 | ...
//! head:  magic u64 | sequence u64 | crc u32 | zero u32 | block 0
//! block: 4096 bytes | crc u32 | mark u32
//! ```
//!
//! Block 0 is redb's own head, the only one that is written in place. It is kept in memory and written by a
//! sync alone, behind everything else: to the first copy, synced, then to the second, which the next sync
//! covers. So one of the two is whole at any time, and a copy that is damaged has another one beside it.
//!
//! Invariants
//! - A block is written only while no committed page lies in it, as redb copies what it changes: a write that
//!   a crash tore is in no block that anybody reads.
//! - Of two whole heads the one with the higher number counts; they differ only between two syncs.
//!
//! Not survived: a disk that tears one copy in a sync that fails and, with the power, the other in the sync after that.
//!
//! Not noticed here: a whole block as it was earlier, since a disk forgot a write that it had acknowledged. redb's checksums from page to page,
//! which [`CheckpointStore::verify`](crate::checkpoint_store::CheckpointStore::verify) follows, do.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::storage::{StorageFile, is_about_room};

/// What redb reads and writes at once, at least: its page.
const BLOCK_BYTES: usize = 4096;
/// What a block takes in the file.
pub(crate) const SLOT_BYTES: u64 = BLOCK_BYTES as u64 + 8;
/// Behind every block; a block of zeros is none.
const MARK: u32 = 0x4b4c_424c; // "LBLK"

const MAGIC: u64 = 0x3130_4b42_534c_464c; // "LFLSBK01"
const HEAD_BYTES: usize = 24 + BLOCK_BYTES;
/// Where the copies of the head start: no sector holds parts of both.
const HEADS: [u64; 2] = [0, 8192];
/// Where block 1 starts.
const BLOCKS_START: u64 = 16384;

/// How a file of redb's own starts.
const PLAIN: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Stored bytes that are not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is damaged at byte {}",
            self.file.display(),
            self.offset
        )
    }
}

impl std::error::Error for Damage {}

impl Damage {
    /// The damage that an error of redb's is about, if it is about one.
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

/// Whether `file` is one of redb's own, without checksums of ours, as format 1 has it.
pub(crate) fn is_plain(file: &dyn StorageFile) -> io::Result<bool> {
    let mut start = [0; PLAIN.len()];
    if file.len()? >= PLAIN.len() as u64 {
        file.read_at(&mut start, 0)?;
    }
    Ok(start == PLAIN)
}

/// What becomes of what redb writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// It goes to the file.
    Kept,
    /// It is held in memory as long as the file is open: looking changes nothing.
    Forgotten,
}

/// Whether blocks are compared with their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checking {
    /// They are.
    Done,
    /// They are not: a test's broken variant.
    Skipped,
}

/// The file in blocks. The directory's lock keeps others out, so it needs none of its own.
#[derive(Debug)]
pub(crate) struct Blocks {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    salt: u32,
    checking: Checking,
    head: Mutex<Head>,
    /// One of its two heads was not whole when it was opened.
    had_torn_head: bool,
    /// What is forgotten later, if anything is, and how long the file would be.
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
    /// Changed since the last sync.
    is_changed: bool,
}

impl Blocks {
    /// A new file, over whatever `file` held.
    pub(crate) fn create(file: Arc<dyn StorageFile>, path: &Path, salt: u32) -> io::Result<Self> {
        file.set_len(0)?;
        let head = Head {
            sequence: 0,
            block: vec![0; BLOCK_BYTES],
            is_changed: false,
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            salt,
            checking: Checking::Done,
            head: Mutex::new(head),
            had_torn_head: false,
            forgotten: None,
        })
    }

    /// The file as it is. Both heads are written again, the worse one first: an earlier start may have died, or failed to
    /// sync, before they were durable.
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
            tracing::warn!(%file, "one of its two heads is not whole, torn by a crash or damaged: the other one counts");
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
            file,
            path: path.to_owned(),
            salt,
            checking: Checking::Done,
            head: Mutex::new(head),
            had_torn_head,
            forgotten,
        })
    }

    /// Whether one of its two heads was not whole when it was opened: torn by a crash, or damaged.
    pub(crate) fn had_torn_head(&self) -> bool {
        self.had_torn_head
    }

    pub(crate) fn checking(self, checking: Checking) -> Self {
        Self { checking, ..self }
    }

    /// The blocks from number `first` on that fill `out`, checked.
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
                // A file system may keep what it could give.
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

    /// What stands behind block `number` if it holds `block`.
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

/// Where block `number` lies; block 0 is the head.
fn slot(number: u64) -> u64 {
    BLOCKS_START + (number - 1) * SLOT_BYTES
}

/// How long redb's file is in a file of `file_bytes`.
fn blocks_bytes(file_bytes: u64) -> u64 {
    file_bytes
        .checked_sub(BLOCKS_START)
        .map_or(0, |bytes| (1 + bytes / SLOT_BYTES) * BLOCK_BYTES as u64)
}

/// The number of the block at `offset`; redb reads and writes whole ones, its head apart.
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

    /// Writes both copies, in this order: the first one is synced before the second is touched.
    fn write(&self, file: &dyn StorageFile, order: [u64; 2], salt: u32) -> io::Result<()> {
        let bytes = self.encode(salt);
        file.write_at(&bytes, order[0])?;
        file.sync_data()?;
        file.write_at(&bytes, order[1])
    }
}

/// The checksum of a head's bytes, the checksum's own place apart.
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

    /// Growing takes the room at once, where there is as much: redb doubles its file, and on a nearly full disk a part of
    /// that may be all it needs. It then meets the full disk when it writes, and the checkpoint fails there.
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
