//! The commit, step by step.
//!
//! ```text
//!  1  together, in this order of issue: the entry of the log, which assigns the timestamp; the
//!     data. One after the other if the write set is large: the entry, the parts of the write set,
//!     the data
//!  2  all of that is confirmed
//!  3  the decision row, with the record: the one write that decides
//!  4  each part learns of it: cache, outbox, log (`Commit::on_commit`)
//!  5  wait until the row is durable, and with it all before it
//!  6  answer
//! ```
//!
//! Where the store can, 1 to 3 are one step of it ([`grouped`]).
//!
//! Nothing in 1 to 4 waits for the disk (external synchrony). The order of issue is the order of
//! durability, so a durable row implies a durable entry and durable data. The table in
//! `docs/design/0003-transactions.md`, section 7.2, lists what a crash after each step leaves and
//! which node finishes it.

mod grouped;
mod sequenced;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use ports::{DurabilityPoint, Monotonic, Read};

use crate::{
    Error, Result,
    attempts::{
        open_attempts::AttemptState,
        spills::Spills,
        transaction::{CommitAnswer, Phase, Transaction},
        write_buffer::{Buffered, Held, WriteBuffer},
    },
    broken::Broken,
    calls::{Calls, spill::delete_spilled},
    collection::delete::Superseded,
    effects::Effect,
    model::{Attempt, Call, Committed, Outcome, Position, Timestamp, TransactionId, Version},
    node::Node,
    packs::OnTheirWay,
    sequencer::{
        Proposal,
        validation::{Observed, Trace},
    },
    sequencing::keyspace::Order,
    storage::{
        node_log::{Draft, Placed},
        node_registry,
        records::{CommitRecord, Entry, Place, StoredRecord, Write, WriteSet},
        store::{Decided, refused},
    },
};

/// Version items written at a time.
const WRITES_AT_ONCE: usize = 64;

/// The result of asking for a commit.
pub(crate) enum Committing {
    /// It is under way.
    Here(Arc<Transaction>),
    /// It had committed before.
    Ended(Committed),
}

/// A commit under way.
struct Commit<'a> {
    calls: &'a Arc<Calls>,
    transaction: &'a Arc<Transaction>,
    /// When its client requested it.
    began: Monotonic,
    buffer: WriteBuffer,
    /// What it has spilled before.
    spills: Spills,
    effects: Vec<Effect>,
    /// The result that is kept with it.
    result: Option<Bytes>,
    writes: Vec<Write>,
    set: WriteSet,
    floor: Timestamp,
}

/// What an attempt has written, sent and kept.
type Written = (WriteBuffer, Spills, Vec<Effect>, Option<Bytes>);

impl Calls {
    pub(crate) async fn commit(self: &Arc<Self>, call: &Call) -> Result<Committed> {
        match self.begin_to_commit(call).await? {
            Committing::Here(transaction) => self.wait_for_end(&transaction).await,
            Committing::Ended(committed) => Ok(committed),
        }
    }

    /// Runs the commit up to step 4. A caller that externalizes the answer first waits for its
    /// point.
    pub(crate) async fn commit_shown(self: &Arc<Self>, call: &Call) -> Result<Read<Committed>> {
        let transaction = match self.begin_to_commit(call).await? {
            Committing::Here(transaction) => transaction,
            Committing::Ended(committed) => return Ok(Read::durable(committed)),
        };
        self.in_time(transaction.decided()).await
    }

    pub(crate) async fn begin_to_commit(self: &Arc<Self>, call: &Call) -> Result<Committing> {
        let found = if self.context.breaks(Broken::CommitsAnyAttempt) {
            self.attempts.lock().find_any(call)
        } else {
            self.find(call)
        };
        match found {
            AttemptState::Active(transaction) => {
                self.cluster.check_clock()?;
                self.start_commit(&transaction);
                Ok(Committing::Here(transaction))
            }
            AttemptState::Ended(answer) => answer.map(Committing::Ended),
            AttemptState::BegunAnew => Err(Error::TransactionFinished(Outcome::BegunAnew)),
            AttemptState::Unknown => Box::pin(self.answer_of(call)).await.map(Committing::Ended),
        }
    }

    /// Waits for a committing attempt to end, up to a limit. The commit continues until its outcome
    /// is known.
    pub(crate) async fn wait_for_end(&self, transaction: &Transaction) -> CommitAnswer {
        self.in_time(transaction.ended()).await
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.context.clock.sleep(self.context.config.commit_answer_timeout) => Err(Error::OutcomeUnknown),
        }
    }

    /// From here on the attempt accepts no writes and cannot be aborted. A second commit changes
    /// nothing.
    fn start_commit(self: &Arc<Self>, transaction: &Arc<Transaction>) {
        // A node that is shutting down ends open attempts.
        let Ok(at_work) = transaction.node.at_work() else {
            return;
        };
        let mut state = transaction.state();
        if state.phase != Phase::Open {
            return;
        }
        state.phase = Phase::Committing;
        let read = state.reads.newest_timed();
        let observed = transaction.read_at().map(|at| Observed {
            at,
            keys: state.reads.keys().map(Trace::of).collect(),
        });
        drop(state);
        let began = self.context.clock.monotonic();
        let (calls, transaction) = (Arc::clone(self), Arc::clone(transaction));
        self.context.spawn(async move {
            let _at_work = at_work;
            let spills = transaction.all_spills().await;
            let (buffer, effects, result) = transaction.state().take_written();
            let bytes = buffer.bytes() + effects.bytes() + result.as_ref().map_or(0, Bytes::len);
            let is_reader = buffer.is_empty() && effects.is_empty();
            let answer = if is_reader && !calls.context.breaks(Broken::ValidatesReaders) {
                commit_nothing(&transaction, result.as_ref()).await
            } else {
                let written = (buffer, spills, effects.into_effects(), result);
                let mut commit = Commit::new((&calls, &transaction), began, written, read);
                match calls.sequencing.order_of(&transaction, &commit.writes) {
                    Ok(Order::Sequenced) => commit.run_sequenced(observed).await,
                    Ok(Order::Timed { _under_way }) => commit.run().await,
                    Err(error) => commit.give_up(None, error),
                }
            };
            calls.context.counters.unbuffer(bytes);
            calls.end(&transaction, &mut transaction.state(), &answer);
        });
    }

    /// The row of a commit announced in `slot` holds the decision: the own log passes over its
    /// entries, once the data that later writes replaced are deleted.
    fn on_row(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        slot: u64,
        spills: Spills,
        record: &CommitRecord,
    ) {
        self.apply_own(&transaction.node, slot);
        transaction.settle(Some(slot));
        self.leave_no_replaced(transaction, spills, record);
        self.publish(&transaction.node);
    }

    /// Applies `slot` of the own log, whose commit is decided.
    pub(crate) fn apply_own(&self, node: &Arc<Node>, slot: u64) {
        let cache = self.cache.of(node.id);
        let through = node.log.decided(slot);
        if let Some(mut cache) = cache {
            cache.advance(node.id, through);
        }
    }

    /// Publishes a later start of the log, so that a successor need not read all of it.
    fn publish(&self, node: &Arc<Node>) {
        if let Some(row) = node
            .log
            .unpublished(node.id, self.context.config.slots_unpublished_max)
        {
            let node = Arc::clone(node);
            self.context.spawn(async move {
                if let Err(error) = node_registry::publish(&node.store, row).await {
                    tracing::debug!(%error, "the progress of the log was not published");
                }
            });
        }
    }
}

/// Step 0: nothing was written. A client id keeps a row for its repeats; a generated id stores
/// nothing.
async fn commit_nothing(transaction: &Transaction, result: Option<&Bytes>) -> CommitAnswer {
    let Transaction {
        id,
        attempt,
        node,
        began,
        ..
    } = transaction;
    let Some(slot) = began else {
        return Ok(Committed { after: None });
    };
    let record = StoredRecord {
        version: Version::default(),
        position: Position::default(),
        writes: WriteSet::Inline(Vec::new()),
        effects: 0,
    };
    let decided = node.store.commit(id, *attempt, true, (&record, result));
    let answer = match decided.await {
        Ok(Decided::Done(point)) => answer_durable(node, point, Committed { after: None }).await,
        Ok(Decided::Refused(decision, _)) => Err(refused(decision.as_ref(), id, *attempt)),
        Err(Error::Unavailable(_)) => return Err(Error::OutcomeUnknown),
        Err(error) => {
            node.store.close(id, *attempt, true).await?;
            Err(error)
        }
    };
    node.settled(*slot);
    answer
}

/// Steps 5 and 6.
async fn answer_durable(node: &Node, point: DurabilityPoint, committed: Committed) -> CommitAnswer {
    // After any failure the row is written still, and tells the outcome once it can be read.
    node.store
        .externalize(point)
        .await
        .map_err(|_| Error::OutcomeUnknown)?;
    Ok(committed)
}

impl<'a> Commit<'a> {
    fn new(
        (calls, transaction): (&'a Arc<Calls>, &'a Arc<Transaction>),
        began: Monotonic,
        (buffer, spills, effects, result): Written,
        read: Timestamp,
    ) -> Self {
        let is_leaving = buffer
            .iter()
            .any(|(_, buffered)| matches!(buffered.held, Held::Leaving(_)));
        assert!(
            !is_leaving || spills.failed.is_some(),
            "values are being spilled, and the commit does not wait for them"
        );
        let writes = buffer.write_set();
        let (set, _) = WriteSet::split(&writes, calls.context.config.write_set_inline_bytes_max);
        let known = {
            let cache = calls.cache.lock();
            let newest = writes
                .iter()
                .filter_map(|write| cache.index.newest(&write.key));
            newest
                .map(|record| record.version.timed())
                .max()
                .unwrap_or_default()
        };
        let floor = read.max(known).max(transaction.terms.after);
        Self {
            calls,
            transaction,
            began,
            buffer,
            spills,
            effects,
            result,
            writes,
            set,
            floor,
        }
    }

    fn names(&self) -> (&'a TransactionId, Attempt, &'a Arc<Node>) {
        let transaction = self.transaction;
        (&transaction.id, transaction.attempt, &transaction.node)
    }

    /// Errors: a value could not be spilled.
    fn may_begin(&mut self) -> Result<()> {
        self.spills.failed.take().map_or(Ok(()), Err)
    }

    async fn run(mut self) -> CommitAnswer {
        if let Err(error) = self.may_begin() {
            return self.give_up(None, error);
        }
        if let Some(data) = self.data_of_group() {
            return self.run_in_group(data).await;
        }
        let is_data_late = self.calls.context.breaks(Broken::RecordBeforeData);
        let data = async {
            if is_data_late {
                Ok(())
            } else {
                self.write_data().await
            }
        };
        let placed = match self.round_one(data).await {
            Ok(placed) => placed,
            Err((slot, error)) => return self.give_up(slot, error),
        };
        if self.calls.context.breaks(Broken::VisibleBeforeRecord) {
            let record = Arc::new(self.record(placed, DurabilityPoint::DURABLE));
            let node = self.transaction.node.id;
            self.calls
                .cache
                .on_commit(node, placed.slot, &record, &self.buffer);
        }
        let decided = self.decide(placed).await;
        if is_data_late {
            self.write_data().await?;
        }
        self.end(placed, decided).await
    }

    /// Steps 4 to 6, after the row was written or refused.
    async fn end(mut self, placed: Placed, decided: Result<Decided>) -> CommitAnswer {
        let point = match decided {
            Ok(Decided::Done(point)) => point,
            Ok(Decided::Refused(decision, point)) => {
                let (id, attempt, node) = self.names();
                node.store
                    .externalize(point)
                    .await
                    .map_err(|_| Error::OutcomeUnknown)?;
                return self.give_up(Some(placed.slot), refused(decision.as_ref(), id, attempt));
            }
            Err(Error::Unavailable(_)) => return Err(Error::OutcomeUnknown),
            Err(error) => return self.give_up(Some(placed.slot), error),
        };
        let record = Arc::new(self.record(placed, point));
        self.on_commit(placed.slot, &record, None);
        if self.calls.context.breaks(Broken::DropsTombstonesAtOnce) {
            self.drop_tombstones(&record).await?;
        }
        self.answer(&record).await
    }

    /// Step 4: the commit is decided. Each part that must learn of it does so here, once, and
    /// nothing here waits. Announcements and the collector read the cache and the log later.
    ///
    /// The order matters: a commit is in the cache before its slot counts as decided, because the
    /// recent commits are complete for decided slots. Its entries are settled last, because a
    /// successor passes over a settled slot.
    ///
    /// A commit in a sequenced keyspace gives its `proposal`: its decision is in the sequencer's
    /// log, and the log of this node learns of it once the row has it, too.
    fn on_commit(&mut self, slot: u64, record: &Arc<CommitRecord>, proposal: Option<Proposal>) {
        let (_, attempt, node) = self.names();
        self.calls
            .cache
            .on_commit(node.id, slot, record, &self.buffer);
        self.calls
            .effects
            .on_commit(node, attempt, self.effects.len(), record.point);
        let spills = std::mem::take(&mut self.spills);
        match proposal {
            None => self.calls.on_row(self.transaction, slot, spills, record),
            Some(proposal) => self.settle_later(slot, spills, record, proposal),
        }
    }

    /// Steps 5 and 6.
    async fn answer(&self, record: &CommitRecord) -> CommitAnswer {
        let after = record.after();
        if self.calls.context.breaks(Broken::AnswersBeforeDurable) {
            return Ok(Committed { after });
        }
        self.transaction.decide(Committed { after }, record.point);
        answer_durable(&self.transaction.node, record.point, Committed { after }).await
    }

    /// Step 1, with `data` as the items written beside the entry. Errors carry the slot of the
    /// entry, if it has one.
    async fn round_one(
        &self,
        data: impl Future<Output = Result<()>>,
    ) -> Result<Placed, (Option<u64>, Error)> {
        // Issued in order, so that the stored owner precedes what it owns. If the entry only names
        // the parts of its write set, those parts name the data. Each then waits for the one
        // before, so no sweep finds ownerless parts.
        let (_, parts) = WriteSet::split(
            &self.writes,
            self.calls.context.config.write_set_inline_bytes_max,
        );
        let (_, attempt, node) = self.names();
        let announced = node.log.append(self.draft());
        let (placed, data) = if parts.is_empty() {
            let (placed, data) = futures_util::join!(announced, data);
            (placed.map_err(|error| (None, error))?, data)
        } else {
            let placed = announced.await.map_err(|error| (None, error))?;
            let parts = node.store.put_write_set(attempt, &parts).await;
            let data = match parts {
                Ok(()) => data.await,
                Err(error) => Err(error),
            };
            (placed, data)
        };
        data.map_err(|error| (Some(placed.slot), error))?;
        Ok(placed)
    }

    /// Breaks a rule, for tests: deletes tombstones while older versions of the keys may exist or
    /// arrive.
    async fn drop_tombstones(&self, record: &Arc<CommitRecord>) -> Result<()> {
        let deletes = record
            .writes
            .iter()
            .filter(|write| write.place == Place::Gone);
        let gone = deletes.map(|write| Superseded {
            key: write.key.clone(),
            record: Arc::clone(record),
        });
        self.calls
            .collection
            .delete_versions(&self.transaction.node, &gone.collect::<Vec<_>>())
            .await
    }

    fn draft(&self) -> Draft {
        let (id, attempt, _) = self.names();
        let entry = Entry::Committing {
            id: id.clone(),
            attempt,
            named: self.transaction.is_named(),
            timestamp: Timestamp::default(),
            writes: self.set.clone(),
        };
        Draft::from(entry).above(self.floor)
    }

    async fn write_data(&self) -> Result<()> {
        let (versions, effects) = futures_util::join!(self.write_versions(), self.write_effects());
        versions.and(effects)
    }

    async fn write_versions(&self) -> Result<()> {
        let values = self
            .unwritten()
            .map(|(write, buffered)| (write, buffered.value()));
        let packing = self.calls.packing.pack_writes(self.transaction, values);
        let (put, written) = futures_util::join!(packing.are_put(), self.put_versions(&packing));
        put.and(written)
    }

    /// The writes that were not spilled.
    fn unwritten(&self) -> impl Iterator<Item = (&Write, &Buffered)> {
        let items = self
            .writes
            .iter()
            .zip(self.buffer.iter().map(|(_, buffered)| buffered));
        items.filter(|(_, buffered)| buffered.held != Held::Stored)
    }

    async fn put_versions(&self, packing: &OnTheirWay) -> Result<()> {
        let (id, attempt, node) = self.names();
        stream::iter(self.unwritten().map(Ok))
            .try_for_each_concurrent(WRITES_AT_ONCE, |(write, buffered)| {
                node.store.put_version(
                    id,
                    attempt,
                    write,
                    buffered.value().cloned(),
                    packing.located(write),
                )
            })
            .await
    }

    async fn write_effects(&self) -> Result<()> {
        let (id, attempt, node) = self.names();
        let inline_bytes_max = self.calls.context.config.effects_inline_bytes_max;
        node.store
            .put_effects(id, attempt, &self.effects, inline_bytes_max)
            .await
    }

    /// Step 3.
    async fn decide(&self, placed: Placed) -> Result<Decided> {
        let (id, attempt, node) = self.names();
        let record = self.record(placed, DurabilityPoint::DURABLE);
        let stored = StoredRecord {
            version: record.version,
            position: record.position,
            writes: self.set.clone(),
            effects: self.effects.len() as u32,
        };
        if self.calls.context.breaks(Broken::CommitsAnyAttempt) {
            return node.store.commit_any_attempt(id, attempt, &stored).await;
        }
        node.store
            .commit(
                id,
                attempt,
                self.transaction.is_named(),
                (&stored, self.result.as_ref()),
            )
            .await
    }

    fn record(&self, placed: Placed, point: DurabilityPoint) -> CommitRecord {
        let (id, attempt, node) = self.names();
        CommitRecord {
            id: id.clone(),
            attempt,
            version: Version {
                timestamp: placed.timestamp,
                node: node.id,
            },
            position: Position {
                log: node.id,
                slot: placed.slot,
            },
            writes: self.writes.clone(),
            parts: self.set.parts(),
            point,
        }
    }

    /// The attempt does not commit, because no other node would finish it, so this is answered at
    /// once. If the clean-up fails, its entry stays unsettled and the log's resolver repeats it.
    fn give_up(&mut self, slot: Option<u64>, error: Error) -> CommitAnswer {
        let (calls, transaction) = (Arc::clone(self.calls), Arc::clone(self.transaction));
        let (writes, set, effects) = (self.writes.clone(), self.set.clone(), self.effects.clone());
        let spills = std::mem::take(&mut self.spills);
        if slot.is_none() {
            self.transaction.node.leaves_traces();
        }
        let node = Arc::clone(&transaction.node);
        node.spawn(&self.calls.context, async move {
            let cleaned = async {
                calls
                    .clean_up(&transaction, slot, &writes, &set, &effects)
                    .await?;
                delete_spilled(&transaction, &spills).await
            };
            if let Err(error) = cleaned.await {
                tracing::debug!(%error, "uncommitted data are left to the log's resolver");
            }
        });
        Err(error)
    }
}
