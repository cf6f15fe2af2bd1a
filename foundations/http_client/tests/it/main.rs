//! The client beside a server that answers raw bytes over loopback.

#![allow(clippy::disallowed_methods)] // Why: tests run real servers in real time.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_client::{Client, Config, Error, Trust};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const WAIT_MAX: Duration = Duration::from_mins(2);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn client() -> Client {
    Client::new(Config {
        response_bytes_max: 1000,
        ..Config::default()
    })
}

fn get(address: SocketAddr) -> Request<Bytes> {
    Request::get(format!("http://{address}/"))
        .body(Bytes::new())
        .expect("a request")
}

async fn read_head(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut bytes).await.unwrap_or_default() == 0 {
            return false;
        }
    }
    true
}

/// A server that answers one request with `answer` and ends the connection.
async fn answering(answer: &'static [u8]) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        assert!(read_head(&mut stream).await);
        stream.write_all(answer).await.expect("it is sent");
    });
    (address, server)
}

async fn error(answer: &'static [u8]) -> Error {
    let (address, _server) = answering(answer).await;
    client()
        .send(get(address), WAIT_MAX)
        .await
        .expect_err("no whole response")
}

#[tokio::test]
async fn a_whole_response_is_returned() {
    let (address, _server) = answering(OK).await;
    let response = client().send(get(address), WAIT_MAX).await.expect("whole");
    assert_eq!(
        (response.status(), &response.body()[..]),
        (StatusCode::OK, &b"ok"[..])
    );
}

#[tokio::test]
async fn an_error_says_how_far_the_request_came() {
    for cut in [&b""[..], b"HTT", b"HTTP/1.1 200 OK\r\nContent-Le"] {
        let error = error(cut).await;
        assert!(matches!(error, Error::NoResponse(_)), "{error:?}");
    }
    for noise in [&b"SSH-2.0-x\r\n"[..], b"HTTP/1.1 two hundred\r\n\r\n"] {
        let error = error(noise).await;
        assert!(matches!(error, Error::NotHttp(_)), "{error:?}");
    }
    let half = error(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
    assert!(matches!(half, Error::Incomplete { .. }), "{half:?}");
    assert_eq!(half.status(), Some(StatusCode::OK));
    let long = error(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n").await;
    assert!(matches!(long, Error::Incomplete { .. }), "{long:?}");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let unused = listener.local_addr().expect("an address");
    drop(listener);
    let refused = client()
        .send(get(unused), WAIT_MAX)
        .await
        .expect_err("nothing listens");
    assert!(matches!(refused, Error::Connect(_)), "{refused:?}");
}

#[tokio::test]
async fn a_response_beyond_the_bound_is_refused() {
    let long = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        &[b'x'; 1001][..],
    ]
    .concat();
    let error = error(long.leak()).await;
    assert!(
        matches!(
            error,
            Error::TooLong {
                bytes_max: 1000,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_not_awaited_forever() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let error = client()
        .send(get(address), WAIT_MAX)
        .await
        .expect_err("it is silent");
    assert!(matches!(error, Error::TimedOut(WAIT_MAX)), "{error:?}");
}

/// A connection is used again, and one that the server has ended is replaced.
#[tokio::test]
async fn connections_are_pooled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move {
        let mut requests = Vec::new();
        for requests_max in [2, 1] {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut served = 0;
            while served < requests_max && read_head(&mut stream).await {
                stream.write_all(OK).await.expect("it is sent");
                served += 1;
            }
            requests.push(served);
        }
        requests
    });
    let client = client();
    for _ in 0..3 {
        let response = client.send(get(address), WAIT_MAX).await.expect("whole");
        assert_eq!(response.status(), StatusCode::OK);
        // Until the client has seen the end of the connection.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(server.await.expect("it ends"), [2, 1]);
}

#[tokio::test]
async fn a_connection_names_its_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // Linux connects to this machine.
    let uri = format!("http://0.0.0.0:{}", address.port());
    let uri = uri.parse().expect("a URI");
    let connected = http_client::connect(uri, &Trust::default(), Duration::from_secs(10)).await;
    let connection = connected.expect("connected");
    assert_eq!(http_client::peer_address(&connection), Some(address));
}
