//! The deployment watcher: puts deployments of other processes in place, and those that could not
//! be put in place before.

use std::{sync::Arc, time::Duration};

use ports::LogThrottle;

use super::deployer::Deployer;

/// How often the watcher reads the rows.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Watches the rows for as long as it runs. A process that shares its store with none, and has
/// everything in place, reads nothing.
pub(crate) async fn watch(deployer: Deployer) {
    let context = Arc::clone(&deployer.context);
    let clock = &context.parts.clock;
    let mut outage = LogThrottle::default();
    let mut tidied = clock.monotonic();
    loop {
        clock.sleep(POLL_INTERVAL).await;
        if !context.parts.among_others && context.lookup.pending.is_empty() {
            continue;
        }
        match deployer.catch_up(&mut tidied).await {
            Ok(()) => {
                if let Some(lasted) = outage.ended(clock.monotonic()) {
                    tracing::info!(?lasted, "deployments are followed again");
                }
            }
            Err(error) => {
                if let Some(lasts) = outage.failed(clock.monotonic(), &error.to_string()) {
                    tracing::warn!(%error, ?lasts, "deployments cannot be followed");
                }
            }
        }
    }
}
