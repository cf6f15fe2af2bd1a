//! The services behind the routes, as they start.
//!
//! The listener accepts before any store is open, so that a probe can watch a long recovery. Until
//! the program provides a service, calls to it get 503 `unavailable`: nothing has changed, and
//! clients may repeat them.

use std::sync::OnceLock;

use transactions::Engine;

/// Holds the services once they run.
#[derive(Debug, Default)]
pub struct Services {
    pub(crate) transactions: OnceLock<Engine>,
    pub(crate) functions: OnceLock<functions::Service>,
    pub(crate) workflows: OnceLock<workflows::Service>,
}

const ONCE: &str = "a service is provided once";

impl Services {
    /// Serves transactions and state with `engine` from now on. Call it once.
    pub fn provide_transactions(&self, engine: Engine) {
        self.transactions.set(engine).expect(ONCE);
    }

    /// Deploys and invokes functions with `service` from now on. Call it once.
    pub fn provide_functions(&self, service: functions::Service) {
        self.functions.set(service).expect(ONCE);
    }

    /// Runs workflows with `service` from now on. Call it once.
    pub fn provide_workflows(&self, service: workflows::Service) {
        self.workflows.set(service).expect(ONCE);
    }
}
