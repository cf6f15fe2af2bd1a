//! The services behind the routes, and what the network edge adds to each call.
//!
//! A response is sent only once everything it depends on is durable (rule P4). Services do not wait
//! for the disk, so a read may return a value that another client has just written. If that was
//! sent at once, a crash could take back what a client has seen.
//!
//! The engine keeps retrying while its store is out of order. Here each call has a deadline, so the
//! client gets a response instead of a connection that ends without one.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::timeout;
use transactions::{Engine, model::Shown, peers::more_time_for};

use crate::{
    body::Budget,
    problem::{Kind, Problem},
    services::Services,
};

/// Shared by the routes of all services.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) services: Arc<Services>,
    pub(crate) budget: Budget,
    /// The longest value in a body, in bytes.
    pub(crate) value_bytes_max: usize,
    /// The time that a service has for a response.
    pub(crate) answer_timeout: Duration,
}

impl Backend {
    /// The engine of transactions and state. Errors: [`Kind::Unavailable`] until it runs.
    pub(crate) fn transactions(&self) -> Result<&Engine, Problem> {
        self.services.transactions()
    }

    /// The deployed functions. Errors: [`Kind::Unavailable`] until they can be run.
    pub(crate) fn functions(&self) -> Result<&functions::Service, Problem> {
        self.services.functions()
    }

    /// The workflows. Errors: [`Kind::Unavailable`] until they can be run.
    pub(crate) fn workflows(&self) -> Result<&workflows::Service, Problem> {
        self.services.workflows()
    }

    /// The result of a read, once everything it depends on is durable.
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

    /// The result of a call. Errors: `late` if it takes longer than a client should wait.
    pub(crate) fn in_time<T>(
        &self,
        late: Kind,
        call: impl Future<Output = transactions::Result<T>>,
    ) -> impl Future<Output = Result<T, Problem>> {
        within(self.answer_timeout, late, call)
    }

    /// The same for a call with a body of `bytes`: on a busy machine a large value takes longer.
    pub(crate) async fn in_time_for<T>(
        &self,
        bytes: usize,
        late: Kind,
        call: impl Future<Output = transactions::Result<T>>,
    ) -> Result<T, Problem> {
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
