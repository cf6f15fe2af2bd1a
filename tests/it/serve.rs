//! The promises of `landfast serve` to scripts: the `ready` line, ports, signals, the directory's
//! lock.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Stdio,
};

use crate::process::{Server, run, serve, text};

#[test]
fn the_ready_line_names_every_listener_and_each_accepts() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(directory.path(), &[]));
    let (zookeeper, http) = (server.address("zookeeper"), server.address("http"));
    let (s3, routes) = (server.address("s3"), server.address("routes"));
    assert_eq!(
        server.ready_line,
        format!("ready zookeeper={zookeeper} s3={s3} http={http} routes={routes}")
    );
    for address in [zookeeper, s3, http, routes] {
        assert_ne!(address.port(), 0);
        TcpStream::connect(address).expect("it accepts");
    }
}

#[test]
fn a_listener_that_is_off_is_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(
        directory.path(),
        &["--zookeeper", "off", "--s3", "off", "--routes", "off"],
    ));
    assert_eq!(
        server.ready_line,
        format!("ready http={}", server.address("http"))
    );
    drop(server);
    let server = Server::start(&mut serve(directory.path(), &["--http", "off"]));
    assert_eq!(
        server.ready_line,
        format!(
            "ready zookeeper={} s3={} routes={}",
            server.address("zookeeper"),
            server.address("s3"),
            server.address("routes")
        )
    );
}

#[test]
fn a_busy_port_names_its_flag_and_ends_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    for flag in ["--zookeeper", "--s3", "--http", "--routes"] {
        let output = run(&mut serve(directory.path(), &[flag, &address]));
        assert_eq!(output.status.code(), Some(1), "{flag}");
        assert_eq!(text(&output.stdout), "", "{flag}");
        let complaint = format!("{flag} {address}: it cannot listen there; give another address");
        assert!(
            text(&output.stderr).contains(&complaint),
            "{}",
            text(&output.stderr)
        );
    }
}

/// A child of a killed server may have a copy of its listeners for a moment.
#[test]
fn a_start_waits_for_an_address_that_becomes_free_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    for flag in ["--zookeeper", "--http"] {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = taken.local_addr().expect("an address").to_string();
        let mut command = serve(directory.path(), &[flag, &address]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let waits = format!("{flag} {address}: it is in use");
        let is_waiting = log.any(|line| line.expect("a line").contains(&waits));
        assert!(is_waiting, "it gave up at once");
        drop(taken);
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut ready).expect("a line");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(ready.contains(&address), "{ready}");
    }
}

#[test]
fn sigterm_and_interrupt_stop_it_with_connections_open() {
    let directory = tempfile::tempdir().expect("a directory");
    for signal in ["TERM", "INT"] {
        let server = Server::start(&mut serve(directory.path(), &[]));
        let mut half = TcpStream::connect(server.address("http")).expect("it accepts");
        half.write_all(b"GET / HTTP/1.1\r\nHost: loc")
            .expect("half a request");
        let silent = TcpStream::connect(server.address("zookeeper")).expect("it accepts");
        server.signal(signal);
        let ended = server.ended();
        assert!(ended.status.success(), "{signal}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
        for mut stream in [half, silent] {
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = Server::start(&mut serve(directory.path(), &[]));
    let output = run(&mut serve(directory.path(), &[]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("landfast-data") && complaint.contains("process"),
        "{complaint}"
    );
    assert!(first.get("/health/ready").is_ok());
    drop(first);
    Server::start(&mut serve(directory.path(), &[]));
}

#[test]
fn health_status_and_metrics_agree_with_the_ready_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(directory.path(), &[]));
    assert_eq!(
        server.get("/health/live").expect("live"),
        r#"{"status":"live"}"#
    );
    assert_eq!(
        server.get("/health/ready").expect("ready"),
        r#"{"status":"ready"}"#
    );
    let metrics = server.get("/metrics").expect("metrics");
    assert!(metrics.contains("\nlandfast_ready 1\n"), "{metrics}");
    assert!(
        metrics.contains("\nlandfast_coordination_sessions 0\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\nlandfast_transactions_open 0\n"),
        "{metrics}"
    );
    let status: serde_json::Value =
        serde_json::from_str(&server.get("/v1/status").expect("status")).expect("JSON");
    assert_eq!(status["phase"], "ready");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    for front_end in ["zookeeper", "http", "routes"] {
        assert_eq!(
            status["listeners"][front_end],
            server.address(front_end).to_string()
        );
    }
}

#[test]
fn logs_go_to_stderr_and_hold_no_secret() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = serve(directory.path(), &[]);
    let server = Server::start(
        command
            .env("LANDFAST_LOG", "trace")
            .env("LANDFAST_S3_ACCESS_KEY", "access")
            .env("LANDFAST_S3_SECRET_KEY", "open sesame too")
            .env("LANDFAST_TOKEN", "open-sesame"),
    );
    server
        .get("/v1/status")
        .expect("on loopback no token is needed");
    server.signal("TERM");
    let ended = server.ended();
    assert!(!ended.stderr.contains("sesame"), "{ended:?}");
}
