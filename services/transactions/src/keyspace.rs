//! Keyspaces: which are sequenced, and how one becomes so (T-3).
//!
//! In a plain keyspace commits are ordered by the timestamps that nodes give; in a sequenced one by the slots of the
//! sequencer's log, whatever their isolation: one commit order per keyspace, so that levels mix safely. The first
//! serializable begin that uses a keyspace marks it, for good:
//!
//! ```text
//!  plain ──▶ marking: the row says so, and this node is still the one that serves
//!        ──▶ commits that would write there wait; those under way are waited for
//!        ──▶ sequenced: the row says so, durably; those who wait go to the sequencer
//! ```
//!
//! Dies anywhere: a start that finds the mark finishes it before it serves, since the logs of all earlier starts are sealed
//! and resolved by then.
//!
//! Invariants
//! - No commit is given a timestamp in a keyspace where one is given a slot: versions of before are older than all after.
//! - A node that was taken for dead marks nothing that its successor does not find: it looks whether it serves after it
//!   has written the mark, and its successor reads the marks after it has said that it does not.
//! - A commit writes in keyspaces of one kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ports::{
    Condition, DurabilityPoint, Update,
    key_value::{Action, Name, Scan, Test, Value},
};
use tokio::sync::watch;

use crate::{
    Error, Result,
    broken::Broken,
    engine::{Core, View},
    layout,
    model::KeyspaceId,
    node::Node,
    records::Write,
    registry,
    store::Store,
    transaction::Transaction,
};

const STATE: &str = "state";
const MARKING: i64 = 1;
const SEQUENCED: i64 = 2;

/// Rows read in one page.
const PAGE_ROWS: usize = 1_000;

/// Every keyspace that is sequenced, or was being marked.
pub(crate) async fn list_marked(store: &Store) -> Result<BTreeSet<KeyspaceId>> {
    let mut scan = Scan::partition(layout::KEYSPACES, PAGE_ROWS);
    let mut marked = BTreeSet::new();
    loop {
        let page = store.scan(&scan).await?.value;
        for (sort, _) in page.items {
            let keyspace = layout::keyspace_of(&sort);
            marked.insert(keyspace.ok_or_else(|| Error::Corrupt("decode a keyspace".into()))?);
        }
        match page.next {
            Some(next) => scan.from = next,
            None => return Ok(marked),
        }
    }
}

/// Says that `keyspace` is being marked, or is.
pub(crate) async fn mark(store: &Store, keyspace: KeyspaceId) -> Result<DurabilityPoint> {
    let marking = vec![(Name::from(STATE), Value::Integer(MARKING))];
    let update = Update::put(layout::keyspace(keyspace), marking).when(Condition::Absent);
    store.update(update).await.map(|(_, point)| point)
}

/// Says that `keyspace`, which is marked, is sequenced.
pub(crate) async fn finish_mark(store: &Store, keyspace: KeyspaceId) -> Result<DurabilityPoint> {
    let is_marking = Condition::attribute(STATE, Test::is_integer(MARKING));
    let sequenced = vec![Action::set_integer(STATE, SEQUENCED)];
    let update = Update::modify(layout::keyspace(keyspace), sequenced).when(is_marking);
    store.update(update).await.map(|(_, point)| point)
}

/// What a node knows of its keyspaces.
#[derive(Debug)]
pub(crate) struct Keyspaces {
    sequenced: BTreeSet<KeyspaceId>,
    /// Being marked: commits that would write there wait.
    marking: Option<KeyspaceId>,
    /// How many commits under way take a timestamp there.
    timed: BTreeMap<KeyspaceId, usize>,
    changed: watch::Sender<()>,
}

impl Keyspaces {
    pub(crate) fn new() -> Self {
        Self {
            sequenced: BTreeSet::new(),
            marking: None,
            timed: BTreeMap::new(),
            changed: watch::Sender::new(()),
        }
    }

    pub(crate) fn is_sequenced(&self, keyspace: KeyspaceId) -> bool {
        self.sequenced.contains(&keyspace)
    }

    /// A start has found these.
    pub(crate) fn start_with(&mut self, sequenced: BTreeSet<KeyspaceId>) {
        self.sequenced = sequenced;
        self.changed.send_replace(());
    }

    /// How a commit that writes in `keyspaces` is ordered; none: that is being changed.
    fn kind(&self, keyspaces: &BTreeSet<KeyspaceId>) -> Result<Option<Kind>> {
        if self.marking.is_some_and(|marking| keyspaces.contains(&marking)) {
            return Ok(None);
        }
        let sequenced = keyspaces.iter().filter(|keyspace| self.is_sequenced(**keyspace)).count();
        match sequenced {
            0 => Ok(Some(Kind::Timed)),
            _ if sequenced == keyspaces.len() => Ok(Some(Kind::Sequenced)),
            _ => Err(Error::Invalid(
                "a transaction that writes in a sequenced keyspace writes in no plain one",
            )),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Timed,
    Sequenced,
}

/// How a commit takes its place among the versions of its keys.
#[derive(Debug)]
pub(crate) enum Order {
    /// By the timestamp that this node gives it. Nobody marks its keyspaces before this is dropped.
    Timed { _under_way: TimedCommit },
    /// By its slot of the sequencer's log.
    Sequenced,
}

/// A commit under way that takes a timestamp.
#[derive(Debug)]
pub(crate) struct TimedCommit {
    core: Arc<Core>,
    keyspaces: BTreeSet<KeyspaceId>,
}

impl Drop for TimedCommit {
    fn drop(&mut self) {
        let Keyspaces { timed, changed, .. } = &mut self.core.view().keyspaces;
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

/// A keyspace is being marked.
struct Marking<'a>(&'a Core);

impl Drop for Marking<'_> {
    fn drop(&mut self) {
        let keyspaces = &mut self.0.view().keyspaces;
        keyspaces.marking = None;
        keyspaces.changed.send_replace(());
    }
}

impl Core {
    /// How a commit of `writes` is ordered. Waits while one of their keyspaces is being marked.
    pub(crate) async fn order_of(
        self: &Arc<Self>,
        transaction: &Transaction,
        writes: &[Write],
    ) -> Result<Order> {
        if transaction.is_serializable() {
            return Ok(Order::Sequenced);
        }
        let keyspaces: BTreeSet<KeyspaceId> = writes.iter().map(|write| write.key.keyspace()).collect();
        loop {
            let mut changed = {
                let mut view = self.view();
                let known = &mut view.keyspaces;
                let kind = known.kind(&keyspaces)?;
                let keeps_timestamps = self.config.is_broken(Broken::ReadAtomicKeepsItsTimestamps);
                match kind {
                    Some(Kind::Sequenced) if !keeps_timestamps => return Ok(Order::Sequenced),
                    Some(_) => {
                        for keyspace in &keyspaces {
                            *known.timed.entry(*keyspace).or_default() += 1;
                        }
                        let core = Arc::clone(self);
                        drop(view);
                        return Ok(Order::Timed { _under_way: TimedCommit { core, keyspaces } });
                    }
                    None => known.changed.subscribe(),
                }
            };
            // The view holds the sender.
            let _ = changed.changed().await;
        }
    }

    /// Makes sure that `keyspace` is sequenced.
    pub(crate) async fn sequence_keyspace(
        self: &Arc<Self>,
        node: &Arc<Node>,
        keyspace: KeyspaceId,
    ) -> Result<()> {
        if self.view().keyspaces.is_sequenced(keyspace) {
            return Ok(());
        }
        let (core, node) = (Arc::clone(self), Arc::clone(node));
        let at_work = node.at_work()?;
        self.spawn_and_wait(async move {
            let _at_work = at_work;
            core.mark_alone(&node, keyspace).await
        })
        .await
    }

    async fn mark_alone(&self, node: &Arc<Node>, keyspace: KeyspaceId) -> Result<()> {
        let _alone = self.marking.lock().await;
        if self.view().keyspaces.is_sequenced(keyspace) {
            return Ok(());
        }
        mark(&node.store, keyspace).await?;
        if !registry::is_live(&node.store, node.id).await? {
            node.store.fall();
            node.store.standing()?;
        }
        if node.sequencer().is_none() {
            let sequencer = self.take_over_sequencer(&node.store).await?;
            let mut view = self.view();
            if view.is_served_by(node) {
                view.hear_sequencer(sequencer.last());
            }
            node.set_sequencer(sequencer);
        }
        let _marking = self.hold_commits(keyspace).await;
        let point = finish_mark(&node.store, keyspace).await?;
        node.store.externalize(point).await?;
        let mut view = self.view();
        if !view.is_served_by(node) {
            return Err(Error::unavailable("the node starts over"));
        }
        view.keyspaces.sequenced.insert(keyspace);
        drop(view);
        tracing::info!(keyspace = keyspace.0, "a keyspace is sequenced from now on");
        Ok(())
    }

    /// From now on commits that would write in `keyspace` wait; those under way are waited for.
    async fn hold_commits(&self, keyspace: KeyspaceId) -> Option<Marking<'_>> {
        if self.config.is_broken(Broken::MarksWithoutWaiting) {
            return None;
        }
        self.view().keyspaces.marking = Some(keyspace);
        let marking = Marking(self);
        let mut changed = self.view().keyspaces.changed.subscribe();
        let is_under_way = |view: &View| view.keyspaces.timed.contains_key(&keyspace);
        while is_under_way(&self.view()) {
            // The view holds the sender.
            let _ = changed.changed().await;
        }
        Some(marking)
    }
}
