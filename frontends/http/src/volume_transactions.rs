//! Interactive transactions on volumes: the open ones of this server.
//!
//! A begin takes a snapshot. Gets read it and are remembered, puts are buffered, and the commit is
//! one proposal under the transaction's id. A client that repeats an id whose commit has taken
//! effect runs its body again, and its commit is answered as the first one was: nothing is written
//! twice.
//!
//! An open transaction is in the memory of the server where it was begun. A call at another server,
//! or after a restart, gets `no-such-transaction`, and its client begins again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use files::{Errno, Transaction};
use parking_lot::Mutex;
use ports::{Clock, Entropy, Monotonic};
use tokio::sync::OwnedSemaphorePermit;
use transactions::{
    Error,
    model::{Attempt, Call, NodeId, Outcome, TransactionId},
    serializable::{model::ProposalId, volumes::VolumeName},
};

use crate::{
    open_volumes::OpenVolume,
    problem::{Kind, Problem},
};

/// The most transactions that are open at once. Beyond it a begin is refused.
const OPEN_MAX: usize = 1_000;
/// How long a transaction lives without a call. A snapshot is readable no longer.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// How long a transaction lives in all.
const AGE_MAX: Duration = Duration::from_mins(15);
/// How long the end of a transaction is known to repeats.
const ENDED_MAX: Duration = Duration::from_mins(2);

/// The open transactions on volumes, and those that ended lately.
#[derive(Debug)]
pub(crate) struct VolumeTransactions {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    transactions: BTreeMap<Bytes, Arc<VolumeTransaction>>,
    last_sequence: u64,
}

/// A transaction on a volume.
#[derive(Debug)]
pub(crate) struct VolumeTransaction {
    attempt: Attempt,
    proposal: ProposalId,
    name: VolumeName,
    volume: Arc<OpenVolume>,
    begun: Monotonic,
    used: Mutex<Monotonic>,
    /// One call at a time works on it.
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(Box<Work>),
    Ended(Outcome),
}

#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) transaction: Transaction,
    /// Its buffered bodies count against the memory for bodies.
    pub(crate) buffered: Vec<OwnedSemaphorePermit>,
}

impl VolumeTransactions {
    pub(crate) fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            clock,
            entropy,
            known: Mutex::default(),
        }
    }

    /// Begins a transaction at a snapshot of now, or another attempt of it. Errors:
    /// `TooManyTransactions`.
    pub(crate) async fn begin(
        &self,
        name: VolumeName,
        volume: Arc<OpenVolume>,
        id: Option<TransactionId>,
    ) -> Result<(Bytes, Attempt), Problem> {
        let id = match id {
            Some(id) => id.as_bytes().clone(),
            None => format!(
                "volume-{:016x}{:016x}",
                self.entropy.next_u64(),
                self.entropy.next_u64()
            )
            .into(),
        };
        let snapshot = volume.store.snapshot().await?;
        volume.store.externalize(snapshot.point).await?;
        let transaction = volume.files.begin_at(snapshot.value.slot);
        let now = self.clock.monotonic();
        let known = &mut *self.known.lock();
        known.forget_old(now);
        if known.transactions.len() >= OPEN_MAX && !known.transactions.contains_key(&id) {
            return Err(Error::TooManyOpen.into());
        }
        // Attempts of one id increase also over restarts, while the clock does.
        let sequence = (self.clock.now().0 << 10).max(known.last_sequence + 1);
        known.last_sequence = sequence;
        let attempt = Attempt {
            node: NodeId(0),
            sequence,
        };
        let begun = VolumeTransaction {
            attempt,
            proposal: ProposalId::new(id.clone(), sequence)?,
            name,
            volume,
            begun: now,
            used: Mutex::new(now),
            state: tokio::sync::Mutex::new(State::Open(Box::new(Work {
                transaction,
                buffered: Vec::new(),
            }))),
        };
        known.transactions.insert(id.clone(), Arc::new(begun));
        Ok((id, attempt))
    }

    /// The transaction that a call is for; `None`: it is none on a volume. Errors: the call is for
    /// an earlier attempt.
    pub(crate) fn find(&self, call: &Call) -> Result<Option<Arc<VolumeTransaction>>, Problem> {
        let now = self.clock.monotonic();
        let known = &mut *self.known.lock();
        known.forget_old(now);
        let Some(found) = known.transactions.get(call.id.as_bytes()) else {
            return Ok(None);
        };
        if call.attempt.is_some_and(|attempt| attempt != found.attempt) {
            return Err(Error::TransactionFinished(Outcome::BegunAnew).into());
        }
        *found.used.lock() = now;
        Ok(Some(Arc::clone(found)))
    }
}

impl Known {
    fn forget_old(&mut self, now: Monotonic) {
        self.transactions.retain(|_, transaction| {
            let idle = now.since(*transaction.used.lock());
            match transaction.state.try_lock().as_deref() {
                // A call is at work.
                Err(_) => true,
                Ok(State::Open(_)) => idle < IDLE_MAX && now.since(transaction.begun) < AGE_MAX,
                Ok(State::Ended(_)) => idle < ENDED_MAX,
            }
        });
    }
}

impl VolumeTransaction {
    /// The volume that it is on.
    pub(crate) fn volume_name(&self) -> &VolumeName {
        &self.name
    }

    /// Works on it. Errors: it has ended; those of `work`.
    pub(crate) async fn with<T>(
        &self,
        work: impl AsyncFnOnce(&mut Work) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let mut state = self.state.lock().await;
        match &mut *state {
            State::Open(open) => {
                let done = work(open).await;
                let point = open.transaction.point();
                self.volume.store.externalize(point).await?;
                done
            }
            State::Ended(outcome) => Err(Error::TransactionFinished(*outcome).into()),
        }
    }

    /// Commits it, durably. A repeat is answered as the first. Errors: `Conflict`, and the refusals
    /// of the volume, after all of which nothing takes effect; `OutcomeUnknown`.
    pub(crate) async fn commit(&self) -> Result<(), Problem> {
        let mut state = self.state.lock().await;
        // If this call is dropped meanwhile, its outcome stays unknown here. The client's next
        // attempt under the id learns it.
        let before = std::mem::replace(&mut *state, State::Ended(Outcome::Committing));
        let work = match before {
            State::Open(work) => work,
            State::Ended(outcome) => {
                *state = State::Ended(outcome);
                return match outcome {
                    Outcome::Committed => Ok(()),
                    Outcome::Committing => Err(Error::OutcomeUnknown.into()),
                    outcome => Err(Error::TransactionFinished(outcome).into()),
                };
            }
        };
        let committed = work
            .transaction
            .commit(Some(self.proposal.clone()), || false);
        match committed.await {
            Ok(files::Outcome::Committed { point }) => {
                let durable = self.volume.store.externalize(point).await;
                durable.map_err(|_| Error::OutcomeUnknown)?;
                *state = State::Ended(Outcome::Committed);
                Ok(())
            }
            Ok(files::Outcome::Conflict { .. }) => {
                *state = State::Ended(Outcome::Aborted);
                Err(Error::Conflict.into())
            }
            Err(Errno::EIO) => Err(Problem::from(Errno::EIO).but(Kind::OutcomeUnknown)),
            Err(errno) => {
                *state = State::Ended(Outcome::Aborted);
                Err(errno.into())
            }
        }
    }

    /// Ends it without effect. Errors: it has committed.
    pub(crate) async fn abort(&self) -> Result<(), Problem> {
        let mut state = self.state.lock().await;
        match &*state {
            State::Ended(Outcome::Committed) => {
                Err(Error::TransactionFinished(Outcome::Committed).into())
            }
            State::Ended(Outcome::Committing) => Err(Error::OutcomeUnknown.into()),
            _ => {
                *state = State::Ended(Outcome::Aborted);
                Ok(())
            }
        }
    }

    /// How it ended, or that it is open.
    pub(crate) async fn outcome(&self) -> Outcome {
        match &*self.state.lock().await {
            State::Open(_) => Outcome::Open,
            State::Ended(outcome) => *outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use simulated::World;
    use transactions::serializable::{
        Volumes as _,
        model::BlockBytes,
        volumes::{ModelVolumes, VolumeSettings},
    };

    use super::*;
    use crate::open_volumes::OpenVolumes;

    /// The transactions of a server with one volume, which is opened.
    async fn open() -> (VolumeTransactions, Arc<OpenVolume>) {
        let world = World::new(1);
        let (all, name) = (ModelVolumes::default(), name());
        let settings = VolumeSettings {
            block_bytes: BlockBytes::new(4_096).expect("a size"),
            quota_bytes: None,
        };
        all.create(name.clone(), settings).await.expect("created");
        let (clock, entropy) = (world.clock(), world.entropy());
        let volumes = OpenVolumes::new(Arc::new(all), clock.clone(), entropy.clone());
        let volume = volumes.open(&name).await.expect("opened");
        (VolumeTransactions::new(clock, entropy), volume)
    }

    fn name() -> VolumeName {
        VolumeName::new("v").expect("a name")
    }

    fn call(id: &Bytes) -> Call {
        Call::latest(TransactionId::new(id.clone()).expect("an id"))
    }

    #[test]
    fn a_transaction_is_forgotten_after_a_minute_without_a_call_or_a_quarter_of_an_hour() {
        simulated::run(async {
            let (known, volume) = open().await;
            let clock = known.clock.clone();
            let (id, _) = known
                .begin(name(), volume.clone(), None)
                .await
                .expect("begun");
            clock.sleep(IDLE_MAX * 3 / 2).await;
            assert!(known.find(&call(&id)).expect("no attempt").is_none());
            let (id, _) = known
                .begin(name(), volume.clone(), None)
                .await
                .expect("begun");
            for _ in 0..18 {
                assert!(known.find(&call(&id)).expect("no attempt").is_some());
                clock.sleep(IDLE_MAX * 5 / 6).await;
            }
            assert!(known.find(&call(&id)).expect("no attempt").is_none());
        });
    }

    #[test]
    fn an_end_is_known_for_two_minutes_and_the_open_ones_are_bounded() {
        simulated::run(async {
            let (known, volume) = open().await;
            let clock = known.clock.clone();
            let (id, _) = known
                .begin(name(), volume.clone(), None)
                .await
                .expect("begun");
            let ended = known.find(&call(&id)).expect("no attempt").expect("open");
            ended.commit().await.expect("committed");
            clock.sleep(ENDED_MAX * 3 / 4).await;
            let found = known.find(&call(&id)).expect("no attempt").expect("known");
            assert_eq!(found.outcome().await, Outcome::Committed);
            for _ in 1..OPEN_MAX {
                known
                    .begin(name(), volume.clone(), None)
                    .await
                    .expect("begun");
            }
            let refused = known
                .begin(name(), volume, None)
                .await
                .expect_err("too many");
            assert_eq!(refused.kind(), Kind::TooManyTransactions);
        });
    }
}
