use http_frontend::Status;

use crate::{Fixture, body, engine::Engine, problem, status_line};

#[tokio::test]
async fn names_of_this_machine_are_accepted_with_any_port() {
    let server = Fixture::showing(Status::default()).await;
    for host in [
        "127.0.0.1",
        "localhost:7600",
        "LOCALHOST",
        "[::1]:80",
        "127.0.0.9:1",
    ] {
        let answer = server.get_with(&format!("Host: {host}\r\n")).await;
        assert_eq!(status_line(&answer), "HTTP/1.1 200 OK", "{host}");
    }
}

#[tokio::test]
async fn a_name_that_only_points_here_is_refused() {
    let server = Fixture::showing(Status::default()).await;
    for headers in [
        "Host: attacker.example\r\n",
        "Host: localhost.attacker.example:7600\r\n",
        "Host: 10.0.0.1\r\n",
        "Host: localhost\r\nHost: attacker.example\r\n",
        "Host: \r\n",
        "",
    ] {
        let answer = server.get_with(headers).await;
        assert!(
            status_line(&answer).starts_with("HTTP/1.1 403")
                || status_line(&answer).starts_with("HTTP/1.1 400"),
            "{headers:?}: {answer}"
        );
    }
    let answer = server.get_with("Host: attacker.example\r\n").await;
    assert_eq!(status_line(&answer), "HTTP/1.1 403 Forbidden");
    assert!(
        answer.contains("content-type: application/problem+json"),
        "{answer}"
    );
    assert!(
        body(&answer).contains(r#""type":"unknown-host""#),
        "{answer}"
    );
}

#[tokio::test]
async fn a_target_that_names_another_host_is_refused() {
    let server = Fixture::showing(Status::default()).await;
    let request = "GET http://attacker.example/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(
        status_line(&server.exchange(request).await),
        "HTTP/1.1 403 Forbidden"
    );
}

#[tokio::test]
async fn another_site_is_refused_and_our_own_page_is_not() {
    let server = Fixture::showing(Status::default()).await;
    for origin in [
        "http://attacker.example",
        "null",
        "http://localhost:3000",
        "https://localhost:7600",
    ] {
        let answer = server
            .get_with(&format!("Host: localhost:7600\r\nOrigin: {origin}\r\n"))
            .await;
        assert_eq!(status_line(&answer), "HTTP/1.1 403 Forbidden", "{origin}");
        assert!(
            body(&answer).contains(r#""type":"foreign-origin""#),
            "{answer}"
        );
    }
    let own = server
        .get_with("Host: localhost:7600\r\nOrigin: http://localhost:7600\r\n")
        .await;
    assert_eq!(status_line(&own), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn the_token_is_required_except_for_health() {
    let server = Fixture::listening("0.0.0.0:0", Some("open sesame"), Status::default()).await;
    let host = "Host: files.example:7600\r\n";
    for wrong in [
        "",
        "Authorization: Bearer open\r\n",
        "Authorization: Basic open sesame\r\n",
        "Authorization: x\r\n",
    ] {
        let answer = server.get_with(&format!("{host}{wrong}")).await;
        assert_eq!(
            status_line(&answer),
            "HTTP/1.1 401 Unauthorized",
            "{wrong:?}"
        );
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
    }
    let answer = server
        .get_with(&format!("{host}Authorization: Bearer open sesame\r\n"))
        .await;
    assert_eq!(status_line(&answer), "HTTP/1.1 200 OK");
    assert_eq!(
        status_line(&server.get("/health/live").await),
        "HTTP/1.1 200 OK"
    );
}

#[tokio::test]
async fn a_token_is_required_on_loopback_too() {
    let server = Fixture::listening("127.0.0.1:0", Some("open sesame"), Status::default()).await;
    for (path, status) in [
        ("/v1/status", "401 Unauthorized"),
        ("/health/live", "200 OK"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(status_line(&answer), format!("HTTP/1.1 {status}"), "{path}");
    }
}

/// A page can make a browser send a form, or any request that needs no permission, without reading the answer.
#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    let kept = server.send("PUT", "/v1/state/k", "", "kept").await;
    assert_eq!(status_line(&kept), "HTTP/1.1 204 No Content");
    for (method, path) in [
        ("POST", "/v1/transactions"),
        ("PUT", "/v1/state/k"),
        ("DELETE", "/v1/state/k"),
        ("POST", "/v1/transactions/id/commit"),
        ("DELETE", "/v1/transactions/id"),
        ("PUT", "/v1/transactions/id/keys/k"),
    ] {
        for page in [
            "Origin: http://attacker.example\r\n",
            "Origin: null\r\n",
            "Origin: http://localhost:3000\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
            "Sec-Fetch-Site: none\r\nSec-Fetch-Site: none\r\n",
        ] {
            let refused = server.send(method, path, page, "").await;
            assert_eq!(
                problem(&refused),
                (403, "foreign-origin".into()),
                "{method} {path} {page}"
            );
        }
        let rebound = format!(
            "{method} {path} HTTP/1.1\r\nHost: attacker.example\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            problem(&server.exchange(&rebound).await),
            (403, "unknown-host".into())
        );
    }
    assert_eq!(body(&server.get("/v1/state/k").await), "kept");
    assert_eq!(engine.figures().begun, 1, "the one write of our own");
    let own = server
        .send(
            "PUT",
            "/v1/state/k",
            "Sec-Fetch-Site: same-origin\r\n",
            "own",
        )
        .await;
    assert_eq!(status_line(&own), "HTTP/1.1 204 No Content");
}

/// A browser asks in advance for the permission that such a page needs, and never gets it.
#[tokio::test]
async fn no_permission_is_given_to_another_site() {
    let server = Fixture::showing(Status::default()).await;
    let preflight = "Origin: http://attacker.example\r\nAccess-Control-Request-Method: PUT\r\n";
    let answer = server.send("OPTIONS", "/v1/state/k", preflight, "").await;
    assert_eq!(problem(&answer), (403, "foreign-origin".into()));
    for answer in [answer, server.get("/v1/status").await] {
        assert!(!answer.contains("access-control"), "{answer}");
        assert!(
            answer.contains("cross-origin-resource-policy: same-origin"),
            "{answer}"
        );
    }
}
