//! What a run and its steps are said to have failed with.

use serde_json::{Value, json};

use super::*;

fn said(payload: &str) -> Value {
    let Failure::Failed(failure) = Failure::said("f", payload.as_bytes()) else {
        panic!("it has failed");
    };
    assert!(failure.len() <= FAILURE_BYTES_MAX, "{}", failure.len());
    serde_json::from_slice(&failure).expect("it is JSON")
}

#[test]
fn a_result_that_no_function_may_answer_with_is_refused_with_the_limit_of_a_step() {
    let payload = json!({ "errorType": "Function.ResponseSizeTooLarge", "errorMessage": "(6291456 bytes)." });
    let Failure::Failed(said) = failed("f", payload.to_string().as_bytes(), 4_153_344) else {
        panic!("it has failed");
    };
    let said: Value = serde_json::from_slice(&said).expect("it is JSON");
    let why = "a result has more bytes than a function may answer with, and 4153344 are the most here";
    assert_eq!(said, json!({ "step": "f", "errorType": "Workflow.ResultTooLarge", "errorMessage": why }));
    let own = failed("f", br#"{"errorType":"E"}"#, 4_153_344);
    assert_eq!(own, Failure::said("f", br#"{"errorType":"E"}"#), "what else it said stays");
}

#[test]
fn a_failure_that_is_too_long_keeps_its_type_and_the_beginning_of_its_message() {
    let short = json!({ "errorType": "E", "errorMessage": "m", "stackTrace": ["t"] });
    let kept = said(&short.to_string());
    assert_eq!((&kept["step"], &kept["stackTrace"]), (&json!("f"), &json!(["t"])));
    // A control character becomes six bytes.
    for message in ["\u{2603}".repeat(20_000), "\u{1}".repeat(40_000), "m".repeat(300_000)] {
        let kept = said(&json!({ "errorType": "E", "errorMessage": message }).to_string());
        let text = kept["errorMessage"].as_str().expect("a message");
        let (beginning, end) = text.split_once("... (").expect("it says that it was cut");
        assert!(message.starts_with(beginning) && beginning.len() > MESSAGE_BYTES_MAX - 4, "{text}");
        assert_eq!(end, format!("the beginning of {} bytes)", message.len()));
        assert_eq!(kept["errorType"], "E");
    }
    // What is long may as well be its type or its trace, or there may be none.
    let traced = json!({ "errorType": "E", "errorMessage": "m", "stackTrace": vec!["t"; 40_000] });
    let kept = said(&traced.to_string());
    assert_eq!((&kept["errorType"], &kept["errorMessage"]), (&json!("E"), &json!("m")));
    let kept = said(&json!({ "errorType": "\u{1}".repeat(40_000), "errorMessage": "m" }).to_string());
    assert_eq!(kept["errorMessage"], "m");
    assert_eq!(said(&"x".repeat(40_000))["errorType"], FUNCTION_FAILED);
}
