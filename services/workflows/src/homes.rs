//! Where runs lie: near, or in the range of a far store.
//!
//! All workflows of one far store share its range, so that they see what each other writes; each run has a lane of its own.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use functions::manifest::workflow::{Synchrony as Said, Workflow};
use ports::{Clock, Entropy, key_value::SharedKeyValue};
use synchrony::{Health, Mode, Stores, Synchrony};
use tokio::sync::Mutex;
use transactions::Engine;

use crate::{Error, Options, Result, store::Store};

/// What the name of a range begins with in both of its stores; the rest is the address, as workflows say it.
const RANGE: &str = "landfast/";

/// Finds far stores.
#[async_trait]
pub trait FarStores: Debug + Send + Sync {
    /// The store at `address`. Errors: `Invalid` if that is none, `Unavailable`.
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue>;
}

/// How long a write waits for others to travel with it: about what a short run takes, whose end then sends all of it at once.
const LINGER: Duration = Duration::from_millis(10);
/// How long a caller waits for a range: one that another near store had is opened once its lease has run out.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// All homes.
#[derive(Debug)]
pub(crate) struct Homes {
    near: Store,
    ranges: Arc<Ranges>,
}

/// How a far store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarStore {
    /// Why it does not answer as it should; none: it does.
    pub trouble: Option<String>,
    /// What is ordered near and not durable far, in bytes.
    pub waiting_bytes: u64,
    /// How long the oldest of that has waited.
    pub waiting_for: Duration,
    /// Runs whose writes a permanent error of it has stopped.
    pub stopped_runs: u64,
}

impl FarStore {
    fn of(health: &Health) -> Self {
        let ended = || health.ended.map(|kind| format!("this server uses it no more: {kind}"));
        Self {
            trouble: health.failing.as_ref().map(|failing| failing.reason.clone()).or_else(ended),
            waiting_bytes: health.pending_bytes as u64,
            waiting_for: health.pending_for,
            stopped_runs: health.poisoned_lanes as u64,
        }
    }

    /// One that could not be opened.
    fn unopened(trouble: String) -> Self {
        Self { trouble: Some(trouble), waiting_bytes: 0, waiting_for: Duration::ZERO, stopped_runs: 0 }
    }
}

/// An address as it may be shown: without who opens it.
fn shown(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

#[derive(Debug)]
struct Ranges {
    near_rows: SharedKeyValue,
    far_stores: Arc<dyn FarStores>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    options: Options,
    /// Held while one of them is opened.
    opening: Mutex<()>,
    open: parking_lot::Mutex<BTreeMap<String, Range>>,
    /// Why those could not be opened that are wanted and not open.
    unopened: parking_lot::Mutex<BTreeMap<String, String>>,
}

#[derive(Debug)]
struct Range {
    synchrony: Synchrony,
    said: Said,
}

impl Homes {
    pub(crate) fn new(
        near_rows: SharedKeyValue,
        engine: Engine,
        far_stores: Arc<dyn FarStores>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        options: &Options,
    ) -> Self {
        let near = Store::of_transactions(Arc::clone(&near_rows), engine, options);
        let options = options.clone();
        let ranges = Ranges {
            near_rows,
            far_stores,
            clock,
            entropy,
            options,
            opening: Mutex::default(),
            open: parking_lot::Mutex::default(),
            unopened: parking_lot::Mutex::default(),
        };
        Self { near, ranges: Arc::new(ranges) }
    }

    /// Where a workflow without a far store lies.
    pub(crate) fn near(&self) -> &Store {
        &self.near
    }

    /// Where a new run of `workflow`, or a look at its runs, lies.
    pub(crate) async fn of(&self, workflow: &Workflow) -> Result<Store> {
        match &workflow.far {
            None => Ok(self.near.clone()),
            Some(address) => self.in_range(address.clone(), workflow.synchrony).await,
        }
    }

    /// A store in a range. It goes on being opened if whoever asked does not wait for it.
    async fn in_range(&self, address: String, said: Said) -> Result<Store> {
        let ranges = Arc::clone(&self.ranges);
        let asked = address.clone();
        let opened = tokio::spawn(async move { ranges.store(&asked, said).await });
        let unavailable = || ports::Error::unavailable(format!("open the far store {}", shown(&address)));
        tokio::select! {
            biased;
            opened = opened => opened.unwrap_or_else(|_| Err(unavailable().into())),
            () = self.ranges.clock.sleep(OPEN_MAX) => Err(unavailable().into()),
        }
    }

    /// How the far stores are, by address, as far as they were wanted; returns at once.
    pub(crate) fn health(&self) -> BTreeMap<String, FarStore> {
        let unopened = self.ranges.unopened.lock().clone();
        let unopened = unopened.into_iter().map(|(address, why)| (shown(&address), FarStore::unopened(why)));
        let ranges = self.ranges.open.lock();
        let open =
            ranges.iter().map(|(address, range)| (shown(address), FarStore::of(&range.synchrony.health())));
        unopened.chain(open).collect()
    }

    /// Gives the ranges back, drained, so that whoever is next does not wait.
    pub(crate) async fn release(&self) {
        let _opening = self.ranges.opening.lock().await;
        let ranges = std::mem::take(&mut *self.ranges.open.lock());
        for (address, range) in ranges {
            if let Err(error) = range.synchrony.release().await {
                tracing::warn!(address = shown(&address), %error, "what is not far yet is sent by the next start");
            }
        }
    }
}

impl Ranges {
    async fn store(&self, address: &str, said: Said) -> Result<Store> {
        let _opening = self.opening.lock().await;
        // One that has ended, since its near store fell back, is opened anew.
        let is_open =
            self.open.lock().get(address).is_some_and(|range| range.synchrony.health().ended.is_none());
        if !is_open {
            self.open.lock().remove(address);
            let opened = self.open_range(address, said).await;
            let mut unopened = self.unopened.lock();
            match opened {
                Ok(synchrony) => {
                    unopened.remove(address);
                    self.open.lock().insert(address.to_owned(), Range { synchrony, said });
                }
                Err(error) => {
                    unopened.insert(address.to_owned(), error.to_string());
                    return Err(error);
                }
            }
        }
        let open = self.open.lock();
        let range = open.get(address).expect("it is open, and only who opens removes it");
        if range.said != said {
            let address = shown(address);
            let say = format!(
                "the workflows of one far store have one synchrony, and that of {address} is {:?}",
                range.said
            );
            return Err(Error::Invalid(say.to_lowercase()));
        }
        Ok(Store::of_range(Arc::new(range.synchrony.lane()?), &self.options))
    }

    async fn open_range(&self, address: &str, said: Said) -> Result<Synchrony> {
        let far = self.far_stores.open(address).await?;
        // Whoever knows the password today, and another tomorrow, means the same range.
        let name = address.rsplit_once('@').map_or(address, |(_, host)| host);
        let range = Bytes::from([RANGE, name].concat());
        let stores = Stores { near: Arc::clone(&self.near_rows), far, range };
        let mode = match said {
            Said::External => Mode::External,
            Said::Serial => Mode::Serial,
            Said::Sync => Mode::Sync,
        };
        let options = synchrony::Options { mode, linger: LINGER, ..synchrony::Options::default() };
        Ok(Synchrony::open(stores, options, Arc::clone(&self.clock), Arc::clone(&self.entropy)).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (address, said) in [
            ("redis://user:secret@host:1/2", "redis://host:1/2"),
            ("rediss://:p@ss@host", "rediss://host"),
            ("redis://host:1", "redis://host:1"),
            ("secret@host", "host"),
            ("", ""),
        ] {
            assert_eq!(shown(address), said);
        }
    }
}
