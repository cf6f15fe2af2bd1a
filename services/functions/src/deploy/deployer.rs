//! The deployer: changes an application on behalf of a caller.
//!
//! Deployments change one at a time, in this order:
//! 1. The archive is unpacked in this process, checked, and put among the objects.
//! 2. The row changes. This decides the deployment.
//! 3. The reconciler removes queue triggers and timers that are gone.
//! 4. The catalogue changes. From here on, calls and requests find the new functions.
//! 5. The reconciler arms triggers and timers. It may repeat this step.
//! 6. Archives that no row names are removed.
//!
//! Invariants
//! - A change that has begun runs to its end, even if its caller is gone.
//! - The known rows are the stored rows, as far as the outcome of each write is known. If a later
//!   step failed, the watcher or the next change repeats it.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::Monotonic;
use tokio::sync::Mutex;

use super::{
    deployment::{Changed, Deployment, Rows, digest},
    reconciler::{ROW_WAIT_MAX, Reconciler},
};
use crate::{
    error::{Error, Result},
    events::context::Context,
    manifest::{self, FILE_NAME, MANIFEST_BYTES_MAX, Manifest, TimerRule},
};

/// The operation in errors of a change.
const CHANGE: &str = "change what is deployed";

#[derive(Debug, Clone)]
pub(crate) struct Deployer {
    pub(super) context: Arc<Context>,
    pub(crate) reconciler: Arc<Reconciler>,
    /// The rows as this process knows them, locked during a change.
    rows: Arc<Mutex<Rows>>,
}

impl Deployer {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            reconciler: Arc::new(Reconciler::new(Arc::clone(&context))),
            context,
            rows: Arc::default(),
        }
    }

    /// Puts all stored deployments in place, and removes archives that no row names.
    pub(crate) async fn start(&self) -> Result<()> {
        let mut rows = self.rows.lock().await;
        self.reconciler.catch_up(&mut rows).await?;
        self.context.lookup.catalogue.put_in_place();
        self.reconciler.remove_archives(&rows).await
    }

    /// Puts in place the rows that changed, and applications that are due again. Among other
    /// processes, it also removes archives that no row names, every [`ROW_WAIT_MAX`]; `tidied` is
    /// the last time.
    pub(crate) async fn catch_up(&self, tidied: &mut Monotonic) -> Result<()> {
        let mut rows = self.rows.lock().await;
        self.reconciler.catch_up(&mut rows).await?;
        let now = self.context.parts.clock.monotonic();
        if !self.context.parts.among_others || now.since(*tidied) < ROW_WAIT_MAX {
            return Ok(());
        }
        *tidied = now;
        self.reconciler.remove_archives(&rows).await
    }

    /// As [`Service::deploy`](crate::Service::deploy).
    pub(crate) async fn deploy(&self, application: &str, content: Bytes) -> Result<()> {
        manifest::check_name("the application", application).map_err(Error::Invalid)?;
        let mut rows = Arc::clone(&self.rows).lock_owned().await;
        let (deployer, name) = (self.clone(), application.to_owned());
        to_its_end(CHANGE, async move {
            let replaced = deployer.replace(&mut rows, &name, content).await;
            if replaced.is_err() {
                deployer.reconciler.remove_code(&rows).await;
            }
            replaced
        })
        .await
    }

    async fn replace(&self, rows: &mut Rows, application: &str, content: Bytes) -> Result<()> {
        let archive = digest(&content);
        let (text, manifest) = self.unpack(&archive, content.clone()).await?;
        self.check(application, &archive, &manifest).await?;
        self.reconciler.catch_up_with_others(rows).await?;
        self.reconciler.check_beside(rows, application, &manifest)?;
        let before = rows.get(application).cloned();
        let known = before.as_ref().map(|before| before.generation);
        let timers = before
            .as_ref()
            .map(|before| before.kept_timers(&manifest))
            .unwrap_or_default();
        let generation = known.map_or(1, |known| known + 1);
        // The keys of a function end with it, also if one of its name is deployed later.
        let keeps_all = |before: &&Deployment| {
            let mut names = before.manifest.functions.keys();
            names.all(|name| manifest.functions.contains_key(name))
        };
        let kept_incarnation = before.as_ref().filter(keeps_all);
        let kept_incarnation = kept_incarnation.map(|before| before.incarnation);
        let deployment = Deployment {
            manifest,
            refused: None,
            text,
            archive,
            generation,
            deployed: generation,
            incarnation: kept_incarnation.unwrap_or_else(|| self.context.parts.entropy.next_u64()),
            timers,
        };
        let deployments = &self.reconciler.deployments;
        deployments
            .put_archive(&deployment.archive, content)
            .await?;
        self.begin_timers(before.as_ref(), &deployment).await?;
        let changed = deployments.put(application, &deployment, known).await;
        let changed = self
            .reconciler
            .written(application, before.as_ref(), changed)?;
        self.follow(rows, application, changed, Some(deployment))
            .await?;
        self.reconciler.remove_archives(rows).await
    }

    async fn unpack(&self, archive: &str, content: Bytes) -> Result<(String, Manifest)> {
        let store = &self.context.parts.code_store;
        let refused = |error: ports::Error| match std::error::Error::source(&error) {
            Some(why) if error.kind() == ports::ErrorKind::Invalid => {
                Error::Invalid(format!("the archive is refused: {why}"))
            }
            _ => error.into(),
        };
        store.install(archive, content).await.map_err(refused)?;
        let missing = || Error::Invalid(format!("the archive has no {FILE_NAME}"));
        let text = store
            .file(archive, FILE_NAME, MANIFEST_BYTES_MAX)
            .await?
            .ok_or_else(missing)?;
        let text = String::from_utf8(text.into())
            .map_err(|_| Error::Invalid("the manifest is not UTF-8".into()))?;
        let manifest = Manifest::parse(&text).map_err(Error::Invalid)?;
        Ok((text, manifest))
    }

    /// Errors: `manifest` of the archive is of another application, or cannot run here.
    async fn check(&self, application: &str, archive: &str, manifest: &Manifest) -> Result<()> {
        if let Some(name) = manifest.name.as_ref().filter(|name| *name != application) {
            return Err(Error::Invalid(format!(
                "the manifest is of the application {name:?}, and it is deployed as {application:?}: use one name"
            )));
        }
        for (name, workflow) in &manifest.workflows {
            let Some(far) = &workflow.far else { continue };
            let wrong = |why| Error::Invalid(format!("workflows.{name}: far: {why}"));
            (self.context.parts.check_far)(far).map_err(wrong)?;
        }
        for (name, table) in &manifest.functions {
            let has_objects = !table.objects.is_empty() || table.on_object.is_some();
            if has_objects && !self.context.parts.serves_objects {
                return Err(Error::Invalid(format!(
                    "functions.{name}: objects: this server serves no S3: start it without --s3 off"
                )));
            }
            let function = table.function(name, archive, "", 0);
            let checked = self.context.parts.runtime.check(&function).await;
            checked.map_err(|why| Error::Invalid(format!("functions.{name}: {why}")))?;
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, application: &str) -> Result<()> {
        let mut rows = Arc::clone(&self.rows).lock_owned().await;
        let (deployer, name) = (self.clone(), application.to_owned());
        to_its_end(CHANGE, async move {
            deployer.remove_all(&mut rows, &name).await
        })
        .await
    }

    async fn remove_all(&self, rows: &mut Rows, application: &str) -> Result<()> {
        self.reconciler.catch_up_with_others(rows).await?;
        let changed = match rows.get(application) {
            Some(before) => {
                let deployments = &self.reconciler.deployments;
                let changed = deployments.delete(application, before.generation).await;
                self.reconciler
                    .written(application, Some(before), changed)?
            }
            // The row is gone already, but a later step failed.
            None if self.reconciler.is_in_place(application) => Changed::Done,
            None => return Err(Error::NoSuchApplication(application.to_owned())),
        };
        self.follow(rows, application, changed, None).await?;
        self.reconciler.remove_archives(rows).await
    }

    /// As [`Service::arm`](crate::Service::arm).
    pub(crate) async fn arm(&self, name: &str, period: Option<Duration>) -> Result<()> {
        if let Some(period) = period {
            manifest::check_period(period.as_secs()).map_err(Error::Invalid)?;
        }
        let mut rows = Arc::clone(&self.rows).lock_owned().await;
        let (deployer, name) = (self.clone(), name.to_owned());
        to_its_end(CHANGE, async move {
            deployer.set_timer(&mut rows, &name, period).await
        })
        .await
    }

    async fn set_timer(&self, rows: &mut Rows, name: &str, period: Option<Duration>) -> Result<()> {
        self.reconciler.catch_up_with_others(rows).await?;
        let application = self.context.lookup.deployed(name)?.application.clone();
        let no_such = || Error::NoSuchApplication(application.clone());
        let mut after = rows.get(&application).ok_or_else(no_such)?.clone();
        let known = after.generation;
        after.generation += 1;
        let before = after.clone();
        after.timers.insert(
            name.to_owned(),
            period.map_or(0, |period| period.as_millis() as u64),
        );
        self.begin_timers(Some(&before), &after).await?;
        let deployments = &self.reconciler.deployments;
        let changed = deployments.put(&application, &after, Some(known)).await;
        let changed = self
            .reconciler
            .written(&application, Some(&before), changed)?;
        if changed != Changed::Done {
            return self.follow(rows, &application, changed, None).await;
        }
        rows.insert(application.clone(), after.clone());
        let rule = period.map(TimerRule::Every);
        let followed = self.context.timers.follow(name, rule).await;
        // An armed timer does not mean that the rest of the application is in place.
        followed.or_else(|error| {
            self.reconciler
                .settled(&application, Some(&after), Err(error.into()))
        })
    }

    /// Begins the periods of timers that were not armed `before`.
    ///
    /// This comes before the row says that they are armed, so that the tick time of an earlier
    /// arming is not used. If the row is not written after all, the time is unused. A timer that is
    /// armed with another period begins when that period is put in place: begun here, a failing
    /// change would postpone it.
    async fn begin_timers(&self, before: Option<&Deployment>, now: &Deployment) -> Result<()> {
        for name in now.manifest.functions.keys() {
            let Some(rule) = now.timer(name) else {
                continue;
            };
            if before.and_then(|before| before.timer(name)).is_none() {
                self.context.timers.begin(name, &rule).await?;
            }
        }
        Ok(())
    }

    /// Puts in place the outcome of a change that was to lead to `wanted`.
    ///
    /// Errors: `Conflict` if the row holds something else; `Port` if a step failed, which is
    /// [repeated](crate::lookup::pending).
    async fn follow(
        &self,
        rows: &mut Rows,
        application: &str,
        changed: Changed,
        wanted: Option<Deployment>,
    ) -> Result<()> {
        let (now, is_another) = match changed {
            Changed::Done => (wanted, false),
            Changed::Otherwise(now) => (now, true),
        };
        match &now {
            Some(deployment) => rows.insert(application.to_owned(), deployment.clone()),
            None => rows.remove(application),
        };
        let done = match now.as_ref().filter(|_| is_another) {
            Some(row) => {
                self.reconciler
                    .put_in_place_with_code(application, row)
                    .await
            }
            None => {
                self.reconciler
                    .put_in_place(application, now.as_ref())
                    .await
            }
        };
        self.reconciler.settled(application, now.as_ref(), done)?;
        if is_another {
            return Err(Error::Conflict(format!(
                "{application:?} was changed meanwhile: try again"
            )));
        }
        Ok(())
    }
}

/// Runs `work` to its end, even if the returned future is dropped.
pub(crate) async fn to_its_end<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => {
                Err(ports::Error::unavailable(format!("{operation} while the server stops")).into())
            }
        },
    }
}
