//! How a run or a step failed, as JSON: `step`, `errorType`, `errorMessage`.

use bytes::Bytes;
use functions::beginning;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Error;

/// The longest failure that is stored whole, in bytes. Of a longer one we store its type and the
/// beginning of its message.
pub(crate) const FAILURE_BYTES_MAX: usize = 32 << 10;
/// The longest error type that is stored of such a failure.
const TYPE_BYTES_MAX: usize = 256;
/// The longest message that is stored of it: JSON may escape one byte as six.
const MESSAGE_BYTES_MAX: usize = FAILURE_BYTES_MAX / 8;

/// The error type of a function that names none.
const FUNCTION_FAILED: &str = "Function.Failed";

/// Why a run ends without an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It failed: a JSON object.
    Failed(Bytes),
    /// It continues elsewhere, later, or from the start; its outcome is still open.
    Stopped,
}

impl Failure {
    pub(crate) fn new(step: &str, kind: &str, message: &str) -> Self {
        Self::Failed(failure(step, kind, message))
    }

    pub(crate) fn of(step: &str, kind: &str, error: &Error) -> Self {
        Self::new(step, kind, &error.to_string())
    }

    /// The result of a step for its code. Errors: `AttemptEnded` if it has none yet.
    pub(crate) fn settled(result: Result<Bytes, Self>) -> Result<Result<Bytes, Bytes>, Error> {
        match result {
            Ok(output) => Ok(Ok(output)),
            Err(Self::Failed(failure)) => Ok(Err(failure)),
            Err(Self::Stopped) => Err(Error::AttemptEnded),
        }
    }

    /// The failure of an invocation. A function's response has a limit of its own, and the runtime
    /// reports a longer one with that limit; the result of a step has `bytes_max`.
    pub(crate) fn of_invocation(step: &str, payload: &[u8], bytes_max: usize) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Reported<'a> {
            error_type: &'a str,
        }
        match serde_json::from_slice(payload) {
            Ok(Reported {
                error_type: "Function.ResponseSizeTooLarge",
            }) => {
                let bytes = "more bytes than a function may answer with";
                Self::too_large(step, bytes, bytes_max)
            }
            _ => Self::Failed(reported(step, payload)),
        }
    }

    /// The result of `step` has `bytes`, in words.
    pub(crate) fn too_large(step: &str, bytes: &str, bytes_max: usize) -> Self {
        let why = format!("a result has {bytes}, and {bytes_max} are the most here");
        Self::new(step, "Workflow.ResultTooLarge", &why)
    }
}

/// A failure as JSON.
pub(crate) fn failure(step: &str, kind: &str, message: &str) -> Bytes {
    let message = beginning(message, MESSAGE_BYTES_MAX);
    let error = serde_json::json!({ "step": step, "errorType": kind, "errorMessage": message });
    Bytes::from(error.to_string())
}

/// The failure that the function of `step` reported.
pub(crate) fn reported(step: &str, payload: &[u8]) -> Bytes {
    let raw = || String::from_utf8_lossy(payload);
    let Ok(serde_json::Value::Object(mut said)) = serde_json::from_slice(payload) else {
        return failure(step, FUNCTION_FAILED, &raw());
    };
    said.insert("step".to_owned(), step.into());
    let said = serde_json::Value::Object(said);
    let whole = said.to_string();
    if whole.len() <= FAILURE_BYTES_MAX {
        return Bytes::from(whole);
    }
    let kind = said["errorType"].as_str().unwrap_or(FUNCTION_FAILED);
    let kind = &kind[..kind.floor_char_boundary(TYPE_BYTES_MAX)];
    match said["errorMessage"].as_str() {
        Some(message) => failure(step, kind, message),
        None => failure(step, kind, &raw()),
    }
}

/// The response of `step` as the input of the next step: an empty one is null. Errors: it is not
/// JSON.
pub(crate) fn as_json(step: &str, response: Bytes) -> Result<Bytes, Failure> {
    if response.is_empty() {
        return Ok(Bytes::from_static(b"null"));
    }
    if let Err(error) = serde_json::from_slice::<&RawValue>(&response) {
        let says = "a result is JSON, which has no NaN and no infinity; this one is not";
        let why = format!("{says}: {error}");
        return Err(Failure::new(step, "Workflow.ResultNoJson", &why));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reported(payload: &str) -> Value {
        let failure = super::reported("f", payload.as_bytes());
        assert!(failure.len() <= FAILURE_BYTES_MAX, "{}", failure.len());
        serde_json::from_slice(&failure).expect("it is JSON")
    }

    #[test]
    fn a_response_that_is_too_long_is_refused_with_the_limit_of_a_step() {
        let payload = json!({ "errorType": "Function.ResponseSizeTooLarge", "errorMessage": "(6291456 bytes)." });
        let Failure::Failed(reported) =
            Failure::of_invocation("f", payload.to_string().as_bytes(), 4_153_344)
        else {
            panic!("it has failed");
        };
        let reported: Value = serde_json::from_slice(&reported).expect("it is JSON");
        let why = "a result has more bytes than a function may answer with, and 4153344 are the most here";
        assert_eq!(
            reported,
            json!({ "step": "f", "errorType": "Workflow.ResultTooLarge", "errorMessage": why })
        );
        let own = Failure::of_invocation("f", br#"{"errorType":"E"}"#, 4_153_344);
        assert_eq!(
            own,
            Failure::Failed(super::reported("f", br#"{"errorType":"E"}"#)),
            "other failures stay"
        );
    }

    #[test]
    fn a_failure_that_is_too_long_keeps_its_type_and_the_beginning_of_its_message() {
        let short = json!({ "errorType": "E", "errorMessage": "m", "stackTrace": ["t"] });
        let kept = reported(&short.to_string());
        assert_eq!(
            (&kept["step"], &kept["stackTrace"]),
            (&json!("f"), &json!(["t"]))
        );
        // A control character becomes six bytes.
        for message in [
            "\u{2603}".repeat(20_000),
            "\u{1}".repeat(40_000),
            "m".repeat(300_000),
        ] {
            let kept = reported(&json!({ "errorType": "E", "errorMessage": message }).to_string());
            let text = kept["errorMessage"].as_str().expect("a message");
            let (beginning, end) = text.split_once("... (").expect("it says that it was cut");
            assert!(
                message.starts_with(beginning) && beginning.len() > MESSAGE_BYTES_MAX - 4,
                "{text}"
            );
            assert_eq!(end, format!("the beginning of {} bytes)", message.len()));
            assert_eq!(kept["errorType"], "E");
        }
        // The type or the trace may be the long part, or the payload may not be JSON.
        let traced =
            json!({ "errorType": "E", "errorMessage": "m", "stackTrace": vec!["t"; 40_000] });
        let kept = reported(&traced.to_string());
        assert_eq!(
            (&kept["errorType"], &kept["errorMessage"]),
            (&json!("E"), &json!("m"))
        );
        let kept = reported(
            &json!({ "errorType": "\u{1}".repeat(40_000), "errorMessage": "m" }).to_string(),
        );
        assert_eq!(kept["errorMessage"], "m");
        assert_eq!(reported(&"x".repeat(40_000))["errorType"], FUNCTION_FAILED);
    }
}
