//! One attempt of a transaction, without I/O: which calls it may send in which state, and the
//! effect of each response on it.
//!
//! Invariants
//! - The client sends nothing for an attempt that has ended; the error says how it ended.
//! - While a write may still be in flight, the attempt never sends another write of the same key:
//!   the late copy would undo it. The attempt is given up instead, and its body may run again.
//! - An attempt with a write that may or may not have arrived never commits, no matter how its body
//!   handles the error.

use std::collections::BTreeSet;

use crate::{
    call::Call,
    error::{Error, ErrorKind, Outcome, Result},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// A commit is in flight, or its outcome is unknown.
    Committing,
    Committed,
    Aborted,
}

/// How `transact` treats a body that failed. The last error that its transaction returned decides,
/// unless the body has gone on since.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// The body's own error is final.
    Failed,
    /// The attempt had no effect; run the body again.
    Again(Error),
    /// The id had committed before.
    Skip,
}

#[derive(Debug)]
pub(crate) struct Attempt {
    id: String,
    pub(crate) phase: Phase,
    verdict: Verdict,
    /// A copy of its begin may arrive late, and begin the id anew.
    is_begin_doubled: bool,
    /// Keys with a write of which a copy may arrive late.
    doubled: BTreeSet<Vec<u8>>,
    is_torn: bool,
    /// The caller no longer waits for the response to a commit, which may not have been sent.
    is_commit_broken_off: bool,
    /// Number of effects that have a position.
    effects: u64,
    ended: Option<Error>,
}

impl Attempt {
    pub(crate) fn begun(id: &str, is_begin_doubled: bool) -> Self {
        Self {
            id: id.to_owned(),
            phase: Phase::Open,
            verdict: Verdict::Failed,
            is_begin_doubled,
            doubled: BTreeSet::new(),
            is_torn: false,
            is_commit_broken_off: false,
            effects: 0,
            ended: None,
        }
    }

    /// Whether `call` may be sent now.
    pub(crate) fn may_call(&mut self, call: &Call) -> Result<()> {
        if self.phase != Phase::Open {
            return Err(self.noted(self.over(call)));
        }
        self.may_go_on(call)
    }

    /// Whether `call`, which writes `key`, may be sent now.
    pub(crate) fn may_write(&mut self, call: &Call, key: &[u8]) -> Result<()> {
        self.is_torn |= self.phase == Phase::Open && self.doubled.contains(key);
        self.may_call(call)
    }

    /// The position of the next effect. The attempt assigns it before the response arrives and
    /// never reuses it after a refusal, because other effects may be in flight.
    pub(crate) fn next_effect(&mut self) -> u64 {
        let place = self.effects;
        self.effects += 1;
        place
    }

    /// Whether a commit may be sent now: the first one, or a repeat while its outcome is unknown.
    pub(crate) fn may_commit(&mut self, call: &Call) -> Result<()> {
        if !matches!(self.phase, Phase::Open | Phase::Committing) {
            return Err(self.noted(self.over(call)));
        }
        self.may_go_on(call)?;
        self.phase = Phase::Committing;
        self.is_commit_broken_off = false;
        Ok(())
    }

    /// Whether an abort must be sent: not if the attempt is over already and did not commit.
    pub(crate) fn may_abort(&mut self, call: &Call) -> Result<bool> {
        match self.phase {
            Phase::Aborted => Ok(false),
            Phase::Committed => Err(self.noted(self.over(call))),
            Phase::Open | Phase::Committing => Ok(true),
        }
    }

    pub(crate) fn wrote(&mut self, key: &[u8], is_doubled: bool) {
        if is_doubled {
            self.doubled.insert(key.to_vec());
        }
    }

    /// The caller no longer waits for the response to a write.
    pub(crate) fn tear(&mut self) {
        self.is_torn = true;
    }

    /// The caller no longer waits for the response to a commit.
    pub(crate) fn break_commit_off(&mut self) {
        self.is_commit_broken_off = true;
    }

    /// Whether it stays open until its time-out unless the client ends it.
    pub(crate) fn may_be_open(&self) -> bool {
        self.phase == Phase::Open || (self.phase == Phase::Committing && self.is_commit_broken_off)
    }

    pub(crate) fn write_failed(&mut self, call: &Call, error: Error) -> Error {
        self.is_torn |= error.may_have_happened();
        self.failed(call, error)
    }

    /// A commit succeeded: the outcome of other calls no longer matters.
    pub(crate) fn committed(&mut self) {
        self.phase = Phase::Committed;
        self.verdict = Verdict::Failed;
        self.ended = None;
    }

    /// A commit failed; it may be repeated while its outcome is unknown.
    pub(crate) fn commit_failed(&mut self, call: &Call, error: Error) -> Error {
        if !error.kind().ends_attempt() && !error.may_have_happened() {
            self.phase = Phase::Open;
        }
        self.failed(call, error)
    }

    /// An abort returned, with `error` if any. The attempt is over, unless the error says that it
    /// has committed.
    pub(crate) fn aborted(&mut self, error: Option<Error>) -> Result<()> {
        self.phase = Phase::Aborted;
        match error {
            Some(error) => match error.kind() {
                ErrorKind::TransactionFinished(Outcome::Committed) => {
                    self.phase = Phase::Committed;
                    Err(error)
                }
                ErrorKind::TransactionFinished(_) | ErrorKind::NoSuchTransaction => Ok(()),
                _ => Err(error),
            },
            None => Ok(()),
        }
    }

    /// The verdict on its body. A body that may have committed never runs again.
    pub(crate) fn verdict(&self) -> Verdict {
        match (&self.verdict, self.phase) {
            (Verdict::Again(_), Phase::Committing | Phase::Committed) => Verdict::Failed,
            (verdict, _) => verdict.clone(),
        }
    }

    /// Whether its body ended it without a commit, by an abort of its own.
    pub(crate) fn is_given_up(&self) -> bool {
        self.phase == Phase::Aborted && self.ended.is_none()
    }

    /// A call failed: the error for its caller.
    pub(crate) fn failed(&mut self, call: &Call, mut error: Error) -> Error {
        match error.kind() {
            _ if self.is_committed_meanwhile() => error = self.committed_meanwhile(call),
            // This attempt's own commit ended it: the call was in flight when the commit succeeded.
            _ if self.phase == Phase::Committed => return self.noted(error),
            ErrorKind::TransactionFinished(Outcome::Committed) => {
                self.phase = Phase::Committed;
                error = self.committed_meanwhile(call);
            }
            // Perhaps no other client did it: a copy of this attempt's own begin may have arrived
            // late.
            ErrorKind::TransactionFinished(Outcome::BegunAnew) if self.is_begin_doubled => {
                error = error.with_body_again(true);
            }
            _ => {}
        }
        let is_over = error.kind().ends_attempt() && error.kind() != ErrorKind::Expired;
        if is_over {
            self.ended = Some(error.clone());
            if self.phase != Phase::Committed {
                self.phase = Phase::Aborted;
            }
        }
        self.noted(error)
    }

    fn may_go_on(&mut self, call: &Call) -> Result<()> {
        if !self.is_torn {
            // A body that sends another call has handled the earlier failure.
            self.verdict = Verdict::Failed;
            return Ok(());
        }
        let detail = "an earlier write of this attempt was sent more than once and a copy may still arrive, or not";
        Err(self.noted(self.error(call, ErrorKind::Unavailable, detail)))
    }

    fn over(&self, call: &Call) -> Error {
        let finished = |outcome| {
            let kind = ErrorKind::TransactionFinished(outcome);
            self.error(call, kind, "it has ended")
        };
        // The server's first error, if there was one: the body may have ignored it.
        match (&self.ended, self.phase) {
            _ if self.is_committed_meanwhile() => self.committed_meanwhile(call),
            (Some(ended), _) => {
                let error = finished(match ended.kind() {
                    ErrorKind::TransactionFinished(outcome) => outcome,
                    _ => Outcome::Aborted,
                });
                error.with_body_again(ended.body_may_run_again())
            }
            (None, Phase::Open | Phase::Committing) => {
                let why = "its commit has been asked for; it takes no more calls";
                self.error(call, ErrorKind::InvalidRequest, why)
            }
            (None, Phase::Committed) => finished(Outcome::Committed),
            (None, Phase::Aborted) => finished(Outcome::Aborted).with_body_again(false),
        }
    }

    fn is_committed_meanwhile(&self) -> bool {
        let ended = self.ended.as_ref().map(Error::kind);
        ended == Some(ErrorKind::AlreadyCommitted)
    }

    fn committed_meanwhile(&self, call: &Call) -> Error {
        let why = "its id has committed meanwhile";
        self.error(call, ErrorKind::AlreadyCommitted, why)
    }

    fn error(&self, call: &Call, kind: ErrorKind, detail: &str) -> Error {
        Error::new(kind, call.what.clone(), detail).of_transaction(Some(&self.id))
    }

    fn noted(&mut self, error: Error) -> Error {
        self.verdict = match (error.kind(), &self.verdict) {
            // No outcome of another call in flight changes that.
            (ErrorKind::AlreadyCommitted, _) | (_, Verdict::Skip) => Verdict::Skip,
            _ if error.body_may_run_again() => Verdict::Again(error.clone()),
            _ => Verdict::Failed,
        };
        error
    }
}

#[cfg(test)]
mod tests;
