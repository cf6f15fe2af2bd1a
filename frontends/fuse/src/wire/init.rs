//! INIT: which version and flags a connection uses, as a pure function.
//!
//! Rules of versions
//! - A kernel of a newer major version is told ours, and sends INIT again.
//! - Of two minor versions of one major version, the lower is spoken. We speak 7.31 to 7.45.
//!
//! The kernel may only be asked for flags that it offered. Without some of them a mount would lose
//! locks or data silently, so [`negotiate`] refuses a kernel that lacks them. The others only cost
//! speed.

use super::{
    TRANSFER_BYTES_MAX,
    reader::{Fault, Reader},
    writer::Writer,
};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The oldest minor version that we speak: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// The newest minor version that we speak: Linux 6.18.
pub const MINOR_MAX: u32 = 45;

/// `FUSE_ASYNC_READ`: several reads of one file at a time.
pub const ASYNC_READ: u64 = 1;
/// `FUSE_POSIX_LOCKS`: locks of fcntl(2) come to us.
pub const POSIX_LOCKS: u64 = 1 << 1;
/// `FUSE_ATOMIC_O_TRUNC`: an open with O_TRUNC is one request.
pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
/// `FUSE_BIG_WRITES`: writes of more than a page.
pub const BIG_WRITES: u64 = 1 << 5;
/// `FUSE_FLOCK_LOCKS`: locks of flock(2) come to us.
pub const FLOCK_LOCKS: u64 = 1 << 10;
/// `FUSE_AUTO_INVAL_DATA`: expired attributes are asked for before a cached page is used.
pub const AUTO_INVAL_DATA: u64 = 1 << 12;
/// `FUSE_DO_READDIRPLUS` and `FUSE_READDIRPLUS_AUTO`: lists may look entries up.
pub const READDIRPLUS: u64 = 1 << 13 | 1 << 14;
/// `FUSE_ASYNC_DIO`: direct I/O in several requests at a time.
pub const ASYNC_DIO: u64 = 1 << 15;
/// `FUSE_WRITEBACK_CACHE`: the kernel keeps writes for a while, and owns lengths and times of files.
pub const WRITEBACK_CACHE: u64 = 1 << 16;
/// `FUSE_PARALLEL_DIROPS`: several calls in one directory at a time.
pub const PARALLEL_DIROPS: u64 = 1 << 18;
/// `FUSE_MAX_PAGES`: requests of more than 128 KiB.
pub const MAX_PAGES: u64 = 1 << 22;
/// `FUSE_HANDLE_KILLPRIV_V2`: requests say when set-user-ID bits go.
pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
/// `FUSE_INIT_EXT`: INIT has 64 flags.
pub const INIT_EXT: u64 = 1 << 30;
/// `FUSE_HAS_EXPIRE_ONLY`: a notification may expire a name.
pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
/// `FUSE_DIRECT_IO_ALLOW_MMAP`: files of direct I/O may be mapped shared.
pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;

/// Flags without which a mount would be wrong.
pub const REQUIRED: u64 = POSIX_LOCKS | FLOCK_LOCKS | ATOMIC_O_TRUNC;
/// Flags that are taken where the kernel offers them.
pub const WANTED: u64 = ASYNC_READ
    | BIG_WRITES
    | READDIRPLUS
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | MAX_PAGES
    | HANDLE_KILLPRIV_V2
    | INIT_EXT
    | HAS_EXPIRE_ONLY
    | DIRECT_IO_ALLOW_MMAP;

/// Bytes of a page on most machines, for [`InitReply::max_pages`].
const PAGE_BYTES: u32 = 4096;
/// Bytes of the largest request without [`MAX_PAGES`].
const WRITE_BYTES_WITHOUT_MAX_PAGES: u32 = 32 * PAGE_BYTES;
/// Requests of the kernel's own (readahead, writeback) that may be under way.
const BACKGROUND_MAX: u16 = 64;
/// The number of them from which the kernel slows its writers.
const CONGESTION_THRESHOLD: u16 = 48;

/// The version, readahead and flags that the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// Bytes that the kernel would read ahead.
    pub max_readahead: u32,
    /// The flags, [`INIT_EXT`] included.
    pub flags: u64,
}

impl Init {
    /// Any later part of the message is ignored: a newer kernel may say more than we know.
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let (major, minor) = (from.u32()?, from.u32()?);
        let mut init = Self {
            major,
            minor,
            max_readahead: 0,
            flags: 0,
        };
        if major == MAJOR && minor >= MINOR_MIN {
            init.max_readahead = from.u32()?;
            init.flags = from.u32()?.into();
            if init.flags & INIT_EXT != 0 {
                init.flags |= u64::from(from.u32()?) << 32;
            }
        }
        from.rest();
        Ok(init)
    }
}

/// The parameters that a mount asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes of the largest write, from 4 KiB to [`TRANSFER_BYTES_MAX`].
    pub max_write: u32,
    /// Flags beyond [`REQUIRED`] and [`WANTED`], as [`AUTO_INVAL_DATA`].
    pub flags: u64,
    /// Flags of [`WANTED`] that are not asked for.
    pub declined: u64,
}

impl Default for Wishes {
    /// Writes of up to 1 MiB, no further flags.
    fn default() -> Self {
        Self {
            max_write: 1 << 20,
            flags: 0,
            declined: 0,
        }
    }
}

/// The reply to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitReply {
    /// The minor version of the connection.
    pub minor: u32,
    /// Bytes that the kernel reads ahead.
    pub max_readahead: u32,
    /// The flags of the connection.
    pub flags: u64,
    /// Bytes of the largest write.
    pub max_write: u32,
    /// Pages of the largest request.
    pub max_pages: u16,
}

impl InitReply {
    pub(super) fn write(&self, to: &mut Writer<'_>) {
        to.u32(MAJOR).u32(self.minor).u32(self.max_readahead);
        to.u32(self.flags as u32)
            .u16(BACKGROUND_MAX)
            .u16(CONGESTION_THRESHOLD);
        // Times have a granularity of 1 ns. `map_alignment` is for DAX.
        to.u32(self.max_write).u32(1).u16(self.max_pages).u16(0);
        to.u32((self.flags >> 32) as u32).zeros(4 + 2 + 22);
    }
}

/// The outcome of an INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Negotiation {
    /// The connection is established by this reply.
    Agreed(InitReply),
    /// The kernel's major version is newer. It sends INIT again after this reply.
    Again(InitReply),
    /// The kernel cannot serve us. Answer EPROTO.
    Refused(Refusal),
}

/// Why a kernel is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its protocol, a major and a minor version, is too old.
    #[error("the kernel speaks FUSE {0}.{1}; 7.31 (Linux 5.4) or newer is needed")]
    TooOld(u32, u32),
    /// It does not offer flags of [`REQUIRED`].
    #[error("the kernel's FUSE lacks the flags {0:#x} of INIT, so locks or data would be lost")]
    Lacks(u64),
}

/// Decides the version and the flags of a connection.
pub fn negotiate(init: &Init, wishes: Wishes) -> Negotiation {
    let mut reply = InitReply {
        minor: MINOR_MAX,
        max_readahead: 0,
        flags: 0,
        max_write: PAGE_BYTES,
        max_pages: 1,
    };
    if init.major > MAJOR {
        return Negotiation::Again(reply);
    }
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return Negotiation::Refused(Refusal::TooOld(init.major, init.minor));
    }
    let lacking = REQUIRED & !init.flags;
    if lacking != 0 {
        return Negotiation::Refused(Refusal::Lacks(lacking));
    }
    reply.minor = init.minor.min(MINOR_MAX);
    reply.flags = init.flags & (REQUIRED | WANTED & !wishes.declined | wishes.flags);
    let write_max = match init.flags & MAX_PAGES {
        0 => WRITE_BYTES_WITHOUT_MAX_PAGES,
        _ => TRANSFER_BYTES_MAX,
    };
    reply.max_write = wishes.max_write.clamp(PAGE_BYTES, write_max);
    reply.max_pages = reply.max_write.div_ceil(PAGE_BYTES) as u16;
    reply.max_readahead = init.max_readahead.min(reply.max_write);
    Negotiation::Agreed(reply)
}
