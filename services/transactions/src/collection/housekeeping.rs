//! Housekeeping: a node's one task that keeps the store small by collection, retention, expiry of
//! idempotency keys, and the sweep after a crash.
//!
//! Work arms it. The end of a transaction wakes it; it waits a moment to gather more, and works
//! until nothing is left below the horizon. While some slot is within its window it sleeps until
//! the window is over. With nothing collectable and no open window it sleeps without a call to any
//! port. It is one task, so that no two of its steps race.
//!
//! It processes every log that is not trimmed: the own one, and those of earlier starts, which are
//! resolved.

use std::{sync::Arc, time::Duration};

use ports::{LogThrottle, Monotonic};
use primitives::FencedLog;

use crate::{
    Result,
    broken::Broken,
    cluster::membership::Election,
    collection::{
        Collection, retention,
        sweep::Sweep,
        tended::{Tended, collectable},
    },
    effects::outbox,
    model::NodeId,
    node::Node,
    storage::{
        frontier::Frontier,
        layout,
        node_registry::{self, NodeRow},
        records::CommitRecord,
        store::Store,
    },
};

/// How long it waits for more work once it is woken.
const GATHERING: Duration = Duration::from_millis(100);
/// How long the write of a timed-out call may still be on its way.
const LATE_WRITE: Duration = Duration::from_mins(1);
/// The longest time of one pass. The collectable horizon is agreed at its begin, and slots may
/// leave their window as fast as they are processed.
const PASS_MAX: Duration = Duration::from_secs(1);
/// The pause between two steps of a sweep.
const SWEEP_PAUSE: Duration = Duration::from_millis(250);
/// Pages of versions or rows in a step: ten million items take less than half an hour.
const SWEEP_PAGES_AT_ONCE: usize = 16;

struct Housekeeping {
    collection: Arc<Collection>,
    node: Arc<Node>,
    /// Logs of earlier starts that are not opened yet.
    rows: Vec<NodeRow>,
    logs: Vec<Tended>,
    sweep: Option<Sweep>,
    /// Nodes for the next sweep.
    unswept: Vec<NodeId>,
    /// When no write of the swept nodes can arrive any more.
    sweep_from: Monotonic,
    /// Whether this node leads as the collector, and so processes the logs of dead nodes.
    is_leader: bool,
    /// When to list the retention buckets of idempotency keys again, because other nodes add keys
    /// too. `None` for a single node, or one that does not lead.
    names_listed_next: Option<Monotonic>,
    /// The frontier at the last listing, and whether it was unchanged since the one before: then no
    /// node adds keys until the frontier advances.
    names_heard: (Frontier, bool),
}

impl Collection {
    /// Starts housekeeping for `node`, and for the earlier starts with these `rows`.
    pub(crate) fn keep_house(self: &Arc<Self>, node: Arc<Node>, rows: Vec<NodeRow>) {
        if !self.context.config.collects {
            return;
        }
        let mut house = Housekeeping {
            collection: Arc::clone(self),
            rows: Vec::new(),
            logs: Vec::new(),
            sweep: None,
            unswept: Vec::new(),
            sweep_from: node.started + self.context.config.life_max + LATE_WRITE,
            is_leader: self.context.is_alone(),
            names_listed_next: None,
            names_heard: (Frontier::default(), false),
            node,
        };
        if !self.context.breaks(Broken::SweepsNothing) {
            let unswept = rows.iter().filter(|row| !row.is_swept);
            house.unswept = unswept.map(|row| row.node).collect();
        }
        house.begin_sweep();
        house.rows = rows.into_iter().filter(|row| !row.is_trimmed).collect();
        self.context.spawn(house.run());
    }

    /// How long writes of a node that ended at `since` may still arrive. A node that was only
    /// presumed dead may write until its last transaction has ended, and no later.
    pub(crate) fn late_writes(&self, since: Monotonic) -> Duration {
        (since + self.context.config.life_max + LATE_WRITE).since(self.context.clock.monotonic())
    }

    /// Evicts the snapshots of old readers once too many bytes were superseded since their begin.
    fn overtake(&self) {
        let mut attempts = self.attempts.lock();
        let (_, superseded_bytes) = self.cache.frontier();
        while let Some(oldest) = attempts.oldest_reader().cloned() {
            let kept = superseded_bytes - oldest.start.superseded_bytes;
            if kept <= self.context.config.superseded_bytes_max {
                return;
            }
            tracing::info!(attempt = %oldest.attempt, kept, "the snapshot of an old reader is evicted");
            attempts.overtake(&oldest);
            self.context.counters.overtaken();
        }
    }
}

impl Housekeeping {
    async fn run(mut self) {
        let (mut delays, mut outage) = (Store::delays(), LogThrottle::default());
        loop {
            let passed = self.pass().await;
            let now = self.collection.context.clock.monotonic();
            let wait = match passed {
                Ok(wait) => {
                    delays = Store::delays();
                    if let Some(lasted) = outage.ended(now) {
                        tracing::info!(?lasted, "housekeeping works again");
                    }
                    wait
                }
                Err(error) => {
                    if self.node.store.is_fenced() || self.node.is_leaving() {
                        return;
                    }
                    if let Some(lasts) = outage.failed(now, &error.to_string()) {
                        tracing::warn!(%error, ?lasts, "housekeeping fails at the moment");
                    }
                    self.collection.context.pause(&mut delays).await;
                    continue;
                }
            };
            let clock = &self.collection.context.clock;
            let due = async {
                match wait {
                    Some(wait) => clock.sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.node.work.notified() => clock.sleep(GATHERING).await,
                () = due => {}
            }
            if self.node.store.is_fenced() || self.node.is_leaving() {
                return;
            }
        }
    }

    /// Runs one pass, for a bounded time. Returns the time until the next one may have work, unless
    /// it is woken sooner.
    async fn pass(&mut self) -> Result<Option<Duration>> {
        self.node.store.check_incarnation()?;
        let node = Arc::clone(&self.node);
        let _at_work = node.at_work()?;
        self.collection.overtake();
        self.update_leadership();
        if !self.has_work() {
            return Ok(self.due());
        }
        // A node that was presumed dead no longer receives news, and must not decide which versions
        // are superseded.
        if self.collection.context.is_alone() {
            self.collection.loader.still_counts(&self.node).await?;
        } else {
            self.collection.cluster.count(&self.node).await?;
        }
        self.open_logs().await?;
        self.hear_of_names().await?;
        let collection = Arc::clone(&self.collection);
        let until = collection.context.clock.monotonic() + PASS_MAX;
        let mut is_busy = true;
        while is_busy && !node.is_leaving() && collection.context.clock.monotonic() < until {
            is_busy = self.tidy_logs().await?
                | self.walk_names().await?
                | collection.packing.tidy_packs(&node).await?;
        }
        self.sweep().await?;
        collection
            .context
            .counters
            .log_slots(self.logs.iter().map(|tended| self.slots(tended)).sum());
        Ok(if is_busy {
            Some(Duration::ZERO)
        } else {
            self.due()
        })
    }

    /// Whether a pass would call any port.
    fn has_work(&self) -> bool {
        let mut horizon = self.collection.cluster.horizon(&self.node);
        if !self.collection.context.is_alone()
            && let Some(agreeable) = self.collection.cluster.agreeable_to_members(&self.node)
        {
            // The registry is read to count nodes if the horizon has advanced.
            horizon.merge(&agreeable);
        }
        let is_behind = |tended: &Tended| {
            collectable(tended, &horizon) >= tended.collected.next.0 && tended.looked != horizon
                || self.collection.retainable(&self.node, tended) >= tended.retained.next.0
        };
        let is_starting = self.logs.is_empty() || !self.rows.is_empty();
        let is_sweeping = self.sweep_due() == Some(Duration::ZERO);
        let has_packs_due = self.collection.packing.packs_due(&self.node) == Some(Duration::ZERO);
        let has_names = self.names_listing_due() == Some(Duration::ZERO)
            || self.is_leader && self.collection.idempotency_keys.due().is_some();
        is_starting || is_sweeping || has_packs_due || has_names || self.logs.iter().any(is_behind)
    }

    /// Among several nodes, the leader processes the logs of dead nodes, and expires idempotency
    /// keys.
    fn update_leadership(&mut self) {
        if self.collection.context.is_alone() {
            return;
        }
        let left = self.node.take_left_behind();
        let was_leader = std::mem::replace(
            &mut self.is_leader,
            self.collection
                .cluster
                .membership
                .leads(Election::Collector),
        );
        if self.is_leader {
            if !was_leader || !left.is_empty() {
                self.node.packs.takes_over();
            }
            self.rows.extend(left);
            self.names_listed_next.get_or_insert_default();
        } else {
            self.names_listed_next = None;
            self.rows.clear();
            self.logs.retain(|tended| tended.node == self.node.id);
            (self.sweep, self.unswept) = (None, Vec::new());
            self.node.packs.give_back(self.node.id);
        }
    }

    /// Expires the next idempotency keys that are due. Returns false if none is.
    async fn walk_names(&self) -> Result<bool> {
        Ok(self.is_leader && self.collection.walk_names(&self.node).await?)
    }

    /// Lists the idempotency keys of other nodes, which leave their expiry to the leader.
    async fn hear_of_names(&mut self) -> Result<()> {
        let (context, keys) = (&self.collection.context, &self.collection.idempotency_keys);
        if context.breaks(Broken::WalksOwnNamesAlone) {
            self.names_listed_next = None;
        }
        if self.names_listing_due() == Some(Duration::ZERO) {
            let applied = (*self.collection.cache.lock().applied).clone();
            keys.list_periods(&self.node).await?;
            let is_quiet = applied == self.names_heard.0;
            self.names_heard = (applied, is_quiet);
            self.names_listed_next = Some(context.clock.monotonic() + keys.names_listing());
        }
        Ok(())
    }

    fn names_listing_due(&self) -> Option<Duration> {
        let next = self.names_listed_next?;
        let (applied, is_quiet) = &self.names_heard;
        if *is_quiet && *applied == *self.collection.cache.lock().applied {
            return None;
        }
        Some(next.since(self.now()))
    }

    fn now(&self) -> Monotonic {
        self.collection.context.clock.monotonic()
    }

    /// The time until there may be work, unless it is woken sooner.
    fn due(&self) -> Option<Duration> {
        let names = if self.is_leader {
            self.collection.idempotency_keys.names_due()
        } else {
            None
        };
        let packs_due = self.collection.packing.packs_due(&self.node);
        let listing = self.names_listing_due();
        [self.logs_due(), names, listing, self.sweep_due(), packs_due]
            .into_iter()
            .flatten()
            .min()
    }

    /// Runs one step for every log. Returns false if there was nothing to do.
    async fn tidy_logs(&mut self) -> Result<bool> {
        let (collection, node) = (Arc::clone(&self.collection), Arc::clone(&self.node));
        let mut is_busy = false;
        for place in 0..self.logs.len() {
            // Recomputed for each log: the previous log's step may have released rows that this one
            // must see.
            let retained: Vec<(NodeId, u64)> = self
                .logs
                .iter()
                .map(|tended| (tended.node, tended.retained.next.0))
                .collect();
            // The row of a record whose slot still exists is not released.
            let may_be_released = |record: &CommitRecord| {
                let slot = retained.iter().find(|(log, _)| *log == record.position.log);
                slot.is_none_or(|(_, next)| record.position.slot < *next)
            };
            let tended = &mut self.logs[place];
            is_busy |= collection.collect(&node, tended, &may_be_released).await?;
            is_busy |= collection.retain(&node, tended).await?;
        }
        let trimmed = self
            .logs
            .extract_if(.., |tended| retention::is_trimmed(tended));
        for tended in trimmed.collect::<Vec<_>>() {
            node_registry::mark_trimmed(&node.store, tended.node).await?;
        }
        Ok(is_busy)
    }

    /// Reads the positions of the logs of earlier starts.
    async fn open_logs(&mut self) -> Result<()> {
        if self.logs.is_empty() {
            let keys = &self.collection.idempotency_keys;
            keys.list_periods(&self.node).await?;
            if self.collection.context.is_alone() {
                self.node.packs.takes_over();
            }
            let start = self.node.log.start();
            let (own, log) = (self.node.id, self.log(self.node.id));
            self.logs
                .push(Tended::new(own, log, start, self.node.started));
        }
        let is_alone = self.collection.context.is_alone();
        while let Some(row) = self.rows.last() {
            // This node has led before, and leads again after a moment without its lease.
            if self.logs.iter().any(|tended| tended.node == row.node) {
                self.rows.pop();
                continue;
            }
            let since = if is_alone {
                self.node.started
            } else {
                self.now()
            };
            let config = &self.collection.context.config;
            if !is_alone && !row.is_swept && !self.collection.context.breaks(Broken::SweepsNothing)
            {
                self.unswept.push(row.node);
                self.sweep_from = since + config.life_max + LATE_WRITE;
            }
            if row.is_trimmed {
                self.rows.pop();
                continue;
            }
            let log = self.log(row.node);
            let start = self.node.store.again(|| log.start()).await?;
            let mut tended = Tended::new(row.node, log, start, since);
            tended.last = Some(row.done.next.0 - 1);
            tended.collected = row.collected.unwrap_or(start).max(start);
            tended.noted = tended.collected.next.0;
            self.collection.drops(row.node, start.next.0 - 1);
            self.logs.push(tended);
            self.rows.pop();
        }
        self.begin_sweep();
        Ok(())
    }

    /// Nodes that ended during a sweep are swept next.
    fn begin_sweep(&mut self) {
        if self.sweep.is_none() {
            let unswept = std::mem::take(&mut self.unswept);
            let buckets = self.collection.context.config.buckets;
            self.sweep = Sweep::of(unswept, buckets, self.sweep_from);
        }
    }

    fn log(&self, node: NodeId) -> FencedLog {
        FencedLog::new(self.node.store.key_value().clone(), layout::log(node))
    }

    /// When the next page of the sweep is due.
    fn sweep_due(&self) -> Option<Duration> {
        Some(self.sweep.as_ref()?.next.since(self.now()))
    }

    async fn sweep(&mut self) -> Result<()> {
        if self.sweep_due() != Some(Duration::ZERO) {
            return Ok(());
        }
        let next = self.now() + SWEEP_PAUSE;
        let Some(sweep) = &mut self.sweep else {
            return Ok(());
        };
        sweep.next = next;
        let pages = if sweep.is_at_packs() {
            1
        } else {
            SWEEP_PAGES_AT_ONCE
        };
        for _ in 0..pages {
            if !self.collection.sweep(&self.node, sweep).await? {
                return self.end_sweep().await;
            }
        }
        Ok(())
    }

    /// Ends a sweep that has read everything.
    async fn end_sweep(&mut self) -> Result<()> {
        let Some(mut sweep) = self.sweep.take() else {
            return Ok(());
        };
        for swept in std::mem::take(&mut sweep.nodes) {
            // Effects of committed transactions are being sent; the others are deleted.
            outbox::left_by(&self.node.store, swept).await?;
            node_registry::mark_swept(&self.node.store, swept).await?;
        }
        // No dead node writes items any more that name packs of theirs.
        self.node.packs.takes_over();
        let forgets = Broken::ForgetsWhoEndsMeanwhile;
        if !self.collection.context.breaks(forgets) {
            self.begin_sweep();
        }
        Ok(())
    }

    /// When the next slot's window is over; `None` if no slot is within one, or another event must
    /// come first.
    fn logs_due(&self) -> Option<Duration> {
        let (now, window) = (self.now(), self.collection.context.config.retry_window);
        let due = self.logs.iter().filter_map(|tended| {
            let left = match tended.last {
                None => self.node.log.next_due(window)?,
                Some(_) => tended.young_until?.since(now),
            };
            // If its window is over, its other obstacles wake this task when they end.
            (!left.is_zero() || self.collection.is_retainable(&self.node, tended)).then_some(left)
        });
        due.min()
    }

    fn slots(&self, tended: &Tended) -> u64 {
        let last = tended.last.unwrap_or_else(|| self.node.log.last());
        (last + 1).saturating_sub(tended.retained.next.0)
    }
}
