//! Events in Lambda's format: the payload for a queue batch, a timer tick or another function's
//! failure, and the result of a batch.
//!
//! The shapes follow AWS's documentation (SQS, EventBridge scheduled events, destinations), so that
//! handlers written for them run unchanged, and libraries that validate them accept them. No member
//! is left out. Our queues store neither the sender of a message nor the time it was sent. The
//! event gives the account and the time of this delivery instead.

use std::borrow::Cow;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use ports::{Timestamp, queue::Delivery};
use serde::Serialize;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{ids::hexadecimal, lenient_json::Members};

const PLACE: &str = "us-east-1:000000000000";
const ACCOUNT: &str = "000000000000";

/// A batch of `queue` that was received `now`, in SQS's format.
pub(crate) fn messages(queue: &str, deliveries: &[Delivery], now: Timestamp) -> Bytes {
    let records: Vec<_> = deliveries
        .iter()
        .map(|delivery| record(queue, delivery, now))
        .collect();
    encode(&json!({ "Records": records }))
}

fn record(queue: &str, delivery: &Delivery, now: Timestamp) -> Value {
    let Delivery {
        handle,
        deduplication,
        body,
        ..
    } = delivery;
    // A body that is not UTF-8 is encoded in hexadecimal and marked.
    let (body, attributes) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), json!({})),
        Err(_) => (
            hexadecimal(body),
            json!({ "encoding": { "dataType": "String", "stringValue": "hex" } }),
        ),
    };
    json!({
        "messageId": message_id(delivery),
        "receiptHandle": format!("{}/{}", message_id(delivery), handle.attempt),
        "md5OfBody": hexadecimal(&Md5::digest(&body)),
        "body": body,
        "attributes": {
            "SenderId": ACCOUNT,
            "SentTimestamp": now.0.to_string(),
            "ApproximateFirstReceiveTimestamp": now.0.to_string(),
            "ApproximateReceiveCount": handle.attempt.to_string(),
            "MessageGroupId": text(&handle.group),
            "MessageDeduplicationId": deduplication.as_ref().map(|id| text(id)),
            "SequenceNumber": handle.sequence.0.to_string(),
        },
        "messageAttributes": attributes,
        "eventSource": "aws:sqs",
        "eventSourceARN": format!("arn:aws:sqs:{PLACE}:{queue}"),
        "awsRegion": "us-east-1",
    })
}

/// The id of a message, equal at every delivery.
pub(crate) fn message_id(delivery: &Delivery) -> String {
    format!(
        "{}-{}",
        text(&delivery.handle.group),
        delivery.handle.sequence.0
    )
}

/// How many leading messages of the batch the function completed, by its result. A message it names
/// as failed is not completed, nor is any after it, so that order is kept. If it names ids outside
/// the batch, or reports failures in another shape, no message is completed: the report would be
/// lost. An empty result, or one that is not an object, reports no failure.
///
/// Errors: the result is not JSON, so its report is unknown.
pub(crate) fn completed(answer: &[u8], deliveries: &[Delivery]) -> serde_json::Result<usize> {
    if answer.trim_ascii().is_empty() {
        return Ok(deliveries.len());
    }
    let said: &RawValue = serde_json::from_slice(answer)?;
    // An error means that it is not an object.
    let members: Option<Members<'_>> = serde_json::from_str(said.get()).ok();
    let reported = members.and_then(|members| members.get("batchItemFailures").copied());
    Ok(reported.map_or(deliveries.len(), |reported| {
        before_the_first(reported, deliveries)
    }))
}

/// How many messages precede the first one that is reported as failed.
fn before_the_first(reported: &RawValue, deliveries: &[Delivery]) -> usize {
    let failures = match serde_json::from_str(reported.get()) {
        Ok(Value::Null) => return deliveries.len(),
        Ok(Value::Array(failures)) => failures,
        _ => return 0,
    };
    let place = |failure: &Value| {
        let id = failure.get("itemIdentifier")?.as_str()?;
        deliveries
            .iter()
            .position(|delivery| message_id(delivery) == id)
    };
    failures
        .iter()
        .map(|failure| place(failure).unwrap_or(0))
        .min()
        .unwrap_or(deliveries.len())
}

pub(crate) fn scheduled(function: &str, id: &str, now: Timestamp) -> Bytes {
    encode(&json!({
        "version": "0",
        "id": id,
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": "000000000000",
        "time": in_seconds(now),
        "region": "us-east-1",
        "resources": [format!("arn:aws:events:{PLACE}:rule/{function}")],
        "detail": {},
    }))
}

/// An event that a function has failed permanently.
#[derive(Debug)]
pub(crate) struct Failed<'a> {
    pub(crate) function: &'a str,
    pub(crate) id: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) reason: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Notice<'a> {
    version: &'static str,
    timestamp: String,
    request_context: Value,
    /// The original text: decoding it and encoding it again would change large numbers. Null if it
    /// is not JSON.
    request_payload: Option<&'a RawValue>,
    response_context: Value,
    /// The function's own error, if it is JSON.
    response_payload: Cow<'a, RawValue>,
}

/// The notice to another function, encoded. `attempts` is the most that the event had; none: the
/// function was removed, and the event ran at least once.
pub(crate) fn failed(event: &Failed<'_>, attempts: Option<u32>, now: Timestamp) -> Bytes {
    let Failed { function, id, .. } = *event;
    let notice = Notice {
        version: "1.0",
        timestamp: in_milliseconds(now),
        request_context: json!({
            "requestId": id,
            "functionArn": format!("arn:aws:lambda:{PLACE}:function:{function}:$LATEST"),
            "condition": "RetriesExhausted",
            "approximateInvokeCount": attempts.unwrap_or(1),
        }),
        request_payload: serde_json::from_slice(event.payload).ok(),
        response_context: json!({ "statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled" }),
        response_payload: serde_json::from_str(event.reason).map_or_else(
            |_| {
                Cow::Owned(
                    to_raw_value(&json!({ "errorMessage": event.reason }))
                        .expect("a string is JSON"),
                )
            },
            Cow::Borrowed,
        ),
    };
    serde_json::to_vec(&notice)
        .expect("names are strings")
        .into()
}

/// An instant as EventBridge writes it, in whole seconds: `1970-01-01T00:00:05Z`. Handlers parse
/// it by exactly this format.
fn in_seconds(instant: Timestamp) -> String {
    let seconds = i64::try_from(instant.0 / 1000).ok();
    let time = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// An instant as Lambda's destinations write it, always with three digits of milliseconds:
/// `1970-01-01T00:00:05.000Z`.
pub(super) fn in_milliseconds(instant: Timestamp) -> String {
    let seconds = in_seconds(instant);
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), instant.0 % 1000)
}

/// Bytes as text, or in hexadecimal if they are not UTF-8.
pub(crate) fn text(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| hexadecimal(bytes), str::to_owned)
}

pub(super) fn encode(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

#[cfg(test)]
mod tests {
    use ports::queue::{Handle, Sequence};

    use super::*;

    fn delivery(sequence: u64, body: &'static [u8]) -> Delivery {
        let handle = Handle {
            group: Bytes::from("g"),
            sequence: Sequence(sequence),
            attempt: 2,
            incarnation: ports::Incarnation::default(),
        };
        Delivery {
            handle,
            deduplication: None,
            failures: 1,
            body: Bytes::from_static(body),
        }
    }

    #[test]
    fn a_batch_has_the_format_of_sqs() {
        let event: Value = serde_json::from_slice(&messages(
            "q",
            &[delivery(7, b"text"), delivery(8, b"\xff")],
            Timestamp(5),
        ))
        .expect("JSON");
        let records = event["Records"].as_array().expect("a list");
        assert_eq!(
            (&records[0]["body"], &records[0]["messageId"]),
            (&json!("text"), &json!("g-7"))
        );
        let attributes = &records[0]["attributes"];
        assert_eq!(attributes["ApproximateReceiveCount"], "2");
        assert_eq!(
            (
                &attributes["SentTimestamp"],
                &attributes["ApproximateFirstReceiveTimestamp"]
            ),
            (&json!("5"), &json!("5"))
        );
        assert_eq!(attributes["SenderId"], "000000000000");
        assert_eq!(records[0]["md5OfBody"], "1cb251ec0d568de6a929b520c4aed8d1");
        assert_eq!(
            (
                &records[1]["body"],
                &records[1]["messageAttributes"]["encoding"]["stringValue"]
            ),
            (&json!("ff"), &json!("hex"))
        );
    }

    /// A function's result for a batch of three, and how many of its messages are completed.
    const RESULTS: &[(&str, usize)] = &[
        ("{}", 3),
        (r#"{"batchItemFailures":null}"#, 3),
        (r#"{"batchItemFailures":[]}"#, 3),
        (
            r#"{"batchItemFailures":[{"itemIdentifier":"g-3"},{"itemIdentifier":"g-2"}]}"#,
            1,
        ),
        (
            r#"{"batchItemFailures":[{"itemIdentifier":"g-2","more":1}],"and":1e999}"#,
            1,
        ),
        // Other members and their names do not matter.
        (
            r#"{"\ud800":1,"batchItemFailures":[{"itemIdentifier":"g-2"}]}"#,
            1,
        ),
        (
            r#"{"\ud800":"\ud800","batchItemFailures":[{"itemIdentifier":"g-2"}]}"#,
            1,
        ),
        // A result that is not an object reports no failure.
        ("", 3),
        (" \n", 3),
        (r#""\ud800""#, 3),
        ("null", 3),
        ("3", 3),
        (r#""x""#, 3),
        ("[]", 3),
        (r#"["batchItemFailures"]"#, 3),
        // The report is invalid.
        (r#"{"batchItemFailures":[{"itemIdentifier":"unknown"}]}"#, 0),
        (
            r#"{"batchItemFailures":[{"itemIdentifier":"g-3"},{"itemIdentifier":"unknown"}]}"#,
            0,
        ),
        (r#"{"batchItemFailures":[{"itemIdentifier":null}]}"#, 0),
        (r#"{"batchItemFailures":[{"itemIdentifier":""}]}"#, 0),
        (r#"{"batchItemFailures":[{"itemIdentifier":5}]}"#, 0),
        (r#"{"batchItemFailures":[{"identifier":"g-3"}]}"#, 0),
        (r#"{"batchItemFailures":[{}]}"#, 0),
        (r#"{"batchItemFailures":["g-3"]}"#, 0),
        (r#"{"batchItemFailures":[["g-3"]]}"#, 0),
        (r#"{"batchItemFailures":[null]}"#, 0),
        (r#"{"batchItemFailures":{"itemIdentifier":"g-3"}}"#, 0),
        (r#"{"batchItemFailures":"x"}"#, 0),
        (r#"{"batchItemFailures":false}"#, 0),
    ];

    /// A4.
    #[test]
    fn messages_after_the_first_failure_are_not_completed() {
        let batch = [delivery(1, b""), delivery(2, b""), delivery(3, b"")];
        for (answer, done) in RESULTS {
            let completed = completed(answer.as_bytes(), &batch).expect("JSON");
            assert_eq!(completed, *done, "{answer}");
        }
        for answer in [
            &b"no JSON"[..],
            br#"{"a":NaN,"batchItemFailures":[{"itemIdentifier":"g-2"}]}"#,
            br#"{"batchItemFailures":[]"#,
            br#"{"batchItemFailures":[]} more"#,
            b"{\"\xff\":1}",
        ] {
            let answered = completed(answer, &batch);
            assert!(answered.is_err(), "{}: {answered:?}", answer.escape_ascii());
        }
    }

    /// Handlers read these times by a fixed format, `%Y-%m-%dT%H:%M:%SZ` for a timer's.
    #[test]
    fn a_timers_time_is_in_seconds_and_a_failures_in_milliseconds() {
        let event = Failed {
            function: "f",
            id: "id",
            payload: b"{}",
            reason: "{}",
        };
        for (ms, seconds, milliseconds) in [
            (
                1_584_039_838_390,
                "2020-03-12T19:03:58Z",
                "2020-03-12T19:03:58.390Z",
            ),
            (
                1_584_039_838_007,
                "2020-03-12T19:03:58Z",
                "2020-03-12T19:03:58.007Z",
            ),
            (
                1_584_039_838_000,
                "2020-03-12T19:03:58Z",
                "2020-03-12T19:03:58.000Z",
            ),
        ] {
            let read = |event: &[u8]| serde_json::from_slice::<Value>(event).expect("JSON");
            let tick = read(&scheduled("f", "id", Timestamp(ms)));
            let notice = read(&failed(&event, None, Timestamp(ms)));
            assert_eq!(tick["time"], seconds);
            assert_eq!(notice["timestamp"], milliseconds);
        }
    }

    #[test]
    fn a_failure_notice_has_the_payload_and_the_error() {
        let mut event = Failed {
            function: "f",
            id: "id",
            payload: br#"{"a":1}"#,
            reason: r#"{"errorType":"E","errorMessage":"m"}"#,
        };
        let told: Value =
            serde_json::from_slice(&failed(&event, Some(3), Timestamp(0))).expect("JSON");
        assert_eq!(
            (
                &told["requestPayload"]["a"],
                &told["responsePayload"]["errorType"]
            ),
            (&json!(1), &json!("E"))
        );
        assert_eq!(told["timestamp"], "1970-01-01T00:00:00.000Z");
        assert_eq!(
            (
                &told["requestContext"]["approximateInvokeCount"],
                &told["responseContext"]["statusCode"]
            ),
            (&json!(3), &json!(200))
        );
        (event.payload, event.reason) = (b"\xff", "died");
        let told: Value =
            serde_json::from_slice(&failed(&event, Some(3), Timestamp(0))).expect("JSON");
        assert_eq!(told["responsePayload"]["errorMessage"], "died");
        event.reason = r#"{"errorType":"E","data":1e999}"#;
        let told = failed(&event, Some(3), Timestamp(0));
        let said = format!("\"responsePayload\":{}}}", event.reason);
        assert!(
            String::from_utf8_lossy(&told).ends_with(&said),
            "in its own words: {told:?}"
        );
    }

    #[test]
    fn a_notice_has_the_original_payload_and_null_for_one_that_is_not_json() {
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        let told = |payload: &[u8]| {
            let event = Failed {
                function: "f",
                id: "id",
                payload,
                reason: "",
            };
            String::from_utf8(failed(&event, None, Timestamp(0)).into()).expect("UTF-8")
        };
        for payload in [
            "123456789012345678901234567890",
            "0.1000000000000000000001",
            "1e999",
            r#""\ud800""#,
            r#"{"b": 1, "a":2, "a":3}"#,
            "null",
            &deep,
        ] {
            let said = format!("\"requestPayload\":{payload},\"responseContext\"");
            assert!(told(payload.as_bytes()).contains(&said), "{payload}");
        }
        for payload in [
            &b""[..],
            b"no JSON",
            b"[",
            b"1 2",
            b"\"\xff\"",
            b"1,\"requestContext\":{}",
        ] {
            assert!(
                told(payload).contains("\"requestPayload\":null,"),
                "{payload:?}"
            );
        }
    }
}
