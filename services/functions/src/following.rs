//! What is deployed at rest, and this process after it: at a start, and where other processes deploy to the same store.
//!
//! Rows are read every so often. What a row says otherwise than this process knows is put in place as at a start; what has no row
//! any more is removed. Whoever deploys catches up first, so that names and queues are compared with all that is deployed.
//!
//! Invariants
//! - No archive goes that a row names: rows are read after the archive was seen, and where others deploy it goes only if no row has
//!   named it for [`ROW_MAY_COME`]. (Left open: who deploys the same content again between such a look and the removal.)

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ports::{Monotonic, Outage};

use crate::{
    deployment::Changing,
    service::{Parts, Result, Service},
};

/// How often it is looked for what others have deployed.
const FOLLOWED_EVERY: Duration = Duration::from_secs(2);
/// For so long an archive that another process has put may wait for its row: a deployment takes seconds.
const ROW_MAY_COME: Duration = Duration::from_mins(10);

impl Service {
    /// Puts in place what other processes deploy, for as long as this one runs.
    pub async fn follow_others(self) {
        let clock = Arc::clone(&self.inner.parts.clock);
        let mut outage = Outage::default();
        let mut tidied = clock.monotonic();
        loop {
            clock.sleep(FOLLOWED_EVERY).await;
            let mut changing = self.inner.changing.lock().await;
            let mut followed = self.catch_up(&mut changing).await;
            if followed.is_ok() && clock.monotonic().since(tidied) >= ROW_MAY_COME {
                followed = self.remove_archives(&changing).await;
                tidied = clock.monotonic();
            }
            drop(changing);
            match followed {
                Ok(()) => {
                    if let Some(lasted) = outage.ended(clock.monotonic()) {
                        tracing::info!(?lasted, "what other processes deploy is put in place again");
                    }
                }
                Err(error) => {
                    if let Some(lasts) = outage.failed(clock.monotonic(), &error.to_string()) {
                        tracing::warn!(%error, ?lasts, "what other processes deploy cannot be put in place");
                    }
                }
            }
        }
    }

    /// Before a change: what it is compared with is all that is deployed, by whoever it was.
    pub(crate) async fn catch_up_with_others(&self, changing: &mut Changing) -> Result<()> {
        if self.inner.parts.among_others { self.catch_up(changing).await } else { Ok(()) }
    }

    /// Makes what is deployed at rest what runs here: all of it at a start, and then what others have changed.
    pub(crate) async fn catch_up(&self, changing: &mut Changing) -> Result<()> {
        let all = self.inner.deployments.all().await?;
        let gone = changing.keys().filter(|application| !all.contains_key(*application));
        for application in gone.cloned().collect::<Vec<_>>() {
            self.put_in_place(&application, None).await?;
            changing.remove(&application);
        }
        for (application, deployment) in all {
            if changing.get(&application) != Some(&deployment) {
                let content = self.inner.deployments.archive(&deployment.archive).await?;
                self.inner.parts.runtime.install(&deployment.archive, content).await?;
                self.put_in_place(&application, Some(&deployment)).await?;
                changing.insert(application, deployment);
            }
        }
        Ok(())
    }

    /// Removes the archives that nothing names, here and among the objects.
    pub(crate) async fn remove_archives(&self, all: &Changing) -> Result<()> {
        let Parts { among_others, clock, runtime, .. } = &self.inner.parts;
        let archives = self.inner.deployments.archives().await?;
        let running = self.inner.catalogue.functions().into_iter();
        let running = running.map(|known| known.function.archive.clone());
        let mut named: BTreeSet<_> =
            all.values().map(|deployment| deployment.archive.clone()).chain(running).collect();
        runtime.keep_archives(&named.iter().cloned().collect::<Vec<_>>()).await?;
        let mut waits = Duration::ZERO;
        if *among_others {
            let rows = self.inner.deployments.all().await?;
            named.extend(rows.into_values().map(|deployment| deployment.archive));
            waits = ROW_MAY_COME;
        }
        let unnamed = archives.into_iter().filter(|archive| !named.contains(archive)).collect();
        let nobodys = self.inner.unnamed.lock().for_as_long(unnamed, clock.monotonic(), waits);
        for archive in nobodys {
            self.inner.deployments.delete_archive(&archive).await?;
        }
        Ok(())
    }
}

/// Archives that no row names, and since when each was seen to be so.
#[derive(Debug, Default)]
pub(crate) struct Unnamed(BTreeMap<String, Monotonic>);

impl Unnamed {
    /// Notes which there are `now`; returns those that were so at every look for `waits`.
    fn for_as_long(&mut self, unnamed: Vec<String>, now: Monotonic, waits: Duration) -> Vec<String> {
        let since = |archive: String| {
            let since = self.0.get(&archive).copied().unwrap_or(now);
            (archive, since)
        };
        let there: BTreeMap<_, _> = unnamed.into_iter().map(since).collect();
        self.0 = there;
        let long = self.0.iter().filter(|(_, since)| now.since(**since) >= waits);
        long.map(|(archive, _)| archive.clone()).collect()
    }
}
