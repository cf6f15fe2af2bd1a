//! The service as front ends and other services call it.
//!
//! An [invocation](Service::invoke) that a client waits for runs to its end even if the client
//! disconnects, as on Lambda: a closed connection does not mean that half of the work should stand.
//! Its resources stay bounded by its timeout and by the places of its function. The service ensures
//! this, not the runtime, because an invocation [for another service](Service::run), such as a step
//! or an event, must end with its caller: the caller drops it when another attempt takes its place.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ports::{
    functions::Register,
    logs::{Line, Page},
    runtime::{Function, Invocation, Ran},
};

use crate::{
    config::Parts,
    cors::Cors,
    deploy::{
        deployer::{Deployer, to_its_end},
        watcher,
    },
    error::{Error, Result},
    events::{
        context::Context,
        dead_letters::{Action, DeadLetterPage, DeadLetters},
        object::ObjectEvent,
        queues::{QueuePage, Queues, WaitingMessage},
    },
    figures::{Figures, QueueWatch},
    ids::registered_name,
    lookup::catalogue::Summary,
    manifest::{Change, workflow::Workflow},
    routes::RouteMatch,
};

/// The longest payload of an invocation whose caller waits for the result: Lambda's bound.
pub const PAYLOAD_BYTES_MAX: usize = 6 * 1024 * 1024;
pub(crate) const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// The deployed functions.
#[derive(Debug, Clone)]
pub struct Service {
    pub(crate) context: Arc<Context>,
    deployer: Deployer,
    queues: Arc<QueueWatch>,
}

impl Service {
    /// A service that has yet to [start](Self::start).
    pub fn new(parts: Parts) -> Self {
        let context = Arc::new(Context::new(parts));
        Self {
            deployer: Deployer::new(Arc::clone(&context)),
            queues: Arc::new(QueueWatch::new(Arc::clone(&context))),
            context,
        }
    }

    /// Puts the stored deployments in place, and removes what a crash left. An application that
    /// cannot be put in place now is [tried again](Self::keep_in_place).
    pub fn start(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.deployer.start().await })
    }

    /// Follows the deployments of other processes, and tries applications again that could not be
    /// put in place. It runs for as long as the process does.
    pub fn keep_in_place(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            watcher::watch(self.deployer).await;
        })
    }

    /// Deploys `content`, a tar file compressed by gzip, as `application` (A1); returns its
    /// functions.
    ///
    /// Errors: `Invalid` for a fault in it, `Conflict`, `Port`.
    pub fn deploy<'a>(
        &'a self,
        application: &'a str,
        content: Bytes,
    ) -> BoxFuture<'a, Result<Vec<Summary>>> {
        Box::pin(async move {
            self.deployer.deploy(application, content).await?;
            Ok(self
                .functions()
                .into_iter()
                .filter(|function| function.application == application)
                .collect())
        })
    }

    /// Removes an application with its functions.
    pub fn remove<'a>(&'a self, application: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.deployer.remove(application).await })
    }

    /// Sets the timer of a function to every `period`, in whole seconds, or disarms it (A5).
    ///
    /// Errors: `Invalid` for a period that no manifest may have; `NoSuchFunction`, `Conflict`,
    /// `Port`.
    pub fn arm<'a>(&'a self, name: &'a str, period: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.deployer.arm(name, period).await })
    }

    /// All deployed functions.
    pub fn functions(&self) -> Vec<Summary> {
        self.context
            .lookup
            .catalogue
            .functions()
            .iter()
            .map(|deployed| deployed.summary())
            .collect()
    }

    /// A deployed function. Errors: `NoSuchFunction`; `Port` for one that is not in place yet.
    pub fn function(&self, name: &str) -> Result<Summary> {
        Ok(self.context.lookup.deployed(name)?.summary())
    }

    /// The deployed function `name` for the runtime, if it is in place.
    pub fn for_runtime(&self, name: &str) -> Option<Arc<Function>> {
        self.context.lookup.function(name)
    }

    /// Whether a change of an object starts a function, in place or pending.
    pub fn follows_object(&self, bucket: &str, key: &str, change: Change) -> bool {
        let lookup = &self.context.lookup;
        let mut catalogues = [&lookup.catalogue, &lookup.pending.promised].into_iter();
        catalogues.any(|one| !one.following(bucket, key, change).is_empty())
    }

    /// Sends the change of an object to each function that follows it (A3). It is durable when this
    /// returns.
    pub fn send_object_event<'a>(&'a self, event: ObjectEvent<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.context.send_object_event(&event).await })
    }

    /// A deployed workflow. Steps of one that is not in place yet wait.
    pub fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        self.context.lookup.workflow(name)
    }

    /// All deployed workflows, by name.
    pub fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        self.context.lookup.workflows()
    }

    /// The route for an HTTP request whose path has these decoded segments.
    pub fn route(&self, method: &str, path: &[String]) -> RouteMatch {
        self.context.lookup.route(method, path)
    }

    /// The CORS settings for a preflight request that asks about `method` at a path of these
    /// decoded segments. None: its functions answer CORS by themselves.
    pub fn cors(&self, method: &str, path: &[String]) -> Option<Arc<Cors>> {
        self.context.lookup.catalogue.cors(method, path)
    }

    /// Runs `invocation` of a function and returns its result (A2). It runs to its end even if this
    /// is dropped.
    pub fn invoke<'a>(
        &'a self,
        name: &'a str,
        invocation: Invocation,
    ) -> BoxFuture<'a, Result<Ran>> {
        Box::pin(async move {
            let (service, name) = (self.clone(), name.to_owned());
            to_its_end("run a function", async move {
                service.run(&name, invocation).await
            })
            .await
        })
    }

    /// A new request id for an [invocation](Self::invoke).
    pub fn new_request_id(&self) -> String {
        self.context.new_id()
    }

    /// As [`Self::invoke`], but the invocation ends if this is dropped.
    pub fn run<'a>(&'a self, name: &'a str, invocation: Invocation) -> BoxFuture<'a, Result<Ran>> {
        Box::pin(async move {
            if invocation.waits {
                self.context.lookup.until_in_place(name).await;
            }
            let deployed = self.context.lookup.deployed(name)?;
            check_payload(&invocation.payload, PAYLOAD_BYTES_MAX)?;
            let ran = self.context.run(&deployed.function, invocation).await;
            Ok(ran.ok_or(Error::Stopped)??)
        })
    }

    /// How many further attempts an event or a step of this function gets by its manifest; none:
    /// there is no such function.
    pub fn retries(&self, name: &str) -> Option<u32> {
        self.context.lookup.retries(name)
    }

    /// Sends a function an event (A3). Returns its request id once the event is durable.
    pub fn send<'a>(&'a self, name: &'a str, payload: Bytes) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            self.context.lookup.deployed(name)?;
            check_payload(&payload, EVENT_BYTES_MAX)?;
            let id = self.context.new_id();
            let event_id = Some(Bytes::from(id.clone()));
            let (parts, function) = (&self.context.parts, registered_name(name));
            let receipt = parts.functions.send(&function, event_id, payload).await?;
            parts.queue.externalize(receipt.point).await?;
            Ok(id)
        })
    }

    /// The lines of a function that fit in `page`.
    pub fn lines<'a>(&'a self, name: &'a str, page: Page) -> BoxFuture<'a, Result<Vec<Line>>> {
        Box::pin(async move {
            self.context.lookup.deployed(name)?;
            let lines = self.context.parts.logs.lines(name, page).await;
            lines.map_err(|error| {
                let failed = ports::Error::unavailable("read the log of a function");
                failed.caused_by(error).into()
            })
        })
    }

    /// Waits for a line of the function whose number is `from` or later, after [`Self::lines`]
    /// returned none.
    pub fn more_lines<'a>(&'a self, name: &'a str, from: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.context.parts.logs.more_lines(name, from).await;
        })
    }

    /// A page of the dead letters of a function, after the one with the id `after`.
    ///
    /// Errors: `NoSuchFunction`; `Invalid` if `after` is not an id; `Port`.
    pub fn dead_letters<'a>(
        &'a self,
        function: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<DeadLetterPage>> {
        Box::pin(async move { DeadLetters(&self.context).page(function, after).await })
    }

    /// Sends the dead letter `id` of a function again, or all of them. Returns how many once that
    /// is durable; dead letters that another caller settles at the same moment count too.
    ///
    /// Errors: as [`Self::dead_letters`], and `NoSuchDeadLetter`. Some may have been sent again
    /// before the error; none is lost.
    pub fn redrive<'a>(
        &'a self,
        function: &'a str,
        id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move { self.settle(function, id, Action::Redrive).await })
    }

    /// Removes the dead letter `id` of a function permanently, or all of them; returns as
    /// [`Self::redrive`] does.
    pub fn purge<'a>(
        &'a self,
        function: &'a str,
        id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move { self.settle(function, id, Action::Purge).await })
    }

    /// To its end, even if this is dropped: it may have settled some already.
    async fn settle(&self, function: &str, id: Option<&str>, action: Action) -> Result<u64> {
        let context = Arc::clone(&self.context);
        let (function, id) = (function.to_owned(), id.map(str::to_owned));
        to_its_end("settle dead letters", async move {
            let letters = DeadLetters(&context);
            letters.settle(&function, id.as_deref(), action).await
        })
        .await
    }

    /// A page of the queues that start deployed functions, after the queue `after`, with their
    /// backlogs.
    ///
    /// Errors: `Port`.
    pub fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<QueuePage>> {
        Box::pin(async move { Queues(&self.context).page(after).await })
    }

    /// The first messages of a queue, ten at most, without delivering them.
    ///
    /// Errors: `NoSuchQueue`, `Port`.
    pub fn waiting_messages<'a>(
        &'a self,
        queue: &'a str,
    ) -> BoxFuture<'a, Result<Vec<WaitingMessage>>> {
        Box::pin(async move { Queues(&self.context).first(queue).await })
    }

    /// Removes the messages that wait in a queue; those that a function has at the moment stay.
    /// Returns how many once that is durable. It runs to its end even if this is dropped: it would
    /// otherwise hold messages back that stay in the queue.
    ///
    /// Errors: `NoSuchQueue`, `Port`. Some may have been removed before the error.
    pub fn purge_queue<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let (context, queue) = (Arc::clone(&self.context), queue.to_owned());
            to_its_end("purge a queue", async move {
                Queues(&context).purge(&queue).await
            })
            .await
        })
    }

    /// The figures now, with the backlogs of the last [poll](Self::poll_queues); returns at once.
    pub fn figures(&self) -> Figures {
        self.queues.figures()
    }

    /// Reads the backlogs of the functions' queues, and has waiting events taken here.
    ///
    /// Errors: a queue's. The earlier results then stay, and the next poll continues after that
    /// queue.
    pub fn poll_queues(&self) -> BoxFuture<'_, ports::Result<()>> {
        Box::pin(async move { self.queues.poll().await })
    }

    /// The provider that runs events of functions, by their registered names.
    pub(crate) fn events(&self) -> &dyn Register {
        &*self.context.parts.functions
    }

    /// From here on, a failing event or message is not reported, because the stop may be the cause.
    /// No further events are taken. Invocations under way continue, and may cause others.
    pub fn begin_stop(&self) {
        self.context.stop.begin();
    }

    /// Waits until no invocation is under way.
    pub fn idle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.context.stop.idle().await })
    }

    /// Ends the invocations under way, after [`Self::begin_stop`]. Their callers get
    /// [`Error::Stopped`]. Events and messages are tried again after the next start, and this
    /// attempt is not one of theirs (A3).
    pub fn interrupt(&self) {
        self.context.stop.interrupt();
    }

    /// Ends all instances. This fails none of the events and messages they work on. Returns once
    /// nothing is left of the instances, or after a bounded wait.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.begin_stop();
            self.interrupt();
            self.context.parts.runtime.close().await;
        })
    }
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
