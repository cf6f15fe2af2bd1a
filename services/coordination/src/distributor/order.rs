//! Step 1: which decided requests may be numbered now, and in which order.
//!
//! The queue brings them in the order they were pushed, which is almost the right one. Two writers may push
//! across each other, and one may die before it pushes at all; the names that each request carries (its
//! place in its session, and the update it follows on each znode) say what is missing, and the outbox of
//! the session so named has it (rule C-3).

use std::collections::BTreeMap;

use ports::Result;

use super::Stopped;
use crate::{
    broken::Broken,
    dependency::Basis,
    model::SessionId,
    records::{Decided, UpdateId},
    storage::{node::Nodes, session::Sessions},
    writer,
};

/// How far each session is numbered. Sessions that have ended count as numbered for ever.
#[derive(Debug, Default)]
pub(super) struct Applied {
    through: BTreeMap<SessionId, Through>,
}

/// How far one session is numbered.
#[derive(Debug, Clone, Copy)]
struct Through {
    /// The last sequence numbered.
    sequence: u64,
    /// Up to here by others: this instance does not know whether they came to tell of it.
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
        basis: &mut Basis,
    ) -> Result<Through> {
        if let Some(through) = self.through.get(&session) {
            return Ok(*through);
        }
        match sessions.get(session, basis).await? {
            Some(row) => {
                self.through
                    .insert(session, Through::by_others(row.applied));
                Ok(Through::by_others(row.applied))
            }
            None => Ok(Through::by_others(u64::MAX)),
        }
    }

    /// Whether this instance has numbered `id`.
    fn is_own(&self, id: UpdateId) -> bool {
        let through = self.through.get(&id.session);
        through.is_some_and(|through| {
            through.by_others < id.sequence && id.sequence <= through.sequence
        })
    }

    /// Notes that `session` is numbered up to `sequence` by this instance.
    pub(super) fn advance(&mut self, session: SessionId, sequence: u64) {
        let through = self.through.entry(session).or_insert(Through {
            sequence,
            by_others: 0,
        });
        through.sequence = sequence;
    }

    /// Forgets a session whose row is gone.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.through.remove(&session);
    }
}

/// What became of the requests that arrived.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// Those to number now, in order.
    pub(super) next: Vec<Decided>,
    /// Those that are numbered, as they were decided.
    pub(super) known: Vec<Decided>,
    /// Whether another instance has numbered some of these.
    pub(super) has_foreign: bool,
}

/// Of the requests that arrived, what the store has not lost.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// As they were decided.
    pub(super) decided: Vec<Decided>,
    /// Those of an earlier start of the store that are numbered: under their names others may have been decided, and what
    /// their messages say beside the name is hearsay.
    pub(super) numbered: Vec<UpdateId>,
}

/// `arrived`, without what the store has lost. What was planned in this start of the store, and pushed before `basis`
/// looked, is decided and installed in it. Of the rest the rows say what became of it: a queue takes what its writer
/// pushed also where the decision is lost, and its session's next request is decided under the same name; or where the
/// decision is there and its installation lost, without which it must not leave its outbox (rule C-3).
pub(super) async fn still_decided(
    sessions: &Sessions,
    nodes: &Nodes,
    arrived: Vec<Decided>,
    basis: &mut Basis,
) -> Result<Arrived> {
    let incarnation = basis.incarnation();
    let mut standing = Arrived::default();
    for decided in arrived {
        if decided.incarnation == incarnation {
            standing.decided.push(decided);
            continue;
        }
        match sessions.get(decided.id.session, basis).await? {
            Some(row) if decided.id.sequence > row.applied => {
                if let Some(decided) = row.decided(decided.id.sequence)? {
                    writer::install(nodes, &row.decided_under(decided.holder())?, basis).await?;
                    standing.decided.push(decided);
                }
            }
            _ if nodes.broken() == Some(Broken::LooksForObjectsOfTheLost) => {
                standing.decided.push(decided);
            }
            _ => standing.numbered.push(decided.id),
        }
    }
    Ok(standing)
}

/// `arrived`, without what is numbered already, behind whatever it has to follow.
pub(super) async fn ordered(
    sessions: &Sessions,
    nodes: &Nodes,
    applied: &mut Applied,
    arrived: Arrived,
    basis: &mut Basis,
) -> Result<Ordered, Stopped> {
    let has_foreign = arrived.numbered.iter().any(|id| !applied.is_own(*id));
    let mut ordered = Ordered {
        has_foreign,
        ..Ordered::default()
    };
    for decided in arrived.decided {
        let mut waiting = vec![decided];
        while let Some(top) = waiting.last() {
            let through = applied.through(sessions, top.id.session, basis).await?;
            if top.id.sequence <= through.sequence {
                let known = waiting.pop().expect("the loop holds it");
                ordered.has_foreign |= known.id.sequence <= through.by_others;
                ordered.known.push(known);
                continue;
            }
            if let Some(missing) = missing(sessions, applied, top, through.sequence, basis).await? {
                waiting.push(fetch(sessions, nodes, missing, basis).await?);
            } else {
                let next = waiting.pop().expect("the loop holds it");
                applied.advance(next.id.session, next.id.sequence);
                ordered.next.push(next);
            }
        }
    }
    Ok(ordered)
}

/// `arrived`, without what was numbered before; what is missing is not looked for. A broken variant.
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

/// The first update that `decided` has to wait for.
async fn missing(
    sessions: &Sessions,
    applied: &mut Applied,
    decided: &Decided,
    through: u64,
    basis: &mut Basis,
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
                .through(sessions, follows.session, basis)
                .await?
                .sequence
        {
            return Ok(Some(follows));
        }
    }
    Ok(None)
}

/// A decided request that the queue has not brought. Its writer may have died before installing it.
/// What is in no outbox any more was numbered by another distributor.
async fn fetch(
    sessions: &Sessions,
    nodes: &Nodes,
    id: UpdateId,
    basis: &mut Basis,
) -> Result<Decided, Stopped> {
    let row = sessions
        .get(id.session, basis)
        .await?
        .ok_or(Stopped::Overtaken)?;
    let decided = row.decided(id.sequence)?.ok_or(Stopped::Overtaken)?;
    writer::install(nodes, &row.decided_under(decided.holder())?, basis).await?;
    Ok(decided)
}
