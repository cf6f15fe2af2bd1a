//! The place of a refusal in the one order: behind the updates that made what it was refused for, and before those that
//! change it.
//!
//! A refusal touches what it was planned by, and in the place of a znode that is missing the nearest ancestor that is
//! there: its anchor. Between the two may lie hundreds of levels that are missing as well, and locking each of them takes
//! two writes. So the anchor is looked for by reading, and only then locked.
//!
//! What was read may have changed by then. It has not if, with the anchor locked, the next level towards the znode has
//! neither a state nor a lock: whoever makes or deletes that level locks the anchor first, and what was decided of it
//! and is not installed has left its lock there. Nor can anything below it come to be before it does.
//!
//! Invariant: when a refusal has its place, its anchor is locked, and the level below the anchor is locked by the same
//! batch or cannot be made without the anchor's lock.
//!
//! Ours; the paper gives refusals no place.

use ports::Result;

use super::{Batch, Held, Unplanned, hold};
use crate::{broken::Broken, path};

/// What became of a level that had to be locked.
enum Level {
    /// It is, and the znode is there.
    There,
    /// It is, and the znode is missing.
    Missing,
    /// It had to be waited for, with all other locks given back.
    Waited,
}

impl Batch<'_> {
    /// Gives the refusal that is next its place. False: a lock had to be waited for, with all others given back; the
    /// request is to be planned again.
    pub(in crate::writer) async fn anchor(&mut self) -> Result<bool, Unplanned> {
        let next = Some(self.len());
        let is_missing = |held: &Held| held.seen_by == next && held.becomes.is_none();
        // A request is planned by one line of znodes, of which the topmost comes first.
        let topmost = self
            .held
            .iter()
            .find(|(_, held)| is_missing(held))
            .map(|(path, _)| path.clone());
        match topmost {
            Some(missing) => self.anchor_of(&missing).await,
            None => Ok(true),
        }
    }

    /// The same for the end of a session, in the place of `parents` that are missing. They are of many lines, so the locks
    /// that it holds then are taken in path order again before it waits for any: answers which, if there is one more.
    pub(in crate::writer) async fn anchor_all(
        &mut self,
        parents: impl Iterator<Item = &str>,
    ) -> Result<Option<String>, Unplanned> {
        for missing in parents {
            if !self.anchor_of(missing).await? {
                let (waited_for, _) = self.held.first_key_value().expect("it was waited for");
                return Ok(Some(waited_for.clone()));
            }
        }
        Ok(None)
    }

    /// Locks the anchor of `missing`, which is locked.
    async fn anchor_of(&mut self, missing: &str) -> Result<bool, Unplanned> {
        let levels = path::ancestors(missing);
        // Mostly the parent is there.
        let Some(mut at) = levels.len().checked_sub(1) else {
            return Ok(true);
        };
        loop {
            at = match self.lock_level(levels[at]).await? {
                Level::Waited => return Ok(false),
                // The one below is the missing one itself, or is locked by nobody and stays as it is.
                Level::There
                    if at + 1 == levels.len() || self.stays_missing(levels[at + 1]).await? =>
                {
                    return Ok(true);
                }
                Level::There => at + 1,
                Level::Missing => match self.nearest(&levels[..at]).await? {
                    Some(above) => above,
                    // A path without a root, where nothing can ever be.
                    None => return Ok(true),
                },
            };
        }
    }

    /// Locks a level, without waiting for it while others are locked.
    async fn lock_level(&mut self, path: &str) -> Result<Level, Unplanned> {
        let next = Some(self.len());
        let becomes = if let Some(held) = self.held.get_mut(path) {
            held.seen_by = next;
            held.becomes
        } else {
            match self
                .nodes
                .try_lock(path, &self.lock, &mut self.basis)
                .await?
            {
                Some(found) => {
                    hold(&mut self.held, path, found, next);
                    found
                }
                None if self.is_empty() => {
                    self.wait_for(path).await?;
                    return Ok(Level::Waited);
                }
                None => return Err(Unplanned::Contended),
            }
        };
        Ok(if becomes.is_some() {
            Level::There
        } else {
            Level::Missing
        })
    }

    /// Whether the znode at `path` is missing and stays so for as long as its parent is locked, which it is.
    async fn stays_missing(&mut self, path: &str) -> Result<bool> {
        if self.nodes.broken() == Some(Broken::AnchorsByWhatWasRead) {
            return Ok(true);
        }
        match self.held.get(path) {
            Some(held) => Ok(held.becomes.is_none()),
            None => self.nodes.is_vacant(path, &mut self.basis).await,
        }
    }

    /// Where in `levels`, each the parent of the next one, the last znode is that is there, as far as reading tells: in
    /// strides that double, from below, then by halves. The root need not be read.
    async fn nearest(&mut self, levels: &[&str]) -> Result<Option<usize>> {
        let (mut there, mut missing, mut stride) = (0, levels.len(), 1);
        while there < missing.saturating_sub(stride) {
            let at = missing - stride;
            if self.is_there(levels[at]).await? {
                there = at;
                break;
            }
            (missing, stride) = (at, stride * 2);
        }
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
            None => self.nodes.is_there(path, &mut self.basis).await,
        }
    }
}
