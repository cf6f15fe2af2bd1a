//! The services behind the routes, as they come up.
//!
//! The listener accepts before any store is open, so that a probe can watch a long recovery. Until the program
//! provides a service, calls for it are answered as unavailable: nothing has changed, and they may be repeated.

use std::sync::OnceLock;

use transactions::Engine;

use crate::problem::{Kind, Problem};

/// Where the routes find the services, once there are any.
#[derive(Debug, Default)]
pub struct Services {
    transactions: OnceLock<Engine>,
    functions: OnceLock<functions::Service>,
    workflows: OnceLock<workflows::Service>,
}

impl Services {
    /// From now on transactions and state are served by `engine`. Once only.
    pub fn provide_transactions(&self, engine: Engine) {
        self.transactions
            .set(engine)
            .expect("a service is provided once");
    }

    /// From now on functions are deployed and invoked by `service`. Once only.
    pub fn provide_functions(&self, service: functions::Service) {
        self.functions
            .set(service)
            .expect("a service is provided once");
    }

    /// From now on workflows are run by `service`. Once only.
    pub fn provide_workflows(&self, service: workflows::Service) {
        self.workflows
            .set(service)
            .expect("a service is provided once");
    }

    pub(crate) fn workflows(&self) -> Result<&workflows::Service, Problem> {
        self.workflows
            .get()
            .ok_or_else(|| Problem::new(Kind::Unavailable, "the server is starting"))
    }

    pub(crate) fn functions(&self) -> Result<&functions::Service, Problem> {
        self.functions
            .get()
            .ok_or_else(|| Problem::new(Kind::Unavailable, "the server is starting"))
    }

    pub(crate) fn transactions(&self) -> Result<&Engine, Problem> {
        self.transactions
            .get()
            .ok_or_else(|| Problem::new(Kind::Unavailable, "the server is starting"))
    }
}
