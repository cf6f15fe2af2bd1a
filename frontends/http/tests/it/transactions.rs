//! The routes of transactions on the real engine.

use http_frontend::Status;
use serde_json::{Value, json};

use crate::{Fixture, body, code, document, engine::Engine, problem};

/// A transaction, as a client holds it.
struct Open {
    path: String,
    attempt: String,
}

impl Open {
    /// Begins one and asserts that it is open.
    async fn begin(server: &Fixture, asked: &Value) -> Self {
        let answer = server
            .send("POST", "/v1/transactions", "", &asked.to_string())
            .await;
        assert_eq!(code(&answer), 201, "{answer}");
        let begun = document(&answer);
        let text = |name: &str| begun[name].as_str().expect(name).to_owned();
        Self {
            path: format!("/v1/transactions/{}", text("id")),
            attempt: text("attempt"),
        }
    }

    async fn call(&self, server: &Fixture, method: &str, below: &str, body: &str) -> String {
        let attempt = format!("Landfast-Attempt: {}\r\n", self.attempt);
        server
            .send(method, &format!("{}{below}", self.path), &attempt, body)
            .await
    }
}

async fn status_of(server: &Fixture, transaction: &Open) -> Value {
    document(&server.get(&transaction.path).await)["status"].clone()
}

/// T1, T3.
#[tokio::test]
async fn own_writes_are_read_and_others_see_them_after_the_commit_alone() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let writer = Open::begin(&server, &json!({})).await;
    assert_eq!(
        problem(&writer.call(&server, "GET", "/keys/k", "").await),
        (404, "no-such-key".into())
    );
    assert_eq!(
        code(&writer.call(&server, "PUT", "/keys/k", "mine").await),
        204
    );
    let own = writer.call(&server, "GET", "/keys/k", "").await;
    assert_eq!((code(&own), body(&own)), (200, "mine"));
    assert!(
        own.contains("content-type: application/octet-stream"),
        "{own}"
    );
    assert_eq!(status_of(&server, &writer).await, "open");

    let other = Open::begin(&server, &json!({"isolation": "read-atomic"})).await;
    assert_eq!(
        code(&other.call(&server, "GET", "/keys/other", "").await),
        404
    );
    assert_eq!(
        code(&server.get("/v1/state/k").await),
        404,
        "it is not committed"
    );

    let committed = writer.call(&server, "POST", "/commit", "").await;
    assert_eq!(
        (code(&committed), &document(&committed)["status"]),
        (200, &json!("committed"))
    );
    let after = document(&committed)["after"]
        .as_str()
        .expect("it wrote")
        .to_owned();
    assert!(
        committed.contains(&format!("landfast-after: {after}\r\n")),
        "{committed}"
    );
    assert_eq!(status_of(&server, &writer).await, "committed");
    assert_eq!(body(&server.get("/v1/state/k").await), "mine");
    let next = server
        .send(
            "POST",
            "/v1/transactions",
            &format!("Landfast-After: {after}\r\n"),
            "",
        )
        .await;
    assert_eq!(code(&next), 201, "{next}");
}

/// T4.
#[tokio::test]
async fn a_commit_is_answered_alike_however_often_it_is_repeated() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let first = Open::begin(&server, &json!({"id": "order-17"})).await;
    assert_eq!(first.path, "/v1/transactions/order-17");
    assert_eq!(
        code(&first.call(&server, "PUT", "/keys/k", "once").await),
        204
    );
    let committed = first.call(&server, "POST", "/commit", "").await;
    assert_eq!(code(&committed), 200, "{committed}");
    for _ in 0..3 {
        let again = first.call(&server, "POST", "/commit", "").await;
        assert_eq!(document(&again), document(&committed));
        let bare = server
            .send("POST", "/v1/transactions/order-17/commit", "", "")
            .await;
        assert_eq!(document(&bare), document(&committed));
    }
    for _ in 0..2 {
        let begun = server
            .send("POST", "/v1/transactions", "", r#"{"id":"order-17"}"#)
            .await;
        assert_eq!(code(&begun), 200, "{begun}");
        assert_eq!(document(&begun)["id"], "order-17");
        assert_eq!(document(&begun)["status"], "committed");
    }
    let late = first.call(&server, "PUT", "/keys/k", "twice").await;
    assert_eq!(problem(&late), (409, "transaction-finished".into()));
    assert_eq!(document(&late)["outcome"], "committed");
    assert_eq!(body(&server.get("/v1/state/k").await), "once");
}

/// T1, T4.
#[tokio::test]
async fn nothing_of_an_aborted_transaction_is_seen() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let transaction = Open::begin(&server, &json!({})).await;
    assert_eq!(
        code(&transaction.call(&server, "PUT", "/keys/k", "dropped").await),
        204
    );
    for _ in 0..2 {
        assert_eq!(
            code(&transaction.call(&server, "DELETE", "", "").await),
            204
        );
    }
    assert_eq!(code(&server.get("/v1/state/k").await), 404);
    let late = transaction.call(&server, "POST", "/commit", "").await;
    assert_eq!(problem(&late), (409, "transaction-finished".into()));
    assert_eq!(document(&late)["outcome"], "aborted");
    assert_eq!(status_of(&server, &transaction).await, "aborted");
}

/// T8.
#[tokio::test]
async fn an_earlier_attempt_is_refused_once_its_name_is_begun_anew() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let earlier = Open::begin(&server, &json!({"id": "n"})).await;
    assert_eq!(
        code(&earlier.call(&server, "PUT", "/keys/earlier", "x").await),
        204
    );
    let later = Open::begin(&server, &json!({"id": "n"})).await;
    assert_ne!(earlier.attempt, later.attempt);
    for (method, below) in [
        ("PUT", "/keys/late"),
        ("GET", "/keys/earlier"),
        ("DELETE", "/keys/late"),
        ("POST", "/commit"),
    ] {
        let refused = earlier.call(&server, method, below, "").await;
        assert_eq!(
            problem(&refused),
            (409, "transaction-finished".into()),
            "{method} {below}"
        );
        assert_eq!(document(&refused)["outcome"], "begun-anew");
    }
    assert_eq!(
        document(&earlier.call(&server, "GET", "", "").await)["status"],
        "begun-anew"
    );
    assert_eq!(
        status_of(&server, &later).await,
        "open",
        "the latest is meant where nothing is said"
    );
    assert_eq!(
        code(&later.call(&server, "PUT", "/keys/later", "y").await),
        204
    );
    assert_eq!(code(&later.call(&server, "POST", "/commit", "").await), 200);
    assert_eq!(code(&server.get("/v1/state/earlier").await), 404);
    assert_eq!(code(&server.get("/v1/state/late").await), 404);
    assert_eq!(body(&server.get("/v1/state/later").await), "y");
}

/// T2. The reader has read `l` before both keys are written together, so it may not see the new `k`.
#[tokio::test]
async fn keys_written_together_are_never_read_apart() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let write_both = async |value: &str| {
        let writer = Open::begin(&server, &json!({})).await;
        for key in ["/keys/k", "/keys/l"] {
            assert_eq!(code(&writer.call(&server, "PUT", key, value).await), 204);
        }
        assert_eq!(
            code(&writer.call(&server, "POST", "/commit", "").await),
            200
        );
    };
    write_both("old").await;
    let reader = Open::begin(&server, &json!({})).await;
    assert_eq!(
        body(&reader.call(&server, "GET", "/keys/l", "").await),
        "old"
    );
    write_both("new").await;
    assert_eq!(
        body(&reader.call(&server, "GET", "/keys/k", "").await),
        "old"
    );
    assert_eq!(
        body(&reader.call(&server, "GET", "/keys/l", "").await),
        "old"
    );
    let fresh = Open::begin(&server, &json!({})).await;
    assert_eq!(
        body(&fresh.call(&server, "GET", "/keys/k", "").await),
        "new"
    );
}

#[tokio::test]
async fn ids_and_keys_are_any_bytes_decoded_once() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let transaction = Open::begin(&server, &json!({"id": "a/b %"})).await;
    let path = "/v1/transactions/a%2Fb%20%25";
    for (key, value) in [
        ("", "empty"),
        ("%2f", "slash"),
        ("%00%FF%fe", "bytes"),
        ("a%2541", "once"),
        ("+", "plus"),
    ] {
        let key = format!("{path}/keys/{key}");
        assert_eq!(
            code(&server.send("PUT", &key, "", value).await),
            204,
            "{key}"
        );
        assert_eq!(body(&server.get(&key).await), value, "{key}");
    }
    let commit = format!("{path}/commit");
    let attempt = format!("Landfast-Attempt: {}\r\n", transaction.attempt);
    assert_eq!(code(&server.send("POST", &commit, &attempt, "").await), 200);
    for (key, value) in [
        ("", "empty"),
        ("%2F", "slash"),
        ("%00%ff%FE", "bytes"),
        ("a%25%341", "once"),
    ] {
        assert_eq!(
            body(&server.get(&format!("/v1/state/{key}")).await),
            value,
            "{key}"
        );
    }
}

#[tokio::test]
async fn a_malformed_begin_is_refused_and_nothing_begins() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let long_id = format!(r#"{{"id":"{}"}}"#, "x".repeat(129));
    let deep = "[".repeat(60_000);
    for asked in [
        "{",
        "null",
        "[]",
        "7",
        "\"id\"",
        "{\"id\":7}",
        "{\"id\":\"\"}",
        "{\"isolation\":\"snapshot\"}",
        "{\"isolation\":{\"serializable\":null}}",
        "[\"a\",\"serializable\"]",
        "[null,null]",
        "\u{0}",
        "{\"isolaton\":\"read-atomic\"}",
        "{\"id\":\"a\",\"id\":\"b\"}",
        "{} {}",
        long_id.as_str(),
        deep.as_str(),
    ] {
        let answer = server.send("POST", "/v1/transactions", "", asked).await;
        assert_eq!(
            problem(&answer),
            (400, "invalid-request".into()),
            "{asked:.60}"
        );
    }
    for header in [
        "Landfast-After: yesterday\r\n",
        "Landfast-After: \r\n",
        "Landfast-After: 1-1-1-1\r\nLandfast-After: 1-1-1-1\r\n",
    ] {
        let answer = server.send("POST", "/v1/transactions", header, "").await;
        assert_eq!(
            problem(&answer),
            (400, "invalid-request".into()),
            "{header}"
        );
    }
    let id = "x".repeat(129);
    let key = "x".repeat(1_025);
    for path in [
        "/v1/state/%",
        "/v1/state/%4",
        "/v1/state/%zz",
        "/v1/transactions/%zz/keys/k",
        "/v1/transactions/i/keys/%f",
        &format!("/v1/transactions/{id}"),
        &format!("/v1/transactions/{id}/keys/k"),
        &format!("/v1/state/{key}"),
        &format!("/v1/transactions/i/keys/{key}"),
    ] {
        assert_eq!(
            problem(&server.get(path).await),
            (400, "invalid-request".into()),
            "{path:.60}"
        );
    }
    let answer = server
        .send(
            "GET",
            "/v1/transactions/i/keys/k",
            "Landfast-Attempt: 1-x\r\n",
            "",
        )
        .await;
    assert_eq!(problem(&answer), (400, "invalid-request".into()));
    let huge = server
        .get(&format!("/v1/state/{}", "x".repeat(70_000)))
        .await;
    // hyper refuses a path of this length before any route sees it.
    assert_eq!(code(&huge), 414, "{huge:.100}");
    assert_eq!(engine.figures().begun, 0);
}

#[tokio::test]
async fn an_id_that_was_never_begun_is_not_found() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    for (method, below) in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/commit"),
        ("GET", "/keys/k"),
        ("PUT", "/keys/k"),
        ("DELETE", "/keys/k"),
    ] {
        let answer = server
            .send(method, &format!("/v1/transactions/nobody{below}"), "", "")
            .await;
        assert_eq!(
            problem(&answer),
            (404, "no-such-transaction".into()),
            "{method} {below}"
        );
    }
}

#[tokio::test]
async fn before_the_service_runs_calls_may_be_repeated_later() {
    let server = Fixture::showing(Status::default()).await;
    for (method, path) in [
        ("POST", "/v1/transactions"),
        ("GET", "/v1/state/k"),
        ("PUT", "/v1/state/k"),
    ] {
        let answer = server.send(method, path, "", "").await;
        assert_eq!(
            problem(&answer),
            (503, "unavailable".into()),
            "{method} {path}"
        );
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    }
}

/// No client may begin, use or end a step's transaction.
#[tokio::test]
async fn names_of_steps_are_refused() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let id = "workflow-0123";
    let path = format!("/v1/transactions/{id}");
    let begin = format!(r#"{{"id":"{id}"}}"#);
    for (method, path, body) in [
        ("POST", "/v1/transactions".to_owned(), &begin[..]),
        ("GET", path.clone(), ""),
        ("DELETE", path.clone(), ""),
        ("PUT", format!("{path}/keys/k"), "v"),
        (
            "DELETE",
            "/v1/transactions/%77orkflow-/keys/k".to_owned(),
            "",
        ),
        ("POST", format!("{path}/messages/q"), "m"),
        ("POST", format!("{path}/commit"), ""),
    ] {
        let answer = server.send(method, &path, "", body).await;
        assert_eq!(
            problem(&answer),
            (400, "reserved-name".into()),
            "{method} {path}"
        );
    }
    let answer = server
        .send("POST", "/v1/transactions", "", r#"{"id":"workflow"}"#)
        .await;
    assert_eq!(code(&answer), 201);
}
