//! The HTTP front end as a client sees it: raw bytes in, the response's head and body out.

#![allow(clippy::disallowed_methods)] // Why: tests run real servers in real time.

mod bodies;
mod connections;
mod durability;
mod effects;
mod engine;
mod functions;
mod fuzz;
mod gateway;
mod lambda;
mod limits;
mod origins;
mod peers;
mod room;
mod routes;
mod routes_listener;
mod state;
mod transactions;
mod volumes;

use std::{net::SocketAddr, sync::Arc};

use http_frontend::{Backend, Config, Limits, RoutesConfig, Services, Snapshot, Status};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

/// A server that shows a fixed status, and stops when dropped.
struct Fixture {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Fixed(Status);

impl Snapshot for Fixed {
    fn status(&self) -> Status {
        self.0.clone()
    }
}

impl Fixture {
    async fn showing(status: Status) -> Self {
        Self::listening("127.0.0.1:0", None, status).await
    }

    async fn listening(address: &str, token: Option<&str>, status: Status) -> Self {
        let address = address.parse().expect("a literal address");
        let config = Config {
            address,
            token: token.map(str::to_owned),
            keys: None,
            tls: None,
            limits: Limits::default(),
        };
        Self::with(config, status, Arc::default()).await
    }

    async fn with(config: Config, status: Status, services: Arc<Services>) -> Self {
        let backend = Arc::new(Backend::new(services, &config.limits));
        Self::sharing(config, status, backend).await
    }

    async fn sharing(config: Config, status: Status, backend: Arc<Backend>) -> Self {
        let server = http_frontend::bind(config).await.expect("a free port");
        let mut address = server.local_address();
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(server.run(Arc::new(Fixed(status)), backend, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            _stop: stop,
        }
    }

    /// A listener of routes for these hosts.
    async fn of_routes(hosts: &[&str], limits: Limits, backend: Arc<Backend>) -> Self {
        let config = RoutesConfig {
            address: "127.0.0.1:0".parse().expect("a literal address"),
            hosts: hosts.iter().map(ToString::to_string).collect(),
            tls: None,
            limits,
        };
        let server = http_frontend::bind_routes(config)
            .await
            .expect("a free port");
        let address = server.local_address();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(server.run(backend, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            _stop: stop,
        }
    }

    /// Sends `request` as it is and returns everything that comes back until the server closes.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("the server accepts");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("the request is sent");
        let mut answer = Vec::new();
        stream
            .read_to_end(&mut answer)
            .await
            .expect("the server closes");
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn get(&self, path: &str) -> String {
        self.exchange(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
        .await
    }

    /// One request with a `Content-Length`, on a connection of its own.
    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let length = body.len();
        self.exchange(&format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        ))
        .await
    }

    async fn get_with(&self, headers: &str) -> String {
        self.exchange(&format!(
            "GET /v1/status HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        ))
        .await
    }
}

fn status_line(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head and a body").1
}

/// The number of the answer's status.
fn code(answer: &str) -> u16 {
    status_line(answer)
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_default()
}

/// The answer's body as JSON.
fn document(answer: &str) -> serde_json::Value {
    serde_json::from_str(body(answer)).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The status and the `type` of a problem document.
fn problem(answer: &str) -> (u16, String) {
    assert!(
        answer.contains("content-type: application/problem+json"),
        "{answer}"
    );
    (
        code(answer),
        document(answer)["type"]
            .as_str()
            .expect("a type")
            .to_owned(),
    )
}
