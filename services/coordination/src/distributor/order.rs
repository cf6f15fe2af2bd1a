//! Step 1: which decided requests may be numbered now, and in which order.
//!
//! The queue brings them in the order they were pushed, which is almost the right one. Two writers may push
//! across each other, and one may die before it pushes at all; the names that each request carries (its
//! place in its session, and the update it follows on each znode) say what is missing, and the outbox of
//! the session so named has it (rule C-3).

use std::collections::BTreeMap;

use ports::{Error, Result};

use crate::{
    model::SessionId,
    node::Nodes,
    records::{Decided, UpdateId},
    session::Sessions,
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
        Self { sequence, by_others: sequence }
    }
}

impl Applied {
    /// How far `session` is numbered.
    async fn through(&mut self, sessions: &Sessions, session: SessionId) -> Result<Through> {
        if let Some(through) = self.through.get(&session) {
            return Ok(*through);
        }
        match sessions.get(session).await? {
            Some(row) => {
                self.through.insert(session, Through::by_others(row.applied));
                Ok(Through::by_others(row.applied))
            }
            None => Ok(Through::by_others(u64::MAX)),
        }
    }

    /// Notes that `session` is numbered up to `sequence` by this instance.
    pub(super) fn advance(&mut self, session: SessionId, sequence: u64) {
        let through = self.through.entry(session).or_insert(Through { sequence, by_others: 0 });
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
    /// Whether another instance has numbered some of the others.
    pub(super) has_foreign: bool,
}

/// `arrived`, without what is numbered already, behind whatever it has to follow.
pub(super) async fn ordered(
    sessions: &Sessions,
    nodes: &Nodes,
    applied: &mut Applied,
    arrived: Vec<Decided>,
) -> Result<Ordered> {
    let mut ordered = Ordered::default();
    for decided in arrived {
        let mut waiting = vec![decided];
        while let Some(top) = waiting.last() {
            let through = applied.through(sessions, top.id.session).await?;
            if top.id.sequence <= through.sequence {
                ordered.has_foreign |= top.id.sequence <= through.by_others;
                waiting.pop();
                continue;
            }
            if let Some(missing) = missing(sessions, applied, top, through.sequence).await? {
                waiting.push(fetch(sessions, nodes, missing).await?);
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
        let through = applied.through.entry(decided.id.session).or_insert(Through::by_others(0));
        let is_new = decided.id.sequence > through.sequence;
        through.sequence = decided.id.sequence.max(through.sequence);
        is_new
    };
    Ordered { next: arrived.into_iter().filter(|decided| is_new(decided)).collect(), has_foreign: false }
}

/// The first update that `decided` has to wait for.
async fn missing(
    sessions: &Sessions,
    applied: &mut Applied,
    decided: &Decided,
    through: u64,
) -> Result<Option<UpdateId>> {
    if decided.id.sequence > through + 1 {
        return Ok(Some(UpdateId { sequence: through + 1, ..decided.id }));
    }
    for follows in decided.touched.iter().filter_map(|touched| touched.follows) {
        if follows.sequence > applied.through(sessions, follows.session).await?.sequence {
            return Ok(Some(follows));
        }
    }
    Ok(None)
}

/// A decided request that the queue has not brought. Its writer may have died before installing it.
async fn fetch(sessions: &Sessions, nodes: &Nodes, id: UpdateId) -> Result<Decided> {
    let lost =
        || Error::unavailable(format!("find {id:?} in its outbox: another distributor has numbered it"));
    let row = sessions.get(id.session).await?.ok_or_else(lost)?;
    let decided = row.decided(id.sequence)?.ok_or_else(lost)?;
    writer::install(nodes, &row.decided_under(decided.holder())?).await?;
    Ok(decided)
}
