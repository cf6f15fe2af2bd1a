//! The Lambda Invoke API (`2015-03-31`) with its headers, error codes and error format, and the
//! API's description of functions ([configuration]). The calls that create and change functions are
//! refused by name.
//!
//! AWS documents what clients of `Invoke` rely on; the clients are boto3 and the other SDKs.
//! Signatures are checked where the server has keys for that: of the head in the guard, of the body
//! here.

mod configuration;

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Body,
    extract::Query,
    http::{HeaderName, HeaderValue, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use functions::Error;
use listener::signature;
use ports::runtime::{Invocation, Ran, Refused};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::json;

use crate::{
    backend::Backend,
    headers::single,
    problem::{Kind, Problem},
    request::{Request, json_or},
    response::json_text,
    segment,
};

/// The longest body: a payload of [`functions::PAYLOAD_BYTES_MAX`].
const BODY_BYTES_MAX: usize = functions::PAYLOAD_BYTES_MAX;
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
    let version = path.split('/').nth(1).unwrap_or_default();
    version.replace(|letter: char| letter.is_ascii_digit(), "0") == "0000-00-00"
}

/// The response to a call of that API that this server does not offer.
pub(crate) fn not_offered() -> Response {
    let message = "Landfast has Invoke, ListFunctions, GetFunction and GetFunctionConfiguration of Lambda's API; functions are \
                   deployed by `landfast functions deploy`";
    with_request_id(Refusal::new(NOT_IMPLEMENTED, message).into_response())
}

/// The response to a call whose signature is refused.
pub(crate) fn refused(error: signature::Error) -> Response {
    with_request_id(Refusal::from(error).into_response())
}

impl From<signature::Error> for Refusal {
    fn from(error: signature::Error) -> Self {
        let code = match error {
            signature::Error::Missing => "MissingAuthenticationTokenException",
            signature::Error::Incomplete => "IncompleteSignatureException",
            signature::Error::UnknownKey => "UnrecognizedClientException",
            signature::Error::Expired | signature::Error::Mismatch => "InvalidSignatureException",
        };
        Self::new((StatusCode::FORBIDDEN, code), error.to_string())
    }
}

/// An error's status and its code for the SDKs.
type Code = (StatusCode, &'static str);

const INVALID: Code = (StatusCode::BAD_REQUEST, "InvalidParameterValueException");
const INVALID_CONTENT: Code = (StatusCode::BAD_REQUEST, "InvalidRequestContentException");
const NOT_FOUND: Code = (StatusCode::NOT_FOUND, "ResourceNotFoundException");
const CONFLICT: Code = (StatusCode::CONFLICT, "ResourceConflictException");
const TOO_LARGE: Code = (StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeException");
const THROTTLED: Code = (StatusCode::TOO_MANY_REQUESTS, "TooManyRequestsException");
const INTERNAL: Code = (StatusCode::INTERNAL_SERVER_ERROR, "ServiceException");
const NOT_IMPLEMENTED: Code = (StatusCode::NOT_IMPLEMENTED, "NotImplementedException");
const INVALID_RUNTIME: Code = (StatusCode::BAD_GATEWAY, "InvalidRuntimeException");
const UNAVAILABLE: Code = (
    StatusCode::SERVICE_UNAVAILABLE,
    "ServiceUnavailableException",
);

/// An error in the format of the SDKs.
#[derive(Debug)]
struct Refusal {
    code: Code,
    message: String,
    reason: Option<&'static str>,
}

impl Refusal {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            reason: None,
        }
    }

    fn too_large(bytes: usize, bytes_max: usize) -> Self {
        let message = format!(
            "{bytes} byte payload is too large for the Invoke operation (limit {bytes_max} bytes)"
        );
        Self::new(TOO_LARGE, message)
    }

    fn not_found(name: &str) -> Self {
        Self::new(NOT_FOUND, format!("Function not found: {}", arn(name)))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::NoSuchFunction(name) => Self::not_found(&name),
            Error::TooLarge(bytes_max) => Self::too_large(bytes_max + 1, bytes_max),
            Error::Refused(Refused::Throttled) => Self {
                reason: Some("ReservedFunctionConcurrentInvocationLimitExceeded"),
                ..Self::new(THROTTLED, "Rate Exceeded.")
            },
            Error::Refused(Refused::Unavailable(why)) => Self::new(INVALID_RUNTIME, why),
            error => Self::new(INTERNAL, error.to_string()),
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let code = match problem.kind() {
            Kind::InvalidRequest | Kind::RequestTimedOut => INVALID,
            Kind::TooLarge => TOO_LARGE,
            Kind::TooMuchBuffered => THROTTLED,
            Kind::AttemptEnded => CONFLICT,
            _ => UNAVAILABLE,
        };
        Self::new(code, problem.detail)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code) = self.code;
        let is_ours = status.is_server_error();
        let whose = if is_ours { "Service" } else { "User" };
        let mut document = json!({ "Type": whose, "Message": self.message });
        if let Some(reason) = self.reason {
            document["Reason"] = reason.into();
        }
        (status, [(ERROR_TYPE, code)], Json(document)).into_response()
    }
}

fn arn(name: &str) -> String {
    format!("arn:aws:lambda:us-east-1:000000000000:function:{name}")
}

async fn invoke(request: Request, body: Body) -> Response {
    with_request_id(answer(&request, body).await.into_response())
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

async fn answer(request: &Request, body: Body) -> Result<Response, Refusal> {
    let Request {
        backend, headers, ..
    } = request;
    // An invocation by a step's code takes effect outside of its run. So the run's dependencies are
    // made durable first (rule P5).
    if let Some(scope) = &request.scope {
        scope.make_durable(backend, headers).await?;
    }
    let name = name(&request.uri)?;
    let functions = backend.functions()?;
    backend.check_takes_work()?;
    let header = |name: &HeaderName| {
        single(headers, name)
            .map_err(|()| Refusal::new(INVALID, format!("send {name} once, in visible characters")))
    };
    let (invocation_type, log_type) = (header(&INVOCATION_TYPE)?, header(&LOG_TYPE)?);
    let with_log = match log_type {
        None | Some("None") => false,
        Some("Tail") => true,
        Some(other) => {
            let message = format!("LogType {other:?} is to be None or Tail");
            return Err(Refusal::new(INVALID, message));
        }
    };
    let context = header(&CLIENT_CONTEXT)?.map(client_context).transpose()?;
    let payload = payload(request, body).await?;
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
        other => {
            let message =
                format!("InvocationType {other:?} is to be RequestResponse, Event or DryRun");
            Err(Refusal::new(INVALID, message))
        }
    }
}

fn answered(id: &str, ran: Ran, with_log: bool) -> Result<Response, Refusal> {
    let (body, is_error) = match ran.result {
        Ok(body) => (body, false),
        Err(error) => (error.payload, true),
    };
    let mut response = json_text(body);
    let headers = response.headers_mut();
    let no_header = |_| Refusal::new(INTERNAL, "no header");
    headers.insert(EXECUTED_VERSION, HeaderValue::from_static("$LATEST"));
    let id = HeaderValue::from_str(id).map_err(no_header)?;
    headers.insert(REQUEST_ID, id);
    if is_error {
        headers.insert(FUNCTION_ERROR, HeaderValue::from_static("Unhandled"));
    }
    if with_log {
        let log = BASE64_STANDARD.encode(&ran.log_tail);
        let log = HeaderValue::from_str(&log).map_err(no_header)?;
        headers.insert(LOG_RESULT, log);
    }
    Ok(response)
}

/// The payload: JSON, and `{}` if it is empty.
async fn payload(request: &Request, body: Body) -> Result<Bytes, Refusal> {
    let whole = request.read(body, BODY_BYTES_MAX).await;
    let whole = whole.map_err(|problem| match problem.kind() {
        Kind::TooLarge => Refusal::too_large(BODY_BYTES_MAX + 1, BODY_BYTES_MAX),
        _ => problem.into(),
    })?;
    if let Some(signature) = &request.signature {
        signature.finish(&whole.bytes)?;
    }
    json_or("{}", &whole.bytes).map_err(|error| {
        let message = format!("Could not parse request body into json: {error}");
        Refusal::new(INVALID_CONTENT, message)
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
        Refusal::new(INVALID_CONTENT, said)
    })
}

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
    let named = named.ok_or_else(|| Refusal::new(INVALID, "the function's name is no UTF-8"))?;
    let parts: Vec<_> = named.split(':').collect();
    let (name, qualifier) = match parts.as_slice() {
        [name] | [_, "function", name] | ["arn", _, "lambda", _, _, "function", name] => {
            (*name, None)
        }
        [name, qualifier]
        | [_, "function", name, qualifier]
        | ["arn", _, "lambda", _, _, "function", name, qualifier] => (*name, Some(*qualifier)),
        _ => {
            let message = format!("{named:?} names no function");
            return Err(Refusal::new(INVALID, message));
        }
    };
    let in_query: Qualified = query(uri)?;
    let in_query = in_query.qualifier.as_deref();
    for qualifier in [qualifier, in_query].into_iter().flatten() {
        if !is_qualifier(qualifier) {
            let message = format!(
                "Qualifier {qualifier:?} is to be 1 to {QUALIFIER_BYTES_MAX} letters, digits, $, _ or -"
            );
            return Err(Refusal::new(INVALID, message));
        }
        if qualifier != "$LATEST" {
            return Err(Refusal::not_found(&format!("{name}:{qualifier}")));
        }
    }
    Ok(name.to_owned())
}

fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refusal> {
    let parsed = Query::try_from_uri(uri);
    let Query(parsed) = parsed.map_err(|error| Refusal::new(INVALID, error.body_text()))?;
    Ok(parsed)
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
        assert_eq!(refused.code, NOT_FOUND);
        for wrong in ["bad%20qual!", "bad+qual", "", "%C3%A4", &"q".repeat(129)] {
            let refused = qualified(wrong).expect_err(wrong);
            assert_eq!(refused.code, INVALID);
        }
        assert!(
            qualified("bad%20qual!")
                .expect_err("a space")
                .message
                .contains("\"bad qual!\"")
        );
        assert_eq!(named("a:b:c").expect_err("nothing").code, INVALID);
    }
}
