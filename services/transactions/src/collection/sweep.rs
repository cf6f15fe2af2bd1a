//! The sweep: finds data that no log names, after a node ended without shutting down in order.
//!
//! A crash between two packets can leave a version or a begin's row whose slot was lost. A crash in
//! housekeeping can leave a released row after its last version. The sweep finds all of that by one
//! walk over all buckets of versions and of rows, a few pages at a time, a while after the start.
//! No reader sees any of it meanwhile, because a version without a committed row does not take
//! effect.
//!
//! Then it counts every pack that is not this node's own. A dead node may have been the only one to
//! know which values had died there, and may have left objects without rows.
//!
//! The sweep deletes only data of the dead nodes that it runs for: their logs are sealed and
//! resolved, so every attempt of theirs is decided.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use ports::{Key as ItemKey, Monotonic, key_value::Scan};

use crate::{
    Error, Result,
    collection::{Collection, uncommitted::all_of},
    model::{Attempt, Key, KeyspaceId, NodeId, PackId, TransactionId},
    node::Node,
    storage::{
        layout::{self, Buckets},
        records::Write,
        store::{Decision, State, VersionItem},
    },
};

const PAGE_ITEMS: usize = 100;
/// Packs counted in one page.
const PACKS_AT_ONCE: usize = 16;
const LOOKS_AT_ONCE: usize = 16;

/// How far a sweep has come.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The dead nodes that it runs for.
    pub(crate) nodes: Vec<NodeId>,
    /// When the next page is due.
    pub(crate) next: Monotonic,
    buckets: Buckets,
    /// The bucket: those of versions first, then those of rows.
    bucket: u32,
    scan: Option<Scan>,
    /// Packs that remain to be counted, once versions and rows are done.
    packs: Option<Vec<PackId>>,
}

impl Sweep {
    /// A new sweep for these nodes, from `next` on; `None` if there are none.
    pub(crate) fn of(nodes: Vec<NodeId>, buckets: Buckets, next: Monotonic) -> Option<Self> {
        (!nodes.is_empty()).then_some(Self {
            nodes,
            next,
            buckets,
            bucket: 0,
            scan: None,
            packs: None,
        })
    }

    /// Whether versions and rows are done, and packs are being counted.
    pub(crate) fn is_at_packs(&self) -> bool {
        self.page().is_none()
    }

    fn is_ours(&self, attempt: Attempt) -> bool {
        self.nodes.contains(&attempt.node)
    }

    /// The next page: first all buckets of versions, then all of rows.
    fn page(&self) -> Option<Scan> {
        let start = || {
            let bucket = (self.bucket % self.buckets.count()) as u8;
            let partition = match self.bucket / self.buckets.count() {
                0 => layout::version_bucket(KeyspaceId::default(), bucket),
                1 => layout::decision_bucket(bucket),
                _ => return None,
            };
            Some(Scan::partition(partition, PAGE_ITEMS))
        };
        self.scan.clone().or_else(start)
    }
}

impl Collection {
    /// Sweeps the next page. Returns false if that was the last.
    pub(crate) async fn sweep(
        self: &Arc<Self>,
        node: &Arc<Node>,
        sweep: &mut Sweep,
    ) -> Result<bool> {
        let Some(scan) = sweep.page() else {
            return self.sweep_packs(node, sweep).await;
        };
        let page = node.store.scan(&scan).await?.value;
        let is_version = sweep.bucket < sweep.buckets.count();
        let (current, partition) = (&*sweep, &scan.partition);
        let looks = stream::iter(page.items).map(|(sort, item)| async move {
            if is_version {
                let item = VersionItem::decode(&item)?;
                let place =
                    layout::version_of(&ItemKey::new(partition, &sort), item.long_key.as_ref());
                let (key, attempt) = place.ok_or_else(|| damaged("a version's key"))?;
                if current.is_ours(attempt) {
                    self.sweep_version(node, &key, attempt, item).await?;
                }
            } else {
                let decision = Decision::decode(&item)?;
                if current.is_ours(decision.attempt) {
                    self.sweep_row(node, &TransactionId::new(sort)?, decision)
                        .await?;
                }
            }
            Ok(())
        });
        all_of(looks.buffered(LOOKS_AT_ONCE)).await?;
        sweep.bucket += u32::from(page.next.is_none());
        sweep.scan = page.next.map(|next| Scan { from: next, ..scan });
        Ok(true)
    }

    /// Counts some of the packs of dead nodes, or dead values in other packs that only they may
    /// have known of. Returns false if those were the last.
    async fn sweep_packs(&self, node: &Arc<Node>, sweep: &mut Sweep) -> Result<bool> {
        let packs = match &mut sweep.packs {
            Some(packs) => packs,
            None => sweep
                .packs
                .insert(self.packing.packs_to_count(node, &sweep.nodes).await?),
        };
        for _ in 0..PACKS_AT_ONCE {
            let Some(pack) = packs.last() else {
                return Ok(false);
            };
            self.packing.count_pack(node, *pack).await?;
            packs.pop();
        }
        Ok(true)
    }

    /// Deletes a version that is not committed.
    async fn sweep_version(
        &self,
        node: &Node,
        key: &Key,
        attempt: Attempt,
        item: VersionItem,
    ) -> Result<()> {
        let (decision, _) = node.store.decision(&item.id).await?;
        if !decision.is_some_and(|decision| decision.has_committed(attempt)) {
            self.context.counters.swept();
            let write = Write {
                key: key.clone(),
                write: item.write,
                place: item.place,
            };
            node.store.delete_written(attempt, &write).await?;
        }
        Ok(())
    }

    /// Deletes a row that no node will decide or ask about.
    async fn sweep_row(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        decision: Decision,
    ) -> Result<()> {
        let Decision {
            attempt,
            state,
            is_released,
            ..
        } = decision;
        match state {
            State::Undecided => {
                self.context.counters.swept();
                node.store.forget(id, attempt).await.map(drop)
            }
            // Its owner's log is resolved: it arrived late.
            State::Prepared => {
                self.context.counters.swept();
                if self.context.is_alone() {
                    node.store.settle_aborted(id, attempt).await?;
                } else {
                    self.sequencing.close_prepared(node, id, attempt).await?;
                }
                node.store.drop_aborted(id, attempt).await
            }
            // A caller of a client id without a row is refused like one whose row is closed.
            State::Aborted if id.generated().is_none() => {
                node.store.drop_aborted(id, attempt).await
            }
            State::Committed(stored) if is_released => {
                let record = node
                    .store
                    .record(id, attempt, &stored, ports::DurabilityPoint::DURABLE)
                    .await?;
                self.drop_or_release(node, &record).await
            }
            State::Aborted | State::Committed(_) => Ok(()),
        }
    }
}

fn damaged(what: &str) -> Error {
    Error::Corrupt(format!("decode {what}").into())
}
