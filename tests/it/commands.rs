//! `status`, `doctor` and `completions`.

use std::{
    fs, io,
    net::TcpListener,
    process::{Command, Stdio},
};

use crate::process::{Server, landfast, run, serve, text};

#[test]
fn status_shows_a_running_server_and_its_json_is_the_servers() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(directory.path(), &[]));
    let url = format!("http://{}", server.address("http"));
    let output = run(&mut landfast(directory.path(), &["status", "--url", &url]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let first = format!("landfast {} ready, up ", env!("CARGO_PKG_VERSION"));
    assert!(shown.starts_with(&first), "{shown}");
    assert!(
        shown.contains(&server.address("zookeeper").to_string()),
        "{shown}"
    );
    assert!(
        shown.contains("transactions  0 open, 0 committed, 0 aborted, 0 expired"),
        "{shown}"
    );
    assert!(
        shown.contains("sessions      0 on 0 connections, 0 watches"),
        "{shown}"
    );

    let output = run(landfast(directory.path(), &["status", "--json"]).env("LANDFAST_URL", &url));
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(status["provider"], "embedded");
}

#[test]
fn status_without_a_server_says_what_to_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let free = TcpListener::bind("127.0.0.1:0")
        .expect("a free port")
        .local_addr()
        .expect("an address");
    let url = format!("http://{free}");
    let output = run(&mut landfast(directory.path(), &["status", "--url", &url]));
    assert_eq!(output.status.code(), Some(1));
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains(&url) && complaint.contains("landfast serve"),
        "{complaint}"
    );
}

#[test]
fn status_says_what_is_wrong_with_the_address() {
    let directory = tempfile::tempdir().expect("a directory");
    let says = |url: &str| {
        let output = run(&mut landfast(directory.path(), &["status", "--url", url]));
        assert_eq!(output.status.code(), Some(1), "{url}");
        text(&output.stderr)
    };
    for url in [
        "127.0.0.1:7600",
        "",
        "ftp://x",
        "nonsense",
        "http://",
        "http://127.0.0.1:7600/nope",
    ] {
        let complaint = format!(
            "--url (LANDFAST_URL) {url:?}: give http://HOST:PORT or https://HOST:PORT and nothing after it\n"
        );
        assert_eq!(says(url), format!("landfast: {complaint}"));
    }
    let server = Server::start(&mut serve(directory.path(), &[]));
    let url = format!("http://{}", server.address("zookeeper"));
    let complaint = says(&url);
    assert!(
        complaint.contains(&url) && complaint.contains("give the address after `http=`"),
        "{complaint}"
    );
    let output = run(&mut landfast(
        directory.path(),
        &[
            "status",
            "--url",
            &format!("http://{}/", server.address("http")),
        ],
    ));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn doctor_says_as_a_start_would_that_the_data_directory_is_none() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("taken"), "").expect("a file");
    for place in ["taken", "taken/below"] {
        let arguments = [
            "doctor",
            "--zookeeper",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--data-dir",
            place,
        ];
        let output = run(&mut landfast(directory.path(), &arguments));
        assert_eq!(output.status.code(), Some(1));
        let shown = text(&output.stdout);
        assert!(
            shown.contains("fail  data directory  taken is there and is not a directory\n"),
            "{shown}"
        );
        assert!(shown.contains("choose another --data-dir"), "{shown}");
        assert!(!shown.contains("permissions"), "{shown}");
    }
}

/// The reader may have gone (`landfast doctor | head -1`), or the disk may be full.
#[test]
fn who_cannot_be_told_learns_it_from_the_exit_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let full = || fs::File::create("/dev/full").expect("it is there");
    let unread = || io::pipe().expect("a pipe").1;
    let ends = |arguments: &[&str], stdout: Stdio, stderr: Stdio| {
        let mut command = landfast(directory.path(), arguments);
        command
            .stdout(stdout)
            .stderr(stderr)
            .status()
            .expect("the binary starts")
            .code()
    };
    let refused = ["status", "--url", "http://127.0.0.1:1"];
    assert_eq!(ends(&refused, Stdio::null(), full().into()), Some(1));
    assert_eq!(ends(&refused, Stdio::null(), unread().into()), Some(1));
    assert_eq!(
        ends(&["completions", "bash"], unread().into(), full().into()),
        Some(0)
    );
    assert_eq!(
        ends(&["completions", "bash"], full().into(), full().into()),
        Some(1)
    );
    assert_eq!(ends(&["--help"], unread().into(), full().into()), Some(0));
}

#[test]
fn stdout_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let full = || fs::File::create("/dev/full").expect("it is there");
    let said = |mut command: Command| {
        let output = command
            .stdout(full())
            .stderr(Stdio::piped())
            .output()
            .expect("the binary starts");
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let complaint = said(landfast(directory.path(), &["completions", "bash"]));
    assert!(
        complaint.starts_with("landfast: stdout cannot be written; send it somewhere else: "),
        "{complaint}"
    );
    let complaint = said(serve(directory.path(), &[]));
    let (_, complaint) = complaint
        .split_once("landfast: the ready line, ")
        .expect("it is named");
    assert!(
        complaint.contains("stdout cannot be written"),
        "{complaint}"
    );
}

#[test]
fn doctor_finds_a_fresh_place_fit_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = [
        "doctor",
        "--zookeeper",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--json",
    ];
    let output = run(&mut landfast(directory.path(), &arguments));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("checks");
    let names: Vec<&str> = checks
        .iter()
        .filter_map(|check| check["check"].as_str())
        .collect();
    for name in [
        "data directory",
        "lock",
        "format",
        "free space",
        "port zookeeper",
        "fsync",
        "open files",
        "clock",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert_ne!(report["verdict"], "fail", "{report:#}");
    assert!(output.status.success());
    assert_eq!(
        std::fs::read_dir(directory.path())
            .expect("a directory")
            .count(),
        0
    );
}

#[test]
fn doctor_tells_a_data_directory_that_a_start_would_refuse() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("landfast-data");
    let arguments = [
        "doctor",
        "--zookeeper",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--json",
    ];
    let format = || {
        let output = run(&mut landfast(directory.path(), &arguments));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut checks = report["checks"].as_array().expect("checks").iter();
        let found = checks
            .find(|check| check["check"] == "format")
            .expect("it is looked at")
            .clone();
        (
            found["verdict"].clone(),
            text(found["found"].as_str().expect("a text").as_bytes()),
        )
    };
    drop(Server::start(&mut serve(directory.path(), &[])));
    assert_eq!(
        format(),
        ("ok".into(), "3, which this release reads".to_owned())
    );
    let record = data.join("format");
    let text = std::fs::read_to_string(&record).expect("it reads");
    let older = "landfast embedded\nformat 1\nreadable by 0.0.1\nsalt 00000000\n".to_owned();
    for (written, complaint) in [
        (older, "has format 1"),
        (text.replace("format 3", "format 4"), "is damaged"),
    ] {
        std::fs::write(&record, written).expect("it is written");
        let (verdict, found) = format();
        assert!(
            verdict == "fail" && found.contains(complaint),
            "{verdict} {found}"
        );
    }
    std::fs::remove_file(&record).expect("it goes");
    let (verdict, found) = format();
    assert!(
        verdict == "fail" && found.contains("landfast-data/format is missing"),
        "{verdict} {found}"
    );
}

#[test]
fn doctor_verifies_the_stored_bytes_where_it_is_asked_to_and_the_server_has_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = [
        "doctor",
        "--zookeeper",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--json",
        "--verify",
    ];
    let stored = || {
        let output = run(&mut landfast(directory.path(), &arguments));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut checks = report["checks"].as_array().expect("checks").iter();
        let found = checks
            .find(|check| check["check"] == "stored bytes")
            .expect("it is looked at")
            .clone();
        (
            found["verdict"].clone(),
            text(found["found"].as_str().expect("a text").as_bytes()),
        )
    };
    let server = Server::start(&mut serve(directory.path(), &[]));
    let (verdict, found) = stored();
    assert!(
        verdict == "warn" && found.contains("in use by process"),
        "{verdict} {found}"
    );
    server.signal("TERM");
    server.ended();
    let (verdict, found) = stored();
    assert!(
        verdict == "ok" && found.contains("records, each read back"),
        "{verdict} {found}"
    );
    let file = directory.path().join("landfast-data/state.redb");
    let mut bytes = std::fs::read(&file).expect("it reads");
    // Both copies of its head.
    for copy in [100, 8192 + 100] {
        bytes[copy] ^= 4;
    }
    std::fs::write(&file, bytes).expect("it is written");
    let (verdict, found) = stored();
    assert!(
        verdict == "fail" && found.contains("state.redb is damaged at byte 0"),
        "{verdict} {found}"
    );
}

#[test]
fn doctor_names_the_flag_of_a_busy_port_and_fails() {
    let directory = tempfile::tempdir().expect("a directory");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let arguments = ["doctor", "--zookeeper", &address, "--http", "off"];
    let output = run(&mut landfast(directory.path(), &arguments));
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(
        shown.contains(&format!("fail  port zookeeper  {address}")),
        "{shown}"
    );
    assert!(
        shown.contains("choose another address with --zookeeper"),
        "{shown}"
    );
}

#[test]
fn doctor_knows_the_running_servers_directory_and_ports() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(directory.path(), &[]));
    let (zookeeper, http) = (
        server.address("zookeeper").to_string(),
        server.address("http").to_string(),
    );
    // The command's own arguments say where the server answers.
    let arguments = ["doctor", "--zookeeper", &zookeeper, "--http", &http];
    let output = run(&mut landfast(directory.path(), &arguments));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("ok    lock            held by a running server"),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("{zookeeper} is the running server's")),
        "{shown}"
    );
    assert!(output.status.success(), "{shown}");
}

#[test]
fn completions_and_help_name_every_command() {
    let directory = tempfile::tempdir().expect("a directory");
    for arguments in [&["completions", "bash"][..], &["--help"]] {
        let output = run(&mut landfast(directory.path(), arguments));
        assert!(output.status.success());
        for command in ["serve", "status", "cost", "doctor", "completions"] {
            assert!(
                text(&output.stdout).contains(command),
                "{arguments:?}: {command}"
            );
        }
    }
}
