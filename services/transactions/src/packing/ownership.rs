//! Pack ownership: which packs a node compacts, and how it learns about dead bytes in them.
//!
//! ```text
//!  a pack ── its owner, until the owner's log is resolved ──▶ the elected collector
//!  a version is collected anywhere ──▶ its bytes are added to its pack's row, within a second
//!    ──▶ the others are told that there is more (`noted`) ──▶ each owner of packs reads their rows
//! ```
//!
//! Only a pack's owner knows which items that name it may still be written, because the holds are
//! in its memory. Other nodes therefore leave it alone until the owner's attempts are all decided,
//! and late writes are over.
//!
//! **An owner that was paused** may wake up much later, between the put of a new pack and the move
//! of an item into it. The pack that it moves values out of was marked before the new one was put.
//! A node that takes packs over lists them first and reads the marks second. It thereby finds the
//! mark of every move that may still go into a listed pack. It moves all live values out of marked
//! packs before it examines any other. Each move is conditional on the old position: the late one
//! is refused.
//!
//! Two collectors at a time, or one that continues after it lost the election, do no harm. An item
//! moves once, and each node moves values into packs of its own.
//!
//! Invariants
//! - Only its owner examines a pack whose owner's log is not resolved.
//! - No pack that was taken over is examined while one of them is marked.
//! - Bytes that die while a pack is counted are in its row afterwards.

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

/// How long dead bytes in others' packs are gathered before they are added to the rows.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How often a pack is counted if bytes in it die meanwhile.
const COUNTS_MAX: usize = 3;

impl Packing {
    /// Takes packs over, and reads what others have noted, as far as that is due.
    pub(super) async fn look_after_rows(&self, node: &Node) -> Result<()> {
        let (is_take_over_due, is_look_due) = {
            let state = &mut *node.packs.state();
            // Before the rows are read: later notes cause another read.
            (
                state.is_take_over_due,
                std::mem::take(&mut state.is_look_due),
            )
        };
        let looked = self.look_at_rows(node, is_take_over_due, is_look_due).await;
        if looked.is_err() && is_look_due {
            // No node repeats the news.
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
        let takes_all = self.context.breaks(Broken::TakesPacksOfTheLiving);
        if is_take_over_due || is_look_due && takes_all {
            self.take_packs_over(node).await?;
        }
        if is_look_due {
            self.hear_rows(node).await?;
        }
        Ok(())
    }

    async fn take_packs_over(&self, node: &Node) -> Result<()> {
        let takes_all = self.context.breaks(Broken::TakesPacksOfTheLiving);
        let rows = node_registry::list(&node.store).await?;
        let is_gone = |row: &&NodeRow| row.node != node.id && (row.is_resolved || takes_all);
        let gone: BTreeMap<NodeId, NodeRow> = rows
            .iter()
            .filter(is_gone)
            .map(|row| (row.node, *row))
            .collect();
        let found = rows::list(&node.store).await?;
        // Every pack out of which values may still be moved into the found packs is marked by now.
        let marked = rows::list(&node.store).await?;
        let kept = self.context.clock.monotonic() + self.context.config.pack_kept;
        let ignores_marks = self.context.breaks(Broken::JudgesHalfMoved);
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

    /// Adds dead bytes to the rows of their packs.
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

    /// As above, at once, for the shutdown.
    pub(crate) async fn note_all_freed(&self, node: &Node) -> Result<()> {
        self.note_freed(node).await?;
        let owed = std::mem::take(&mut node.packs.state().owed);
        self.note_owed(node, owed).await
    }

    async fn note_owed(&self, node: &Node, owed: BTreeMap<PackId, u64>) -> Result<()> {
        if owed.is_empty() || self.context.breaks(Broken::KeepsDeadBytesToItself) {
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

    /// The packs to count after the death of `nodes`, which may alone have known of dead values
    /// there. These are all packs, except retired ones and, for a single node, its own, and objects
    /// of the dead nodes without a row.
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
        // A single node has counted its own itself.
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

    /// Counts the dead bytes of a pack, whichever node owns it: a hint to the owner.
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
