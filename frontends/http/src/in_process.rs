//! The routes for functions that run on this machine: transactions, state and other functions. The
//! guard for network clients is absent, because the program itself passes these requests on.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, HttpBody},
    http,
    middleware::{self, Next},
};
use bytes::Bytes;
use tower_service::Service as _;

use crate::{
    backend::{Backend, Limits},
    body,
    of_invocation::{Invocation, OfInvocation},
    router,
    scope::Scope,
    services::Services,
};

/// The in-process router.
#[derive(Debug, Clone)]
pub struct InProcessRouter {
    router: Router,
}

impl InProcessRouter {
    /// The routes of `services`, within their own `limits`.
    pub fn new(services: Arc<Services>, limits: &Limits) -> Self {
        let router = router::for_all()
            .with_state(Arc::new(Backend::for_functions(services, limits)))
            .fallback(router::not_for_functions)
            .method_not_allowed_fallback(router::method_not_allowed)
            .layer(middleware::from_fn(async |request, next: Next| {
                body::lend_to(request, async |request| next.run(request).await).await
            }));
        Self { router }
    }

    /// Responds to a request of a function. `scope` is the attempt of a workflow's step that sends
    /// it, if any. `volume` is that of the function, whose transaction it may join.
    pub async fn call<B>(
        &self,
        scope: Option<Arc<str>>,
        volume: Option<Arc<dyn OfInvocation>>,
        mut request: http::Request<B>,
    ) -> http::Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        if let Some(scope) = scope {
            request.extensions_mut().insert(Scope(scope));
        } else if let Some(volume) = volume {
            // A step's transactions are known by ids of the run, so they are not the invocation's.
            request.extensions_mut().insert(Invocation(volume));
        }
        let mut router = self.router.clone();
        router
            .call(request.map(Body::new))
            .await
            .unwrap_or_else(|never| match never {})
    }
}
