//! The API's description of functions: ListFunctions, GetFunction and GetFunctionConfiguration.
//!
//! The response holds what is true here. It omits what functions here do not have, such as a role
//! or a place to load the code from; SDKs accept that.

use std::sync::Arc;

use axum::{
    Router,
    response::{IntoResponse, Response},
    routing::get,
};
use functions::Summary;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{INVALID, Refusal, arn, name, query, with_request_id};
use crate::{backend::Backend, request::Request, response};

/// Functions in one response: Lambda's limit.
const PAGE_MAX: usize = 50;

pub(super) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/2015-03-31/functions", get(list))
        .route("/2015-03-31/functions/", get(list))
        .route("/2015-03-31/functions/{name}", get(function))
        .route(
            "/2015-03-31/functions/{name}/configuration",
            get(configuration),
        )
}

fn described(function: &Summary) -> Value {
    json!({
        "FunctionName": function.name,
        "FunctionArn": arn(&function.name),
        // Lambda's names without a version, because the machine determines the version.
        "Runtime": match function.runtime {
            "node" => "nodejs",
            "executable" => "provided",
            other => other,
        },
        "Handler": function.handler,
        "Timeout": function.timeout_s,
        "MemorySize": function.memory_mb,
        "Version": "$LATEST",
        "RevisionId": function.revision,
        "PackageType": "Zip",
        "State": "Active",
        "LastUpdateStatus": "Successful",
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    /// The last function of the previous page.
    #[serde(default)]
    marker: String,
    max_items: Option<usize>,
}

async fn list(request: Request) -> Response {
    answered(page(&request))
}

async fn function(request: Request) -> Response {
    let function = summary(&request);
    answered(function.map(|function| {
        let concurrency = json!({ "ReservedConcurrentExecutions": function.concurrency });
        json!({ "Configuration": described(&function), "Concurrency": concurrency })
    }))
}

async fn configuration(request: Request) -> Response {
    answered(summary(&request).map(|function| described(&function)))
}

fn page(request: &Request) -> Result<Value, Refusal> {
    let Wanted { marker, max_items } = query(&request.uri)?;
    let items_max = max_items.unwrap_or(PAGE_MAX);
    if items_max == 0 {
        return Err(Refusal::new(INVALID, "MaxItems is to be 1 or more"));
    }
    let mut all = request.backend.functions()?.functions();
    all.retain(|summary| summary.name > marker);
    let has_more = all.len() > items_max.min(PAGE_MAX);
    all.truncate(items_max.min(PAGE_MAX));
    let mut page = json!({ "Functions": all.iter().map(described).collect::<Vec<_>>() });
    if let Some(last) = all.last().filter(|_| has_more) {
        page["NextMarker"] = last.name.as_str().into();
    }
    Ok(page)
}

fn summary(request: &Request) -> Result<Summary, Refusal> {
    let name = name(&request.uri)?;
    Ok(request.backend.functions()?.function(&name)?)
}

fn answered(answer: Result<Value, Refusal>) -> Response {
    let response = answer.map(|document| response::json(&document));
    with_request_id(response.into_response())
}
