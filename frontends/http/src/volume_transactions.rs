//! Interactive transactions on volumes: the open ones of this server.
//!
//! A begin takes a snapshot. Gets read it and are remembered, puts are buffered, and the commit is
//! one proposal under the transaction's id. A client that repeats an id whose commit has taken
//! effect runs its body again, and its commit is answered as the first one was: nothing is written
//! twice.
//!
//! Inside an invocation of a function that has the volume mounted, a transaction is a block of the
//! invocation's own. Its commit ends the block, and it takes effect with the invocation.
//!
//! An open transaction is in the memory of the server where it was begun. A call at another server,
//! or after a restart, gets `no-such-transaction`, and its client begins again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use files::{Block, Errno, Transaction};
use parking_lot::Mutex;
use ports::{Clock, Entropy, Monotonic};
use tokio::sync::OwnedSemaphorePermit;
use transactions::{
    Error,
    model::{Attempt, Call, NodeId, Outcome, TransactionId},
    serializable::{model::ProposalId, volumes::VolumeName},
};

use crate::{
    of_invocation::OfInvocation,
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
    name: VolumeName,
    begun: Monotonic,
    used: Mutex<Monotonic>,
    /// One call at a time works on it.
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(Work),
    Ended(Outcome),
}

#[derive(Debug)]
struct Work {
    place: Place,
    /// Its buffered bodies count against the memory for bodies.
    buffered: Vec<OwnedSemaphorePermit>,
}

/// The transaction that it works on.
#[derive(Debug)]
enum Place {
    /// Its own.
    Own(Box<Own>),
    /// That of an invocation.
    Invocation {
        of: Weak<dyn OfInvocation>,
        block: Block,
    },
}

#[derive(Debug)]
struct Own {
    transaction: Transaction,
    proposal: ProposalId,
    volume: Arc<OpenVolume>,
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
        let snapshot = volume.store.snapshot().await?;
        volume.store.externalize(snapshot.point).await?;
        let transaction = volume.files.begin_at(snapshot.value.slot);
        let own = |id: &Bytes, sequence| {
            Ok(Place::Own(Box::new(Own {
                transaction,
                proposal: ProposalId::new(id.clone(), sequence)?,
                volume,
            })))
        };
        self.open(name, id, own)
    }

    /// Begins a block of the transaction of an invocation, or another attempt of it. Errors: the
    /// invocation has ended; `TooManyTransactions`.
    pub(crate) async fn join(
        &self,
        name: VolumeName,
        of: &Arc<dyn OfInvocation>,
        id: Option<TransactionId>,
    ) -> Result<(Bytes, Attempt), Problem> {
        let shared = of.transaction().ok_or_else(invocation_ended)?;
        let shared = shared.lock().await;
        let block = shared.as_ref().ok_or_else(invocation_ended)?.block();
        let of = Arc::downgrade(of);
        self.open(name, id, |_, _| Ok(Place::Invocation { of, block }))
    }

    fn open(
        &self,
        name: VolumeName,
        id: Option<TransactionId>,
        place: impl FnOnce(&Bytes, u64) -> Result<Place, Problem>,
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
            name,
            begun: now,
            used: Mutex::new(now),
            state: tokio::sync::Mutex::new(State::Open(Work {
                place: place(&id, sequence)?,
                buffered: Vec::new(),
            })),
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

    /// Reads within it. Errors: it has ended; those of `work`.
    pub(crate) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut Transaction) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        match &mut self.state.lock().await.open()?.place {
            Place::Own(own) => own.run(work).await,
            Place::Invocation { of, block } => {
                let of = of.upgrade().ok_or_else(invocation_ended)?;
                run_in(&*of, block, work).await
            }
        }
    }

    /// The same for work that changes something, and keeps the memory of a body.
    pub(crate) async fn change<T>(
        &self,
        buffered: Option<OwnedSemaphorePermit>,
        work: impl AsyncFnOnce(&mut Transaction) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let mut state = self.state.lock().await;
        let open = state.open()?;
        open.buffered.extend(buffered);
        match &mut open.place {
            Place::Own(own) => own.run(work).await,
            Place::Invocation { of, block } => {
                let of = of.upgrade().ok_or_else(invocation_ended)?;
                if of.is_read_only() {
                    let why = "the function has this volume with `read_only = true`";
                    return Err(Problem::invalid(why));
                }
                block.write();
                run_in(&*of, block, work).await
            }
        }
    }

    /// Shows changes of files to the function, if it is one that works on the same transaction.
    pub(crate) async fn show_changes(&self) -> Result<(), Problem> {
        let of = match &self.state.lock().await.open()?.place {
            Place::Own(_) => None,
            Place::Invocation { of, .. } => of.upgrade(),
        };
        match of {
            Some(of) => {
                let shown = of.show_changes().await;
                shown.map_err(|why| Problem::new(Kind::OutcomeUnknown, why))
            }
            None => Ok(()),
        }
    }

    /// Commits it, durably; a block only ends, and is committed with its invocation. A repeat is answered as the first. Errors: `Conflict`, and the refusals
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
        let own = match work.place {
            Place::Own(own) => own,
            Place::Invocation { block, .. } => {
                block.end();
                *state = State::Ended(Outcome::Committed);
                return Ok(());
            }
        };
        let committed = own.transaction.commit(Some(own.proposal), || false);
        match committed.await {
            Ok(files::Outcome::Committed { point, .. }) => {
                let durable = own.volume.store.externalize(point).await;
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

    /// Ends it without effect. Errors: it has committed. If it is a block that has written, its
    /// invocation cannot commit.
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

impl State {
    fn open(&mut self) -> Result<&mut Work, Problem> {
        match self {
            Self::Open(open) => Ok(open),
            Self::Ended(outcome) => Err(Error::TransactionFinished(*outcome).into()),
        }
    }
}

impl Own {
    async fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Transaction) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let done = work(&mut self.transaction).await;
        let point = self.transaction.point();
        self.volume.store.externalize(point).await?;
        done
    }
}

/// Works on the transaction of an invocation. Errors: that of `block` has ended.
async fn run_in<T>(
    of: &dyn OfInvocation,
    block: &Block,
    work: impl AsyncFnOnce(&mut Transaction) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let mut shared = of.transaction().ok_or_else(invocation_ended)?.lock().await;
    let transaction = shared.as_mut().filter(|present| block.is_of(present));
    work(transaction.ok_or_else(invocation_ended)?).await
}

fn invocation_ended() -> Problem {
    let mut ended = Problem::from(Error::TransactionFinished(Outcome::Aborted));
    ended.detail = "the invocation that it is a part of has ended".into();
    ended
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use simulated::World;
    use transactions::serializable::{
        ModelVolumes, Volumes as _, model::BlockBytes, volumes::VolumeSettings,
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

    /// An invocation of a function with a volume.
    #[derive(Debug)]
    struct Invoked {
        is_read_only: bool,
        transaction: tokio::sync::Mutex<Option<Transaction>>,
        shown: AtomicUsize,
    }

    impl Invoked {
        fn new(volume: &OpenVolume, is_read_only: bool) -> Arc<Self> {
            Arc::new(Self {
                is_read_only,
                transaction: tokio::sync::Mutex::new(Some(volume.files.begin())),
                shown: AtomicUsize::new(0),
            })
        }

        /// Begins a block, as this process sees it.
        async fn block(
            self: &Arc<Self>,
            known: &VolumeTransactions,
        ) -> Result<Arc<VolumeTransaction>, Problem> {
            let of = Arc::<Self>::clone(self) as Arc<dyn OfInvocation>;
            let (id, _) = known.join(name(), &of, None).await?;
            Ok(known.find(&call(&id))?.expect("it is open"))
        }

        async fn take(&self) -> Transaction {
            self.transaction.lock().await.take().expect("it runs")
        }
    }

    #[async_trait]
    impl OfInvocation for Invoked {
        fn volume(&self) -> &'static str {
            "v"
        }

        fn is_read_only(&self) -> bool {
            self.is_read_only
        }

        fn transaction(&self) -> Option<&tokio::sync::Mutex<Option<Transaction>>> {
            Some(&self.transaction)
        }

        async fn show_changes(&self) -> Result<(), String> {
            self.shown.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    async fn put(block: &VolumeTransaction, value: &'static str) -> Result<(), Problem> {
        let (name, value) = (Bytes::from("k"), Bytes::from(value));
        let put =
            async |transaction: &mut Transaction| Ok(transaction.put_key(&name, Some(value))?);
        block.change(None, put).await
    }

    async fn get(block: &VolumeTransaction) -> Result<Option<Bytes>, Problem> {
        let name = Bytes::from("k");
        let get = async |transaction: &mut Transaction| Ok(transaction.get_key(&name).await?);
        block.read(get).await
    }

    #[test]
    fn a_block_takes_effect_with_its_invocation() {
        simulated::run(async {
            let (known, volume) = open().await;
            let invoked = Invoked::new(&volume, false);
            let block = invoked.block(&known).await.expect("begun");
            assert_eq!(get(&block).await.expect("read"), None);
            put(&block, "new").await.expect("put");
            block.commit().await.expect("ended");
            block
                .commit()
                .await
                .expect("a repeat is answered as the first");
            let later = invoked.block(&known).await.expect("begun");
            assert_eq!(get(&later).await.expect("read"), Some("new".into()));
            let before = volume.files.begin().get_key(&Bytes::from("k")).await;
            assert_eq!(before, Ok(None), "the invocation has not committed");
            let whole = invoked.take().await;
            assert!(!whole.is_torn());
            whole.commit(None, || false).await.expect("committed");
            let after = volume.files.begin().get_key(&Bytes::from("k")).await;
            assert_eq!(after, Ok(Some("new".into())));
        });
    }

    #[test]
    fn a_block_that_wrote_and_was_aborted_or_left_open_tears_its_invocation() {
        simulated::run(async {
            let (known, volume) = open().await;
            for aborts in [true, false] {
                let invoked = Invoked::new(&volume, false);
                let only_read = invoked.block(&known).await.expect("begun");
                get(&only_read).await.expect("read");
                only_read.abort().await.expect("aborted");
                let block = invoked.block(&known).await.expect("begun");
                put(&block, "new").await.expect("put");
                if aborts {
                    block.abort().await.expect("aborted");
                    assert!(put(&block, "late").await.is_err());
                }
                assert!(invoked.take().await.is_torn());
            }
        });
    }

    #[test]
    fn a_block_ends_with_its_invocation() {
        simulated::run(async {
            let (known, volume) = open().await;
            let invoked = Invoked::new(&volume, false);
            let block = invoked.block(&known).await.expect("begun");
            drop(invoked.take().await);
            assert!(put(&block, "late").await.is_err());
            assert!(invoked.block(&known).await.is_err());
            *invoked.transaction.lock().await = Some(volume.files.begin());
            let refused = put(&block, "late").await.expect_err("the next invocation");
            assert_eq!(refused.kind(), Kind::TransactionFinished);
            assert!(!invoked.take().await.is_torn());
        });
    }

    #[test]
    fn a_block_of_a_function_that_reads_does_not_write() {
        simulated::run(async {
            let (known, volume) = open().await;
            let invoked = Invoked::new(&volume, true);
            let block = invoked.block(&known).await.expect("begun");
            assert_eq!(get(&block).await.expect("read"), None);
            let refused = put(&block, "new").await.expect_err("it only reads");
            assert_eq!(refused.kind(), Kind::InvalidRequest);
            block.show_changes().await.expect("shown");
            assert_eq!(invoked.shown.load(Ordering::Relaxed), 1);
            block.commit().await.expect("ended");
            assert!(!invoked.take().await.is_torn());
        });
    }
}
