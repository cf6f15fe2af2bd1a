//! What stands behind the routes of services, and what the edge adds to each of their calls.
//!
//! An answer leaves only once what it rests on is durable (rule P4): inside nobody waits for the disk, and a
//! read may be given what another client has just written; were that shown at once, a crash could take back what
//! a client has seen. And the engine goes on trying while its store is out of order: a client hears of that in
//! time, in place of a connection that ends without a word.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::timeout;
use transactions::{Engine, model::Shown, peers::more_time_for};

use crate::{
    body::Budget,
    connection::{OfConnection, wait},
    problem::{Kind, Problem},
    services::Services,
};

/// What the routes of services share.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) services: Arc<Services>,
    pub(crate) budget: Budget,
    /// The longest value that a body may carry.
    pub(crate) value_bytes_max: usize,
    /// How long a service has for an answer.
    pub(crate) answer_timeout: Duration,
}

impl Backend {
    /// The engine of transactions and state. Errors: [`Kind::Unavailable`] until it runs.
    pub(crate) fn transactions(&self) -> Result<&Engine, Problem> {
        self.services.transactions()
    }

    /// The functions that people deploy. Errors: [`Kind::Unavailable`] until they can be run.
    pub(crate) fn functions(&self) -> Result<&functions::Service, Problem> {
        self.services.functions()
    }

    /// The workflows. Errors: [`Kind::Unavailable`] until they can be run.
    pub(crate) fn workflows(&self) -> Result<&workflows::Service, Problem> {
        self.services.workflows()
    }

    /// What a call that changes nothing shows, once all of it is durable.
    pub(crate) async fn durable<T>(
        &self,
        engine: &Engine,
        call: impl Future<Output = transactions::Result<Shown<T>>>,
    ) -> Result<T, Problem> {
        let shown = async {
            let shown = call.await?;
            engine.externalize(shown.point).await?;
            Ok(shown.value)
        };
        self.in_time(Kind::Unavailable, shown).await
    }

    /// What a call comes to, or `late` if it takes longer than a client should wait.
    pub(crate) fn in_time<T>(
        &self,
        late: Kind,
        call: impl Future<Output = transactions::Result<T>>,
    ) -> impl Future<Output = Result<T, Problem>> {
        within(self.answer_timeout, late, call)
    }

    /// The same for a call that brought so many bytes, over a connection that may be quiet meanwhile: on a busy machine what is long takes longer.
    pub(crate) async fn in_time_for<T>(
        &self,
        bytes: usize,
        waits: &OfConnection,
        late: Kind,
        call: impl Future<Output = transactions::Result<T>>,
    ) -> Result<T, Problem> {
        let _waits = wait(waits);
        let limit = self.answer_timeout + more_time_for(bytes);
        Box::pin(within(limit, late, call)).await
    }
}

async fn within<T>(
    limit: Duration,
    late: Kind,
    call: impl Future<Output = transactions::Result<T>>,
) -> Result<T, Problem> {
    match timeout(limit, call).await {
        Ok(ended) => ended.map_err(Problem::from),
        Err(_elapsed) => Err(Problem::new(late, "the store does not answer in time")),
    }
}
