//! The distributor: gives every decided request its place in the one order of all, applies it to the user
//! stores, and has it told.
//!
//! An event function on the single group of the distributor queue. Per batch (`faaskeeper.txt`, algorithm 2,
//! made crash-proof by C-3 and C-4):
//!
//! 1. order: a request comes after its session's earlier ones and after the updates that it names per
//!    znode; what the queue has not brought is fetched from the outbox in its session's row ([`order`]);
//! 2. number: the zxids, the answers and the watch events of the whole batch become one slot of a fenced
//!    log, failures too ([`numbering`]). From here on the batch is decided for ever;
//! 3. apply the slot to each region's user store, with its cursor;
//! 4. drop what is applied from the outboxes, and remove sessions that have ended;
//! 5. wake the watch function with the slot.
//!
//! A distributor that dies anywhere is followed by one that takes the log over, which shuts the first one
//! out, and does steps 3 to 5 again for every slot that is not known to be done ([`Distributor::take_over`]).
//!
//! Each step rests on the ones before it ([`Basis`]): a store that has gone back takes nothing from a distributor that
//! knows more than it does.
//!
//! The paper's timestamp adjustment (algorithm 2, step 5) is not needed: zxids are given here, in order.

mod numbering;
mod objects;
mod order;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use ports::{
    DurabilityPoint, Event, Functions, Handler, KeyValue, Result, functions::Failure,
    key_value::Read, queue::Delivery,
};
use primitives::{Appended, Cursor, Epoch, FencedLog, SlotIndex};
use tokio::sync::Mutex;

use self::{
    numbering::SlotLimits,
    order::{Applied, Arrived, Ordered},
};
use crate::{
    basis::Basis,
    broken::Broken,
    config::Config,
    ephemerals::Ephemerals,
    model::{SessionId, Zxid},
    names,
    node::Nodes,
    records::{Answer, Decided, Entry, Slot, Wake, decode, encode},
    session::Sessions,
    user_store::{Change, Step, UserStore},
};

/// The partition of the log.
pub const LOG_PARTITION: &str = "distributor-log";

/// How many applied slots stay in the log for gateways that are behind.
const SLOTS_RETAINED: usize = 1024;

/// How many are removed at a time.
const SLOTS_TRIMMED: usize = 256;

/// The paths that a slot changes may together take this part of what it may be long: it says each up to three times,
/// and its entries take something beside.
const SLOT_PATHS_PART: usize = 8;

/// The data of so many bytes is applied with one slot.
const SLOT_DATA_BYTES_MAX: usize = 32 << 20;

/// The distributor function.
#[derive(Debug)]
pub struct Distributor {
    system: Arc<dyn KeyValue>,
    log: FencedLog,
    regions: Vec<UserStore>,
    sessions: Sessions,
    ephemerals: Ephemerals,
    nodes: Nodes,
    functions: Arc<dyn Functions>,
    broken: Option<Broken>,
    /// What a warm instance keeps between invocations; none before the first and after any failure.
    warm: Mutex<Option<Warm>>,
}

/// Why a batch is not distributed.
#[derive(Debug)]
enum Stopped {
    /// Another instance holds the log, and knows more than this one.
    Overtaken,
    /// A store failed.
    Failed(ports::Error),
}

impl From<ports::Error> for Stopped {
    fn from(error: ports::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Stopped> for ports::Error {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Overtaken => Self::unavailable("append to the log, which another holds"),
            Stopped::Failed(error) => error,
        }
    }
}

/// What a slot means for one session's outbox.
#[derive(Debug)]
struct Settling {
    /// The session was applied up to here before the slot,
    before: u64,
    /// is up to here after it,
    through: u64,
    /// and ends with it.
    has_ended: bool,
}

/// All that a distributor has seen of each store since it took the log over.
#[derive(Debug)]
struct Grounds {
    system: Basis,
    /// Per region, in order.
    regions: Vec<Basis>,
}

/// The state of a distributor that holds the log.
#[derive(Debug)]
struct Warm {
    writer: primitives::Writer,
    grounds: Grounds,
    /// The last slot of the log.
    slot: u64,
    /// The last zxid given.
    zxid: Zxid,
    /// The places behind the slots that are still in the log, as far as this instance has appended them.
    retained: VecDeque<Cursor>,
    applied: Applied,
}

impl Warm {
    /// The way to slot `index` from the one before it.
    fn step(&self, index: SlotIndex, epoch: Epoch, last: Zxid) -> Step {
        // The slot applied last is told again after a take-over: who has missed it reads the log.
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

    /// Notes that the slot is done.
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
    /// A distributor on `system`, applying to `regions` and waking through `functions`.
    pub fn new(
        system: Arc<dyn KeyValue>,
        regions: Vec<UserStore>,
        nodes: Nodes,
        functions: Arc<dyn Functions>,
        config: &Config,
    ) -> Self {
        assert!(
            !regions.is_empty(),
            "there is at least one region to apply to"
        );
        Self {
            log: FencedLog::new(system.clone(), LOG_PARTITION),
            regions,
            sessions: Sessions::new(system.clone()),
            ephemerals: Ephemerals::new(system.clone()),
            system,
            nodes,
            functions,
            broken: config.broken,
            warm: Mutex::new(None),
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut decided = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            decided.push(decode::<Decided>(&delivery.body, "a decided request")?);
        }
        let mut guard = self.warm.lock().await;
        // Taken out: a failure, or the death of this invocation, leaves none, and the next one starts afresh.
        if let Some(warm) = guard.take().and_then(|warm| self.standing(warm)) {
            match self.work(warm, decided.clone()).await {
                Ok(warm) => {
                    *guard = Some(warm);
                    return Ok(());
                }
                // Where several processes distribute, one that comes to it again finds that others did meanwhile.
                Err(Stopped::Overtaken) => {}
                Err(Stopped::Failed(error)) => return Err(error),
            }
        }
        let warm = self.take_over().await?;
        *guard = Some(self.work(warm, decided).await?);
        Ok(())
    }

    /// Has everything numbered and applied that `decided` names.
    async fn work(&self, mut warm: Warm, decided: Vec<Decided>) -> Result<Warm, Stopped> {
        let mut ordered = if self.broken == Some(Broken::IgnoresPredecessors) {
            order::unordered(&mut warm.applied, decided)
        } else {
            self.ordered(&mut warm, decided).await?
        };
        let mut known = std::mem::take(&mut ordered.known);
        while ordered.has_foreign {
            // Whoever numbered them may have died before it told of them, and these messages are what is left
            // to say so: take over, which tells of the last slot again, before they are acknowledged. Meanwhile another may
            // have numbered some of the rest, and died; each time there are fewer.
            warm = self.take_over().await?;
            ordered = self.ordered(&mut warm, ordered.next).await?;
            known.append(&mut ordered.known);
        }
        // So are they of objects that one has put for them who was late, and died.
        self.remove_what_came_late(&known, &mut warm.grounds)
            .await?;
        let mut rest = ordered.next.as_slice();
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.slot_limits().count(rest));
            self.distribute(&mut warm, some).await?;
            rest = others;
        }
        Ok(warm)
    }

    /// A slot is an item of the log and a call of the watch function.
    fn slot_limits(&self) -> SlotLimits {
        let bytes_max = self
            .system
            .limits()
            .item_bytes_max
            .min(self.functions.limits().payload_bytes_max);
        SlotLimits {
            path_bytes_max: bytes_max / SLOT_PATHS_PART,
            data_bytes_max: SLOT_DATA_BYTES_MAX,
        }
    }

    /// Of work that begins now.
    fn grounds(&self) -> Grounds {
        let of_region = |region: &UserStore| Basis::now(&**region.items());
        Grounds {
            system: Basis::now(&*self.system),
            regions: self.regions.iter().map(of_region).collect(),
        }
    }

    /// What an earlier invocation left, unless a store has restarted since and may have lost what it knows. From here
    /// on all that was sent so far is known to be decided, if it was planned in the same start of the store.
    fn standing(&self, mut warm: Warm) -> Option<Warm> {
        warm.grounds.system.look(&*self.system).ok()?;
        for (region, basis) in self.regions.iter().zip(&mut warm.grounds.regions) {
            basis.look(&**region.items()).ok()?;
        }
        Some(warm)
    }

    async fn ordered(&self, warm: &mut Warm, arrived: Vec<Decided>) -> Result<Ordered, Stopped> {
        let Warm {
            applied,
            grounds: Grounds { system: basis, .. },
            ..
        } = warm;
        let arrived = if self.broken == Some(Broken::NumbersWhatWasLost) {
            Arrived {
                decided: arrived,
                ..Arrived::default()
            }
        } else {
            order::still_decided(&self.sessions, &self.nodes, arrived, basis).await?
        };
        order::ordered(&self.sessions, &self.nodes, applied, arrived, basis).await
    }

    async fn distribute(&self, warm: &mut Warm, ordered: &[Decided]) -> Result<(), Stopped> {
        let first = Zxid(warm.zxid.0 + 1);
        self.settle_names(warm, ordered).await?;
        let numbered = numbering::number(&self.regions, first, ordered).await?;
        let encoded = encode(&numbered.slot);
        // All that the slot says is computed from: the decisions, and the regions as they were read for it.
        warm.grounds.system.look(&*self.system)?;
        if self.broken != Some(Broken::NumbersByTheLogAlone) {
            warm.writer.depend_on(warm.grounds.system.point()).await?;
        }
        let index = match warm.writer.append(encoded.clone()).await? {
            Appended::At(index, _) => index,
            Appended::Fenced => {
                self.remove_what_came_late(ordered, &mut warm.grounds)
                    .await?;
                return Err(Stopped::Overtaken);
            }
        };
        let step = warm.step(index, warm.writer.epoch(), numbered.slot.last());
        if self.broken == Some(Broken::AnswersBeforeApplying) {
            self.tell(step, encoded.clone(), warm.grounds.regions[0].point())
                .await?;
        }
        let garbage = self
            .apply(step, numbered.changes, numbered.garbage, &mut warm.grounds)
            .await?;
        self.settle(warm, &numbered.slot.entries).await?;
        self.tell(step, encoded, warm.grounds.regions[0].point())
            .await?;
        self.forget_taken(ordered, warm.grounds.system).await;
        self.collect(&garbage, &mut warm.grounds).await?;
        warm.advance(step);
        Ok(self.trim(warm).await?)
    }

    /// Waits until the decisions are durable that objects are to be named by: those stay where a decision is lost, and
    /// the next one of its session would find its own name taken (rule P5).
    async fn settle_names(&self, warm: &mut Warm, ordered: &[Decided]) -> Result<()> {
        let is_placed = |data| {
            self.regions
                .iter()
                .any(|region: &UserStore| region.belongs_in_object(data))
        };
        let names_object = ordered.iter().filter_map(Decided::data).any(is_placed);
        if !names_object || self.broken == Some(Broken::PlacesWhatMayBeLost) {
            return Ok(());
        }
        warm.grounds.system.look(&*self.system)?;
        self.system.externalize(warm.grounds.system.point()).await
    }

    /// Applies a slot to every region. Answers the garbage of those where nobody else has begun with it: of the others it is
    /// in their cursors' rows, for whoever takes over.
    async fn apply(
        &self,
        step: Step,
        changes: Vec<Vec<Change>>,
        mut garbage: Vec<Vec<Bytes>>,
        grounds: &mut Grounds,
    ) -> Result<Vec<Vec<Bytes>>> {
        let regions = self
            .regions
            .iter()
            .zip(&changes)
            .zip(&garbage)
            .zip(&mut grounds.regions);
        let applied = regions.map(|(((region, changes), garbage), basis)| {
            region.apply(step, changes, garbage, basis)
        });
        let has_begun = try_join_all(applied).await?;
        for (garbage, has_begun) in garbage.iter_mut().zip(has_begun) {
            if !has_begun && self.broken != Some(Broken::CollectsWhatOthersHaveApplied) {
                garbage.clear();
            }
        }
        Ok(garbage)
    }

    /// Ephemerals that others than their session have deleted leave its index: until they are gone, the end of the session
    /// has to know of them, to come behind. So this rests on what was `settled` once the slot was applied, and nobody waits for it.
    /// What is left where it fails, or where a distributor dies before it, the end sees through, and removes.
    async fn forget_taken(&self, applied: &[Decided], settled: Basis) {
        let is_broken = self.broken == Some(Broken::ForgetsWhatMayComeBack);
        let removals = applied
            .iter()
            .filter_map(Decided::taken)
            .map(|(create, path)| {
                let mut basis = if is_broken { Basis::ignored() } else { settled };
                async move { self.ephemerals.remove(create, path, &mut basis).await }
            });
        for error in join_all(removals).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "an ephemeral that is gone stays in the index of its session");
        }
    }

    /// Removes slots that no gateway needs any more, many at a time.
    async fn trim(&self, warm: &mut Warm) -> Result<()> {
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

    /// Drops what is applied from the outboxes, one write per session, and removes ended sessions.
    /// That the slot is applied is what this rests on: an outbox is the last place that has its requests.
    async fn settle(&self, warm: &mut Warm, entries: &[Entry]) -> Result<()> {
        let Warm {
            applied,
            grounds: Grounds { system: basis, .. },
            ..
        } = warm;
        basis.look(&*self.system)?;
        let mut settling: BTreeMap<SessionId, Settling> = BTreeMap::new();
        for entry in entries {
            let first = Settling {
                before: entry.id.sequence - 1,
                through: 0,
                has_ended: false,
            };
            let settling = settling.entry(entry.id.session).or_insert(first);
            settling.through = entry.id.sequence;
            settling.has_ended |= entry.answer == Ok(Answer::Closed);
        }
        for (session, settling) in settling {
            if settling.has_ended {
                self.ephemerals.clear(session, basis).await?;
                self.sessions.remove(session, basis).await?;
                applied.forget(session);
            } else {
                self.sessions
                    .applied(session, settling.before, settling.through, basis)
                    .await?;
                applied.advance(session, settling.through);
            }
        }
        Ok(())
    }

    /// Wakes the watch function; gateways that it does not reach find the slot in the log.
    /// It may leave once `point` is durable, where the first region has it applied.
    async fn tell(&self, step: Step, slot: Bytes, point: DurabilityPoint) -> Result<()> {
        let wake = Wake {
            previous: step.previous,
            index: step.slot,
            epoch: step.epoch,
            slot,
            point,
        };
        self.functions
            .invoke(names::WATCH, encode(&wake))
            .await
            .map(|_| ())
    }

    /// Becomes the distributor: seals the log, and finishes every slot that is not known to be finished. The
    /// last one applied is among them, since its outboxes may not be settled.
    async fn take_over(&self) -> Result<Warm> {
        let mut grounds = self.grounds();
        let (mut cursors, mut garbage) = (
            Vec::with_capacity(self.regions.len()),
            Vec::with_capacity(self.regions.len()),
        );
        for (region, basis) in self.regions.iter().zip(&mut grounds.regions) {
            let Read {
                value: (cursor, of_region),
                point,
            } = region.cursor().await?;
            basis.seen(point)?;
            garbage.push(of_region);
            cursors.push(cursor);
        }
        let slowest = cursors.into_iter().min_by_key(|cursor| cursor.slot);
        let cursor = slowest.expect("there is at least one region");
        let from = match cursor.slot {
            0 => Cursor::START,
            slot => Cursor {
                next: SlotIndex(slot),
                epoch: Epoch(cursor.epoch),
            },
        };
        let (writer, standing) = self.log.take_over(from).await?;
        grounds.system.seen(writer.point())?;
        let (zxid, retained) = (cursor.zxid, VecDeque::new());
        let applied = Applied::default();
        let mut warm = Warm {
            writer,
            grounds,
            slot: cursor.slot,
            zxid,
            retained,
            applied,
        };
        for slot in standing {
            if self.broken == Some(Broken::TakesTheLogForApplied) {
                let last = decode::<Slot>(&slot.payload, "a slot of the log")?.last();
                warm.advance(warm.step(slot.index, slot.epoch, last));
                continue;
            }
            self.redo(&mut warm, slot).await?;
        }
        self.collect(&garbage, &mut warm.grounds).await?;
        Ok(warm)
    }

    /// Does steps 3 to 5 again for a slot that a predecessor numbered.
    async fn redo(&self, warm: &mut Warm, logged: primitives::Slot) -> Result<()> {
        let slot: Slot = decode(&logged.payload, "a slot of the log")?;
        let step = warm.step(logged.index, logged.epoch, slot.last());
        let mut is_applied = true;
        for (region, basis) in self.regions.iter().zip(&mut warm.grounds.regions) {
            let Read {
                value: (cursor, _),
                point,
            } = region.cursor().await?;
            basis.seen(point)?;
            is_applied &= cursor.slot >= step.slot;
        }
        let (mut decided, mut garbage) = (Vec::new(), Vec::new());
        if !is_applied {
            for entry in &slot.entries {
                decided.push(self.find_in_outbox(entry, &mut warm.grounds.system).await?);
            }
            // Only the changes are computed again: what was logged is what was decided.
            let numbered = numbering::number(&self.regions, slot.first, &decided).await?;
            garbage = self
                .apply(step, numbered.changes, numbered.garbage, &mut warm.grounds)
                .await?;
        }
        self.settle(warm, &slot.entries).await?;
        self.tell(step, logged.payload, warm.grounds.regions[0].point())
            .await?;
        self.forget_taken(&decided, warm.grounds.system).await;
        self.add_what_came_late(&decided, &mut garbage, &mut warm.grounds)
            .await?;
        self.collect(&garbage, &mut warm.grounds).await?;
        warm.advance(step);
        Ok(())
    }

    /// A numbered request is in its session's outbox until it is applied everywhere.
    async fn find_in_outbox(&self, entry: &Entry, basis: &mut Basis) -> Result<Decided> {
        let row = self.sessions.get(entry.id.session, basis).await?;
        let decided = match &row {
            Some(row) => row.decided(entry.id.sequence)?,
            None => None,
        };
        decided.ok_or_else(|| {
            ports::Error::corrupt(format!(
                "find {:?}, which the log names, in its outbox",
                entry.id
            ))
        })
    }
}

#[async_trait]
impl Handler for Distributor {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        match event {
            Event::Messages { deliveries, .. } => {
                self.handle_messages(&deliveries).await?;
                Ok(Bytes::new())
            }
            _ => Err(Failure::new("the distributor takes messages only")),
        }
    }
}

#[cfg(test)]
mod tests;
