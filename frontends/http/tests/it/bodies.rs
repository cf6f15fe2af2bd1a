//! Bodies at and beyond their bounds.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, http::Request};
use futures_util::{StreamExt as _, stream};
use http_frontend::{InProcessRouter, Limits, Status};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{Fixture, body, code, engine::Engine, problem};

/// A server for `engine` with small limits.
async fn serve(engine: &Engine) -> Fixture {
    engine
        .serve_within(Limits {
            value_bytes_max: 1_000,
            buffered_bytes_max: 1_500,
            ..Limits::default()
        })
        .await
}

/// The head of a PUT whose body follows in chunks.
const CHUNKED: &str = "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(bytes: usize) -> String {
    format!("{bytes:x}\r\n{}\r\n", "x".repeat(bytes))
}

/// T15. With a length and without.
#[tokio::test]
async fn a_value_is_taken_up_to_its_limit_and_refused_beyond() {
    let engine = Engine::open().await;
    let server = serve(&engine).await;
    let put = async |bytes: usize| {
        server
            .send("PUT", "/v1/state/k", "", &"x".repeat(bytes))
            .await
    };
    assert_eq!(code(&put(1_000).await), 204);
    let refused = put(1_001).await;
    assert_eq!(problem(&refused), (413, "too-large".into()));
    assert_eq!(
        code(
            &server
                .exchange(&format!("{CHUNKED}{}0\r\n\r\n", chunk(1_000)))
                .await
        ),
        204
    );
    let refused = server
        .exchange(&format!("{CHUNKED}{}{}0\r\n\r\n", chunk(999), chunk(2)))
        .await;
    assert_eq!(problem(&refused), (413, "too-large".into()));
    assert_eq!(body(&server.get("/v1/state/k").await).len(), 1_000);
}

/// T15. A client that sends everything before it reads still sees the refusal, and its connection
/// goes on. If the server closed with bytes unread, the connection would be reset. The clock stands
/// still until nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_response_waits_until_the_unread_body_has_arrived() {
    let server = Fixture::showing(Status::default()).await;
    for (target, expected) in [
        ("PUT /v1/state/k HTTP/1.1\r\nOrigin: null", 403),
        ("PUT /v1/state/k HTTP/1.1", 503),
        ("POST /v1/transactions/i/commit HTTP/1.1", 503),
        ("PUT /v1/nothing HTTP/1.1", 404),
        ("DELETE /v1/status HTTP/1.1", 405),
    ] {
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("the server accepts");
        let half = "x".repeat(30_000);
        let head = format!("{target}\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n{half}");
        stream
            .write_all(head.as_bytes())
            .await
            .expect("half is sent");
        let early = timeout(Duration::from_secs(1), stream.read(&mut [0])).await;
        assert!(
            early.is_err(),
            "{target}: there is an answer already, {early:?}"
        );
        let next = "GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream
            .write_all(format!("{half}{next}").as_bytes())
            .await
            .expect("the rest is sent");
        let mut answers = String::new();
        stream
            .read_to_string(&mut answers)
            .await
            .expect("two answers");
        assert_eq!(code(&answers), expected, "{target}");
        assert!(
            answers.ends_with(r#"{"status":"live"}"#),
            "{target}: {answers}"
        );
    }
}

/// T15.
#[tokio::test]
async fn a_large_body_beyond_its_limit_is_answered() {
    let engine = Engine::open().await;
    let server = serve(&engine).await;
    let answer = server
        .send("PUT", "/v1/state/k", "", &"x".repeat(900_000))
        .await;
    assert_eq!(problem(&answer), (413, "too-large".into()));
    let chunks = chunk(100_000).repeat(8);
    let answer = server
        .exchange(&format!("{CHUNKED}{chunks}0\r\n\r\n"))
        .await;
    assert_eq!(problem(&answer), (413, "too-large".into()));
}

/// T15. A client may send any amount before it reads: it sees why it was refused, and no reset.
#[tokio::test]
async fn a_client_that_sends_everything_first_sees_why_it_was_refused() {
    const BODY_BYTES: usize = 66 << 20;
    let engine = Engine::open().await;
    let guarded = engine.serve_at("0.0.0.0:0", Some("right")).await;
    let narrow = engine
        .serve_within(Limits {
            buffered_bytes_max: 1 << 20,
            ..Limits::default()
        })
        .await;
    let length = format!("Content-Length: {BODY_BYTES}");
    let short = format!("Content-Length: {}", 64 << 20);
    let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{BODY_BYTES:x}");
    for (server, framing, expected) in [
        (&guarded, &length, (401, "unauthorized")),
        (&narrow, &length, (413, "too-large")),
        (&narrow, &short, (429, "too-much-buffered")),
        (&narrow, &chunked, (429, "too-much-buffered")),
    ] {
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("the server accepts");
        // The bytes of another request would not be the end of this one.
        let head = format!("PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n");
        let framed = if framing == &chunked {
            head
        } else {
            head + "\r\n"
        };
        stream
            .write_all(framed.as_bytes())
            .await
            .expect("the head is sent");
        let body = vec![
            b'x';
            if framing == &short {
                64 << 20
            } else {
                BODY_BYTES
            }
        ];
        stream.write_all(&body).await.expect("all of it is taken");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("an answer and an end");
        assert_eq!(
            problem(&answer),
            (expected.0, expected.1.to_owned()),
            "{framing}"
        );
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
}

/// T15. A client that goes on sending unread bytes keeps its place for about a second.
#[tokio::test]
async fn unread_bytes_are_not_taken_forever() {
    let engine = Engine::open().await;
    let server = engine
        .serve_within(Limits {
            connections_max: 1,
            ..Limits::default()
        })
        .await;
    let mut endless = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    let head = "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    endless
        .write_all(head.as_bytes())
        .await
        .expect("it is sent");
    // Byte by byte, so that the bound in time is met, and not the one in bytes.
    let refused = async {
        while endless.write_all(&[0]).await.is_ok() {}
        while code(&server.get("/health/live").await) != 200 {}
    };
    tokio::time::timeout(Duration::from_mins(2), refused)
        .await
        .expect("its place is free again");
}

#[tokio::test]
async fn a_client_that_expects_100_continue_is_refused_without_sending() {
    let engine = Engine::open().await;
    let server = serve(&engine).await;
    let head = "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n";
    let answer = server
        .exchange(&format!("{head}Content-Length: 1001\r\n\r\n"))
        .await;
    assert_eq!(problem(&answer), (413, "too-large".into()));
    let sent = format!("{head}Connection: close\r\nContent-Length: 3\r\n\r\nyes");
    let answer = server.exchange(&sent).await;
    assert!(
        answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204"),
        "{answer}"
    );
}

/// T15. All bodies share one budget, and each returns its part when it ends.
#[tokio::test]
async fn bodies_beyond_the_budget_are_refused_until_others_are_done() {
    let engine = Engine::open().await;
    let server = serve(&engine).await;
    let mut slow = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    let head = "PUT /v1/state/slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n";
    slow.write_all(format!("{head}{}", "s".repeat(900)).as_bytes())
        .await
        .expect("most of it is sent");
    let put = async || {
        server
            .send("PUT", "/v1/state/k", "", &"x".repeat(1_000))
            .await
    };
    // The bytes of the slow one arrive at some time.
    let mut refused = put().await;
    for _ in 0..1_000 {
        if code(&refused) != 204 {
            break;
        }
        refused = put().await;
    }
    assert_eq!(problem(&refused), (429, "too-much-buffered".into()));
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    slow.write_all("s".repeat(100).as_bytes())
        .await
        .expect("the rest is sent");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(code(&answer), 204, "{answer}");
    assert_eq!(code(&put().await), 204);
}

/// T15; RFC 9110, section 15.5.9. The clock stands still until nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_get_on_is_timed_out_by_name() {
    let engine = Engine::open().await;
    let server = serve(&engine).await;
    for head in [
        "Content-Length: 9\r\n\r\nhalf",
        "Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
    ] {
        let answer = server
            .exchange(&format!(
                "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\n{head}"
            ))
            .await;
        assert_eq!(
            problem(&answer),
            (408, "request-timed-out".into()),
            "{answer}"
        );
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    assert_eq!(code(&server.get("/v1/state/k").await), 404);
}

#[tokio::test]
async fn a_body_that_breaks_off_writes_nothing() {
    let engine = Engine::open().await;
    let server = serve(&engine).await;
    let mut half = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    let head = "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf";
    half.write_all(head.as_bytes())
        .await
        .expect("half of it is sent");
    half.shutdown().await.expect("no more follows");
    let mut answer = Vec::new();
    let _ = half.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{answer:?}");
    let bad = format!("{CHUNKED}zz\r\n");
    assert!(code(&server.exchange(&bad).await) >= 400);
    assert_eq!(code(&server.get("/v1/state/k").await), 404);
    assert_eq!(engine.figures().begun, 0);
}

/// T15. The same holds for functions: if a refusal left their body unread, their connection would
/// end after the response, and the next request would be lost.
#[tokio::test]
async fn a_function_that_is_refused_has_its_body_read() {
    let inside = InProcessRouter::new(Arc::default(), &Limits::default());
    for (path, expected) in [("/v1/run/messages/q", 400), ("/v1/nothing", 404)] {
        let read = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&read);
        let parts = stream::iter(["one", "two"]).map(Ok::<_, Infallible>);
        let parts = parts.inspect(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
        let request = Request::post(path)
            .body(Body::from_stream(parts))
            .expect("a request");
        let refused = inside.call(None, None, request).await;
        assert_eq!(
            (refused.status().as_u16(), read.load(Ordering::Relaxed)),
            (expected, 2),
            "{path}"
        );
    }
}

/// The document that lists every route is not served to functions either.
#[tokio::test]
async fn a_function_is_told_what_is_not_served_to_functions() {
    let inside = InProcessRouter::new(Arc::default(), &Limits::default());
    let request = Request::get("/v1/status")
        .body(Body::empty())
        .expect("a request");
    let refused = inside.call(None, None, request).await;
    assert_eq!(refused.status().as_u16(), 404);
    let body = axum::body::to_bytes(refused.into_body(), 4096)
        .await
        .expect("a document");
    let said = String::from_utf8_lossy(&body);
    assert!(
        said.contains("/v1/status is not served to functions"),
        "{said}"
    );
}
