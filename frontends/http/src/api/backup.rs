//! The route of backups: the bytes of one, as the store writes them.
//!
//! The response begins before the backup is known to succeed. Its last frame says whether it did,
//! so a client verifies what it received.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
    routing::get,
};

use crate::{
    backend::Backend,
    problem::{Kind, Problem},
    request::Request,
};

/// The header by which a browser tells which page sent a request.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
const TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new().route("/v1/backup", get(back_up))
}

async fn back_up(request: Request) -> Result<Response, Problem> {
    request.refuse_query()?;
    // It costs the server much, so no page of another site may begin one with a link to it.
    let from = request.headers.get(SEC_FETCH_SITE);
    if from.is_some_and(|from| from != "same-origin" && from != "none") {
        return Err(Problem::new(
            Kind::ForeignOrigin,
            "backups are not for pages of other sites",
        ));
    }
    let begun = request.backend.backups()?.begin();
    let bytes = begun.map_err(|why| Problem::new(Kind::Unavailable, why))?;
    Ok(([(header::CONTENT_TYPE, TYPE)], Body::from_stream(bytes)).into_response())
}
