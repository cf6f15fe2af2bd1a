//! Applications that are not in place as their rows say, because a step failed: why, since when,
//! and when the next attempt is due.
//!
//! A lost archive, a full disk or an unavailable store affects that application alone. The
//! reconciler puts it in place again at growing intervals, and at once when its row changes. The
//! earlier deployment keeps running meanwhile. Callers of its new functions get "not yet in place"
//! instead of "no such function", and may retry.
//!
//! Invariants
//! - An application is here from a failure until it is in place.
//! - The promised functions are those in the rows of the applications that are here.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use ports::{LogThrottle, Monotonic};

use super::catalogue::Catalogue;
use crate::{error::Error, manifest::Manifest};

/// The wait before the second attempt. It doubles with each further one.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// The longest wait. Each attempt fetches the archive and unpacks it.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The functions, workflows and routes in the rows of the pending applications.
    pub(crate) promised: Catalogue,
    failures: Mutex<BTreeMap<String, Failing>>,
}

/// An application whose placement fails.
#[derive(Debug)]
struct Failing {
    outage: LogThrottle,
    retry_after: Duration,
    retry_at: Monotonic,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.failures.lock().is_empty()
    }

    /// The applications whose next attempt is due `now`.
    pub(crate) fn due(&self, now: Monotonic) -> Vec<String> {
        let failures = self.failures.lock();
        let due = failures
            .iter()
            .filter(|(_, failing)| now >= failing.retry_at);
        due.map(|(application, _)| application.clone()).collect()
    }

    /// Records that putting `application` in place as `manifest` says failed; none: that removing
    /// it did.
    pub(crate) fn failed(
        &self,
        application: &str,
        manifest: Option<&Manifest>,
        error: &Error,
        now: Monotonic,
    ) {
        let reported = {
            let mut failures = self.failures.lock();
            let failing = failures
                .entry(application.to_owned())
                .or_insert_with(|| Failing {
                    outage: LogThrottle::default(),
                    retry_after: RETRY_AFTER,
                    retry_at: now,
                });
            failing.retry_at = now + failing.retry_after;
            failing.retry_after = (2 * failing.retry_after).min(RETRY_AFTER_MAX);
            failing.outage.failed(now, &error.to_string())
        };
        self.promised.replace(application, manifest, "", "", 0);
        if let Some(lasts) = reported {
            tracing::warn!(application, %error, ?lasts, "the deployment is not in place; it will be tried again");
        }
    }

    /// Records that `application` is in place.
    pub(crate) fn ended(&self, application: &str, now: Monotonic) {
        let Some(mut failing) = self.failures.lock().remove(application) else {
            return;
        };
        self.promised.replace(application, None, "", "", 0);
        let lasted = failing.outage.ended(now);
        tracing::info!(application, ?lasted, "the deployment is in place again");
    }
}
