//! The bytes of an instance over its Runtime API: each request is answered or ends its connection,
//! within its bounds.

use proptest::{collection::vec, prelude::*, sample::select};
use sandbox::fuzzing::{Conversation, INVOCATION, conversation};

use crate::allocations::peak_of;

/// A result, twice while it grows, and the buffers of connections.
const PEAK_BYTES_MAX: usize = 24 << 20;
const ANSWER_BYTES_MAX: usize = 6_291_556;

/// The responses to an instance and the outcome of its invocation, in bounded memory.
fn play(connections: &[Vec<u8>], piece: usize) -> Conversation {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let (said, peak) = peak_of(|| runtime.block_on(conversation(connections, piece)));
    let bound = PEAK_BYTES_MAX + connections.len() * (256 << 10);
    assert!(peak < bound, "{peak} bytes of memory");
    for answered in &said.answered {
        assert!(
            answered.is_empty() || answered.starts_with(b"HTTP/1."),
            "{}",
            String::from_utf8_lossy(answered)
        );
    }
    let is_object = |bytes: &[u8]| {
        serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(bytes).is_ok()
    };
    match &said.result {
        Some(Ok(result)) => assert!(result.len() <= ANSWER_BYTES_MAX),
        Some(Err(failure)) => assert!(is_object(failure), "{}", String::from_utf8_lossy(failure)),
        None => {}
    }
    if let Some(failure) = &said.failed_start {
        assert!(is_object(failure), "{}", String::from_utf8_lossy(failure));
    }
    said
}

fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} /2018-06-01/runtime/{path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn next() -> Vec<u8> {
    request("GET", "invocation/next", b"")
}

fn answer(kind: &str, body: &[u8]) -> Vec<u8> {
    request("POST", &format!("invocation/{INVOCATION}/{kind}"), body)
}

fn status(answered: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answered);
    let codes = text
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|rest| rest[..3].parse().expect("a status"));
    codes.collect()
}

#[test]
fn an_answer_counts_once_and_for_its_invocation_alone() {
    let said = play(
        &[[
            request("POST", "invocation/another/response", b"1"),
            request("POST", "invocation/another/error", b"{}"),
            next(),
            answer("response", b"2"),
            answer("response", b"3"),
            answer("error", b"{}"),
        ]
        .concat()],
        7,
    );
    assert_eq!(status(&said.answered[0]), [400, 400, 200, 202, 400, 400]);
    assert_eq!(said.result.expect("answered").expect("a result"), "2");
}

#[test]
fn a_result_that_is_too_long_fails_and_its_error_is_bounded_too() {
    let long = vec![b'x'; 3 * ANSWER_BYTES_MAX];
    let said = play(&[answer("response", &long)], 50_000);
    assert_eq!(status(&said.answered[0]), [413]);
    let failure = said.result.expect("answered").expect_err("too long");
    assert!(String::from_utf8_lossy(&failure).contains("ResponseSizeTooLarge"));
    for body in [&long, &[b"{\"a\":\"".as_slice(), &long, b"\"}"].concat()] {
        let said = play(&[answer("error", body)], 50_000);
        let failure = said.result.expect("answered").expect_err("an error");
        assert!(failure.len() < 2000, "{} bytes", failure.len());
        let said = play(&[request("POST", "init/error", body)], 50_000);
        assert!(said.failed_start.expect("said").len() < 2000);
    }
}

/// U3: the type decides how callers go on, so it must arrive.
#[test]
fn a_long_error_keeps_its_type_and_the_beginning_of_its_message() {
    let long = "\u{2603}\u{1}".repeat(80_000);
    let object = |kind: &str, message: &str, trace: &str| {
        serde_json::json!({ "errorMessage": message, "errorType": kind, "stackTrace": [trace] })
            .to_string()
    };
    let kept = |body: &[u8]| {
        let said = play(&[answer("error", body)], 50_000);
        assert_eq!(status(&said.answered[0]), [202]);
        let failure = said.result.expect("answered").expect_err("an error");
        assert!(failure.len() <= 256 << 10, "{} bytes", failure.len());
        let error: serde_json::Value = serde_json::from_slice(&failure).expect("JSON");
        let text = |name: &str| error[name].as_str().expect("a text").to_owned();
        (text("errorType"), text("errorMessage"))
    };
    let (kind, message) = kept(object("Own", &long, "t").as_bytes());
    assert_eq!(kind, "Own");
    assert!(message.starts_with(&long[..30_000]));
    assert!(message.ends_with("... (the beginning of 320000 bytes)"));
    assert_eq!(
        kept(object("Own", "short", &long).as_bytes()),
        ("Own".to_owned(), "short".to_owned())
    );
    assert_eq!(kept(object(&long, "m", "t").as_bytes()).0, long[..256]);
    let (kind, message) = kept(&[long.as_bytes(), b"\xff"].concat());
    assert_eq!(kind, "Runtime.Unknown");
    assert!(message.starts_with(&long[..30_000]));
}

/// AWS's clients repeat an error in a header, up to 1 MiB.
#[test]
fn an_error_may_come_with_a_header_of_a_mebibyte() {
    let body = br#"{"errorType":"E"}"#;
    let head = format!(
        "POST /2018-06-01/runtime/invocation/{INVOCATION}/error HTTP/1.1\r\nContent-Length: {}\r\n",
        body.len()
    );
    let cause = format!(
        "lambda-runtime-function-xray-error-cause: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let said = play(
        &[[head.as_bytes(), cause.as_bytes(), body].concat()],
        50_000,
    );
    assert_eq!(status(&said.answered[0]), [202]);
    assert_eq!(
        said.result.expect("answered").expect_err("an error"),
        &body[..]
    );
}

#[test]
fn an_error_that_is_not_an_object_is_wrapped_in_one() {
    for (body, said_of_it) in [
        (b"{\"errorType\":\"E\"}".as_slice(), "{\"errorType\":\"E\"}"),
        (
            b"[1]",
            "{\"errorType\":\"Runtime.Unknown\",\"errorMessage\":\"[1]\"}",
        ),
        (
            b"\"x\"",
            "{\"errorType\":\"Runtime.Unknown\",\"errorMessage\":\"\\\"x\\\"\"}",
        ),
        (
            b"",
            "{\"errorType\":\"Runtime.Unknown\",\"errorMessage\":\"\"}",
        ),
        (
            b"{",
            "{\"errorType\":\"Runtime.Unknown\",\"errorMessage\":\"{\"}",
        ),
    ] {
        let failure = play(&[answer("error", body)], 100)
            .result
            .expect("answered")
            .expect_err("an error");
        assert_eq!(failure, said_of_it);
    }
}

/// U3: a streaming runtime has sent the beginning of its response when it fails.
#[test]
fn a_response_whose_trailers_report_a_failure_is_a_failure() {
    // {"errorType":"Mine","errorMessage":"midway"}, and text that is not an object.
    let object = "eyJlcnJvclR5cGUiOiJNaW5lIiwiZXJyb3JNZXNzYWdlIjoibWlkd2F5In0=";
    for (trailers, expected) in [
        (
            format!(
                "Lambda-Runtime-Function-Error-Type: T\r\nLambda-Runtime-Function-Error-Body: {object}\r\n"
            ),
            Err(r#"{"errorType":"Mine","errorMessage":"midway"}"#),
        ),
        (
            "Lambda-Runtime-Function-Error-Type: T\r\nLambda-Runtime-Function-Error-Body: bWlkd2F5\r\n"
                .to_owned(),
            Err(r#"{"errorType":"T","errorMessage":"midway"}"#),
        ),
        (
            "lambda-runtime-function-error-type: T\r\n".to_owned(),
            Err(
                r#"{"errorType":"T","errorMessage":"the function failed while it sent its response, and gave no reason"}"#,
            ),
        ),
        ("Of-Something-Else: 1\r\n".to_owned(), Ok("\"half")),
        (String::new(), Ok("\"half")),
    ] {
        let head = format!(
            "POST /2018-06-01/runtime/invocation/{INVOCATION}/response HTTP/1.1\r\n\
             Lambda-Runtime-Function-Response-Mode: streaming\r\nTransfer-Encoding: chunked\r\n\
             Trailer: Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body\r\n\r\n"
        );
        let said = play(&[format!("{head}5\r\n\"half\r\n0\r\n{trailers}\r\n").into_bytes()], 11);
        assert_eq!(status(&said.answered[0]), [202], "{trailers}");
        let result = said.result.expect("answered");
        let result = result.as_ref().map(|bytes| &bytes[..]).map_err(|bytes| &bytes[..]);
        assert_eq!(result, expected.map(str::as_bytes).map_err(str::as_bytes), "{trailers}");
    }
}

#[test]
fn many_connections_keep_one_body_between_them() {
    let most = vec![b'x'; ANSWER_BYTES_MAX];
    let connections: Vec<_> = (0..48)
        .map(|_| request("POST", "init/error", &most))
        .collect();
    play(&connections, 100_000);
    let connections: Vec<_> = (0..48).map(|_| answer("response", &most)).collect();
    let said = play(&connections, 100_000);
    assert_eq!(
        said.result.expect("answered").expect("one of them").len(),
        ANSWER_BYTES_MAX
    );
}

#[test]
fn a_head_without_end_is_cut_off() {
    for head in [
        "GET /",
        "GET / HTTP/1.1\r\nA: ",
        "GET / HTTP/1.1\r\nA: b\r\n",
    ] {
        let endless = head
            .bytes()
            .chain(head.bytes().skip(4).cycle().take(2 << 20))
            .collect();
        let said = play(&[endless], 10_000);
        assert!(said.answered[0].len() < 1000, "{}", said.answered[0].len());
    }
}

const WORDS: [&str; 40] = [
    "GET ",
    "POST ",
    "PUT ",
    "BREW ",
    "/2018-06-01/runtime/",
    "invocation/next",
    "invocation/",
    "init/error",
    "the-invocation",
    "/response",
    "/error",
    "/",
    "..",
    "%2e",
    "%",
    "\0",
    "\u{e9}",
    " HTTP/1.1",
    " HTTP/1.0",
    " HTTP/2",
    "\r\n",
    "\r\n\r\n",
    "\n",
    "Content-Length: ",
    "5",
    "99999999999999999999",
    "-1",
    "Transfer-Encoding: chunked",
    "5\r\nhello\r\n",
    "ffffffffffffffff\r\n",
    "0\r\n\r\n",
    "Host: evil",
    "Host: 127.0.0.1:1",
    "Origin: x",
    "Lambda-Runtime-Function-Error-Type: ",
    "Expect: 100-continue",
    "Connection: close",
    "{\"errorType\":",
    "[",
    "\"",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_bytes_of_an_instance_are_answered_or_end_its_connection(
        words in vec(select(WORDS.to_vec()), 0..60), piece in 1_usize..200,
    ) {
        play(&[words.concat().into_bytes()], piece);
    }

    #[test]
    fn damaged_requests_are_answered_or_end_their_connection(
        body in vec(any::<u8>(), 0..300), flips in vec((any::<usize>(), any::<u8>()), 0..8), piece in 1_usize..500,
    ) {
        let mut bytes = [next(), answer("error", &body), answer("response", &body), request("POST", "init/error", &body)].concat();
        for (place, byte) in flips {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        play(&[bytes], piece);
    }
}
