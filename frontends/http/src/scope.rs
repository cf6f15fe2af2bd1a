//! The attempt of a workflow's step that a request comes from.
//!
//! The in-process router sets it. A step within a step sends its own token in `Landfast-Step`. A
//! request over the network has no scope.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};
use tokio::time::timeout;

use crate::{
    backend::Backend,
    problem::{Kind, Problem},
};

/// The token of a step within a step.
const STEP: HeaderName = HeaderName::from_static("landfast-step");

/// The token of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Scope(pub(crate) Arc<str>);

impl Scope {
    /// This token, or that of the inner step that the request names. Errors: that step belongs to
    /// another attempt, or is over.
    pub(crate) fn of(&self, backend: &Backend, headers: &HeaderMap) -> Result<Arc<str>, Problem> {
        let step = headers.get(STEP).and_then(|step| step.to_str().ok());
        Ok(backend.workflows()?.token_of(&self.0, step)?)
    }

    /// Waits until all that the run has done is durable, before the step's code sends anything out
    /// (rule P5).
    pub(crate) async fn make_durable(
        &self,
        backend: &Backend,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        let token = self.of(backend, headers)?;
        Ok(backend.workflows()?.externalize(&token).await?)
    }

    /// Waits until the run's dependencies are durable.
    pub(crate) async fn settle(
        &self,
        backend: &Backend,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        let token = self.of(backend, headers)?;
        let settled = timeout(backend.answer_timeout, backend.workflows()?.settle(&token));
        let late = |_| Problem::new(Kind::Unavailable, "the far store does not answer in time");
        Ok(settled.await.map_err(late)??)
    }
}
