//! Attempts of steps under way, and how what their functions ask for finds them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::RwLock;
use transactions::Effect;

use crate::{
    Broken, Error, Options, Result,
    overlay::{Changes, Overlay, Written},
    run::Run,
};

/// One attempt of one step.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) run: Arc<Run>,
    /// Where the step stands in its workflow.
    pub(crate) path: String,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) began_ms: u64,
    pub(crate) tries: u32,
    /// What its code has called steps so far.
    pub(crate) called: AtomicU64,
}

impl Attempt {
    /// What counts of `key` for this attempt.
    pub(crate) async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        match self.overlay.get(key)? {
            Written::Value(value) => Ok(Some(value)),
            Written::Deleted => Ok(None),
            Written::Nothing => self.run.get(key).await,
        }
    }

    pub(crate) async fn put(&self, key: Bytes, value: Option<Bytes>, options: &Options) -> Result<()> {
        self.overlay.put(key, value, options)?;
        if options.breaks(Broken::WritesThrough) {
            self.externalize().await?;
        }
        Ok(())
    }

    pub(crate) fn send(&self, effect: Effect, options: &Options) -> Result<()> {
        self.overlay.send(effect, options)
    }

    /// Has what was written so far count, and waits until all that the run has done is durable.
    pub(crate) async fn externalize(&self) -> Result<()> {
        if self.run.workflow.atomic {
            let why = "an atomic run lets nothing out before its end: make the workflow not atomic, or do this after it";
            return Err(Error::Invalid(why.to_owned()));
        }
        let changes = self.overlay.take()?;
        self.run.publish(&self.path, changes).await?;
        self.overlay.counts();
        self.run.externalize().await
    }

    /// Nothing more is taken from its code.
    pub(crate) fn close(&self) -> Changes {
        self.overlay.close()
    }
}

/// All attempts under way, by what their functions show.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    known: RwLock<BTreeMap<Arc<str>, Arc<Attempt>>>,
    given: AtomicU64,
}

impl Attempts {
    /// Makes an attempt known; returns what its function shows.
    pub(crate) fn open(&self, attempt: &Arc<Attempt>) -> Arc<str> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let token: Arc<str> = format!("step-{number}").into();
        self.known.write().insert(Arc::clone(&token), Arc::clone(attempt));
        token
    }

    /// Errors: `AttemptEnded` if it is not under way.
    pub(crate) fn find(&self, token: &str) -> Result<Arc<Attempt>> {
        self.known.read().get(token).cloned().ok_or(Error::AttemptEnded)
    }

    pub(crate) fn close(&self, token: &str) -> Option<Arc<Attempt>> {
        self.known.write().remove(token)
    }
}

/// Closes an attempt whatever becomes of who has it run.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    pub(crate) attempts: &'a Attempts,
    pub(crate) token: Arc<str>,
    pub(crate) attempt: Arc<Attempt>,
    /// Its code ends it, or the rule is broken that it ends.
    pub(crate) stays: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        self.attempts.close(&self.token);
        self.attempt.close();
    }
}
