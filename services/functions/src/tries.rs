//! What is tried again for a moment, as something would be lost that nobody does again: what a store refuses or does not answer it may
//! take a tenth of a second later.

use std::{future::Future, time::Duration};

use ports::{Clock, Result};

/// How often something is tried, and how long it is waited in between.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// What `attempt` comes to, which may have been made before without an answer.
///
/// Errors: its last one, after [`TRIES`] of them, or one that another attempt cannot help.
pub(crate) async fn several<T, F>(clock: &dyn Clock, attempt: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut left = TRIES;
    loop {
        left -= 1;
        match attempt().await {
            Err(error) if error.is_retryable() && left > 0 => clock.sleep(PAUSE).await,
            done => return done,
        }
    }
}
