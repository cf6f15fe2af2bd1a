//! Every limit has its own problem, and a refused call leaves nothing behind.

use std::time::Duration;

use http_frontend::Limits;
use transactions::Config;

use crate::{Fixture, body, code, document, engine::Engine, problem};

/// A wait that stands for the seconds of real clients.
const SOON: Duration = Duration::from_millis(200);

async fn begun(server: &Fixture) -> String {
    let answer = server.send("POST", "/v1/transactions", "", "").await;
    assert_eq!(code(&answer), 201, "{answer}");
    format!(
        "/v1/transactions/{}",
        document(&answer)["id"].as_str().expect("an id")
    )
}

/// T15.
#[tokio::test]
async fn too_many_open_transactions_are_refused_until_one_ends() {
    let engine = Engine::with(Config {
        open_max: 2,
        ..Config::default()
    })
    .await;
    let server = engine.serve().await;
    let first = begun(&server).await;
    begun(&server).await;
    let refused = server.send("POST", "/v1/transactions", "", "").await;
    assert_eq!(problem(&refused), (429, "too-many-transactions".into()));
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    assert_eq!(code(&server.send("DELETE", &first, "", "").await), 204);
    begun(&server).await;
}

/// T4, T15. It takes no place; a plain write takes one while it lasts.
#[tokio::test]
async fn at_the_limit_of_open_transactions_committed_ones_are_still_reported() {
    let engine = Engine::with(Config {
        open_max: 1,
        ..Config::default()
    })
    .await;
    let server = engine.serve().await;
    let begin = async |id: &str| {
        server
            .send(
                "POST",
                "/v1/transactions",
                "",
                &format!(r#"{{"id":"{id}"}}"#),
            )
            .await
    };
    assert_eq!(code(&begin("order").await), 201);
    assert_eq!(
        code(
            &server
                .send("PUT", "/v1/transactions/order/keys/k", "", "v")
                .await
        ),
        204
    );
    assert_eq!(
        code(
            &server
                .send("POST", "/v1/transactions/order/commit", "", "")
                .await
        ),
        200
    );
    begun(&server).await;
    let again = begin("order").await;
    assert_eq!(
        (code(&again), &document(&again)["status"]),
        (200, &"committed".into()),
        "{again}"
    );
    assert!(again.contains("landfast-after: "), "{again}");
    for refused in [
        begin("other").await,
        server.send("PUT", "/v1/state/k", "", "v").await,
    ] {
        assert_eq!(problem(&refused), (429, "too-many-transactions".into()));
    }
}

/// T15.
#[tokio::test]
async fn a_transaction_of_too_many_keys_or_bytes_is_too_large_and_goes_on() {
    let config = Config {
        keys_written_max: 2,
        keys_read_max: 2,
        attempt_bytes_max: 10_000,
        ..Config::default()
    };
    let engine = Engine::with(config).await;
    let server = engine.serve().await;
    let transaction = begun(&server).await;
    let put = async |key: &str, bytes: usize| {
        server
            .send(
                "PUT",
                &format!("{transaction}/keys/{key}"),
                "",
                &"x".repeat(bytes),
            )
            .await
    };
    assert_eq!(code(&put("a", 40).await), 204);
    assert_eq!(problem(&put("b", 10_001).await), (413, "too-large".into()));
    assert_eq!(code(&put("b", 1).await), 204);
    assert_eq!(problem(&put("c", 1).await), (413, "too-large".into()));
    for (key, expected) in [("x", 404), ("y", 404), ("z", 413)] {
        assert_eq!(
            code(&server.get(&format!("{transaction}/keys/{key}")).await),
            expected,
            "{key}"
        );
    }
    assert_eq!(
        code(
            &server
                .send("POST", &format!("{transaction}/commit"), "", "")
                .await
        ),
        200
    );
    assert_eq!(body(&server.get("/v1/state/b").await), "x");
}

/// T15.
#[tokio::test]
async fn a_node_with_full_buffers_refuses_more_values_until_some_are_written() {
    // Space for one entry without a value, and not for two.
    let engine = Engine::with(Config {
        node_buffer_bytes_max: 150,
        ..Config::default()
    })
    .await;
    let server = engine.serve().await;
    let (first, second) = (begun(&server).await, begun(&server).await);
    assert_eq!(
        code(&server.send("PUT", &format!("{first}/keys/k"), "", "").await),
        204
    );
    let refused = server
        .send("PUT", &format!("{second}/keys/k"), "", "")
        .await;
    assert_eq!(problem(&refused), (429, "too-much-buffered".into()));
    assert_eq!(
        code(
            &server
                .send("POST", &format!("{first}/commit"), "", "")
                .await
        ),
        200
    );
    assert_eq!(
        code(
            &server
                .send("PUT", &format!("{second}/keys/k"), "", "")
                .await
        ),
        204
    );
}

/// T7. A limit of one idle millisecond stands for the minute of the default.
#[tokio::test]
async fn an_abandoned_transaction_ends_and_leaves_nothing() {
    let engine = Engine::with(Config {
        idle_timeout: Duration::from_millis(1),
        ..Config::default()
    })
    .await;
    let server = engine.serve().await;
    let transaction = begun(&server).await;
    let path = format!("{transaction}/keys/k");
    server.send("PUT", &path, "", "late").await;
    // A request for the status is no call of the transaction.
    while document(&server.get(&transaction).await)["status"] == "open" {}
    let late = server.send("PUT", &path, "", "later").await;
    assert_eq!(problem(&late), (409, "transaction-finished".into()));
    let refused = server
        .send("POST", &format!("{transaction}/commit"), "", "")
        .await;
    assert_eq!(problem(&refused), (409, "transaction-finished".into()));
    assert_eq!(document(&refused)["outcome"], "expired");
    assert_eq!(
        document(&server.get(&transaction).await)["status"],
        "expired"
    );
    assert_eq!(code(&server.get("/v1/state/k").await), 404);
    assert_eq!(
        (engine.figures().open, engine.figures().buffered_bytes),
        (0, 0)
    );
}

/// T15. The client sees that a store is away within the time that it waits.
#[tokio::test]
async fn a_store_out_of_order_is_said_in_time() {
    let engine = Engine::open().await;
    let server = engine.serve_within(Limits::default()).await;
    let transaction = begun(&server).await;
    assert_eq!(
        code(
            &server
                .send("PUT", &format!("{transaction}/keys/k"), "", "v")
                .await
        ),
        204
    );
    engine.close_store().await;
    // Only the calls that cannot be served have so little time.
    let server = engine
        .serve_within(Limits {
            answer_timeout: SOON,
            ..Limits::default()
        })
        .await;
    let commit = format!("{transaction}/commit");
    for (method, path, kind) in [
        ("POST", "/v1/transactions", None),
        ("GET", "/v1/state/k", Some("unavailable")),
        ("PUT", "/v1/state/k", None),
        ("POST", commit.as_str(), Some("outcome-unknown")),
    ] {
        let body = if path == commit {
            ""
        } else {
            r#"{"id":"named"}"#
        };
        let answer = server.send(method, path, "", body).await;
        let (status, name) = problem(&answer);
        assert_eq!(status, 503, "{method} {path}: {answer}");
        assert!(
            kind.is_none_or(|kind| kind == name),
            "{method} {path}: {answer}"
        );
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    }
}
