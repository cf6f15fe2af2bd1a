//! Deciding, numbering and applying in one transaction.
//!
//! One process may be the only one on a store whose transactions reach all its items. Then the
//! stages of the pipeline gain nothing from being separate: a queue between them, an outbox and two
//! more writes per request. Here a writer hands its planned requests over. One transaction holds
//! the decisions in the rows of one session or several, the installed states, the slot of the log,
//! the cursor and the znodes. It is made completely or not at all, so nothing of it is left to be
//! finished later.
//!
//! Requests that do not fit take the way of all others: through the outbox and the queue. Requests
//! that must follow one on that way (rule C-3) have it applied first.
//!
//! Only the announcement of the slot is a step of its own: the tail of the same process delivers it
//! at once. If its instance dies before it, the request's message is delivered again, and
//! [`Distributor::announce_again`] takes the log over, which announces the last slot. The tail
//! fires the slot's watches meanwhile, so nothing else is decided until it has.

use bytes::Bytes;
use ports::{Condition, DurabilityPoint, Result, Update};

use super::{
    Distributor, SLOT_PATHS_PART, Step, WarmState, encoded,
    numbering::{self, Numbered},
    order, still_valid, trim,
};
use crate::{
    broken::Broken,
    dependency::TrackedStore,
    quota,
    records::Decided,
    storage::{
        decided::install_outbox,
        session::{self, Row, State},
        user_store,
    },
};

/// The decision of a session's requests.
#[derive(Debug)]
pub(crate) struct RowDecision<'plan> {
    /// The row as the writer took it over.
    pub(crate) row: &'plan Row,
    /// The row after it.
    pub(crate) after: Row,
}

/// Planned requests of one session, or of several.
#[derive(Debug)]
pub(crate) struct Direct<'plan> {
    /// The sessions, in the order of their requests.
    pub(crate) rows: &'plan [RowDecision<'plan>],
    pub(crate) decided: &'plan [Decided],
    /// The updates that install their states, on the condition that these are as they were planned
    /// from.
    pub(crate) installed: Vec<Update>,
    /// The store with everything that the plan is based on.
    pub(crate) planned_on: &'plan TrackedStore,
}

/// What became of them.
#[derive(Debug)]
pub(crate) enum Directly {
    /// They are decided and applied. The point where this is durable.
    Applied(DurabilityPoint),
    /// Nothing was done, because something has changed since the plan.
    Conflict,
    /// Nothing was done, because they must take the other way.
    Unfit,
}

impl Distributor {
    /// Decides, numbers and applies requests in one transaction, and announces them.
    pub(crate) async fn apply_directly(&self, direct: Direct<'_>) -> Result<Directly> {
        if !self.fits(direct.decided) {
            return Ok(Directly::Unfit);
        }
        let mut guard = self.warm.lock().await;
        // Taken out, as in `handle_messages`.
        let mut warm = match guard.take().and_then(still_valid) {
            Some(warm) => warm,
            None => self.take_over().await?,
        };
        if !self.env.breaks(Broken::IgnoresPredecessors) {
            let (system, applied) = (&mut warm.system, &mut warm.applied);
            for session in order::sessions_to_apply_first(system, applied, &direct).await? {
                let Some(row) = session::get(&mut warm.system, session).await? else {
                    continue;
                };
                if row.state == State::Closed {
                    // Once its end is applied, the session is forgotten. The end's own message
                    // would then look numbered by another instance, and force a takeover.
                    *guard = Some(warm);
                    return Ok(Directly::Unfit);
                }
                warm = self.catch_up(warm, &row).await?;
            }
        }
        let decided = direct.decided;
        let applied = self.transact(&mut warm, direct).await?;
        if !matches!(applied, Directly::Applied(_)) && has_limits(decided) {
            // They may hold limits that were set in vain.
            warm.quotas = None;
        }
        *guard = Some(warm);
        Ok(applied)
    }

    /// Numbers and applies the decided requests of a session whose messages have not arrived yet.
    /// Their writer may have died before it installed them.
    async fn catch_up(&self, mut warm: WarmState, row: &Row) -> Result<WarmState> {
        install_outbox(&mut warm.system, row).await?;
        Ok(self.process(warm, row.outbox_decoded()?).await?)
    }

    /// Announces the last slot again, unless the instance that wrote it still works and has done
    /// so.
    pub(crate) async fn announce_again(&self) -> Result<()> {
        let mut guard = self.warm.lock().await;
        if guard.is_none() {
            *guard = Some(self.take_over().await?);
        }
        Ok(())
    }

    /// Whether requests fit into one slot, and need no object.
    fn fits(&self, decided: &[Decided]) -> bool {
        let paths_max = self.slot_bytes_max() / SLOT_PATHS_PART;
        let in_objects = |decided: &Decided| {
            let mut written = decided.written();
            let belongs = written.any(|written| self.region.belongs_in_object(written.data));
            belongs || !decided.temporaries.is_empty()
        };
        !decided.iter().any(in_objects) && numbering::slot_len(decided, paths_max) == decided.len()
    }

    async fn transact(&self, warm: &mut WarmState, direct: Direct<'_>) -> Result<Directly> {
        let Direct {
            rows,
            decided,
            installed,
            planned_on,
        } = direct;
        let numbered = self.numbered(warm, decided).await?;
        let step = warm.step(
            warm.writer.next(),
            warm.writer.epoch(),
            numbered.slot.last(),
        );
        let Numbered {
            slot,
            changes,
            garbage,
            growth,
        } = &numbered;
        let mut updates = user_store::applying_at_once(step, changes, garbage, *growth)?;
        let items_max = self.env.parts.system.limits().transact_items_max;
        let items = 1 + rows.len() + installed.len() + updates.len();
        if slot.entries.len() < decided.len() || items > items_max || !garbage.is_empty() {
            return Ok(Directly::Unfit);
        }
        updates.extend(installed);
        for (place, RowDecision { row, after }) in rows.iter().enumerate() {
            let mut decision = session::decision_applied(row, after);
            if place > 0 && self.env.breaks(Broken::ChecksOneRow) {
                decision.condition = Condition::Always;
            }
            updates.push(decision.depends_on(planned_on.point()));
        }
        warm.system.observe_now()?;
        warm.writer.depend_on(warm.system.point()).await?;
        let slot = encoded(slot);
        let Some((_, point)) = warm.writer.append_with(slot.clone(), updates).await? else {
            return Ok(Directly::Conflict);
        };
        warm.system.observe(point)?;
        warm.items.observe(point)?;
        for RowDecision { after, .. } in rows {
            warm.applied.advance(after.session, after.sequence);
        }
        self.finish(warm, step, slot, (decided, numbered)).await?;
        Ok(Directly::Applied(point))
    }

    /// The steps after a slot is applied.
    async fn finish(
        &self,
        warm: &mut WarmState,
        step: Step,
        slot: Bytes,
        (decided, numbered): (&[Decided], Numbered<'_>),
    ) -> Result<()> {
        match &self.tail {
            Some(tail) => tail.deliver_now(numbered.slot, warm.wake(step, slot)),
            None => self.announce(warm, step, slot).await?,
        }
        self.remove_index_entries(decided, &warm.system).await;
        for (path, node) in numbered.changes {
            warm.nodes.set(&*path, node);
        }
        warm.advance(step);
        trim(warm).await
    }
}

/// Whether requests change the limits of a quota.
fn has_limits(decided: &[Decided]) -> bool {
    let mut touched = decided.iter().flat_map(|decided| &decided.touched);
    touched.any(|touched| quota::top_of_limits(&touched.path).is_some())
}
