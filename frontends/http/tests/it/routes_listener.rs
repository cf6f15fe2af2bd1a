//! A6, A7: requests to functions over the listener of routes, which serves nothing else.

use std::sync::Arc;

use axum::http::Method;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_frontend::{Backend, Config, Limits, Services, Status};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    Fixture, body, code, document,
    engine::Engine,
    functions::{manifest, service},
    gateway::{deployed, run},
    problem,
};

/// The functions behind a listener with these hosts.
fn backend_of(functions: functions::Service, limits: Limits) -> Arc<Backend> {
    let services = Arc::<Services>::default();
    services.provide_functions(functions);
    Arc::new(Backend::new(services, &limits))
}

async fn serving_at(hosts: &[&str], functions: &[(&str, &str, &str)]) -> (Fixture, Engine) {
    let engine = Engine::open().await;
    let service = deployed(&engine, functions).await;
    let backend = backend_of(service, Limits::default());
    let server = Fixture::of_routes(hosts, Limits::default(), backend).await;
    (server, engine)
}

/// The same for an application with CORS settings.
async fn serving_with_cors(cors: &str, functions: &[(&str, &str, &str)]) -> (Fixture, Engine) {
    let engine = Engine::open().await;
    let code = Box::new(|handler: &str, event| std::future::ready(run(handler, event)).boxed());
    let service = service(&engine, code).await;
    let manifest = [&manifest(functions)[..], b"[cors]\n", cors.as_bytes()].concat();
    let deployed = service.deploy("shop", Bytes::from(manifest)).await;
    deployed.expect("it is deployed");
    let backend = backend_of(service, Limits::default());
    let server = Fixture::of_routes(&[], Limits::default(), backend).await;
    (server, engine)
}

/// A response of the function `says`.
const WITH_CORS: &str = r#"{"statusCode":200,"headers":{"Access-Control-Allow-Origin":"http://own",
    "Access-Control-Allow-Methods":"PUT","X-Own":"1"},"body":"said"}"#;

#[tokio::test]
async fn routes_are_at_the_root_and_nothing_else_is_served() {
    let functions = [("all", "echo", r#"{ http = "/{all+}" }, { http = "/" }"#)];
    let (server, _engine) = serving_at(&[], &functions).await;
    for path in [
        "/",
        "/orders/a%2Fb",
        "/http/orders",
        "/health/live",
        "/metrics",
        "/openapi.json",
        "/v1/status",
        "/2015-03-31/functions",
    ] {
        let answer = server.get(path).await;
        let event = document(&answer);
        let context = &event["requestContext"];
        assert_eq!(
            (
                &event["rawPath"],
                &context["http"]["path"],
                &context["stage"]
            ),
            (&json!(path), &json!(path), &json!("$default")),
            "{path}"
        );
        // The response is the function's, as API Gateway sends it.
        for absent in ["content-security-policy", "cross-origin", "cache-control"] {
            assert!(!answer.contains(absent), "{absent}: {answer}");
        }
    }
    // The target of a request that asks about the server itself.
    let any = "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(document(&server.exchange(any).await)["rawPath"], "/");
}

#[tokio::test]
async fn refusals_of_routes_are_those_of_the_gateway() {
    let functions = [
        ("says", "says", r#"{ http = "/says", methods = ["POST"] }"#),
        ("fails", "fails", r#"{ http = "/fails" }"#),
    ];
    let (server, _engine) = serving_at(&[], &functions).await;
    for (path, status, name, message) in [
        ("/v1/status", 404, "no-such-path", "Not Found"),
        ("/says", 405, "method-not-allowed", "Method Not Allowed"),
        ("/fails", 500, "function-failed", "Internal Server Error"),
        ("/%ff", 400, "invalid-request", "Bad Request"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(problem(&answer), (status, name.into()), "{path}");
        assert_eq!(document(&answer)["message"], message, "{path}");
    }
    let starting = Backend::new(Arc::default(), &Limits::default());
    let server = Fixture::of_routes(&[], Limits::default(), Arc::new(starting)).await;
    let answer = server.get("/says").await;
    assert_eq!(problem(&answer), (503, "unavailable".into()));
}

/// A page of another site whose name points here (DNS rebinding) reaches no function.
#[tokio::test]
async fn a_request_names_this_machine_or_a_configured_host() {
    let functions = [("all", "echo", r#"{ http = "/{all+}" }"#)];
    let requested = async |server: &Fixture, target: &str, host: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nConnection: close\r\n{host}\r\n");
        let answer = server.exchange(&request).await;
        match code(&answer) {
            200 => document(&answer)["headers"]["host"].clone(),
            403 => problem(&answer).1.into(),
            other => other.into(),
        }
    };
    let (server, _engine) = serving_at(&["shop.example"], &functions).await;
    for host in [
        "localhost",
        "127.0.0.1:1",
        "127.0.0.9",
        "[::1]:7602",
        "Shop.example:443",
    ] {
        let reached = requested(&server, "/x", &format!("Host: {host}\r\n")).await;
        assert_eq!(reached, host);
    }
    for hosts in [
        "Host: attacker.example\r\n",
        "Host: shop.example.attacker.example\r\n",
        "Host: other.shop.example\r\n",
        "Host: 10.0.0.1\r\n",
        "Host: localhost\r\nHost: shop.example\r\n",
    ] {
        let refused = requested(&server, "/x", hosts).await;
        assert!(
            [json!("unknown-host"), json!(400)].contains(&refused),
            "{hosts}: {refused}"
        );
    }
    let elsewhere = requested(&server, "http://attacker.example/x", "Host: localhost\r\n").await;
    assert_eq!(elsewhere, "unknown-host");
    let refused = server.exchange("GET /x HTTP/1.0\r\n\r\n").await;
    assert_eq!(problem(&refused), (403, "unknown-host".into()));
    assert!(
        document(&refused)["detail"]
            .to_string()
            .contains("--routes-hosts")
    );

    let (server, _engine) = serving_at(&["*"], &functions).await;
    let reached = requested(&server, "/x", "Host: any.example\r\n").await;
    assert_eq!(reached, "any.example");
}

/// Without CORS settings the function decides, as behind API Gateway.
#[tokio::test]
async fn pages_of_other_sites_reach_the_function_which_answers_them() {
    let functions = [
        ("all", "echo", r#"{ http = "/echo" }"#),
        ("says", "says", r#"{ http = "/says" }"#),
    ];
    let (server, _engine) = serving_at(&[], &functions).await;
    for (method, headers) in [
        (Method::POST, "Origin: null\r\n"),
        (
            Method::POST,
            "Origin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n",
        ),
        (
            Method::PUT,
            "Origin: https://shop.example\r\nSec-Fetch-Site: cross-site\r\n",
        ),
        (
            Method::OPTIONS,
            "Origin: https://shop.example\r\nAccess-Control-Request-Method: PUT\r\n",
        ),
        (Method::GET, "Authorization: Bearer the-functions-own\r\n"),
    ] {
        let answer = server.send(method.as_str(), "/echo", headers, "").await;
        let event = document(&answer);
        assert_eq!(event["requestContext"]["http"]["method"], method.as_str());
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").expect("a header");
            let name = name.to_ascii_lowercase();
            assert_eq!(event["headers"][&name], value, "{headers}");
        }
    }
    let answer = server
        .send("POST", "/says", "Origin: http://own\r\n", WITH_CORS)
        .await;
    for line in [
        "access-control-allow-origin: http://own",
        "access-control-allow-methods: PUT",
    ] {
        assert!(answer.contains(&format!("{line}\r\n")), "{line}: {answer}");
    }
}

/// The CORS headers of an answer, in order of their names.
fn cors_of(answer: &str) -> Vec<&str> {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    let mut lines: Vec<_> = head
        .lines()
        .filter(|line| line.starts_with("access-control") || line.starts_with("vary"))
        .collect();
    lines.sort_unstable();
    lines
}

/// As in API Gateway: it answers also where no route takes OPTIONS.
#[tokio::test]
async fn preflight_requests_are_answered_by_the_cors_settings() {
    let settings = r#"
        allow_origins = ["https://shop.example", "http://localhost:3000"]
        allow_methods = ["PUT", "DELETE"]
        allow_headers = ["content-type", "x-own"]
        expose_headers = ["etag"]
        max_age_s = 300
        allow_credentials = true"#;
    let functions = [
        (
            "puts",
            "fails",
            r#"{ http = "/orders/{id}", methods = ["PUT"] }"#,
        ),
        ("all", "fails", r#"{ http = "/any" }"#),
    ];
    let (server, _engine) = serving_with_cors(settings, &functions).await;
    for (path, asked) in [
        ("/orders/7", "PUT"),
        ("/any", "DELETE"),
        ("/orders/7", "GET"),
    ] {
        for origin in ["https://shop.example", "http://localhost:3000"] {
            let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: {asked}\r\n");
            let answer = server.send("OPTIONS", path, &headers, "").await;
            assert_eq!((code(&answer), body(&answer)), (204, ""), "{answer}");
            assert_eq!(
                cors_of(&answer),
                [
                    "access-control-allow-credentials: true",
                    "access-control-allow-headers: content-type,x-own",
                    "access-control-allow-methods: PUT,DELETE",
                    &format!("access-control-allow-origin: {origin}"),
                    "access-control-max-age: 300",
                    "vary: origin",
                ]
            );
        }
    }
    let foreign = "Origin: https://other.example\r\nAccess-Control-Request-Method: PUT\r\n";
    let answer = server.send("OPTIONS", "/orders/7", foreign, "").await;
    assert_eq!(
        (code(&answer), cors_of(&answer)),
        (204, vec!["vary: origin"])
    );
    // It is no preflight request.
    let answer = server
        .send("OPTIONS", "/any", "Origin: https://shop.example\r\n", "")
        .await;
    assert_eq!(
        problem(&answer),
        (500, "function-failed".into()),
        "the function ran"
    );
    let answer = server.send("OPTIONS", "/nowhere", foreign, "").await;
    assert_eq!(problem(&answer), (404, "no-such-path".into()));
}

#[tokio::test]
async fn the_cors_settings_replace_the_headers_of_functions() {
    let functions = [
        ("says", "says", r#"{ http = "/says" }"#),
        ("fails", "fails", r#"{ http = "/fails" }"#),
    ];
    let settings = "allow_origins = [\"https://shop.example\"]\nexpose_headers = [\"x-own\"]";
    let (server, _engine) = serving_with_cors(settings, &functions).await;
    let own = "Origin: https://shop.example\r\n";
    let allowed = [
        "access-control-allow-origin: https://shop.example",
        "access-control-expose-headers: x-own",
        "vary: origin",
    ];
    let answer = server.send("POST", "/says", own, WITH_CORS).await;
    assert_eq!(
        (body(&answer), cors_of(&answer)),
        ("said", allowed.to_vec())
    );
    assert!(answer.contains("x-own: 1\r\n"), "{answer}");
    // A page may also read that its request failed.
    let answer = server.send("POST", "/fails", own, "").await;
    assert_eq!((code(&answer), cors_of(&answer)), (500, allowed.to_vec()));
    for other in ["Origin: https://other.example\r\n", "Origin: null\r\n", ""] {
        let answer = server.send("POST", "/says", other, WITH_CORS).await;
        assert_eq!(
            (body(&answer), cors_of(&answer)),
            ("said", vec!["vary: origin"])
        );
    }
    let (server, _engine) = serving_with_cors("allow_origins = [\"*\"]", &functions).await;
    let answer = server.send("POST", "/says", own, WITH_CORS).await;
    assert_eq!(cors_of(&answer), ["access-control-allow-origin: *"]);
}

/// Both listeners of a process count their bodies against one budget.
#[tokio::test]
async fn bodies_have_the_limits_of_the_main_listener() {
    let functions = [("echo", "echo", r#"{ http = "/echo" }"#)];
    let engine = Engine::open().await;
    let limits = Limits {
        buffered_bytes_max: 100_000,
        ..Limits::default()
    };
    let backend = backend_of(deployed(&engine, &functions).await, limits);
    let config = Config {
        address: "127.0.0.1:0".parse().expect("a literal address"),
        token: None,
        keys: None,
        tls: None,
        limits,
    };
    let main = Fixture::sharing(config, Status::default(), Arc::clone(&backend)).await;
    let routes = Fixture::of_routes(&[], limits, backend).await;
    let long = "PUT /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 6291457\r\n\r\n";
    assert_eq!(
        problem(&routes.exchange(long).await),
        (413, "too-large".into())
    );

    let mut held = TcpStream::connect(main.address).await.expect("it accepts");
    let head = "PUT /http/echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 70001\r\n\r\n";
    held.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = [0; 25];
    held.read_exact(&mut answer).await.expect("100 Continue");
    held.write_all(&vec![b'x'; 70_000]).await.expect("sent");
    let body = "x".repeat(50_000);
    let refused = async || problem(&routes.send("PUT", "/echo", "", &body).await);
    // The held body arrives at some time.
    while code(&routes.send("PUT", "/echo", "", &body).await) == 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(refused().await, (429, "too-much-buffered".into()));
    drop(held);
    while code(&routes.send("PUT", "/echo", "", &body).await) != 200 {
        tokio::task::yield_now().await;
    }
}
