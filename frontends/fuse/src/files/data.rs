//! Calls on open files.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use files::{
    Ino,
    model::{Allocation, Privileges, Seek, SetAttributes},
};
use futures_util::future::FutureExt as _;
use nix::libc;
use transactions::serializable::model::Slot;

use super::{
    Node,
    answer::{self, Answer, Outcome},
    calls::Calls,
    invocations::Opening,
    names::privileges,
};
use crate::wire::{Errno, OPEN_KEEP_CACHE, Reply, Write};

const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

/// Where a write goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    /// Where the kernel has the data.
    at: u64,
    /// `None`: to the end, as O_APPEND asks. The kernel's offset may be from an old length.
    offset: Option<u64>,
    privileges: Privileges,
    /// O_DSYNC, which is a part of O_SYNC: the write is durable before its reply.
    is_synced: bool,
}

impl Target {
    pub(super) fn of(write: &Write<'_>) -> Self {
        let is_append = write.flags & libc::O_APPEND as u32 != 0 && !write.is_cached;
        Self {
            at: write.offset,
            offset: (!is_append).then_some(write.offset),
            privileges: privileges(write.kills_privileges),
            is_synced: write.flags & libc::O_DSYNC as u32 != 0,
        }
    }
}

impl Node {
    /// Opens a file. Handles carry nothing: each request names its inode.
    pub(super) async fn open(
        self: Arc<Self>,
        ino: Ino,
        flags: u32,
        kills_privileges: bool,
    ) -> Outcome {
        self.calls.hold(ino).await?;
        let is_truncated = flags & libc::O_TRUNC as u32 != 0;
        let is_blind = flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
        let keeps = self.keeps_pages(ino, is_blind || is_truncated).await?;
        if is_truncated {
            self.changes(ino);
            let set = SetAttributes {
                size: Some(0),
                privileges: privileges(kills_privileges),
                ..SetAttributes::default()
            };
            let truncated = self
                .calls
                .run(move |transaction| transaction.setattr(ino, set).boxed());
            if let Err(errno) = truncated.await {
                if let Some(invocations) = &self.invocations {
                    invocations.close(ino);
                }
                self.calls.close(ino).await?;
                return Err(errno.into());
            }
        }
        if self.gathers_writes() {
            self.writers.open(ino, flags);
        }
        let dropped = if keeps { 0 } else { OPEN_KEEP_CACHE };
        Ok(answer::opened(0, self.caching.open_flags & !dropped))
    }

    /// Whether the kernel may use the pages of a file that it has from earlier transactions.
    async fn keeps_pages(&self, ino: Ino, is_blind: bool) -> Result<bool, Errno> {
        let Some(invocations) = &self.invocations else {
            return Ok(true);
        };
        let opening = invocations.open(ino, is_blind);
        let (since, blocks) = match opening {
            Opening::Check(since, blocks) => (Some(since), blocks),
            Opening::Decided(true) => return Ok(true),
            Opening::Decided(false) => (None, BTreeSet::new()),
        };
        let checked = self.calls.run(move |transaction| {
            let blocks = blocks.clone();
            async move {
                // The first call may be this one, so the slot is known after it.
                let since = since.unwrap_or(Slot(u64::MAX));
                let is_same = transaction.reread(ino, since, &blocks).await?;
                Ok((is_same, transaction.slot()))
            }
            .boxed()
        });
        let (is_same, at) = match checked.await {
            Ok(checked) => checked,
            Err(errno) => {
                invocations.close(ino);
                return Err(errno.into());
            }
        };
        invocations.decided(ino, is_same, at);
        Ok(is_same)
    }

    /// Notes that the kernel changes the pages of a file.
    pub(super) fn changes(&self, ino: Ino) {
        if let Some(invocations) = &self.invocations {
            invocations.change(ino);
        }
    }

    fn gives(&self, ino: Ino, offset: u64, count: u64) {
        if let Some(invocations) = &self.invocations {
            let block_bytes = u64::from(self.block_bytes);
            let end = (offset + count).div_ceil(block_bytes);
            invocations.give_blocks(ino, offset / block_bytes..end);
        }
    }

    pub(super) async fn release(self: Arc<Self>, ino: Ino, flock_owner: Option<u64>) -> Outcome {
        let unlocked = match flock_owner {
            Some(owner) => self.unlock_file(ino, owner).await.map(drop),
            None => Ok(()),
        };
        if let Some(invocations) = &self.invocations {
            invocations.close(ino);
        }
        self.read_ahead.forget(ino);
        self.calls.close(ino).await?;
        unlocked?;
        Ok(Answer::Done)
    }

    pub(super) async fn read(self: Arc<Self>, ino: Ino, offset: u64, size: u32) -> Outcome {
        if let Calls::Each(files) = &self.calls {
            self.read_ahead.before(files, ino, offset, size).await;
        }
        let count = u64::from(size);
        self.gives(ino, offset, count);
        let data = self
            .calls
            .run(move |transaction| transaction.read(ino, offset, count).boxed());
        Ok(Answer::Data(data.await?))
    }

    pub(super) async fn write(self: Arc<Self>, ino: Ino, target: Target, data: Bytes) -> Outcome {
        let Target {
            offset,
            privileges,
            is_synced,
            ..
        } = target;
        let count = data.len() as u32;
        self.changes(ino);
        self.gives(ino, target.at, data.len() as u64);
        let written = self.calls.change(move |transaction| {
            let data = data.clone();
            async move {
                match offset {
                    Some(offset) => transaction.write(ino, offset, privileges, &data).await,
                    None => transaction.append(ino, privileges, &data).await,
                }
            }
            .boxed()
        });
        written.await?;
        if is_synced {
            self.calls.sync(ino).await?;
        }
        Ok(Answer::Reply(Reply::Written(count)))
    }

    pub(super) async fn allocate(
        self: Arc<Self>,
        ino: Ino,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Outcome {
        const PUNCH_WITHIN: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_WITHIN: u32 = ZERO_RANGE | KEEP_SIZE;
        let allocation = match mode {
            0 => Allocation::Extend,
            KEEP_SIZE => Allocation::KeepSize,
            // A hole reads as zeros.
            PUNCH_WITHIN | ZERO_WITHIN => Allocation::PunchHole,
            ZERO_RANGE => Allocation::ZeroRange,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.changes(ino);
        let allocated = self.calls.change(move |transaction| {
            transaction
                .fallocate(ino, allocation, offset, length)
                .boxed()
        });
        allocated.await?;
        Ok(Answer::Done)
    }

    pub(super) async fn seek(self: Arc<Self>, ino: Ino, whence: u32, offset: u64) -> Outcome {
        let seek = match whence.cast_signed() {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let found = self
            .calls
            .run(move |transaction| transaction.seek(ino, seek, offset).boxed());
        Ok(Answer::Reply(Reply::Offset(found.await?)))
    }

    pub(super) async fn sync(self: Arc<Self>, ino: Ino) -> Outcome {
        self.calls.sync(ino).await?;
        Ok(Answer::Done)
    }

    pub(super) async fn usage(self: Arc<Self>) -> Outcome {
        Ok(answer::usage(self.calls.files().statfs().await?))
    }
}
