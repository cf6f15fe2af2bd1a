//! How an invocation failed, in the words that Lambda has for it.

use std::time::Duration;

use bytes::Bytes;
use ports::runtime::TIMED_OUT;
use serde::Serialize;

use crate::{process::ExitReason, runtime_api::ANSWER_BYTES_MAX};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    error_type: &'a str,
    error_message: &'a str,
}

/// A failure as its caller reads it.
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

pub(crate) fn ended(id: &str, reason: ExitReason) -> Bytes {
    let how = match reason {
        ExitReason::Exited(0) => "Runtime exited without providing a reason".to_owned(),
        ExitReason::Exited(status) => format!("Runtime exited with error: exit status {status}"),
        ExitReason::Signalled(libc_signal) => {
            format!("Runtime exited with error: signal {libc_signal}")
        }
        ExitReason::OutOfMemory => {
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
