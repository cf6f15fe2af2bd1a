//! The Lambda Invoke API (`2015-03-31`) with its headers, error codes and error format, and the
//! API's description of functions ([configuration]). The calls that create and change functions are
//! refused by name.
//!
//! AWS documents what clients of `Invoke` rely on; the clients are boto3 and the other SDKs.
//! Signatures are not checked: on loopback no caller is identified.

mod configuration;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use functions::Error;
use ports::runtime::{Invocation, Ran, Refused};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::{
    backend::Backend,
    body,
    headers::single,
    problem::{Kind, Problem},
    request::json_or_empty,
    scope::Scope,
    segment,
};

/// The longest body: a payload of [`functions::PAYLOAD_BYTES_MAX`].
const BODY_BYTES_MAX: usize = functions::PAYLOAD_BYTES_MAX;
/// The prefix of the paths.
pub(crate) const PREFIX: &str = "/2015-03-31/functions/";
/// The place of the function's name in a path.
const NAME: usize = 2;
/// The longest client context, decoded, in bytes: Lambda's limit.
const CLIENT_CONTEXT_BYTES_MAX: usize = 3583;
/// The longest qualifier, in bytes: Lambda's limit.
const QUALIFIER_BYTES_MAX: usize = 128;

const INVOCATION_TYPE: HeaderName = HeaderName::from_static("x-amz-invocation-type");
const LOG_TYPE: HeaderName = HeaderName::from_static("x-amz-log-type");
const LOG_RESULT: HeaderName = HeaderName::from_static("x-amz-log-result");
const CLIENT_CONTEXT: HeaderName = HeaderName::from_static("x-amz-client-context");
const EXECUTED_VERSION: HeaderName = HeaderName::from_static("x-amz-executed-version");
const FUNCTION_ERROR: HeaderName = HeaderName::from_static("x-amz-function-error");
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/2015-03-31/functions/{name}/invocations", post(invoke))
        .merge(configuration::routes())
}

/// Whether a path belongs to Lambda's API, whose version numbers are dates.
pub(crate) fn is_of_the_api(path: &str) -> bool {
    let version = path.split('/').nth(1).unwrap_or_default().as_bytes();
    version.len() == "2015-03-31".len()
        && version.iter().enumerate().all(|(place, byte)| match place {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// The response to a call of that API that this server does not offer.
pub(crate) fn not_offered() -> Response {
    let message = "Landfast has Invoke, ListFunctions, GetFunction and GetFunctionConfiguration of Lambda's API; functions are \
                   deployed by `landfast functions deploy`";
    let refusal = Refusal::new(
        StatusCode::NOT_IMPLEMENTED,
        "NotImplementedException",
        message,
    );
    with_request_id(refusal.into_response())
}

/// An error in the format of the SDKs.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Document<'a> {
    r#type: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            reason: None,
        }
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "InvalidParameterValueException",
            message,
        )
    }

    fn too_large(bytes: usize, bytes_max: usize) -> Self {
        let message = format!(
            "{bytes} byte payload is too large for the Invoke operation (limit {bytes_max} bytes)"
        );
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestTooLargeException",
            message,
        )
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        use StatusCode as S;
        let message = error.to_string();
        match error {
            Error::NoSuchFunction(name) => {
                let message = format!("Function not found: {}", arn(&name));
                Self::new(S::NOT_FOUND, "ResourceNotFoundException", message)
            }
            Error::TooLarge(bytes_max) => Self::too_large(bytes_max + 1, bytes_max),
            Error::Refused(Refused::Throttled) => Self {
                reason: Some("ReservedFunctionConcurrentInvocationLimitExceeded"),
                ..Self::new(
                    S::TOO_MANY_REQUESTS,
                    "TooManyRequestsException",
                    "Rate Exceeded.",
                )
            },
            Error::Refused(Refused::Unavailable(why)) => {
                Self::new(S::BAD_GATEWAY, "InvalidRuntimeException", why)
            }
            _ => Self::new(S::INTERNAL_SERVER_ERROR, "ServiceException", message),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let whose = if self.status.is_server_error() {
            "Service"
        } else {
            "User"
        };
        let document = Document {
            r#type: whose,
            message: &self.message,
            reason: self.reason,
        };
        let body = serde_json::to_vec(&document).expect("strings always serialise");
        let headers = [
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            ),
            (ERROR_TYPE, HeaderValue::from_static(self.code)),
        ];
        (self.status, headers, body).into_response()
    }
}

fn arn(name: &str) -> String {
    format!("arn:aws:lambda:us-east-1:000000000000:function:{name}")
}

async fn invoke(State(backend): State<Arc<Backend>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = match make_durable(&backend, &parts).await {
        Ok(()) => answer(&backend, &parts.uri, &parts.headers, body).await,
        Err(refusal) => Err(refusal),
    };
    with_request_id(answer.unwrap_or_else(IntoResponse::into_response))
}

/// SDKs expect a request id in every response.
fn with_request_id(mut response: Response) -> Response {
    response.headers_mut().entry(REQUEST_ID).or_insert_with(|| {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).expect("a system that ran so far has randomness");
        HeaderValue::try_from(functions::uuid(bits).to_string()).expect("digits and dashes")
    });
    response
}

/// An invocation by a step's code takes effect outside of its run. So the run's dependencies are
/// made durable first (rule P5).
async fn make_durable(backend: &Backend, parts: &Parts) -> Result<(), Refusal> {
    let Some(scope) = parts.extensions.get::<Scope>() else {
        return Ok(());
    };
    scope
        .make_durable(backend, &parts.headers)
        .await
        .map_err(|problem| {
            let (status, code) = match problem.kind() {
                Kind::InvalidRequest => (StatusCode::BAD_REQUEST, "InvalidParameterValueException"),
                Kind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeException"),
                Kind::AttemptEnded => (StatusCode::CONFLICT, "ResourceConflictException"),
                _ => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "ServiceUnavailableException",
                ),
            };
            Refusal::new(status, code, problem.detail())
        })
}

async fn answer(
    backend: &Backend,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let name = name(uri)?;
    let functions = services(backend)?;
    let header = |name: &HeaderName| {
        single(headers, name)
            .map_err(|()| Refusal::invalid(format!("send {name} once, in visible characters")))
    };
    let (invocation_type, log_type) = (header(&INVOCATION_TYPE)?, header(&LOG_TYPE)?);
    let with_log = match log_type {
        None | Some("None") => false,
        Some("Tail") => true,
        Some(other) => {
            return Err(Refusal::invalid(format!(
                "LogType {other:?} is to be None or Tail"
            )));
        }
    };
    let context = header(&CLIENT_CONTEXT)?.map(client_context).transpose()?;
    let payload = payload(backend, body).await?;
    match invocation_type.unwrap_or("RequestResponse") {
        "RequestResponse" => {
            let id = functions.new_request_id();
            let invocation = Invocation {
                client_context: context,
                ..Invocation::new(id.clone(), payload, false)
            };
            let ran = functions.invoke(&name, invocation).await?;
            answered(&id, ran, with_log)
        }
        "Event" => {
            let id = functions.send(&name, payload).await?;
            Ok((StatusCode::ACCEPTED, [(REQUEST_ID, id)]).into_response())
        }
        "DryRun" => {
            functions.function(&name)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        other => Err(Refusal::invalid(format!(
            "InvocationType {other:?} is to be RequestResponse, Event or DryRun"
        ))),
    }
}

fn services(backend: &Backend) -> Result<&functions::Service, Refusal> {
    let starting = |problem: Problem| {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailableException",
            problem.detail(),
        )
    };
    backend.functions().map_err(starting)
}

fn answered(id: &str, ran: Ran, with_log: bool) -> Result<Response, Refusal> {
    let (body, is_error) = match ran.result {
        Ok(body) => (body, false),
        Err(error) => (error.payload, true),
    };
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: HeaderValue| drop(headers.insert(name, value));
    let internal = |_| {
        Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "ServiceException",
            "no header",
        )
    };
    set(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    set(EXECUTED_VERSION, HeaderValue::from_static("$LATEST"));
    set(REQUEST_ID, HeaderValue::from_str(id).map_err(internal)?);
    if is_error {
        set(FUNCTION_ERROR, HeaderValue::from_static("Unhandled"));
    }
    if with_log {
        let log = BASE64_STANDARD.encode(&ran.log_tail);
        set(LOG_RESULT, HeaderValue::from_str(&log).map_err(internal)?);
    }
    Ok(response)
}

/// The payload: JSON, and `{}` if it is empty.
async fn payload(backend: &Backend, body: Body) -> Result<Bytes, Refusal> {
    let whole = body::read(body, BODY_BYTES_MAX, &backend.budget)
        .await
        .map_err(|problem| match problem.kind() {
            Kind::TooLarge => Refusal::too_large(BODY_BYTES_MAX + 1, BODY_BYTES_MAX),
            Kind::TooMuchBuffered => Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequestsException",
                "too many payloads are being received",
            ),
            _ => Refusal::invalid(problem.detail()),
        })?;
    json_or_empty(&whole.bytes).map_err(|error| {
        let message = format!("Could not parse request body into json: {error}");
        Refusal::new(
            StatusCode::BAD_REQUEST,
            "InvalidRequestContentException",
            message,
        )
    })
}

/// The decoded context that a mobile client sends.
fn client_context(encoded: &str) -> Result<String, Refusal> {
    let decoded = BASE64_STANDARD
        .decode(encoded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let is_good = |text: &String| {
        text.len() <= CLIENT_CONTEXT_BYTES_MAX
            && serde_json::from_str::<IgnoredAny>(text).is_ok()
            && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
    };
    decoded.filter(is_good).ok_or_else(|| {
        let said = format!(
            "the client context is to be JSON in base64, {CLIENT_CONTEXT_BYTES_MAX} bytes at most before that, in visible ASCII on one line"
        );
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidRequestContentException", said)
    })
}

/// The parameters of the query.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Qualified {
    qualifier: Option<String>,
}

/// The function that the path names: by its name, the end of its ARN or the whole ARN, with or
/// without `$LATEST`.
fn name(uri: &Uri) -> Result<String, Refusal> {
    let named = segment::bytes(uri, NAME)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let named = named.ok_or_else(|| Refusal::invalid("the function's name is no UTF-8"))?;
    let parts: Vec<_> = named.split(':').collect();
    let (name, qualifier) = match parts.as_slice() {
        [name] | [_, "function", name] | ["arn", _, "lambda", _, _, "function", name] => {
            (*name, None)
        }
        [name, qualifier]
        | [_, "function", name, qualifier]
        | ["arn", _, "lambda", _, _, "function", name, qualifier] => (*name, Some(*qualifier)),
        _ => return Err(Refusal::invalid(format!("{named:?} names no function"))),
    };
    let Query(Qualified {
        qualifier: in_query,
    }) = Query::try_from_uri(uri).map_err(|error| Refusal::invalid(error.body_text()))?;
    for qualifier in [qualifier, in_query.as_deref()].into_iter().flatten() {
        if !is_qualifier(qualifier) {
            let message = format!(
                "Qualifier {qualifier:?} is to be 1 to {QUALIFIER_BYTES_MAX} letters, digits, $, _ or -"
            );
            return Err(Refusal::invalid(message));
        }
        if qualifier != "$LATEST" {
            let message = format!("Function not found: {}:{qualifier}", arn(name));
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "ResourceNotFoundException",
                message,
            ));
        }
    }
    Ok(name.to_owned())
}

/// Whether the text could name a version or an alias. Only `$LATEST` exists here.
fn is_qualifier(text: &str) -> bool {
    (1..=QUALIFIER_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"$_-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_lambdas_api_begin_with_a_date() {
        for path in [
            "/2015-03-31/functions",
            "/2021-10-31/functions/f/url",
            "/2018-10-31/layers",
        ] {
            assert!(is_of_the_api(path), "{path}");
        }
        for path in [
            "/",
            "/v1/functions",
            "/2015-03-3/x",
            "/2015-03-311/x",
            "/20150-3-31/x",
            "/2015_03_31/x",
        ] {
            assert!(!is_of_the_api(path), "{path}");
        }
    }

    #[test]
    fn a_function_is_named_as_the_sdks_name_it() {
        let named = |path: &str| {
            name(
                &format!("{PREFIX}{path}/invocations")
                    .parse()
                    .expect("a path"),
            )
        };
        for path in [
            "f",
            "f:$LATEST",
            "000000000000:function:f",
            "arn%3Aaws%3Alambda%3Aus-east-1%3A000000000000%3Afunction%3Af",
            "arn:aws:lambda:us-east-1:000000000000:function:f:$LATEST",
        ] {
            assert_eq!(named(path).expect(path), "f");
        }
        let qualified = |qualifier: &str| {
            name(
                &format!("{PREFIX}f/invocations?Qualifier={qualifier}")
                    .parse()
                    .expect("a path"),
            )
        };
        assert_eq!(qualified("%24LATEST").expect("the one there is"), "f");
        let refused = qualified("2").expect_err("no versions");
        assert_eq!(refused.code, "ResourceNotFoundException");
        for wrong in ["bad%20qual!", "bad+qual", "", "%C3%A4", &"q".repeat(129)] {
            let refused = qualified(wrong).expect_err(wrong);
            assert_eq!(
                (refused.status.as_u16(), refused.code),
                (400, "InvalidParameterValueException")
            );
        }
        assert!(
            qualified("bad%20qual!")
                .expect_err("a space")
                .message
                .contains("\"bad qual!\"")
        );
        assert_eq!(
            named("a:b:c").expect_err("nothing").code,
            "InvalidParameterValueException"
        );
    }
}
