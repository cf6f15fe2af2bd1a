use http::{HeaderValue, Request, request::Parts};

use super::*;

const NOW: u64 = 1_772_409_598;
const BODY: &[u8] = b"{\"a\": 1}";

fn keys() -> Keys {
    Keys {
        access_key: "AKID".to_owned(),
        secret_key: "secret/key+1".to_owned(),
    }
}

/// A request that botocore 1 has signed.
fn signed() -> Parts {
    let path = "/2015-03-31/functions/arn%3Aaws%3Alambda%3Aus-east-1%3A000000000000%3Afunction%3Af/invocations";
    let authorization = "AWS4-HMAC-SHA256 Credential=AKID/20260301/eu-central-1/lambda/aws4_request, \
         SignedHeaders=host;x-amz-date;x-amz-invocation-type;x-amz-log-type, \
         Signature=841e87ac19eb637cc39fb07f1c160cb27e8501d54e441d9ca8b16142079ab61b";
    let request = Request::post(format!("{path}?Qualifier=%24LATEST&A=1"))
        .header("host", "127.0.0.1:7600")
        .header("x-amz-invocation-type", "Event")
        .header("x-amz-log-type", "  two   words ")
        .header("x-amz-date", "20260301T235958Z")
        .header("user-agent", "not signed")
        .header("authorization", authorization);
    request.body(()).expect("a request").into_parts().0
}

fn checked(keys: &Keys, parts: &Parts, body: &[u8], now: u64) -> Result<(), Error> {
    let head = (&parts.method, &parts.uri, &parts.headers);
    begin(keys, "lambda", head, now)?.finish(body)
}

#[test]
fn what_botocore_signs_is_right_within_a_quarter_of_an_hour() {
    for (now, expected) in [
        (NOW, Ok(())),
        (NOW + 900, Ok(())),
        (NOW - 900, Ok(())),
        (NOW + 901, Err(Error::Expired)),
        (NOW - 901, Err(Error::Expired)),
    ] {
        assert_eq!(checked(&keys(), &signed(), BODY, now), expected, "{now}");
    }
}

#[test]
fn another_key_body_path_or_header_is_refused() {
    let all = |change: &dyn Fn(&mut Parts)| {
        let mut parts = signed();
        change(&mut parts);
        checked(&keys(), &parts, BODY, NOW)
    };
    let set = |name: &'static str, value: &'static str| {
        move |parts: &mut Parts| {
            parts.headers.insert(name, HeaderValue::from_static(value));
        }
    };
    let mismatch = Err(Error::Mismatch);
    assert_eq!(checked(&keys(), &signed(), b"{}", NOW), mismatch);
    let mut other = keys();
    other.secret_key.push('x');
    assert_eq!(checked(&other, &signed(), BODY, NOW), mismatch);
    other.access_key.push('x');
    assert_eq!(
        checked(&other, &signed(), BODY, NOW),
        Err(Error::UnknownKey)
    );
    assert_eq!(all(&|parts| parts.method = Method::PUT), mismatch);
    assert_eq!(all(&|parts| parts.uri = Uri::from_static("/x")), mismatch);
    assert_eq!(all(&set("host", "elsewhere")), mismatch);
    assert_eq!(all(&set("x-amz-date", "20260301T235959Z")), mismatch);
    assert_eq!(all(&set("x-amz-date", "20260302T000000Z")), mismatch);
    // A header that the signature does not cover.
    assert_eq!(
        all(&set("x-amz-client-context", "e30=")),
        Err(Error::Incomplete)
    );
    let head = signed();
    let head = (&head.method, &head.uri, &head.headers);
    let of_s3 = begin(&keys(), "s3", head, NOW).expect_err("of another service");
    assert_eq!(of_s3, Error::Mismatch);
}

#[test]
fn what_is_no_signature_is_told_apart_and_panics_nowhere() {
    let with = |authorization: &str| {
        let mut parts = signed();
        let value = HeaderValue::from_str(authorization).expect("a value");
        parts.headers.insert("authorization", value);
        checked(&keys(), &parts, BODY, NOW)
    };
    assert_eq!(with("Bearer x"), Err(Error::Missing));
    let whole = signed().headers["authorization"]
        .to_str()
        .expect("text")
        .to_owned();
    for end in ALGORITHM.len()..whole.len() {
        with(&whole[..end]).expect_err("half a signature");
        let _ = with(&whole.replace(&whole[end..], "é"));
    }
    for unsigned in ["host;", "x-amz-date;"] {
        assert_eq!(
            with(&whole.replace(unsigned, "")),
            Err(Error::Incomplete),
            "{unsigned}"
        );
    }
    assert_eq!(
        with(&whole.replace("x-amz-log-type,", "x-amz-log-type;y,")),
        Err(Error::Incomplete)
    );
}

#[test]
fn dates_are_read_as_they_are_written() {
    for (date, expected) in [
        ("19700101T000000Z", Some(0)),
        ("20000229T000000Z", Some(951_782_400)),
        ("20241231T000001Z", Some(1_735_603_201)),
        ("21000301T000000Z", Some(4_107_542_400)),
        ("20260301 235958Z", None),
        ("20261301T000000Z", None),
        ("00000301T000000Z", None),
        ("2026030éT00000Z", None),
        ("", None),
    ] {
        assert_eq!(seconds(date), expected, "{date}");
    }
}
