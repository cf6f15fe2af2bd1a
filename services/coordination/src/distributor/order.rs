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
    through: BTreeMap<SessionId, u64>,
}

impl Applied {
    /// The last sequence numbered of `session`.
    async fn through(&mut self, sessions: &Sessions, session: SessionId) -> Result<u64> {
        if let Some(through) = self.through.get(&session) {
            return Ok(*through);
        }
        match sessions.get(session).await? {
            Some(row) => {
                self.through.insert(session, row.applied);
                Ok(row.applied)
            }
            None => Ok(u64::MAX),
        }
    }

    /// Notes that `session` is numbered up to `sequence`.
    pub(super) fn advance(&mut self, session: SessionId, sequence: u64) {
        self.through.insert(session, sequence);
    }

    /// Forgets a session whose row is gone.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.through.remove(&session);
    }
}

/// `arrived`, without what is numbered already, behind whatever it has to follow.
pub(super) async fn ordered(
    sessions: &Sessions,
    nodes: &Nodes,
    applied: &mut Applied,
    arrived: Vec<Decided>,
) -> Result<Vec<Decided>> {
    let mut ordered = Vec::with_capacity(arrived.len());
    for decided in arrived {
        let mut waiting = vec![decided];
        while let Some(top) = waiting.last() {
            let through = applied.through(sessions, top.id.session).await?;
            if top.id.sequence <= through {
                waiting.pop();
                continue;
            }
            match missing(sessions, applied, top, through).await? {
                Some(missing) => waiting.push(fetch(sessions, nodes, missing).await?),
                None => {
                    let next = waiting.pop().expect("the loop holds it");
                    applied.advance(next.id.session, next.id.sequence);
                    ordered.push(next);
                }
            }
        }
    }
    Ok(ordered)
}

/// `arrived`, without what was numbered before; what is missing is not looked for. A broken variant.
pub(super) fn unordered(applied: &mut Applied, arrived: Vec<Decided>) -> Vec<Decided> {
    let mut is_new = |decided: &Decided| {
        let through = applied.through.entry(decided.id.session).or_default();
        let is_new = decided.id.sequence > *through;
        *through = decided.id.sequence.max(*through);
        is_new
    };
    arrived.into_iter().filter(|decided| is_new(decided)).collect()
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
        if follows.sequence > applied.through(sessions, follows.session).await? {
            return Ok(Some(follows));
        }
    }
    Ok(None)
}

/// A decided request that the queue has not brought. Its writer may have died before installing it.
async fn fetch(sessions: &Sessions, nodes: &Nodes, id: UpdateId) -> Result<Decided> {
    let row = sessions.get(id.session).await?;
    let decided = match &row {
        Some(row) => row.decided(id.sequence)?,
        None => None,
    };
    let decided = decided.ok_or_else(|| Error::corrupt(format!("find {id:?}, which others follow, in its outbox")))?;
    writer::install(nodes, &decided).await?;
    Ok(decided)
}
