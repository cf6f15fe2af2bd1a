//! The one task of a node that keeps the store small: collection, retention, names, and the sweep after a death.
//!
//! It is armed by work: woken when a transaction ends, it waits a moment so that more may gather, and works until nothing is
//! left below the horizon. While something is within its window it sleeps until that is over; with nothing collectable and
//! nothing in a window it sleeps without a call to any port. One task, so that no two steps of it race.
//!
//! It tends every log that is not trimmed: the own one, and those of earlier starts, which are resolved.

use std::{sync::Arc, time::Duration};

use ports::Monotonic;
use primitives::{Cursor, FencedLog};

use crate::{
    Result,
    broken::Broken,
    collector::collectable,
    engine::Core,
    heard::Heard,
    layout,
    model::NodeId,
    node::Node,
    outbox,
    records::CommitRecord,
    registry::{self, NodeRow},
    retention,
    store::Store,
    sweep::Sweep,
};

/// How long it waits for more once it is woken.
const GATHERING: Duration = Duration::from_millis(100);
/// How long a write of a call that timed out may be on its way.
const LATE_WRITE: Duration = Duration::from_mins(1);
/// Between two pages of a sweep.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// What may be collected, and what it comes to.
pub(crate) struct Horizon {
    pub(crate) heard: Heard,
    pub(crate) superseded_bytes: u64,
}

/// A log under its care.
#[derive(Debug)]
pub(crate) struct Tended {
    pub(crate) node: NodeId,
    pub(crate) log: FencedLog,
    /// The last slot, of a log to which nothing is added.
    pub(crate) last: Option<u64>,
    /// Versions that anything before it superseded are collected.
    pub(crate) collected: Cursor,
    /// The last cursor of those that was noted.
    pub(crate) noted: u64,
    /// Nothing is kept of what stands before it.
    pub(crate) retained: Cursor,
    /// Of an earlier start's log: when its next slot is old enough.
    pub(crate) young_until: Option<Monotonic>,
    /// Up to which attempt it was noted that rows may be gone.
    pub(crate) dropped: u64,
}

struct Housekeeping {
    core: Arc<Core>,
    node: Arc<Node>,
    /// Logs of earlier starts that are not looked at yet.
    rows: Vec<NodeRow>,
    logs: Vec<Tended>,
    sweep: Option<Sweep>,
}

impl Core {
    /// Begins to tidy behind `node`, and behind the earlier starts that have these `rows`.
    pub(crate) fn keep_house(self: &Arc<Self>, node: Arc<Node>, rows: Vec<NodeRow>) {
        if !self.config.collects {
            return;
        }
        let core = Arc::clone(self);
        let unswept = rows.iter().filter(|row| !row.is_swept).map(|row| row.node).collect();
        let is_swept = !self.config.is_broken(Broken::SweepsNothing);
        let sweep = if is_swept { Sweep::of(unswept, self.config.buckets) } else { None };
        let rows = rows.into_iter().filter(|row| !row.is_trimmed).collect();
        self.spawn(Housekeeping { core, node, rows, logs: Vec::new(), sweep }.run());
    }

    /// What all who run had heard when they began; what is heard now, if nobody runs.
    pub(crate) fn horizon(&self, node: &Node) -> Horizon {
        let mut view = self.view();
        let through = node.log.decided_through();
        if through > view.heard.through(node.id) {
            Arc::make_mut(&mut view.heard).advance(node.id, through);
        }
        let now = Horizon { heard: (*view.heard).clone(), superseded_bytes: view.superseded_bytes };
        if self.config.is_broken(Broken::CollectsAboveHorizon) {
            return now;
        }
        match view.open.horizon() {
            Some((heard, bytes)) => Horizon { heard: (**heard).clone(), superseded_bytes: *bytes },
            None => now,
        }
    }

    /// For how long something of an earlier start may still arrive. Whoever was only taken for dead may write until its last
    /// transaction has ended, and no later.
    pub(crate) fn late_writes(&self, node: &Node) -> Duration {
        (node.started + self.config.life_max + LATE_WRITE).since(self.clock.monotonic())
    }

    /// Old readers no longer keep everything that was superseded since, once that is too much.
    fn overtake(&self) {
        let mut view = self.view();
        while let Some(oldest) = view.open.oldest_reader().cloned() {
            let kept = view.superseded_bytes - oldest.start.superseded_bytes;
            if kept <= self.config.superseded_bytes_max {
                return;
            }
            tracing::info!(attempt = %oldest.attempt, kept, "an old reader no longer keeps versions");
            view.open.overtake(&oldest);
            self.counters.overtaken();
        }
    }
}

impl Housekeeping {
    async fn run(mut self) {
        let mut delays = Store::delays();
        loop {
            let wait = match self.pass().await {
                Ok(wait) => {
                    delays = Store::delays();
                    wait
                }
                Err(error) => {
                    if self.node.store.standing().is_err() || self.node.is_leaving() {
                        return;
                    }
                    tracing::warn!(%error, "the store is not tidied at the moment");
                    self.core.pause(&mut delays).await;
                    continue;
                }
            };
            let clock = &self.core.clock;
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
            if self.node.store.standing().is_err() || self.node.is_leaving() {
                return;
            }
        }
    }

    /// Does all there is to do. Returns when there may be more if nobody says so before.
    async fn pass(&mut self) -> Result<Option<Duration>> {
        self.node.store.look()?;
        let node = Arc::clone(&self.node);
        let _at_work = node.at_work()?;
        self.core.overtake();
        if !self.has_work() {
            return Ok(self.due());
        }
        // Whoever was taken for dead hears of nothing any more, and must not judge what is superseded.
        if !registry::is_live(&self.node.store, self.node.id).await? {
            self.node.store.fall();
            self.node.store.standing()?;
        }
        self.open_logs().await?;
        let core = Arc::clone(&self.core);
        while !node.is_leaving()
            && (self.tidy_logs().await? | core.walk_names(&node).await? | core.tidy_packs(&node).await?)
        {
        }
        self.sweep().await?;
        core.counters.log_slots(self.logs.iter().map(|tended| self.slots(tended)).sum());
        Ok(self.due())
    }

    /// Whether a pass would call any port.
    fn has_work(&self) -> bool {
        let horizon = self.core.horizon(&self.node);
        let is_behind = |tended: &Tended| {
            collectable(tended, &horizon) >= tended.collected.next.0
                || self.core.retainable(&self.node, tended) >= tended.retained.next.0
        };
        let is_starting = self.logs.is_empty() || !self.rows.is_empty();
        let is_sweeping = self.sweep_due() == Some(Duration::ZERO);
        let has_packs_due = self.core.packs_due(&self.node) == Some(Duration::ZERO);
        is_starting
            || is_sweeping
            || has_packs_due
            || self.core.has_names_due()
            || self.logs.iter().any(is_behind)
    }

    /// When there may be work if nobody says so before.
    fn due(&self) -> Option<Duration> {
        let packs_due = self.core.packs_due(&self.node);
        [self.logs_due(), self.core.names_due(), self.sweep_due(), packs_due].into_iter().flatten().min()
    }

    /// One step of every log. False: nothing was to do.
    async fn tidy_logs(&mut self) -> Result<bool> {
        let (core, node) = (Arc::clone(&self.core), Arc::clone(&self.node));
        let mut is_busy = false;
        for place in 0..self.logs.len() {
            // Anew for each log: what the one before has released must be looked at by this one.
            let retained: Vec<(NodeId, u64)> =
                self.logs.iter().map(|tended| (tended.node, tended.retained.next.0)).collect();
            // The row of a record whose slot is still there is not released.
            let may_be_released = |record: &CommitRecord| {
                let slot = retained.iter().find(|(log, _)| *log == record.position.log);
                slot.is_none_or(|(_, next)| record.position.slot < *next)
            };
            let tended = &mut self.logs[place];
            is_busy |= core.collect(&node, tended, &may_be_released).await?;
            is_busy |= core.retain(&node, tended).await?;
        }
        let trimmed = self.logs.extract_if(.., |tended| retention::is_trimmed(tended));
        for tended in trimmed.collect::<Vec<_>>() {
            registry::mark_trimmed(&node.store, tended.node).await?;
        }
        Ok(is_busy)
    }

    /// Looks up where the logs of earlier starts stand.
    async fn open_logs(&mut self) -> Result<()> {
        if self.logs.is_empty() {
            let periods = self.core.list_periods(&self.node).await?;
            self.core.view().names.extend(periods);
            let unswept = self.sweep.as_ref().map_or(&[][..], |sweep| &sweep.nodes);
            self.core.open_packs(&self.node, unswept).await?;
            let own = Tended {
                node: self.node.id,
                log: self.log(self.node.id),
                last: None,
                collected: Cursor::START,
                noted: 0,
                retained: Cursor::START,
                young_until: None,
                dropped: 0,
            };
            self.logs.push(own);
        }
        while let Some(row) = self.rows.last() {
            let log = self.log(row.node);
            let start = self.node.store.again(|| log.start()).await?;
            let collected = row.collected.unwrap_or(start).max(start);
            let (noted, last) = (collected.next.0, Some(row.done.next.0 - 1));
            self.core.drops(row.node, start);
            let (retained, young_until, dropped) = (start, None, 0);
            let node = row.node;
            self.logs.push(Tended { node, log, last, collected, noted, retained, young_until, dropped });
            self.rows.pop();
        }
        Ok(())
    }

    fn log(&self, node: NodeId) -> FencedLog {
        FencedLog::new(self.node.store.key_value().clone(), layout::log(node))
    }

    /// When the next page of the sweep is due.
    fn sweep_due(&self) -> Option<Duration> {
        let sweep = self.sweep.as_ref()?;
        let page = sweep.next.since(self.core.clock.monotonic());
        Some(page.max(self.core.late_writes(&self.node)))
    }

    /// One page, if it is time.
    async fn sweep(&mut self) -> Result<()> {
        if self.sweep_due() != Some(Duration::ZERO) {
            return Ok(());
        }
        let Some(sweep) = &mut self.sweep else { return Ok(()) };
        sweep.next = self.core.clock.monotonic() + SWEEP_PAUSE;
        if self.core.sweep(&self.node, sweep).await? {
            return Ok(());
        }
        for swept in std::mem::take(&mut sweep.nodes) {
            // What committed is on its way; the rest goes.
            outbox::left_by(&self.node.store, swept).await?;
            registry::mark_swept(&self.node.store, swept).await?;
        }
        self.node.packs.settle();
        self.sweep = None;
        Ok(())
    }

    /// When the next slot's window is over; none: no slot is within one, or something else has to happen first.
    fn logs_due(&self) -> Option<Duration> {
        let now = self.core.clock.monotonic();
        let due = self.logs.iter().filter_map(|tended| match tended.last {
            None => self.node.log.next_due(self.core.config.retry_window),
            Some(_) => Some(tended.young_until?.since(now)),
        });
        due.min()
    }

    /// How many slots of a log are kept.
    fn slots(&self, tended: &Tended) -> u64 {
        let last = tended.last.unwrap_or_else(|| self.node.log.last());
        (last + 1).saturating_sub(tended.retained.next.0)
    }
}
