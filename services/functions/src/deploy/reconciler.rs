//! The reconciler: makes this process run what the stored rows say.
//!
//! It runs at a start, after each change, and, where other processes deploy to the same store,
//! whenever the [watcher](super::watcher) reads the rows. An application that cannot be put in
//! place is recorded as [pending](crate::lookup::pending) and tried again. A change first catches
//! up with the rows, so that its names and queues are compared with all deployments.
//!
//! Invariant: no archive is removed that a row names. The rows are read after the archives are
//! listed. Where others deploy, an archive is removed only if no row has named it for
//! [`ROW_WAIT_MAX`]. (Left open: another process deploys the same content again between that
//! reading and the removal.)

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ports::{
    ErrorKind, Monotonic,
    functions::{Definition, FunctionOptions, QueueTrigger},
    queue::QueueOptions,
};

use super::deployment::{Changed, Deployment, Deployments, Rows, check_queues};
use crate::{
    error::{Error, Result},
    events::{
        context::Context,
        handler::{DeployedHandler, attempt_max, batch},
    },
    ids::registered_name,
    lookup::catalogue::{Catalogue, DeployedFunction},
    manifest::{self, Manifest, Table},
};

/// How long an archive of another process may wait for its row. A deployment takes seconds.
pub(crate) const ROW_WAIT_MAX: Duration = Duration::from_mins(10);

#[derive(Debug)]
pub(crate) struct Reconciler {
    context: Arc<Context>,
    pub(crate) deployments: Deployments,
    unnamed: parking_lot::Mutex<Unnamed>,
}

impl Reconciler {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let deployments = Deployments {
            key_value: Arc::clone(&context.parts.key_value),
            objects: Arc::clone(&context.parts.objects),
        };
        Self {
            deployments,
            unnamed: parking_lot::Mutex::default(),
            context,
        }
    }

    /// Before a change: catches up if other processes deploy here, or an application is pending.
    pub(crate) async fn catch_up_with_others(&self, rows: &mut Rows) -> Result<()> {
        if self.context.parts.among_others || !self.context.lookup.pending.is_empty() {
            self.catch_up(rows).await
        } else {
            Ok(())
        }
    }

    /// Reads the rows and puts in place those that changed, and those whose next attempt is due. An
    /// application that fails does not hold up the others.
    ///
    /// Errors: the rows could not be read.
    pub(crate) async fn catch_up(&self, known: &mut Rows) -> Result<()> {
        let rows = self.deployments.all().await?;
        let now = self.context.parts.clock.monotonic();
        let again = self.context.lookup.pending.due(now);
        let gone = known
            .keys()
            .chain(&again)
            .filter(|application| !rows.contains_key(*application));
        for application in gone.cloned().collect::<BTreeSet<_>>() {
            known.remove(&application);
            let removed = self.put_in_place(&application, None).await;
            // The error is recorded as pending, and the application is tried again. The same holds
            // below.
            let _ = self.settled(&application, None, removed);
        }
        for (application, row) in rows {
            if known.get(&application) != Some(&row) || again.contains(&application) {
                let done = self.put_in_place_with_code(&application, &row).await;
                let _ = self.settled(&application, Some(&row), done);
                known.insert(application, row);
            }
        }
        Ok(())
    }

    /// As [`Self::put_in_place`], for a row whose code this process may not have.
    pub(crate) async fn put_in_place_with_code(
        &self,
        application: &str,
        row: &Deployment,
    ) -> Result<()> {
        // What ran before goes on, and the application is tried again (U4).
        if let Some(why) = &row.refused {
            return Err(Error::Invalid(why.clone()));
        }
        let content = self.deployments.archive(&row.archive).await?;
        self.context
            .parts
            .code_store
            .install(&row.archive, content)
            .await?;
        self.put_in_place(application, Some(row)).await
    }

    /// Replaces the running deployment of `application` by `now`; none: removes it.
    pub(crate) async fn put_in_place(
        &self,
        application: &str,
        now: Option<&Deployment>,
    ) -> Result<()> {
        let before = self.in_place(application);
        self.disarm(&before, now).await?;
        let (runtime, catalogue) = (&self.context.parts.runtime, &self.context.lookup.catalogue);
        match now {
            Some(now) => {
                // First: a caller that finds a function in the catalogue must not run the earlier
                // code (U4, A7).
                now.functions()
                    .for_each(|function| runtime.renew(&function));
                now.manifest
                    .functions
                    .iter()
                    .for_each(|(name, table)| self.register(name, table));
                catalogue.replace(
                    application,
                    Some(&now.manifest),
                    &now.archive,
                    &now.revision(),
                    now.incarnation,
                );
            }
            None => catalogue.replace(application, None, "", "", 0),
        }
        let names = before.iter().map(|deployed| &deployed.function.name);
        for name in names.filter(|name| catalogue.function(name).is_none()) {
            runtime.retire(name);
            self.warn_of_waiting_events(name).await;
        }
        let Some(now) = now else { return Ok(()) };
        // A trigger that cannot be armed does not keep the others from being armed.
        let mut all = Ok(());
        for (name, table) in &now.manifest.functions {
            for trigger in table.queues() {
                all = all.and(self.arm_queue(name, table, trigger).await);
            }
            let timer = self.context.timers.follow(name, now.timer(name)).await;
            all = all.and(timer.map_err(Error::from));
        }
        all
    }

    /// Warns if events wait for a removed function: they wait until a function of that name is
    /// deployed (A8).
    async fn warn_of_waiting_events(&self, name: &str) {
        let queue = self.context.event_queue(name);
        // An error means that there is no queue, or that the number is unknown now. Nothing depends
        // on it.
        let waiting = self
            .context
            .parts
            .queue_admin
            .backlog(&queue)
            .await
            .map_or(0, |backlog| backlog.messages);
        if waiting > 0 {
            tracing::warn!(
                function = name,
                waiting,
                "the function was removed, and its events wait until a function of that name is deployed"
            );
        }
    }

    fn register(&self, name: &str, table: &Table) {
        let context = Arc::downgrade(&self.context);
        self.context.parts.functions.register(Definition {
            name: registered_name(name).into(),
            options: FunctionOptions {
                timeout: attempt_max(Duration::from_secs(table.timeout_s)),
                attempts_max: 1 + table.retries,
                exception_handler: table.on_failure.as_deref().map(registered_name),
                ..FunctionOptions::default()
            },
            handler: Arc::new(DeployedHandler::new(name, context)),
        });
    }

    async fn arm_queue(
        &self,
        name: &str,
        table: &Table,
        trigger: &manifest::QueueTrigger,
    ) -> Result<()> {
        let parts = &self.context.parts;
        let queue = (parts.queue_name)(&trigger.queue);
        let options = QueueOptions {
            attempts_max: batch::ATTEMPTS_MAX,
            on_failure: batch::on_failure(table.on_failure.as_deref()),
            ..QueueOptions::default()
        };
        parts.queue.create(&queue, options).await?;
        let trigger = QueueTrigger {
            queue,
            function: registered_name(name),
            batch_messages_max: trigger.batch,
            groups_max: 1,
        };
        Ok(parts.functions.arm_queue(trigger).await?)
    }

    /// The functions of `application` that run here.
    fn in_place(&self, application: &str) -> Vec<Arc<DeployedFunction>> {
        let all = self.context.lookup.catalogue.functions().into_iter();
        all.filter(|deployed| deployed.application == application)
            .collect()
    }

    pub(crate) fn is_in_place(&self, application: &str) -> bool {
        !self.in_place(application).is_empty()
    }

    /// Disarms the queue triggers and timers of `in_place` that `now` does not have.
    async fn disarm(
        &self,
        in_place: &[Arc<DeployedFunction>],
        now: Option<&Deployment>,
    ) -> Result<()> {
        let parts = &self.context.parts;
        for DeployedFunction {
            function, table, ..
        } in in_place.iter().map(|deployed| &**deployed)
        {
            let now = now.and_then(|now| now.manifest.functions.get(&function.name));
            let is_kept = |queue: &String| {
                now.is_some_and(|now| now.queues().any(|kept| kept.queue == *queue))
            };
            let queues = table.queues().map(|trigger| &trigger.queue);
            for queue in queues.filter(|queue| !is_kept(queue)) {
                let queue = (parts.queue_name)(queue);
                parts.functions.disarm_queue(&queue).await?;
            }
            if now.is_none() {
                self.context.timers.follow(&function.name, None).await?;
            }
        }
        Ok(())
    }

    /// Records the outcome of putting `application` in place as `row` says, and returns it.
    pub(crate) fn settled(
        &self,
        application: &str,
        row: Option<&Deployment>,
        done: Result<()>,
    ) -> Result<()> {
        match &done {
            Ok(()) => {
                let now = self.context.parts.clock.monotonic();
                self.context.lookup.pending.ended(application, now);
            }
            Err(error) => self.failed(application, row, error),
        }
        done
    }

    /// The outcome of writing the row of `application`. If it is unknown, the row must be read
    /// again, because `known` may be out of date.
    pub(crate) fn written(
        &self,
        application: &str,
        known: Option<&Deployment>,
        changed: ports::Result<Changed>,
    ) -> Result<Changed> {
        changed.map_err(|error| {
            let is_certain = matches!(error.kind(), ErrorKind::NoRoom | ErrorKind::Invalid);
            let error = error.into();
            if !is_certain {
                self.failed(application, known, &error);
            }
            error
        })
    }

    fn failed(&self, application: &str, row: Option<&Deployment>, error: &Error) {
        let (manifest, now) = (
            row.map(|row| &row.manifest),
            self.context.parts.clock.monotonic(),
        );
        self.context
            .lookup
            .pending
            .failed(application, manifest, error, now);
    }

    /// Whether `application` may deploy `manifest`, beside all rows and beside what still runs of
    /// others.
    pub(crate) fn check_beside(
        &self,
        rows: &Rows,
        application: &str,
        manifest: &Manifest,
    ) -> Result<()> {
        let all = rows.iter().map(|(name, row)| (&**name, &row.manifest));
        Catalogue::of(all).check(application, manifest)?;
        self.context
            .lookup
            .catalogue
            .check_names(application, manifest)?;
        check_queues(rows, application, manifest).map_err(Error::Conflict)
    }

    /// Removes the unpacked code that nothing names, such as that of a refused deployment. Its
    /// archive among the objects stays until the next deployment: a row that this process has not
    /// read yet may name it.
    pub(crate) async fn remove_code(&self, rows: &Rows) {
        let named: Vec<_> = self.named(rows).into_iter().collect();
        if let Err(error) = self.context.parts.code_store.keep_archives(&named).await {
            tracing::debug!(%error, "unused code stays until the next deployment");
        }
    }

    /// The archives that rows or running functions name.
    fn named(&self, rows: &Rows) -> BTreeSet<String> {
        let running = self.context.lookup.catalogue.functions().into_iter();
        let running = running.map(|deployed| deployed.function.archive.clone());
        rows.values()
            .map(|deployment| deployment.archive.clone())
            .chain(running)
            .collect()
    }

    /// Removes the archives that nothing names, both the unpacked ones and the objects.
    pub(crate) async fn remove_archives(&self, rows: &Rows) -> Result<()> {
        let parts = &self.context.parts;
        let archives = self.deployments.archives().await?;
        let mut named = self.named(rows);
        let kept: Vec<_> = named.iter().cloned().collect();
        parts.code_store.keep_archives(&kept).await?;
        let mut wait = Duration::ZERO;
        if parts.among_others {
            let rows = self.deployments.all().await?;
            named.extend(rows.into_values().map(|deployment| deployment.archive));
            wait = ROW_WAIT_MAX;
        }
        let unnamed = archives.into_iter();
        let unnamed = unnamed.filter(|archive| !named.contains(archive)).collect();
        let now = parts.clock.monotonic();
        let unused = self.unnamed.lock().for_as_long(unnamed, now, wait);
        for archive in unused {
            self.deployments.delete_archive(&archive).await?;
        }
        Ok(())
    }
}

/// Archives that no row names, with the time since which each reading found it so.
#[derive(Debug, Default)]
struct Unnamed(BTreeMap<String, Monotonic>);

impl Unnamed {
    /// Replaces the list by `unnamed`, and returns the archives that every reading of the last
    /// `wait` found unnamed.
    fn for_as_long(&mut self, unnamed: Vec<String>, now: Monotonic, wait: Duration) -> Vec<String> {
        let since = |archive: String| {
            let since = self.0.get(&archive).copied().unwrap_or(now);
            (archive, since)
        };
        let there: BTreeMap<_, _> = unnamed.into_iter().map(since).collect();
        self.0 = there;
        let long = self
            .0
            .iter()
            .filter(|(_, since)| now.since(**since) >= wait);
        long.map(|(archive, _)| archive.clone()).collect()
    }
}
