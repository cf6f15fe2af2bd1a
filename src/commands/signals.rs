//! The signals that ask a command to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, and Ctrl-C.
#[derive(Debug)]
pub(crate) struct Stop([Signal; 2]);

impl Stop {
    pub(crate) fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self([signal(terminate)?, signal(interrupt)?]))
    }

    /// Returns when the next signal arrives.
    pub(crate) async fn asked(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            biased;
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
    }
}
