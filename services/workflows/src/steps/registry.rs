//! The open attempts, by the token that their functions send.
//!
//! Invariants
//! - A token is random, so it can neither be guessed nor name an attempt of another start (rule W-1).
//! - A nested attempt ends with the enclosing one at the latest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::RwLock;
use ports::Entropy;

use super::Attempt;
use crate::{Broken, Error, Result};

/// The most nested attempts that are open in one attempt; a further one is refused.
const NESTED_MAX: usize = 1_000;

#[derive(Debug)]
struct OpenAttempt {
    attempt: Arc<Attempt>,
    /// The token of the enclosing attempt, if there is one.
    parent: Option<Arc<str>>,
    /// The token of the attempt whose function executes this one. That function may also send the
    /// tokens of all attempts nested in it.
    owner: Arc<str>,
    nested: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
pub(crate) struct AttemptRegistry {
    open: RwLock<BTreeMap<Arc<str>, OpenAttempt>>,
}

impl AttemptRegistry {
    /// Registers an attempt; returns its token.
    ///
    /// Errors: `AttemptEnded` if the enclosing attempt is over, `Invalid` if that has too many
    /// nested ones.
    pub(crate) fn open(
        &self,
        attempt: &Arc<Attempt>,
        parent: Option<&str>,
        entropy: &dyn Entropy,
    ) -> Result<Arc<str>> {
        let (one, other) = (entropy.next_u64(), entropy.next_u64());
        let token: Arc<str> = format!("step-{one:016x}{other:016x}").into();
        let mut open = self.open.write();
        let (parent, owner) = match parent {
            None => (None, Arc::clone(&token)),
            Some(parent) => {
                let parent: Arc<str> = parent.into();
                let around = open.get_mut(&parent).ok_or(Error::AttemptEnded)?;
                if around.nested.len() >= NESTED_MAX {
                    let say = format!("{NESTED_MAX} steps at most are open within one at a time");
                    return Err(Error::Invalid(say));
                }
                around.nested.insert(Arc::clone(&token));
                let owner = Arc::clone(&around.owner);
                (Some(parent), owner)
            }
        };
        let entry = OpenAttempt {
            attempt: Arc::clone(attempt),
            parent,
            owner,
            nested: BTreeSet::new(),
        };
        open.insert(Arc::clone(&token), entry);
        Ok(token)
    }

    /// Errors: `AttemptEnded` if it is not open.
    pub(crate) fn find(&self, token: &str) -> Result<Arc<Attempt>> {
        let open = self.open.read();
        attempt_of(&open, token)
    }

    /// The enclosing attempt of `token`. Errors: `AttemptEnded` if one of the two is over, `Invalid`
    /// if `token` is not nested.
    pub(crate) fn around(&self, token: &str) -> Result<Arc<Attempt>> {
        let open = self.open.read();
        let nested = open.get(token).ok_or(Error::AttemptEnded)?;
        let refuse = || Error::Invalid("it is no step within a step".to_owned());
        let around = nested.parent.as_ref().ok_or_else(refuse)?;
        attempt_of(&open, around)
    }

    /// Whether `token` is `owner`, or is nested in it.
    pub(crate) fn is_within(&self, owner: &str, token: &str) -> bool {
        let is_owned = |found: &OpenAttempt| &*found.owner == owner;
        owner == token || self.open.read().get(token).is_some_and(is_owned)
    }

    /// Ends an attempt and the ones nested in it, and drops their writes. None: it was over.
    pub(crate) fn close(&self, token: &str) -> Option<Arc<Attempt>> {
        let attempt = self.take(token)?;
        attempt.close();
        Some(attempt)
    }

    /// Ends an attempt that is about to commit: it keeps its own writes. The nested ones lose theirs.
    pub(crate) fn take(&self, token: &str) -> Option<Arc<Attempt>> {
        let (attempt, nested) = self.remove(token)?;
        for attempt in nested {
            attempt.close();
        }
        Some(attempt)
    }

    /// Ends all attempts of the function that began `token`, so that its requests are refused.
    pub(crate) fn interrupt(&self, token: &str) {
        let owner = (self.open.read().get(token)).map(|found| Arc::clone(&found.owner));
        if let Some(owner) = owner {
            // Its own writes are dropped when the function has ended.
            self.take(&owner);
        }
    }

    fn remove(&self, token: &str) -> Option<(Arc<Attempt>, Vec<Arc<Attempt>>)> {
        let mut open = self.open.write();
        let removed = open.remove(token)?;
        let parent = removed.parent.as_ref();
        if let Some(around) = parent.and_then(|parent| open.get_mut(parent)) {
            around.nested.remove(token);
        }
        let mut nested = Vec::new();
        let mut left = Vec::from_iter(removed.nested);
        while let Some(token) = left.pop() {
            let Some(removed) = open.remove(&token) else {
                continue;
            };
            left.extend(removed.nested);
            nested.push(removed.attempt);
        }
        Some((removed.attempt, nested))
    }
}

fn attempt_of(open: &BTreeMap<Arc<str>, OpenAttempt>, token: &str) -> Result<Arc<Attempt>> {
    let found = open.get(token).ok_or(Error::AttemptEnded)?;
    Ok(Arc::clone(&found.attempt))
}

/// Ends an attempt when it is dropped, so also when its execution is aborted.
#[derive(Debug)]
pub(crate) struct AttemptGuard<'a> {
    pub(crate) attempts: &'a AttemptRegistry,
    pub(crate) token: Arc<str>,
    pub(crate) attempt: Arc<Attempt>,
}

impl Drop for AttemptGuard<'_> {
    fn drop(&mut self) {
        if self.attempt.run.env.breaks(Broken::HearsWhoHasEnded) {
            return;
        }
        self.attempts.close(&self.token);
        self.attempt.close();
    }
}
