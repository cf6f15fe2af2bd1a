//! A function for measurements: speaks the Lambda Runtime API over one connection, and does what
//! its event says.
//!
//! The event is `{"bytes": N, "pause_ms": N}`, both optional. The function waits for `pause_ms`, as
//! if it computed, and writes `bytes` bytes under a key of its own. `PAUSE_MS` in its environment
//! overrides the event's `pause_ms`. The function returns its event.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{env, thread, time::Duration};

use anyhow::{Context as _, Result};
use benches::connection::Connection;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    bytes: usize,
    pause_ms: u64,
}

fn main() -> Result<()> {
    let host = env::var("AWS_LAMBDA_RUNTIME_API")
        .context("AWS_LAMBDA_RUNTIME_API says where the Runtime API is")?;
    let pause_ms = env::var("PAUSE_MS")
        .ok()
        .and_then(|pause| pause.parse().ok());
    let mut connection = Connection::open(host)?;
    loop {
        let next = connection.ask("GET", "/2018-06-01/runtime/invocation/next", b"")?;
        let event: Event = serde_json::from_slice(&next.body).unwrap_or_default();
        let pause = Duration::from_millis(pause_ms.unwrap_or(event.pause_ms));
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        if event.bytes > 0 {
            let path = format!("/v1/state/bench-{}", next.id);
            connection.ask("PUT", &path, &vec![b'x'; event.bytes])?;
        }
        let path = format!("/2018-06-01/runtime/invocation/{}/response", next.id);
        connection.ask("POST", &path, &next.body)?;
    }
}
