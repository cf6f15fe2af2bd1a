use http_frontend::{Config, Limits, Status};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Fixture, body, problem, status_line};

/// More than the server takes for the head of one request, in bytes.
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
    // The server may close while this is being sent: then the write fails, which is what is wanted.
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

/// T15.
#[tokio::test]
async fn what_is_no_request_is_refused_by_name() {
    let server = Fixture::showing(Status::default()).await;
    let put = "PUT /v1/state/k HTTP/1.1\r\nHost: localhost\r\n";
    let path = "x".repeat(70_000);
    let headers = "Header: x\r\n".repeat(200);
    for (request, expected) in [
        (
            format!("{put}Content-Length: abc\r\n\r\n"),
            (400, "invalid-request"),
        ),
        (
            format!("{put}Content-Length: -1\r\n\r\n"),
            (400, "invalid-request"),
        ),
        (
            format!("{put}Content-Length: 1\r\nContent-Length: 2\r\n\r\nx"),
            (400, "invalid-request"),
        ),
        (format!("{put}Bad\0: x\r\n\r\n"), (400, "invalid-request")),
        (
            "GET / x HTTP/1.1\r\n\r\n".to_owned(),
            (400, "invalid-request"),
        ),
        (
            format!("GET /v1/state/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            (400, "invalid-request"),
        ),
        (format!("{put}{headers}\r\n"), (413, "too-large")),
        (
            format!("{put}Content-Length: 18446744073709551615\r\n\r\n"),
            (413, "too-large"),
        ),
    ] {
        let answer = server.exchange(&request).await;
        let line = request.chars().take(80).collect::<String>();
        assert_eq!(
            problem(&answer),
            (expected.0, expected.1.to_owned()),
            "{line:?}"
        );
    }
    // After an answer as well.
    let live = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    stream.write_all(live.as_bytes()).await.expect("it is sent");
    let mut answer = vec![0; 12];
    stream
        .read_exact(&mut answer)
        .await
        .expect("it is answered");
    stream.write_all(b"\0\r\n\r\n").await.expect("it is sent");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("it ends");
    let rest = String::from_utf8_lossy(&rest);
    let refusal = rest
        .find("HTTP/1.1 400")
        .map(|start| &rest[start..])
        .expect("a second answer");
    assert_eq!(problem(refusal), (400, "invalid-request".to_owned()));
}

/// T15. So a client that begins with it knows that it has to speak HTTP/1.1.
#[tokio::test]
async fn http_2_is_refused_by_name() {
    let server = Fixture::showing(Status::default()).await;
    let settings = "\0\0\0\u{4}\0\0\0\0\0";
    let answer = server
        .exchange(&format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{settings}"))
        .await;
    assert_eq!(
        problem(&answer),
        (505, "http-version-not-supported".to_owned())
    );
    assert!(!answer.contains("retry-after"), "{answer}");
}

/// T15. Once one has gone there is a place again.
#[tokio::test]
async fn a_connection_beyond_the_limit_is_told_so_and_ended() {
    let address = "127.0.0.1:0".parse().expect("a literal address");
    let limits = Limits {
        connections_max: 2,
        ..Limits::default()
    };
    let config = Config {
        address,
        token: None,
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

/// T15. Whose end is awaited by nobody but its peer has no place any more.
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
        // It has heard the end, and says nothing of its own.
        ended.push(stream);
    }
}

/// With the clock stopped, tokio moves it to the next timer as soon as nothing else can happen.
#[tokio::test(start_paused = true)]
async fn half_a_request_is_not_waited_for_for_ever() {
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
