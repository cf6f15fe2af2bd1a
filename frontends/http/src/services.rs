//! The services behind the routes, as they start.
//!
//! The listener accepts before any store is open, so that a probe can watch a long recovery. Until
//! the program provides a service, calls to it get 503 `unavailable`: nothing has changed, and
//! clients may repeat them.

use std::sync::OnceLock;

use transactions::Engine;

use crate::problem::{Kind, Problem};

/// Holds the services once they run.
#[derive(Debug, Default)]
pub struct Services {
    transactions: OnceLock<Engine>,
    functions: OnceLock<functions::Service>,
    workflows: OnceLock<workflows::Service>,
}

impl Services {
    /// Serves transactions and state with `engine` from now on. Call it once.
    pub fn provide_transactions(&self, engine: Engine) {
        self.transactions
            .set(engine)
            .expect("a service is provided once");
    }

    /// Deploys and invokes functions with `service` from now on. Call it once.
    pub fn provide_functions(&self, service: functions::Service) {
        self.functions
            .set(service)
            .expect("a service is provided once");
    }

    /// Runs workflows with `service` from now on. Call it once.
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
