//! All limits, with their defaults and their effects.

use std::time::Duration;

use primitives::Mutant;

use crate::broken::Broken;

/// The service's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most active runs; a further begin is refused.
    pub runs_max: usize,
    /// The most bytes that one attempt of a step writes and sends; more are refused.
    pub step_bytes_max: usize,
    /// The most keys that one attempt writes; more are refused.
    pub step_keys_max: usize,
    /// How long a run is kept after its end.
    pub finished_for: Duration,
    /// The most ended runs of one workflow that are kept; the oldest are forgotten.
    pub finished_max: usize,
    /// The wait before a step is retried, unless the step sets its own. It doubles with each retry.
    pub backoff: Duration,
    /// The longest wait before a retry.
    pub backoff_max: Duration,
    /// Whether other processes serve workflows over the same store. They may execute runs of a far
    /// store.
    pub among_others: bool,
    /// A rule that is broken, in tests.
    #[doc(hidden)]
    pub mutant: Mutant<Broken>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            runs_max: 10_000,
            step_bytes_max: 16 << 20,
            step_keys_max: 1_000,
            finished_for: Duration::from_hours(7 * 24),
            finished_max: 100_000,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            among_others: false,
            mutant: Mutant::NONE,
        }
    }
}
