use http_frontend::{Config, Limits, Status};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Fixture, body, code, problem, status_line};

/// More than the server accepts as the head of one request, in bytes.
const TOO_MANY_BYTES: usize = 512 * 1024;

#[tokio::test]
async fn a_long_body_is_refused_before_it_is_sent() {
    let server = Fixture::showing(Status::default()).await;
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    let answer = server.exchange(request).await;
    assert_eq!(status_line(&answer), "HTTP/1.1 413 Payload Too Large");
    assert!(body(&answer).contains(r#""type":"too-large""#), "{answer}");
}

#[tokio::test]
async fn a_head_without_end_closes_its_connection() {
    let server = Fixture::showing(Status::default()).await;
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    let head = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}",
        "x".repeat(TOO_MANY_BYTES)
    );
    // The server may close while this is sent. Then the write fails, as it should.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    assert_eq!(
        status_line(&server.get("/health/live").await),
        "HTTP/1.1 200 OK"
    );
}

#[tokio::test]
async fn noise_is_answered_with_an_error_and_others_are_untouched() {
    let server = Fixture::showing(Status::default()).await;
    for noise in [
        "\0\0\0\u{1}\0\0",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\r\n\r\n\r\nX\r\n\r\n",
    ] {
        let answer = server.exchange(noise).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{noise:?}: {answer}");
    }
    assert_eq!(
        status_line(&server.get("/health/live").await),
        "HTTP/1.1 200 OK"
    );
}

/// hyper refuses these before any route sees them, with a status alone.
#[tokio::test]
async fn bytes_that_are_no_request_get_a_bare_refusal() {
    let server = Fixture::showing(Status::default()).await;
    let put = "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\n";
    let path = "x".repeat(70_000);
    let headers = "Header: x\r\n".repeat(200);
    for (request, expected) in [
        (format!("{put}Content-Length: abc\r\n\r\n"), 400),
        (format!("{put}Content-Length: -1\r\n\r\n"), 400),
        (
            format!("{put}Content-Length: 1\r\nContent-Length: 2\r\n\r\nx"),
            400,
        ),
        (format!("{put}Bad\0: x\r\n\r\n"), 400),
        ("GET / x HTTP/1.1\r\n\r\n".to_owned(), 400),
        (
            format!("GET /v1/state/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            414,
        ),
        (format!("{put}{headers}\r\n"), 431),
    ] {
        let answer = server.exchange(&request).await;
        let line = request.chars().take(80).collect::<String>();
        assert_eq!((code(&answer), body(&answer)), (expected, ""), "{line:?}");
    }
}

/// T15. The place is free again once another connection has ended.
#[tokio::test]
async fn a_connection_beyond_the_limit_gets_503_and_is_ended() {
    let address = "127.0.0.1:0".parse().expect("a literal address");
    let limits = Limits {
        connections_max: 2,
        ..Limits::default()
    };
    let config = Config {
        address,
        token: None,
        keys: None,
        tls: None,
        limits,
    };
    let server = Fixture::with(config, Status::default(), std::sync::Arc::default()).await;
    let live = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("the server accepts");
        stream.write_all(live.as_bytes()).await.expect("it is sent");
        stream
            .read_exact(&mut [0; 12])
            .await
            .expect("it is answered");
        held.push(stream);
    }
    let refused = server.get("/health/live").await;
    assert_eq!(problem(&refused), (503, "unavailable".to_owned()));
    assert!(refused.contains("retry-after: 1"), "{refused}");
    drop(held.pop());
    while status_line(&server.get("/health/live").await) != "HTTP/1.1 200 OK" {
        tokio::task::yield_now().await;
    }
}

/// T15. A connection whose response was taken has no place any more.
#[tokio::test]
async fn a_connection_that_has_been_ended_leaves_its_place_to_others_at_once() {
    let address = "127.0.0.1:0".parse().expect("a literal address");
    let limits = Limits {
        connections_max: 1,
        ..Limits::default()
    };
    let config = Config {
        address,
        token: None,
        keys: None,
        tls: None,
        limits,
    };
    let server = Fixture::with(config, Status::default(), std::sync::Arc::default()).await;
    let last = "GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut ended = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("the server accepts");
        stream.write_all(last.as_bytes()).await.expect("it is sent");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("an answer and its end");
        assert_eq!(status_line(&answer), "HTTP/1.1 200 OK", "{answer}");
        // It has seen the end of the connection, and sends nothing.
        ended.push(stream);
    }
}

/// With the clock stopped, tokio moves it to the next timer as soon as nothing else can happen.
#[tokio::test(start_paused = true)]
async fn half_a_request_does_not_hold_its_connection_forever() {
    let server = Fixture::showing(Status::default()).await;
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: local")
        .await
        .expect("the request is sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
}

#[tokio::test]
async fn several_requests_share_a_connection() {
    let server = Fixture::showing(Status::default()).await;
    let request = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = "GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answers = server.exchange(&[request, request, last].concat()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
}
