use http_frontend::Status;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Fixture, body, status_line};

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
    let mut stream = TcpStream::connect(server.address).await.expect("the server accepts");
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(TOO_MANY_BYTES));
    // The server may close while this is being sent: then the write fails, which is what is wanted.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    assert_eq!(status_line(&server.get("/health/live").await), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn noise_is_answered_with_an_error_and_others_are_untouched() {
    let server = Fixture::showing(Status::default()).await;
    for noise in ["\0\0\0\u{1}\0\0", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\r\n\r\n\r\nX\r\n\r\n"] {
        let answer = server.exchange(noise).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{noise:?}: {answer}");
    }
    assert_eq!(status_line(&server.get("/health/live").await), "HTTP/1.1 200 OK");
}

/// With the clock stopped, tokio moves it to the next timer as soon as nothing else can happen.
#[tokio::test(start_paused = true)]
async fn half_a_request_is_not_waited_for_for_ever() {
    let server = Fixture::showing(Status::default()).await;
    let mut stream = TcpStream::connect(server.address).await.expect("the server accepts");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: local").await.expect("the request is sent");
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
