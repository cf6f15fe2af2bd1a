//! Attempts of steps under way, and how what their functions ask for finds them.
//!
//! Invariants
//! - Nobody guesses what an attempt shows: it is drawn, so it says nothing of another start either (rule W-1).
//! - An attempt within another ends with it at the latest.
//! - What code was told of a failed step is at rest before the code goes on to anything that counts by itself, and not before: who
//!   is run again without having gone on has the step tried again.
//! - What an attempt has published is out of its overlay once that is known to count, and not before: it is read by the attempt
//!   all the while, and the attempt does not come to count in between.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::RwLock;
use ports::Entropy;
use transactions::Effect;

use crate::{
    Broken, Error, Options, Result,
    outage::Asked,
    overlay::{Changes, Overlay, Written},
    records::StepRow,
    run::Run,
    service::Inner,
    store::{State, VALUE},
};

/// The most attempts that are open within one at a time; the next is refused.
const WITHIN_MAX: usize = 1_000;

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
    /// What was asked of the far store, here and by all steps of its function.
    pub(crate) asked: Arc<Asked>,
    /// Steps whose failure its code was told of, by their paths, that nothing at rest says yet.
    told: tokio::sync::Mutex<VecDeque<(String, StepRow)>>,
    /// Held while something of it is being published.
    publishing: tokio::sync::Mutex<()>,
}

impl Attempt {
    pub(crate) fn new(
        run: Arc<Run>,
        path: String,
        overlay: Arc<Overlay>,
        tries: u32,
        began_ms: u64,
    ) -> Self {
        let (called, asked, told, publishing) = Default::default();
        Self {
            run,
            path,
            overlay,
            began_ms,
            tries,
            called,
            asked,
            told,
            publishing,
        }
    }

    /// The same as one within `around`, whose function does it.
    pub(crate) fn within(self, around: &Self) -> Self {
        Self {
            asked: Arc::clone(&around.asked),
            ..self
        }
    }

    /// Where its code's next step stands.
    pub(crate) fn next_path(&self) -> String {
        format!(
            "{}/{}",
            self.path,
            self.called.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Its code is told of a step's failure.
    pub(crate) async fn tell_failure(&self, path: String, row: StepRow) {
        self.told.lock().await.push_back((path, row));
    }

    /// Its code goes on to something that counts by itself: when it is run again it is told of the same failures (W2).
    pub(crate) async fn go_on(&self, service: &Inner) -> Result<()> {
        let mut told = self.told.lock().await;
        while let Some((path, row)) = told.front() {
            if !service.options.breaks(Broken::ForgetsFailures) {
                self.of_far(self.run.count_failure(service, self, (path, row)))
                    .await?;
            }
            told.pop_front();
        }
        Ok(())
    }

    /// What counts of `key` for this attempt.
    pub(crate) async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        match self.overlay.get(key)? {
            Written::Value(value) => Ok(Some(value)),
            Written::Deleted => Ok(None),
            Written::Nothing => self.of_far(self.run.get(key)).await,
        }
    }

    pub(crate) async fn put(
        self: &Arc<Self>,
        key: Bytes,
        value: Option<Bytes>,
        options: &Options,
    ) -> Result<()> {
        self.check_write(key.len(), value.as_ref().map_or(0, Bytes::len))?;
        self.overlay.put(key, value, options)?;
        if options.breaks(Broken::WritesThrough) {
            self.externalize(options).await?;
        }
        Ok(())
    }

    /// Errors: `TooLarge` for what the far store would refuse when the step is to count.
    fn check_write(&self, key_bytes: usize, value_bytes: usize) -> Result<()> {
        let store = &self.run.store;
        if !store.is_apart() {
            return Ok(());
        }
        let limits = store.rows.limits();
        let value_max = limits.item_bytes_max.saturating_sub(VALUE.len());
        store.check_key(key_bytes)?;
        if value_bytes > value_max {
            return Err(Error::too_long("value", value_bytes, value_max));
        }
        Ok(())
    }

    pub(crate) fn send(&self, effect: Effect, options: &Options) -> Result<()> {
        // Near its transaction is to take it, or that of its atomic run; a range cuts it into rows.
        let sends_max = match &self.run.store.state {
            State::Transactions(engine) => engine.effects_max(),
            State::Range(_) => usize::MAX,
        };
        self.overlay.send(effect, sends_max, options)
    }

    /// Errors: `Invalid` in an atomic run, of which nothing that leaves before its end could be taken back (W5).
    pub(crate) fn may_let_out(&self) -> Result<()> {
        if !self.run.workflow.atomic {
            return Ok(());
        }
        let why = "an atomic run lets nothing out before its end: make the workflow not atomic, or do this after it";
        Err(Error::Invalid(why.to_owned()))
    }

    /// Has what was written so far count, and waits until all that the run has done is durable.
    pub(crate) async fn externalize(self: &Arc<Self>, options: &Options) -> Result<()> {
        self.may_let_out()?;
        let (attempt, options) = (Arc::clone(self), options.clone());
        let published = async {
            // Who asks may give up; what is under way is told apart from what is not all the same.
            let published = tokio::spawn(async move { attempt.publish(&options).await });
            published.await.unwrap_or_else(|_| {
                Err(ports::Error::unavailable("publish what a step wrote").into())
            })?;
            self.run.externalize().await
        };
        self.of_far(published).await
    }

    /// If it is not known to count, what was written stays, to be published again or to count with the step.
    async fn publish(&self, options: &Options) -> Result<()> {
        let _one = self.publishing.lock().await;
        let changes = self.overlay.peek()?;
        if options.breaks(Broken::CountsWithoutWhatIsMissing) {
            self.overlay.forget(&changes);
        }
        self.run.publish(&self.path, &changes).await?;
        self.overlay.forget(&changes);
        Ok(())
    }

    /// Nothing more is taken from its code; what it has written and not published is returned.
    pub(crate) async fn finish(&self) -> Changes {
        let _none = self.publishing.lock().await;
        self.overlay.close()
    }

    /// Nothing more is taken from its code, and what it has written is dropped.
    pub(crate) fn close(&self) {
        self.overlay.close();
    }
}

/// An attempt that is known, and where it belongs.
#[derive(Debug)]
struct Known {
    attempt: Arc<Attempt>,
    /// The attempt that it is within, if it is within one.
    parent: Option<Arc<str>>,
    /// The attempt whose function shows this, and may show what is within.
    owner: Arc<str>,
    within: BTreeSet<Arc<str>>,
}

/// All attempts under way, by what their functions show.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    known: RwLock<BTreeMap<Arc<str>, Known>>,
}

impl Attempts {
    /// Makes an attempt known; returns what its function shows.
    ///
    /// Errors: `AttemptEnded` if that which it is within is over, `Invalid` if too many are within that.
    pub(crate) fn open(
        &self,
        attempt: &Arc<Attempt>,
        parent: Option<&str>,
        entropy: &dyn Entropy,
    ) -> Result<Arc<str>> {
        let token: Arc<str> = format!(
            "step-{:016x}{:016x}",
            entropy.next_u64(),
            entropy.next_u64()
        )
        .into();
        let mut known = self.known.write();
        let (parent, owner) = match parent {
            None => (None, Arc::clone(&token)),
            Some(parent) => {
                let parent: Arc<str> = parent.into();
                let around = known.get_mut(&parent).ok_or(Error::AttemptEnded)?;
                if around.within.len() >= WITHIN_MAX {
                    let say = format!("{WITHIN_MAX} steps at most are open within one at a time");
                    return Err(Error::Invalid(say));
                }
                around.within.insert(Arc::clone(&token));
                let owner = Arc::clone(&around.owner);
                (Some(parent), owner)
            }
        };
        let entry = Known {
            attempt: Arc::clone(attempt),
            parent,
            owner,
            within: BTreeSet::new(),
        };
        known.insert(Arc::clone(&token), entry);
        Ok(token)
    }

    /// Errors: `AttemptEnded` if it is not under way.
    pub(crate) fn find(&self, token: &str) -> Result<Arc<Attempt>> {
        let known = self.known.read();
        known
            .get(token)
            .map(|known| Arc::clone(&known.attempt))
            .ok_or(Error::AttemptEnded)
    }

    /// The attempt whose code has begun that of `token`. Errors: `AttemptEnded` if one of them is over, `Invalid` if it is within none.
    pub(crate) fn around(&self, token: &str) -> Result<Arc<Attempt>> {
        let known = self.known.read();
        let within = known.get(token).ok_or(Error::AttemptEnded)?;
        let refuse = || Error::Invalid("it is no step within a step".to_owned());
        let around = within.parent.as_ref().ok_or_else(refuse)?;
        known
            .get(around)
            .map(|known| Arc::clone(&known.attempt))
            .ok_or(Error::AttemptEnded)
    }

    /// Whether `token` is that of `owner` or of a step within it.
    pub(crate) fn is_within(&self, owner: &str, token: &str) -> bool {
        owner == token
            || self
                .known
                .read()
                .get(token)
                .is_some_and(|known| &*known.owner == owner)
    }

    /// An attempt is over, and so is what is within; what they have written is dropped. None: it was over.
    pub(crate) fn close(&self, token: &str) -> Option<Arc<Attempt>> {
        let (attempt, within) = self.forget(token)?;
        attempt.close();
        for attempt in within {
            attempt.close();
        }
        Some(attempt)
    }

    /// The same, and it comes to count: what it has written itself is still its own.
    pub(crate) fn take(&self, token: &str) -> Option<Arc<Attempt>> {
        let (attempt, within) = self.forget(token)?;
        for attempt in within {
            attempt.close();
        }
        Some(attempt)
    }

    /// The function that has begun `token` is heard no more, with whatever it has begun.
    pub(crate) fn interrupt(&self, token: &str) {
        let owner = self
            .known
            .read()
            .get(token)
            .map(|known| Arc::clone(&known.owner));
        if let Some(owner) = owner {
            // What it has written goes once it has ended.
            self.take(&owner);
        }
    }

    fn forget(&self, token: &str) -> Option<(Arc<Attempt>, Vec<Arc<Attempt>>)> {
        let mut known = self.known.write();
        let gone = known.remove(token)?;
        if let Some(around) = gone
            .parent
            .as_ref()
            .and_then(|parent| known.get_mut(parent))
        {
            around.within.remove(token);
        }
        let mut within = Vec::new();
        let mut left = Vec::from_iter(gone.within);
        while let Some(token) = left.pop() {
            let Some(gone) = known.remove(&token) else {
                continue;
            };
            left.extend(gone.within);
            within.push(gone.attempt);
        }
        Some((gone.attempt, within))
    }
}

/// Ends an attempt whatever becomes of who has it run.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    pub(crate) attempts: &'a Attempts,
    pub(crate) token: Arc<str>,
    pub(crate) attempt: Arc<Attempt>,
    /// The rule is broken that it ends.
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
