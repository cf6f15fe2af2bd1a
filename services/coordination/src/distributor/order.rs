//! Step 1: which decided requests may be numbered now, and in which order.
//!
//! The queue delivers requests in the order of the pushes, which is almost the right order. But two
//! writers may push concurrently, and a writer may die before it pushes. Each request carries its
//! sequence number in its session and the update that it follows on each znode. These ids show
//! which request is missing, and its session's outbox contains it (rule C-3).

use std::collections::BTreeMap;

use ports::Result;

use super::Stopped;
use crate::{
    broken::Broken,
    dependency::Dependency,
    model::SessionId,
    records::{Decided, UpdateId},
    storage::{node::Nodes, session::Sessions},
    writer,
};

/// The last numbered request of each session. Sessions that have ended count as completely
/// numbered.
#[derive(Debug, Default)]
pub(super) struct Applied {
    through: BTreeMap<SessionId, Through>,
}

/// How far one session is numbered.
#[derive(Debug, Clone, Copy)]
struct Through {
    /// The last numbered sequence.
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
    /// How far `session` is numbered.
    async fn through(
        &mut self,
        sessions: &Sessions,
        session: SessionId,
        dependency: &mut Dependency,
    ) -> Result<Through> {
        if let Some(through) = self.through.get(&session) {
            return Ok(*through);
        }
        match sessions.get(session, dependency).await? {
            Some(row) => {
                self.through
                    .insert(session, Through::by_others(row.applied));
                Ok(Through::by_others(row.applied))
            }
            None => Ok(Through::by_others(u64::MAX)),
        }
    }

    /// Whether this instance numbered `id`.
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

    /// Forgets a session whose row is removed.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.through.remove(&session);
    }
}

/// The arrived requests, sorted by their progress.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// The requests to number now, in order.
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
/// incarnation of the store, and pushed before the observation in `dependency`, is decided and
/// installed. For the others, the session's row decides. A queue keeps pushed messages even if
/// their decision is lost, and the session's next request then gets the same id. Or the decision
/// survives without its installation; then it is installed here, because it must not leave its
/// outbox before that (rule C-3).
pub(super) async fn without_lost(
    sessions: &Sessions,
    nodes: &Nodes,
    arrived: Vec<Decided>,
    dependency: &mut Dependency,
) -> Result<Arrived> {
    let incarnation = dependency.incarnation();
    let mut remaining = Arrived::default();
    for decided in arrived {
        if decided.incarnation == incarnation {
            remaining.decided.push(decided);
            continue;
        }
        match sessions.get(decided.id.session, dependency).await? {
            Some(row) if decided.id.sequence > row.applied => {
                if let Some(decided) = row.decided(decided.id.sequence)? {
                    writer::install(nodes, &row.decided_under(decided.holder())?, dependency)
                        .await?;
                    remaining.decided.push(decided);
                }
            }
            _ if nodes.mutant.breaks(Broken::ChecksObjectsOfLostDecisions) => {
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
    sessions: &Sessions,
    nodes: &Nodes,
    applied: &mut Applied,
    arrived: Arrived,
    dependency: &mut Dependency,
) -> Result<Ordered, Stopped> {
    let has_foreign = arrived.numbered.iter().any(|id| !applied.is_own(*id));
    let mut ordered = Ordered {
        has_foreign,
        ..Ordered::default()
    };
    for decided in arrived.decided {
        let mut waiting = vec![decided];
        while let Some(top) = waiting.last() {
            let through = applied
                .through(sessions, top.id.session, dependency)
                .await?;
            if top.id.sequence <= through.sequence {
                let known = waiting.pop().expect("the loop holds it");
                ordered.has_foreign |= known.id.sequence <= through.by_others;
                ordered.known.push(known);
                continue;
            }
            if let Some(missing) =
                missing(sessions, applied, top, through.sequence, dependency).await?
            {
                waiting.push(fetch(sessions, nodes, missing, dependency).await?);
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
    let mut is_new = |decided: &Decided| {
        let through = applied
            .through
            .entry(decided.id.session)
            .or_insert(Through::by_others(0));
        let is_new = decided.id.sequence > through.sequence;
        through.sequence = decided.id.sequence.max(through.sequence);
        is_new
    };
    Ordered {
        next: arrived
            .into_iter()
            .filter(|decided| is_new(decided))
            .collect(),
        ..Ordered::default()
    }
}

/// The first update that `decided` must wait for.
async fn missing(
    sessions: &Sessions,
    applied: &mut Applied,
    decided: &Decided,
    through: u64,
    dependency: &mut Dependency,
) -> Result<Option<UpdateId>> {
    if decided.id.sequence > through + 1 {
        return Ok(Some(UpdateId {
            sequence: through + 1,
            ..decided.id
        }));
    }
    for follows in decided.touched.iter().filter_map(|touched| touched.follows) {
        if follows.sequence
            > applied
                .through(sessions, follows.session, dependency)
                .await?
                .sequence
        {
            return Ok(Some(follows));
        }
    }
    Ok(None)
}

/// Fetches a decided request that the queue has not delivered. Its writer may have died before
/// installing it. A request that is no longer in its outbox was numbered by another distributor.
async fn fetch(
    sessions: &Sessions,
    nodes: &Nodes,
    id: UpdateId,
    dependency: &mut Dependency,
) -> Result<Decided, Stopped> {
    let row = sessions
        .get(id.session, dependency)
        .await?
        .ok_or(Stopped::Overtaken)?;
    let decided = row.decided(id.sequence)?.ok_or(Stopped::Overtaken)?;
    writer::install(nodes, &row.decided_under(decided.holder())?, dependency).await?;
    Ok(decided)
}
