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
//! 3. Apply the slot to each region's user store, together with its cursor.
//! 4. Remove applied requests from the outboxes, and the rows of sessions that have ended.
//! 5. Invoke the watch function with the slot.
//!
//! If a distributor dies, its successor takes over the log, which fences it out. The successor
//! repeats steps 3 to 5 for every slot that is not known to be finished
//! ([`Distributor::take_over`]).
//!
//! Each step depends on the ones before it ([`Dependency`]). A store that rolled back refuses the
//! writes of a distributor that observed lost state.
//!
//! The paper's timestamp adjustment (algorithm 2, step 5) is unnecessary, because zxids are
//! assigned here, in order.

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
use primitives::{Appended, Cursor, Epoch, FencedLog, Mutant, SlotIndex};
use tokio::sync::Mutex;

use self::{
    numbering::SlotLimits,
    order::{Applied, Arrived, Ordered},
};
use crate::{
    broken::Broken,
    config::Config,
    dependency::Dependency,
    model::{SessionId, Zxid},
    queue_names,
    records::{Decided, LogEntry, Slot, UpdateAnswer, Wake, decode, encode},
    storage::{
        ephemerals::Ephemerals,
        node::Nodes,
        session::Sessions,
        user_store::{NodeChange, Step, UserStore},
    },
};

/// The log's partition.
pub const LOG_PARTITION: &str = "distributor-log";

/// Applied slots that stay in the log for gateways that are behind.
const SLOTS_RETAINED: usize = 1024;

/// Slots removed at a time.
const SLOTS_TRIMMED: usize = 256;

/// The paths that a slot changes may take at most the maximum slot size divided by this. The slot
/// contains each path up to three times, and its entries take space too.
const SLOT_PATHS_PART: usize = 8;

/// The most data that one slot applies, in bytes.
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
    mutant: Mutant<Broken>,
    /// The state that a warm instance keeps between invocations. None before the first and after
    /// any failure.
    warm: Mutex<Option<WarmState>>,
}

/// Why a batch is not distributed.
#[derive(Debug)]
enum Stopped {
    /// Another instance holds the log and has newer state.
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
    /// The last sequence applied before the slot.
    before: u64,
    /// The last sequence applied after the slot.
    through: u64,
    /// Whether the session ends with the slot.
    has_ended: bool,
}

/// Everything that a distributor has observed of each store since it took over the log.
#[derive(Debug)]
struct Dependencies {
    system: Dependency,
    /// Per region, in order.
    regions: Vec<Dependency>,
}

/// The state of a distributor that holds the log.
#[derive(Debug)]
struct WarmState {
    writer: primitives::Writer,
    dependencies: Dependencies,
    /// The last slot of the log.
    slot: u64,
    /// The last assigned zxid.
    zxid: Zxid,
    /// The cursors after the slots that this instance appended and that are still in the log.
    retained: VecDeque<Cursor>,
    applied: Applied,
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

    /// Records that the slot is finished.
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
    /// A distributor on `system` that applies to `regions` and invokes the watch function through
    /// `functions`.
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
            mutant: config.mutant,
            warm: Mutex::new(None),
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut decided = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            decided.push(decode::<Decided>(&delivery.body, "a decided request")?);
        }
        let mut guard = self.warm.lock().await;
        // Taken out, so that a failure or the death of this invocation leaves none, and the next
        // one starts cold.
        if let Some(warm) = guard.take().and_then(|warm| self.still_valid(warm)) {
            match self.process(warm, decided.clone()).await {
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
        *guard = Some(self.process(warm, decided).await?);
        Ok(())
    }

    /// Numbers and applies everything that `decided` names.
    async fn process(
        &self,
        mut warm: WarmState,
        decided: Vec<Decided>,
    ) -> Result<WarmState, Stopped> {
        let mut ordered = if self.mutant.breaks(Broken::IgnoresPredecessors) {
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
        self.remove_late_objects(&known, &mut warm.dependencies)
            .await?;
        let mut rest = ordered.next.as_slice();
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.slot_limits().count(rest));
            self.distribute(&mut warm, some).await?;
            rest = others;
        }
        Ok(warm)
    }

    /// A slot must fit into an item of the log and into a call of the watch function.
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

    /// The dependencies of work that begins now.
    fn dependencies(&self) -> Dependencies {
        let of_region = |region: &UserStore| Dependency::now(&**region.items());
        Dependencies {
            system: Dependency::now(&*self.system),
            regions: self.regions.iter().map(of_region).collect(),
        }
    }

    /// The state of an earlier invocation, unless a store has restarted since and may have lost
    /// what the state is based on. After this check, every request sent so far is known to be
    /// decided, if it was planned in the same incarnation of the store.
    fn still_valid(&self, mut warm: WarmState) -> Option<WarmState> {
        warm.dependencies.system.observe_store(&*self.system).ok()?;
        for (region, dependency) in self.regions.iter().zip(&mut warm.dependencies.regions) {
            dependency.observe_store(&**region.items()).ok()?;
        }
        Some(warm)
    }

    async fn ordered(
        &self,
        warm: &mut WarmState,
        arrived: Vec<Decided>,
    ) -> Result<Ordered, Stopped> {
        let WarmState {
            applied,
            dependencies: Dependencies {
                system: dependency, ..
            },
            ..
        } = warm;
        let arrived = if self.mutant.breaks(Broken::NumbersLostDecisions) {
            Arrived {
                decided: arrived,
                ..Arrived::default()
            }
        } else {
            order::without_lost(&self.sessions, &self.nodes, arrived, dependency).await?
        };
        order::ordered(&self.sessions, &self.nodes, applied, arrived, dependency).await
    }

    async fn distribute(&self, warm: &mut WarmState, ordered: &[Decided]) -> Result<(), Stopped> {
        let first = Zxid(warm.zxid.0 + 1);
        self.externalize_names(warm, ordered).await?;
        let numbered = numbering::number(&self.regions, first, ordered).await?;
        let encoded = encode(&numbered.slot);
        // The slot is computed from the decisions and from the regions as they were read for it.
        warm.dependencies.system.observe_store(&*self.system)?;
        if !self.mutant.breaks(Broken::NumbersByTheLogAlone) {
            warm.writer
                .depend_on(warm.dependencies.system.point())
                .await?;
        }
        let index = match warm.writer.append(encoded.clone()).await? {
            Appended::At(index, _) => index,
            Appended::Fenced => {
                self.remove_late_objects(ordered, &mut warm.dependencies)
                    .await?;
                return Err(Stopped::Overtaken);
            }
        };
        let step = warm.step(index, warm.writer.epoch(), numbered.slot.last());
        if self.mutant.breaks(Broken::AnswersBeforeApplying) {
            self.announce(step, encoded.clone(), warm.dependencies.regions[0].point())
                .await?;
        }
        let garbage = self
            .apply(
                step,
                numbered.changes,
                numbered.garbage,
                &mut warm.dependencies,
            )
            .await?;
        self.settle(warm, &numbered.slot.entries).await?;
        self.announce(step, encoded, warm.dependencies.regions[0].point())
            .await?;
        self.remove_index_entries(ordered, warm.dependencies.system)
            .await;
        self.collect_garbage(&garbage, &mut warm.dependencies)
            .await?;
        warm.advance(step);
        Ok(self.trim(warm).await?)
    }

    /// If objects will be named after decisions, waits until these decisions are durable. If a
    /// decision were lost, its object would remain, and the session's next decision would find its
    /// own object name taken (rule P5).
    async fn externalize_names(&self, warm: &mut WarmState, ordered: &[Decided]) -> Result<()> {
        let is_placed = |data| {
            self.regions
                .iter()
                .any(|region: &UserStore| region.belongs_in_object(data))
        };
        let names_object = ordered.iter().filter_map(Decided::data).any(is_placed);
        if !names_object || self.mutant.breaks(Broken::PutsObjectsOfUndurableDecisions) {
            return Ok(());
        }
        warm.dependencies.system.observe_store(&*self.system)?;
        self.system
            .externalize(warm.dependencies.system.point())
            .await
    }

    /// Applies a slot to every region. Returns the garbage of the regions in which no other
    /// instance had begun the slot. The others' garbage is in their cursor rows, for the next
    /// distributor that takes over.
    async fn apply(
        &self,
        step: Step,
        changes: Vec<Vec<NodeChange>>,
        mut garbage: Vec<Vec<Bytes>>,
        dependencies: &mut Dependencies,
    ) -> Result<Vec<Vec<Bytes>>> {
        let regions = self
            .regions
            .iter()
            .zip(&changes)
            .zip(&garbage)
            .zip(&mut dependencies.regions);
        let applied = regions.map(|(((region, changes), garbage), dependency)| {
            region.apply(step, changes, garbage, dependency)
        });
        let has_begun = try_join_all(applied).await?;
        for (garbage, has_begun) in garbage.iter_mut().zip(has_begun) {
            if !has_begun && !self.mutant.breaks(Broken::CollectsObjectsInUse) {
                garbage.clear();
            }
        }
        Ok(garbage)
    }

    /// Removes ephemerals that other sessions deleted from the indexes of their own sessions. Until
    /// the deletion is applied, the session's end must find the entry, to follow the deletion. So
    /// the removal depends on `settled`, which was observed after the slot was applied. No other
    /// step waits for it. If the removal fails or the distributor dies before it, the session's end
    /// checks and removes the entry.
    async fn remove_index_entries(&self, applied: &[Decided], settled: Dependency) {
        let is_broken = self.mutant.breaks(Broken::DropsIndexEntriesOfLostDeletions);
        let removals =
            applied
                .iter()
                .filter_map(Decided::foreign_ephemeral)
                .map(|(create, path)| {
                    let mut dependency = if is_broken {
                        Dependency::untracked()
                    } else {
                        settled
                    };
                    async move { self.ephemerals.remove(create, path, &mut dependency).await }
                });
        for error in join_all(removals).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "could not remove a deleted ephemeral from the index of its session");
        }
    }

    /// Removes slots that no gateway needs, many at a time.
    async fn trim(&self, warm: &mut WarmState) -> Result<()> {
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
    /// sessions. The writes depend on the applied slot, because an outbox is the last place that
    /// has its requests.
    async fn settle(&self, warm: &mut WarmState, entries: &[LogEntry]) -> Result<()> {
        let WarmState {
            applied,
            dependencies: Dependencies {
                system: dependency, ..
            },
            ..
        } = warm;
        dependency.observe_store(&*self.system)?;
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
                self.ephemerals.clear(session, dependency).await?;
                self.sessions.remove(session, dependency).await?;
                applied.forget(session);
            } else {
                self.sessions
                    .applied(session, settling.before, settling.through, dependency)
                    .await?;
                applied.advance(session, settling.through);
            }
        }
        Ok(())
    }

    /// Invokes the watch function. Gateways that it does not reach find the slot in the log.
    /// Clients may learn of the slot once `point`, where the first region has applied it, is
    /// durable.
    async fn announce(&self, step: Step, slot: Bytes, point: DurabilityPoint) -> Result<()> {
        let wake = Wake {
            previous: step.previous,
            index: step.slot,
            epoch: step.epoch,
            slot,
            point,
        };
        self.functions
            .invoke(queue_names::WATCH, encode(&wake))
            .await
            .map(|_| ())
    }

    /// Becomes the distributor: seals the log, and finishes every slot that is not known to be
    /// finished. These include the last applied slot, because its outboxes may not be settled.
    async fn take_over(&self) -> Result<WarmState> {
        let mut dependencies = self.dependencies();
        let (mut cursors, mut garbage) = (
            Vec::with_capacity(self.regions.len()),
            Vec::with_capacity(self.regions.len()),
        );
        for (region, dependency) in self.regions.iter().zip(&mut dependencies.regions) {
            let Read {
                value: (cursor, of_region),
                point,
            } = region.cursor().await?;
            dependency.observe(point)?;
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
        dependencies.system.observe(writer.point())?;
        let (zxid, retained) = (cursor.zxid, VecDeque::new());
        let applied = Applied::default();
        let mut warm = WarmState {
            writer,
            dependencies,
            slot: cursor.slot,
            zxid,
            retained,
            applied,
        };
        for slot in standing {
            if self.mutant.breaks(Broken::AssumesTheLogIsApplied) {
                let last = decode::<Slot>(&slot.payload, "a slot of the log")?.last();
                warm.advance(warm.step(slot.index, slot.epoch, last));
                continue;
            }
            self.repeat_slot(&mut warm, slot).await?;
        }
        self.collect_garbage(&garbage, &mut warm.dependencies)
            .await?;
        Ok(warm)
    }

    /// Repeats steps 3 to 5 for a slot that a predecessor numbered.
    async fn repeat_slot(&self, warm: &mut WarmState, logged: primitives::Slot) -> Result<()> {
        let slot: Slot = decode(&logged.payload, "a slot of the log")?;
        let step = warm.step(logged.index, logged.epoch, slot.last());
        let mut is_applied = true;
        for (region, dependency) in self.regions.iter().zip(&mut warm.dependencies.regions) {
            let Read {
                value: (cursor, _),
                point,
            } = region.cursor().await?;
            dependency.observe(point)?;
            is_applied &= cursor.slot >= step.slot;
        }
        let (mut decided, mut garbage) = (Vec::new(), Vec::new());
        if !is_applied {
            for entry in &slot.entries {
                decided.push(
                    self.find_in_outbox(entry, &mut warm.dependencies.system)
                        .await?,
                );
            }
            // Only the changes are computed again. The logged slot is final.
            let numbered = numbering::number(&self.regions, slot.first, &decided).await?;
            garbage = self
                .apply(
                    step,
                    numbered.changes,
                    numbered.garbage,
                    &mut warm.dependencies,
                )
                .await?;
        }
        self.settle(warm, &slot.entries).await?;
        self.announce(step, logged.payload, warm.dependencies.regions[0].point())
            .await?;
        self.remove_index_entries(&decided, warm.dependencies.system)
            .await;
        self.add_late_objects(&decided, &mut garbage, &mut warm.dependencies)
            .await?;
        self.collect_garbage(&garbage, &mut warm.dependencies)
            .await?;
        warm.advance(step);
        Ok(())
    }

    /// The decided request of a log entry. It is in its session's outbox until it is applied in all
    /// regions.
    async fn find_in_outbox(
        &self,
        entry: &LogEntry,
        dependency: &mut Dependency,
    ) -> Result<Decided> {
        let row = self.sessions.get(entry.id.session, dependency).await?;
        let decided = match &row {
            Some(row) => row.decided(entry.id.sequence)?,
            None => None,
        };
        decided.ok_or_else(|| {
            ports::Error::corrupt(format!("find logged update {:?} in its outbox", entry.id))
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
            _ => Err(Failure::new("the distributor accepts only messages")),
        }
    }
}

#[cfg(test)]
mod tests;
