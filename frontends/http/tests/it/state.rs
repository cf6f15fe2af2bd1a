//! The routes of plain state on the real engine.

use crate::{body, code, document, engine::Engine, problem};

/// T4: one write is all or nothing, and shown to whoever asks next.
#[tokio::test]
async fn a_plain_write_is_read_overwritten_and_deleted() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(problem(&server.get("/v1/state/k").await), (404, "no-such-key".into()));
    for value in ["one", "two", ""] {
        let written = server.send("PUT", "/v1/state/k", "", value).await;
        assert_eq!(code(&written), 204, "{written}");
        assert!(written.contains("landfast-after: "), "{written}");
        let read = server.get("/v1/state/k").await;
        assert_eq!((code(&read), body(&read)), (200, value));
    }
    for _ in 0..2 {
        assert_eq!(code(&server.send("DELETE", "/v1/state/k", "", "").await), 204);
        assert_eq!(code(&server.get("/v1/state/k").await), 404);
    }
}

#[tokio::test]
async fn state_and_transactions_share_their_keys() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(code(&server.send("PUT", "/v1/state/", "", "plain").await), 204);
    let begun = server.send("POST", "/v1/transactions", "", "").await;
    let id = document(&begun)["id"].as_str().expect("an id").to_owned();
    assert_eq!(body(&server.get(&format!("/v1/transactions/{id}/keys/")).await), "plain");
}

/// T1. Bytes of a value are never taken for what the server itself would say to a broken request.
#[tokio::test]
async fn a_value_that_looks_like_a_refusal_is_a_value() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    // Small enough for one write, and large enough for many.
    for times in [1, 2_000] {
        let value = refusal.repeat(times);
        assert_eq!(code(&server.send("PUT", "/v1/state/k", "", &value).await), 204);
        let read = server.get("/v1/state/k").await;
        assert_eq!((code(&read), body(&read)), (200, &value[..]));
    }
}
