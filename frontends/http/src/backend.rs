//! The services behind the routes, and what the network edge adds to each call.
//!
//! A response is sent only once everything it depends on is durable (rule P4). Services do not wait
//! for the disk, so a read may return a value that another client has just written. If that was
//! sent at once, a crash could take back what a client has seen.
//!
//! The engine keeps retrying while its store is out of order. Here each call has a deadline, so the
//! client gets a response instead of a connection that ends without one.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::timeout;
use transactions::{Engine, model::Call, peers::more_time_for};

use crate::{
    backups::Backups,
    body::Budget,
    open_volumes::OpenVolumes,
    problem::{Kind, Problem},
    services::Services,
    volume_peers::VolumePeers,
    volume_transactions::{VolumeTransaction, VolumeTransactions},
};

/// The bounds of the front end.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that are served at once. More are refused with 503.
    pub connections_max: usize,
    /// The longest value of a key, in bytes; beyond it 413.
    pub value_bytes_max: usize,
    /// The bytes of all bodies that are received or worked on; beyond it 429.
    pub buffered_bytes_max: usize,
    /// The time of a service for a response, before it is 503: longer than a commit takes to report
    /// that it is undecided.
    pub answer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            value_bytes_max: 64 << 20,
            buffered_bytes_max: 256 << 20,
            answer_timeout: Duration::from_secs(8),
        }
    }
}

/// The services with the bounds of their calls, shared by the listeners of a process.
#[derive(Debug)]
pub struct Backend {
    services: Arc<Services>,
    pub(crate) budget: Budget,
    /// The longest value in a body, in bytes.
    pub(crate) value_bytes_max: usize,
    /// The time that a service has for a response.
    pub(crate) answer_timeout: Duration,
    callers: Callers,
}

/// The callers of the routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callers {
    /// Clients, over the network.
    Clients,
    /// Functions at work on this machine.
    Functions,
}

impl Backend {
    /// The services for clients, with a budget for bodies of their own.
    pub fn new(services: Arc<Services>, limits: &Limits) -> Self {
        Self::with_callers(services, limits, Callers::Clients)
    }

    /// The same for functions at work on this machine.
    pub(crate) fn for_functions(services: Arc<Services>, limits: &Limits) -> Self {
        Self::with_callers(services, limits, Callers::Functions)
    }

    fn with_callers(services: Arc<Services>, limits: &Limits, callers: Callers) -> Self {
        Self {
            services,
            budget: Budget::new(limits.buffered_bytes_max),
            value_bytes_max: limits.value_bytes_max,
            answer_timeout: limits.answer_timeout,
            callers,
        }
    }

    /// Refuses a request of a client that would run a function while the server stops. A function
    /// at work may call others: it could not end its own work without them.
    pub(crate) fn check_takes_work(&self) -> Result<(), Problem> {
        if self.callers == Callers::Clients && self.services.is_stopping() {
            let why = "the server is stopping; nothing has run";
            return Err(Problem::new(Kind::Unavailable, why));
        }
        Ok(())
    }

    /// The engine of transactions and state. Errors: [`Kind::Unavailable`] until it runs.
    pub(crate) fn transactions(&self) -> Result<&Engine, Problem> {
        running(&self.services.transactions)
    }

    /// The deployed functions. Errors: [`Kind::Unavailable`] until they can be run.
    pub(crate) fn functions(&self) -> Result<&functions::Service, Problem> {
        running(&self.services.functions)
    }

    /// The workflows. Errors: [`Kind::Unavailable`] until they can be run.
    pub(crate) fn workflows(&self) -> Result<&workflows::Service, Problem> {
        running(&self.services.workflows)
    }

    /// The volumes. Errors: [`Kind::Unavailable`] until they are served.
    pub(crate) fn volumes(&self) -> Result<&OpenVolumes, Problem> {
        running(&self.services.volumes)
    }

    /// Takes backups. Errors: [`Kind::Unavailable`] until the store is open.
    pub(crate) fn backups(&self) -> Result<&Arc<dyn Backups>, Problem> {
        running(&self.services.backups)
    }

    /// Serves volumes to other servers. Errors: [`Kind::Unavailable`] until they are served, and
    /// always on a store without others.
    pub(crate) fn volume_peers(&self) -> Result<&Arc<dyn VolumePeers>, Problem> {
        running(&self.services.volume_peers)
    }

    /// The transaction on a volume that a call is for, if it is one. Errors: the call is for an
    /// earlier attempt.
    pub(crate) fn on_volume(&self, call: &Call) -> Result<Option<Arc<VolumeTransaction>>, Problem> {
        match self.services.volume_transactions.get() {
            Some(transactions) => transactions.find(call),
            None => Ok(None),
        }
    }

    /// The transactions on volumes. Errors: [`Kind::Unavailable`] until volumes are served.
    pub(crate) fn volume_transactions(&self) -> Result<&VolumeTransactions, Problem> {
        running(&self.services.volume_transactions)
    }

    /// The result of a read, once everything it depends on is durable.
    pub(crate) async fn durable<T>(
        &self,
        engine: &Engine,
        call: impl Future<Output = transactions::Result<ports::Read<T>>>,
    ) -> Result<T, Problem> {
        let durable = async {
            let read = call.await?;
            engine.externalize(read.point).await?;
            Ok(read.value)
        };
        self.in_time(0, Kind::Unavailable, durable).await
    }

    /// The result of a call with a body of `bytes`: on a busy machine a large value takes longer.
    /// Errors: `late` if it takes longer than a client should wait.
    pub(crate) async fn in_time<T>(
        &self,
        bytes: usize,
        late: Kind,
        call: impl Future<Output = transactions::Result<T>>,
    ) -> Result<T, Problem> {
        let call = async { call.await.map_err(Problem::from) };
        self.within(bytes, late, call).await
    }

    /// The same for a call with refusals of its own.
    pub(crate) async fn within<T>(
        &self,
        bytes: usize,
        late: Kind,
        call: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let limit = self.answer_timeout + more_time_for(bytes);
        match Box::pin(timeout(limit, call)).await {
            Ok(ended) => ended,
            Err(_elapsed) => Err(Problem::new(late, "the store does not answer in time")),
        }
    }
}

fn running<T>(service: &OnceLock<T>) -> Result<&T, Problem> {
    let starting = || Problem::new(Kind::Unavailable, "the server is starting");
    service.get().ok_or_else(starting)
}
