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
//! The paper's timestamp adjustment (algorithm 2, step 5) is not needed: zxids are given here, in order.

mod numbering;
mod order;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::{
    DurabilityPoint, Event, Functions, Handler, KeyValue, Result,
    functions::Failure,
    queue::Delivery,
};
use primitives::{Appended, FencedLog, SlotIndex, fenced_log};
use tokio::sync::Mutex;

use self::{numbering::Numbered, order::Applied};
use crate::{
    broken::Broken,
    config::Config,
    ephemerals::Ephemerals,
    model::{SessionId, Zxid},
    names,
    node::Nodes,
    records::{Answer, Decided, Entry, Slot, Wake, decode, encode},
    session::Sessions,
    user_store::UserStore,
};

/// The partition of the log.
pub const LOG_PARTITION: &str = "distributor-log";

/// How many applied slots stay in the log for gateways that are behind.
const SLOTS_RETAINED: u64 = 1024;

/// The distributor function.
#[derive(Debug)]
pub struct Distributor {
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

/// The state of a distributor that holds the log.
#[derive(Debug)]
struct Warm {
    writer: fenced_log::Writer,
    /// The last zxid given.
    zxid: Zxid,
    applied: Applied,
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
        assert!(!regions.is_empty(), "there is at least one region to apply to");
        Self {
            log: FencedLog::new(system.clone(), LOG_PARTITION),
            regions,
            sessions: Sessions::new(system.clone()),
            ephemerals: Ephemerals::new(system),
            nodes,
            functions,
            broken: config.broken,
            warm: Mutex::new(None),
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut guard = self.warm.lock().await;
        // Taken out: a failure, or the death of this invocation, leaves none, and the next one starts afresh.
        let mut warm = match guard.take() {
            Some(warm) => warm,
            None => self.take_over().await?,
        };
        let mut decided = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            decided.push(decode::<Decided>(&delivery.body, "a decided request")?);
        }
        let ordered = if self.broken == Some(Broken::IgnoresPredecessors) {
            order::unordered(&mut warm.applied, decided)
        } else {
            order::ordered(&self.sessions, &self.nodes, &mut warm.applied, decided).await?
        };
        if !ordered.is_empty() {
            self.distribute(&mut warm, &ordered).await?;
        }
        *guard = Some(warm);
        Ok(())
    }

    async fn distribute(&self, warm: &mut Warm, ordered: &[Decided]) -> Result<()> {
        let first = Zxid(warm.zxid.0 + 1);
        let numbered = numbering::number(&self.regions, first, ordered).await?;
        let encoded = encode(&numbered.slot);
        let index = match warm.writer.append(encoded.clone()).await? {
            Appended::At(index, _) => index,
            Appended::Fenced => return Err(ports::Error::unavailable("append to the log, which another holds")),
        };
        warm.zxid = numbered.slot.last();
        if self.broken == Some(Broken::AnswersBeforeApplying) {
            self.tell(index, encoded.clone(), self.regions[0].items().point()).await?;
        }
        let point = self.apply(index, &numbered).await?;
        self.settle(&mut warm.applied, &numbered.slot.entries).await?;
        self.tell(index, encoded, point).await
    }

    /// Applies a slot to every region; the point of the first, whose readers are told here.
    async fn apply(&self, index: SlotIndex, numbered: &Numbered) -> Result<DurabilityPoint> {
        let last = numbered.slot.last();
        let applications = self.regions.iter().zip(&numbered.changes).map(|(region, changes)| async move {
            region.apply(index.0, last, changes, &numbered.garbage).await
        });
        let points = try_join_all(applications).await?;
        // Only now: a successor that applies the slot to a slower region reads the temporary objects again.
        try_join_all(self.regions.iter().map(|region| region.collect(numbered.garbage.clone()))).await?;
        if let Some(old) = index.0.checked_sub(SLOTS_RETAINED) {
            self.log.trim(SlotIndex(old)).await?;
        }
        Ok(points[0])
    }

    /// Drops what is applied from the outboxes, one write per session, and removes ended sessions.
    async fn settle(&self, applied: &mut Applied, entries: &[Entry]) -> Result<()> {
        let mut settling: BTreeMap<SessionId, Settling> = BTreeMap::new();
        for entry in entries {
            let first = Settling { before: entry.id.sequence - 1, through: 0, has_ended: false };
            let settling = settling.entry(entry.id.session).or_insert(first);
            settling.through = entry.id.sequence;
            settling.has_ended |= entry.answer == Ok(Answer::Closed);
        }
        for (session, settling) in settling {
            if settling.has_ended {
                self.ephemerals.clear(session).await?;
                self.sessions.remove(session).await?;
                applied.forget(session);
            } else {
                self.sessions.applied(session, settling.before, settling.through).await?;
                applied.advance(session, settling.through);
            }
        }
        Ok(())
    }

    /// Wakes the watch function; gateways that it does not reach find the slot in the log.
    async fn tell(&self, index: SlotIndex, slot: Bytes, point: DurabilityPoint) -> Result<()> {
        let wake = encode(&Wake { index: index.0, slot, point });
        self.functions.invoke(names::WATCH, wake).await.map(|_| ())
    }

    /// Becomes the distributor: seals the log, and finishes every slot that is not known to be finished.
    async fn take_over(&self) -> Result<Warm> {
        let mut from = u64::MAX;
        let mut zxid = Zxid(0);
        for region in &self.regions {
            let (cursor, garbage) = region.cursor().await?;
            region.collect(garbage).await?;
            from = from.min(cursor.slot.unwrap_or(0));
            zxid = zxid.max(cursor.zxid);
        }
        let (writer, standing) = self.log.take_over(SlotIndex(from)).await?;
        let mut warm = Warm { writer, zxid, applied: Applied::default() };
        for (index, entry) in standing {
            match entry {
                fenced_log::Entry::Payload(encoded) => self.redo(&mut warm, index, encoded).await?,
                fenced_log::Entry::Seal | fenced_log::Entry::Void => self.skip(index, warm.zxid).await?,
            }
        }
        let seal = SlotIndex(warm.writer.next().0 - 1);
        self.skip(seal, warm.zxid).await?;
        Ok(warm)
    }

    async fn skip(&self, index: SlotIndex, zxid: Zxid) -> Result<()> {
        for region in &self.regions {
            region.skip(index.0, zxid).await?;
        }
        Ok(())
    }

    /// Does steps 3 to 5 again for a slot that a predecessor numbered.
    async fn redo(&self, warm: &mut Warm, index: SlotIndex, encoded: Bytes) -> Result<()> {
        let slot: Slot = decode(&encoded, "a slot of the log")?;
        let mut unapplied = false;
        for region in &self.regions {
            unapplied |= region.cursor().await?.0.slot.is_none_or(|applied| applied < index.0);
        }
        if unapplied {
            let mut decided = Vec::with_capacity(slot.entries.len());
            for entry in &slot.entries {
                decided.push(self.from_outbox(entry).await?);
            }
            let mut numbered = numbering::number(&self.regions, slot.first, &decided).await?;
            // What was logged is what was decided; only the changes are computed again.
            numbered.slot = slot.clone();
            self.apply(index, &numbered).await?;
        }
        warm.zxid = warm.zxid.max(slot.last());
        self.settle(&mut warm.applied, &slot.entries).await?;
        self.tell(index, encoded, self.regions[0].items().point()).await
    }

    /// A numbered request is in its session's outbox until it is applied everywhere.
    async fn from_outbox(&self, entry: &Entry) -> Result<Decided> {
        let row = self.sessions.get(entry.id.session).await?;
        let decided = match &row {
            Some(row) => row.decided(entry.id.sequence)?,
            None => None,
        };
        decided.ok_or_else(|| ports::Error::corrupt(format!("find {:?}, which the log names, in its outbox", entry.id)))
    }
}

#[async_trait]
impl Handler for Distributor {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        match event {
            Event::Messages(deliveries) => {
                self.handle_messages(&deliveries).await?;
                Ok(Bytes::new())
            }
            _ => Err(Failure::new("the distributor takes messages only")),
        }
    }
}
