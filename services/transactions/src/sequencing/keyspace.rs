//! Keyspaces: which are sequenced, and how a keyspace becomes sequenced (T-3).
//!
//! In a plain keyspace, timestamps of the nodes order commits. In a sequenced one, the slots of the
//! sequencer's log do, for commits of either isolation level. There is one commit order per
//! keyspace, so that levels mix safely. The first serializable begin that uses a keyspace marks it
//! permanently:
//!
//! ```text
//!  plain ──▶ marking: the row is marked
//!        ──▶ every node stops giving timestamps there: later commits go to the sequencer, which
//!            decides nothing there yet; running commits with a timestamp are waited for. A node
//!            that does not answer is waited for until its log is sealed and resolved; one that
//!            begins later reads the mark once it has its row
//!        ──▶ sequenced: the row says so, durably; the sequencer decides, and snapshots are taken
//! ```
//!
//! A node takes snapshots there only once it has read everything that other nodes committed with
//! timestamps.
//!
//! A crash may happen anywhere: every step can be repeated, and each node that was asked to stop
//! finishes a mark that it finds half done. A single node finishes it at its start, before it
//! serves, because the logs of all earlier starts are sealed and resolved by then.
//!
//! Invariants
//! - No commit gets a timestamp in a keyspace where another gets a slot: versions from before are
//!   older than all after.
//! - A single node that was presumed dead marks nothing that its successor does not find. It checks
//!   whether it still serves after it has written the mark, and its successor reads the marks after
//!   it has declared the node dead.
//! - A commit writes in keyspaces of one kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use ports::{
    Condition, DurabilityPoint, Item, Update,
    key_value::{Action, Name, Scan, Test, Value},
};
use tokio::sync::watch;

use crate::{
    Error, Result,
    attempts::transaction::Transaction,
    broken::Broken,
    cluster::messages::{Answer, Message},
    model::{KeyspaceId, NodeId},
    node::Node,
    sequencing::Sequencing,
    storage::{layout, node_registry, records::Write, store::Store},
};

const STATE: &str = "state";
const MARKING: i64 = 1;
const SEQUENCED: i64 = 2;

/// Rows read in one page.
const PAGE_ROWS: usize = 1_000;

/// The wait before asking nodes again that did not answer.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Every marked keyspace, and whether it is sequenced already.
pub(crate) async fn list_marked(store: &Store) -> Result<BTreeMap<KeyspaceId, bool>> {
    let (rows, _) = store
        .scan_all(Scan::partition(layout::KEYSPACES, PAGE_ROWS))
        .await?;
    let decode = |(sort, row): (Bytes, Arc<Item>)| {
        let keyspace = layout::keyspace_of(&sort);
        let keyspace = keyspace.ok_or_else(|| Error::Corrupt("decode a keyspace".into()))?;
        Ok((keyspace, row.integer(STATE) == Some(SEQUENCED)))
    };
    rows.into_iter().map(decode).collect()
}

/// Whether `keyspace` is sequenced, so that no node gives timestamps there any more.
async fn is_sequenced(store: &Store, keyspace: KeyspaceId) -> Result<bool> {
    let row = store.get(&layout::keyspace(keyspace)).await?.value;
    Ok(row.is_some_and(|row| row.integer(STATE) == Some(SEQUENCED)))
}

/// Marks `keyspace`, unless it is marked already.
pub(crate) async fn mark(store: &Store, keyspace: KeyspaceId) -> Result<DurabilityPoint> {
    let marking = vec![(Name::from(STATE), Value::Integer(MARKING))];
    let update = Update::put(layout::keyspace(keyspace), marking).when(Condition::Absent);
    store.update(update).await.map(|(_, point)| point)
}

/// Sets `keyspace`, which is marked, to sequenced.
pub(crate) async fn finish_mark(store: &Store, keyspace: KeyspaceId) -> Result<DurabilityPoint> {
    let is_marking = Condition::attribute(STATE, Test::is_integer(MARKING));
    let sequenced = vec![Action::set_integer(STATE, SEQUENCED)];
    let update = Update::modify(layout::keyspace(keyspace), sequenced).when(is_marking);
    store.update(update).await.map(|(_, point)| point)
}

/// A node's knowledge of its keyspaces.
#[derive(Debug, Default)]
pub(crate) struct Keyspaces(Mutex<Marks>);

/// Which keyspaces are marked.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The node that it belongs to; `None` if no node serves.
    serving: Option<NodeId>,
    /// Where this node gives no timestamps.
    sequenced: BTreeSet<KeyspaceId>,
    /// The keyspaces where no node gives timestamps and where this node has applied every commit
    /// with a timestamp.
    wholly: BTreeSet<KeyspaceId>,
    /// The number of running commits with a timestamp in each keyspace.
    timed: BTreeMap<KeyspaceId, usize>,
    changed: watch::Sender<()>,
}

impl Keyspaces {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Marks> {
        self.0.lock()
    }

    /// `node` serves from now on, with these keyspaces marked; the values say which are sequenced.
    pub(crate) fn start(&self, node: NodeId, marked: &BTreeMap<KeyspaceId, bool>) {
        let mut marks = self.lock();
        marks.serving = Some(node);
        marks.sequenced = marked.keys().copied().collect();
        let whole = marked.iter().filter(|(_, is_whole)| **is_whole);
        marks.wholly = whole.map(|(keyspace, _)| *keyspace).collect();
    }

    /// No node serves.
    pub(crate) fn stop(&self) {
        self.lock().serving = None;
    }
}

impl Marks {
    pub(crate) fn is_sequenced(&self, keyspace: KeyspaceId) -> bool {
        self.sequenced.contains(&keyspace)
    }

    pub(crate) fn is_wholly_sequenced(&self, keyspace: KeyspaceId) -> bool {
        self.wholly.contains(&keyspace)
    }

    pub(crate) fn are_any_sequenced(&self) -> bool {
        !self.sequenced.is_empty()
    }

    pub(crate) fn count_sequenced(&self) -> u64 {
        self.sequenced.len() as u64
    }

    /// The keyspaces whose marking has begun and is not finished.
    pub(crate) fn half_marked(&self) -> Vec<KeyspaceId> {
        self.sequenced.difference(&self.wholly).copied().collect()
    }

    /// Whether slots order a commit that writes in `keyspaces`.
    fn orders_by_slots(&self, keyspaces: &BTreeSet<KeyspaceId>) -> Result<bool> {
        match keyspaces.intersection(&self.sequenced).count() {
            0 => Ok(false),
            count if count == keyspaces.len() => Ok(true),
            _ => Err(Error::Invalid(
                "a transaction cannot write in both sequenced and plain keyspaces",
            )),
        }
    }
}

/// How a commit gets its position among the versions of its keys.
#[derive(Debug)]
pub(crate) enum Order {
    /// By this node's timestamp. No node finishes marking its keyspaces before this is dropped.
    Timed { _under_way: TimedCommit },
    /// By its slot of the sequencer's log.
    Sequenced,
}

/// A running commit that takes a timestamp.
#[derive(Debug)]
pub(crate) struct TimedCommit {
    sequencing: Arc<Sequencing>,
    keyspaces: BTreeSet<KeyspaceId>,
}

impl Drop for TimedCommit {
    fn drop(&mut self) {
        let Marks { timed, changed, .. } = &mut *self.sequencing.keyspaces.lock();
        for keyspace in &self.keyspaces {
            let count = timed.get_mut(keyspace).expect("it was counted");
            *count -= 1;
            if *count == 0 {
                timed.remove(keyspace);
            }
        }
        changed.send_replace(());
    }
}

impl Sequencing {
    /// How a commit of `writes` is ordered.
    pub(crate) fn order_of(
        self: &Arc<Self>,
        transaction: &Transaction,
        writes: &[Write],
    ) -> Result<Order> {
        if transaction.is_serializable() {
            return Ok(Order::Sequenced);
        }
        let keyspaces: BTreeSet<KeyspaceId> =
            writes.iter().map(|write| write.key.keyspace()).collect();
        let mut known = self.keyspaces.lock();
        let keeps_timestamps = self.context.breaks(Broken::ReadAtomicKeepsItsTimestamps);
        if known.orders_by_slots(&keyspaces)? && !keeps_timestamps {
            return Ok(Order::Sequenced);
        }
        for keyspace in &keyspaces {
            *known.timed.entry(*keyspace).or_default() += 1;
        }
        drop(known);
        Ok(Order::Timed {
            _under_way: TimedCommit {
                sequencing: Arc::clone(self),
                keyspaces,
            },
        })
    }

    /// Ensures that `keyspace` is sequenced. Errors: `Unavailable` if that takes too long; it
    /// continues.
    pub(crate) async fn sequence_keyspace(
        self: &Arc<Self>,
        node: &Arc<Node>,
        keyspace: KeyspaceId,
    ) -> Result<()> {
        if self.keyspaces.lock().is_wholly_sequenced(keyspace) {
            return Ok(());
        }
        let (sequencing, node) = (Arc::clone(self), Arc::clone(node));
        let at_work = node.at_work()?;
        let marked = self.context.spawn_and_wait(async move {
            let _at_work = at_work;
            sequencing.mark_keyspace(&node, keyspace).await
        });
        tokio::select! {
            biased;
            marked = marked => marked,
            () = self.context.clock.sleep(self.context.config.commit_answer_timeout) => {
                Err(Error::unavailable("the keyspace is being marked"))
            }
        }
    }

    async fn mark_keyspace(self: &Arc<Self>, node: &Arc<Node>, keyspace: KeyspaceId) -> Result<()> {
        let _alone = self.marking.lock().await;
        if self.keyspaces.lock().is_wholly_sequenced(keyspace) {
            return Ok(());
        }
        if !is_sequenced(&node.store, keyspace).await? {
            let point = mark(&node.store, keyspace).await?;
            if self.context.is_alone() {
                self.take_over_alone(node).await?;
            } else {
                node.store.externalize(point).await?;
            }
            self.stop_timestamps(node, keyspace).await?;
            if !self.context.is_alone() && !self.context.breaks(Broken::MarksWithoutWaiting) {
                self.stop_others(node, keyspace).await?;
            }
            let point = finish_mark(&node.store, keyspace).await?;
            node.store.externalize(point).await?;
            tracing::info!(keyspace = keyspace.0, "a keyspace is sequenced now");
        }
        self.stop_timestamps(node, keyspace).await?;
        if !self.context.is_alone() {
            self.apply_timestamped(node).await?;
        }
        let mut known = self.keyspaces.lock();
        if known.serving != Some(node.id) {
            return Err(Error::unavailable("the node restarts"));
        }
        known.wholly.insert(keyspace);
        Ok(())
    }

    /// A single node that has just marked its first keyspace is the sequencer from now on.
    async fn take_over_alone(&self, node: &Arc<Node>) -> Result<()> {
        if !node_registry::is_live(&node.store, node.id).await? {
            node.store.fence();
            node.store.check_fence()?;
        }
        if node.sequencer().is_none() {
            let sequencer = self.take_over_sequencer(&node.store, node.id).await?;
            if let Some(mut cache) = self.cache.of(node.id) {
                cache.pass_sealed(sequencer.last());
            }
            node.set_sequencer(sequencer);
        }
        Ok(())
    }

    /// From now on this node gives no timestamps in `keyspace`. Returns once the commits that hold
    /// one are decided.
    pub(crate) async fn stop_timestamps(
        &self,
        node: &Arc<Node>,
        keyspace: KeyspaceId,
    ) -> Result<()> {
        self.keyspaces.lock().sequenced.insert(keyspace);
        let mut changed = self.keyspaces.lock().changed.subscribe();
        let is_under_way = || self.keyspaces.lock().timed.contains_key(&keyspace);
        while is_under_way() && !self.context.breaks(Broken::MarksWithoutWaiting) {
            // The view holds the sender.
            let _ = changed.changed().await;
        }
        // Commits of a node that cannot go on are decided once its log is resolved.
        node.store.check_fence()
    }

    /// Makes every other node stop giving timestamps there.
    async fn stop_others(self: &Arc<Self>, node: &Arc<Node>, keyspace: KeyspaceId) -> Result<()> {
        let mut stopped: BTreeSet<NodeId> = BTreeSet::from([node.id]);
        loop {
            self.cluster.may_answer(node)?;
            let first = self.cluster.lock().neighbours.first_uncounted;
            let mut waiting = node_registry::list_from(&node.store, first).await?;
            waiting.retain(|row| !row.is_resolved && !stopped.contains(&row.node));
            if waiting.is_empty() {
                return Ok(());
            }
            let members = self.cluster.others(node);
            for row in waiting {
                let Some(address) = members.get(&row.node) else {
                    continue;
                };
                let message = Message::StopTimestamps(keyspace);
                if matches!(
                    self.cluster.ask(node, row.node, address, &message).await,
                    Ok(Answer::Stopped)
                ) {
                    stopped.insert(row.node);
                }
            }
            // Another node may have received all answers meanwhile, including those that did not
            // reach this one.
            if is_sequenced(&node.store, keyspace).await? {
                return Ok(());
            }
            self.context.clock.sleep(ASK_EVERY).await;
        }
    }

    /// Merges everything that others committed with timestamps. The index may lack some of it, and
    /// nothing newer will come.
    async fn apply_timestamped(&self, node: &Arc<Node>) -> Result<()> {
        for row in node_registry::list(&node.store).await? {
            if row.node != node.id && !self.cache.lock().applied.is_whole(row.node) {
                self.cluster.follow(node, row.node).await?;
            }
        }
        Ok(())
    }
}
