//! The routes of plain state on the real engine.

use crate::{body, code, document, engine::Engine, problem};

/// T4: a write is all or nothing, and visible to every later read.
#[tokio::test]
async fn a_plain_write_is_read_overwritten_and_deleted() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(
        problem(&server.get("/v1/state/k").await),
        (404, "no-such-key".into())
    );
    for value in ["one", "two", ""] {
        let written = server.send("PUT", "/v1/state/k", "", value).await;
        assert_eq!(code(&written), 204, "{written}");
        assert!(written.contains("landfast-after: "), "{written}");
        let read = server.get("/v1/state/k").await;
        assert_eq!((code(&read), body(&read)), (200, value));
    }
    for _ in 0..2 {
        assert_eq!(
            code(&server.send("DELETE", "/v1/state/k", "", "").await),
            204
        );
        assert_eq!(code(&server.get("/v1/state/k").await), 404);
    }
}

#[tokio::test]
async fn state_and_transactions_share_their_keys() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(
        code(&server.send("PUT", "/v1/state/", "", "plain").await),
        204
    );
    let begun = server.send("POST", "/v1/transactions", "", "").await;
    let id = document(&begun)["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        body(&server.get(&format!("/v1/transactions/{id}/keys/")).await),
        "plain"
    );
}

/// T1. A request that would read or write another key than its client meant is refused.
#[tokio::test]
async fn a_key_with_a_query_and_a_write_on_a_condition_are_refused() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(
        code(&server.send("PUT", "/v1/state/k", "", "kept").await),
        204
    );
    let begun = document(&server.send("POST", "/v1/transactions", "", "").await);
    let id = begun["id"].as_str().expect("an id");
    for path in [
        "/v1/state/k".to_owned(),
        format!("/v1/transactions/{id}/keys/k"),
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            for query in ["?", "?1"] {
                let refused = server.send(method, &format!("{path}{query}"), "", "").await;
                assert_eq!(
                    problem(&refused),
                    (400, "invalid-request".into()),
                    "{method}"
                );
                assert!(refused.contains("%3F"), "{refused}");
            }
        }
        for condition in [
            "If-None-Match: *",
            "If-Match: \"1\"",
            "If-Match: identity",
            "If-Modified-Since: Thu, 26 Nov 2026 00:00:00 GMT",
            "If-Unmodified-Since: Thu, 26 Nov 2026 00:00:00 GMT",
            "If-Range: \"1\"",
            "Range: bytes=0-0",
            "Content-Range: bytes 0-0/5",
            "Content-Encoding: identity\r\nContent-Encoding: gzip",
        ] {
            for method in ["PUT", "DELETE"] {
                let refused = server
                    .send(method, &path, &format!("{condition}\r\n"), "")
                    .await;
                // Only plain writes take conditions, and these do not hold.
                let is_taken = path == "/v1/state/k"
                    && (condition.starts_with("If-Match:")
                        || condition.starts_with("If-None-Match:"));
                let expected = if is_taken {
                    (412, "condition-not-met".into())
                } else {
                    (400, "invalid-request".into())
                };
                assert_eq!(problem(&refused), expected, "{method} {condition}");
            }
        }
        assert_eq!(body(&server.get(&path).await), "kept");
    }
    for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/commit")] {
        let refused = server
            .send(method, &format!("/v1/transactions/{id}{path}?x"), "", "")
            .await;
        assert_eq!(
            problem(&refused),
            (400, "invalid-request".into()),
            "{method}"
        );
    }
    assert_eq!(
        document(&server.get(&format!("/v1/transactions/{id}")).await)["status"],
        "open"
    );
    let encoded = server
        .send(
            "PUT",
            "/v1/state/k%3F",
            "Content-Encoding: identity\r\n",
            "",
        )
        .await;
    assert_eq!(code(&encoded), 204);
    for (coding, status) in [("gzip, chunked", 400), ("Chunked", 204)] {
        let head = "PUT /v1/state/sent HTTP/1.1\r\nHost: localhost\r\nConnection: close";
        let request = format!("{head}\r\nTransfer-Encoding: {coding}\r\n\r\n1\r\nv\r\n0\r\n\r\n");
        let answer = server.exchange(&request).await;
        assert_eq!(code(&answer), status, "{coding}: {answer}");
    }
    assert_eq!(body(&server.get("/v1/state/sent").await), "v");
}

/// A query would be ignored. A conditional request would take effect regardless of its condition.
#[tokio::test]
async fn parameters_of_a_begin_outside_of_its_body_are_refused() {
    let engine = Engine::open().await;
    engine.create_queue("orders").await;
    let server = engine.serve().await;
    let refused = server
        .send("POST", "/v1/transactions?isolation=serializable", "", "")
        .await;
    assert_eq!(problem(&refused), (400, "invalid-request".into()));
    let begun = document(&server.send("POST", "/v1/transactions", "", "").await);
    let id = begun["id"].as_str().expect("an id");
    for (method, below) in [
        ("POST", "/messages/orders"),
        ("POST", "/commit"),
        ("DELETE", ""),
    ] {
        let path = format!("/v1/transactions/{id}{below}");
        let refused = server.send(method, &path, "If-Match: \"x\"\r\n", "").await;
        assert_eq!(
            problem(&refused),
            (400, "invalid-request".into()),
            "{method} {below}"
        );
    }
    let refused = server
        .send("POST", "/v1/transactions", "If-None-Match: *\r\n", "")
        .await;
    assert_eq!(problem(&refused), (400, "invalid-request".into()));
    for query in ["?", "?Qualifier=1", "?group=a"] {
        let path = format!("/v1/transactions/{id}/invocations/charge{query}");
        assert_eq!(
            problem(&server.send("POST", &path, "", "{}").await),
            (400, "invalid-request".into())
        );
    }
    assert_eq!(
        document(&server.get(&format!("/v1/transactions/{id}")).await)["status"],
        "open"
    );
}

/// T1. The bytes of a value are never taken for the server's own response to a broken request.
#[tokio::test]
async fn a_value_that_looks_like_a_refusal_is_a_value() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    // Small enough for one write to the socket, and large enough for many.
    for times in [1, 2_000] {
        let value = refusal.repeat(times);
        assert_eq!(
            code(&server.send("PUT", "/v1/state/k", "", &value).await),
            204
        );
        let read = server.get("/v1/state/k").await;
        assert_eq!((code(&read), body(&read)), (200, &value[..]));
    }
}

/// T18: pages of any length, under any prefix. Keys and values are exactly those written, with any
/// bytes.
#[tokio::test]
async fn keys_are_listed_page_by_page() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(
        document(&server.get("/v1/state").await),
        serde_json::json!({"keys": []})
    );
    for (key, value) in [
        ("a%2F1", "one"),
        ("a%2F2", "two"),
        ("a%2F%FF%00", "three"),
        ("%2E%2E", ""),
        ("", "none"),
    ] {
        assert_eq!(
            code(
                &server
                    .send("PUT", &format!("/v1/state/{key}"), "", value)
                    .await
            ),
            204
        );
    }
    assert_eq!(
        code(&server.send("DELETE", "/v1/state/a%2F2", "", "").await),
        204
    );
    let listed = document(&server.get("/v1/state?limit=3").await);
    let shown = |key, bytes, value| serde_json::json!({"key": key, "bytes": bytes, "value": value});
    let first = [
        shown("", 4, "bm9uZQ=="),
        shown("%2E%2E", 0, ""),
        shown("a%2F1", 3, "b25l"),
    ];
    assert_eq!(listed, serde_json::json!({"keys": first, "next": "a%2F1"}));
    let listed = document(&server.get("/v1/state?prefix=a%2f&after=a%2F1").await);
    assert_eq!(
        listed,
        serde_json::json!({"keys": [shown("a%2F%FF%00", 5, "dGhyZWU=")]})
    );
    let one = document(&server.get("/v1/state?prefix=a&after=a%2F1&limit=1").await);
    assert_eq!(
        one,
        serde_json::json!({"keys": [], "next": "a%2F2"}),
        "it was deleted, and more follow"
    );
}

/// T15.
#[tokio::test]
async fn a_query_that_is_not_understood_lists_nothing() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let long = format!("prefix={}", "k".repeat(1_025));
    for query in [
        "limit=0",
        "limit=1001",
        "limit=",
        "limit=+1",
        "limit=-1",
        "limit=ten",
        "prefx=a",
        "prefix",
        "prefix=%4",
        "after=%zz",
        "prefix=a&prefix=b",
        &long,
    ] {
        let answer = server.get(&format!("/v1/state?{query}")).await;
        assert_eq!(problem(&answer), (400, "invalid-request".into()), "{query}");
    }
}
