//! Bounds the log lines that peers cause whose bytes make no sense.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How often at most such a peer is logged. The next line says how many were not.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// The time of the last line, and how many were left out since.
#[derive(Debug, Default)]
pub(crate) struct StrangerLog(Mutex<(Option<Instant>, u64)>);

impl StrangerLog {
    pub(crate) fn closed(&self, peer: SocketAddr, why: &dyn fmt::Display) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (logged, suppressed) = &mut *state;
        let now = Instant::now();
        if logged.is_some_and(|logged| now < logged + LOG_EVERY) {
            *suppressed += 1;
            return;
        }
        *logged = Some(now);
        let suppressed = std::mem::take(suppressed);
        tracing::warn!(%peer, suppressed, "http: connection closed: {why}");
    }
}
