//! Session rows as the writers of one process left them.
//!
//! A writer takes a session over by raising the fence in its row, which costs an update of the row
//! before each decision. If this process wrote the row last, its own fence still holds, so the next
//! invocation decides under the same one. The conditions of its decision find out whether another
//! connection, writer or heartbeat has changed the row meanwhile.
//!
//! Invariants
//! - An invocation takes the row out, and puts it back only if its work on the session succeeded. So after the
//!   death or the failure of a writer, the next one raises the fence. So does the next writer of a
//!   session that the bounded cache has forgotten.
//! - A row serves only requests that are decided alike whether it is outdated or not: those of its
//!   attach, of an open session ([`Broken::TrustsOutdatedRows`]). It serves no second delivery,
//!   because that must see the present outbox.

use std::sync::{Mutex, MutexGuard};

use ports::DurabilityPoint;

use super::Received;
use crate::{
    broken::Broken,
    environment::Environment,
    model::SessionId,
    records::Operation,
    storage::{
        recent::Recent,
        session::{Row, State},
    },
};

/// The most bytes of rows that are kept.
const BYTES_MAX: u64 = 8 << 20;

/// The length of a row and its item on the heap, in bytes.
const ROW_BYTES: usize = 1 << 10;

/// A row, and the point up to which the store was observed when it was left.
pub(super) type KeptRow = (Row, DurabilityPoint);

#[derive(Debug)]
pub(super) struct OwnRows(Mutex<Recent<SessionId, KeptRow>>);

impl OwnRows {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Recent::new(BYTES_MAX, |_, _| ROW_BYTES)))
    }

    /// The row of `session`, if it serves `received`. The store is still in the incarnation in
    /// which the row was left.
    pub(super) fn take(
        &self,
        env: &Environment,
        session: SessionId,
        received: &[Received],
    ) -> Option<KeptRow> {
        let (row, point) = self.rows().remove(&session)?;
        let is_lost = env.parts.system.point().incarnation != point.incarnation;
        let serves_all = received.iter().all(|received| serves(&row, received));
        (!is_lost && (serves_all || env.breaks(Broken::TrustsOutdatedRows))).then_some((row, point))
    }

    /// Keeps a row that this process's writer leaves, if nothing of it is unfinished.
    pub(super) fn keep(&self, row: Row, point: DurabilityPoint) {
        if row.state == State::Open && row.outbox().is_empty() {
            let session = row.session;
            self.rows().set(&session, Some((row, point)));
        }
    }

    fn rows(&self) -> MutexGuard<'_, Recent<SessionId, KeptRow>> {
        self.0.lock().expect("no panic while it is locked")
    }
}

/// Whether `row` may decide a request although it may be outdated. A request of another attach, or
/// the end of a session, follows a change of the row by others.
fn serves(
    row: &Row,
    Received {
        attempt, submitted, ..
    }: &Received,
) -> bool {
    let is_end = matches!(
        submitted.operation,
        Operation::Close | Operation::Expire | Operation::RemoveExpired { .. }
    );
    *attempt == 1 && submitted.attach == row.attach && !is_end
}
