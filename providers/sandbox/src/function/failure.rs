//! The errors of failed invocations, in Lambda's format.

use std::time::Duration;

use bytes::Bytes;
use ports::{instances::Death, runtime::TIMED_OUT};
use serde::Serialize;

/// The longest result of a function: Lambda's 6 MB and its frame.
pub(crate) const ANSWER_BYTES_MAX: usize = 6_291_556;

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
