//! The errors of failed invocations, in Lambda's format.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use ports::{instances::Death, runtime::TIMED_OUT};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The longest result of a function: Lambda's 6 MB and its frame.
pub(crate) const ANSWER_BYTES_MAX: usize = 6_291_556;

/// The longest error that is kept whole.
pub(crate) const BYTES_MAX: usize = 256 * 1024;
/// The message that is kept of a longer error. JSON may turn one byte into six, so the whole stays
/// below [`BYTES_MAX`].
const MESSAGE_BYTES_MAX: usize = 32 * 1024;
const TYPE_BYTES_MAX: usize = 256;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    error_type: &'a str,
    error_message: &'a str,
}

pub(crate) fn payload(error_type: &str, error_message: &str) -> Bytes {
    let payload = Payload {
        error_type,
        error_message,
    };
    Bytes::from(serde_json::to_vec(&payload).expect("strings always serialise"))
}

/// An error as a runtime reports it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reported<'a> {
    #[serde(borrow)]
    error_type: Option<&'a RawValue>,
    #[serde(borrow)]
    error_message: Option<&'a RawValue>,
}

/// The type and the beginning of the message of an `error` that is too long to be kept. `kind` is
/// its type if it names none. The stack trace is left out; the log has it.
pub(crate) fn shortened(kind: &str, error: &[u8]) -> Bytes {
    let error = String::from_utf8_lossy(error);
    // Serde would also accept a list of the members in order.
    let reported = error
        .trim_ascii_start()
        .starts_with('{')
        .then(|| serde_json::from_str::<Reported<'_>>(&error).ok());
    let (error_type, message) = match reported.flatten() {
        Some(reported) => (
            reported.error_type.map_or(Cow::Borrowed(kind), text),
            reported.error_message.map_or(Cow::Borrowed(""), text),
        ),
        None => (Cow::Borrowed(kind), Cow::Borrowed(&*error)),
    };
    payload(
        &error_type[..error_type.floor_char_boundary(TYPE_BYTES_MAX)],
        &beginning(&message),
    )
}

/// The text of a string member, or the JSON of another one, or of one with a lone surrogate.
fn text(member: &RawValue) -> Cow<'_, str> {
    let json = member.get();
    serde_json::from_str::<String>(json).map_or(Cow::Borrowed(json), Cow::Owned)
}

/// `message`, or the beginning of a long one, with its length.
fn beginning(message: &str) -> Cow<'_, str> {
    if message.len() <= MESSAGE_BYTES_MAX {
        return Cow::Borrowed(message);
    }
    let beginning = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
    let bytes = message.len();
    Cow::Owned(format!("{beginning}... (the beginning of {bytes} bytes)"))
}

pub(crate) fn timed_out(id: &str, timeout: Duration) -> Bytes {
    let seconds = timeout.as_secs_f64();
    payload(
        TIMED_OUT,
        &format!("RequestId: {id} Error: Task timed out after {seconds:.2} seconds"),
    )
}

pub(crate) fn start_timed_out(id: &str, timeout: Duration) -> Bytes {
    let seconds = timeout.as_secs_f64();
    let message = format!(
        "RequestId: {id} Error: it did not ask for its first invocation within {seconds:.2} seconds"
    );
    payload(TIMED_OUT, &message)
}

pub(crate) fn too_long(bytes: usize) -> Bytes {
    let message = format!(
        "Response payload size ({bytes} bytes) exceeded maximum allowed payload size ({ANSWER_BYTES_MAX} bytes)."
    );
    payload("Function.ResponseSizeTooLarge", &message)
}

pub(crate) fn ended(id: &str, death: Death) -> Bytes {
    let how = match death {
        Death::Exited(0) => "Runtime exited without providing a reason".to_owned(),
        Death::Exited(status) => format!("Runtime exited with error: exit status {status}"),
        Death::Killed(signal) => {
            format!("Runtime exited with error: signal {signal}")
        }
        Death::OutOfMemory => {
            let message = format!(
                "RequestId: {id} Error: Runtime exited with error: signal: killed (out of memory)"
            );
            return payload("Runtime.OutOfMemory", &message);
        }
    };
    payload(
        "Runtime.ExitError",
        &format!("RequestId: {id} Error: {how}"),
    )
}

pub(crate) fn not_answered(id: &str) -> Bytes {
    let message = format!(
        "RequestId: {id} Error: it asked for its next invocation without answering this one"
    );
    payload("Runtime.NoAnswer", &message)
}

/// Its transaction met conflicts in each of its `attempts`. `cause` is a sentence about the last one.
pub(crate) fn conflicted(id: &str, attempts: u32, cause: &str) -> Bytes {
    let message = format!(
        "RequestId: {id} Error: each of {attempts} attempts met a conflict on its volume; in the last one, {cause}"
    );
    payload("Volume.Conflict", &message)
}

pub(crate) fn volume_failed(id: &str, why: &str) -> Bytes {
    let message = format!("RequestId: {id} Error: its volume: {why}");
    payload("Volume.Unavailable", &message)
}
