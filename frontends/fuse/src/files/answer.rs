//! Answers of the file service as replies to the kernel.

use bytes::Bytes;
use files::model::{Attributes, Space};

use crate::{
    handler::Responder,
    wire::{self, DirectoryList, Errno, FileSystemUsage, Opened, Reply},
};

/// The size that `df -i` shows: inode numbers do not run out.
const INODES: u64 = 1 << 40;

/// The end of a call.
pub(super) type Outcome = Result<Answer, Errno>;

/// A reply that owns its data.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Reply(Reply<'static>),
    Data(Bytes),
    List(DirectoryList),
}

pub(super) fn send(outcome: Outcome, responder: Responder) {
    match outcome {
        Ok(Answer::Done) => responder.send(&Reply::Done),
        Ok(Answer::Reply(reply)) => responder.send(&reply),
        Ok(Answer::Data(data)) => responder.send(&Reply::Data(&data)),
        Ok(Answer::List(list)) => responder.send(&list.reply()),
        Err(errno) => responder.fail(errno),
    }
}

impl From<files::Errno> for Errno {
    fn from(errno: files::Errno) -> Self {
        Self::new(errno as i32)
    }
}

pub(super) fn attributes(of: &Attributes, block_bytes: u32) -> wire::Attributes {
    wire::Attributes {
        inode: of.ino.0,
        size: of.size,
        blocks: of.blocks(),
        atime: of.atime,
        mtime: of.mtime,
        ctime: of.ctime,
        mode: of.kind.type_bits() | of.access.mode,
        links: u32::try_from(of.links).unwrap_or(u32::MAX),
        uid: of.access.uid,
        gid: of.access.gid,
        rdev: of.device,
        block_bytes,
    }
}

pub(super) fn opened(handle: u64, flags: u32) -> Answer {
    Answer::Reply(Reply::Opened(Opened { handle, flags }))
}

pub(super) fn usage(space: Space) -> Answer {
    Answer::Reply(Reply::Usage(FileSystemUsage {
        blocks: space.blocks,
        blocks_free: space.blocks_free,
        blocks_available: space.blocks_free,
        inodes: INODES,
        inodes_free: INODES.saturating_sub(space.keys),
        block_bytes: space.block_bytes,
        name_bytes_max: files::path_rules::NAME_BYTES_MAX as u32,
    }))
}
