//! What a run and its steps are said to have failed with, and what counts of an atomic one.

use serde_json::{Value, json};
use simulated::World;
use transactions::model::TransactionId;

use super::*;
use crate::shown::tests::service;

fn said(payload: &str) -> Value {
    let Failure::Failed(failure) = Failure::said("f", payload.as_bytes()) else {
        panic!("it has failed");
    };
    assert!(failure.len() <= FAILURE_BYTES_MAX, "{}", failure.len());
    serde_json::from_slice(&failure).expect("it is JSON")
}

#[test]
fn a_result_that_no_function_may_answer_with_is_refused_with_the_limit_of_a_step() {
    let payload =
        json!({ "errorType": "Function.ResponseSizeTooLarge", "errorMessage": "(6291456 bytes)." });
    let Failure::Failed(said) = failed("f", payload.to_string().as_bytes(), 4_153_344) else {
        panic!("it has failed");
    };
    let said: Value = serde_json::from_slice(&said).expect("it is JSON");
    let why =
        "a result has more bytes than a function may answer with, and 4153344 are the most here";
    assert_eq!(
        said,
        json!({ "step": "f", "errorType": "Workflow.ResultTooLarge", "errorMessage": why })
    );
    let own = failed("f", br#"{"errorType":"E"}"#, 4_153_344);
    assert_eq!(
        own,
        Failure::said("f", br#"{"errorType":"E"}"#),
        "what else it said stays"
    );
}

#[test]
fn a_failure_that_is_too_long_keeps_its_type_and_the_beginning_of_its_message() {
    let short = json!({ "errorType": "E", "errorMessage": "m", "stackTrace": ["t"] });
    let kept = said(&short.to_string());
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
        let kept = said(&json!({ "errorType": "E", "errorMessage": message }).to_string());
        let text = kept["errorMessage"].as_str().expect("a message");
        let (beginning, end) = text.split_once("... (").expect("it says that it was cut");
        assert!(
            message.starts_with(beginning) && beginning.len() > MESSAGE_BYTES_MAX - 4,
            "{text}"
        );
        assert_eq!(end, format!("the beginning of {} bytes)", message.len()));
        assert_eq!(kept["errorType"], "E");
    }
    // What is long may as well be its type or its trace, or there may be none.
    let traced = json!({ "errorType": "E", "errorMessage": "m", "stackTrace": vec!["t"; 40_000] });
    let kept = said(&traced.to_string());
    assert_eq!(
        (&kept["errorType"], &kept["errorMessage"]),
        (&json!("E"), &json!("m"))
    );
    let kept =
        said(&json!({ "errorType": "\u{1}".repeat(40_000), "errorMessage": "m" }).to_string());
    assert_eq!(kept["errorMessage"], "m");
    assert_eq!(said(&"x".repeat(40_000))["errorType"], FUNCTION_FAILED);
}

/// W5: an attempt of a transaction that was lost is nothing to the next one, however late its code is done.
#[test]
fn what_belongs_to_a_transaction_that_was_begun_anew_counts_in_no_other() {
    simulated::run(async {
        let service = service(&World::new(1));
        let inner = &service.inner;
        let workflow =
            serde_json::from_value(json!({ "steps": ["f"], "atomic": true })).expect("it is one");
        let rows = (
            RunRow::begun(1, None),
            Given {
                input: Bytes::new(),
                workflow,
            },
        );
        let home = (Home::Near, inner.homes.near().clone());
        let journal = (BTreeMap::new(), DurabilityPoint::DURABLE);
        let run = Run::new(
            inner,
            ("w".to_owned(), "run".to_owned()),
            rows,
            home,
            journal,
        );
        let call = Call {
            id: TransactionId::new("t").expect("short"),
            attempt: None,
        };
        run.begin_anew(&call);
        let (late, around) = ["0", "1"]
            .map(|path| run.attempt_at(inner, path.to_owned(), 1))
            .into();
        let overlay = run.begin_anew(&call);
        let output = Bytes::from_static(b"1");
        late.overlay
            .put("k".into(), Some(output.clone()), &inner.options)
            .expect("room");
        let counted = run.count(inner, &late, "f", output.clone()).await;
        assert_eq!(counted, Err(Failure::Stopped));
        let failed = run.failed("f", 1, 1, Bytes::from_static(b"{}"));
        let told = run.count_failure(inner, &around, ("1/0", &failed)).await;
        assert!(matches!(told, Err(Error::AttemptEnded)), "{told:?}");
        assert_eq!((run.counted("0"), run.counted("1/0")), (None, None));
        assert!(overlay.peek().expect("open").is_empty());
        let attempt = run.attempt_at(inner, "0".to_owned(), 1);
        assert_eq!(
            run.count(inner, &attempt, "f", output.clone()).await,
            Ok(output)
        );
        assert!(run.counted("0").is_some());
    });
}
