//! How workflows reach functions: a seam, so that simulations run code of their own.

use std::{collections::BTreeMap, fmt::Debug, future, sync::Arc};

use async_trait::async_trait;
use functions::manifest::workflow::Workflow;
use ports::runtime::{Invocation, Ran};

/// Runs functions, and knows the deployed workflows.
#[async_trait]
pub trait Runner: Debug + Send + Sync {
    /// A deployed workflow.
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>>;

    /// All deployed workflows, by name.
    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>>;

    /// How often a failed step of this function is retried; none: no such function is deployed.
    fn retries(&self, function: &str) -> Option<u32>;

    /// Runs a function. Errors: why it did not run.
    async fn run(&self, function: &str, invocation: Invocation) -> Result<Ran, String>;
}

#[async_trait]
impl Runner for functions::Service {
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        Self::workflow(self, name)
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        Self::workflows(self)
    }

    fn retries(&self, function: &str) -> Option<u32> {
        Self::retries(self, function)
    }

    async fn run(&self, function: &str, invocation: Invocation) -> Result<Ran, String> {
        match Self::run(self, function, invocation).await {
            // The step has not failed. The run is resumed after the next start.
            Err(functions::Error::Stopped) => future::pending().await,
            ran => ran.map_err(|error| error.to_string()),
        }
    }
}
