//! One process at a time serves the transactions of a shared store: they do not share the work of several nodes yet. The
//! others stand by.
//!
//! The lease is a timed lock in the store, renewed while the process runs. It is about service, not about safety: a
//! second process would take the first one's logs over, and neither would get anything done, but the fences of the
//! services keep what is stored right whoever runs. Who finds the lease renewed under him ends; who died leaves it
//! for [`HOLD`] and what clocks may differ by.
//!
//! A lease that is gone altogether tells that the store has lost everything, this process's services included: it
//! ends too, and the next start makes what is missing.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use ports::{Clock, Entropy, Key, KeyValue};
use primitives::{Acquired, DRIFT_MS_MAX, Held, TimedLock};
use tokio::sync::Mutex;

/// How long the lease holds after its last renewal, beyond what clocks may differ by.
const HOLD: Duration = Duration::from_secs(3);
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// How often a lease that somebody else has is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long giving it back may take: somebody else waits a little longer where it fails.
const GIVE_BACK_MAX: Duration = Duration::from_millis(500);

/// A lease that is held.
#[derive(Debug)]
pub(crate) struct Lease {
    lock: TimedLock,
    clock: Arc<dyn Clock>,
    owner: Bytes,
    held: Mutex<Held>,
}

/// How a lease was asked for in vain or not.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is ours.
    Ours(Lease),
    /// Whoever has it, and renews it.
    Others(String),
}

impl Lease {
    /// Takes the lease of the store. Whoever is gone has lost it when this returns.
    pub(crate) async fn take(
        items: Arc<dyn KeyValue>,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
    ) -> anyhow::Result<Turn> {
        let lock = TimedLock::new(items, HOLD.as_millis() as u64);
        let owner = Bytes::from(name(entropy));
        let started = clock.monotonic();
        let waits_max = HOLD + Duration::from_millis(DRIFT_MS_MAX) + RENEW;
        let mut renewed_before = None;
        loop {
            let acquired = lock.acquire(&key(), &owner, clock.now()).await;
            let holder = match acquired.context("take the lease of the store")? {
                Acquired::Held(held) => {
                    return Ok(Turn::Ours(Self { lock, clock, owner, held: Mutex::new(held) }));
                }
                Acquired::Busy(holder, _) => holder,
            };
            let is_renewed = renewed_before.as_ref().is_some_and(|before| *before != holder);
            if is_renewed || clock.monotonic().since(started) > waits_max {
                return Ok(Turn::Others(String::from_utf8_lossy(&holder.owner).into_owned()));
            }
            renewed_before = Some(holder);
            clock.sleep(LOOK_AGAIN).await;
        }
    }

    /// Renews the lease for as long as that is possible; says why it no longer is.
    pub(crate) async fn keep(&self) -> anyhow::Error {
        loop {
            self.clock.sleep(RENEW).await;
            match self.lock.acquire(&key(), &self.owner, self.clock.now()).await {
                Ok(Acquired::Held(held)) => {
                    let mut before = self.held.lock().await;
                    // Tokens grow: the first one again means that there was no lease, nor anything before it.
                    if held.token.0 == 1 {
                        return anyhow!(
                            "the store has lost everything, what it had acknowledged included: start again to go \
                             on with what is there"
                        );
                    }
                    *before = held;
                }
                Ok(Acquired::Busy(holder, _)) => {
                    let who = String::from_utf8_lossy(&holder.owner);
                    return anyhow!(
                        "{who} has taken the store over, because this process was not heard of for longer than its \
                         lease held"
                    );
                }
                // Nobody else can take it where nobody reaches the store.
                Err(error) => {
                    tracing::debug!(%error, "the lease of the store cannot be renewed at the moment");
                }
            }
        }
    }

    /// Lets the next process in.
    pub(crate) async fn give_back(&self) {
        let held = self.held.lock().await;
        let released = tokio::time::timeout(GIVE_BACK_MAX, self.lock.release(&held, Vec::new())).await;
        if !matches!(released, Ok(Ok(_))) {
            tracing::info!("the lease of the store could not be given back; it ends by itself in {HOLD:?}");
        }
    }
}

fn key() -> Key {
    Key::new("landfast/process", "lease")
}

/// Who takes it, for whoever finds it taken.
fn name(entropy: &dyn Entropy) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("process {} on {} ({:08x})", std::process::id(), host.trim(), entropy.next_u64() as u32)
}
