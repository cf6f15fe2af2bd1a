//! The distributor: assigns every decided request its position in the total order, applies it to
//! the user stores, and announces it.
//!
//! An event function on the single group of the distributor queue. Each batch takes these steps
//! (`faaskeeper.txt`, algorithm 2, made crash-safe by C-3 and C-4):
//!
//! 1. Order: a request follows its session's earlier requests and the updates that it names per
//!    znode. The distributor fetches requests that the queue has not delivered from the outbox in
//!    their session's row ([`order`]).
//! 2. Number: the zxids, answers and watch events of the whole batch become one slot of a fenced
//!    log, including refusals ([`numbering`]). This step decides the batch's order permanently.
//! 3. Apply the slot to the user store, together with its cursor.
//! 4. Remove applied requests from the outboxes, and the rows of sessions that have ended.
//! 5. Invoke the watch function with the slot.
//!
//! If a distributor dies, its successor takes over the log, which fences it out. The successor
//! repeats steps 3 to 5 for every slot that is not known to be finished
//! ([`Distributor::take_over`]).
//!
//! Each step depends on the ones before it ([`TrackedStore`]). A store that rolled back refuses the
//! writes of a distributor that observed lost state.
//!
//! Where one transaction can do it, a writer has its requests decided, numbered and applied at once
//! ([`direct`]).
//!
//! The paper's timestamp adjustment (algorithm 2, step 5) is unnecessary, because zxids are
//! assigned here, in order.

mod direct;
mod numbering;
mod objects;
mod order;
mod quotas;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use ports::{ErrorKind, Event, Handler, Result, functions::Failure, queue::Delivery};
use primitives::{Appended, Cursor, Epoch, FencedLog, SlotIndex};
use tokio::sync::Mutex;

pub(crate) use self::direct::{Direct, Directly, RowDecision};
use self::{
    numbering::{Numbered, Sums},
    order::{Applied, Arrived, Ordered},
    quotas::Quotas,
};
use crate::{
    broken::Broken,
    dependency::TrackedStore,
    environment::{Environment, Parts},
    model::{SessionId, Zxid},
    queue_names::{self, LOG_PARTITION},
    records::{Decided, LogEntry, Slot, UpdateAnswer, Wake, decode, encode_sized},
    storage::{
        ephemerals,
        recent::Recent,
        session,
        user_store::{self, Node, Step, UserStore},
    },
    tail::Tail,
};

/// Applied slots that stay in the log for gateways that are behind.
pub(crate) const SLOTS_RETAINED: usize = 1024;

pub(crate) const SLOTS_TRIMMED: usize = 256;

/// The most bytes of znodes that an instance keeps between slots.
const NODES_BYTES_MAX: u64 = 4 << 20;

/// The paths that a slot changes may take at most the maximum slot size divided by this. The slot
/// contains each path up to three times, and its entries take space too.
const SLOT_PATHS_PART: usize = 8;

/// A slot ends once it has the maximum slot size divided by this. One more entry still fits.
const SLOT_ENOUGH_PART: usize = 2;

/// The length of most entries of a slot, in bytes. It only sizes a buffer.
const ENTRY_BYTES: usize = 192;

#[derive(Debug)]
pub(crate) struct Distributor {
    env: Arc<Environment>,
    log: FencedLog,
    region: UserStore,
    /// The tail of this process, if no other process uses the store.
    tail: Option<Arc<Tail>>,
    /// The state that a warm instance keeps between invocations. None before the first and after
    /// any failure.
    warm: Mutex<Option<WarmState>>,
}

/// Why a batch is not distributed.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error("another instance holds the log and has newer state")]
    Overtaken,
    #[error("a store failed: {0}")]
    Failed(#[from] ports::Error),
}

impl From<Stopped> for ports::Error {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Overtaken => {
                Self::unavailable("append to the log, which another distributor holds")
            }
            Stopped::Failed(error) => error,
        }
    }
}

/// The effect of a slot on one session's outbox.
#[derive(Debug)]
struct Settling {
    before: u64,
    through: u64,
    has_ended: bool,
}

/// The state of a distributor that holds the log.
#[derive(Debug)]
struct WarmState {
    writer: primitives::Writer,
    system: TrackedStore,
    items: TrackedStore,
    slot: u64,
    zxid: Zxid,
    /// The cursors after the applied slots that this instance has appended and not trimmed.
    retained: VecDeque<Cursor>,
    applied: Applied,
    /// The znodes of the last slots. No other instance applies slots while this one holds the log.
    nodes: Recent<String, Node>,
    /// None before the first slot.
    quotas: Option<Quotas>,
}

impl WarmState {
    /// The step to slot `index` from the one before it.
    fn step(&self, index: SlotIndex, epoch: Epoch, last: Zxid) -> Step {
        // After a takeover, the last applied slot is announced again. A process that missed it
        // reads the log.
        let previous = if index.0 == self.slot {
            u64::MAX
        } else {
            self.slot
        };
        Step {
            previous,
            slot: index.0,
            epoch: epoch.0,
            last,
        }
    }

    fn wake(&self, step: Step, slot: Bytes) -> Wake {
        Wake {
            previous: step.previous,
            index: step.slot,
            epoch: step.epoch,
            slot,
            point: self.items.point(),
        }
    }

    fn advance(&mut self, step: Step) {
        self.slot = step.slot;
        self.zxid = step.last;
        self.retained.push_back(Cursor {
            next: SlotIndex(step.slot + 1),
            epoch: Epoch(step.epoch),
        });
    }
}

impl Distributor {
    pub(crate) fn new(env: Arc<Environment>) -> Self {
        Self {
            log: FencedLog::new(env.parts.system.clone(), LOG_PARTITION),
            region: UserStore::of(&env),
            env,
            tail: None,
            warm: Mutex::new(None),
        }
    }

    /// A distributor that delivers what it applies at once to the clients of its process, whose tail
    /// is `tail`.
    pub(crate) fn beside(tail: &Arc<Tail>) -> Self {
        Self {
            tail: Some(tail.clone()),
            ..Self::new(tail.env.clone())
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut guard = self.warm.lock().await;
        // Taken out, so that a failure or the death of this invocation leaves none, and the next
        // one starts cold.
        if let Some(warm) = guard.take().and_then(still_valid) {
            match self.process(warm, decided(deliveries)?).await {
                Ok(warm) => {
                    *guard = Some(warm);
                    return Ok(());
                }
                // Where several processes distribute, others may have distributed since this
                // instance last ran.
                Err(Stopped::Overtaken) => {}
                Err(Stopped::Failed(error)) => return Err(error),
            }
        }
        let warm = self.take_over().await?;
        *guard = Some(self.process(warm, decided(deliveries)?).await?);
        Ok(())
    }

    /// Numbers and applies everything that `decided` names.
    async fn process(
        &self,
        mut warm: WarmState,
        decided: Vec<Decided>,
    ) -> Result<WarmState, Stopped> {
        let mut ordered = if self.env.breaks(Broken::IgnoresPredecessors) {
            order::unordered(&mut warm.applied, decided)
        } else {
            self.ordered(&mut warm, decided).await?
        };
        let mut known = std::mem::take(&mut ordered.known);
        while ordered.has_foreign {
            // The instance that numbered these requests may have died before it announced them, and
            // these messages are the only sign of that. So take over, which announces the last slot
            // again, before the messages are acknowledged. Meanwhile another instance may number
            // some of the rest and die. Each round leaves fewer requests.
            warm = self.take_over().await?;
            ordered = self.ordered(&mut warm, ordered.next).await?;
            known.append(&mut ordered.known);
        }
        // The messages are also the only sign of objects that a late distributor put for these
        // requests before it died.
        self.remove_late_objects(&known, &mut warm).await?;
        let mut rest = ordered.next.as_slice();
        while !rest.is_empty() {
            let most = numbering::slot_len(rest, self.slot_bytes_max() / SLOT_PATHS_PART);
            let done = self.distribute(&mut warm, &rest[..most]).await?;
            rest = &rest[done..];
        }
        Ok(warm)
    }

    /// A slot must fit into an item of the log and into a call of the watch function.
    fn slot_bytes_max(&self) -> usize {
        let Parts {
            system, functions, ..
        } = &self.env.parts;
        let payload_bytes_max = functions.limits().payload_bytes_max;
        system.limits().item_bytes_max.min(payload_bytes_max)
    }

    async fn ordered(
        &self,
        warm: &mut WarmState,
        arrived: Vec<Decided>,
    ) -> Result<Ordered, Stopped> {
        let arrived = if self.env.breaks(Broken::NumbersLostDecisions) {
            Arrived {
                decided: arrived,
                ..Arrived::default()
            }
        } else {
            order::without_lost(&self.env, &mut warm.system, arrived).await?
        };
        order::ordered(&mut warm.system, &mut warm.applied, arrived).await
    }

    /// Distributes the first requests of `ordered`, as many as fit into a slot. Returns their
    /// number.
    async fn distribute(
        &self,
        warm: &mut WarmState,
        ordered: &[Decided],
    ) -> Result<usize, Stopped> {
        self.externalize_names(warm, ordered).await?;
        let numbered = self.numbered(warm, ordered).await?;
        let ordered = &ordered[..numbered.slot.entries.len()];
        let encoded = encoded(&numbered.slot);
        // The slot is computed from the decisions and from the znodes as they were read for it.
        warm.system.observe_now()?;
        if !self.env.breaks(Broken::NumbersByTheLogAlone) {
            warm.writer.depend_on(warm.system.point()).await?;
        }
        let Appended::At(index, _) = warm.writer.append(encoded.clone()).await? else {
            self.remove_late_objects(ordered, warm).await?;
            return Err(Stopped::Overtaken);
        };
        let step = warm.step(index, warm.writer.epoch(), numbered.slot.last());
        if self.env.breaks(Broken::AnswersBeforeApplying) {
            self.announce(warm, step, encoded.clone()).await?;
        }
        let garbage = self.apply(warm, step, &numbered).await?;
        settle(warm, &numbered.slot.entries).await?;
        self.announce(warm, step, encoded).await?;
        self.remove_index_entries(ordered, &warm.system).await;
        self.collect_garbage(garbage, &mut warm.items).await?;
        for (path, node) in numbered.changes {
            warm.nodes.set(&*path, node);
        }
        warm.advance(step);
        trim(warm).await?;
        Ok(ordered.len())
    }

    /// Numbers requests after the last slot, as many as fit into one.
    async fn numbered<'decided>(
        &self,
        warm: &mut WarmState,
        ordered: &'decided [Decided],
    ) -> Result<Numbered<'decided>> {
        let quotas = match &mut warm.quotas {
            Some(quotas) => quotas,
            none => none.insert(Quotas::load(&self.region).await?),
        };
        let first = Zxid(warm.zxid.0 + 1);
        let nodes = (&self.region, Some(&warm.nodes));
        let enough = self.slot_bytes_max() / SLOT_ENOUGH_PART;
        numbering::number(nodes, first, ordered, Sums::Computed(quotas), enough).await
    }

    /// If objects will be named after decisions, waits until these decisions are durable. If a
    /// decision were lost, its object would remain, and the session's next decision would find its
    /// own object name taken (rule P5).
    async fn externalize_names(&self, warm: &mut WarmState, ordered: &[Decided]) -> Result<()> {
        let mut written = ordered.iter().flat_map(Decided::written);
        let names_object = written.any(|written| self.region.belongs_in_object(written.data));
        if !names_object || self.env.breaks(Broken::PutsObjectsOfUndurableDecisions) {
            return Ok(());
        }
        warm.system.observe_now()?;
        warm.system.externalize().await
    }

    /// Applies a slot. Returns its garbage, unless another instance had begun the slot. Then the
    /// garbage is in the cursor's row, for the next distributor that takes over.
    async fn apply<'numbered>(
        &self,
        warm: &mut WarmState,
        step: Step,
        Numbered {
            changes,
            garbage,
            growth,
            ..
        }: &'numbered Numbered<'_>,
    ) -> Result<&'numbered [Bytes]> {
        let items = &mut warm.items;
        let has_begun = self
            .region
            .apply(items, step, changes, garbage, *growth)
            .await?;
        if has_begun || self.env.breaks(Broken::CollectsObjectsInUse) {
            Ok(garbage)
        } else {
            Ok(&[])
        }
    }

    /// Removes ephemerals that other sessions deleted from the indexes of their own sessions. Until
    /// the deletion is applied, the session's end must find the entry, to follow the deletion. So
    /// the removal depends on `settled`, which was observed after the slot was applied. If the
    /// removal fails, the session's end checks and removes the entry.
    async fn remove_index_entries(&self, applied: &[Decided], settled: &TrackedStore) {
        let foreign = applied.iter().flat_map(Decided::foreign_ephemerals);
        let removals = foreign.map(|(create, path)| {
            let mut store = if self.env.breaks(Broken::DropsIndexEntriesOfLostDeletions) {
                settled.untracked()
            } else {
                settled.clone()
            };
            async move { ephemerals::remove(&mut store, create, path).await }
        });
        for error in join_all(removals).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "could not remove a deleted ephemeral from the index of its session");
        }
    }

    /// Invokes the watch function. Gateways that it does not reach find the slot in the log.
    /// Clients may learn of the slot once the point where it is applied is durable.
    async fn announce(&self, warm: &WarmState, step: Step, slot: Bytes) -> Result<()> {
        let wake = warm.wake(step, slot);
        let functions = &self.env.parts.functions;
        let wake = encode_sized(&wake, 64 + wake.slot.len());
        functions.invoke(queue_names::WATCH, wake).await.map(|_| ())
    }

    /// Becomes the distributor: seals the log, and finishes every slot that is not known to be
    /// finished. These include the last applied slot, because its outboxes may not be settled.
    async fn take_over(&self) -> Result<WarmState> {
        let Parts { system, items, .. } = self.env.parts.clone();
        let (mut system, mut items) = (TrackedStore::now(system), TrackedStore::now(items));
        let (cursor, garbage) = self.observed_cursor(&mut items).await?;
        let from = match cursor.slot {
            0 => Cursor::START,
            slot => Cursor {
                next: SlotIndex(slot),
                epoch: Epoch(cursor.epoch),
            },
        };
        let (writer, standing) = if self.env.breaks(Broken::TakesOverWithoutSeal) {
            self.log.take_over_without_seal(from).await?
        } else {
            self.log.take_over(from).await?
        };
        system.observe(writer.point())?;
        let mut warm = WarmState {
            writer,
            system,
            items,
            slot: cursor.slot,
            zxid: cursor.zxid,
            retained: VecDeque::new(),
            applied: Applied::default(),
            nodes: Recent::new(NODES_BYTES_MAX, |path: &String, node: &Node| {
                path.len() + node.bytes_len()
            }),
            quotas: None,
        };
        for slot in standing {
            if self.env.breaks(Broken::AssumesTheLogIsApplied) {
                let last = decode::<Slot>(&slot.payload, "a slot of the log")?.last();
                warm.advance(warm.step(slot.index, slot.epoch, last));
                continue;
            }
            self.repeat_slot(&mut warm, slot).await?;
        }
        self.collect_garbage(&garbage, &mut warm.items).await?;
        self.trim_for_others(&warm).await?;
        Ok(warm)
    }

    /// Trims the log to the slots that one instance retains, if it has many more. Otherwise it
    /// would grow without bound, because an instance trims only what it has appended itself. Reads
    /// only the slots that it removes.
    async fn trim_for_others(&self, warm: &WarmState) -> Result<()> {
        let start = self.log.start().await?;
        let until = warm.slot.saturating_sub(SLOTS_RETAINED as u64);
        if until < start.next.0 + SLOTS_TRIMMED as u64 {
            return Ok(());
        }
        let mut cursor = start;
        while cursor.next.0 < until {
            let slots_max = (until - cursor.next.0) as usize;
            let page = match self.log.read(cursor, slots_max).await {
                // Another instance trims at the same time.
                Err(error) if error.kind() == ErrorKind::Invalid => return Ok(()),
                page => page?,
            };
            cursor = page.cursor;
            if page.is_tail {
                break;
            }
        }
        warm.writer.trim(cursor).await
    }

    async fn observed_cursor(
        &self,
        items: &mut TrackedStore,
    ) -> Result<(user_store::Cursor, Vec<Bytes>)> {
        let read = self.region.cursor().await?;
        items.observe(read.point)?;
        Ok(read.value)
    }

    /// Repeats steps 3 to 5 for a slot that a predecessor numbered.
    async fn repeat_slot(&self, warm: &mut WarmState, logged: primitives::Slot) -> Result<()> {
        let slot: Slot = decode(&logged.payload, "a slot of the log")?;
        let step = warm.step(logged.index, logged.epoch, slot.last());
        let (cursor, _) = self.observed_cursor(&mut warm.items).await?;
        let (mut decided, mut garbage) = (Vec::new(), Vec::new());
        if cursor.slot < step.slot {
            for entry in &slot.entries {
                decided.push(find_in_outbox(&mut warm.system, entry).await?);
            }
            let mut again;
            let sums = if self.env.breaks(Broken::CountsAgain) {
                again = Quotas::load(&self.region).await?;
                Sums::Computed(&mut again)
            } else {
                Sums::Logged(&slot.statistics)
            };
            // Only the changes are computed again. The logged slot is final.
            let numbered =
                numbering::number((&self.region, None), slot.first, &decided, sums, usize::MAX)
                    .await?;
            garbage = self.apply(warm, step, &numbered).await?.to_vec();
        }
        settle(warm, &slot.entries).await?;
        self.announce(warm, step, logged.payload).await?;
        self.remove_index_entries(&decided, &warm.system).await;
        garbage.extend(self.late_objects(&decided, warm).await?);
        self.collect_garbage(&garbage, &mut warm.items).await?;
        warm.advance(step);
        Ok(())
    }
}

/// The encoded slot, in a buffer that seldom has to grow.
fn encoded(slot: &Slot) -> Bytes {
    encode_sized(slot, slot.entries.len() * ENTRY_BYTES)
}

/// The decided requests in these messages. A second attempt decodes them again, because it is rare.
fn decided(deliveries: &[Delivery]) -> Result<Vec<Decided>> {
    deliveries
        .iter()
        .flat_map(|delivery| queue_names::unpacked(&delivery.body))
        .map(|record| decode(record?, "a decided request"))
        .collect()
}

/// The state of an earlier invocation, unless a store has restarted since and may have lost what
/// the state is based on. After this check, every request sent so far is known to be decided, if it
/// was planned in the same incarnation of the store.
fn still_valid(mut warm: WarmState) -> Option<WarmState> {
    warm.system.observe_now().ok()?;
    warm.items.observe_now().ok()?;
    Some(warm)
}

/// Removes slots that no gateway needs, many at a time.
async fn trim(warm: &mut WarmState) -> Result<()> {
    if warm.retained.len() < SLOTS_RETAINED + SLOTS_TRIMMED {
        return Ok(());
    }
    warm.retained.drain(..SLOTS_TRIMMED - 1);
    let until = warm
        .retained
        .pop_front()
        .expect("more are retained than trimmed");
    warm.writer.trim(until).await
}

/// Removes applied requests from the outboxes, with one write per session, and removes ended
/// sessions. The writes depend on the applied slot, because an outbox is the last place that has
/// its requests.
async fn settle(warm: &mut WarmState, entries: &[LogEntry]) -> Result<()> {
    let system = &mut warm.system;
    system.observe_now()?;
    let mut settling: BTreeMap<SessionId, Settling> = BTreeMap::new();
    for entry in entries {
        let first = Settling {
            before: entry.id.sequence - 1,
            through: 0,
            has_ended: false,
        };
        let settling = settling.entry(entry.id.session).or_insert(first);
        settling.through = entry.id.sequence;
        settling.has_ended |= entry.answer == Ok(UpdateAnswer::Closed);
    }
    for (session, settling) in settling {
        if settling.has_ended {
            ephemerals::clear(system, session).await?;
            session::remove(system, session).await?;
            warm.applied.forget(session);
        } else {
            session::applied(system, session, settling.before, settling.through).await?;
            warm.applied.advance(session, settling.through);
        }
    }
    Ok(())
}

/// The decided request of a log entry. It is in its session's outbox until it is applied.
async fn find_in_outbox(system: &mut TrackedStore, entry: &LogEntry) -> Result<Decided> {
    let decided = match session::get(system, entry.id.session).await? {
        Some(row) => row.decided(entry.id.sequence)?,
        None => None,
    };
    decided.ok_or_else(|| {
        ports::Error::corrupt(format!("find logged update {:?} in its outbox", entry.id))
    })
}

#[async_trait]
impl Handler for Distributor {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Messages { deliveries, .. } = event else {
            return Err(Failure::new("the distributor accepts only messages"));
        };
        self.handle_messages(&deliveries).await?;
        Ok(Bytes::new())
    }
}

#[cfg(test)]
mod tests;
