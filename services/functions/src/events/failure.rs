//! The stored reason of a function's failure: the function's own error, cut to a bound.
//!
//! A runtime reports an object with `errorType`, `errorMessage` and `stackTrace`, and readers
//! decide by `errorType`. The message is therefore cut, not the JSON, which would become invalid.
//!
//! Invariants
//! - The stored reason of such an object is an object with the same `errorType`, whatever its
//!   members are. A lone surrogate in a string is replaced, and a member that is not a string is
//!   kept as its JSON text.
//! - A cut message ends with its original length.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::lenient_json::Text;

const REASON_BYTES_MAX: usize = 8 * 1024;
/// The longest `errorType` in a cut reason. JSON may turn one byte into six.
const TYPE_BYTES_MAX: usize = 256;
/// The first attempt at the length of a cut message. It shrinks while the JSON is too long.
const MESSAGE_BYTES_MAX: usize = 6 * 1024;

/// A failure as a runtime reports it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
    #[serde(borrow)]
    error_type: Option<&'a RawValue>,
    #[serde(borrow)]
    error_message: Option<&'a RawValue>,
}

/// The same, cut. The `stackTrace` is left out; the log has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shortened<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<Cow<'a, str>>,
}

/// The stored reason for a function's error `payload`.
pub(crate) fn kept(payload: &[u8]) -> String {
    let cut =
        || String::from_utf8_lossy(&payload[..payload.len().min(REASON_BYTES_MAX)]).into_owned();
    if payload.len() <= REASON_BYTES_MAX {
        return cut();
    }
    let said = String::from_utf8_lossy(payload);
    // Serde would also accept a list of the members in order.
    let is_object = said.trim_ascii_start().starts_with('{');
    match serde_json::from_str(&said) {
        Ok(said) if is_object => shortened(&said),
        _ => cut(),
    }
}

fn shortened(said: &Said<'_>) -> String {
    let (kind, message) = (said.error_type.map(text), said.error_message.map(text));
    let error_type = kind
        .as_deref()
        .map(|kind| &kind[..kind.floor_char_boundary(TYPE_BYTES_MAX)]);
    let mut bytes_max = MESSAGE_BYTES_MAX;
    loop {
        let error_message = message
            .as_deref()
            .map(|message| beginning(message, bytes_max));
        let shorter = Shortened {
            error_type,
            error_message,
        };
        let reason = serde_json::to_string(&shorter).expect("it has strings alone");
        if reason.len() <= REASON_BYTES_MAX {
            return reason;
        }
        // Without any message it fits, so the loop ends.
        bytes_max /= 2;
    }
}

/// The text of a string member, or the JSON of another one.
fn text(member: &RawValue) -> Cow<'_, str> {
    let json = member.get();
    serde_json::from_str(json).map_or(Cow::Borrowed(json), |Text(text)| Cow::Owned(text))
}

/// `message`, or, if it is longer than `bytes_max`, its beginning and its original length.
pub fn beginning(message: &str, bytes_max: usize) -> Cow<'_, str> {
    if message.len() <= bytes_max {
        return Cow::Borrowed(message);
    }
    let beginning = &message[..message.floor_char_boundary(bytes_max)];
    Cow::Owned(format!(
        "{beginning}... (the beginning of {} bytes)",
        message.len()
    ))
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
    fn a_long_failure_keeps_its_type_and_the_beginning_of_its_message() {
        // In JSON a control character is six bytes.
        for message in [
            "m".repeat(20_000),
            "\u{2603}".repeat(20_000),
            "\u{1}".repeat(20_000),
        ] {
            let kept = read(
                &json!({ "errorMessage": message, "errorType": "ValueError", "stackTrace": ["t"] }),
            );
            let text = kept["errorMessage"].as_str().expect("a message");
            let (beginning, end) = text.split_once("... (").expect("it says that it was cut");
            assert!(
                message.starts_with(beginning) && beginning.len() > 700,
                "{text}"
            );
            assert_eq!(end, format!("the beginning of {} bytes)", message.len()));
            assert_eq!(kept["errorType"], "ValueError");
        }
        let traced =
            json!({ "errorType": "E", "errorMessage": "m", "stackTrace": vec!["t"; 20_000] });
        assert_eq!(
            read(&traced),
            json!({ "errorType": "E", "errorMessage": "m" })
        );
        let kept = read(&json!({ "errorType": "\u{1}".repeat(20_000), "errorMessage": "m" }));
        assert_eq!(
            (&kept["errorType"], &kept["errorMessage"]),
            (&json!("\u{1}".repeat(256)), &json!("m"))
        );
        assert_eq!(
            read(&json!({ "errorMessage": "m", "more": "x".repeat(9_000) })),
            json!({ "errorMessage": "m" })
        );
    }

    /// Readers decide by the type.
    #[test]
    fn a_long_failure_keeps_its_type_whatever_its_message_is() {
        let kept = |message: &str| {
            let traced = "t".repeat(9_000);
            let said = format!(r#"{{{message}"errorType": "E", "stackTrace": "{traced}"}}"#);
            let reason = kept(said.as_bytes());
            serde_json::from_str::<Value>(&reason).expect("it is JSON still")
        };
        for without in ["", r#""errorMessage": null, "#] {
            assert_eq!(kept(without), json!({ "errorType": "E" }), "{without}");
        }
        for (message, text) in [
            (r#""a\n\ud800 b""#, "a\n\u{fffd}\u{fffd}\u{fffd} b"),
            (r#"{"more": [1e999]}"#, r#"{"more": [1e999]}"#),
            ("7", "7"),
        ] {
            let kept = kept(&format!(r#""errorMessage": {message}, "#));
            assert_eq!(
                kept,
                json!({ "errorType": "E", "errorMessage": text }),
                "{message}"
            );
        }
        let said = [
            &br#"{"errorType": "\udc00", "errorMessage": ""#[..],
            b"\xff",
            &[b'm'; 9_000],
            b"\"}",
        ]
        .concat();
        let kept: Value = serde_json::from_str(&super::kept(&said)).expect("it is JSON still");
        assert_eq!(kept["errorType"], "\u{fffd}\u{fffd}\u{fffd}");
        assert!(
            kept["errorMessage"]
                .as_str()
                .is_some_and(|text| text.starts_with("\u{fffd}mm")),
            "{kept}"
        );
    }

    #[test]
    fn other_texts_are_kept_up_to_the_bound() {
        let short = r#"{"errorType": "E", "errorMessage": "m", "stackTrace": ["t"]}"#;
        assert_eq!(kept(short.as_bytes()), short);
        assert_eq!(kept(b"died \xff"), "died \u{fffd}");
        for long in [
            "x".repeat(9_000),
            format!("[\"E\", \"{}\"]", "m".repeat(9_000)),
        ] {
            assert_eq!(kept(long.as_bytes()), long[..REASON_BYTES_MAX]);
        }
    }
}
