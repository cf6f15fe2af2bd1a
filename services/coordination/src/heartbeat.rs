//! The heartbeat: ends sessions that nobody renews, and itself when there are none.
//!
//! A scheduled function, armed by every connect and disarmed by itself alone (rule C-6): it finds no row,
//! disarms, and looks again, so that a session which counted itself in between arms it anew or is found.
//! Each run compares every row's renewal count with what it saw before. Silence counts only as far as the
//! heartbeat was there to witness it: after a stall of its own, or a cold start, sessions get their time.
//!
//! From FaaSKeeper, section 4.6. There the function asks each client whether it lives; here clients renew a
//! lease, because many have no address to be asked at.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{Clock, Event, Functions, Handler, Monotonic, Queue, Result, functions::Failure, queue::Message};

use crate::{
    broken::Broken,
    config::Config,
    model::SessionId,
    names,
    records::{Operation, Submitted, encode},
    session::{Moved, Row, SHARD_COUNT, Sessions, State},
};

/// Heartbeats per shortest session timeout.
const BEATS_PER_TIMEOUT_MIN: u32 = 4;

/// How often the heartbeat runs while there are sessions.
pub fn period(config: &Config) -> Duration {
    config.session_timeout_min / BEATS_PER_TIMEOUT_MIN
}

/// The heartbeat function.
#[derive(Debug)]
pub struct Heartbeat {
    sessions: Sessions,
    queue: Arc<dyn Queue>,
    functions: Arc<dyn Functions>,
    clock: Arc<dyn Clock>,
    period: Duration,
    /// A broken variant: the first silence it sees is the end.
    is_rash: bool,
    witnessed: Mutex<Witnessed>,
}

/// What a warm instance has seen; lost with it, which only prolongs lives.
#[derive(Debug, Default)]
struct Witnessed {
    last_run: Option<Monotonic>,
    silent: BTreeMap<SessionId, Silence>,
}

#[derive(Debug, Clone, Copy)]
struct Silence {
    renewals: i64,
    lasted: Duration,
}

impl Heartbeat {
    /// A heartbeat over `sessions`.
    pub fn new(
        sessions: Sessions,
        queue: Arc<dyn Queue>,
        functions: Arc<dyn Functions>,
        clock: Arc<dyn Clock>,
        config: &Config,
    ) -> Self {
        let is_rash = config.broken == Some(Broken::ExpiresAtFirstSilence);
        Self {
            sessions,
            queue,
            functions,
            clock,
            period: period(config),
            is_rash,
            witnessed: Mutex::default(),
        }
    }

    /// One run: judges every session; disarms if there is none.
    pub async fn beat(&self) -> Result<()> {
        if self.judge_all().await? > 0 {
            return Ok(());
        }
        self.functions.disarm_timer(names::HEARTBEAT).await?;
        if self.any_session().await? {
            self.functions.arm_timer(names::HEARTBEAT, self.period).await?;
        }
        Ok(())
    }

    /// Whether there is any session at all.
    pub async fn any_session(&self) -> Result<bool> {
        for shard in 0..SHARD_COUNT {
            if !self.sessions.page(shard, Bytes::new()).await?.0.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Judges every session and returns how many there are.
    async fn judge_all(&self) -> Result<usize> {
        let since_last = self.since_last_run();
        let mut seen = BTreeMap::new();
        for shard in 0..SHARD_COUNT {
            let mut from = Some(Bytes::new());
            while let Some(start) = from {
                let (rows, next) = self.sessions.page(shard, start).await?;
                for (session, row) in rows {
                    let mut silence = self.silence(session, &row, since_last);
                    if self.is_over(session, &row, silence).await? {
                        self.end(session, &row).await?;
                        silence.lasted = Duration::ZERO;
                    }
                    seen.insert(session, silence);
                }
                from = next;
            }
        }
        let count = seen.len();
        self.witnessed.lock().expect("no panic while it is held").silent = seen;
        Ok(count)
    }

    /// How much time this run may count: no more than two periods, however long the heartbeat itself stalled.
    fn since_last_run(&self) -> Duration {
        let now = self.clock.monotonic();
        let mut witnessed = self.witnessed.lock().expect("no panic while it is held");
        let last = witnessed.last_run.replace(now);
        last.map_or(Duration::ZERO, |last| now.since(last)).min(self.period * 2)
    }

    fn silence(&self, session: SessionId, row: &Row, since_last: Duration) -> Silence {
        let witnessed = self.witnessed.lock().expect("no panic while it is held");
        match witnessed.silent.get(&session) {
            Some(before) if before.renewals == row.renewals => {
                Silence { lasted: before.lasted + since_last, ..*before }
            }
            _ => Silence { renewals: row.renewals, lasted: Duration::ZERO },
        }
    }

    /// Whether the end of a session has to be asked for: it is condemned now, or was a whole timeout ago and
    /// whoever condemned it has died before it said so.
    async fn is_over(&self, session: SessionId, row: &Row, silence: Silence) -> Result<bool> {
        let is_silent = silence.lasted > row.timeout || self.is_rash && silence.lasted > Duration::ZERO;
        match row.state {
            State::Open if is_silent => {
                Ok(matches!(self.sessions.condemn(session, silence.renewals).await?, Moved::Done(_)))
            }
            State::Closing => Ok(is_silent),
            State::Open | State::Closed => Ok(false),
        }
    }

    async fn end(&self, session: SessionId, row: &Row) -> Result<()> {
        tracing::info!(?session, "expires");
        let submitted = Submitted { session, attach: row.attach, request: 0, operation: Operation::Expire };
        let group = names::request_group(session);
        let message = Message { group, deduplication: None, body: encode(&submitted) };
        self.queue.send(names::REQUEST_QUEUE, vec![message]).await.map(|_| ())
    }
}

#[async_trait]
impl Handler for Heartbeat {
    async fn handle(&self, _event: Event) -> Result<Bytes, Failure> {
        self.beat().await?;
        Ok(Bytes::new())
    }
}
