//! What is kept of why a function failed: its own words, in a bound.
//!
//! A runtime says it as an object with `errorType`, `errorMessage` and `stackTrace`, and whoever is told decides by the first. So the
//! message is cut and not the JSON, which would be none then.
//!
//! Invariants
//! - What is kept of such an object is one, and has its `errorType`, whatever JSON its members are: a surrogate alone is replaced in a
//!   text, and what is no text is told as its JSON.
//! - A message that was cut ends with how long it was.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::members::Text;

/// The longest that is kept.
const REASON_BYTES_MAX: usize = 8 * 1024;
/// The longest `errorType` of one that is cut. In JSON a byte may become six.
const TYPE_BYTES_MAX: usize = 256;
/// What is kept of a message first; less where in JSON it is longer than that.
const MESSAGE_BYTES_MAX: usize = 6 * 1024;

/// What a runtime says of a failure.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
    #[serde(borrow)]
    error_type: Option<&'a RawValue>,
    #[serde(borrow)]
    error_message: Option<&'a RawValue>,
}

/// The same, cut: its `stackTrace`, which the log has, is left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shortened<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<Cow<'a, str>>,
}

/// What is kept of the words of a function that failed.
pub(crate) fn kept(payload: &[u8]) -> String {
    let cut =
        || String::from_utf8_lossy(&payload[..payload.len().min(REASON_BYTES_MAX)]).into_owned();
    if payload.len() <= REASON_BYTES_MAX {
        return cut();
    }
    let said = String::from_utf8_lossy(payload);
    // A list would do for the members in their order.
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
        // With nothing of the message it fits, so this ends.
        bytes_max /= 2;
    }
}

/// The text of a member, if it is one; else its JSON.
fn text(member: &RawValue) -> Cow<'_, str> {
    let json = member.get();
    serde_json::from_str(json).map_or(Cow::Borrowed(json), |Text(text)| Cow::Owned(text))
}

/// `message`, or of one that is longer than `bytes_max` its beginning, and how long it was.
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
    fn a_failure_that_is_too_long_keeps_its_type_and_the_beginning_of_its_message() {
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

    /// Whoever is told decides by the type, whatever is said beside it.
    #[test]
    fn a_failure_that_is_too_long_keeps_its_type_whatever_its_message_is() {
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
    fn other_words_are_kept_as_they_are_up_to_the_bound() {
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
