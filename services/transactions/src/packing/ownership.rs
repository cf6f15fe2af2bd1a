//! Which packs a node takes care of, and what it hears of those that others do.
//!
//! ```text
//!  a pack ── its owner, until the owner's log is resolved ──▶ whoever holds the collector's office
//!  a version is collected anywhere ──▶ its bytes are added to the row of its pack, within a second ──▶ the others are told
//!                                   that there is more (`noted`) ──▶ who takes care of packs reads their rows
//! ```
//!
//! What may still be written that names a pack only its owner knows, who holds it in memory. So nobody else judges it before
//! nothing more of its owner is decided, and late writes are over.
//!
//! **An owner that was paused** may wake up much later, between the put of a new pack and the move of an item into it. Then the
//! pack out of which it moves was marked before the new one was put. Whoever takes packs over lists them first and reads the marks
//! second, so it finds the mark of whatever may still move something into a pack of its list; and it moves all that is live out of
//! what is marked, before it judges any other. Each move is on condition of the old place: the late one is refused.
//!
//! Whoever holds the office for a moment beside another, or still works when it holds it no more, does no harm: an item moves once,
//! and what it moves goes into packs of its own.
//!
//! Invariants
//! - Nobody judges a pack whose owner's log is not resolved, but its owner.
//! - Nothing is judged of what was taken over while something is marked that was.
//! - What dies while a pack is counted is in its row afterwards.

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
    packs::rows::{self, Row},
    storage::node_registry::{self, NodeRow},
};

use super::compactor::ITEMS_AT_ONCE;
use super::compactor::give_up_damaged;

/// How long what has died in packs of others is gathered before their rows say so.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How often a pack is counted in which something dies meanwhile.
const COUNTS_MAX: usize = 3;

impl Packing {
    /// Takes packs over, and hears what others have noted, as far as that is due.
    pub(super) async fn look_after_rows(&self, node: &Node) -> Result<()> {
        let (is_take_over_due, is_look_due) = {
            let state = &mut *node.packs.state();
            // Before the rows are read: what is noted meanwhile is looked for once more.
            (
                state.is_take_over_due,
                std::mem::take(&mut state.is_look_due),
            )
        };
        let looked = self.look_at_rows(node, is_take_over_due, is_look_due).await;
        if looked.is_err() && is_look_due {
            // Nobody says it again.
            node.packs.more_is_noted();
        }
        looked
    }

    async fn look_at_rows(
        &self,
        node: &Node,
        is_take_over_due: bool,
        is_look_due: bool,
    ) -> Result<()> {
        let takes_all = self.context.config.is_broken(Broken::TakesPacksOfTheLiving);
        if is_take_over_due || is_look_due && takes_all {
            self.take_packs_over(node).await?;
        }
        if is_look_due {
            self.hear_rows(node).await?;
        }
        Ok(())
    }

    async fn take_packs_over(&self, node: &Node) -> Result<()> {
        let takes_all = self.context.config.is_broken(Broken::TakesPacksOfTheLiving);
        let rows = node_registry::list(&node.store).await?;
        let is_gone = |row: &&NodeRow| row.node != node.id && (row.is_resolved || takes_all);
        let gone: BTreeMap<NodeId, NodeRow> = rows
            .iter()
            .filter(is_gone)
            .map(|row| (row.node, *row))
            .collect();
        let found = rows::list(&node.store).await?;
        // Whatever may still move something into what was found is marked by now.
        let marked = rows::list(&node.store).await?;
        let kept = self.context.clock.monotonic() + self.context.config.pack_kept;
        let ignores_marks = self.context.config.is_broken(Broken::JudgesHalfMoved);
        let state = &mut *node.packs.state();
        let is_theirs = |(id, _): &(PackId, Row)| gone.contains_key(&id.node);
        for (id, row) in found.into_iter().filter(is_theirs) {
            state.table.load(id, row, kept);
        }
        for (id, _) in marked
            .into_iter()
            .filter(is_theirs)
            .filter(|(_, row)| row.is_moving && !ignores_marks)
        {
            state.table.is_half_moved(id);
        }
        let unsettled = gone
            .values()
            .filter(|row| row.is_resolved && !row.is_swept)
            .map(|row| row.node);
        state.table.leave_alone(unsettled.collect());
        (state.is_take_over_due, state.has_taken_over) = (false, true);
        Ok(())
    }

    async fn hear_rows(&self, node: &Node) -> Result<()> {
        let has_taken_over = node.packs.state().has_taken_over;
        let rows = if has_taken_over {
            rows::list(&node.store).await?
        } else {
            rows::list_of(&node.store, node.id).await?
        };
        let table = &mut node.packs.state().table;
        for (id, row) in rows {
            table.hear(id, row.dead);
        }
        Ok(())
    }

    /// The rows follow what has died.
    pub(super) async fn note_freed(&self, node: &Node) -> Result<()> {
        let now = self.context.clock.monotonic();
        let (own, owed) = {
            let state = &mut *node.packs.state();
            let mut own = Vec::new();
            for (id, bytes) in node.store.take_freed() {
                if state.table.is_known(id) {
                    own.extend(state.table.free(id, bytes).map(|dead| (id, dead)));
                    continue;
                }
                if state.owed.is_empty() {
                    state.owed_until = now + NOTE_EVERY;
                }
                *state.owed.entry(id).or_default() += bytes;
            }
            let is_due = state.owed_until <= now;
            (
                own,
                if is_due {
                    std::mem::take(&mut state.owed)
                } else {
                    BTreeMap::new()
                },
            )
        };
        for (id, dead) in own {
            rows::add_dead(&node.store, id, dead).await?;
        }
        self.note_owed(node, owed).await
    }

    /// The same at once, for who leaves.
    pub(crate) async fn note_all_freed(&self, node: &Node) -> Result<()> {
        self.note_freed(node).await?;
        let owed = std::mem::take(&mut node.packs.state().owed);
        self.note_owed(node, owed).await
    }

    async fn note_owed(&self, node: &Node, owed: BTreeMap<PackId, u64>) -> Result<()> {
        if owed.is_empty()
            || self
                .context
                .config
                .is_broken(Broken::KeepsDeadBytesToItself)
        {
            return Ok(());
        }
        let notes = stream::iter(owed.into_iter().map(Ok));
        notes
            .try_for_each_concurrent(ITEMS_AT_ONCE, |(id, bytes)| async move {
                // It may have been put, or taken over, since.
                let is_known = node.packs.state().table.is_known(id);
                let dead = if is_known {
                    node.packs.state().table.free(id, bytes)
                } else {
                    Some(bytes)
                };
                match dead {
                    Some(dead) => rows::add_dead(&node.store, id, dead).await,
                    None => Ok(()),
                }
            })
            .await?;
        node.packs.state().noted += 1;
        Ok(())
    }

    /// Which packs have to be counted after the death of `nodes`, who may have known alone what had died in them: all, but those
    /// that nobody else knows anything of; and what lies among the objects of the dead without a row.
    pub(crate) async fn packs_to_count(
        &self,
        node: &Node,
        nodes: &[NodeId],
    ) -> Result<Vec<PackId>> {
        let Some(objects) = &self.objects else {
            return Ok(Vec::new());
        };
        let rows = rows::list(&node.store).await?;
        let known: BTreeSet<PackId> = rows.iter().map(|(id, _)| *id).collect();
        // A node alone has counted its own itself.
        let counts = rows.iter().filter(|(id, row)| {
            let is_left_out = row.is_retired || self.context.is_alone() && id.node == node.id;
            !is_left_out
        });
        let mut packs: Vec<PackId> = counts.map(|(id, _)| *id).collect();
        for dead in nodes {
            let prefix = ObjectPath::from(format!("{}/{}", self.home()?, dead.0));
            let list = || async {
                let listed = objects.list(Some(&prefix)).try_collect::<Vec<_>>().await;
                listed.map_err(|error| objects::failed(format!("list {prefix}"), error))
            };
            let listed = node.store.again(list).await?;
            let numbers = listed
                .iter()
                .filter_map(|meta| meta.location.filename()?.parse().ok());
            let found = numbers.map(|number| PackId {
                node: *dead,
                number,
            });
            packs.extend(found.filter(|id| !known.contains(id)));
        }
        Ok(packs)
    }

    /// Counts what is dead in a pack, whoever takes care of it: a hint to that one.
    pub(crate) async fn count_pack(&self, node: &Arc<Node>, id: PackId) -> Result<()> {
        for _ in 0..COUNTS_MAX {
            let before = rows::get(&node.store, id).await?;
            let survey = match self.survey(node, id).await {
                Ok(Some(survey)) => survey,
                Ok(None) => return self.forget_pack(node, id).await,
                Err(error) => return give_up_damaged(node, id, error),
            };
            let (bytes, dead) = (survey.bytes, survey.bytes - survey.live_bytes());
            let before = if let Some(row) = before {
                row
            } else {
                rows::put(&node.store, id, bytes).await?;
                Row {
                    bytes,
                    ..Row::default()
                }
            };
            if !rows::count(&node.store, id, before, dead).await? {
                continue;
            }
            let state = &mut *node.packs.state();
            if state.table.is_known(id) {
                state.table.counted(id, bytes, dead);
            } else if dead != before.dead {
                state.noted += 1;
            }
            return Ok(());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use ports::{
        Monotonic,
        faults::{Fault, FaultSchedule, FaultyKeyValue},
    };
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

    /// T9: another node says once that it has noted something.
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
            let packing = Arc::clone(&service.engine().core.recovery.packing);
            let node = service
                .engine()
                .core
                .serving
                .node()
                .expect("it has started");
            let id = PackId {
                node: node.id,
                number: 1,
            };
            node.packs.state().table.load(
                id,
                Row {
                    bytes: 10,
                    ..Row::default()
                },
                Monotonic::default(),
            );
            rows::put(&node.store, id, 10).await.expect("a calm world");
            rows::add_dead(&node.store, id, 9)
                .await
                .expect("a calm world");
            node.packs.more_is_noted();
            faults.0.store(true, Ordering::Relaxed);
            packing
                .look_after_rows(&node)
                .await
                .expect_err("the rows cannot be read");
            faults.0.store(false, Ordering::Relaxed);
            packing
                .look_after_rows(&node)
                .await
                .expect("the rows can be read");
            assert_eq!(
                node.packs.state().table.next(false, 9).packs,
                [id],
                "mostly dead"
            );
        });
    }
}
