//! Requests that no client would send, from seeds: hostile paths, headers and bodies, and noise.
//!
//! Each input is made from its number alone, so the number that a failure prints replays it:
//! `LANDFAST_FUZZ_INPUT=N`. `LANDFAST_FUZZ_INPUTS=N` runs more of them.

use std::{env, fmt::Write as _};

use fastrand::Rng;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{code, engine::Engine, problem};

const INPUTS: u64 = 1_500;

const METHODS: [&str; 8] = [
    "GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS", "BREW",
];
const BEGINNINGS: [&str; 10] = [
    "/v1/peers",
    "/v1/state/",
    "/v1/transactions",
    "/v1/transactions/",
    "/v1/transactions/open/keys/",
    "/v1/transactions/open/messages/",
    "/v1/transactions/open/invocations/",
    "/v1/transactions/open/commit",
    "/v1/",
    "/",
];
const HEADERS: [&str; 7] = [
    "Landfast-Attempt",
    "Landfast-After",
    "Landfast-Effect",
    "Content-Type",
    "Retry-After",
    "Expect",
    "Authorization",
];
/// Characters that a target may contain, the percent sign among them.
const PLAIN: &[u8] = b"az09-._~!$&'()*+,;=:@%/?";

#[tokio::test]
async fn every_request_is_answered_or_refused_with_a_reason() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    for input in inputs() {
        let mut chance = Rng::with_seed(input);
        let request = request(&mut chance);
        let answer = server.exchange(&request).await;
        let status = code(&answer);
        // The router responds to unknown methods, and a response to HEAD has no body.
        let has_reason =
            status < 400 || request.starts_with("HEAD") || !problem(&answer).1.is_empty();
        assert!(
            (200..500).contains(&status) && has_reason,
            "replay with LANDFAST_FUZZ_INPUT={input}: {request:?} was answered with {answer:?}"
        );
    }
}

#[tokio::test]
async fn every_byte_string_is_one_key_however_it_is_encoded() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    for input in inputs().take(300) {
        let mut chance = Rng::with_seed(input);
        let length = if chance.bool() {
            chance.usize(..=16)
        } else {
            chance.usize(..=1024)
        };
        let key: Vec<u8> = (0..length).map(|_| chance.u8(..)).collect();
        let path = |chance: &mut Rng| format!("/v1/state/{}", encoded(&key, chance));
        let value = format!("value {input}");
        let put = server.send("PUT", &path(&mut chance), "", &value).await;
        assert_eq!(code(&put), 204, "LANDFAST_FUZZ_INPUT={input}: {put}");
        let got = server.get(&path(&mut chance)).await;
        assert_eq!(
            crate::body(&got),
            value,
            "LANDFAST_FUZZ_INPUT={input}: {key:?}"
        );
    }
}

#[tokio::test]
async fn noise_ends_its_own_connection_at_most() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    assert_eq!(
        code(&server.send("PUT", "/v1/state/canary", "", "sings").await),
        204
    );
    for input in inputs().take(500) {
        let mut chance = Rng::with_seed(input);
        let mut bytes = request(&mut chance).into_bytes();
        for _ in 0..chance.usize(1..20) {
            let at = chance.usize(..bytes.len());
            bytes[at] = chance.u8(..);
        }
        bytes.truncate(chance.usize(1..=bytes.len()));
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("the server accepts");
        // The server may have closed it by then.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
        if input % 50 == 0 {
            assert_eq!(
                crate::body(&server.get("/v1/state/canary").await),
                "sings",
                "after input {input}"
            );
        }
    }
}

fn inputs() -> impl Iterator<Item = u64> {
    let number = |name| {
        env::var(name)
            .ok()
            .map(|text: String| text.parse().expect("a number"))
    };
    match number("LANDFAST_FUZZ_INPUT") {
        Some(input) => input..=input,
        None => 0..=number("LANDFAST_FUZZ_INPUTS").unwrap_or(INPUTS),
    }
}

/// A request with valid framing and nothing else that is valid.
fn request(chance: &mut Rng) -> String {
    let method = METHODS[chance.usize(..METHODS.len())];
    let mut target = BEGINNINGS[chance.usize(..BEGINNINGS.len())].to_owned();
    for _ in 0..chance.usize(..3) {
        let segment = segment(chance);
        target.push_str(&segment);
        if chance.bool() {
            target.push('/');
        }
    }
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for _ in 0..chance.usize(..3) {
        let name = HEADERS[chance.usize(..HEADERS.len())];
        let length = chance.usize(..40);
        let value: String = (0..length).map(|_| chance.char('!'..='~')).collect();
        let value = if chance.bool() {
            chance.u64(..).to_string()
        } else {
            value
        };
        write!(head, "{name}: {value}\r\n").expect("a string takes it");
    }
    let body = body(chance);
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn segment(chance: &mut Rng) -> String {
    let length = match chance.u8(..4) {
        0 => 0,
        1 => chance.usize(..2_500),
        _ => chance.usize(..24),
    };
    match chance.u8(..4) {
        0 => (0..length)
            .map(|_| char::from(PLAIN[chance.usize(..PLAIN.len())]))
            .collect(),
        1 => ".".repeat(length.min(3)),
        2 => "%2F%2e%25%00%zz%4".chars().take(length).collect(),
        _ => {
            let bytes: Vec<u8> = (0..length).map(|_| chance.u8(..)).collect();
            encoded(&bytes, chance)
        }
    }
}

/// One of the ways to write `bytes` as a segment.
fn encoded(bytes: &[u8], chance: &mut Rng) -> String {
    let mut text = String::new();
    for byte in bytes {
        let is_plain = byte.is_ascii_alphanumeric() && chance.bool();
        let written = match (is_plain, chance.bool()) {
            (true, _) => write!(text, "{}", char::from(*byte)),
            (false, true) => write!(text, "%{byte:02x}"),
            (false, false) => write!(text, "%{byte:02X}"),
        };
        written.expect("a string takes it");
    }
    text
}

fn body(chance: &mut Rng) -> String {
    match chance.u8(..6) {
        0 => String::new(),
        1 => "[".repeat(chance.usize(..5_000)),
        2 => r#"{"id": 7, "isolation": ["#.to_owned(),
        3 => format!(
            r#"{{"id": "{}", "isolation": "serial"}}"#,
            "i".repeat(chance.usize(..200))
        ),
        4 => format!(r#"{{"id": "fuzz-{}"}}"#, chance.u8(..)),
        _ => (0..chance.usize(..300))
            .map(|_| chance.char(' '..='\u{7ff}'))
            .collect(),
    }
}
