//! Pack ownership: which packs a node compacts, and how it learns about dead bytes in them.
//!
//! ```text
//!  a pack ── its node, until the store is swept for that node ──▶ the elected collector
//!  a version is collected anywhere ──▶ its bytes are added to its pack's row: for packs of other
//!    nodes within seconds, for those compacted here once an eighth more is dead
//!    ──▶ the others are told that there is more (`noted`) ──▶ each reads the rows of its packs
//! ```
//!
//! Only a pack's node knows which items that name it may still be written, because the holds are in
//! its memory. Other nodes therefore leave its packs alone until its attempts are all decided, and
//! late writes are over.
//!
//! Two collectors at a time, or one that continues after it lost the election, do no harm. An item
//! moves once, and each node moves values into packs of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{TryStreamExt, stream};
use ports::objects::{self, ObjectPath};

use crate::{
    Result,
    broken::Broken,
    model::{NodeId, PackId},
    node::Node,
    packing::Packing,
    packs::{Hold, rows},
    storage::node_registry,
};

use super::compactor::{ITEMS_AT_ONCE, give_up_damaged};

/// How long dead bytes in packs of other nodes are gathered before they are added to the rows.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// How often a pack is counted if bytes in it die meanwhile.
const COUNTS_MAX: usize = 3;

impl Packing {
    /// Learns from the rows, if that is due, which packs of dead nodes to compact, and which dead
    /// values other nodes have noted.
    pub(super) async fn read_rows(&self, node: &Node) -> Result<()> {
        let takes_all = self.context.breaks(Broken::TakesPacksOfTheLiving);
        let takes_over = {
            let mut state = node.packs.state();
            // Before the rows are read: later notes cause another read.
            if !std::mem::take(&mut state.are_rows_due) && !takes_all {
                return Ok(());
            }
            state.takes_over || takes_all
        };
        let read = self.read_due_rows(node, takes_over).await;
        if read.is_err() {
            // No node repeats the news.
            node.packs.more_is_noted();
        }
        read
    }

    async fn read_due_rows(&self, node: &Node, takes_over: bool) -> Result<()> {
        let mut gone = BTreeSet::new();
        if takes_over {
            let takes_all = self.context.breaks(Broken::TakesPacksOfTheLiving);
            let nodes = node_registry::list(&node.store).await?;
            let is_gone = nodes
                .iter()
                .filter(|row| row.is_resolved && row.is_swept || takes_all);
            gone.extend(is_gone.map(|row| row.node));
        }
        let of = (!takes_over).then_some(node.id);
        let rows = rows::list(&node.store, of).await?;
        let table = &mut node.packs.state().table;
        for (id, row) in rows {
            if id.node != node.id && gone.contains(&id.node) && !table.is_known(id) {
                table.insert(id, row.bytes, Hold::default());
            }
            table.learn(id, row.dead);
        }
        Ok(())
    }

    /// Adds dead bytes to the rows of their packs, as far as that is due.
    pub(super) async fn note_freed(&self, node: &Node) -> Result<()> {
        let now = self.context.clock.monotonic();
        let due = {
            let state = &mut *node.packs.state();
            if !state.table.owes() {
                state.owed_until = now + NOTE_EVERY;
            }
            let freed = node.store.take_freed().into_iter();
            let due = freed.filter_map(|(id, bytes)| Some((id, state.table.free(id, bytes)?)));
            let mut due: BTreeMap<_, _> = due.collect();
            if state.owed_until <= now {
                state.owed_until = now + NOTE_EVERY;
                due.extend(state.table.take_owed());
            }
            due
        };
        self.note(node, due).await
    }

    /// As above, all of them, for the shutdown.
    pub(crate) async fn note_all_freed(&self, node: &Node) -> Result<()> {
        self.note_freed(node).await?;
        let rest = node.packs.state().table.take_unnoted();
        self.note(node, rest).await
    }

    async fn note(&self, node: &Node, owed: BTreeMap<PackId, u64>) -> Result<()> {
        let keeps = Broken::KeepsDeadBytesToItself;
        if self.context.breaks(keeps) {
            return Ok(());
        }
        let are_others = {
            let table = &node.packs.state().table;
            let is_other = |id: &PackId| id.node != node.id && !table.is_known(*id);
            owed.keys().any(is_other)
        };
        let notes = stream::iter(owed.into_iter().map(Ok));
        notes
            .try_for_each_concurrent(ITEMS_AT_ONCE, |(id, bytes)| {
                rows::add_dead(&node.store, id, bytes)
            })
            .await?;
        node.packs.state().noted += u64::from(are_others);
        Ok(())
    }

    /// The packs to count after the death of `nodes`, which may alone have known of dead values
    /// there. These are all packs, except for a single node its own, and objects of the dead nodes
    /// without a row, unless such objects are kept.
    pub(crate) async fn packs_to_count(
        &self,
        node: &Node,
        nodes: &[NodeId],
    ) -> Result<Vec<PackId>> {
        if self.objects.is_none() {
            return Ok(Vec::new());
        }
        let rows = rows::list(&node.store, None).await?;
        let mut packs: BTreeSet<PackId> = rows.into_iter().map(|(id, _)| id).collect();
        // A single node has counted its own itself.
        packs.retain(|id| !self.context.is_alone() || id.node != node.id);
        let listed = nodes.iter();
        for dead in listed.filter(|_| !self.context.config.keeps_unknown_packs) {
            let numbers = self.numbers_of(node, *dead).await?;
            packs.extend(numbers.into_iter().map(|number| PackId {
                node: *dead,
                number,
            }));
        }
        Ok(packs.into_iter().collect())
    }

    /// The numbers of the packs of node `of` in the object store.
    pub(super) async fn numbers_of(&self, node: &Node, of: NodeId) -> Result<Vec<u64>> {
        let (objects, prefix) = (self.objects()?, format!("{}/{}", self.home()?, of.0));
        let prefix = ObjectPath::from(prefix);
        let list = || async {
            let listed = objects.list(Some(&prefix)).try_collect::<Vec<_>>().await;
            listed.map_err(|error| objects::failed(format!("list {prefix}"), error))
        };
        let listed = node.store.again(list).await?;
        let number = |path: &ObjectPath| path.filename()?.parse().ok();
        Ok(listed
            .iter()
            .filter_map(|meta| number(&meta.location))
            .collect())
    }

    /// Counts the dead bytes of a pack of any node, as a hint to the node that compacts it.
    pub(crate) async fn count_pack(&self, node: &Arc<Node>, id: PackId) -> Result<()> {
        for _ in 0..COUNTS_MAX {
            let before = rows::get(&node.store, id).await?;
            let survey = match self.survey(node, id).await {
                Ok(Some(survey)) => survey,
                Ok(None) => return self.forget_pack(node, id).await,
                Err(error) => return give_up_damaged(node, id, error),
            };
            if before.is_none() {
                rows::put(&node.store, id, survey.bytes).await?;
            }
            let (before, dead) = (before.unwrap_or_default(), survey.dead_bytes());
            if rows::count(&node.store, id, before, dead).await? {
                let state = &mut *node.packs.state();
                state.table.learn(id, dead);
                state.noted += u64::from(dead != before.dead);
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use ports::faults::{Fault, FaultSchedule, FaultyKeyValue};
    use simulated::World;

    use super::*;
    use crate::{Config, Parts, Service};

    /// Refuses every scan while it is set.
    #[derive(Debug, Default)]
    struct NoScans(AtomicBool);

    impl FaultSchedule for NoScans {
        fn next(&self, operation: &'static str) -> Fault {
            let is_refused = operation == "key_value.scan" && self.0.load(Ordering::Relaxed);
            if is_refused {
                Fault::RefuseBefore
            } else {
                Fault::None
            }
        }
    }

    /// T9: another node reports only once that it has noted dead bytes.
    #[test]
    fn what_others_have_noted_is_heard_once_the_rows_can_be_read() {
        simulated::run(async {
            let (world, faults) = (World::new(1), Arc::<NoScans>::default());
            let key_value = FaultyKeyValue::new(world.key_value(), faults.clone(), world.clock());
            let parts = Parts {
                key_value: Arc::new(key_value),
                clock: world.clock(),
                entropy: world.entropy(),
            };
            let service = Service::builder(parts)
                .objects(world.objects())
                .build(Config::default());
            service.start().await.expect("a calm world");
            let packing = Arc::clone(&service.engine().calls.packing);
            let node = service
                .engine()
                .calls
                .serving
                .node()
                .expect("it has started");
            let id = PackId {
                node: node.id,
                number: 1,
            };
            node.packs.state().table.insert(id, 10, Hold::default());
            rows::put(&node.store, id, 10).await.expect("a calm world");
            rows::add_dead(&node.store, id, 9)
                .await
                .expect("a calm world");
            node.packs.more_is_noted();
            faults.0.store(true, Ordering::Relaxed);
            packing
                .read_rows(&node)
                .await
                .expect_err("the rows cannot be read");
            faults.0.store(false, Ordering::Relaxed);
            packing
                .read_rows(&node)
                .await
                .expect("the rows can be read");
            assert_eq!(node.packs.state().table.next(false), [id], "mostly dead");
        });
    }
}
