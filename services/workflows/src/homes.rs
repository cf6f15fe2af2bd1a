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

use crate::{Error, Options, Result, outbox::Outbox, store::Store};

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

#[derive(Debug)]
struct Ranges {
    near_rows: SharedKeyValue,
    engine: Engine,
    far_stores: Arc<dyn FarStores>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    options: Options,
    /// Held while one of them is opened.
    open: Mutex<BTreeMap<String, Range>>,
}

#[derive(Debug)]
struct Range {
    synchrony: Synchrony,
    outbox: Arc<Outbox>,
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
        let near = Store::of_transactions(Arc::clone(&near_rows), engine.clone(), options);
        let options = options.clone();
        let ranges =
            Ranges { near_rows, engine, far_stores, clock, entropy, options, open: Mutex::default() };
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
        let unavailable = || ports::Error::unavailable(format!("open the far store {address}"));
        tokio::select! {
            biased;
            opened = opened => opened.unwrap_or_else(|_| Err(unavailable().into())),
            () = self.ranges.clock.sleep(OPEN_MAX) => Err(unavailable().into()),
        }
    }

    /// How the far stores are, by address.
    pub(crate) async fn health(&self) -> BTreeMap<String, Health> {
        let ranges = self.ranges.open.lock().await;
        ranges.iter().map(|(address, range)| (address.clone(), range.synchrony.health())).collect()
    }

    /// Gives the ranges back, drained, so that whoever is next does not wait.
    pub(crate) async fn release(&self) {
        let ranges = std::mem::take(&mut *self.ranges.open.lock().await);
        for (address, range) in ranges {
            range.outbox.stop();
            if let Err(error) = range.synchrony.release().await {
                tracing::warn!(%address, %error, "what is not far yet is sent by the next start");
            }
        }
    }
}

impl Ranges {
    async fn store(&self, address: &str, said: Said) -> Result<Store> {
        let mut ranges = self.open.lock().await;
        // One that has ended, since its near store fell back, is opened anew.
        let is_open = ranges.get(address).is_some_and(|range| range.synchrony.health().ended.is_none());
        if !is_open {
            if let Some(ended) = ranges.remove(address) {
                ended.outbox.stop();
            }
            ranges.insert(address.to_owned(), self.open(address, said).await?);
        }
        let range = &ranges[address];
        if range.said != said {
            let say = format!(
                "the workflows of one far store have one synchrony, and that of {address} is {:?}",
                range.said
            );
            return Err(Error::Invalid(say.to_lowercase()));
        }
        Ok(Store::of_range(Arc::new(range.synchrony.lane()?), Arc::clone(&range.outbox), &self.options))
    }

    async fn open(&self, address: &str, said: Said) -> Result<Range> {
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
        let (clock, entropy) = (Arc::clone(&self.clock), Arc::clone(&self.entropy));
        let synchrony = Synchrony::open(stores, options, Arc::clone(&clock), Arc::clone(&entropy)).await?;
        let lane = Arc::new(synchrony.lane()?);
        let outbox = Outbox::open(lane, self.engine.clone(), (clock, entropy), &self.options).await?;
        Ok(Range { synchrony, outbox, said })
    }
}
