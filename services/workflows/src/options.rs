//! Every limit, with its default, and what happens at it.

use std::time::Duration;

use crate::broken::Broken;

/// The service's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most runs under way; the next is refused.
    pub runs_max: usize,
    /// The most that one attempt of a step writes and sends, in bytes; more is refused.
    pub step_bytes_max: usize,
    /// The most keys it writes.
    pub step_keys_max: usize,
    /// How long a run is kept after its end.
    pub finished_for: Duration,
    /// The most runs of one workflow that are kept after their end; the oldest go.
    pub finished_max: usize,
    /// The wait before a step is tried again, where nothing else is said; it doubles.
    pub backoff: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// Other processes serve workflows over the same store: what is in a far store may be theirs to work at.
    pub among_others: bool,
    /// A rule that is not kept, in tests.
    #[doc(hidden)]
    pub broken: Option<Broken>,
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
            broken: None,
        }
    }
}

impl Options {
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
}
