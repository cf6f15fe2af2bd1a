//! Step 1: which decided requests may be numbered now, and in which order.
//!
//! The queue delivers requests in the order of the pushes, which is almost the right order. But two
//! writers may push concurrently, and a writer may die before it pushes. Each request carries its
//! sequence number in its session and the update that it follows on each znode. These ids show
//! which request is missing, and its session's outbox contains it (rule C-3).

use std::collections::{BTreeMap, BTreeSet};

use ports::Result;

use super::{Direct, RowDecision, Stopped};
use crate::{
    broken::Broken,
    dependency::TrackedStore,
    environment::Environment,
    model::SessionId,
    records::{Decided, UpdateId},
    storage::{decided::install, session},
};

/// The last numbered request of each session. Sessions that have ended count as completely
/// numbered.
#[derive(Debug, Default)]
pub(super) struct Applied {
    through: BTreeMap<SessionId, Through>,
}

#[derive(Debug, Clone, Copy)]
struct Through {
    sequence: u64,
    /// The last sequence that another instance numbered. This instance does not know whether it was
    /// announced.
    by_others: u64,
}

impl Through {
    fn by_others(sequence: u64) -> Self {
        Self {
            sequence,
            by_others: sequence,
        }
    }
}

impl Applied {
    async fn through(&mut self, system: &mut TrackedStore, session: SessionId) -> Result<Through> {
        if let Some(through) = self.through.get(&session) {
            return Ok(*through);
        }
        match session::get(system, session).await? {
            Some(row) => {
                self.through
                    .insert(session, Through::by_others(row.applied));
                Ok(Through::by_others(row.applied))
            }
            None => Ok(Through::by_others(u64::MAX)),
        }
    }

    fn is_own(&self, id: UpdateId) -> bool {
        let through = self.through.get(&id.session);
        through.is_some_and(|through| {
            through.by_others < id.sequence && id.sequence <= through.sequence
        })
    }

    /// Records that this instance numbered `session` up to `sequence`.
    pub(super) fn advance(&mut self, session: SessionId, sequence: u64) {
        let through = self.through.entry(session).or_insert(Through {
            sequence,
            by_others: 0,
        });
        through.sequence = sequence;
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.through.remove(&session);
    }
}

/// The arrived requests, sorted by their progress.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    pub(super) next: Vec<Decided>,
    /// The requests that are numbered already, as they were decided.
    pub(super) known: Vec<Decided>,
    /// Whether another instance numbered some of them.
    pub(super) has_foreign: bool,
}

/// The arrived requests that the store has not lost.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// The requests that are certainly decided, as they were decided.
    pub(super) decided: Vec<Decided>,
    /// Numbered requests from an earlier incarnation of the store. Other requests may have been
    /// decided under their ids, so only the ids of these messages can be trusted.
    pub(super) numbered: Vec<UpdateId>,
}

/// Removes the requests that the store has lost from `arrived`. A request that was planned in this
/// incarnation of the store, and pushed before the last observation of `system`, is decided and
/// installed. For the others, the session's row decides. A queue keeps pushed messages even if
/// their decision is lost, and the session's next request then gets the same id. Or the decision
/// survives without its installation; then it is installed here, because it must not leave its
/// outbox before that (rule C-3).
pub(super) async fn without_lost(
    env: &Environment,
    system: &mut TrackedStore,
    arrived: Vec<Decided>,
) -> Result<Arrived> {
    let incarnation = system.incarnation();
    let mut remaining = Arrived::default();
    for decided in arrived {
        if decided.incarnation == incarnation {
            remaining.decided.push(decided);
            continue;
        }
        match session::get(system, decided.id.session).await? {
            Some(row) if decided.id.sequence > row.applied => {
                if let Some(decided) = row.decided(decided.id.sequence)? {
                    install(system, &row.decided_under(decided.holder())?).await?;
                    remaining.decided.push(decided);
                }
            }
            _ if env.breaks(Broken::ChecksObjectsOfLostDecisions) => {
                remaining.decided.push(decided);
            }
            _ => remaining.numbered.push(decided.id),
        }
    }
    Ok(remaining)
}

/// Sorts `arrived`: removes requests that are numbered already, and puts the others after all
/// requests that they must follow.
pub(super) async fn ordered(
    system: &mut TrackedStore,
    applied: &mut Applied,
    arrived: Arrived,
) -> Result<Ordered, Stopped> {
    let has_foreign = arrived.numbered.iter().any(|id| !applied.is_own(*id));
    let mut ordered = Ordered {
        has_foreign,
        ..Ordered::default()
    };
    for decided in arrived.decided {
        let mut waiting = vec![decided];
        while let Some(top) = waiting.last() {
            let through = applied.through(system, top.id.session).await?;
            if top.id.sequence <= through.sequence {
                let known = waiting.pop().expect("the loop holds it");
                ordered.has_foreign |= known.id.sequence <= through.by_others;
                ordered.known.push(known);
                continue;
            }
            if let Some(missing) = missing(system, applied, top, through.sequence).await? {
                waiting.push(fetch(system, missing).await?);
            } else {
                let next = waiting.pop().expect("the loop holds it");
                applied.advance(next.id.session, next.id.sequence);
                ordered.next.push(next);
            }
        }
    }
    Ok(ordered)
}

/// Removes only requests that were numbered before, and fetches no missing ones. A mutant.
pub(super) fn unordered(applied: &mut Applied, arrived: Vec<Decided>) -> Ordered {
    let mut ordered = Ordered::default();
    for decided in arrived {
        let through = applied.through.entry(decided.id.session);
        let through = through.or_insert(Through::by_others(0));
        if decided.id.sequence > through.sequence {
            through.sequence = decided.id.sequence;
            ordered.next.push(decided);
        }
    }
    ordered
}

/// The first update that `decided` must wait for.
async fn missing(
    system: &mut TrackedStore,
    applied: &mut Applied,
    decided: &Decided,
    through: u64,
) -> Result<Option<UpdateId>> {
    if decided.id.sequence > through + 1 {
        return Ok(Some(UpdateId {
            sequence: through + 1,
            ..decided.id
        }));
    }
    for follows in decided.touched.iter().filter_map(|touched| touched.follows) {
        if follows.sequence > applied.through(system, follows.session).await?.sequence {
            return Ok(Some(follows));
        }
    }
    Ok(None)
}

/// The sessions with decided requests that are not numbered yet, and that planned requests must
/// follow.
pub(super) async fn sessions_to_apply_first(
    system: &mut TrackedStore,
    applied: &mut Applied,
    Direct { rows, decided, .. }: &Direct<'_>,
) -> Result<BTreeSet<SessionId>> {
    let mut sessions = BTreeSet::new();
    let is_own = |session| rows.iter().any(|own| own.row.session == session);
    let touched = decided.iter().flat_map(|decided| &decided.touched);
    let others = touched.filter_map(|touched| touched.follows);
    let others = others.filter(|follows| follows.sequence > 0);
    let own = rows.iter().map(|RowDecision { row, .. }| UpdateId {
        session: row.session,
        sequence: row.sequence,
    });
    for follows in own {
        if follows.sequence > applied.through(system, follows.session).await?.sequence {
            sessions.insert(follows.session);
        }
    }
    for follows in others {
        let through = applied.through(system, follows.session).await?;
        if follows.sequence > through.sequence && !is_own(follows.session) {
            sessions.insert(follows.session);
        }
    }
    Ok(sessions)
}

/// Fetches a decided request that the queue has not delivered. Its writer may have died before
/// installing it. A request that is no longer in its outbox was numbered by another distributor.
async fn fetch(system: &mut TrackedStore, id: UpdateId) -> Result<Decided, Stopped> {
    let row = session::get(system, id.session).await?;
    let row = row.ok_or(Stopped::Overtaken)?;
    let decided = row.decided(id.sequence)?.ok_or(Stopped::Overtaken)?;
    install(system, &row.decided_under(decided.holder())?).await?;
    Ok(decided)
}
