//! What no log names, after a node ended without leaving.
//!
//! A death between two packets can leave a version whose slot was lost, or the row of a begin whose slot was; a death in
//! housekeeping, a released row behind its last version. All of that is found by walking all buckets of versions and of
//! rows once, some pages at a time, a while after the start. Nobody reads any of it meanwhile: a version without a committed
//! row does not count.
//!
//! Then every pack is counted that is not this node's own: the dead may have known alone what had died in it, and may have left
//! objects without rows.
//!
//! Only what belongs to the nodes swept for is judged: their logs are sealed and resolved, so nothing of theirs is still
//! to be decided.

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

/// Items in one page.
const PAGE_ITEMS: usize = 100;
/// Packs counted in one page.
const PACKS_AT_ONCE: usize = 16;
/// Items judged at a time.
const LOOKS_AT_ONCE: usize = 16;

/// How far a sweep has come.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// For whom.
    pub(crate) nodes: Vec<NodeId>,
    /// When the next page is due.
    pub(crate) next: Monotonic,
    buckets: Buckets,
    /// Of versions first, then of rows.
    bucket: u32,
    scan: Option<Scan>,
    /// Packs that are still to be counted, once versions and rows are done.
    packs: Option<Vec<PackId>>,
}

impl Sweep {
    /// From the start, for these nodes; none: for nobody.
    pub(crate) fn of(nodes: Vec<NodeId>, buckets: Buckets) -> Option<Self> {
        let next = Monotonic::default();
        let (scan, packs) = (None, None);
        (!nodes.is_empty()).then_some(Self {
            nodes,
            next,
            buckets,
            bucket: 0,
            scan,
            packs,
        })
    }

    /// Whether versions and rows are done, and packs are counted.
    pub(crate) fn is_at_packs(&self) -> bool {
        self.page().is_none()
    }

    fn is_ours(&self, attempt: Attempt) -> bool {
        self.nodes.contains(&attempt.node)
    }

    /// The page to look at: first all buckets of versions, then all of rows.
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
    /// Looks at the next page. False: that was the last.
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

    /// Counts some of the packs that the dead have left, or what was dead in others they may have known alone. False: those
    /// were the last.
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

    /// Deletes a version that does not count.
    async fn sweep_version(
        &self,
        node: &Node,
        key: &Key,
        attempt: Attempt,
        item: VersionItem,
    ) -> Result<()> {
        let (decision, _) = node.store.decision(&item.id).await?;
        let counts = decision.is_some_and(|decision| {
            decision.attempt == attempt && matches!(decision.state, State::Committed(_))
        });
        if !counts {
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

    /// Gives back a row that nobody will decide or ask about.
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
        } = decision;
        match state {
            State::Undecided => {
                self.context.counters.swept();
                node.store.forget(id, attempt).await.map(drop)
            }
            // Its owner's log is resolved: it came late.
            State::Prepared => {
                self.context.counters.swept();
                if self.context.is_alone() {
                    node.store.settle_aborted(id, attempt).await?;
                } else {
                    self.serializable.close_prepared(node, id, attempt).await?;
                }
                node.store.drop_aborted(id, attempt).await
            }
            // Whoever has a name without a row is refused like one whose row is closed.
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
