//! The position of a refusal in the total order: after the updates that caused it, and before the
//! updates that change its cause.
//!
//! A refusal touches the znodes that it was planned from. For a missing znode, it touches the
//! nearest existing ancestor instead. There may be hundreds of missing levels between the two, and
//! locking each takes two writes. So the ancestor is found by reading, and only then locked.
//!
//! The state that was read may have changed by then. It is still valid if, with the ancestor
//! locked, the next level towards the znode has neither a state nor a lock. A writer that creates
//! or deletes that level locks the ancestor first, and a decided but uninstalled change has left
//! its lock at that level. Nothing below the level can be created before the level itself.
//!
//! Invariant: when a refusal has its position, its ancestor is locked. The level below the ancestor
//! is locked by the same batch, or cannot be created without the ancestor's lock.
//!
//! This is ours. The paper gives refusals no position.

use ports::Result;

use super::{Batch, Held, PlanError, hold};
use crate::{broken::Broken, path, storage::node};

/// The result of locking a level.
enum Level {
    There,
    Missing,
    /// The batch released all other locks and waited for this one.
    Waited,
}

impl Batch<'_> {
    /// Gives the next refusal its position. Returns false if the batch released all locks to wait
    /// for one; then the request must be planned again.
    pub(in crate::writer) async fn lock_ancestor(&mut self) -> Result<bool, PlanError> {
        let next = Some(self.len());
        let is_missing = |held: &Held| held.planned_by == next && held.becomes.is_none();
        let missing = self.held.iter().filter(|(_, held)| is_missing(held));
        let missing: Vec<String> = missing.map(|(path, _)| path.clone()).collect();
        // A znode below a missing one needs no ancestor of its own. Most requests are planned from
        // one chain of znodes, a multi from several.
        let mut above: Option<&str> = None;
        for path in &missing {
            if above.is_some_and(|above| path::is_below(path, above)) {
                continue;
            }
            if !self.lock_nearest_ancestor(path).await? {
                return Ok(false);
            }
            above = Some(path);
        }
        Ok(true)
    }

    /// Locks ancestors for the end of a session, in place of missing `parents`. These are in
    /// several subtrees. If the batch must wait for one more lock, it returns the path of that
    /// lock, and the caller takes all locks again in path order.
    pub(in crate::writer) async fn lock_ancestors(
        &mut self,
        parents: impl Iterator<Item = &str>,
    ) -> Result<Option<String>, PlanError> {
        for missing in parents {
            if !self.lock_nearest_ancestor(missing).await? {
                let (waited_for, _) = self.held.first_key_value().expect("it was waited for");
                return Ok(Some(waited_for.clone()));
            }
        }
        Ok(None)
    }

    /// Locks the nearest existing ancestor of `missing`, which is locked.
    async fn lock_nearest_ancestor(&mut self, missing: &str) -> Result<bool, PlanError> {
        let levels = path::ancestors(missing);
        // Usually the parent exists.
        let Some(mut at) = levels.len().checked_sub(1) else {
            return Ok(true);
        };
        loop {
            at = match self.lock_level(levels[at]).await? {
                Level::Waited => return Ok(false),
                // The level below is the missing znode itself, or has no lock and stays as it is.
                Level::There
                    if at + 1 == levels.len() || self.stays_missing(levels[at + 1]).await? =>
                {
                    return Ok(true);
                }
                Level::There => at + 1,
                Level::Missing => match self.nearest(&levels[..at]).await? {
                    Some(above) => above,
                    // A path without a root, under which no znode can exist.
                    None => return Ok(true),
                },
            };
        }
    }

    /// Locks a level. Does not wait for it while the batch holds other requests' locks.
    async fn lock_level(&mut self, path: &str) -> Result<Level, PlanError> {
        let next = Some(self.len());
        let is_there = if self.is_optimistic() || self.held.contains_key(path) {
            self.lock(path).await?.is_some()
        } else {
            match self
                .locking
                .try_lock(&mut self.store, path, &self.lock)
                .await?
            {
                Some(found) => {
                    let is_there = found.is_some();
                    hold(&mut self.held, path, (None, found), next);
                    is_there
                }
                None if self.is_empty() => {
                    self.wait_for(path).await?;
                    return Ok(Level::Waited);
                }
                None => return Err(PlanError::Contended),
            }
        };
        Ok(if is_there {
            Level::There
        } else {
            Level::Missing
        })
    }

    /// Whether the znode at `path` is missing and stays missing while its parent is locked, which
    /// it is.
    async fn stays_missing(&mut self, path: &str) -> Result<bool> {
        if self
            .locking
            .mutant
            .breaks(Broken::LocksAncestorsByUnlockedReads)
        {
            return Ok(true);
        }
        match self.held.get(path) {
            Some(held) => Ok(held.becomes.is_none()),
            None => node::is_vacant(&mut self.store, path).await,
        }
    }

    /// The index in `levels` of the last existing znode, as far as reads can tell. Each level is
    /// the parent of the next, so this bisects. The root need not be read.
    async fn nearest(&mut self, levels: &[&str]) -> Result<Option<usize>> {
        let (mut there, mut missing) = (0, levels.len());
        while missing.saturating_sub(there) > 1 {
            let middle = there + (missing - there) / 2;
            if self.is_there(levels[middle]).await? {
                there = middle;
            } else {
                missing = middle;
            }
        }
        Ok((missing > 0).then_some(there))
    }

    async fn is_there(&mut self, path: &str) -> Result<bool> {
        match self.held.get(path) {
            Some(held) => Ok(held.becomes.is_some()),
            None => node::is_there(&mut self.store, path).await,
        }
    }
}
