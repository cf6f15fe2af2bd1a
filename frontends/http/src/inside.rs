//! The routes as a function finds them that runs here: transactions, state, and other functions, without the rules for
//! strangers, since whoever brings its requests knows where they come from.

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
    backend::Backend,
    body::Budget,
    effects,
    guard::lend_body,
    lambda, routes,
    server::Limits,
    services::Services,
    state,
    steps::{self, Scope},
    transactions, workflows,
};

/// The routes for functions.
#[derive(Debug, Clone)]
pub struct Inside {
    router: Router,
}

impl Inside {
    /// The routes of `services`, within `limits` of their own.
    pub fn new(services: Arc<Services>, limits: Limits) -> Self {
        let Limits {
            value_bytes_max,
            buffered_bytes_max,
            answer_timeout,
            ..
        } = limits;
        let budget = Budget::new(buffered_bytes_max);
        let backend = Backend {
            services,
            budget,
            value_bytes_max,
            answer_timeout,
        };
        let router = transactions::routes()
            .merge(effects::routes())
            .merge(state::routes())
            .merge(lambda::routes())
            .merge(steps::routes())
            .merge(workflows::routes())
            .with_state(Arc::new(backend))
            .fallback(routes::not_for_functions)
            .method_not_allowed_fallback(routes::method_not_allowed)
            .layer(middleware::from_fn(async |request, next: Next| {
                lend_body(request, async |request| next.run(request).await).await
            }));
        Self { router }
    }

    /// What a request of a function is answered.
    /// `scope`: which attempt of a workflow's step it is of, if it is of one.
    pub async fn call<B>(
        &self,
        scope: Option<Arc<str>>,
        mut request: http::Request<B>,
    ) -> http::Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        if let Some(scope) = scope {
            request.extensions_mut().insert(Scope(scope));
        }
        let mut router = self.router.clone();
        router
            .call(request.map(Body::new))
            .await
            .unwrap_or_else(|never| match never {})
    }
}
