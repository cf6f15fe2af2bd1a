//! Repairs: each is one transaction at the snapshot of the check.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use transactions::serializable::model::Slot;

use super::report::{Finding, Problem, Repair, Report};
use crate::{
    error::{Errno, Result},
    inode::{self, Field},
    model::{Access, Ino, Kind},
    transaction::{Context, Outcome, Transaction},
};

/// The time for which a repair is repeated while the volume does not answer.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The directory in the root that lost inodes move to.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Repairs at one snapshot.
#[derive(Debug)]
pub(super) struct Repairer {
    context: Arc<Context>,
    slot: Slot,
}

impl Repairer {
    pub(super) fn new(context: Arc<Context>, slot: Slot) -> Self {
        Self { context, slot }
    }

    /// Makes all possible repairs. Those that set a count come first, because moves then change it.
    pub(super) async fn run(&self, report: &mut Report) -> Result<()> {
        let is_count = |finding: &Finding| matches!(finding.problem, Problem::WrongLinks { .. });
        let is_move =
            |finding: &Finding| matches!(finding.problem, Problem::Lost | Problem::Circle { .. });
        let moves = report.findings.iter().any(is_move);
        let lost_and_found = if moves {
            self.lost_and_found().await?
        } else {
            None
        };
        for counts in [true, false] {
            let findings = report.findings.iter_mut();
            let findings = findings.filter(|finding| {
                finding.repair == Repair::Possible && is_count(finding) == counts
            });
            for finding in findings {
                let mut transaction = Transaction::new(self.context.clone(), Some(self.slot));
                let repaired = repair(&mut transaction, finding, lost_and_found).await;
                finding.repair = match repaired {
                    Ok(()) if self.commit(transaction).await? => Repair::Done,
                    Ok(()) => Repair::Changed,
                    Err(_) => Repair::Refused,
                };
            }
        }
        Ok(())
    }

    /// Whether it committed, and did not conflict.
    async fn commit(&self, transaction: Transaction) -> Result<bool> {
        let clock = &self.context.clock;
        let deadline = clock.monotonic() + WAIT_MAX;
        let ended = transaction.commit(None, || clock.monotonic() >= deadline);
        Ok(matches!(ended.await?, Outcome::Committed { .. }))
    }

    /// The directory for lost inodes; it is made if it is missing. `None`: another client is in the
    /// way.
    async fn lost_and_found(&self) -> Result<Option<Ino>> {
        let mut transaction = Transaction::new(self.context.clone(), None);
        match transaction.lookup(Ino::ROOT, LOST_AND_FOUND).await {
            Ok(found) if found.kind == Kind::Directory => return Ok(Some(found.ino)),
            Ok(_) => return Ok(None),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let access = Access {
            mode: 0o700,
            uid: 0,
            gid: 0,
        };
        let made = transaction.mkdir(Ino::ROOT, access, LOST_AND_FOUND).await?;
        Ok(self.commit(transaction).await?.then_some(made))
    }
}

async fn repair(
    transaction: &mut Transaction,
    finding: &Finding,
    lost_and_found: Option<Ino>,
) -> Result<()> {
    let (ino, name) = (Ino(finding.ino), &finding.name);
    let overlay = &mut transaction.overlay;
    match finding.problem {
        Problem::DanglingEntry { to } => remove_dangling(transaction, ino, name, Ino(to)).await,
        Problem::SecondName { to } => {
            overlay.get(inode::field(Ino(to), Field::Parent)).await?;
            remove_entry(transaction, ino, name).await
        }
        Problem::WrongKind { to } => {
            let entry = inode::entry(ino, name);
            overlay.get(entry).await?;
            let kind = transaction.kind(Ino(to)).await?;
            transaction.bind(ino, name, Ino(to), kind);
            Ok(())
        }
        Problem::WrongLinks { counted, .. } => {
            let links = inode::field(ino, Field::Links);
            // As a key: a name that came or went meanwhile has changed it.
            overlay.get(links.clone()).await?;
            overlay.put_number(links, counted);
            Ok(())
        }
        Problem::WrongParent { listed_in } => {
            let parent = inode::field(ino, Field::Parent);
            overlay.get(parent.clone()).await?;
            overlay.put(parent, listed_in.to_be_bytes().to_vec().into());
            Ok(())
        }
        Problem::Unreaped => {
            overlay.get(inode::field(ino, Field::Links)).await?;
            overlay.put(inode::orphan(ino), inode::CANDIDATE);
            Ok(())
        }
        Problem::DataBeyondEnd { block, .. } => cut(transaction, ino, block).await,
        Problem::Lost => move_to(transaction, ino, lost_and_found).await,
        Problem::Circle { listed_in } => {
            let from = Ino(listed_in);
            remove_entry(transaction, from, name).await?;
            let links = inode::field(from, Field::Links);
            transaction.overlay.add(links, -1);
            move_to(transaction, ino, lost_and_found).await
        }
        Problem::DamagedEntry
        | Problem::DamagedOrphan
        | Problem::DamagedField { .. }
        | Problem::LongBlock { .. }
        | Problem::DamagedBlock { .. } => Ok(()),
    }
}

async fn remove_dangling(
    transaction: &mut Transaction,
    directory: Ino,
    name: &Bytes,
    to: Ino,
) -> Result<()> {
    // It stays wrong as long as both are as they were.
    let exists = inode::field(to, Field::Existence);
    if transaction.overlay.get(exists).await?.is_some() {
        return Err(Errno::EIO);
    }
    remove_entry(transaction, directory, name).await
}

async fn remove_entry(transaction: &mut Transaction, directory: Ino, name: &Bytes) -> Result<()> {
    let entry = inode::entry(directory, name);
    transaction.overlay.get(entry.clone()).await?;
    transaction.overlay.delete(entry);
    transaction.touch_directory(directory);
    Ok(())
}

/// Removes the data of a block that are after the end of the file.
async fn cut(transaction: &mut Transaction, ino: Ino, block: u64) -> Result<()> {
    let size = transaction
        .overlay
        .get(inode::field(ino, Field::Size))
        .await?;
    let size = transactions::serializable::model::number_in(size.as_ref()).ok_or(Errno::EIO)?;
    let block_bytes = transaction.overlay.block_bytes();
    let within = size.saturating_sub(block.saturating_mul(block_bytes));
    let key = inode::block(ino, block);
    match transaction.overlay.get(key.clone()).await? {
        Some(value) if within > 0 => {
            let kept = value.slice(..value.len().min(within as usize));
            transaction.overlay.put(key, kept);
        }
        _ => transaction.overlay.delete(key),
    }
    Ok(())
}

/// Moves an inode to the directory for lost ones, under a name with its number.
async fn move_to(
    transaction: &mut Transaction,
    ino: Ino,
    lost_and_found: Option<Ino>,
) -> Result<()> {
    let to = lost_and_found.ok_or(Errno::EIO)?;
    let kind = transaction.kind(ino).await?;
    let name = format!("#{}", ino.0);
    let links = inode::field(ino, Field::Links);
    // Another client that gives it a name, or takes it, changes one of these.
    transaction.overlay.get(links.clone()).await?;
    transaction.overlay.get(inode::orphan(ino)).await?;
    transaction
        .overlay
        .get(inode::entry(to, name.as_bytes()))
        .await?;
    transaction.bind(to, name.as_bytes(), ino, kind);
    transaction.touch_directory(to);
    if kind != Kind::Directory {
        transaction.overlay.put_number(links, 1);
        return Ok(());
    }
    let parent = inode::field(ino, Field::Parent);
    transaction.overlay.get(parent.clone()).await?;
    transaction
        .overlay
        .put(parent, to.0.to_be_bytes().to_vec().into());
    transaction.overlay.add(inode::field(to, Field::Links), 1);
    Ok(())
}
