//! Volumes and their files, on volumes in memory.

use std::sync::Arc;

use http_frontend::{Config, Limits, Services, Status};
use in_process::{SystemClock, SystemEntropy};
use serde_json::{Value, json};
use transactions::serializable::ModelVolumes;

use crate::{Fixture, body, code, document, engine::Engine, problem};

const DEMO: &str = "/v1/volumes/demo";

async fn serving() -> Fixture {
    serving_with(Arc::default()).await
}

async fn serving_with(services: Arc<Services>) -> Fixture {
    services.provide_volumes(
        Arc::<ModelVolumes>::default(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy::default()),
    );
    let config = Config {
        address: "127.0.0.1:0".parse().expect("a literal address"),
        token: None,
        keys: None,
        tls: None,
        limits: Limits::default(),
    };
    Fixture::with(config, Status::default(), services).await
}

/// With an empty volume `demo`.
async fn with_demo() -> Fixture {
    let server = serving().await;
    assert_eq!(code(&server.send("PUT", DEMO, "", "").await), 201);
    server
}

fn file(path: &str) -> String {
    format!("{DEMO}/files/{path}")
}

/// A header of an answer.
fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find_map(|(found, value)| (found == name).then_some(value))
}

/// The status, the name and POSIX's code of a refusal.
fn refusal(answer: &str) -> (u16, String, String) {
    let (status, name) = problem(answer);
    let code = document(answer)["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    (status, name, code)
}

fn names(listing: &Value) -> Vec<&str> {
    let entries = listing["entries"].as_array().expect("entries").iter();
    entries
        .map(|entry| entry["name"].as_str().expect("a name"))
        .collect()
}

impl Fixture {
    async fn put(&self, path: &str, content: &str) -> String {
        self.send("PUT", &file(path), "", content).await
    }

    async fn content(&self, path: &str) -> String {
        let answer = self.get(&file(path)).await;
        assert_eq!(code(&answer), 200, "{answer}");
        body(&answer).to_owned()
    }
}

#[tokio::test]
async fn volumes_are_made_listed_bounded_and_deleted() {
    let server = serving().await;
    let settings = r#"{"block_bytes": 4096, "quota_bytes": 1000000}"#;
    assert_eq!(code(&server.send("PUT", DEMO, "", settings).await), 201);
    let again = server.send("PUT", DEMO, "", "").await;
    assert_eq!(problem(&again), (409, "volume-exists".into()));
    assert_eq!(
        code(&server.send("PUT", "/v1/volumes/a.b", "", "").await),
        201
    );
    let listed = document(&server.get("/v1/volumes").await);
    let volumes = listed["volumes"].as_array().expect("volumes");
    assert_eq!([&volumes[0]["name"], &volumes[1]["name"]], ["a.b", "demo"]);
    assert_eq!(volumes[0]["block_bytes"], 16384);
    let quota = |bytes| format!(r#"{{"quota_bytes": {bytes}}}"#);
    let set = server.send("PATCH", DEMO, "", &quota("null")).await;
    assert_eq!(code(&set), 204, "{set}");
    let shown = document(&server.get(DEMO).await);
    assert_eq!(
        (&shown["block_bytes"], &shown["quota_bytes"]),
        (&json!(4096), &Value::Null)
    );
    assert!(
        shown["keys"].as_u64() > Some(3),
        "its root directory: {shown}"
    );
    assert_eq!(code(&server.send("DELETE", DEMO, "", "").await), 204);
    for (method, path, sent) in [
        ("GET", DEMO.to_owned(), ""),
        ("DELETE", DEMO.to_owned(), ""),
        ("PATCH", DEMO.to_owned(), r#"{"quota_bytes": 1}"#),
        ("GET", file("a"), ""),
        ("PUT", file("a"), "content"),
    ] {
        let answer = server.send(method, &path, "", sent).await;
        assert_eq!(
            problem(&answer),
            (404, "no-such-volume".into()),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn malformed_requests_for_volumes_are_refused() {
    let server = with_demo().await;
    for (method, path, sent) in [
        ("PUT", "/v1/volumes/UPPER", ""),
        ("PUT", "/v1/volumes/-x", ""),
        ("PUT", "/v1/volumes/b", r#"{"block_bytes": 5000}"#),
        ("PUT", "/v1/volumes/b", r#"{"blocks": 1}"#),
        ("PUT", "/v1/volumes/b?x", ""),
        ("PATCH", DEMO, "{}"),
        ("PATCH", DEMO, ""),
        ("POST", "/v1/volumes/demo/clones", "{}"),
        ("DELETE", DEMO, "body"),
    ] {
        let answer = server.send(method, path, "", sent).await;
        assert_eq!(
            problem(&answer),
            (400, "invalid-request".into()),
            "{method} {path} {sent}"
        );
    }
}

/// A snapshot is the volume as it was, for reading and for clones.
#[tokio::test]
async fn snapshots_keep_the_past_and_clones_start_from_it() {
    let server = with_demo().await;
    server.put("a", "old").await;
    let snapshot = format!("{DEMO}/snapshots/monday");
    assert_eq!(code(&server.send("PUT", &snapshot, "", "").await), 204);
    server.put("a", "new").await;
    server.put("b", "new").await;
    let listed = document(&server.get(&format!("{DEMO}/snapshots")).await);
    assert_eq!(listed["snapshots"][0]["name"], "monday");
    assert_eq!(server.content("a?snapshot=monday").await, "old");
    let listing = document(&server.get(&file("?list&snapshot=monday")).await);
    assert_eq!(names(&listing), ["a"]);
    let unknown = server.get(&file("a?snapshot=friday")).await;
    assert_eq!(problem(&unknown), (404, "no-such-snapshot".into()));
    let clones = format!("{DEMO}/clones");
    let clone = |form: &str| {
        let form = form.to_owned();
        let (server, clones) = (&server, &clones);
        async move { server.send("POST", clones, "", &form).await }
    };
    let cloned = clone(r#"{"to": "past", "snapshot": "monday"}"#).await;
    assert_eq!(code(&cloned), 201, "{cloned}");
    assert_eq!(code(&clone(r#"{"to": "present"}"#).await), 201);
    assert_eq!(
        problem(&clone(r#"{"to": "past"}"#).await).1,
        "volume-exists"
    );
    let unknown = clone(r#"{"to": "other", "snapshot": "friday"}"#).await;
    assert_eq!(problem(&unknown), (404, "no-such-snapshot".into()));
    for (volume, content) in [("past", "old"), ("present", "new")] {
        let answer = server.get(&format!("/v1/volumes/{volume}/files/a")).await;
        assert_eq!(body(&answer), content, "{volume}");
    }
    assert_eq!(code(&server.send("DELETE", &snapshot, "", "").await), 204);
    let listed = document(&server.get(&format!("{DEMO}/snapshots")).await);
    assert_eq!(listed["snapshots"], json!([]));
}

#[tokio::test]
async fn a_file_is_put_read_in_parts_and_removed() {
    let server = with_demo().await;
    let made = server.put("data.bin", "0123456789").await;
    assert_eq!(code(&made), 201, "{made}");
    let etag = header(&made, "etag").expect("an ETag").to_owned();
    let whole = server.get(&file("data.bin")).await;
    assert_eq!((code(&whole), body(&whole)), (200, "0123456789"));
    assert_eq!(header(&whole, "etag"), Some(&*etag));
    assert_eq!(header(&whole, "content-length"), Some("10"));
    assert!(
        header(&whole, "last-modified")
            .expect("a date")
            .ends_with(" GMT")
    );
    let head = server.send("HEAD", &file("data.bin"), "", "").await;
    assert_eq!(
        (header(&head, "content-length"), body(&head)),
        (Some("10"), "")
    );
    let part = |range: &str| {
        let headers = format!("Range: bytes={range}\r\n");
        let server = &server;
        async move { server.send("GET", &file("data.bin"), &headers, "").await }
    };
    let middle = part("2-4").await;
    assert_eq!((code(&middle), body(&middle)), (206, "234"));
    assert_eq!(header(&middle, "content-range"), Some("bytes 2-4/10"));
    assert_eq!(body(&part("-3").await), "789");
    assert_eq!(
        problem(&part("10-").await),
        (416, "range-not-satisfiable".into())
    );
}

#[tokio::test]
async fn a_part_of_a_file_is_written_in_place_and_the_rest_stays() {
    let server = with_demo().await;
    server.put("data.bin", "0123456789").await;
    for (method, query, content) in [
        ("PUT", "?offset=8", "abc"),
        ("POST", "?append", "def"),
        (
            "PATCH",
            "",
            r#"{"size": 13, "mode": 384, "mtime_ns": 1500000000000000001}"#,
        ),
    ] {
        let changed = server
            .send(method, &file(&format!("data.bin{query}")), "", content)
            .await;
        assert_eq!(code(&changed), 204, "{changed}");
    }
    assert_eq!(server.content("data.bin").await, "01234567abcde");
    let shown = document(&server.get(&file("data.bin?stat")).await);
    assert_eq!(shown["type"], "file");
    assert_eq!(
        (&shown["size"], &shown["mode"]),
        (&json!(13), &json!(0o600))
    );
    assert_eq!(shown["mtime_ns"], 1_500_000_000_000_000_001_i64);
    let replaced = server.put("data.bin", "new").await;
    assert_eq!(code(&replaced), 204);
    assert_eq!(server.content("data.bin").await, "new");
    assert_eq!(
        code(&server.send("DELETE", &file("data.bin"), "", "").await),
        204
    );
    let gone = refusal(&server.get(&file("data.bin")).await);
    assert_eq!(gone, (404, "no-such-file".into(), "ENOENT".into()));
}

/// One of two clients that read the same content writes it.
#[tokio::test]
async fn conditions_are_checked_in_the_transaction_of_the_change() {
    let server = with_demo().await;
    let with = |method: &'static str, headers: String, content: &'static str| {
        let server = &server;
        async move { server.send(method, &file("a"), &headers, content).await }
    };
    let absent = || "If-None-Match: *\r\n".to_owned();
    let matches = |etag: &str| format!("If-Match: {etag}\r\n");
    assert_eq!(code(&with("PUT", matches("*"), "x").await), 412);
    let made = with("PUT", absent(), "one").await;
    assert_eq!(code(&made), 201);
    assert_eq!(
        problem(&with("PUT", absent(), "two").await).1,
        "condition-not-met"
    );
    let etag = header(&made, "etag").expect("an ETag").to_owned();
    let unchanged = with("GET", format!("If-None-Match: {etag}\r\n"), "").await;
    assert_eq!((code(&unchanged), body(&unchanged)), (304, ""));
    assert_eq!(code(&with("PUT", matches(&etag), "three").await), 204);
    for (method, content) in [("PUT", "four"), ("DELETE", ""), ("GET", "")] {
        assert_eq!(
            code(&with(method, matches(&etag), content).await),
            412,
            "{method}"
        );
    }
    assert_eq!(server.content("a").await, "three");
    // The rest of another content is no rest.
    let rest = format!("Range: bytes=2-\r\nIf-Range: {etag}\r\n");
    let whole = with("GET", rest, "").await;
    assert_eq!((code(&whole), body(&whole)), (200, "three"));
    assert_eq!(code(&with("DELETE", matches("*"), "").await), 204);
}

#[tokio::test]
async fn directories_are_made_listed_in_pages_of_one_moment_and_renamed() {
    let server = with_demo().await;
    let post = |path: &str| {
        let (path, server) = (file(path), &server);
        async move { server.send("POST", &path, "", "").await }
    };
    assert_eq!(code(&post("logs?mkdir&mode=750").await), 201);
    let again = refusal(&post("logs?mkdir").await);
    assert_eq!(again, (409, "file-conflict".into(), "EEXIST".into()));
    assert_eq!(code(&post("logs?mkdir&parents").await), 204);
    for name in ["a", "b%20c", "%ff", "d"] {
        assert_eq!(code(&server.put(&format!("logs/{name}"), name).await), 201);
    }
    let first = document(&server.get(&file("logs?list&limit=2")).await);
    assert_eq!(names(&first), ["a", "b%20c"]);
    assert_eq!(first["entries"][0]["size"], 1);
    server.put("logs/c", "later").await;
    let next = first["next"].as_str().expect("more");
    let second = document(&server.get(&file(&format!("logs?list&page={next}"))).await);
    assert_eq!(
        (names(&second), &second["next"]),
        (vec!["d", "%FF"], &Value::Null)
    );
    assert_eq!(code(&post("logs/d?rename-to=/logs/%ff").await), 204);
    assert_eq!(server.content("logs/%ff").await, "d");
    let taken = refusal(&post("logs/a?rename-to=logs/c&noreplace").await);
    assert_eq!(taken.2, "EEXIST");
    assert_eq!(code(&server.put("x/y/z?parents", "deep").await), 201);
    assert_eq!(server.content("x/y/z").await, "deep");
    for (method, path, code) in [
        ("GET", "logs", "EISDIR"),
        ("PUT", "logs", "EISDIR"),
        ("PUT", "", "EISDIR"),
        ("GET", "logs/a/b", "ENOTDIR"),
        ("DELETE", "x/y", "ENOTEMPTY"),
        ("DELETE", "", "EBUSY"),
    ] {
        let answer = refusal(&server.send(method, &file(path), "", "").await);
        assert_eq!(
            answer,
            (409, "file-conflict".into(), code.into()),
            "{method} {path}"
        );
    }
    assert_eq!(refusal(&server.put("none/a", "").await).2, "ENOENT");
    assert_eq!(
        code(&server.send("DELETE", &file("x/y/z"), "", "").await),
        204
    );
    assert_eq!(
        code(&server.send("DELETE", &file("x/y"), "", "").await),
        204
    );
    let root = document(&server.get(&format!("{DEMO}/files?list")).await);
    assert_eq!(names(&root), ["logs", "x"]);
}

#[tokio::test]
async fn hostile_paths_and_parameters_are_refused() {
    let server = with_demo().await;
    let long = "n".repeat(256);
    for (method, path) in [
        ("GET", "../secret"),
        ("PUT", "a/%2e%2e/b"),
        ("PUT", "a%2Fb"),
        ("PUT", "a%00"),
        ("PUT", &*long),
        ("GET", "a%zz"),
        ("PUT", "a?offset=x"),
        ("PUT", "a?mode=888"),
        ("PUT", "a?mode=77777"),
        ("PUT", "a?append"),
        ("POST", "a"),
        ("POST", "a?append&mkdir"),
        ("POST", "a?rename-to=../b"),
        ("PATCH", "a"),
        ("GET", "?list&limit=0"),
        ("GET", "?list&page=x"),
        ("DELETE", "a?recursive"),
    ] {
        let answer = server.send(method, &file(path), "", "").await;
        assert_eq!(
            problem(&answer),
            (400, "invalid-request".into()),
            "{method} {path}"
        );
    }
    let beyond = refusal(&server.put("a?offset=9223372036854775807", "x").await);
    assert_eq!(beyond, (413, "too-large".into(), "EFBIG".into()));
}

/// A long file is sent piece by piece, and is that of one moment however it changes meanwhile.
#[tokio::test]
async fn a_long_file_streams_from_one_moment() {
    let server = with_demo().await;
    let content = (0..300_000)
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(",");
    assert_eq!(code(&server.put("long", &content).await), 201);
    let long = file("long");
    let (answer, replaced) = tokio::join!(server.get(&long), server.put("long", "short"));
    assert_eq!(code(&replaced), 204);
    let answer = body(&answer);
    assert!(answer == content || answer == "short", "{}", answer.len());
}

#[tokio::test]
async fn a_quota_is_refused_by_its_name_and_deletes_pass() {
    let server = serving().await;
    let settings = r#"{"quota_bytes": 100000}"#;
    assert_eq!(code(&server.send("PUT", DEMO, "", settings).await), 201);
    assert_eq!(code(&server.put("a", "small").await), 201);
    let large = "x".repeat(200_000);
    let refused = refusal(&server.put("b", &large).await);
    assert_eq!(refused, (507, "quota-exceeded".into(), "EDQUOT".into()));
    assert_eq!(refusal(&server.get(&file("b")).await).2, "ENOENT");
    assert_eq!(code(&server.send("DELETE", &file("a"), "", "").await), 204);
}

/// A transaction on a volume of `server`, and calls of it.
struct OnVolume<'a> {
    server: &'a Fixture,
    id: String,
    attempt: String,
}

impl OnVolume<'_> {
    async fn begin<'a>(server: &'a Fixture, id: &str) -> OnVolume<'a> {
        let form = json!({ "id": id, "volume": "demo" }).to_string();
        let begun = server.send("POST", "/v1/transactions", "", &form).await;
        assert_eq!(code(&begun), 201, "{begun}");
        let begun = document(&begun);
        OnVolume {
            server,
            id: begun["id"].as_str().expect("an id").to_owned(),
            attempt: begun["attempt"].as_str().expect("an attempt").to_owned(),
        }
    }

    async fn call(&self, method: &str, rest: &str, content: &str) -> String {
        let path = format!("/v1/transactions/{}{rest}", self.id.replace(' ', "%20"));
        let headers = format!("Landfast-Attempt: {}\r\n", self.attempt);
        self.server.send(method, &path, &headers, content).await
    }

    /// A request for a file that belongs to the transaction.
    async fn file(&self, method: &str, path: &str, content: &str) -> String {
        let id = self.id.replace(' ', "%20");
        let attempt = &self.attempt;
        let headers = format!("Landfast-Transaction: {id}\r\nLandfast-Attempt: {attempt}\r\n");
        self.server
            .send(method, &file(path), &headers, content)
            .await
    }

    async fn commit(&self) -> String {
        self.call("POST", "/commit", "").await
    }
}

/// A server with an engine for the default keyspace, and the volume `demo`.
async fn with_engine() -> (Fixture, Engine) {
    let (engine, services) = (Engine::open().await, Arc::<Services>::default());
    services.provide_transactions(transactions::Engine::clone(&engine));
    let server = serving_with(services).await;
    assert_eq!(code(&server.send("PUT", DEMO, "", "").await), 201);
    (server, engine)
}

/// T-3, T-4: a volume has one order of commits, and keys of its own.
#[tokio::test]
async fn of_two_transactions_on_a_volume_that_read_what_the_other_writes_one_commits() {
    let (server, _engine) = with_engine().await;
    let (a, b) = (
        OnVolume::begin(&server, "a").await,
        OnVolume::begin(&server, "b").await,
    );
    for (transaction, reads, writes) in [(&a, "x", "y"), (&b, "y", "x")] {
        let read = transaction.call("GET", &format!("/keys/{reads}"), "").await;
        assert_eq!(problem(&read), (404, "no-such-key".into()));
        let put = transaction
            .call("PUT", &format!("/keys/{writes}"), "1")
            .await;
        assert_eq!(code(&put), 204, "{put}");
    }
    assert_eq!(body(&a.call("GET", "/keys/y", "").await), "1");
    assert_eq!(code(&a.commit().await), 200);
    assert_eq!(
        code(&a.commit().await),
        200,
        "a repeat is answered as the first"
    );
    assert_eq!(problem(&b.commit().await), (409, "conflict".into()));
    assert_eq!(
        document(&a.call("GET", "", "").await)["status"],
        "committed"
    );
    let again = OnVolume::begin(&server, "b").await;
    assert_eq!(body(&again.call("GET", "/keys/y", "").await), "1");
    assert_eq!(problem(&again.call("GET", "/keys/x", "").await).0, 404);
    assert_eq!(code(&again.call("DELETE", "", "").await), 204);
    assert_eq!(
        problem(&again.commit().await),
        (409, "transaction-finished".into())
    );
    // The default keyspace has none of it.
    assert_eq!(problem(&server.get("/v1/state/y").await).1, "no-such-key");
}

/// T-5: an id takes effect once, however often its body runs, and the latest attempt of it counts.
#[tokio::test]
async fn an_id_on_a_volume_takes_effect_once() {
    let (server, _engine) = with_engine().await;
    let first = OnVolume::begin(&server, "pay").await;
    first.call("PUT", "/keys/paid", "first").await;
    let second = OnVolume::begin(&server, "pay").await;
    let late = first.call("PUT", "/keys/paid", "late").await;
    assert_eq!(document(&late)["outcome"], "begun-anew", "{late}");
    second.call("PUT", "/keys/paid", "second").await;
    assert_eq!(code(&second.commit().await), 200);
    let third = OnVolume::begin(&server, "pay").await;
    third.call("PUT", "/keys/paid", "third").await;
    assert_eq!(code(&third.commit().await), 200);
    let reader = OnVolume::begin(&server, "reader").await;
    assert_eq!(body(&reader.call("GET", "/keys/paid", "").await), "second");
}

#[tokio::test]
async fn what_a_transaction_on_a_volume_cannot_do_is_refused_by_name() {
    let (server, _engine) = with_engine().await;
    for (form, name) in [
        (r#"{"volume": "none"}"#, "no-such-volume"),
        (r#"{"volume": "UPPER"}"#, "invalid-request"),
        (
            r#"{"volume": "demo", "isolation": "read-atomic"}"#,
            "invalid-request",
        ),
    ] {
        let refused = server.send("POST", "/v1/transactions", "", form).await;
        assert_eq!(problem(&refused).1, name, "{form}");
    }
    let open = OnVolume::begin(&server, "t").await;
    let refused = open.call("POST", "/messages/queue", "x").await;
    assert_eq!(problem(&refused), (400, "invalid-request".into()));
    let long = open
        .call("PUT", &format!("/keys/{}", "k".repeat(481)), "x")
        .await;
    assert_eq!(refusal(&long).2, "ENAMETOOLONG");
    let large = open
        .call("PUT", "/keys/k", &"x".repeat((256 << 10) + 1))
        .await;
    assert_eq!(refusal(&large).2, "EFBIG");
    assert_eq!(code(&open.commit().await), 200);
    // An id of the server's own.
    let form = r#"{"volume": "demo", "isolation": "serializable"}"#;
    let begun = server.send("POST", "/v1/transactions", "", form).await;
    let id = document(&begun)["id"].as_str().expect("an id").to_owned();
    let put = server
        .send("PUT", &format!("/v1/transactions/{id}/keys/k"), "", "x")
        .await;
    assert_eq!(code(&put), 204, "{put}");
    let committed = server
        .send("POST", &format!("/v1/transactions/{id}/commit"), "", "")
        .await;
    assert_eq!(code(&committed), 200, "{committed}");
}

/// T-4: keys and files of one transaction take effect at one moment.
#[tokio::test]
async fn files_change_with_the_keys_of_their_transaction_or_not_at_all() {
    let (server, _engine) = with_engine().await;
    server.put("journal", "begun\n").await;
    let open = OnVolume::begin(&server, "pay 1").await;
    open.call("PUT", "/keys/balance", "70").await;
    let appended = open.file("POST", "journal?append", "paid\n").await;
    assert_eq!(code(&appended), 204, "{appended}");
    assert_eq!(code(&open.file("PUT", "a/b?parents", "x").await), 201);
    assert_eq!(
        body(&open.file("GET", "journal", "").await),
        "begun\npaid\n"
    );
    let listed = document(&open.file("GET", "?list", "").await);
    assert_eq!(names(&listed), ["a", "journal"]);
    assert_eq!(document(&open.file("GET", "a/b?stat", "").await)["size"], 1);
    assert_eq!(server.content("journal").await, "begun\n");
    assert_eq!(refusal(&server.get(&file("a/b")).await).2, "ENOENT");
    assert_eq!(code(&open.commit().await), 200);
    assert_eq!(server.content("journal").await, "begun\npaid\n");
    assert_eq!(server.content("a/b").await, "x");
    // A file that it has read is changed by another request.
    let doomed = OnVolume::begin(&server, "pay 2").await;
    assert_eq!(body(&doomed.file("GET", "a/b", "").await), "x");
    doomed.call("PUT", "/keys/balance", "40").await;
    server.put("a/b", "y").await;
    assert_eq!(problem(&doomed.commit().await), (409, "conflict".into()));
    let reader = OnVolume::begin(&server, "reader").await;
    assert_eq!(body(&reader.call("GET", "/keys/balance", "").await), "70");
}

#[tokio::test]
async fn a_request_for_a_file_names_an_open_transaction_on_its_volume() {
    let (server, _engine) = with_engine().await;
    let made = server.send("PUT", "/v1/volumes/other", "", "").await;
    assert_eq!(code(&made), 201);
    let open = OnVolume::begin(&server, "t").await;
    let headers = "Landfast-Transaction: t\r\n";
    let elsewhere = server
        .send("PUT", "/v1/volumes/other/files/a", headers, "x")
        .await;
    assert_eq!(problem(&elsewhere), (400, "invalid-request".into()));
    let unknown = server
        .send("PUT", &file("a"), "Landfast-Transaction: none\r\n", "x")
        .await;
    assert_eq!(problem(&unknown), (404, "no-such-transaction".into()));
    let snapshot = open.file("GET", "?list&snapshot=s", "").await;
    assert_eq!(problem(&snapshot), (400, "invalid-request".into()));
    server.put("long", &"x".repeat((4 << 20) + 1)).await;
    assert_eq!(
        problem(&open.file("GET", "long", "").await).0,
        404,
        "it began before"
    );
    let later = OnVolume::begin(&server, "later").await;
    assert_eq!(
        problem(&later.file("GET", "long", "").await),
        (413, "too-large".into())
    );
    let headers = "Landfast-Transaction: later\r\nRange: bytes=1-\r\n";
    let part = server.send("GET", &file("long"), headers, "").await;
    assert_eq!((code(&part), body(&part).len()), (206, 4 << 20));
    assert_eq!(
        header(&part, "content-range"),
        Some("bytes 1-4194304/4194305")
    );
    assert_eq!(code(&later.call("DELETE", "", "").await), 204);
    let ended = later.file("PUT", "a", "x").await;
    assert_eq!(problem(&ended), (409, "transaction-finished".into()));
}

#[tokio::test]
async fn a_volume_is_checked_while_it_is_used() {
    let server = with_demo().await;
    server.put("a/b?parents", "content").await;
    let check = format!("{DEMO}/check");
    for query in ["", "?repair", "?metadata"] {
        let answer = server
            .send("POST", &format!("{check}{query}"), "", "")
            .await;
        assert_eq!(code(&answer), 200, "{answer}");
        let report = document(&answer);
        assert_eq!(
            (&report["findings"], &report["counts"]["entries"]),
            (&json!([]), &json!(2))
        );
        let bytes = if query == "?metadata" { 0 } else { 7 };
        assert_eq!(report["counts"]["bytes"], bytes, "{query}");
    }
    let unknown = server
        .send("POST", &format!("{check}?blocks"), "", "")
        .await;
    assert_eq!(problem(&unknown).0, 400);
    let missing = server.send("POST", "/v1/volumes/none/check", "", "").await;
    assert_eq!(problem(&missing).1, "no-such-volume");
}
