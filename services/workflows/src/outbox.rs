//! The outbox of a range: what steps there have sent, from the record with which they count until it has left.
//!
//! ```text
//!  one record of the run's lane: the step's row, its writes, and rows with what it sends, numbered
//!  that record is far-durable, and the range still ours (rules P5, W-3)
//!  each in order: sent, durable where it was sent to, the row says how far
//!  the row is deleted
//! ```
//!
//! Whoever opens the range reads the rows before anybody writes there, so what comes later has higher numbers. One task sends what
//! a run has unsent, row after row; runs do not wait for each other.
//!
//! Invariants
//! - Nothing is sent before the record that has it count is far-durable, nor while it is not certain that the range is still ours.
//! - The id of a message is that of its step with its place among the step's sends (T13), whoever sends it and however often. What an
//!   attempt has count ahead of its step (`externalize`) has the attempt's own id in place of the step's: an attempt that fails then
//!   is followed by one that may send something else in that place, which would be taken for a repeat.
//! - A death between two lines sends the same again, under the same id: at least once, never not.
//!
//! Bounds: [`UNSENT_MAX`] rows, beyond which a step that sends waits before it counts; [`SENDING_MAX`] rows at a time.

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
    Clock, Condition, DurabilityPoint, Entropy, Externalize, Item, KeyValue, Update,
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

use crate::{Broken, Error, Options, Result, layout, overlay::Changes, store::Place};

/// Rows that wait to be sent.
const UNSENT_MAX: usize = 10_000;
/// Rows that are sent at a time.
const SENDING_MAX: usize = 64;
/// Rows in one page: each may be as long as an item.
const PAGE_ROWS: usize = 50;
/// What a row takes beside its effects.
const ROW_BYTES: usize = 8 << 10;
/// For destinations that fail: as long as the range is ours.
const SEND_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(30),
    attempts_max: u32::MAX,
};

/// Whose they are, of a row: one after the other.
const RUN: &str = "run";
/// What ids of its effects begin with.
const ID: &str = "id";
/// The place of its first effect.
const FIRST: &str = "first";
/// Its effects.
const EFFECTS: &str = "effects";
/// How many of them are sent.
const SENT: &str = "sent";

/// What is unsent of one range.
#[derive(Debug)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    /// One for each run that has something unsent.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    /// A lane of its own: a run's may be another's by then. Another takes its place once it rests on what the far store refuses.
    lane: Mutex<Arc<Lane>>,
    engine: Engine,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    broken: Option<Broken>,
    next: AtomicU64,
    sending: Semaphore,
    unsent: Mutex<BTreeMap<Bytes, VecDeque<Unsent>>>,
}

/// A row that counts.
#[derive(Debug, Clone, Copy)]
struct Unsent {
    number: u64,
    /// It is far-durable once this is.
    point: DurabilityPoint,
}

/// Rows on their way into a step's record.
#[derive(Debug)]
pub(crate) struct Enclosed {
    run: Bytes,
    numbers: Range<u64>,
    pub(crate) updates: Vec<Update>,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    run: Bytes,
    id: TransactionId,
    first: u32,
    effects: Vec<Effect>,
    sent: u32,
}

/// What becomes of a row that is to be sent.
enum Sent {
    Left,
    /// What it is part of will never be far, from this start: it does not count.
    Never(Error),
    /// The range is another's, or is opened anew: whoever has it finds the row.
    Elsewhere,
}

impl Outbox {
    /// What is unsent of the range whose lane this is; it is sent from now on.
    pub(crate) async fn open(
        lane: Lane,
        engine: Engine,
        (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>),
        options: &Options,
    ) -> Result<Arc<Self>> {
        let shared = Shared {
            lane: Mutex::new(Arc::new(lane)),
            engine,
            clock,
            entropy,
            broken: options.broken,
            next: AtomicU64::new(0),
            sending: Semaphore::new(SENDING_MAX),
            unsent: Mutex::default(),
        };
        let left = shared.left().await?;
        let outbox = Arc::new(Self {
            shared: Arc::new(shared),
            tasks: Mutex::default(),
        });
        for (run, unsent) in left {
            outbox
                .shared
                .next
                .fetch_max(unsent.number + 1, Ordering::Relaxed);
            if options.broken != Some(Broken::ForgetsUnsent) {
                outbox.push(run, [unsent]);
            }
        }
        Ok(outbox)
    }

    /// The rows of what a step sends, for the record with which it counts.
    ///
    /// Errors: `TooLarge`, or why something could not be sent; `TooMuchBuffered` while too much is unsent.
    pub(crate) async fn enclose(&self, place: Place<'_>, changes: &Changes) -> Result<Enclosed> {
        for effect in &changes.sends {
            self.shared.engine.check_effect(effect).await?;
        }
        if !changes.sends.is_empty() && self.count() >= UNSENT_MAX {
            return Err(transactions::Error::TooMuchBuffered.into());
        }
        let bytes_max = self
            .shared
            .rows()
            .limits()
            .item_bytes_max
            .saturating_sub(ROW_BYTES);
        let rows = rows(place, changes, bytes_max)?;
        let from = self
            .shared
            .next
            .fetch_add(rows.len() as u64, Ordering::Relaxed);
        let numbers = from..from + rows.len() as u64;
        let put = |(number, row): (u64, &Row)| {
            Update::put(layout::unsent(number), row.encode()).when(Condition::Absent)
        };
        let updates = numbers.clone().zip(&rows).map(put).collect();
        Ok(Enclosed {
            run: run_of(place),
            numbers,
            updates,
        })
    }

    /// The record counts, and is far-durable once `point` is.
    pub(crate) fn take(&self, enclosed: Enclosed, point: DurabilityPoint) {
        let Enclosed { run, numbers, .. } = enclosed;
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

    /// Sends nothing more: whoever opens the range next does.
    pub(crate) fn stop(&self) {
        self.tasks.lock().abort_all();
    }

    /// Whether everything has left.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.unsent.lock().is_empty()
    }

    /// That in which it notes what has left.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        self.shared.rows()
    }

    fn count(&self) -> usize {
        self.shared.unsent.lock().values().map(VecDeque::len).sum()
    }
}

impl Shared {
    fn rows(&self) -> Arc<Lane> {
        Arc::clone(&self.lane.lock())
    }

    /// A lane that has read nothing, and rests on nothing that the far store refuses for good.
    async fn sound_lane(&self) -> Result<Lane> {
        loop {
            let lane = self.rows().another()?;
            match lane.externalize(lane.point()).await.map_err(Error::from) {
                // What another lane of an earlier start has left was refused meanwhile: there are only so many.
                Err(error) if error.is_refusal() => {}
                proven => return proven.map(|()| lane),
            }
        }
    }

    /// Rows at rest, in the order of their numbers. One that does not decode is reported, and stays.
    async fn left(&self) -> Result<Vec<(Bytes, Unsent)>> {
        let mut scan = layout::all_unsent(PAGE_ROWS);
        let (rows, mut left) = (self.rows(), Vec::new());
        loop {
            let page = rows.scan(&scan).await?;
            for (sort, item) in page.value.items {
                let number = layout::unsent_of(&sort)
                    .ok_or_else(|| ports::Error::corrupt("read the key of something unsent"))?;
                match Row::decode(&item) {
                    Ok(row) => left.push((
                        row.run,
                        Unsent {
                            number,
                            point: page.point,
                        },
                    )),
                    Err(error) => {
                        tracing::error!(%error, number, "what a step has sent cannot be read, and is not sent");
                    }
                }
            }
            match page.value.next {
                Some(next) => scan.from = next,
                None => return Ok(left),
            }
        }
    }

    /// Sends what a run has unsent, until nothing is.
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
                Sent::Left => {}
                Sent::Never(error) => {
                    tracing::warn!(%error, number = first.number, "what a step has sent does not leave: it never counts");
                }
                Sent::Elsewhere => return,
            }
            if let Some(unsent) = self.unsent.lock().get_mut(&run) {
                unsent.pop_front();
            }
        }
    }

    async fn send(&self, unsent: Unsent) -> Sent {
        let (mut delays, mut is_failing) = (SEND_AGAIN.delays(), false);
        loop {
            let sent = async {
                let _permit = self.sending.acquire().await.expect("it is never closed");
                // Each time: by now the range may be another's.
                match self.externalize(unsent).await {
                    Err(error) if error.is_refusal() => return Ok(Sent::Never(error)),
                    proven => proven?,
                }
                self.send_row(unsent.number).await.map(|()| Sent::Left)
            };
            match sent.await {
                Ok(sent) => return sent,
                Err(error) if error.means_anew() => return Sent::Elsewhere,
                Err(error) => {
                    if !is_failing {
                        tracing::warn!(%error, number = unsent.number, "what a step has sent cannot leave, and stays until it can");
                    }
                    is_failing = true;
                }
            }
            self.clock
                .sleep(delays.next_delay(&*self.entropy).unwrap_or_default())
                .await;
        }
    }

    /// Waits until a row is far-durable, and the range was ours until then.
    async fn externalize(&self, unsent: Unsent) -> Result<()> {
        if self.broken == Some(Broken::SendsBeforeFar) {
            return Ok(());
        }
        let answer = self
            .rows()
            .externalize(unsent.point)
            .await
            .map_err(Error::from);
        if !answer.as_ref().is_err_and(Error::is_refusal) {
            return answer;
        }
        // That point is also of what else its lane has read, such as all that an earlier start has left: what the row itself rests on
        // is known to who has read that alone.
        let lane = self.sound_lane().await?;
        let read = lane.get(&layout::unsent(unsent.number)).await?;
        Ok(lane.externalize(read.point).await?)
    }

    async fn send_row(&self, number: u64) -> Result<()> {
        let read = self.rows().get(&layout::unsent(number)).await?;
        let Some(item) = read.value else {
            return Ok(());
        };
        let row = Row::decode(&item)?;
        for (place, effect) in (0..).zip(row.effects).skip(row.sent as usize) {
            let id = match self.broken {
                Some(Broken::NamesSendsAnew) => {
                    Bytes::from(format!("{:x}", self.entropy.next_u64()))
                }
                _ => effect_id(&row.id, row.first + place),
            };
            self.engine.send_now(effect, id).await?;
            let sent = vec![Action::set_integer(SENT, i64::from(place) + 1)];
            self.note(Update::modify(layout::unsent(number), sent).when(Condition::Exists))
                .await?;
        }
        self.note(Update::delete(layout::unsent(number))).await
    }

    /// Changes a row. Where the far store refuses that for good, whatever else its lane rests on, the row is sent to its end, and by
    /// the next start once more.
    async fn note(&self, update: Update) -> Result<()> {
        let rows = self.rows();
        let noted = match rows.update(update.clone()).await.map_err(Error::from) {
            Err(error) if error.is_refusal() => self.note_apart(update, &rows).await,
            noted => noted.map(drop),
        };
        match noted {
            Err(error) if error.is_refusal() => {
                tracing::warn!(%error, "what has left is not noted, and leaves again with the next start");
                Ok(())
            }
            noted => noted,
        }
    }

    /// The same in another lane, which takes the place of `refused` unless it is refused, too.
    async fn note_apart(&self, update: Update, refused: &Arc<Lane>) -> Result<()> {
        let sound = Arc::new(self.sound_lane().await?);
        sound.update(update).await?;
        let mut lane = self.lane.lock();
        if Arc::ptr_eq(&lane, refused) {
            *lane = sound;
        }
        Ok(())
    }
}

fn run_of(place: Place<'_>) -> Bytes {
    [place.workflow.as_bytes(), &[0], place.run.as_bytes()]
        .concat()
        .into()
}

/// What a step sends, in rows of so many bytes.
fn rows(place: Place<'_>, changes: &Changes, bytes_max: usize) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut bytes = 0;
    let Place {
        workflow,
        run,
        began_ms,
        path,
        ..
    } = place;
    let with_step = layout::transaction(workflow, run, began_ms, path);
    let ahead = layout::ahead(workflow, run, began_ms, path, changes.attempt);
    let first_of_step = changes.first + changes.ahead as u32;
    for (at, effect) in (changes.first..).zip(&changes.sends) {
        let more = effect.bytes_len();
        if more > bytes_max {
            let say = "a message of a workflow with this far store";
            return Err(Error::TooLarge(format!(
                "{say} has {bytes_max} bytes at most, with its names"
            )));
        }
        let id = if at < first_of_step {
            &ahead
        } else {
            &with_step
        };
        if rows.last().is_none_or(|row| row.id != *id) || bytes + more > bytes_max {
            let id = id.clone();
            rows.push(Row {
                run: run_of(place),
                id,
                first: at,
                effects: Vec::new(),
                sent: 0,
            });
            bytes = 0;
        }
        bytes += more;
        rows.last_mut()
            .expect("there is one")
            .effects
            .push(effect.clone());
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
                effects: decode(item.bytes(EFFECTS)?, "what a step has sent").ok()?,
                sent: item.integer(SENT)?.try_into().ok()?,
            })
        };
        Ok(decoded().ok_or_else(|| ports::Error::corrupt("read what a step has sent"))?)
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

    const STEP: Place<'static> = Place {
        workflow: "w",
        run: "r",
        began_ms: 1,
        driver: None,
        path: "0",
    };

    /// W2: what counts with the step goes under the step's id, also behind what may count already under that of the attempt.
    #[test]
    fn what_an_attempt_has_count_ahead_of_its_step_has_an_id_of_its_own() {
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
        let (step, ahead) = (
            layout::transaction("w", "r", 1, "0"),
            layout::ahead("w", "r", 1, "0", 7),
        );
        assert_eq!(named(&changes), [(ahead.clone(), 5, 2), (step, 7, 1)]);
        let of_the_next = Changes {
            attempt: 8,
            ..changes
        };
        assert_ne!(named(&of_the_next)[0].0, ahead);
    }

    /// W2: whatever fits where, places go on.
    #[test]
    fn what_a_step_sends_is_cut_into_rows_in_its_order() {
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
