//! Binds the addresses of the front ends.
//!
//! An address may be in use for a moment after its server was killed. A child of that server has a
//! copy of the listener until it executes its program. So a start tries again for a while.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use tokio::time::{Instant, sleep};

/// How long a start waits for an address that is in use.
const BIND_MAX: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const BIND_AGAIN: Duration = Duration::from_millis(50);

/// A bound listener. Errors: the address of `flag` cannot be bound.
pub(crate) async fn bound<T, F>(
    flag: &str,
    address: SocketAddr,
    bind: impl Fn() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let began = Instant::now();
    let mut is_waiting = false;
    loop {
        match bind().await {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < BIND_MAX =>
            {
                if !std::mem::replace(&mut is_waiting, true) {
                    tracing::info!("{flag} {address}: it is in use; trying for {BIND_MAX:?}");
                }
                sleep(BIND_AGAIN).await;
            }
            bound => return bound.with_context(|| no_listener(flag, address)),
        }
    }
}

fn no_listener(flag: &str, address: SocketAddr) -> String {
    format!(
        "{flag} {address}: it cannot listen there; give another address, or stop what uses this one"
    )
}
