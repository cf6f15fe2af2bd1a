//! Events that one function passes to the next, in a circle: a server with such a circle is
//! reachable, ends it, and stops in time.
//!
//! No server deploys such a circle any more. The test writes it into the store, as earlier builds
//! would have allowed.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use embedded::Embedded;
use ports::{Key, Update, key_value::Action};

use crate::process::{Server, landfast, run, serve, text};

/// Far more than a few attempts of each event take.
const END_MAX: Duration = Duration::from_mins(10);
/// Enough for some to be in flight at any time.
const EVENTS: usize = 20;
/// Where deployments are stored.
const APPLICATIONS: &str = "landfast.applications";

/// Two functions that fail at once. The second receives the first one's failures; the last line
/// makes it a circle.
const MANIFEST: &str = r#"
name = "shop"
[functions.first]
runtime = "executable"
code = "code"
handler = "fails"
retries = 0
on_failure = "second"
[functions.second]
runtime = "executable"
code = "code"
handler = "fails"
retries = 0
#on_failure = "first"
"#;

fn client(directory: &Path, server: &Server, arguments: &[&str]) {
    let mut command = landfast(directory, arguments);
    let answered = run(command.env("LANDFAST_URL", format!("http://{}", server.address("http"))));
    assert!(
        answered.status.success(),
        "{arguments:?}: {}",
        text(&answered.stderr)
    );
}

fn stop(server: Server) {
    server.signal("TERM");
    let ended = server.ended();
    assert!(
        ended.status.success() && !ended.stderr.contains("stopping takes longer"),
        "{ended:?}"
    );
}

/// Makes the deployment a circle, by replacing one of its lines.
fn close_the_circle(directory: &Path, (line, instead): (&str, &str)) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = Embedded::open(embedded::Config::new(directory.join("landfast-data"))).await;
        let store = store.expect("the store opens");
        let (items, row) = (store.key_value(), Key::new(APPLICATIONS, "shop"));
        let read = items
            .get(&row)
            .await
            .expect("it is read")
            .value
            .expect("it is deployed");
        let manifest = read.bytes("manifest").expect("it has one").to_vec();
        let manifest = text(&manifest).replace(line, instead);
        let update = Update::modify(row, vec![Action::set("manifest", manifest)]);
        let updated = items.update(update).await.expect("it is written");
        items
            .externalize(updated.receipt.point)
            .await
            .expect("it is durable");
        store.close().await;
    });
}

/// A server with such a circle, in which events go round.
fn with_events_in_a_circle(directory: &Path, closing: (&str, &str)) -> Server {
    fs::create_dir(directory.join("code")).expect("a folder");
    let code = directory.join("code/fails");
    fs::write(&code, "#!/bin/sh\nexit 1\n").expect("written");
    fs::set_permissions(&code, fs::Permissions::from_mode(0o755)).expect("executable");
    fs::write(directory.join("app.toml"), MANIFEST).expect("written");
    let server = Server::start(&mut serve(directory, &[]));
    client(directory, &server, &["functions", "deploy", "app.toml"]);
    stop(server);
    close_the_circle(directory, closing);
    let server = Server::start(&mut serve(directory, &[]));
    for _ in 0..EVENTS {
        client(
            directory,
            &server,
            &["functions", "invoke", "first", "--event"],
        );
    }
    server
}

/// A3.
#[test]
fn an_event_that_goes_round_in_a_circle_ends_as_a_dead_letter() {
    let directory = tempfile::tempdir().expect("a directory");
    let closing = ("#on_failure", "on_failure");
    let server = with_events_in_a_circle(directory.path(), closing);
    let all = format!(r#""dead_letters":{EVENTS}}}"#);
    let until = Instant::now() + END_MAX;
    loop {
        let status = server.get("/v1/status").expect("a status");
        if status.contains(&all) {
            break;
        }
        assert!(Instant::now() < until, "they still turn: {status}");
        thread::yield_now();
    }
    stop(server);
}

/// A8: a removed function is not retried any more, so it keeps the server from nothing else.
#[test]
fn a_server_stops_in_time_whatever_turns_in_its_queues() {
    let directory = tempfile::tempdir().expect("a directory");
    let closing = (r#"on_failure = "second""#, r#"on_failure = "first""#);
    let server = with_events_in_a_circle(directory.path(), closing);
    client(directory.path(), &server, &["functions", "remove", "shop"]);
    server.get("/v1/status").expect("it is reached");
    stop(server);
}
