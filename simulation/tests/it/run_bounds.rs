//! W4: a run ends for any result of its functions; and the figures of runs and far stores.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use functions::manifest::workflow::Workflow;
use ports::{
    key_value::SharedKeyValue,
    runtime::{FunctionError, Invocation, Ran},
};
use simulated::World;
use transactions::Parts as TransactionParts;
use workflows::{FarStores, Figures, Options, Parts, RunView, Runner, Service, Status};

/// Functions that return or fail by their names: `result-N` with N bytes, `failure-N` in N words.
#[derive(Debug)]
struct Answers(Arc<Workflow>);

#[async_trait]
impl Runner for Answers {
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        (name == "w").then(|| Arc::clone(&self.0))
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        BTreeMap::from([("w".to_owned(), Arc::clone(&self.0))])
    }

    fn retries(&self, _: &str) -> Option<u32> {
        Some(0)
    }

    async fn run(&self, function: &str, _: Invocation) -> Result<Ran, String> {
        let (what, length) = function.split_once('-').expect("a name with a number");
        let length = length.parse().expect("a number");
        let result = match what {
            "result" => Ok(Bytes::from(format!("\"{}\"", "x".repeat(length)))),
            "failure" => Err(FunctionError {
                payload: Bytes::from(format!(
                    "{{\"errorMessage\":\"{}\"}}",
                    "\u{1}".repeat(length)
                )),
            }),
            "noise" => Err(FunctionError {
                payload: Bytes::from(vec![0xff; length]),
            }),
            other => panic!("{other}"),
        };
        Ok(Ran {
            result,
            log_tail: Bytes::new(),
        })
    }
}

#[derive(Debug)]
struct Nowhere;

#[async_trait]
impl FarStores for Nowhere {
    async fn open(&self, _: &str) -> ports::Result<SharedKeyValue> {
        Err(ports::Error::unavailable("open a far store"))
    }
}

fn with_service<T>(workflow: &str, play: impl AsyncFnOnce(&Service) -> T) -> T {
    let workflow: Workflow = serde_json::from_str(workflow).expect("a workflow");
    simulated::run(async {
        let world = World::new(7);
        let parts = TransactionParts {
            key_value: world.key_value(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let engine =
            Arc::new(transactions::Service::builder(parts).build(transactions::Config::default()));
        engine.start().await.expect("it starts");
        let runner = Arc::clone(&engine);
        let background = tokio::spawn(async move { runner.run().await });
        let parts = Parts {
            runner: Arc::new(Answers(Arc::new(workflow))),
            key_value: world.key_value(),
            transactions: engine.engine(),
            far_stores: Arc::new(Nowhere),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let service = Service::new(parts, Options::default());
        let played = play(&service).await;
        service.stop().await;
        background.abort();
        played
    })
}

/// The end of a run with an input of this many bytes, and its text.
async fn end(service: &Service, input: usize) -> (RunView, String) {
    let input = Bytes::from(format!("\"{}\"", "x".repeat(input)));
    let run = service.begin("w", None, input).await.expect("begun");
    let view = service
        .wait("w", &run, Duration::from_mins(5))
        .await
        .expect("it is there");
    let said = view
        .error
        .as_ref()
        .map(|error| error.get().to_owned())
        .unwrap_or_default();
    (view, said)
}

/// W4. The simulated store keeps items of 400 KiB.
#[test]
fn a_run_ends_however_long_its_input_and_its_result_are() {
    for atomic in [false, true] {
        let workflow = format!(r#"{{"steps":["result-350000"],"atomic":{atomic}}}"#);
        with_service(&workflow, async |service| {
            let (view, said) = end(service, 350_000).await;
            assert_eq!(view.status, Status::Succeeded, "atomic: {atomic}: {said}");
        });
        let workflow = format!(r#"{{"steps":["result-400000"],"atomic":{atomic}}}"#);
        with_service(&workflow, async |service| {
            let (view, said) = end(service, 10).await;
            assert_eq!(view.status, Status::Failed, "atomic: {atomic}");
            assert!(said.contains("Workflow.ResultTooLarge"), "{said}");
        });
    }
}

/// W4.
#[test]
fn a_failure_in_very_many_words_ends_its_run() {
    for steps in [
        r#""failure-600000""#,
        r#""failure-40000""#,
        r#""noise-600000""#,
        r#""failure-10""#,
    ] {
        with_service(&format!("{{\"steps\":[{steps}]}}"), async |service| {
            // The longest input.
            let (view, said) = end(service, 360_000).await;
            assert_eq!(view.status, Status::Failed, "{steps}");
            assert!(said.len() <= 32 << 10, "{steps}: {} bytes", said.len());
            assert!(said.contains("\"step\""), "{steps}: {said:.100}");
        });
    }
}

/// W4.
#[test]
fn a_list_of_results_is_bounded_as_one_is() {
    let branches = [r#"["result-100000"]"#; 6].join(",");
    with_service(
        &format!("{{\"steps\":[{{\"parallel\":[{branches}]}}]}}"),
        async |service| {
            let (view, said) = end(service, 10).await;
            assert_eq!(view.status, Status::Failed);
            assert!(said.contains("Workflow.ResultTooLarge"), "{said}");
        },
    );
    with_service(r#"{"steps":[{"map":["result-1"]}]}"#, async |service| {
        let input = Bytes::from(format!("[{}]", vec!["1"; 10_001].join(",")));
        let run = service.begin("w", None, input).await.expect("begun");
        let view = service
            .wait("w", &run, Duration::from_mins(5))
            .await
            .expect("it is there");
        let said = view.error.expect("it failed");
        assert!(said.get().contains("Workflow.InvalidInput"), "{said}");
    });
}

#[test]
fn runs_are_counted_by_their_outcome() {
    with_service(
        r#"{"steps":[{"choice":[{"when":{"exists":true,"equals":"x"},"steps":["failure-1"]}],"otherwise":["result-1"]}]}"#,
        async |service| {
            end(service, 10).await;
            end(service, 10).await;
            end(service, 1).await;
            let figures = service.figures();
            assert_eq!(
                figures,
                Figures {
                    active: 0,
                    begun: 3,
                    succeeded: 2,
                    failed: 1,
                    cancelled: 0
                }
            );
            assert!(service.far_stores().is_empty());
        },
    );
}

#[test]
fn a_far_store_that_was_wanted_is_shown_without_its_password() {
    with_service(
        r#"{"steps":["result-1"],"far":"redis://who:secret@there:1"}"#,
        async |service| {
            let refused = service
                .begin("w", None, Bytes::from("1"))
                .await
                .expect_err("it is not there");
            assert!(
                !format!("{refused} {refused:?}").contains("secret"),
                "{refused:?}"
            );
            let stores = service.far_stores();
            let (address, store) = stores.first_key_value().expect("it is shown");
            assert_eq!((stores.len(), address.as_str()), (1, "redis://there:1"));
            assert!(
                store
                    .trouble
                    .as_ref()
                    .is_some_and(|why| why.contains("open a far store")),
                "{store:?}"
            );
        },
    );
}
