//! Clients: platforms that run functions, time out, and run them again under the same transaction
//! ids.
//!
//! A stalled function is not stopped. It wakes up while its retry runs, writes and commits, as
//! functions of a real platform do. A client that dies leaves its transaction open.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::{join, join_all};
use transactions::{
    Error,
    model::transaction_id::RANDOM_PREFIX,
    model::{After, Begin, Begun, Call, Isolation, Key, Outcome, TransactionId},
};

use super::{
    cluster::{Cluster, Connection, Failure},
    effects::Sent,
    history::{Answer, Commit, Execution, ReadResult, Span, Step, Writer},
    workload::{Mix, Planned, Script, Tag, Work, Zipf},
};

/// How often a platform runs a function before it gives up.
const ATTEMPTS_MAX: usize = 6;
/// How often a client asks for the outcome of its commit.
const COMMITS_MAX: usize = 12;
/// The pause before a retry.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Longer than the idle timeout of an attempt.
const LONG_STALL: Duration = Duration::from_secs(70);

/// The behaviour of clients. Each rate is one in this many; zero: none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Habits {
    /// Transactions that have an id.
    pub one_named_in: usize,
    /// Whether all ids are client ids. Otherwise every other one is a random id, whose record
    /// expires within minutes.
    pub chooses_all_names: bool,
    /// Serializable transactions.
    pub one_serializable_in: usize,
    /// Read-only transactions.
    pub one_reader_in: usize,
    /// Transactions whose function stalls: those with an id until after their retry.
    pub one_stall_in: usize,
    /// Transactions whose client dies before it commits.
    pub one_death_in: usize,
    /// Whether the token of every commit is passed to the next begin of its client.
    pub carries_after: bool,
    /// Whether each call goes to any node, not to that of the begin.
    pub wanders: bool,
    /// How long a client waits for the answer to a commit before it asks another node; zero:
    /// forever.
    pub patience: Duration,
    /// The longest pause between two transactions.
    pub pause: Duration,
    /// The longest pause between two steps of a function.
    pub thinks: Duration,
}

/// The script of a function and the isolation of its transaction.
#[derive(Debug, Clone)]
struct Run {
    script: Script,
    isolation: Isolation,
}

/// The executions of all clients, in the order of their begins.
pub type Record = Rc<RefCell<Vec<Execution>>>;

/// Runs a client's share of the transactions.
pub async fn work(
    cluster: Cluster,
    number: usize,
    mix: Mix,
    habits: Habits,
    record: Record,
    mut rng: Rng,
) {
    let zipf = Zipf::new(mix.keys, mix.zipf);
    let client = Client::new(cluster, number, mix, habits, record, rng.fork());
    for transaction in 0..mix.transactions / mix.clients.max(1) {
        // A function need not repeat its steps when it is run again.
        let mut scripts = [(); 2].map(|()| Script::draw(&mix, &zipf, &mut rng));
        if strikes(&mut rng, habits.one_reader_in) {
            scripts.iter_mut().for_each(Script::only_read);
        }
        let isolation = if strikes(&mut rng, habits.one_serializable_in) {
            Isolation::Serializable
        } else {
            Isolation::ReadAtomic
        };
        let [script, again] = scripts.map(|script| Run { script, isolation });
        // Every other id has the form of a random id.
        let name = if habits.chooses_all_names || transaction % 2 == 0 {
            format!("c{number}-{transaction}")
        } else {
            format!("{RANDOM_PREFIX}{number:016x}{transaction:016x}")
        };
        let name = strikes(&mut rng, habits.one_named_in)
            .then(|| TransactionId::new(name).expect("a name is short enough"));
        let steps = script.script.work.len();
        let dies = strikes(&mut rng, habits.one_death_in).then(|| rng.usize(..=steps));
        let stall = strikes(&mut rng, habits.one_stall_in).then(|| Stall::draw(&mut rng, steps));
        client
            .transaction([&script, &again], name.as_ref(), stall, dies)
            .await;
        tokio::time::sleep(habits.pause.mul_f64(rng.f64())).await;
    }
}

/// Runs one transaction with `effects` effects until it succeeds.
pub async fn transact(
    cluster: Cluster,
    script: &Script,
    isolation: Isolation,
    name: Option<&TransactionId>,
    effects: u32,
    record: Record,
) {
    let mix = Mix {
        value_bytes: 0,
        effects,
        ..Mix::default()
    };
    let client = Client::new(
        cluster,
        0,
        mix,
        Habits::default(),
        record,
        Rng::with_seed(0),
    );
    client
        .platform(
            &Run {
                script: script.clone(),
                isolation,
            },
            name,
            None,
        )
        .await;
}

fn strikes(rng: &mut Rng, one_in: usize) -> bool {
    one_in > 0 && rng.usize(..one_in) == 0
}

/// A function that sleeps at one of its steps while its platform retries it.
#[derive(Debug, Clone, Copy)]
struct Stall {
    step: usize,
    lasts: Duration,
    retried_after: Duration,
}

impl Stall {
    fn draw(rng: &mut Rng, steps: usize) -> Self {
        let lasts = match rng.usize(..8) {
            0 => LONG_STALL,
            _ => Duration::from_millis(rng.u64(1..150)),
        };
        let retried_after = Duration::from_millis(rng.u64(1..100));
        Self {
            step: rng.usize(..=steps),
            lasts,
            retried_after,
        }
    }
}

/// How an attempt ended for its platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Nothing is left to do: it committed, or its client is dead.
    Done,
    /// It must run again.
    Again,
}

struct Client {
    cluster: Cluster,
    number: usize,
    mix: Mix,
    thinks: Duration,
    patience: Duration,
    wanders: bool,
    record: Record,
    chance: RefCell<Rng>,
    /// The last commit, if its token is passed on.
    after: Option<Cell<Option<After>>>,
}

impl Client {
    fn new(
        cluster: Cluster,
        number: usize,
        mix: Mix,
        habits: Habits,
        record: Record,
        chance: Rng,
    ) -> Self {
        let (chance, after) = (
            RefCell::new(chance),
            habits.carries_after.then(Cell::default),
        );
        let Habits {
            thinks,
            patience,
            wanders,
            ..
        } = habits;
        Self {
            cluster,
            number,
            mix,
            thinks,
            patience,
            wanders,
            record,
            chance,
            after,
        }
    }

    async fn transaction(
        &self,
        [script, again]: [&Run; 2],
        name: Option<&TransactionId>,
        stall: Option<Stall>,
        dies: Option<usize>,
    ) {
        let Some(stall) = stall else {
            return self.platform(script, name, dies).await;
        };
        let stalling = Box::pin(self.attempt(script, name, dies, Some(stall)));
        if name.is_none() {
            // A retry cannot be told from another transaction here, so the first attempt must fail
            // before the second begins.
            if stalling.await == Ended::Again {
                self.platform(again, None, None).await;
            }
            return;
        }
        let retrying = async {
            tokio::time::sleep(stall.retried_after).await;
            self.platform(again, name, None).await;
        };
        join(stalling, retrying).await;
    }

    /// Runs a function until it succeeds.
    async fn platform(&self, script: &Run, name: Option<&TransactionId>, dies: Option<usize>) {
        for _ in 0..ATTEMPTS_MAX {
            if Box::pin(self.attempt(script, name, dies, None)).await == Ended::Done {
                return;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn attempt(
        &self,
        run: &Run,
        name: Option<&TransactionId>,
        dies: Option<usize>,
        stall: Option<Stall>,
    ) -> Ended {
        let connection = self.cluster.connect().await;
        let asked = self.now();
        let after = self.after.as_ref().and_then(Cell::get);
        let Run { script, isolation } = run;
        let isolation = *isolation;
        let begin = Begin {
            id: name.cloned(),
            after,
            isolation,
            ..Begin::default()
        };
        let writer = match connection.shown(connection.engine.begin(begin)).await {
            Ok(Begun::Open { id, attempt }) => Writer { id, attempt },
            Ok(Begun::Committed { id, after, .. }) => {
                self.learn_committed(&id);
                self.carry(after);
                return Ended::Done;
            }
            Err(_) => return Ended::Again,
        };
        let begun = Span {
            asked,
            answered: self.now(),
        };
        let execution = Execution {
            client: self.number,
            writer: writer.clone(),
            isolation,
            begun,
            steps: Vec::new(),
            commit: None,
        };
        self.record.borrow_mut().push(execution);
        let index = self.record.borrow().len() - 1;
        let attempt = Attempt {
            client: self,
            connection,
            writer,
            index,
            planned: script.planned(),
        };
        attempt.run(script, dies, stall).await
    }

    /// A begin reported that the transaction has committed: the last attempt that asked for a
    /// commit did.
    fn learn_committed(&self, id: &TransactionId) {
        let mut record = self.record.borrow_mut();
        let asked = record
            .iter_mut()
            .filter(|execution| execution.writer.id == *id);
        let mut asked = asked.filter_map(|execution| execution.commit.as_mut());
        let commit =
            asked.rfind(|commit| !matches!(commit.answer, Answer::Refused | Answer::Conflict));
        let commit =
            commit.expect("a transaction is said to have committed only if it was requested");
        if commit.answer == Answer::Unknown {
            commit.span.answered = self.now();
            commit.answer = Answer::Committed;
        }
    }

    fn carry(&self, committed: Option<After>) {
        if let (Some(after), Some(committed)) = (&self.after, committed) {
            after.set(after.get().max(Some(committed)));
        }
    }

    async fn think(&self) {
        if self.thinks > Duration::ZERO {
            let part = self.chance.borrow_mut().f64();
            tokio::time::sleep(self.thinks.mul_f64(part)).await;
        }
    }

    fn now(&self) -> Duration {
        self.cluster.moment()
    }
}

/// One run of a function.
struct Attempt<'client> {
    client: &'client Client,
    connection: Connection,
    writer: Writer,
    /// Its index in the record.
    index: usize,
    planned: Vec<Planned>,
}

impl Attempt<'_> {
    async fn run(self, script: &Script, dies: Option<usize>, stall: Option<Stall>) -> Ended {
        for (step, work) in script.work.iter().enumerate() {
            self.stall(stall, step).await;
            self.client.think().await;
            if dies == Some(step) {
                return Ended::Done;
            }
            let done = match work {
                Work::Read(keys) => self.read(keys).await,
                Work::Write(planned) => self.write(step, planned).await,
            };
            if done.is_err() {
                let call = self.call();
                // The answer does not matter: the attempt is over either way.
                let _ = self
                    .connection
                    .call(self.connection.engine.abort(&call))
                    .await;
                return Ended::Again;
            }
        }
        if self.send().await.is_err() {
            return Ended::Again;
        }
        self.stall(stall, script.work.len()).await;
        if dies == Some(script.work.len()) {
            return Ended::Done;
        }
        self.commit().await
    }

    async fn stall(&self, stall: Option<Stall>, step: usize) {
        if let Some(stall) = stall.filter(|stall| stall.step == step) {
            tokio::time::sleep(stall.lasts).await;
        }
    }

    async fn read(&self, keys: &[Key]) -> Result<(), Failure> {
        let reads = join_all(keys.iter().map(|key| self.read_one(key))).await;
        reads.into_iter().collect()
    }

    async fn read_one(&self, key: &Key) -> Result<(), Failure> {
        let (call, asked, connection) = (self.call(), self.client.now(), self.connection());
        let shown = connection.shown(connection.engine.get(&call, key)).await;
        let span = Span {
            asked,
            answered: self.client.now(),
        };
        let (noted, result) = match shown {
            Ok(Some(value)) => (ReadResult::Value(value), Ok(())),
            Ok(None) => (ReadResult::Absent, Ok(())),
            // A node that is considered dead loses its spilled values; its transaction cannot
            // commit then.
            Err(failure @ Failure::Refused(Error::Corrupt(_))) if self.has_written(key) => {
                return Err(failure);
            }
            // The reader of a collected value may receive either error.
            Err(Failure::Refused(Error::NoValidVersion | Error::Corrupt(_))) => (
                ReadResult::NoValidVersion,
                Err(Failure::Refused(Error::NoValidVersion)),
            ),
            Err(failure) => return Err(failure),
        };
        self.note(Step::Read {
            key: key.clone(),
            shown: noted,
            span,
        });
        result
    }

    async fn write(&self, step: usize, planned: &Planned) -> Result<(), Failure> {
        let (call, key, connection) = (self.call(), planned.key.clone(), self.connection());
        let engine = &connection.engine;
        if planned.deletes {
            self.note(Step::Wrote {
                key: key.clone(),
                value: None,
            });
            return connection.call(engine.delete(&call, key)).await;
        }
        let tag = Tag {
            writer: self.writer.clone(),
            ordinal: step as u32,
            planned: self.planned.clone(),
        };
        let value = tag.to_value(self.client.mix.value_bytes);
        self.note(Step::Wrote {
            key: key.clone(),
            value: Some(value.clone()),
        });
        connection.call(engine.put(&call, key, value)).await
    }

    async fn send(&self) -> Result<(), Failure> {
        for place in 0..self.client.mix.effects {
            let sent = Sent {
                writer: self.writer.clone(),
                place,
            };
            let (call, effect, connection) = (
                self.call(),
                sent.effect(self.client.number),
                self.connection(),
            );
            connection
                .call(connection.engine.send(&call, effect, Some(place)))
                .await?;
        }
        Ok(())
    }

    /// Asks for the outcome until it receives one, on any available node.
    async fn commit(mut self) -> Ended {
        let (call, asked) = (self.call(), self.client.now());
        for _ in 0..COMMITS_MAX {
            self.answered(asked, Answer::Unknown);
            let patience = self.client.patience;
            let connection = self.connection();
            let answered = connection.call(connection.engine.commit(&call));
            let answered = async {
                if patience.is_zero() {
                    return answered.await;
                }
                let answered = tokio::time::timeout(patience, answered).await;
                answered.unwrap_or(Err(Failure::Gone))
            };
            match answered.await {
                Ok(committed) => {
                    self.answered(asked, Answer::Committed);
                    self.client.carry(committed.after);
                    return Ended::Done;
                }
                Err(Failure::Gone) => self.connection = self.client.cluster.connect().await,
                Err(Failure::Refused(
                    Error::OutcomeUnknown | Error::Unavailable(_) | Error::Expired,
                )) => {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Err(Failure::Refused(Error::TransactionFinished(Outcome::Committed))) => {
                    panic!("a commit that is repeated is answered as it was before")
                }
                Err(Failure::Refused(Error::Conflict)) => {
                    self.answered(asked, Answer::Conflict);
                    return Ended::Again;
                }
                Err(Failure::Refused(_)) => {
                    self.answered(asked, Answer::Refused);
                    return Ended::Again;
                }
            }
        }
        Ended::Done
    }

    fn answered(&self, asked: Duration, answer: Answer) {
        let span = Span {
            asked,
            answered: self.client.now(),
        };
        let mut record = self.client.record.borrow_mut();
        let commit = &mut record[self.index].commit;
        // A begin under the same id may have reported it before.
        if commit.is_none_or(|commit| commit.answer == Answer::Unknown) {
            *commit = Some(Commit { span, answer });
        }
    }

    fn has_written(&self, key: &Key) -> bool {
        let steps = &self.client.record.borrow()[self.index].steps;
        steps
            .iter()
            .any(|step| matches!(step, Step::Wrote { key: written, .. } if written == key))
    }

    fn note(&self, step: Step) {
        self.client.record.borrow_mut()[self.index].steps.push(step);
    }

    /// The node of the next call.
    fn connection(&self) -> Connection {
        let other = if self.client.wanders {
            self.client.cluster.serving()
        } else {
            None
        };
        other.unwrap_or_else(|| self.connection.clone())
    }

    fn call(&self) -> Call {
        Call {
            id: self.writer.id.clone(),
            attempt: Some(self.writer.attempt),
        }
    }
}
