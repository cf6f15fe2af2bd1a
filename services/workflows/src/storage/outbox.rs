//! The outbox of a shard: messages that steps send, from the record with which they commit until they
//! are sent.
//!
//! ```text
//!  one record of the run's lane: the step's row, its writes, and numbered rows with its messages
//!  the record is durable far, and we still own the shard (rules P5, W-3)
//!  each message in order: sent, durable at its destination, the row notes how far
//!  the row is deleted
//! ```
//!
//! The owner of the shard reads the rows before it writes, so later rows have higher numbers. One
//! task sends the rows of a run, one after the other. Runs do not wait for each other.
//!
//! Invariants
//! - A message is sent only after its record is durable far, and while we certainly own the shard.
//! - The id of a message is that of its step with its position among the step's messages (T13), in
//!   every process and at every attempt. A message that an attempt commits ahead of its step
//!   (`externalize`) has an id of the attempt instead. If that attempt fails, the next one may send
//!   another message at this position, and the receiver must not take it for a repeat.
//! - A death between two lines sends the same message again under the same id: at least once.
//!
//! Bounds: [`UNSENT_MAX`] rows, beyond which a step with messages waits to commit; [`SENDING_MAX`]
//! rows at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Condition, DurabilityPoint, Externalize, Item, KeyValue, Update,
    key_value::{Action, Name, Value},
};
use primitives::Backoff;
use synchrony::Lane;
use tokio::{sync::Semaphore, task::JoinSet};
use transactions::{
    Effect, Engine,
    effects::effect_id,
    model::TransactionId,
    records::{decode, encode},
};

use super::{changes::Changes, layout};
use crate::{Broken, Error, Result, env::Env, model::StepAddress};

/// The most rows that wait to be sent.
const UNSENT_MAX: usize = 10_000;
/// The most rows that are sent at a time.
const SENDING_MAX: usize = 64;
/// Rows in one page of a scan: each may be as long as an item.
const PAGE_ROWS: usize = 50;
/// Bytes of a row beside its effects.
const ROW_BYTES: usize = 8 << 10;
/// The waits between attempts to send a row. There is no last attempt: we retry while we own the
/// shard.
const RESEND: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(30),
    attempts_max: u32::MAX,
};

/// The run of a row; the rows of one run are sent one after the other.
const RUN: &str = "run";
/// The prefix of the ids of its effects.
const ID: &str = "id";
/// The position of its first effect among those of its step.
const FIRST: &str = "first";
const EFFECTS: &str = "effects";
const SENT: &str = "sent";

/// The unsent rows of one shard.
#[derive(Debug)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    /// One task for each run with unsent rows.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    /// A lane of the outbox itself: the lane of a run may be another run's by then. We replace it
    /// once it depends on a write that the far store refuses.
    lane: Mutex<Arc<Lane>>,
    engine: Engine,
    env: Arc<Env>,
    next: AtomicU64,
    sending: Semaphore,
    unsent: Mutex<BTreeMap<Bytes, VecDeque<Unsent>>>,
}

/// A row that has committed.
#[derive(Debug, Clone, Copy)]
struct Unsent {
    number: u64,
    /// The row is durable far once this point is.
    point: DurabilityPoint,
}

/// Rows for the record with which a step commits.
#[derive(Debug)]
pub(crate) struct EnclosedRows {
    run: Bytes,
    numbers: Range<u64>,
    pub(crate) updates: Vec<Update>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    run: Bytes,
    id: TransactionId,
    first: u32,
    effects: Vec<Effect>,
    sent: u32,
}

/// The outcome of sending a row.
enum Sent {
    Done,
    /// Its record will never be durable far in this start, so the step does not commit.
    Refused(Error),
    /// We no longer own the shard, or it is opened anew: its owner finds the row.
    Elsewhere,
}

impl Outbox {
    /// Reads the unsent rows of the shard of `lane`, and starts to send them.
    pub(crate) async fn open(lane: Lane, engine: Engine, env: &Arc<Env>) -> Result<Arc<Self>> {
        let shared = Shared {
            lane: Mutex::new(Arc::new(lane)),
            engine,
            env: Arc::clone(env),
            next: AtomicU64::new(0),
            sending: Semaphore::new(SENDING_MAX),
            unsent: Mutex::default(),
        };
        let stored = shared.stored_rows().await?;
        let outbox = Arc::new(Self {
            shared: Arc::new(shared),
            tasks: Mutex::default(),
        });
        for (run, unsent) in stored {
            let next = &outbox.shared.next;
            next.fetch_max(unsent.number + 1, Ordering::Relaxed);
            if !env.breaks(Broken::ForgetsUnsent) {
                outbox.push(run, [unsent]);
            }
        }
        Ok(outbox)
    }

    /// The rows of a step's effects, for the record with which the step commits.
    ///
    /// Errors: `TooLarge`, or why an effect could not be sent; `TooMuchBuffered` while
    /// [`UNSENT_MAX`] rows are unsent.
    pub(crate) async fn enclose(
        &self,
        address: StepAddress<'_>,
        changes: &Changes,
    ) -> Result<EnclosedRows> {
        for effect in &changes.sends {
            self.shared.engine.check_effect(effect).await?;
        }
        if !changes.sends.is_empty() && self.count() >= UNSENT_MAX {
            return Err(transactions::Error::TooMuchBuffered.into());
        }
        let item_bytes_max = self.shared.lane().limits().item_bytes_max;
        let rows = rows(address, changes, item_bytes_max.saturating_sub(ROW_BYTES))?;
        let count = rows.len() as u64;
        let from = self.shared.next.fetch_add(count, Ordering::Relaxed);
        let numbers = from..from + count;
        let put = |(number, row): (u64, &Row)| {
            Update::put(layout::unsent(number), row.encode()).when(Condition::Absent)
        };
        let updates = numbers.clone().zip(&rows).map(put).collect();
        Ok(EnclosedRows {
            run: run_of(address),
            numbers,
            updates,
        })
    }

    /// Sends the rows of a record that has committed. They are durable far once `point` is.
    pub(crate) fn send(&self, enclosed: EnclosedRows, point: DurabilityPoint) {
        let EnclosedRows { run, numbers, .. } = enclosed;
        self.push(run, numbers.map(|number| Unsent { number, point }));
    }

    fn push(&self, run: Bytes, more: impl IntoIterator<Item = Unsent>) {
        let mut unsent = self.shared.unsent.lock();
        let is_new = !unsent.contains_key(&run);
        unsent.entry(run.clone()).or_default().extend(more);
        if is_new {
            let shared = Arc::clone(&self.shared);
            let mut tasks = self.tasks.lock();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { shared.send_all_of(run).await });
        }
    }

    /// Stops sending. The next owner of the shard continues.
    pub(crate) fn stop(&self) {
        self.tasks.lock().abort_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.unsent.lock().is_empty()
    }

    /// The lane in which it notes what is sent.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        self.shared.lane()
    }

    /// A lane that has read nothing, and depends on no write that the far store refuses permanently.
    /// A lane that was opened before we learned what the far store refuses of an earlier start's
    /// writes depends on them all.
    pub(crate) async fn clean_lane(&self) -> Result<Lane> {
        self.shared.clean_lane().await
    }

    fn count(&self) -> usize {
        self.shared.unsent.lock().values().map(VecDeque::len).sum()
    }
}

impl Shared {
    fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane.lock())
    }

    async fn clean_lane(&self) -> Result<Lane> {
        loop {
            let lane = self.lane().another()?;
            match lane.externalize(lane.point()).await.map_err(Error::from) {
                // The far store has refused another lane of an earlier start meanwhile. There are
                // only so many of these lanes, so the loop ends.
                Err(error) if error.is_permanent() => {}
                externalized => return externalized.map(|()| lane),
            }
        }
    }

    /// The stored rows, by number. A row that does not decode is logged, and stays.
    async fn stored_rows(&self) -> Result<Vec<(Bytes, Unsent)>> {
        let mut scan = layout::all_unsent(PAGE_ROWS);
        let (lane, mut stored) = (self.lane(), Vec::new());
        loop {
            let page = lane.scan(&scan).await?;
            let point = page.point;
            for (sort, item) in page.value.items {
                let number = layout::unsent_of(&sort)
                    .ok_or_else(|| ports::Error::corrupt("read the key of an unsent row"))?;
                match Row::decode(&item) {
                    Ok(row) => stored.push((row.run, Unsent { number, point })),
                    Err(error) => {
                        tracing::error!(%error, number, "a step's damaged messages are not sent");
                    }
                }
            }
            match page.value.next {
                Some(next) => scan.from = next,
                None => return Ok(stored),
            }
        }
    }

    /// Sends the rows of a run, one after the other, until none is left.
    async fn send_all_of(&self, run: Bytes) {
        loop {
            let first = {
                let mut unsent = self.unsent.lock();
                let first = unsent.get(&run).and_then(VecDeque::front).copied();
                if first.is_none() {
                    unsent.remove(&run);
                }
                first
            };
            let Some(first) = first else { return };
            match self.send(first).await {
                Sent::Done => {}
                Sent::Refused(error) => {
                    tracing::warn!(
                        %error, number = first.number,
                        "messages of a step are not sent, as the step never commits"
                    );
                }
                Sent::Elsewhere => return,
            }
            if let Some(unsent) = self.unsent.lock().get_mut(&run) {
                unsent.pop_front();
            }
        }
    }

    async fn send(&self, unsent: Unsent) -> Sent {
        let (mut delays, mut is_failing) = (RESEND.delays(), false);
        loop {
            let sent = async {
                let _permit = self.sending.acquire().await.expect("it is never closed");
                // We check this at each attempt, as another process may own the shard by now.
                match self.externalize(unsent).await {
                    Err(error) if error.is_permanent() => return Ok(Sent::Refused(error)),
                    externalized => externalized?,
                }
                self.send_row(unsent.number).await.map(|()| Sent::Done)
            };
            match sent.await {
                Ok(sent) => return sent,
                Err(error) if error.ends_execution() => return Sent::Elsewhere,
                Err(error) if !is_failing => {
                    is_failing = true;
                    let number = unsent.number;
                    tracing::warn!(%error, number, "messages of a step are retried");
                }
                Err(_) => {}
            }
            let delay = delays.next_delay(&*self.env.entropy);
            self.env.clock.sleep(delay.unwrap_or_default()).await;
        }
    }

    /// Waits until a row is durable far, and proves that we owned the shard until then.
    async fn externalize(&self, unsent: Unsent) -> Result<()> {
        if self.env.breaks(Broken::SendsBeforeFar) {
            return Ok(());
        }
        let answer = self.lane().externalize(unsent.point).await;
        let answer = answer.map_err(Error::from);
        if !answer.as_ref().is_err_and(Error::is_permanent) {
            return answer;
        }
        // That point also covers what else the lane has read, such as all that an earlier start has
        // left. A lane that has read only this row knows what the row itself depends on.
        let lane = self.clean_lane().await?;
        let read = lane.get(&layout::unsent(unsent.number)).await?;
        Ok(lane.externalize(read.point).await?)
    }

    async fn send_row(&self, number: u64) -> Result<()> {
        let read = self.lane().get(&layout::unsent(number)).await?;
        let Some(item) = read.value else {
            return Ok(());
        };
        let row = Row::decode(&item)?;
        for (place, effect) in (0..).zip(row.effects).skip(row.sent as usize) {
            let id = if self.env.breaks(Broken::NamesSendsAnew) {
                Bytes::from(format!("{:x}", self.env.entropy.next_u64()))
            } else {
                effect_id(&row.id, row.first + place)
            };
            self.engine.send_now(effect, id).await?;
            let sent = vec![Action::set_integer(SENT, i64::from(place) + 1)];
            let note = Update::modify(layout::unsent(number), sent);
            self.note(note.when(Condition::Exists)).await?;
        }
        self.note(Update::delete(layout::unsent(number))).await
    }

    /// Changes a row. If the far store refuses the change permanently in every lane, the rest of the
    /// row is sent all the same, and the next start sends the row once more.
    async fn note(&self, update: Update) -> Result<()> {
        let lane = self.lane();
        let noted = match lane.update(update.clone()).await.map_err(Error::from) {
            Err(error) if error.is_permanent() => self.note_in_clean_lane(update, &lane).await,
            noted => noted.map(drop),
        };
        match noted {
            Err(error) if error.is_permanent() => {
                tracing::warn!(
                    %error,
                    "messages were sent, and the next start sends them again, \
                     as the far store refuses the note of it"
                );
                Ok(())
            }
            noted => noted,
        }
    }

    /// The same in a clean lane, which replaces `refused` if it succeeds.
    async fn note_in_clean_lane(&self, update: Update, refused: &Arc<Lane>) -> Result<()> {
        let clean = Arc::new(self.clean_lane().await?);
        clean.update(update).await?;
        let mut lane = self.lane.lock();
        if Arc::ptr_eq(&lane, refused) {
            *lane = clean;
        }
        Ok(())
    }
}

fn run_of(address: StepAddress<'_>) -> Bytes {
    let (workflow, run) = (address.workflow.as_bytes(), address.run.as_bytes());
    [workflow, &[0], run].concat().into()
}

/// The effects of a step, in rows of at most `bytes_max` bytes.
fn rows(address: StepAddress<'_>, changes: &Changes, bytes_max: usize) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut bytes = 0;
    let with_step = layout::transaction(address);
    let ahead = layout::ahead(address, changes.attempt);
    let first_of_step = changes.first + changes.ahead as u32;
    for (at, effect) in (changes.first..).zip(&changes.sends) {
        let more = effect.bytes_len();
        if more > bytes_max {
            let most = format!("{bytes_max} bytes at most, with its names");
            let say = format!("a message of a workflow with this far store has {most}");
            return Err(Error::TooLarge(say));
        }
        let is_ahead = at < first_of_step;
        let id = if is_ahead { &ahead } else { &with_step };
        if rows.last().is_none_or(|row| row.id != *id) || bytes + more > bytes_max {
            rows.push(Row {
                run: run_of(address),
                id: id.clone(),
                first: at,
                effects: Vec::new(),
                sent: 0,
            });
            bytes = 0;
        }
        bytes += more;
        let row = rows.last_mut().expect("there is one");
        row.effects.push(effect.clone());
    }
    Ok(rows)
}

impl Row {
    fn encode(&self) -> Vec<(Name, Value)> {
        vec![
            (RUN.into(), Value::Bytes(self.run.clone())),
            (ID.into(), Value::Bytes(self.id.as_bytes().clone())),
            (FIRST.into(), Value::Integer(self.first.into())),
            (EFFECTS.into(), Value::Bytes(encode(&self.effects))),
            (SENT.into(), Value::Integer(self.sent.into())),
        ]
    }

    fn decode(item: &Item) -> Result<Self> {
        let decoded = || {
            Some(Self {
                run: item.bytes(RUN)?.clone(),
                id: TransactionId::new(item.bytes(ID)?.clone()).ok()?,
                first: item.integer(FIRST)?.try_into().ok()?,
                effects: decode(item.bytes(EFFECTS)?, "messages of a step").ok()?,
                sent: item.integer(SENT)?.try_into().ok()?,
            })
        };
        Ok(decoded().ok_or_else(|| ports::Error::corrupt("read messages of a step"))?)
    }
}

#[cfg(test)]
mod tests {
    use ports::key_value::Version;

    use super::*;

    fn message(body: &[u8]) -> Effect {
        Effect::Message {
            queue: "q".to_owned(),
            group: Bytes::new(),
            body: Bytes::copy_from_slice(body),
        }
    }

    const STEP: StepAddress<'static> = StepAddress {
        workflow: "w",
        run: "r",
        began_ms: 1,
        driver: None,
        path: "0",
    };

    /// W2: messages that commit with the step have the step's id, also after ones that may have
    /// committed before under the attempt's id.
    #[test]
    fn messages_that_commit_ahead_of_their_step_have_ids_of_the_attempt() {
        let sends: Vec<Effect> = [b"a", b"b", b"c"]
            .iter()
            .map(|body| message(*body))
            .collect();
        let changes = Changes {
            first: 5,
            sends,
            ahead: 2,
            attempt: 7,
            ..Changes::default()
        };
        let named = |changes: &Changes| {
            let cut = rows(STEP, changes, 1_000).expect("each fits");
            cut.into_iter()
                .map(|row| (row.id, row.first, row.effects.len()))
                .collect::<Vec<_>>()
        };
        let (step, ahead) = (layout::transaction(STEP), layout::ahead(STEP, 7));
        assert_eq!(named(&changes), [(ahead.clone(), 5, 2), (step, 7, 1)]);
        let of_the_next = Changes {
            attempt: 8,
            ..changes
        };
        assert_ne!(named(&of_the_next)[0].0, ahead);
    }

    /// W2: positions continue from row to row.
    #[test]
    fn the_messages_of_a_step_are_split_into_rows_in_order() {
        let sends: Vec<Effect> = [[1; 100], [2; 100], [3; 100]]
            .iter()
            .map(|body| message(body))
            .collect();
        let changes = Changes {
            first: 5,
            sends: sends.clone(),
            ..Changes::default()
        };
        let two = 2 * sends[0].bytes_len();
        let cut = rows(STEP, &changes, two).expect("each fits");
        assert_eq!(
            cut.iter()
                .map(|row| (row.first, row.effects.len()))
                .collect::<Vec<_>>(),
            [(5, 2), (7, 1)]
        );
        assert_eq!(
            cut.iter()
                .flat_map(|row| row.effects.clone())
                .collect::<Vec<_>>(),
            sends
        );
        assert!(matches!(rows(STEP, &changes, 100), Err(Error::TooLarge(_))));
        let item = Item::from_parts(Version(1), cut[1].encode());
        assert_eq!(Row::decode(&item).expect("whole"), cut[1]);
        assert!(Row::decode(&Item::from_parts(Version(1), Vec::new())).is_err());
    }
}
