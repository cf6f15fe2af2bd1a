//! Deploying functions, removing them, invoking them; putting everything back in place at a start.
//!
//! Deployments change one at a time. The order of a deployment: the archive is installed here, checked, put among the objects;
//! the row is changed, which decides; what is no more there is taken from queues and timers; then the catalogue changes, from
//! which on calls and requests find what is new; then triggers and timers follow, each of which may be done again; then what
//! nobody names goes.
//!
//! Invariants
//! - A change that has begun goes on to its end, also where nobody waits for it any more.
//! - So does an invocation that [a client waits for](Service::invoke), as Lambda's do: whoever hangs up has not said that the
//!   half that was done is to stand. What it holds is bounded as ever, by its timeout and by the places of its function. It is done
//!   here and not by the runtime since what is run [for somebody of ours](Service::run), a step or an event, ends with them: they
//!   drop what another attempt is to take the place of.
//! - What is known is what the row says, as far as it was heard of, also where what follows it failed: that is [done
//!   again](crate::pending), by itself or by the next change.

use std::{collections::BTreeMap, fmt, panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use ports::{
    Clock, Entropy,
    functions::{Definition, FunctionOptions, QueueTrigger, Register},
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::{QueueOptions, SharedQueue, SharedQueueAdmin},
    runtime::{Function, Invocation, Line, Page, Ran, Refused, Runtime},
};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tokio::sync::Mutex;

use crate::{
    batch,
    catalogue::{Catalogue, Known, Summary},
    deployment::{Changed, Changing, Deployment, Deployments, digest},
    event::hexadecimal,
    figures::Seen,
    following::Unnamed,
    handler::{Deployed, Stop, attempt_max},
    manifest::{self, FILE_NAME, MANIFEST_BYTES_MAX, Manifest, Table, workflow::Workflow},
    pending::Pending,
    routes::Found,
    schedule::Schedule,
};

/// The longest payload of an invocation whose result is waited for: Lambda's.
pub const PAYLOAD_BYTES_MAX: usize = 6 * 1024 * 1024;
/// The longest payload of an event.
pub(crate) const EVENT_BYTES_MAX: usize = 1024 * 1024;
/// What begins the names of deployed functions among all that run here.
pub(crate) const PREFIX: &str = "functions/";
/// What a change of what is deployed is called where it fails.
pub(crate) const DEPLOY: &str = "change what is deployed";

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no function of this name.
    #[error("there is no function {0:?}")]
    NoSuchFunction(String),
    /// There is no application of this name.
    #[error("there is no application {0:?}")]
    NoSuchApplication(String),
    /// The function has no dead letter that is called so.
    #[error(
        "there is no dead letter {0:?}: it was sent again or removed, or never was; the list has those that there are"
    )]
    NoSuchLetter(String),
    /// What was given cannot be deployed, or called.
    #[error("{0}")]
    Invalid(String),
    /// It is longer than it may be.
    #[error("{0} bytes at most")]
    TooLarge(usize),
    /// Another application has a function of this name, or the application was changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// It was not run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A port said no.
    #[error(transparent)]
    Port(#[from] ports::Error),
}

/// What a call came to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the service stands on.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Where deployments are.
    pub key_value: SharedKeyValue,
    /// Where their archives are.
    pub objects: Arc<dyn ObjectStore>,
    /// Where queues are that start functions.
    pub queue: SharedQueue,
    /// Their administration: backlogs and dead letters.
    pub queue_admin: SharedQueueAdmin,
    /// What a client's queue is called there.
    pub queue_name: fn(&str) -> String,
    /// Why an address, which may hold a password, is none of a far store.
    pub check_far: fn(&str) -> std::result::Result<(), String>,
    /// Whether other processes deploy to the same store.
    pub among_others: bool,
    /// What says when functions run.
    pub functions: Arc<dyn Register>,
    /// What runs them.
    pub runtime: Arc<dyn Runtime>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// For names that nobody can guess or give twice.
    pub entropy: Arc<dyn Entropy>,
}

/// The functions that people deploy.
#[derive(Debug, Clone)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) parts: Parts,
    pub(crate) deployments: Deployments,
    pub(crate) catalogue: Catalogue,
    pub(crate) pending: Pending,
    /// Held by whoever changes what is deployed; what is, by application.
    pub(crate) changing: Arc<Mutex<Changing>>,
    pub(crate) unnamed: parking_lot::Mutex<Unnamed>,
    /// When timers go off next.
    pub(crate) schedule: Schedule,
    /// The timers that are armed here, with their periods; held while one is armed or disarmed.
    pub(crate) timers: Mutex<BTreeMap<String, Duration>>,
    /// What waits in queues, as somebody saw it last.
    pub(crate) seen: parking_lot::Mutex<Seen>,
    pub(crate) stop: Stop,
}

impl Service {
    /// A service that has yet to [start](Self::start).
    pub fn new(parts: Parts) -> Self {
        let deployments =
            Deployments::new(Arc::clone(&parts.key_value), Arc::clone(&parts.objects));
        let (catalogue, pending, changing) =
            (Catalogue::default(), Pending::default(), Arc::default());
        let (unnamed, seen) = (parking_lot::Mutex::default(), parking_lot::Mutex::default());
        let (schedule, timers) = (
            Schedule::new(Arc::clone(&parts.key_value), Arc::clone(&parts.clock)),
            Mutex::default(),
        );
        let stop = Stop::default();
        let inner = Inner {
            parts,
            deployments,
            catalogue,
            pending,
            changing,
            unnamed,
            schedule,
            timers,
            seen,
            stop,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Puts in place what is deployed, and removes what a death left. What cannot be put in place now is [so later](Self::keep_in_place).
    pub async fn start(&self) -> Result<()> {
        let mut changing = self.inner.changing.lock().await;
        self.catch_up(&mut changing).await?;
        self.inner.catalogue.put_in_place();
        self.remove_archives(&changing).await
    }

    /// Makes `content`, a tar compressed by gzip, what is deployed as `application` (A1); returns its functions.
    ///
    /// Errors: `Invalid` for what is wrong with it, `Conflict`, `Port`.
    pub async fn deploy(&self, application: &str, content: Bytes) -> Result<Vec<Summary>> {
        manifest::check_name("the application", application).map_err(Error::Invalid)?;
        let mut changing = Arc::clone(&self.inner.changing).lock_owned().await;
        let (service, name) = (self.clone(), application.to_owned());
        let replacing = async move {
            let replaced = service.replace(&mut changing, &name, content).await;
            if replaced.is_err() {
                service.remove_code(&changing).await;
            }
            replaced
        };
        to_its_end(DEPLOY, replacing).await?;
        Ok(self
            .functions()
            .into_iter()
            .filter(|function| function.application == application)
            .collect())
    }

    async fn replace(
        &self,
        changing: &mut Changing,
        application: &str,
        content: Bytes,
    ) -> Result<()> {
        let archive = digest(&content);
        let (text, manifest) = self.unpack(&archive, content.clone()).await?;
        self.check_what_is_new(application, &text, &manifest)?;
        for (name, table) in &manifest.functions {
            let checked = self
                .inner
                .parts
                .runtime
                .check(&table.function(name, &archive, ""))
                .await;
            checked.map_err(|why| Error::Invalid(format!("functions.{name}: {why}")))?;
        }
        self.catch_up_with_others(changing).await?;
        self.check_beside(changing, application, &manifest)?;
        let before = changing.get(application).cloned();
        let known = before.as_ref().map(|before| before.generation);
        let timers = before
            .as_ref()
            .map(|before| before.kept_timers(&manifest))
            .unwrap_or_default();
        let generation = known.map_or(1, |known| known + 1);
        let deployment = Deployment {
            manifest,
            text,
            archive,
            generation,
            deployed: generation,
            timers,
        };
        self.inner
            .deployments
            .put_archive(&deployment.archive, content)
            .await?;
        self.begin_timers(before.as_ref(), &deployment).await?;
        let changed = self
            .inner
            .deployments
            .put(application, &deployment, known)
            .await;
        let changed = self.heard(application, before.as_ref(), changed)?;
        self.follow(changing, application, changed, Some(deployment))
            .await?;
        self.remove_archives(changing).await
    }

    /// Removes an application with its functions.
    pub async fn remove(&self, application: &str) -> Result<()> {
        let mut changing = Arc::clone(&self.inner.changing).lock_owned().await;
        let (service, name) = (self.clone(), application.to_owned());
        to_its_end(DEPLOY, async move {
            service.remove_all(&mut changing, &name).await
        })
        .await
    }

    async fn remove_all(&self, changing: &mut Changing, application: &str) -> Result<()> {
        self.catch_up_with_others(changing).await?;
        let changed = match changing.get(application) {
            Some(before) => {
                let changed = self
                    .inner
                    .deployments
                    .delete(application, before.generation)
                    .await;
                self.heard(application, Some(before), changed)?
            }
            // Its row has gone, but what followed failed.
            None if !self.in_place(application).is_empty() => Changed::Done,
            None => return Err(Error::NoSuchApplication(application.to_owned())),
        };
        self.follow(changing, application, changed, None).await?;
        self.remove_archives(changing).await
    }

    /// Makes what a change came to what is known, and what runs. `wanted` is what it was to be.
    ///
    /// Errors: `Conflict` if it is something else; `Port`, and then what is missing [is done again](crate::pending).
    pub(crate) async fn follow(
        &self,
        changing: &mut Changing,
        application: &str,
        changed: Changed,
        wanted: Option<Deployment>,
    ) -> Result<()> {
        let (now, is_another) = match changed {
            Changed::Done => (wanted, false),
            Changed::Otherwise(now) => (now, true),
        };
        match &now {
            Some(deployment) => changing.insert(application.to_owned(), deployment.clone()),
            None => changing.remove(application),
        };
        let done = match now.as_ref().filter(|_| is_another) {
            Some(row) => self.put_in_place_with_code(application, row).await,
            None => self.put_in_place(application, now.as_ref()).await,
        };
        self.settled(application, now.as_ref(), done)?;
        if is_another {
            return Err(Error::Conflict(format!(
                "{application:?} was changed meanwhile: try again"
            )));
        }
        Ok(())
    }

    /// All deployed functions.
    pub fn functions(&self) -> Vec<Summary> {
        self.inner
            .catalogue
            .functions()
            .iter()
            .map(|known| known.summary())
            .collect()
    }

    /// A deployed function. Errors: `NoSuchFunction`; `Port` for one that is not in place yet.
    pub fn function(&self, name: &str) -> Result<Summary> {
        let known = self.inner.catalogue.function(name);
        known
            .map(|known| known.summary())
            .ok_or_else(|| self.inner.unknown(name))
    }

    /// A deployed workflow, also if it is not in place yet: its steps wait.
    pub fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        let Inner {
            catalogue, pending, ..
        } = &*self.inner;
        catalogue
            .workflow(name)
            .or_else(|| pending.promised().workflow(name))
    }

    /// All deployed workflows, by name.
    pub fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        let mut all = self.inner.pending.promised().workflows();
        all.extend(self.inner.catalogue.workflows());
        all
    }

    /// What is deployed for a request over HTTP, whose path is of these segments, decoded.
    pub fn route(&self, method: &str, path: &[String]) -> Found {
        self.inner.route(method, path)
    }

    /// Runs `invocation` of a function and waits for its result (A2); it goes on to its end if this is dropped.
    pub async fn invoke(&self, name: &str, invocation: Invocation) -> Result<Ran> {
        let (service, name) = (self.clone(), name.to_owned());
        to_its_end("run a function", async move {
            service.run(&name, invocation).await
        })
        .await
    }

    /// A request id that nobody has, for an [invocation](Self::invoke).
    pub fn new_request_id(&self) -> String {
        self.inner.new_id()
    }

    /// As [`Self::invoke`], but it is ended if this is dropped.
    pub async fn run(&self, name: &str, invocation: Invocation) -> Result<Ran> {
        if invocation.waits {
            self.inner.until_in_place(name).await;
        }
        let function = self.inner.known_function(name)?;
        check_payload(&invocation.payload, PAYLOAD_BYTES_MAX)?;
        Ok(self.inner.parts.runtime.run(&function, invocation).await?)
    }

    /// How often an event or a step of this function is tried again, as its manifest says; none: there is no such function.
    pub fn retries(&self, name: &str) -> Option<u32> {
        self.inner.retries(name)
    }

    /// Has a function run some time soon (A3); returns once that is durable, with its request id.
    pub async fn send(&self, name: &str, payload: Bytes) -> Result<String> {
        self.inner.known_function(name)?;
        check_payload(&payload, EVENT_BYTES_MAX)?;
        let id = self.inner.new_id();
        let named = Some(Bytes::from(id.clone()));
        let receipt = self
            .inner
            .parts
            .functions
            .send(&[PREFIX, name].concat(), named, payload)
            .await?;
        self.inner.parts.queue.externalize(receipt.point).await?;
        Ok(id)
    }

    /// Some of the lines that a function printed.
    pub async fn lines(&self, name: &str, page: Page) -> Result<Vec<Line>> {
        self.inner.known_function(name)?;
        let lines = self.inner.parts.runtime.lines(name, page).await;
        lines.map_err(|error| {
            let unavailable = ports::ErrorKind::Unavailable {
                retry_after_ms: None,
            };
            ports::Error::new(unavailable, "read what a function printed")
                .caused_by(error)
                .into()
        })
    }

    /// Ends once the line of the function that has the number `from`, or a later one, is there, if that is after [`Self::lines`] had none.
    pub async fn more_lines(&self, name: &str, from: u64) {
        self.inner.parts.runtime.more_lines(name, from).await;
    }

    /// What runs events of functions, under their names there.
    pub(crate) fn events(&self) -> &dyn Register {
        &*self.inner.parts.functions
    }

    /// What is at work for an event or a message and fails from here on has no end, since the stop may be why; nothing more is taken.
    pub fn begin_stop(&self) {
        self.inner.stop.begin();
    }

    /// Ends all instances, which fails nothing that they are at for an event or a message; returns once nothing is left of them, or after
    /// a while.
    pub async fn stop(&self) {
        self.begin_stop();
        self.inner.parts.runtime.close().await;
    }

    async fn unpack(&self, archive: &str, content: Bytes) -> Result<(String, Manifest)> {
        let runtime = &self.inner.parts.runtime;
        // To who has made the archive its digest says nothing; what is in it does.
        let refused = |error: ports::Error| match std::error::Error::source(&error) {
            Some(why) if error.kind() == ports::ErrorKind::Invalid => {
                Error::Invalid(format!("the archive is refused: {why}"))
            }
            _ => error.into(),
        };
        runtime.install(archive, content).await.map_err(refused)?;
        let missing = || Error::Invalid(format!("the archive has no {FILE_NAME}"));
        let text = runtime
            .file(archive, FILE_NAME, MANIFEST_BYTES_MAX)
            .await?
            .ok_or_else(missing)?;
        let text = String::from_utf8(text.into())
            .map_err(|_| Error::Invalid("the manifest is no UTF-8".into()))?;
        let manifest = Manifest::parse(&text).map_err(Error::Invalid)?;
        Ok((text, manifest))
    }

    /// When it is deployed alone: what is deployed is read at a start, whatever an earlier build took.
    fn check_what_is_new(&self, application: &str, text: &str, manifest: &Manifest) -> Result<()> {
        manifest
            .check_as_new(application, text)
            .map_err(Error::Invalid)?;
        for (name, workflow) in &manifest.workflows {
            let Some(far) = &workflow.far else { continue };
            let wrong = |why| Error::Invalid(format!("workflows.{name}: far: {why}"));
            (self.inner.parts.check_far)(far).map_err(wrong)?;
        }
        Ok(())
    }

    /// Makes what an application is now what runs, in place of what does; none: nothing.
    pub(crate) async fn put_in_place(
        &self,
        application: &str,
        now: Option<&Deployment>,
    ) -> Result<()> {
        let before = self.in_place(application);
        self.disarm(&before, now).await?;
        let catalogue = &self.inner.catalogue;
        match now {
            Some(now) => {
                // First: who finds something in the catalogue is not run on the code of what was there before (U4, A7).
                now.functions()
                    .for_each(|function| self.inner.parts.runtime.renew(&function));
                now.manifest
                    .functions
                    .iter()
                    .for_each(|(name, table)| self.register(name, table));
                catalogue.replace(
                    application,
                    Some(&now.manifest),
                    &now.archive,
                    &now.revision(),
                );
            }
            None => catalogue.replace(application, None, "", ""),
        }
        let names = before.iter().map(|known| &known.function.name);
        for name in names.filter(|name| catalogue.function(name).is_none()) {
            self.inner.parts.runtime.retire(name);
            self.tell_of_events(name).await;
        }
        let Some(now) = now else { return Ok(()) };
        // One that cannot be armed keeps no other from being.
        let mut all = Ok(());
        for (name, table) in &now.manifest.functions {
            for trigger in table.queues() {
                all = all.and(self.arm_queue(name, table, trigger).await);
            }
            all = all.and(self.follow_timer(name, now.period(name)).await);
        }
        all
    }

    /// Says so if events wait for a function that was removed: nobody sees them until one of its name is deployed (A8).
    async fn tell_of_events(&self, name: &str) {
        let queue = self.events().event_queue(&[PREFIX, name].concat());
        // Errors: there is no queue, as nothing was ever sent; or it is not known now, and nothing hangs on it.
        let waiting = self
            .inner
            .parts
            .queue_admin
            .backlog(&queue)
            .await
            .map_or(0, |backlog| backlog.messages);
        if waiting > 0 {
            tracing::warn!(
                function = name,
                waiting,
                "the function was removed, and events for it wait until one of its name is deployed"
            );
        }
    }

    fn register(&self, name: &str, table: &Table) {
        let service = Arc::downgrade(&self.inner);
        self.inner.parts.functions.register(Definition {
            name: [PREFIX, name].concat().into(),
            options: FunctionOptions {
                timeout: attempt_max(Duration::from_secs(table.timeout_s)),
                attempts_max: 1 + table.retries,
                exception_handler: table
                    .on_failure
                    .as_ref()
                    .map(|told| [PREFIX, told].concat()),
            },
            handler: Arc::new(Deployed::new(name, service)),
        });
    }

    async fn arm_queue(
        &self,
        name: &str,
        table: &Table,
        trigger: &manifest::QueueTrigger,
    ) -> Result<()> {
        let Parts {
            queue,
            queue_name,
            functions,
            ..
        } = &self.inner.parts;
        let queue_at_provider = queue_name(&trigger.queue);
        let options = QueueOptions {
            attempts_max: batch::ATTEMPTS_MAX,
            on_failure: batch::on_failure(table.on_failure.as_deref()),
            ..QueueOptions::default()
        };
        queue.create(&queue_at_provider, options).await?;
        let function = [PREFIX, name].concat();
        let batch_messages_max = trigger.batch;
        functions
            .arm_queue(QueueTrigger {
                queue: queue_at_provider,
                function,
                batch_messages_max,
            })
            .await?;
        Ok(())
    }

    /// What runs of `application`.
    fn in_place(&self, application: &str) -> Vec<Arc<Known>> {
        let all = self.inner.catalogue.functions().into_iter();
        all.filter(|known| known.application == application)
            .collect()
    }

    /// Takes queues and timers from what runs in place and has them `now` no more.
    async fn disarm(&self, in_place: &[Arc<Known>], now: Option<&Deployment>) -> Result<()> {
        let functions = &self.inner.parts.functions;
        for Known {
            function, table, ..
        } in in_place.iter().map(|known| &**known)
        {
            let now = now.and_then(|now| now.manifest.functions.get(&function.name));
            for trigger in table.queues() {
                let is_kept =
                    now.is_some_and(|now| now.queues().any(|kept| kept.queue == trigger.queue));
                if !is_kept {
                    functions
                        .disarm_queue(&(self.inner.parts.queue_name)(&trigger.queue))
                        .await?;
                }
            }
            if now.is_none() {
                self.follow_timer(&function.name, None).await?;
            }
        }
        Ok(())
    }
}

/// Ends with `work`, which goes on to its end also if this does not: nobody has asked for half of it.
pub(crate) async fn to_its_end<T: Send + 'static>(
    what: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => {
                Err(ports::Error::unavailable(format!("{what} while the server stops")).into())
            }
        },
    }
}

impl Inner {
    /// What is deployed under `name`.
    pub(crate) fn function(&self, name: &str) -> Option<Arc<Function>> {
        self.catalogue
            .function(name)
            .map(|known| Arc::clone(&known.function))
    }

    /// Ends once something else is deployed than when this was called, or the service is gone.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.catalogue.changed()
    }

    /// How many functions are deployed.
    pub(crate) fn count(&self) -> usize {
        self.catalogue.functions().len()
    }

    /// Calls `see` with each deployed function.
    pub(crate) fn for_each(&self, mut see: impl FnMut(&str, &Table)) {
        for known in self.catalogue.functions() {
            see(&known.function.name, &known.table);
        }
    }

    fn known_function(&self, name: &str) -> Result<Arc<Function>> {
        self.function(name).ok_or_else(|| self.unknown(name))
    }

    /// What the application of `function` calls the queue that is `at_provider` there; none of its queues any more: that.
    pub(crate) fn own_queue_name(&self, function: &str, at_provider: String) -> String {
        let known = self.catalogue.function(function);
        let queues = known.iter().flat_map(|known| known.table.queues());
        let mut own = queues.map(|trigger| &trigger.queue);
        let own = own.find(|queue| (self.parts.queue_name)(queue) == at_provider);
        own.cloned().unwrap_or(at_provider)
    }

    /// Who is told of what this function fails for good.
    pub(crate) fn told_of(&self, name: &str) -> Option<String> {
        self.catalogue
            .function(name)
            .and_then(|known| known.table.on_failure.clone())
    }

    /// How often an event of this function is tried again.
    pub(crate) fn retries(&self, name: &str) -> Option<u32> {
        let known = self
            .catalogue
            .function(name)
            .or_else(|| self.pending.promised().function(name));
        known.map(|known| known.table.retries)
    }

    /// A request id that nobody has.
    pub(crate) fn new_id(&self) -> String {
        let bits = u128::from(self.parts.entropy.next_u64()) << 64
            | u128::from(self.parts.entropy.next_u64());
        uuid(bits.to_be_bytes()).to_string()
    }
}

/// A function as its application calls it.
pub(crate) fn own_name(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// The request id of what somebody calls `id`: itself if it can stand in a header.
pub(crate) fn request_id(id: &[u8]) -> String {
    match std::str::from_utf8(id) {
        Ok(text) if text.len() <= 64 && !text.is_empty() && text.bytes().all(is_plain) => {
            text.to_owned()
        }
        _ => digest_id(&[id]),
    }
}

/// The request id under which `told` is told that `failed` gave up on the event `id`: the same at every attempt (A3), and nobody
/// else's. Under the event's own what it does in transactions without ids would be taken for what `failed` has done.
pub(crate) fn told_id(told: &str, failed: &str, id: &str) -> String {
    digest_id(&[told.as_bytes(), failed.as_bytes(), id.as_bytes()])
}

/// The first 16 bytes of the digest of `parts`, of which the last alone may have a zero byte in it.
pub(crate) fn digest_id(parts: &[&[u8]]) -> String {
    let digest = Sha256::digest(parts.join(&0));
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest[..16]);
    uuid(bits).to_string()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte)
}

/// 16 bytes as a random UUID (RFC 9562, version 4) is written.
pub fn uuid(mut bits: [u8; 16]) -> impl fmt::Display {
    bits[6] = bits[6] & 0x0f | 0x40;
    bits[8] = bits[8] & 0x3f | 0x80;
    let digits = hexadecimal(&bits);
    [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ]
    .join("-")
}

fn check_payload(payload: &[u8], bytes_max: usize) -> Result<()> {
    if payload.len() > bytes_max {
        Err(Error::TooLarge(bytes_max))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
