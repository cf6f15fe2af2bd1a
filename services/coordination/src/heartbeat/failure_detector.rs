//! The judge: whose silence has lasted, whose end has to be asked for.
//!
//! Clients' sessions are judged by the heartbeat, those of processes by each other ([`crate::member`]); the rules are the
//! same. Silence is what the judge has witnessed itself ([`crate::heartbeat::last_heartbeat`]), and a session is condemned only if nobody
//! has renewed it since (rule C-6). Whoever speaks for a client's session hears it for up to a renewal period before it
//! renews, and may have died in between: so long the session gets besides its timeout, unless it was said that its client was
//! not heard any more. A member's session dies with its process, and gets nothing besides.
//!
//! An end that is decided and not applied for a whole timeout is asked for again, so that its writer pushes it again: no
//! request and no other end comes after it, and the message that told of it may be lost.

use std::{sync::Arc, time::Duration};

use ports::{Clock, ErrorKind, Queue, Result, queue::Message};

use crate::{
    broken::Broken,
    dependency::Basis,
    heartbeat::last_heartbeat::{Moment, Notes},
    model::SessionId,
    queue_names,
    records::{Operation, Submitted, encode},
    storage::session::{Moved, RENEWALS_PER_TIMEOUT, Row, Sessions, State},
};

/// Judges sessions.
#[derive(Debug, Clone)]
pub(crate) struct Judge {
    pub(crate) sessions: Sessions,
    /// To the writer.
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) broken: Option<Broken>,
}

impl Judge {
    /// Judges every session of a shard by what was seen `before`, and notes what is seen now. Says which there are.
    pub(crate) async fn judge(
        &self,
        shard: u8,
        before: &Notes,
        notes: &mut Notes,
        basis: &mut Basis,
    ) -> Result<Vec<(SessionId, Row)>> {
        let mut judged = Vec::new();
        let mut pages = self.sessions.rows(shard);
        while let Some(rows) = pages.next_page(basis).await? {
            let seen_at = self.moment();
            for (session, row) in &rows {
                let silence = before.silence(*session, row.renewals, notes, seen_at);
                let is_over = match self.is_over(*session, row, silence, basis).await {
                    // Nor may its client have been able to resume it: it gets its time again.
                    Err(error) if error.kind() == ErrorKind::NoRoom => {
                        notes.begin_anew(*session, self.moment());
                        false
                    }
                    judged => judged?,
                };
                if is_over {
                    self.end(*session, row).await?;
                    notes.begin_anew(*session, self.moment());
                }
            }
            judged.extend(rows);
        }
        Ok(judged)
    }

    /// Whether the end of a session has to be asked for: it is condemned now, or was a whole timeout ago and
    /// whoever condemned it has died before it said so; or its end is decided, and the store has lost the message that
    /// would have had it applied.
    async fn is_over(
        &self,
        session: SessionId,
        row: &Row,
        silence: Duration,
        basis: &mut Basis,
    ) -> Result<bool> {
        let is_rash = self.broken == Some(Broken::ExpiresAtFirstSilence);
        let is_silent =
            silence > self.silence_max(session, row) || is_rash && silence > Duration::ZERO;
        match row.state {
            State::Open if is_silent => {
                let mut condemned = self.sessions.condemn(session, row.renewals, basis).await?;
                if let Moved::Refused(Some(row)) = &condemned
                    && self.broken == Some(Broken::CondemnsTheRenewed)
                {
                    condemned = self.sessions.condemn(session, row.renewals, basis).await?;
                }
                Ok(matches!(condemned, Moved::Done(_)))
            }
            State::Closed if self.broken == Some(Broken::PushesEndsOnce) => Ok(false),
            State::Closing | State::Closed => Ok(is_silent),
            State::Open => Ok(false),
        }
    }

    /// How long a session may be silent.
    fn silence_max(&self, session: SessionId, row: &Row) -> Duration {
        let is_exact = session.is_members() || row.state != State::Open;
        if is_exact || self.broken == Some(Broken::TakesRowsForExact) {
            return row.timeout;
        }
        match row.silent_before {
            Some(before) => row.timeout.saturating_sub(before),
            None => row.timeout + row.timeout / RENEWALS_PER_TIMEOUT,
        }
    }

    async fn end(&self, session: SessionId, row: &Row) -> Result<()> {
        tracing::info!(?session, "expires");
        let submitted = Submitted {
            session,
            attach: row.attach,
            request: 0,
            operation: Operation::Expire,
        };
        let group = queue_names::request_group(session);
        let message = Message {
            group,
            deduplication: None,
            body: encode(&submitted),
        };
        self.queue
            .send(queue_names::REQUEST_QUEUE, vec![message])
            .await
            .map(|_| ())
    }

    /// Now, by both clocks.
    pub(crate) fn moment(&self) -> Moment {
        let clock = &self.clock;
        Moment {
            own_ms: clock.monotonic().0.as_millis() as i64,
            wall_ms: clock.now().0 as i64,
        }
    }
}
