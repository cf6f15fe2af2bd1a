//! Signatures, keys and the buckets of functions.

use http::StatusCode;
use http_body_util::BodyExt as _;
use s3s::{
    Body, S3,
    dto::{Timestamp, TimestampFormat},
    service::{S3Service, S3ServiceBuilder},
};
use sha2::Digest as _;

use super::*;

pub(crate) fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| {
            (
                name.parse().expect("a name"),
                value.parse().expect("a value"),
            )
        })
        .collect()
}

#[test]
fn a_secret_key_is_in_no_debug_output() {
    let credentials = Credentials {
        access_key: "open".into(),
        secret_key: "hidden".into(),
    };
    assert!(!format!("{credentials:?}").contains("hidden"));
}

#[derive(Debug)]
struct Deployed;

impl Functions for Deployed {
    fn grant(&self, name: &str) -> Option<Grant> {
        (name == "resize").then(|| Grant {
            incarnation: 7,
            buckets: vec!["photos".into()],
        })
    }
}

fn keys() -> Keys {
    Keys {
        own: Credentials {
            access_key: "open".into(),
            secret_key: "hidden".into(),
        },
        functions: Arc::new(Deployed),
    }
}

#[test]
fn keys_are_of_one_deployment_of_one_function() {
    let keys = keys();
    let own = |name, incarnation| keys.own.of_function(name, incarnation);
    let found = |access_key: &str| keys.of_function(access_key).map(|(keys, _)| keys);
    let resize = own("resize", 7);
    let found_keys = found(&resize.access_key).expect("it is deployed");
    assert_eq!(found_keys.secret_key, resize.secret_key);
    assert!(found(&own("resize", 8).access_key).is_none());
    assert!(found(&own("other", 7).access_key).is_none());
    assert_ne!(own("resize", 8).secret_key, resize.secret_key);
    assert_ne!(own("other", 7).secret_key, resize.secret_key);
}

#[test]
fn a_function_names_its_own_buckets_alone() {
    let keys = keys();
    let access_key = keys.own.of_function("resize", 7).access_key;
    let bucket = |bucket: &str| S3Path::Bucket {
        bucket: bucket.into(),
    };
    let check = |path: &S3Path, pairs: &[(&'static str, &'static str)]| {
        keys.check_buckets(&access_key, path, &headers(pairs))
    };
    assert!(check(&S3Path::Root, &[]).is_ok());
    assert!(check(&bucket("photos"), &[]).is_ok());
    assert!(check(&bucket("private"), &[]).is_err());
    for (source, is_own) in [
        ("photos/k", true),
        ("/photos/k", true),
        ("private/k", false),
        ("%70rivate/k", false),
        ("photos", false),
    ] {
        let checked = check(&bucket("photos"), &[("x-amz-copy-source", source)]);
        assert_eq!(checked.is_ok(), is_own, "{source}");
    }
    assert!(
        keys.check_buckets("open", &bucket("private"), &HeaderMap::new())
            .is_ok()
    );
}

#[test]
fn a_signature_for_s3_is_told_by_its_scope() {
    let is_for = |uri: &'static str, value: &'static str| {
        is_for_s3(
            &Uri::from_static(uri),
            &headers(&[("authorization", value)]),
        )
    };
    let scope = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, Signature=0";
    assert!(is_for("/b/k", scope));
    assert!(!is_for(
        "/b/k",
        "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/lambda/aws4_request"
    ));
    assert!(is_for(
        "/b/k?X-Amz-Credential=a%2F20260101%2Fus-east-1%2Fs3%2Faws4_request",
        ""
    ));
    assert!(!is_for("/v1/state/s3", ""));
}

#[test]
fn an_unsigned_header_that_matters_is_refused() {
    const SIGNED: &str =
        "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0";
    let uri = Uri::from_static("/b/k");
    let request = headers(&[
        ("authorization", SIGNED),
        ("host", "h"),
        ("x-amz-date", "d"),
    ]);
    assert!(check_signed(&uri, &request).is_ok());
    let mut more = request;
    more.insert("x-amz-acl", http::HeaderValue::from_static("private"));
    let refused = check_signed(&uri, &more).expect_err("not signed");
    assert!(refused.to_string().contains("x-amz-acl"));
}

#[test]
fn a_presigned_request_names_its_headers_in_the_query() {
    let uri = Uri::from_static("/b/k?X-Amz-SignedHeaders=host%3Bx-amz-meta-a&X-Amz-Signature=0");
    let request = headers(&[("host", "h"), ("x-amz-meta-a", "1")]);
    assert!(check_signed(&uri, &request).is_ok());
    let request = headers(&[("host", "h"), ("x-amz-meta-b", "1")]);
    assert!(check_signed(&uri, &request).is_err());
}

/// The holder of a presigned URL must not choose the list of signed headers.
#[test]
fn a_presigned_url_covers_no_header_that_its_holder_adds() {
    let added = [("host", "h"), ("x-amz-copy-source", "/other/key")];
    let signed =
        "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-copy-source, Signature=0";
    let with_header = headers(&[added[0], added[1], ("authorization", signed)]);
    let plain = Uri::from_static("/b/k?X-Amz-SignedHeaders=host&X-Amz-Signature=0");
    assert!(check_signed(&plain, &with_header).is_err());
    for disguised in [
        "/b/k?X-Amz-%53ignedHeaders=host&X-Amz-Signature=0",
        "/b/k?X-Amz-%53ignedHeaders=host&X-Amz-%53ignature=0",
        "/b/k?X-Amz-Signature=0",
    ] {
        let uri = Uri::from_static(disguised);
        assert!(check_signed(&uri, &headers(&added)).is_err(), "{disguised}");
    }
}

#[test]
fn version_2_is_told_by_its_header() {
    let of = |value| is_version_2(&headers(&[("authorization", value)]));
    assert!(of("AWS a:b"));
    assert!(!of("AWS4-HMAC-SHA256 x"));
    assert!(!is_version_2(&HeaderMap::new()));
}

#[test]
fn a_name_under_localhost_is_a_bucket() {
    let parse = |host: &'static str| {
        let parsed = Hosts.parse_host_header(host).expect("a host");
        parsed.bucket().map(str::to_owned)
    };
    assert_eq!(parse("photos.localhost:9000").as_deref(), Some("photos"));
    assert_eq!(parse("localhost:9000"), None);
    assert_eq!(parse("storage.example.org"), None);
}

/// Answers nothing, once a request is let through.
struct Unimplemented;

impl S3 for Unimplemented {}

fn service() -> S3Service {
    let mut builder = S3ServiceBuilder::new(Unimplemented);
    builder.set_auth(keys());
    builder.set_access(Access(keys()));
    builder.set_host(Hosts);
    builder.build()
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

/// A moment as signatures name it, and the scope of its day.
fn now() -> (String, String) {
    let mut text = Vec::new();
    let now = Timestamp::from(std::time::SystemTime::now());
    now.format(TimestampFormat::DateTime, &mut text)
        .expect("written");
    let text = String::from_utf8(text)
        .expect("text")
        .replace(['-', ':'], "");
    let seconds = text.split(['.', 'Z']).next().expect("some");
    (
        format!("{seconds}Z"),
        format!("{}/us-east-1/s3/aws4_request", &seconds[..8]),
    )
}

/// The signature of a text.
fn signature(keys: &Credentials, scope: &str, text: &str) -> String {
    let first = format!("AWS4{}", keys.secret_key).into_bytes();
    let key = scope.split('/').fold(first, |key, part| hmac(&key, part));
    hex(&hmac(&key, text))
}

/// A request with the signature of `keys`. The query is in order.
fn signed(keys: &Credentials, method: &str, target: &str, more: &[(&str, &str)]) -> Request<Body> {
    const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
    let (date, scope) = now();
    let mut headers = vec![
        ("host", "localhost"),
        ("x-amz-content-sha256", UNSIGNED),
        ("x-amz-date", &date),
    ];
    headers.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
    headers.extend(more);
    headers.sort_unstable();
    let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{UNSIGNED}");
    let digest = hex(&Sha256::digest(canonical.as_bytes()));
    let signature = signature(
        keys,
        &scope,
        &format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}"),
    );
    let access_key = &keys.access_key;
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    );
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.header("authorization", authorization);
    request.body(Body::empty()).expect("a request")
}

/// A form that puts a file into a bucket, with a policy of `keys`.
fn signed_form(keys: &Credentials, bucket: &str) -> Request<Body> {
    let (date, scope) = now();
    let credential = format!("{}/{scope}", keys.access_key);
    let fixed = [
        ("key", "k"),
        ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        ("x-amz-credential", &credential),
        ("x-amz-date", &date),
    ];
    let conditions = fixed
        .map(|(name, value)| format!(r#"{{"{name}":"{value}"}}"#))
        .join(",");
    let policy = format!(
        r#"{{"expiration":"2999-01-01T00:00:00Z","conditions":[{{"bucket":"{bucket}"}},{conditions}]}}"#
    );
    let policy = BASE64_STANDARD.encode(policy);
    let signature = signature(keys, &scope, &policy);
    let more = [("policy", policy.as_str()), ("x-amz-signature", &signature)];
    let fields = fixed.into_iter().chain(more).map(|(name, value)| {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    });
    let fields = fields.collect::<Vec<_>>().concat();
    let file = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nfile\r\n--x--\r\n";
    let request = Request::builder().method("POST").uri(format!("/{bucket}"));
    let request = request
        .header("host", "localhost")
        .header("content-type", "multipart/form-data; boundary=x");
    request.body(Body::from(fields + file)).expect("a request")
}

/// The status and the document of the response.
async fn answer(request: Request<Body>) -> (StatusCode, String) {
    let response = service().call(request).await.expect("a response");
    let status = response.status();
    let body = response.into_body().collect().await.expect("a body");
    (
        status,
        String::from_utf8_lossy(&body.to_bytes()).into_owned(),
    )
}

async fn is_let_through(request: Request<Body>, what: &str) -> bool {
    let is_head = *request.method() == Method::HEAD;
    let (status, document) = answer(request).await;
    let is_denied = status == StatusCode::FORBIDDEN;
    assert!(
        !is_denied || is_head || document.contains("AccessDenied"),
        "{what}: {document}"
    );
    let is_unserved = status == StatusCode::NOT_IMPLEMENTED || status == StatusCode::BAD_REQUEST;
    assert!(is_denied || is_unserved, "{what}: {status} {document}");
    !is_denied
}

#[tokio::test]
async fn no_request_of_a_function_reaches_a_foreign_bucket() {
    let function = keys().own.of_function("resize", 7);
    let own = keys().own;
    for (method, target) in [
        ("GET", "/BUCKET/k"),
        ("HEAD", "/BUCKET/k"),
        ("PUT", "/BUCKET/k"),
        ("DELETE", "/BUCKET/k"),
        ("GET", "/BUCKET/k?attributes="),
        ("GET", "/BUCKET/k?tagging="),
        ("PUT", "/BUCKET/k?tagging="),
        ("GET", "/BUCKET?list-type=2"),
        ("HEAD", "/BUCKET"),
        ("PUT", "/BUCKET"),
        ("DELETE", "/BUCKET"),
        // A batch of deletions.
        ("POST", "/BUCKET?delete="),
        // An upload in parts, from its begin to its end.
        ("POST", "/BUCKET/k?uploads="),
        ("PUT", "/BUCKET/k?partNumber=1&uploadId=00"),
        ("GET", "/BUCKET/k?uploadId=00"),
        ("GET", "/BUCKET?uploads="),
        ("POST", "/BUCKET/k?uploadId=00"),
        ("DELETE", "/BUCKET/k?uploadId=00"),
    ] {
        for (keys, bucket, expected) in [
            (&function, "photos", true),
            (&function, "private", false),
            (&function, "photos2", false),
            (&own, "private", true),
        ] {
            let target = target.replace("BUCKET", bucket);
            let request = signed(keys, method, &target, &[]);
            let what = format!("{method} {target}");
            assert_eq!(is_let_through(request, &what).await, expected, "{what}");
        }
    }
}

#[tokio::test]
async fn no_copy_of_a_function_reads_a_foreign_bucket() {
    let function = keys().own.of_function("resize", 7);
    for target in ["/photos/k", "/photos/k?partNumber=1&uploadId=00"] {
        for (source, expected) in [
            ("/photos/k", true),
            ("/private/k", false),
            ("private/k", false),
            ("%2Fprivate%2Fk", false),
        ] {
            let request = signed(&function, "PUT", target, &[("x-amz-copy-source", source)]);
            let what = format!("{target} from {source}");
            assert_eq!(is_let_through(request, &what).await, expected, "{what}");
        }
    }
}

#[tokio::test]
async fn a_form_and_a_host_name_no_foreign_bucket_either() {
    let function = keys().own.of_function("resize", 7);
    for (bucket, expected) in [("photos", true), ("private", false)] {
        assert_eq!(
            is_let_through(signed_form(&function, bucket), bucket).await,
            expected,
            "{bucket}"
        );
        let host = format!("{bucket}.localhost");
        let request = signed(&function, "GET", "/k", &[("host", &host)]);
        assert_eq!(is_let_through(request, &host).await, expected, "{host}");
    }
}

#[tokio::test]
async fn the_keys_of_a_removed_function_are_unknown() {
    let removed = keys().own.of_function("resize", 6);
    let (status, document) = answer(signed(&removed, "GET", "/photos/k", &[])).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(document.contains("InvalidAccessKeyId"), "{document}");
}

#[test]
fn a_form_is_told_by_its_method_and_type() {
    let is = |method: &str, kind: &str| {
        let request = Request::builder()
            .method(method)
            .header("content-type", kind);
        is_form(&request.body(()).expect("a request"))
    };
    assert!(is("POST", "multipart/form-data; boundary=x"));
    assert!(is("POST", "Multipart/Form-Data; boundary=x"));
    assert!(!is("PUT", "multipart/form-data; boundary=x"));
    assert!(!is("POST", "application/xml"));
}
