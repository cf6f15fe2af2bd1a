//! The listener as clients see it: raw bytes over loopback, with the clock stopped where time
//! matters. tokio then moves it to the next timer as soon as nothing else can happen.

#![allow(clippy::disallowed_methods)] // Why: tests run real servers in real time.

mod tls;

use std::{
    convert::Infallible, io, io::Write as _, net::SocketAddr, os::fd::OwnedFd, sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use listener::{
    Config, FilesInMemory, LINGER_MAX, PROGRESS_BYTES, Peer, REFUSALS_MAX, RequestBody, Timeouts,
    Tls, serve,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower_service::Service;

/// Shorter slices are copied.
const FILE_BYTES_MIN: usize = 128 << 10;
const BODY_BYTES_MAX: u64 = 32 << 20;
const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const LAST_GET: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Answers what the path asks for.
#[derive(Clone)]
enum Answers {
    Requests,
    TheLimit,
}

impl Service<Request<RequestBody>> for Answers {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let is_refusal = matches!(self, Self::TheLimit);
        if request.uri().path() == "/other" {
            tokio::spawn(echo(hyper::upgrade::on(request)));
            let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            let response = response
                .header("connection", "upgrade")
                .header("upgrade", "echo");
            let response = response.body(Full::default()).expect("a response");
            return Box::pin(async { Ok(response) });
        }
        Box::pin(async move {
            assert!(request.extensions().get::<Peer>().is_some());
            let (status, body) = match request.uri().path() {
                _ if is_refusal => (StatusCode::SERVICE_UNAVAILABLE, Bytes::from_static(b"full")),
                "/slow" => {
                    sleep(Duration::from_mins(10)).await;
                    (StatusCode::OK, Bytes::from_static(b"at last"))
                }
                "/large" => (StatusCode::OK, vec![b'x'; 64 << 20].into()),
                "/refuse" => (StatusCode::FORBIDDEN, Bytes::from_static(b"no")),
                _ => match request.into_body().collect().await {
                    Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string().into()),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        (StatusCode::REQUEST_TIMEOUT, error.to_string().into())
                    }
                    Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                        (StatusCode::PAYLOAD_TOO_LARGE, error.to_string().into())
                    }
                    Err(error) => (StatusCode::BAD_REQUEST, error.to_string().into()),
                },
            };
            let mut response = Response::new(Full::new(body));
            *response.status_mut() = status;
            Ok(response)
        })
    }
}

/// Claims that all long bytes lie in a file, which holds others.
#[derive(Debug)]
struct Elsewhere(Arc<OwnedFd>);

impl FilesInMemory for Elsewhere {
    fn file_of(&self, bytes: &[u8]) -> Option<(Arc<OwnedFd>, u64)> {
        assert!(bytes.len() > 1000, "short slices are copied");
        Some((Arc::clone(&self.0), 100))
    }
}

struct Fixture {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Fixture {
    async fn start(connections_max: usize) -> Self {
        Self::start_with(connections_max, None).await
    }

    async fn start_with(connections_max: usize, files: Option<Arc<dyn FilesInMemory>>) -> Self {
        Self::start_on(connections_max, files, None).await
    }

    async fn start_on(
        connections_max: usize,
        files: Option<Arc<dyn FilesInMemory>>,
        tls: Option<Tls>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let config = Config {
            connections_max,
            body_bytes_max: BODY_BYTES_MAX,
            timeouts: Timeouts::default(),
            files,
            tls,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve(
            listener,
            config,
            Answers::Requests,
            Answers::TheLimit,
            async {
                let _ = stopped.await;
            },
        ));
        Self {
            address,
            stop,
            serving,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("the kernel accepts")
    }

    async fn send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(bytes.as_ref()).await.expect("it is sent");
        stream
    }
}

/// One response whose body is shorter than a segment.
async fn response(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 4096];
    let read = stream.read(&mut bytes).await.expect("a response");
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// All that comes until the server closes.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status(response: &str) -> &str {
    response.get(9..12).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_for_75_s_and_reused() {
    let server = Fixture::start(8).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        stream.write_all(GET.as_bytes()).await.expect("it is sent");
        assert_eq!(status(&response(&mut stream).await), "200");
        sleep(Duration::from_secs(70)).await;
    }
    let idle_since = Instant::now() - Duration::from_secs(70);
    assert_eq!(rest(stream).await, "");
    assert_eq!(idle_since.elapsed().as_secs(), 75);
}

#[tokio::test(start_paused = true)]
async fn the_head_clock_starts_at_the_first_byte_and_no_byte_restarts_it() {
    let server = Fixture::start(8).await;
    let mut stream = server.connect().await;
    sleep(Duration::from_mins(1)).await;
    let began = Instant::now();
    let ended = async {
        loop {
            // The write fails once the server has closed.
            if stream.write_all(b"x").await.is_err() {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
    };
    ended.await;
    let took = began.elapsed().as_secs();
    assert!((10..=13).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_body_in_steady_pieces_is_taken_and_one_that_stalls_is_refused() {
    let server = Fixture::start(8).await;
    let head = format!(
        "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        5 * PROGRESS_BYTES
    );
    let mut steady = server.send(&head).await;
    for _ in 0..5 {
        sleep(Duration::from_secs(9)).await;
        steady
            .write_all(&vec![0; PROGRESS_BYTES])
            .await
            .expect("it is sent");
    }
    assert_eq!(status(&response(&mut steady).await), "200");

    let mut trickling = server.send(&head).await;
    let began = Instant::now();
    let mut answer = [0; 12];
    loop {
        trickling.write_all(b"x").await.expect("it is sent");
        tokio::select! {
            biased;
            read = trickling.read_exact(&mut answer) => {
                read.expect("a response");
                break;
            }
            () = sleep(Duration::from_secs(1)) => {}
        }
    }
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert!((9..=12).contains(&began.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_service_may_take_longer_than_every_clock() {
    let server = Fixture::start(8).await;
    let mut stream = server
        .send(GET.replace('/', "/slow").replace("HTTP/slow", "HTTP/"))
        .await;
    assert_eq!(status(&response(&mut stream).await), "200");
}

/// Sends back what arrives.
async fn echo(upgrade: hyper::upgrade::OnUpgrade) {
    let mut stream = TokioIo::new(upgrade.await.expect("an upgrade"));
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() {
        stream.write_all(&byte).await.expect("sent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_another_protocol_may_be_idle_for_long() {
    let server = Fixture::start(1).await;
    let head = "GET /other HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let mut stream = server.send(head).await;
    let answer = response(&mut stream).await;
    assert_eq!(status(&answer), "101", "{answer}");
    for _ in 0..2 {
        sleep(Duration::from_hours(1)).await;
        stream.write_all(b"x").await.expect("it is open");
        assert_eq!(stream.read_u8().await.expect("it is open"), b'x');
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_its_response_is_cut() {
    let server = Fixture::start(1).await;
    let stream = server.send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n").await;
    sleep(Duration::from_secs(11)).await;
    // The only place is free again.
    let mut next = server.send(GET).await;
    assert_eq!(status(&response(&mut next).await), "200");
    drop(stream);
}

#[tokio::test]
async fn past_the_limit_a_connection_is_refused_and_served_once_one_has_ended() {
    let server = Fixture::start(1).await;
    let mut first = server.send(GET).await;
    assert_eq!(status(&response(&mut first).await), "200");
    let refused = rest(server.send(GET).await).await;
    assert_eq!(status(&refused), "503");
    assert!(refused.contains("connection: close"), "{refused}");
    drop(first);
    while status(&rest(server.send(LAST_GET).await).await) != "200" {}
}

#[tokio::test(start_paused = true)]
async fn past_the_refusals_connections_wait_and_none_is_closed_without_a_response() {
    let server = Fixture::start(0).await;
    let mut silent = Vec::new();
    for _ in 0..2 * REFUSALS_MAX {
        silent.push(server.connect().await);
    }
    let refused = rest(server.send(GET).await).await;
    assert_eq!(status(&refused), "503");
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_an_idle_connection_makes_place_after_10_s() {
    let server = Fixture::start(1).await;
    let mut idle = server.send(GET).await;
    assert_eq!(status(&response(&mut idle).await), "200");
    sleep(Duration::from_secs(11)).await;
    let mut next = server.send(GET).await;
    assert_eq!(status(&response(&mut next).await), "200");
}

#[tokio::test]
async fn a_body_beyond_the_bound_is_refused() {
    let server = Fixture::start(8).await;
    let length = BODY_BYTES_MAX + 1;
    let mut stream = server
        .send(format!(
            "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        ))
        .await;
    // The write fails if the server closes first, which is right as well.
    let _ = stream.write_all(&vec![0; length as usize]).await;
    assert_eq!(status(&rest(stream).await), "413");
}

/// A client that sends everything before it reads is not reset.
#[tokio::test]
async fn a_client_that_still_sends_sees_why_it_was_refused() {
    let server = Fixture::start(8).await;
    let mut stream = server
        .send("PUT /refuse HTTP/1.1\r\nHost: h\r\nContent-Length: 16777216\r\n\r\n")
        .await;
    stream
        .write_all(&vec![0; 16 << 20])
        .await
        .expect("all of it is taken");
    assert_eq!(status(&rest(stream).await), "403");
}

#[tokio::test(start_paused = true)]
async fn an_end_whose_client_never_closes_is_short() {
    let server = Fixture::start(1).await;
    let mut refused = server
        .send("PUT /refuse HTTP/1.1\r\nHost: h\r\nContent-Length: 16777216\r\n\r\n")
        .await;
    assert_eq!(status(&response(&mut refused).await), "403");
    sleep(LINGER_MAX + Duration::from_millis(10)).await;
    let mut next = server.send(LAST_GET).await;
    assert_eq!(status(&response(&mut next).await), "200");
    // That client was read to its end, so it gives its place up at once.
    let mut last = server.send(GET).await;
    assert_eq!(status(&response(&mut last).await), "200");
}

#[tokio::test]
async fn bytes_that_are_not_http_get_a_bare_400() {
    let server = Fixture::start(8).await;
    for noise in ["\0\0\0\u{1}\0\0", "GET\r\n\r\n", "\r\n\r\nX\r\n\r\n"] {
        let answer = rest(server.send(noise).await).await;
        assert_eq!(status(&answer), "400", "{noise:?}: {answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Fixture::start(8).await;
    let put = |body: &str| {
        let length = body.len();
        format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let requests = [put("a"), put("bb"), put("ccc"), LAST_GET.to_owned()].concat();
    let answers = rest(server.send(requests).await).await;
    let bodies: Vec<_> = answers
        .split("HTTP/1.1 200 OK")
        .skip(1)
        .map(|answer| answer.rsplit("\r\n\r\n").next().unwrap_or_default())
        .collect();
    assert_eq!(bodies, ["1", "2", "3", "0"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_idle_connections_at_once_and_others_within_the_drain() {
    let server = Fixture::start(8).await;
    let mut idle = server.send(GET).await;
    assert_eq!(status(&response(&mut idle).await), "200");
    let began = Instant::now();
    server.stop.send(()).expect("it serves");
    assert_eq!(rest(idle).await, "");
    server.serving.await.expect("it ends");
    assert_eq!(began.elapsed(), Duration::ZERO);

    let server = Fixture::start(8).await;
    let busy = server.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").await;
    // Until the request is in progress.
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    server.stop.send(()).expect("it serves");
    server.serving.await.expect("it ends");
    assert_eq!(began.elapsed().as_secs(), 2);
    assert_eq!(rest(busy).await, "");
    TcpStream::connect(server.address)
        .await
        .expect_err("nothing listens there any more");
}

#[tokio::test]
async fn long_responses_that_lie_in_a_file_are_sent_from_it() {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&vec![b'y'; 65 << 20]).expect("written");
    let elsewhere = Elsewhere(Arc::new(file.into()));
    let fixture = Fixture::start_with(1, Some(Arc::new(elsewhere))).await;
    let mut stream = fixture.connect().await;
    for last in ["", "Connection: close\r\n"] {
        let request = format!("GET /large HTTP/1.1\r\nHost: h\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut body = vec![0; 64 << 20];
        let mut head = [0];
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut head).await.expect("a head");
            seen.push(head[0]);
        }
        stream.read_exact(&mut body).await.expect("a body");
        // A short rest is copied from the other bytes.
        let (sent, rest) = body.split_at(body.len() - FILE_BYTES_MIN);
        assert!(sent.iter().all(|byte| *byte == b'y'));
        assert!(rest.iter().all(|byte| b"xy".contains(byte)));
    }
}
