//! What is kept of why a function failed: its own words, in a bound.
//!
//! A runtime says it as an object with `errorType`, `errorMessage` and `stackTrace`, and whoever is told decides by the first. So the
//! message is cut and not the JSON, which would be none then.
//!
//! Invariants
//! - What is kept of such an object is one, and has its `errorType`.
//! - A message that was cut ends with how long it was.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The longest that is kept.
const REASON_BYTES_MAX: usize = 8 * 1024;
/// The longest `errorType` of one that is cut. In JSON a byte may become six.
const TYPE_BYTES_MAX: usize = 256;
/// What is kept of a message first; less where in JSON it is longer than that.
const MESSAGE_BYTES_MAX: usize = 6 * 1024;

/// What a runtime says of a failure; its `stackTrace`, which the log has, is left out of one that is cut.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    error_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error_message: Cow<'a, str>,
}

/// What is kept of the words of a function that failed.
pub(crate) fn kept(payload: &[u8]) -> String {
    let cut = || String::from_utf8_lossy(&payload[..payload.len().min(REASON_BYTES_MAX)]).into_owned();
    if payload.len() <= REASON_BYTES_MAX {
        return cut();
    }
    // A list would do for the members in their order.
    let is_object = payload.trim_ascii_start().starts_with(b"{");
    match serde_json::from_slice(payload) {
        Ok(said) if is_object => shortened(&said),
        _ => cut(),
    }
}

fn shortened(said: &Said<'_>) -> String {
    let error_type = said.error_type.as_deref().map(|kind| &kind[..kind.floor_char_boundary(TYPE_BYTES_MAX)]);
    let mut bytes_max = MESSAGE_BYTES_MAX;
    loop {
        let error_message = beginning(&said.error_message, bytes_max);
        let shorter = Said { error_type: error_type.map(Cow::Borrowed), error_message };
        let reason = serde_json::to_string(&shorter).expect("it has strings alone");
        if reason.len() <= REASON_BYTES_MAX {
            return reason;
        }
        // With nothing of the message it fits, so this ends.
        bytes_max /= 2;
    }
}

/// `message`, or of one that is longer than `bytes_max` its beginning, and how long it was.
pub fn beginning(message: &str, bytes_max: usize) -> Cow<'_, str> {
    if message.len() <= bytes_max {
        return Cow::Borrowed(message);
    }
    let beginning = &message[..message.floor_char_boundary(bytes_max)];
    Cow::Owned(format!("{beginning}... (the beginning of {} bytes)", message.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(said: &Value) -> Value {
        let reason = kept(said.to_string().as_bytes());
        assert!(reason.len() <= REASON_BYTES_MAX, "{}", reason.len());
        serde_json::from_str(&reason).expect("it is JSON still")
    }

    #[test]
    fn a_failure_that_is_too_long_keeps_its_type_and_the_beginning_of_its_message() {
        // In JSON a control character is six bytes.
        for message in ["m".repeat(20_000), "\u{2603}".repeat(20_000), "\u{1}".repeat(20_000)] {
            let kept =
                read(&json!({ "errorMessage": message, "errorType": "ValueError", "stackTrace": ["t"] }));
            let text = kept["errorMessage"].as_str().expect("a message");
            let (beginning, end) = text.split_once("... (").expect("it says that it was cut");
            assert!(message.starts_with(beginning) && beginning.len() > 700, "{text}");
            assert_eq!(end, format!("the beginning of {} bytes)", message.len()));
            assert_eq!(kept["errorType"], "ValueError");
        }
        let traced = json!({ "errorType": "E", "errorMessage": "m", "stackTrace": vec!["t"; 20_000] });
        assert_eq!(read(&traced), json!({ "errorType": "E", "errorMessage": "m" }));
        let kept = read(&json!({ "errorType": "\u{1}".repeat(20_000), "errorMessage": "m" }));
        assert_eq!((&kept["errorType"], &kept["errorMessage"]), (&json!("\u{1}".repeat(256)), &json!("m")));
        assert_eq!(
            read(&json!({ "errorMessage": "m", "more": "x".repeat(9_000) })),
            json!({ "errorMessage": "m" })
        );
    }

    #[test]
    fn other_words_are_kept_as_they_are_up_to_the_bound() {
        let short = r#"{"errorType": "E", "errorMessage": "m", "stackTrace": ["t"]}"#;
        assert_eq!(kept(short.as_bytes()), short);
        assert_eq!(kept(b"died \xff"), "died \u{fffd}");
        for long in ["x".repeat(9_000), format!("[\"E\", \"{}\"]", "m".repeat(9_000))] {
            assert_eq!(kept(long.as_bytes()), long[..REASON_BYTES_MAX]);
        }
    }
}
