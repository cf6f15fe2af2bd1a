//! Reads the sequencer's log on every node: its decisions become visible slot by slot.
//!
//! A commit is acknowledged only after its slot is in the store. A node that reads the log to its
//! tail has therefore read every commit acknowledged before, and takes its snapshots there. No node
//! hands out read timestamps from memory. So there is no lease to wait out, and a deposed sequencer
//! misleads no reader.
//!
//! Invariants
//! - The applied frontier of the log advances over a slot only once all commits of the slot are in
//!   the index.
//! - The commits of a slot are remembered until a later slot reports that their rows are settled. A
//!   load that finds a row handed over thereby knows whether the commit took effect.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ports::DurabilityPoint;
use primitives::{Cursor, FencedLog, SlotIndex, Slots};

use crate::{
    Error, Result,
    cluster::follow::try_read_on,
    model::{KeyspaceId, NodeId},
    node::Node,
    sequencer::{decode_slot, records},
    sequencing::Sequencing,
    storage::{
        layout,
        records::{CommitRecord, SequencedSlot},
        store::State as RowState,
    },
};

/// The wait before reading again after the log could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Sequencing {
    /// Starts to read what the announcements of others do not bring.
    pub(crate) fn follow_for_ever(self: &Arc<Self>, node: &Arc<Node>) {
        let (sequencing, node) = (Arc::clone(self), Arc::clone(node));
        self.context.spawn(async move {
            while !node.store.is_fenced() {
                let behind = std::mem::take(&mut sequencing.cluster.lock().neighbours.behind);
                for log in behind {
                    let read = if log == NodeId::SEQUENCER {
                        sequencing.follow_sequencer(&node).await
                    } else {
                        sequencing.cluster.follow(&node, log).await.map(drop)
                    };
                    if let Err(error) = read {
                        tracing::debug!(%error, log = log.0, "a log is not read at the moment");
                        sequencing.cluster.lock().neighbours.behind.insert(log);
                        sequencing.context.clock.sleep(AGAIN_AFTER).await;
                    }
                }
                // Woken by every round of announcements, and when another node has applied more.
                node.following.notified().await;
            }
        });
    }

    /// Reads the sequencer's log to its tail: every commit acknowledged before this call is visible
    /// when it returns. Errors: `Unavailable`, also if another node has replaced this one as the
    /// sequencer.
    pub(crate) async fn follow_sequencer(&self, node: &Arc<Node>) -> Result<()> {
        let followed = &node.followed;
        let asked = followed.begun.load(Ordering::SeqCst);
        let _reading = followed.reading.lock().await;
        if followed.done.load(Ordering::SeqCst) > asked {
            // Another task's read began after this call.
            return node.store.check_fence();
        }
        let number = followed.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let log = FencedLog::new(
            node.store.key_value().clone(),
            layout::sequencer_log(KeyspaceId::default()),
        );
        if followed.cursor().is_none() {
            if self.cache.of(node.id).is_some() {
                // The decisions of the log are news to the index.
                followed.pass(node.store.again(|| log.start()).await?);
            } else {
                self.begin_to_follow(node, &log).await?;
            }
        }
        loop {
            let read = self.read_behind(node, &log).await?;
            for slot in &read.slots {
                let stored = decode_slot(&slot.payload)?;
                let records = records_of(node, slot.index.0, &stored, read.point).await?;
                self.apply_slot(node, slot.cursor(), &stored, &records);
            }
            self.pass_sequenced(node, read.cursor);
            if node
                .sequencer()
                .is_some_and(|sequencer| read.cursor.epoch > sequencer.epoch)
            {
                node.store.fence();
            }
            node.store.check_fence()?;
            if read.is_tail {
                break;
            }
        }
        followed.done.store(number, Ordering::SeqCst);
        Ok(())
    }

    /// A node that does not serve yet has an empty index. Of the log it keeps only decisions whose
    /// rows are not settled.
    async fn begin_to_follow(&self, node: &Arc<Node>, log: &FencedLog) -> Result<()> {
        let mut cursor = node.store.again(|| log.start()).await?;
        let mut slots = Vec::new();
        loop {
            let read = self.cluster.read_on(node, log, cursor).await?;
            for slot in &read.slots {
                slots.push((slot.cursor(), decode_slot(&slot.payload)?, read.point));
            }
            cursor = read.cursor;
            if read.is_tail {
                break;
            }
        }
        let settled = slots
            .iter()
            .map(|(_, slot, _)| slot.settled)
            .max()
            .unwrap_or_default();
        if let Some((_, last, _)) = slots.last() {
            node.followed.state().writer = Some(last.by);
        }
        slots.retain(|(cursor, ..)| cursor.next.0 - 1 > settled);
        for (cursor, mut slot, point) in slots {
            let mut records = Vec::new();
            for (place, commit) in (0..).zip(std::mem::take(&mut slot.commits)) {
                let (row, _) = node.store.decision(&commit.id).await?;
                if row.is_some_and(|row| {
                    row.attempt == commit.attempt && row.state == RowState::Prepared
                }) {
                    let writes = node.store.write_set(commit.attempt, &commit.writes).await?;
                    let record =
                        crate::sequencer::record(cursor.next.0 - 1, place, &commit, writes, point);
                    records.push(Arc::new(record));
                }
            }
            self.apply_slot(node, cursor, &slot, &records);
        }
        self.pass_sequenced(node, cursor);
        Ok(())
    }

    /// The slots after the applied frontier.
    async fn read_behind(&self, node: &Node, log: &FencedLog) -> Result<Slots> {
        loop {
            let cursor = node.followed.cursor().expect("its start is known");
            if let Some(read) = try_read_on(node, log, cursor).await? {
                return Ok(read);
            }
            if node.followed.cursor() <= Some(cursor) {
                // A trimmed slot was applied by all counted nodes, or settled by this node's
                // successor, so this node is fenced.
                node.store.fence();
                return Err(Error::unavailable("the node was presumed dead"));
            }
        }
    }

    /// The slot before `cursor` is decided: from now on every reader here sees its commits.
    pub(super) fn apply_slot(
        &self,
        node: &Arc<Node>,
        cursor: Cursor,
        slot: &SequencedSlot,
        records: &[Arc<CommitRecord>],
    ) {
        let index = cursor.next.0 - 1;
        {
            let mut state = node.followed.state();
            if state
                .cursor
                .is_some_and(|reached| reached.next > SlotIndex(index))
            {
                return;
            }
            state.note(index, slot, records);
        }
        if let Some(mut cache) = self.cache.of(node.id) {
            cache.on_commits_elsewhere(node, records);
        }
        self.pass_sequenced(node, cursor);
    }

    fn pass_sequenced(&self, node: &Arc<Node>, cursor: Cursor) {
        if let Some(mut cache) = self.cache.of(node.id) {
            cache.advance(NodeId::SEQUENCER, cursor.next.0 - 1);
        }
        node.followed.pass(cursor);
    }
}

async fn records_of(
    node: &Node,
    index: u64,
    slot: &SequencedSlot,
    point: DurabilityPoint,
) -> Result<Vec<Arc<CommitRecord>>> {
    let mut writes = Vec::with_capacity(slot.commits.len());
    for commit in &slot.commits {
        writes.push(node.store.write_set(commit.attempt, &commit.writes).await?);
    }
    Ok(records(index, slot, writes.into_iter(), point))
}
