//! T13: the routes of effects on the real engine and its queues.

use serde_json::json;

use crate::{Fixture, body, code, document, engine::Engine, problem};

async fn begin(server: &Fixture, name: &str) -> String {
    let answer = server
        .send(
            "POST",
            "/v1/transactions",
            "",
            &json!({"id": name}).to_string(),
        )
        .await;
    assert_eq!(code(&answer), 201, "{answer}");
    format!(
        "Landfast-Attempt: {}\r\n",
        document(&answer)["attempt"].as_str().expect("an attempt")
    )
}

/// T13.
#[tokio::test]
async fn messages_leave_with_the_commit_once_each_under_ids_of_the_transaction() {
    let engine = Engine::open().await;
    engine.create_queue("orders").await;
    let server = engine.serve().await;
    let attempt = begin(&server, "order%17").await;
    let path = |below: &str| format!("/v1/transactions/order%2517{below}");
    let first = format!("{attempt}Landfast-Effect: 0\r\n");
    for _ in 0..2 {
        let taken = server
            .send(
                "POST",
                &path("/messages/orders?group=c%2F1"),
                &first,
                "first",
            )
            .await;
        assert_eq!((code(&taken), body(&taken)), (204, ""), "{taken}");
    }
    let other = server
        .send(
            "POST",
            &path("/messages/orders?group=c%2F1"),
            &first,
            "other",
        )
        .await;
    assert_eq!(
        problem(&other),
        (400, "invalid-request".into()),
        "another has its place"
    );
    assert_eq!(
        code(
            &server
                .send("POST", &path("/messages/orders"), &attempt, "second")
                .await
        ),
        204
    );
    assert!(
        engine.receive("orders").await.is_empty(),
        "it is not committed"
    );
    for _ in 0..2 {
        assert_eq!(
            code(&server.send("POST", &path("/commit"), &attempt, "").await),
            200
        );
    }
    let mut received = engine.wait_for("orders", 2).await;
    received.sort();
    let expected = [("", "order%17/1", "second"), ("c/1", "order%17/0", "first")];
    assert_eq!(
        received,
        expected.map(|(group, id, body)| [group, id, body].map(str::to_owned))
    );
    let late = server
        .send("POST", &path("/messages/orders"), &attempt, "late")
        .await;
    assert_eq!(problem(&late), (409, "transaction-finished".into()));

    let attempt = begin(&server, "undone").await;
    let taken = server
        .send(
            "POST",
            "/v1/transactions/undone/messages/orders",
            &attempt,
            "never",
        )
        .await;
    assert_eq!(code(&taken), 204);
    assert_eq!(
        code(
            &server
                .send("DELETE", "/v1/transactions/undone", &attempt, "")
                .await
        ),
        204
    );
    assert!(engine.receive("orders").await.is_empty());
}

/// T15.
#[tokio::test]
async fn effects_that_cannot_leave_are_refused_by_name() {
    let engine = Engine::open().await;
    engine.create_queue("orders").await;
    let server = engine.serve().await;
    let attempt = begin(&server, "t").await;
    let large = "x".repeat(256 << 10);
    for (path, content, status, name) in [
        ("messages/nowhere", "x", 404, "no-such-queue"),
        ("invocations/anything", "{}", 404, "no-such-function"),
        ("invocations/anything", "", 404, "no-such-function"),
        ("invocations/anything", "{", 400, "invalid-request"),
        ("messages/%ff", "x", 400, "invalid-request"),
        ("messages/orders?group=%", "x", 400, "invalid-request"),
        ("messages/orders?grp=a", "x", 400, "invalid-request"),
        (
            "messages/orders?group=a&group=b",
            "x",
            400,
            "invalid-request",
        ),
        ("messages/orders", &format!("{large}x"), 413, "too-large"),
    ] {
        let refused = server
            .send(
                "POST",
                &format!("/v1/transactions/t/{path}"),
                &attempt,
                content,
            )
            .await;
        assert_eq!(problem(&refused), (status, name.into()), "{path}");
    }
    let group = "g".repeat(129);
    let path = format!("/v1/transactions/t/messages/orders?group={group}");
    assert_eq!(
        problem(&server.send("POST", &path, &attempt, "x").await),
        (400, "invalid-request".into())
    );
    let twice = format!("{attempt}Landfast-Effect: x\r\n");
    let refused = server
        .send("POST", "/v1/transactions/t/messages/orders", &twice, "x")
        .await;
    assert_eq!(problem(&refused), (400, "invalid-request".into()));
    for _ in 0..100 {
        let taken = server
            .send("POST", "/v1/transactions/t/messages/orders", &attempt, "x")
            .await;
        assert_eq!(code(&taken), 204);
    }
    let refused = server
        .send("POST", "/v1/transactions/t/messages/orders", &attempt, "x")
        .await;
    assert_eq!(problem(&refused), (413, "too-large".into()));
    let unknown = server
        .send("POST", "/v1/transactions/nobody/messages/orders", "", "x")
        .await;
    assert_eq!(problem(&unknown), (404, "no-such-transaction".into()));
    assert_eq!(
        code(
            &server
                .send("DELETE", "/v1/transactions/t", &attempt, "")
                .await
        ),
        204
    );

    let attempt = begin(&server, "large").await;
    let taken = server
        .send(
            "POST",
            "/v1/transactions/large/messages/orders",
            &attempt,
            &large,
        )
        .await;
    assert_eq!(code(&taken), 204, "as large as it may be");
    assert_eq!(
        code(
            &server
                .send("POST", "/v1/transactions/large/commit", &attempt, "")
                .await
        ),
        200
    );
    assert_eq!(engine.wait_for("orders", 1).await[0][2].len(), large.len());
}
