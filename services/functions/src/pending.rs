//! Applications that are not in place as their rows say, since something failed on the way: why, since when, and when that is done again.
//!
//! An archive that is lost, a disk that is full or a store that did not answer is the trouble of that application alone: all else goes
//! on. It is put in place again and again, ever more seldom, and at once where its row is another one. What ran of it runs on meanwhile.
//! What is new of it is nobody's "there is no such thing", for good: it is deployed, and whoever asks is to come again.
//!
//! Invariants
//! - An application is here from a failure to put it in place until that was done to its end.
//! - What is promised is what the rows of those say that are here.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use ports::{ErrorKind, LogThrottle, Monotonic};

use crate::{
    catalogue::Catalogue,
    deployment::{Changed, Deployment},
    routes::Found,
    service::{Error, Inner, Result, Service},
};

/// How long it is waited before the second try; before each one after that, twice as long,
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// but never longer: an archive that cannot be unpacked is brought and unpacked at each try.
const AGAIN_AFTER_MAX: Duration = Duration::from_mins(1);

/// The applications that are not in place.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    promised: Catalogue,
    troubles: Mutex<BTreeMap<String, Trouble>>,
}

/// What keeps an application from being in place.
#[derive(Debug)]
struct Trouble {
    outage: LogThrottle,
    again_after: Duration,
    again_at: Monotonic,
}

impl Pending {
    /// What the rows of those say that are here.
    pub(crate) fn promised(&self) -> &Catalogue {
        &self.promised
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.troubles.lock().is_empty()
    }

    /// Those whose next try is due `now`.
    pub(crate) fn due(&self, now: Monotonic) -> Vec<String> {
        let troubles = self.troubles.lock();
        let due = troubles
            .iter()
            .filter(|(_, trouble)| now >= trouble.again_at);
        due.map(|(application, _)| application.clone()).collect()
    }

    /// To put `application` in place as `row` says has failed; none: to remove it.
    fn failed(&self, application: &str, row: Option<&Deployment>, error: &Error, now: Monotonic) {
        let said = {
            let mut troubles = self.troubles.lock();
            let trouble = troubles
                .entry(application.to_owned())
                .or_insert_with(|| Trouble {
                    outage: LogThrottle::default(),
                    again_after: AGAIN_AFTER,
                    again_at: now,
                });
            trouble.again_at = now + trouble.again_after;
            trouble.again_after = (2 * trouble.again_after).min(AGAIN_AFTER_MAX);
            trouble.outage.failed(now, &error.to_string())
        };
        self.promised
            .replace(application, row.map(|row| &row.manifest), "", "");
        if let Some(lasts) = said {
            tracing::warn!(application, %error, ?lasts, "what is deployed is not in place; it is tried again");
        }
    }

    /// `application` is in place.
    fn ended(&self, application: &str, now: Monotonic) {
        let Some(mut trouble) = self.troubles.lock().remove(application) else {
            return;
        };
        self.promised.replace(application, None, "", "");
        let lasted = trouble.outage.ended(now);
        tracing::info!(application, ?lasted, "what is deployed is in place again");
    }
}

impl Service {
    /// What putting `application` in place as `row` says has come to, which is remembered if it failed.
    pub(crate) fn settled(
        &self,
        application: &str,
        row: Option<&Deployment>,
        done: Result<()>,
    ) -> Result<()> {
        let (pending, now) = (&self.inner.pending, self.inner.parts.clock.monotonic());
        match &done {
            Ok(()) => pending.ended(application, now),
            Err(error) => pending.failed(application, row, error, now),
        }
        done
    }

    /// What a change of the row of `application` has come to. Who is not told whether it has happened has to read the row again: what is
    /// `known` of it may be no more.
    pub(crate) fn heard(
        &self,
        application: &str,
        known: Option<&Deployment>,
        changed: ports::Result<Changed>,
    ) -> Result<Changed> {
        changed.map_err(|error| {
            let (is_certain, error) = (
                matches!(error.kind(), ErrorKind::NoRoom | ErrorKind::Invalid),
                error.into(),
            );
            if !is_certain {
                self.inner.pending.failed(
                    application,
                    known,
                    &error,
                    self.inner.parts.clock.monotonic(),
                );
            }
            error
        })
    }
}

impl Inner {
    /// Why there is no function `name` to be found.
    pub(crate) fn unknown(&self, name: &str) -> Error {
        match self.pending.promised.function(name) {
            Some(_) => ports::Error::unavailable(format!(
                "find {name:?}, which is deployed and not yet in place"
            ))
            .into(),
            None => Error::NoSuchFunction(name.to_owned()),
        }
    }

    /// Ends once the function `name` is in place, if it is deployed.
    pub(crate) async fn until_in_place(&self, name: &str) {
        loop {
            let changed = self.pending.promised.changed();
            if self.catalogue.function(name).is_some()
                || self.pending.promised.function(name).is_none()
            {
                return;
            }
            changed.await;
        }
    }

    /// What there is for a request over HTTP.
    pub(crate) fn route(&self, method: &str, path: &[String]) -> Found {
        match self.catalogue.route(method, path) {
            Found::Route(routed) => Found::Route(routed),
            none => match self.pending.promised.route(method, path) {
                Found::Route(_) => Found::NotYet,
                _ => none,
            },
        }
    }
}
