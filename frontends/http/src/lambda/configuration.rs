//! The API's description of functions: ListFunctions, GetFunction and GetFunctionConfiguration.
//!
//! The response holds what is true here. It omits what functions here do not have, such as a role
//! or a place to load the code from; SDKs accept that.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Query, State},
    http::Uri,
    response::{IntoResponse, Response},
    routing::get,
};
use functions::Summary;
use serde::{Deserialize, Serialize};

use super::{Refusal, arn, name, services, with_request_id};
use crate::{backend::Backend, response::json};

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

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Configuration {
    function_name: String,
    function_arn: String,
    runtime: &'static str,
    handler: String,
    timeout: u64,
    memory_size: u64,
    version: &'static str,
    revision_id: String,
    package_type: &'static str,
    state: &'static str,
    last_update_status: &'static str,
}

impl From<Summary> for Configuration {
    fn from(summary: Summary) -> Self {
        Self {
            function_arn: arn(&summary.name),
            function_name: summary.name,
            // Lambda's names without a version, because the machine determines the version.
            runtime: match summary.runtime {
                "node" => "nodejs",
                "executable" => "provided",
                other => other,
            },
            handler: summary.handler,
            timeout: summary.timeout_s,
            memory_size: summary.memory_mb,
            version: "$LATEST",
            revision_id: summary.revision,
            package_type: "Zip",
            state: "Active",
            last_update_status: "Successful",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    functions: Vec<Configuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_marker: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Function {
    configuration: Configuration,
    concurrency: Concurrency,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Concurrency {
    reserved_concurrent_executions: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    /// The last function of the previous page.
    #[serde(default)]
    marker: String,
    max_items: Option<usize>,
}

async fn list(State(backend): State<Arc<Backend>>, uri: Uri) -> Response {
    answered(page(&backend, &uri))
}

async fn function(State(backend): State<Arc<Backend>>, uri: Uri) -> Response {
    let function = summary(&backend, &uri).map(|summary| {
        let concurrency = Concurrency {
            reserved_concurrent_executions: summary.concurrency,
        };
        Function {
            configuration: summary.into(),
            concurrency,
        }
    });
    answered(function)
}

async fn configuration(State(backend): State<Arc<Backend>>, uri: Uri) -> Response {
    answered(summary(&backend, &uri).map(Configuration::from))
}

fn page(backend: &Backend, uri: &Uri) -> Result<Page, Refusal> {
    let Query(Wanted { marker, max_items }) =
        Query::try_from_uri(uri).map_err(|error| Refusal::invalid(error.body_text()))?;
    let items_max = max_items.unwrap_or(PAGE_MAX);
    if items_max == 0 {
        return Err(Refusal::invalid("MaxItems is to be 1 or more"));
    }
    let mut all = services(backend)?.functions();
    all.retain(|summary| summary.name > marker);
    let has_more = all.len() > items_max.min(PAGE_MAX);
    all.truncate(items_max.min(PAGE_MAX));
    let next_marker = all
        .last()
        .filter(|_| has_more)
        .map(|last| last.name.clone());
    Ok(Page {
        functions: all.into_iter().map(Configuration::from).collect(),
        next_marker,
    })
}

fn summary(backend: &Backend, uri: &Uri) -> Result<Summary, Refusal> {
    let name = name(uri)?;
    Ok(services(backend)?.function(&name)?)
}

fn answered(answer: Result<impl Serialize, Refusal>) -> Response {
    with_request_id(match answer {
        Ok(document) => {
            json(serde_json::to_vec(&document).expect("strings and numbers always serialise"))
        }
        Err(refusal) => refusal.into_response(),
    })
}
