//! The end of files that have no name any more: their data go when no session has them open.
//!
//! Each `unlink` notes a candidate. The reaper marks a candidate without links, looks for holds, and
//! then deletes the inode. A session holds an inode first, and looks for the mark then. So either
//! the session finds the mark, or the reaper finds the hold. A crash in between leaves a candidate,
//! and the next run continues with it.

use futures_util::future::FutureExt as _;
use transactions::serializable::{
    VolumeStore,
    model::{At, PageLimits, Write, Writes},
};

use crate::{
    broken::Broken,
    error::{Errno, Result},
    file_system::{FileSystem, hold_key},
    inode::{self, Field, ORPHAN_SHARDS},
    model::Ino,
    transaction::Transaction,
};

/// Whether a proposal with these writes may leave a file without a name. Those of a stage are not
/// looked at.
pub fn may_unlink(writes: &Writes) -> bool {
    match writes {
        Writes::Staged { .. } => true,
        Writes::Inline(writes) => writes
            .iter()
            .any(|write| matches!(write, Write::Put { key, .. } if inode::is_of_orphan(key))),
    }
}

/// Whether a file without a name may wait for its end. Errors: those of the volume.
pub async fn has_candidates(store: &dyn VolumeStore) -> transactions::Result<bool> {
    let first = PageLimits {
        keys_max: 1,
        ..PageLimits::default()
    };
    for shard in 0..ORPHAN_SHARDS {
        let page = store.scan(At::Tail, &inode::orphans(shard), first).await?;
        if !page.value.entries.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the unlinked files that no session has open, and returns how many. The server runs it
/// for each volume, but not within 30 s of a take-over: sessions come back first and repeat their
/// holds. It goes on after an inode that it can not delete. Errors: the first of theirs, after all
/// others are deleted; `EIO` if the candidates can not be read.
pub async fn reap(files: &FileSystem) -> Result<usize> {
    let (mut reaped, mut failed) = (0, None);
    for shard in 0..ORPHAN_SHARDS {
        let mut rest = Some(inode::orphans(shard));
        while let Some(range) = rest {
            let store = &files.context().store;
            let page = store.scan(At::Tail, &range, PageLimits::default()).await;
            let page = page.map_err(|_| Errno::EIO)?.value;
            for entry in page.entries {
                match reap_one(files, &entry.name).await {
                    Ok(is_reaped) => reaped += usize::from(is_reaped),
                    Err(errno) => failed = failed.or(Some(errno)),
                }
            }
            let following = page.next.map(|next| range.starting_at(next));
            rest = following.transpose().map_err(|_| Errno::EIO)?;
        }
    }
    failed.map_or(Ok(reaped), Err)
}

/// Whether the inode is deleted.
async fn reap_one(files: &FileSystem, name: &[u8]) -> Result<bool> {
    let ino = Ino(inode::number_of(name)?);
    if is_held(files, ino).await? {
        return Ok(false);
    }
    let is_marked = files.transact(move |transaction| mark(transaction, ino).boxed());
    if !is_marked.await? {
        return Ok(false);
    }
    if is_held(files, ino).await? {
        let unmark = files.transact(move |transaction| {
            transaction
                .overlay
                .put(inode::orphan(ino), inode::CANDIDATE);
            async { Ok(()) }.boxed()
        });
        unmark.await?;
        return Ok(false);
    }
    // From here on writes are refused, so that no block comes after the last one is deleted.
    let is_dying = files.transact(move |transaction| delete_existence(transaction, ino).boxed());
    if !is_dying.await? {
        return Ok(false);
    }
    // All of them, also those after the length: a hole that was punched there leaves one.
    files.clear_ahead(ino, 0, None).await?;
    files
        .transact(move |transaction| delete_rest(transaction, ino).boxed())
        .await?;
    Ok(true)
}

async fn is_held(files: &FileSystem, ino: Ino) -> Result<bool> {
    if files.context().mutant.breaks(Broken::ReapsHeld) {
        return Ok(false);
    }
    let key = hold_key(ino);
    let held = files.context().store.is_held(&key).await;
    held.map_err(|_| Errno::EIO)
}

/// Marks a candidate without links; removes one that has a name.
async fn mark(transaction: &mut Transaction, ino: Ino) -> Result<bool> {
    let overlay = &mut transaction.overlay;
    let links = overlay.number(inode::field(ino, Field::Links)).await?;
    if links > 0 {
        overlay.delete(inode::orphan(ino));
    } else {
        overlay.put(inode::orphan(ino), inode::DYING);
    }
    Ok(links == 0)
}

/// Whether the mark is still there. Then the inode is gone.
async fn delete_existence(transaction: &mut Transaction, ino: Ino) -> Result<bool> {
    let overlay = &mut transaction.overlay;
    let is_dying = overlay.get(inode::orphan(ino)).await? == Some(inode::DYING);
    if is_dying {
        overlay.delete(hold_key(ino));
    }
    Ok(is_dying)
}

async fn delete_rest(transaction: &mut Transaction, ino: Ino) -> Result<()> {
    transaction.delete_fields(ino).await?;
    transaction.overlay.delete(inode::orphan(ino));
    Ok(())
}
