//! What is deployed at rest, and this process after it: at a start, and where other processes deploy to the same store.
//!
//! Rows are read every so often. What a row says otherwise than this process knows is put in place as at a start; what has no row
//! any more is removed. What cannot be put in place is [pending](crate::pending), and tried again. Whoever deploys catches up first, so that names and queues are compared with all that is deployed.
//!
//! Invariants
//! - No archive goes that a row names: rows are read after the archive was seen, and where others deploy it goes only if no row has
//!   named it for [`ROW_MAY_COME`]. (Left open: who deploys the same content again between such a look and the removal.)

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ports::{LogThrottle, Monotonic};

use crate::{
    catalogue::Catalogue,
    deployment::{Changing, Deployment, check_queues},
    manifest::Manifest,
    service::{Error, Parts, Result, Service},
};

/// How often it is looked for what others have deployed.
const FOLLOWED_EVERY: Duration = Duration::from_secs(2);
/// For so long an archive that another process has put may wait for its row: a deployment takes seconds.
const ROW_MAY_COME: Duration = Duration::from_mins(10);

impl Service {
    /// Puts in place what other processes deploy, and what could not be put in place before, for as long as this one runs.
    pub async fn keep_in_place(self) {
        let Parts {
            clock,
            among_others,
            ..
        } = &self.inner.parts;
        let mut outage = LogThrottle::default();
        let mut tidied = clock.monotonic();
        loop {
            clock.sleep(FOLLOWED_EVERY).await;
            if !among_others && self.inner.pending.is_empty() {
                continue;
            }
            let mut changing = self.inner.changing.lock().await;
            let mut followed = self.catch_up(&mut changing).await;
            if *among_others && followed.is_ok() && clock.monotonic().since(tidied) >= ROW_MAY_COME
            {
                followed = self.remove_archives(&changing).await;
                tidied = clock.monotonic();
            }
            drop(changing);
            match followed {
                Ok(()) => {
                    if let Some(lasted) = outage.ended(clock.monotonic()) {
                        tracing::info!(?lasted, "what is deployed is followed again");
                    }
                }
                Err(error) => {
                    if let Some(lasts) = outage.failed(clock.monotonic(), &error.to_string()) {
                        tracing::warn!(%error, ?lasts, "what is deployed cannot be followed");
                    }
                }
            }
        }
    }

    /// Before a change: what it is compared with is all that is deployed, by whoever it was.
    pub(crate) async fn catch_up_with_others(&self, changing: &mut Changing) -> Result<()> {
        let may_be_news = self.inner.parts.among_others || !self.inner.pending.is_empty();
        if may_be_news {
            self.catch_up(changing).await
        } else {
            Ok(())
        }
    }

    /// Makes what is deployed at rest what runs here: all of it at a start, and then what others have changed and what is to be tried
    /// again. An application that cannot be put in place holds up no other.
    ///
    /// Errors: what is deployed is not known.
    pub(crate) async fn catch_up(&self, changing: &mut Changing) -> Result<()> {
        let rows = self.inner.deployments.all().await?;
        let again = self.inner.pending.due(self.inner.parts.clock.monotonic());
        let gone = changing
            .keys()
            .chain(&again)
            .filter(|application| !rows.contains_key(*application));
        for application in gone.cloned().collect::<BTreeSet<_>>() {
            changing.remove(&application);
            let removed = self.put_in_place(&application, None).await;
            // An error is remembered, and what it is of is tried again: so of what follows, too.
            let _ = self.settled(&application, None, removed);
        }
        for (application, row) in rows {
            if changing.get(&application) != Some(&row) || again.contains(&application) {
                let done = self.put_in_place_with_code(&application, &row).await;
                let _ = self.settled(&application, Some(&row), done);
                changing.insert(application, row);
            }
        }
        Ok(())
    }

    /// As [`Self::put_in_place`], where its code may not be here.
    pub(crate) async fn put_in_place_with_code(
        &self,
        application: &str,
        row: &Deployment,
    ) -> Result<()> {
        let content = self.inner.deployments.archive(&row.archive).await?;
        self.inner
            .parts
            .runtime
            .install(&row.archive, content)
            .await?;
        self.put_in_place(application, Some(row)).await
    }

    /// Whether `application` may have what `manifest` says beside all that is deployed, in place or not, and what runs of others yet.
    pub(crate) fn check_beside(
        &self,
        rows: &Changing,
        application: &str,
        manifest: &Manifest,
    ) -> Result<()> {
        Catalogue::of(rows).check(application, manifest)?;
        self.inner.catalogue.check_names(application, manifest)?;
        check_queues(rows, application, manifest).map_err(Error::Conflict)
    }

    /// Removes the code here that nothing names, as that of a deployment that was refused. Among the objects its archive stays until the
    /// next one: a row that nobody has heard of may name it.
    pub(crate) async fn remove_code(&self, all: &Changing) {
        let named: Vec<_> = self.named(all).into_iter().collect();
        if let Err(error) = self.inner.parts.runtime.keep_archives(&named).await {
            tracing::debug!(%error, "code that nothing names stays until the next deployment");
        }
    }

    /// The archives that rows name, or what runs here.
    fn named(&self, all: &Changing) -> BTreeSet<String> {
        let running = self.inner.catalogue.functions().into_iter();
        let running = running.map(|known| known.function.archive.clone());
        all.values()
            .map(|deployment| deployment.archive.clone())
            .chain(running)
            .collect()
    }

    /// Removes the archives that nothing names, here and among the objects.
    pub(crate) async fn remove_archives(&self, all: &Changing) -> Result<()> {
        let Parts {
            among_others,
            clock,
            runtime,
            ..
        } = &self.inner.parts;
        let archives = self.inner.deployments.archives().await?;
        let mut named = self.named(all);
        runtime
            .keep_archives(&named.iter().cloned().collect::<Vec<_>>())
            .await?;
        let mut waits = Duration::ZERO;
        if *among_others {
            let rows = self.inner.deployments.all().await?;
            named.extend(rows.into_values().map(|deployment| deployment.archive));
            waits = ROW_MAY_COME;
        }
        let unnamed = archives
            .into_iter()
            .filter(|archive| !named.contains(archive))
            .collect();
        let nobodys = self
            .inner
            .unnamed
            .lock()
            .for_as_long(unnamed, clock.monotonic(), waits);
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
    fn for_as_long(
        &mut self,
        unnamed: Vec<String>,
        now: Monotonic,
        waits: Duration,
    ) -> Vec<String> {
        let since = |archive: String| {
            let since = self.0.get(&archive).copied().unwrap_or(now);
            (archive, since)
        };
        let there: BTreeMap<_, _> = unnamed.into_iter().map(since).collect();
        self.0 = there;
        let long = self
            .0
            .iter()
            .filter(|(_, since)| now.since(**since) >= waits);
        long.map(|(archive, _)| archive.clone()).collect()
    }
}
