//! A6, A7: requests to functions over the listener, as behind API Gateway.

use bytes::Bytes;
use functions::PAYLOAD_BYTES_MAX;
use futures_util::FutureExt as _;
use ports::runtime::Refused;
use serde_json::{Value, json};

use crate::{
    Fixture, body, code, document,
    engine::Engine,
    functions::{Came, manifest, service},
    problem, status_line,
};

/// The functions of these tests, by their handlers.
pub(crate) fn run(handler: &str, event: Bytes) -> Came {
    match handler {
        "echo" => Ok(Ok(event)),
        // It returns its event.
        "says" => {
            let event: Value = serde_json::from_slice(&event).expect("an event");
            Ok(Ok(Bytes::from(
                event["body"].as_str().unwrap_or_default().to_owned(),
            )))
        }
        "fails" => Ok(Err(Bytes::from_static(
            br#"{"errorType":"KeyError","errorMessage":"a secret"}"#,
        ))),
        "hangs" => Ok(Err(Bytes::from_static(
            br#"{"errorType":"Sandbox.Timedout","errorMessage":"x"}"#,
        ))),
        "is_busy" => Err(Refused::Throttled),
        "is_broken" => Err(Refused::Unavailable("there is no python3".into())),
        other => panic!("{other} is no handler"),
    }
}

pub(crate) async fn deployed(
    engine: &Engine,
    functions: &[(&str, &str, &str)],
) -> functions::Service {
    let service = service(
        engine,
        Box::new(|handler, event| std::future::ready(run(handler, event)).boxed()),
    )
    .await;
    service
        .deploy("shop", manifest(functions))
        .await
        .expect("it is deployed");
    service
}

/// A server with these functions, and its parts.
async fn serving(functions: &[(&str, &str, &str)]) -> (Fixture, Engine) {
    let engine = Engine::open().await;
    let service = deployed(&engine, functions).await;
    (
        engine.serve_functions("127.0.0.1:0", None, service).await,
        engine,
    )
}

/// A6.
#[tokio::test]
async fn a_request_reaches_the_function_of_its_route_as_an_event() {
    let (server, _engine) = serving(&[
        (
            "orders",
            "echo",
            r#"{ http = "/orders/{id}", methods = ["GET", "PUT"] }"#,
        ),
        (
            "files",
            "echo",
            r#"{ http = "/files/{path+}" }, { http = "/" }"#,
        ),
    ])
    .await;
    let answer = server
        .send(
            "PUT",
            "/http/orders/a%2Fb?x=1",
            "Cookie: a=b\r\nX-Own: 1\r\n",
            "ü",
        )
        .await;
    assert_eq!(code(&answer), 200, "{answer}");
    assert!(
        answer.contains("content-type: application/json\r\n"),
        "{answer}"
    );
    let event = document(&answer);
    assert_eq!(
        (&event["version"], &event["routeKey"]),
        (&json!("2.0"), &json!("PUT /orders/{id}"))
    );
    assert_eq!(
        (&event["rawPath"], &event["rawQueryString"]),
        (&json!("/http/orders/a%2Fb"), &json!("x=1"))
    );
    assert_eq!(
        (&event["pathParameters"], &event["cookies"]),
        (&json!({ "id": "a/b" }), &json!(["a=b"]))
    );
    assert_eq!(
        (&event["body"], &event["headers"]["x-own"]),
        (&json!("ü"), &json!("1"))
    );
    let context = &event["requestContext"];
    assert_eq!(
        (&context["http"]["path"], &context["stage"]),
        (&json!("/http/orders/a%2Fb"), &json!("http"))
    );
    assert_eq!(context["http"]["sourceIp"], "127.0.0.1");
    let id = context["requestId"].as_str().expect("an id");
    assert!(
        answer.contains(&format!("apigw-requestid: {id}\r\n")),
        "{answer}"
    );
    for (path, key, parameters) in [
        (
            "/http/files/a/b",
            "ANY /files/{path+}",
            json!({ "path": "a/b" }),
        ),
        (
            "/http/files/v1/state/k",
            "ANY /files/{path+}",
            json!({ "path": "v1/state/k" }),
        ),
        ("/http/", "ANY /", Value::Null),
        ("/http", "ANY /", Value::Null),
    ] {
        let event = document(&server.get(path).await);
        assert_eq!(
            (&event["routeKey"], &event["pathParameters"]),
            (&json!(key), &parameters),
            "{path}"
        );
    }
}

/// A6; RFC 9110, sections 8.6 and 15: these statuses have no body, and a length would be that of one.
#[tokio::test]
async fn an_answer_whose_status_has_no_body_has_none_and_no_length() {
    let (server, _engine) = serving(&[("says", "says", r#"{ http = "/{any+}" }"#)]).await;
    for said in [
        r#"{"statusCode":204,"body":"a body not to send"}"#,
        r#"{"statusCode":304,"headers":{"ETag":"\"1\""},"body":"a body not to send"}"#,
        r#"{"statusCode":204}"#,
        r#"{"statusCode":304}"#,
    ] {
        let answer = server.send("POST", "/http/x", "", said).await;
        assert!([204, 304].contains(&code(&answer)), "{answer}");
        assert!(!answer.contains("content-length"), "{answer}");
        assert!(!answer.contains("transfer-encoding"), "{answer}");
        assert!(!answer.contains("\r\ncontent-type"), "{answer}");
        assert_eq!(body(&answer), "", "{answer}");
    }
    let answer = server
        .send("POST", "/http/x", "", r#"{"statusCode":205,"body":""}"#)
        .await;
    assert!(answer.contains("content-length: 0\r\n"), "{answer}");
}

/// A6.
#[tokio::test]
async fn a_functions_result_is_the_response() {
    let (server, _engine) = serving(&[("says", "says", r#"{ http = "/{any+}" }"#)]).await;
    let said = r#"{"statusCode":201,"headers":{"Location":"/x","Cache-Control":"max-age=60"},"cookies":["a=b","c=d"],"body":"made"}"#;
    let answer = server.send("POST", "/http/x", "", said).await;
    assert_eq!((code(&answer), body(&answer)), (201, "made"), "{answer}");
    for line in [
        "location: /x",
        "set-cookie: a=b",
        "set-cookie: c=d",
        "cache-control: max-age=60",
        "content-length: 4",
        "content-type: text/plain; charset=utf-8",
    ] {
        assert!(
            answer.contains(&format!("\r\n{line}\r\n")),
            "{line}: {answer}"
        );
    }
    let answer = server.send("POST", "/http/x", "", r#""Hello""#).await;
    assert_eq!((code(&answer), body(&answer)), (200, "Hello"), "{answer}");
    let answer = server.send("POST", "/http/x", "", "<p>no JSON").await;
    assert_eq!(
        (code(&answer), body(&answer)),
        (200, "<p>no JSON"),
        "{answer}"
    );
    assert!(
        answer.contains("content-type: application/json\r\n"),
        "{answer}"
    );
    let answer = server.send("POST", "/http/x", "", "[1, 2]").await;
    assert_eq!((code(&answer), body(&answer)), (200, "[1, 2]"), "{answer}");
    assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
}

/// A function's page has the origin of the routes that deploy functions. It must not act there for
/// its reader.
#[tokio::test]
async fn a_page_of_a_function_is_of_no_origin() {
    let (server, _engine) = serving(&[("says", "says", r#"{ http = "/{any+}" }"#)]).await;
    let page = r#"{"statusCode":200,"headers":{"content-type":"text/html","content-security-policy":"img-src *"},"body":"<p>"}"#;
    let answer = server.send("POST", "/http/page", "", page).await;
    for line in [
        "content-security-policy: img-src *",
        "content-security-policy: sandbox allow-scripts allow-forms",
    ] {
        assert!(
            answer.contains(&format!("\r\n{line}\r\n")),
            "{line}: {answer}"
        );
    }
    // The headers of a request from a script of such a page.
    let refused = server
        .send("POST", "/http/x", "Origin: null\r\n", "1")
        .await;
    assert_eq!(problem(&refused), (403, "foreign-origin".into()));
}

/// A6.
#[tokio::test]
async fn failures_of_functions_are_problems_with_gateway_statuses() {
    let (server, _engine) = serving(&[
        ("fails", "fails", r#"{ http = "/fails" }"#),
        ("hangs", "hangs", r#"{ http = "/hangs" }"#),
        ("is_busy", "is_busy", r#"{ http = "/is_busy" }"#),
        ("is_broken", "is_broken", r#"{ http = "/is_broken" }"#),
        (
            "says",
            "says",
            r#"{ http = "/says/{what}", methods = ["POST", "PUT"] }"#,
        ),
    ])
    .await;
    for (path, status, name) in [
        ("/http/fails", 500, "function-failed"),
        ("/http/hangs", 504, "function-timed-out"),
        ("/http/is_busy", 503, "unavailable"),
        ("/http/is_broken", 503, "unavailable"),
        ("/http/nowhere", 404, "no-such-path"),
        ("/http/says/%ff", 400, "invalid-request"),
        ("/http/says/x", 405, "method-not-allowed"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(problem(&answer), (status, name.into()), "{path}");
        let message = status_line(&answer).splitn(3, ' ').nth(2);
        assert_eq!(document(&answer)["message"].as_str(), message, "{answer}");
        assert_eq!(
            answer.contains("retry-after: 1\r\n"),
            status == 503,
            "{answer}"
        );
        assert_eq!(
            answer.contains("allow: POST, PUT\r\n"),
            status == 405,
            "{answer}"
        );
        assert!(!answer.contains("a secret"), "{answer}");
    }
    for wrong in [
        r#"{"statusCode":200.5}"#,
        r#"{"statusCode":7}"#,
        r#"{"statusCode":200,"headers":{"a secret":"b"}}"#,
        r#"{"statusCode":200,"body":"a secret","isBase64Encoded":true}"#,
    ] {
        let answer = server.send("POST", "/http/says/x", "", wrong).await;
        assert_eq!(problem(&answer), (500, "function-failed".into()), "{wrong}");
        assert!(
            !answer.contains("secret") && !answer.contains("offset"),
            "nothing of what it said: {answer}"
        );
        assert!(
            document(&answer)["detail"]
                .as_str()
                .expect("text")
                .contains("\"says\", in the request "),
            "{answer}"
        );
    }
}

/// A6.
#[tokio::test]
async fn a_body_and_its_event_have_six_megabytes_at_most() {
    let (server, _engine) = serving(&[("echo", "echo", r#"{ http = "/echo" }"#)]).await;
    let post = async |kind: &str, bytes: usize| {
        server
            .send(
                "PUT",
                "/http/echo",
                &format!("Content-Type: {kind}\r\n"),
                &"x".repeat(bytes),
            )
            .await
    };
    let room = PAYLOAD_BYTES_MAX - 4096;
    let answer = post("text/plain", room).await;
    assert_eq!(
        (
            code(&answer),
            document(&answer)["body"].as_str().map(str::len)
        ),
        (200, Some(room))
    );
    // The bodies fit, and their events do not.
    for (kind, bytes) in [
        ("text/plain", PAYLOAD_BYTES_MAX),
        ("application/octet-stream", room),
    ] {
        assert_eq!(
            problem(&post(kind, bytes).await),
            (413, "too-large".into()),
            "{kind} {bytes}"
        );
    }
    let announced = format!(
        "PUT /http/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        PAYLOAD_BYTES_MAX + 1
    );
    assert_eq!(
        problem(&server.exchange(&announced).await),
        (413, "too-large".into())
    );
    let chunked = format!(
        "PUT /http/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{0:x}\r\n{1}\r\n0\r\n\r\n",
        PAYLOAD_BYTES_MAX + 1,
        "x".repeat(PAYLOAD_BYTES_MAX + 1)
    );
    assert_eq!(
        problem(&server.exchange(&chunked).await),
        (413, "too-large".into())
    );
}

/// No route of an application hides one of ours.
#[tokio::test]
async fn the_servers_own_routes_stay_its_own() {
    let (server, _engine) =
        serving(&[("all", "echo", r#"{ http = "/{all+}" }, { http = "/" }"#)]).await;
    for path in [
        "/",
        "/health/live",
        "/health/ready",
        "/metrics",
        "/openapi.json",
        "/v1/status",
        "/v1/functions",
        "/v1/state/k",
    ] {
        let answer = server.get(path).await;
        assert!(
            !answer.contains("routeKey") && !answer.contains("sandbox allow"),
            "{path}: {answer}"
        );
    }
    let invoked = server
        .send(
            "POST",
            "/2015-03-31/functions/all/invocations",
            "",
            r#"{"a":1}"#,
        )
        .await;
    assert_eq!(document(&invoked), json!({ "a": 1 }));
    assert_eq!(
        problem(&server.get("/orders").await),
        (404, "no-such-path".into()),
        "only below the prefix"
    );
}

#[tokio::test]
async fn rules_for_strangers_hold_for_functions_and_the_token_is_not_theirs() {
    let (server, _engine) = serving(&[("echo", "echo", r#"{ http = "/echo" }"#)]).await;
    for (headers, refusal) in [
        ("Host: attacker.example\r\n", "unknown-host"),
        (
            "Host: localhost\r\nOrigin: http://attacker.example\r\n",
            "foreign-origin",
        ),
    ] {
        let request = format!("GET /http/echo HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        assert_eq!(
            problem(&server.exchange(&request).await),
            (403, refusal.into())
        );
    }
    // Without one of ours the application's own is sent.
    let own = document(
        &server
            .send("PUT", "/http/echo", "Authorization: Basic own\r\n", "")
            .await,
    );
    assert_eq!(own["headers"]["authorization"], "Basic own");

    let engine = Engine::open().await;
    let service = deployed(&engine, &[("echo", "echo", r#"{ http = "/echo" }"#)]).await;
    let server = engine
        .serve_functions("0.0.0.0:0", Some("sesame"), service)
        .await;
    assert_eq!(
        problem(&server.get("/http/echo").await),
        (401, "unauthorized".into())
    );
    let answer = server
        .send("GET", "/http/echo", "Authorization: Bearer sesame\r\n", "")
        .await;
    assert_eq!(code(&answer), 200, "{answer}");
    assert!(!answer.contains("sesame"), "{answer}");
}

/// A1, A7.
#[tokio::test]
async fn routes_change_with_their_application_as_a_whole() {
    let engine = Engine::open().await;
    let service = deployed(
        &engine,
        &[("old", "echo", r#"{ http = "/a" }, { http = "/b" }"#)],
    )
    .await;
    let server = engine
        .serve_functions("127.0.0.1:0", None, service.clone())
        .await;
    let taken = service
        .deploy(
            "other",
            manifest(&[(
                "new",
                "echo",
                r#"{ http = "/c" }, { http = "/b", methods = ["GET"] }"#,
            )]),
        )
        .await;
    let refused = taken.expect_err("the route is another's").to_string();
    assert_eq!(
        refused,
        "functions.new: the route GET /b is ANY /b of the function \"old\" of the application \"shop\""
    );
    assert_eq!(
        code(&server.get("/http/c").await),
        404,
        "nothing of it is there"
    );
    let other = manifest(&[("new", "echo", r#"{ http = "/c" }"#)]);
    service
        .deploy("other", other)
        .await
        .expect("it takes nothing from anybody");

    // The route changes its function during a stream of calls, and always has one.
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let changes = async {
        for round in 0..20 {
            let name = format!("f{round}");
            service
                .deploy("shop", manifest(&[(&name, "echo", r#"{ http = "/b" }"#)]))
                .await
                .expect("it is deployed");
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let calls = async {
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            assert_eq!(code(&server.get("/http/b").await), 200);
        }
    };
    tokio::join!(changes, calls);
    assert_eq!(
        code(&server.get("/http/a").await),
        404,
        "what it no longer has"
    );
    service.remove("shop").await.expect("it is there");
    assert_eq!(code(&server.get("/http/b").await), 404);
    assert_eq!(code(&server.get("/http/c").await), 200, "another's stays");
    service
        .deploy("other", manifest(&[("new", "echo", r#"{ http = "/b" }"#)]))
        .await
        .expect("it is free");
}
