use http_frontend::{
    Status,
    status::{
        Coordination, FarStore, Functions, Journal, Memory, Metered, Phase, Store, Usage, Workflows,
    },
};
use transactions::Figures;

use crate::{Fixture, body, code, status_line};

fn busy() -> Status {
    Status {
        version: "1.2.3".into(),
        phase: Phase::Ready,
        uptime_ms: 1500,
        provider: "embedded".into(),
        listeners: [("zookeeper".to_owned(), "127.0.0.1:2181".to_owned())].into(),
        coordination: Some(Coordination {
            sessions: 2,
            connections: 3,
            watches: 1,
            zxid: 17,
            requests: 40,
            responses: 41,
            malformed: 5,
        }),
        transactions: Some(Figures {
            open: 3,
            committed: 21,
            index_bytes: 77,
            packs: 4,
            packs_bytes: 4096,
            ..Figures::default()
        }),
        functions: Some(functions()),
        workflows: Some(workflows()),
        memory: Some(memory()),
        journal: Some(Journal {
            serving: true,
            full: false,
            trouble: Some("a checkpoint failed".into()),
            bytes: 4096,
            position: 9,
            durable: 8,
            syncs: 5,
            checkpoints: 1,
        }),
        store: Some(Store {
            servers: vec!["127.0.0.1:6379".into()],
            acknowledged: "append-only-file".into(),
            serving: true,
            trouble: None,
        }),
        objects_full: false,
        objects_missing: false,
        blocked_groups: 2,
        log_lines_dropped: 6,
        usage: vec![Usage {
            operation: "key_value.update".into(),
            calls: 12,
            failures: 1,
            items: 11,
            bytes: 900,
        }],
        usage_by_service: [].into(),
    }
}

fn memory() -> Memory {
    Memory {
        instances: 12,
        fragments: 34,
        groups_active: 1,
        groups_degraded: 2,
        groups_released: 3,
        fragments_refused: 4,
        buffered_bytes: 5,
        buffered_fragments: 6,
        metered: Metered::default(),
        credentials: "keys".into(),
    }
}

fn functions() -> Functions {
    Functions {
        deployed: 3,
        instances_busy: 1,
        instances_warm: 2,
        instances_frozen: 4,
        invocations: 70,
        cold_starts: 7,
        adopted: 3,
        spares: 2,
        throttled: 5,
        unavailable: 6,
        failures: [("timed-out".to_owned(), 8), ("function".to_owned(), 0)].into(),
        events_waiting: 9,
        dead_letters: 10,
    }
}

fn workflows() -> Workflows {
    Workflows {
        active: 1,
        begun: 20,
        succeeded: 13,
        failed: 4,
        cancelled: 2,
        far_stores: vec![FarStore {
            address: "redis://far:6379".into(),
            reachable: false,
            trouble: Some("refused".into()),
            answered_ms_ago: Some(2500),
            waiting_bytes: 512,
            waiting_ms: 1500,
            stopped_runs: 1,
        }],
        far_stores_more: 2,
    }
}

#[tokio::test]
async fn readiness_follows_the_phase_and_liveness_does_not() {
    for (phase, ready) in [
        (Phase::Starting, 503),
        (Phase::Ready, 200),
        (Phase::Stopping, 503),
    ] {
        let server = Fixture::showing(Status {
            phase,
            ..Status::default()
        })
        .await;
        let answer = server.get("/health/ready").await;
        assert!(
            status_line(&answer).starts_with(&format!("HTTP/1.1 {ready}")),
            "{phase:?}: {answer}"
        );
        assert_eq!(
            answer.contains(r#""type":"not-ready""#),
            ready == 503,
            "{answer}"
        );
        assert_eq!(
            status_line(&server.get("/health/live").await),
            "HTTP/1.1 200 OK"
        );
    }
}

#[tokio::test]
async fn a_store_that_does_not_serve_is_not_ready() {
    let journal = Some(Journal {
        serving: false,
        ..Journal::default()
    });
    let server = Fixture::showing(Status { journal, ..busy() }).await;
    let answer = server.get("/health/ready").await;
    assert!(answer.contains(r#""type":"not-ready""#), "{answer}");

    let journal = Some(Journal {
        serving: true,
        full: true,
        ..Journal::default()
    });
    let server = Fixture::showing(Status { journal, ..busy() }).await;
    let answer = server.get("/health/ready").await;
    assert!(
        status_line(&answer).starts_with("HTTP/1.1 503") && answer.contains("the disk is full"),
        "{answer}"
    );

    let server = Fixture::showing(Status {
        objects_full: true,
        ..busy()
    })
    .await;
    let answer = server.get("/health/ready").await;
    assert!(
        status_line(&answer).starts_with("HTTP/1.1 503")
            && answer.contains("the disk of --objects is full"),
        "{answer}"
    );

    let server = Fixture::showing(Status {
        objects_missing: true,
        ..busy()
    })
    .await;
    let answer = server.get("/health/ready").await;
    assert!(
        status_line(&answer).starts_with("HTTP/1.1 503")
            && answer.contains("not the one that was opened"),
        "{answer}"
    );
    assert!(
        server
            .get("/metrics")
            .await
            .contains("landfast_objects_missing 1")
    );

    let store = Some(Store {
        serving: false,
        ..Store::default()
    });
    let server = Fixture::showing(Status { store, ..busy() }).await;
    let answer = server.get("/health/ready").await;
    assert!(answer.contains("cannot be reached"), "{answer}");
    assert!(
        server
            .get("/metrics")
            .await
            .contains("landfast_store_serving 0")
    );

    let transactions = Some(Figures {
        starting_over: true,
        ..Figures::default()
    });
    let server = Fixture::showing(Status {
        transactions,
        ..busy()
    })
    .await;
    let answer = server.get("/health/ready").await;
    assert!(answer.contains("transactions do not start"), "{answer}");
}

#[tokio::test]
async fn the_status_is_read_back_as_it_was() {
    let server = Fixture::showing(busy()).await;
    let answer = server.get("/v1/status").await;
    assert!(
        answer.contains("content-type: application/json"),
        "{answer}"
    );
    let read: Status = serde_json::from_str(body(&answer)).expect("a status");
    assert_eq!(read, busy());
}

#[tokio::test]
async fn a_status_of_another_version_is_read_as_far_as_it_goes() {
    let read: Status = serde_json::from_str(r#"{"version":"9","new":{"a":1}}"#).expect("a status");
    assert_eq!(
        read,
        Status {
            version: "9".into(),
            ..Status::default()
        }
    );
}

#[tokio::test]
async fn metrics_are_the_status_in_the_text_format() {
    let answer = Fixture::showing(busy()).await.get("/metrics").await;
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    for line in [
        r#"landfast_build_info{version="1.2.3",provider="embedded"} 1"#,
        "landfast_ready 1",
        "landfast_uptime_seconds 1.5",
        "landfast_coordination_sessions 2",
        "landfast_coordination_zxid 17",
        "landfast_coordination_requests_total 40",
        "landfast_coordination_malformed_total 5",
        "landfast_objects_full 0",
        "landfast_objects_missing 0",
        "landfast_blocked_groups 2",
        "landfast_log_lines_dropped_total 6",
        "landfast_transactions_open 3",
        "landfast_transactions_committed_total 21",
        "landfast_transactions_index_size_bytes 77",
        "landfast_journal_size_bytes 4096",
        "landfast_transactions_packs 4",
        "landfast_transactions_packs_size_bytes 4096",
        "landfast_journal_syncs_total 5",
        "landfast_functions_deployed 3",
        r#"landfast_functions_instances{state="busy"} 1"#,
        r#"landfast_functions_instances{state="frozen"} 4"#,
        "landfast_functions_invocations_total 70",
        "landfast_functions_cold_starts_total 7",
        "landfast_functions_adopted_total 3",
        "landfast_functions_spares 2",
        "landfast_functions_throttled_total 5",
        r#"landfast_functions_failures_total{kind="timed-out"} 8"#,
        r#"landfast_functions_failures_total{kind="function"} 0"#,
        "landfast_functions_events_waiting 9",
        "landfast_functions_dead_letters 10",
        "landfast_workflows_active 1",
        "landfast_workflows_begun_total 20",
        r#"landfast_workflows_ended_total{status="failed"} 4"#,
        r#"landfast_far_store_reachable{store="redis://far:6379"} 0.0"#,
        r#"landfast_far_store_waiting_bytes{store="redis://far:6379"} 512.0"#,
        r#"landfast_far_store_waiting_seconds{store="redis://far:6379"} 1.5"#,
        "landfast_far_stores_more 2",
        "landfast_journal_trouble 1",
        r#"landfast_port_calls_total{operation="key_value.update"} 12"#,
        r#"landfast_port_carried_bytes_total{operation="key_value.update"} 900"#,
        "# TYPE landfast_port_calls counter",
        "# EOF",
    ] {
        assert!(
            body(&answer).lines().any(|got| got == line),
            "no line {line:?} in\n{answer}"
        );
    }
}

#[tokio::test]
async fn metrics_are_complete_before_any_service_runs() {
    let answer = Fixture::showing(Status::default())
        .await
        .get("/metrics")
        .await;
    assert!(body(&answer).contains("landfast_ready 0\n"), "{answer}");
    assert!(!body(&answer).contains("landfast_coordination"), "{answer}");
    assert!(body(&answer).ends_with("# EOF\n"), "{answer}");
}

#[tokio::test]
async fn routes_for_steps_refuse_other_clients_by_name() {
    let server = Fixture::showing(busy()).await;
    for (method, path) in [
        ("POST", "messages/q"),
        ("POST", "invocations/f"),
        ("POST", "steps/s"),
        ("PUT", "steps/s"),
        ("PUT", "steps/s/failure"),
        ("PUT", "calls/f"),
    ] {
        let answer = server
            .send(method, &format!("/v1/run/{path}"), "", "")
            .await;
        assert_eq!(code(&answer), 400, "{path}: {answer}");
        assert!(
            body(&answer).starts_with(r#"{"type":"outside-of-run""#),
            "{path}: {answer}"
        );
    }
    assert_eq!(
        code(&server.send("POST", "/v1/run/externalize", "", "").await),
        204
    );
}

#[tokio::test]
async fn the_description_names_every_route_and_every_route_is_there() {
    let server = Fixture::showing(busy()).await;
    let answer = server.get("/openapi.json").await;
    let document: serde_json::Value = serde_json::from_str(body(&answer)).expect("JSON");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 48);
    for (path, methods) in paths {
        let concrete = path
            .replace("{id}", "an-id")
            .replace("{key}", "a-key")
            .replace("{name}", "a-name")
            .replace("{queue}", "a-queue")
            .replace("{function}", "a-function")
            .replace("{path}", "a/path")
            .replace("{snapshot}", "a-snapshot");
        let described: Vec<&str> = methods
            .as_object()
            .expect("methods")
            .keys()
            .map(String::as_str)
            .collect();
        for method in ["get", "put", "post", "delete"] {
            let answer = server.send(&method.to_uppercase(), &concrete, "", "").await;
            let is_described = described.contains(&method);
            // Lambda's API has more calls than the server offers, and refuses those in its own
            // format.
            let is_taken = ![405, 501].contains(&code(&answer));
            assert_eq!(is_taken, is_described, "{method} {path}: {answer}");
            assert!(
                !body(&answer).starts_with(r#"{"type":"no-such-path""#),
                "{path}: {answer}"
            );
        }
        if path.ends_with("/{key}") {
            let answer = server.send("HEAD", &concrete, "", "").await;
            assert_eq!(
                (code(&answer), body(&answer)),
                (503, ""),
                "HEAD {path}: {answer}"
            );
            assert!(described.contains(&"head"), "HEAD {path}");
        }
    }
}

/// W7, and the problem for stored damage: clients that are generated from the document expect no
/// other responses.
#[tokio::test]
async fn the_description_lists_the_problems_of_ended_steps_and_damage() {
    let server = Fixture::showing(busy()).await;
    let document: serde_json::Value =
        serde_json::from_str(body(&server.get("/openapi.json").await)).expect("JSON");
    let of_steps = [
        "getState",
        "headState",
        "putState",
        "deleteState",
        "listState",
        "beginRun",
        "cancelRun",
    ];
    let (mut ended, mut damaged) = (0, 0);
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for call in methods.as_object().expect("methods").values() {
            let Some(name) = call["operationId"].as_str() else {
                continue;
            };
            let says = |status: &str, what: &str| {
                let said = call["responses"][status]["description"]
                    .as_str()
                    .unwrap_or_default();
                assert!(said.contains(what), "{name} of {path}: {status} {said:?}");
            };
            if path.starts_with("/v1/run/") || of_steps.contains(&name) || name == "commit" {
                says("409", "`attempt-ended`");
                ended += 1;
            }
            if path.starts_with("/v1/workflows/") || path.starts_with("/v1/state") {
                says("500", "`corrupt`");
                damaged += 1;
            }
        }
    }
    assert_eq!((ended, damaged), (15, 13));
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let answer = Fixture::showing(busy()).await.get("/").await;
    assert!(
        answer.contains("content-security-policy: default-src 'none'"),
        "{answer}"
    );
    assert!(
        !body(&answer).contains("http://") && !body(&answer).contains("https://"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_unknown_path_and_a_wrong_method_are_problems() {
    let server = Fixture::showing(busy()).await;
    let unknown = server.get("/v1/nothing").await;
    assert_eq!(status_line(&unknown), "HTTP/1.1 404 Not Found");
    assert!(
        body(&unknown).contains(r#""type":"no-such-path""#),
        "{unknown}"
    );
    let request = "POST /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let wrong = server.exchange(request).await;
    assert_eq!(status_line(&wrong), "HTTP/1.1 405 Method Not Allowed");
    assert!(wrong.contains("allow: GET,HEAD"), "{wrong}");
    assert!(
        body(&wrong).contains(r#""type":"method-not-allowed""#),
        "{wrong}"
    );
}
