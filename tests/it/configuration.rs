//! Flags over environment over file over defaults, and refused settings.

use std::{fs, process::Command};

use crate::process::{Server, landfast, run, serve, text};

#[test]
fn flags_hide_the_environment_which_hides_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = "data_dir = \"from-file\"\nzookeeper = \"127.0.0.1:0\"\nhttp = \"file is not an address\"\n";
    let wrong = directory.path().join("wrong.toml");
    fs::write(&wrong, file).expect("a file");
    fs::write(
        directory.path().join("landfast.toml"),
        file.replace("file is not an address", "127.0.0.1:0"),
    )
    .expect("a file");
    let path = wrong.to_str().expect("text");

    let output = run(&mut landfast(
        directory.path(),
        &["serve", "--config", path],
    ));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("wrong.toml"),
        "{}",
        text(&output.stderr)
    );

    drop(Server::start(&mut landfast(directory.path(), &["serve"])));
    assert!(
        directory.path().join("from-file").is_dir(),
        "the file is read without being named"
    );

    drop(Server::start(
        landfast(directory.path(), &["serve"]).env("LANDFAST_DATA_DIR", "from-environment"),
    ));
    assert!(directory.path().join("from-environment").is_dir());

    let mut command = landfast(
        directory.path(),
        &["serve", "--data-dir", "from-flag", "--zookeeper", "off"],
    );
    let server = Server::start(
        command
            .env("LANDFAST_DATA_DIR", "never")
            .env("LANDFAST_ZOOKEEPER", "nonsense:0"),
    );
    assert!(directory.path().join("from-flag").is_dir());
    assert!(!directory.path().join("never").exists());
    assert!(
        !server.ready_line.contains("zookeeper"),
        "{}",
        server.ready_line
    );
}

#[test]
fn the_default_directory_is_created_where_it_is_started() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(Server::start(&mut serve(directory.path(), &[])));
    assert!(directory.path().join("landfast-data").is_dir());
}

#[test]
fn what_this_build_lacks_is_refused_before_anything_is_touched() {
    let directory = tempfile::tempdir().expect("a directory");
    for (arguments, complaint) in [
        (
            ["--provider", "postgres"],
            "provider \"postgres\" is not in this build",
        ),
        (["--provider", "redis"], "--store redis://HOST:PORT"),
        (["--tls-cert", "cert.pem"], "--tls-cert: give its key too"),
        (
            ["--objects", "gs://bucket"],
            "--objects gs: not in this build, which takes file:///DIR and s3://BUCKET",
        ),
        (
            ["--http", "0.0.0.0:0"],
            "TLS and authentication are required",
        ),
        (["--routes", "0.0.0.0:0"], "--insecure"),
        (["--config", "absent.toml"], "--config absent.toml"),
    ] {
        let output = run(&mut serve(directory.path(), &arguments));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            text(&output.stderr).contains(complaint),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
    assert_eq!(
        fs::read_dir(directory.path()).expect("a directory").count(),
        0
    );
}

/// The bound is the store's, so that no accepted packet is too large to store.
#[test]
fn packets_longer_than_the_store_keeps_are_refused_at_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let most = (4 << 20) - 16 * 1024;
    let output = run(&mut serve(
        directory.path(),
        &[
            "--http",
            "127.0.0.1:0",
            "--zookeeper-packet-bytes-max",
            &(most + 1).to_string(),
        ],
    ));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("--zookeeper-packet-bytes-max")
            && said.contains(&format!("up to {most} bytes")),
        "{said}"
    );
    let file = format!("zookeeper_packet_bytes_max = {most}\n");
    fs::write(directory.path().join("landfast.toml"), file).expect("a file");
    drop(Server::start(&mut serve(directory.path(), &[])));
}

#[test]
fn what_is_in_the_way_of_a_directory_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("taken"), "").expect("a file");
    std::os::unix::fs::symlink("nowhere", directory.path().join("dangling")).expect("a link");
    let objects = format!("file://{}/taken", directory.path().display());
    let in_the_way = "is there and is not a directory: choose another place, or move it away\n";
    for (arguments, path) in [
        (["--data-dir", "taken"], "taken".to_owned()),
        (["--data-dir", "taken/below"], "taken".to_owned()),
        (["--data-dir", "dangling"], "dangling".to_owned()),
        (["--objects", &objects], objects.replace("file://", "")),
    ] {
        let [flag, place] = arguments;
        let complaint = format!("landfast: {flag} {place}: {path} {in_the_way}");
        assert_eq!(refused(&mut serve(directory.path(), &arguments)), complaint);
    }
}

#[test]
fn an_error_says_its_cause_once_and_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let complaint = refused(&mut serve(
        directory.path(),
        &["--data-dir", "/proc/landfast"],
    ));
    assert!(
        complaint.contains("choose another place, or give this user the right to write there"),
        "{complaint}"
    );
    assert_eq!(complaint.matches("os error").count(), 1, "{complaint}");

    let complaint = refused(serve(directory.path(), &[]).env("LANDFAST_LOG", "nonsense=loud"));
    assert!(
        complaint.contains("LANDFAST_LOG=nonsense=loud: give levels, as in `debug`"),
        "{complaint}"
    );
    assert_eq!(
        complaint.matches("error parsing level").count(),
        1,
        "{complaint}"
    );
}

#[test]
fn a_value_of_the_environment_is_said_to_be_from_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let tip = "the value is from LANDFAST_THREADS in the environment";
    let complaint = refused(landfast(directory.path(), &["serve"]).env("LANDFAST_THREADS", "abc"));
    assert!(
        complaint.contains("'abc' for '--threads <COUNT>'") && complaint.contains(tip),
        "{complaint}"
    );
    for arguments in [
        &["serve", "--threads=abd"][..],
        &["doctor", "--threads", "abd"],
    ] {
        let complaint =
            refused(landfast(directory.path(), arguments).env("LANDFAST_THREADS", "abc"));
        assert!(
            complaint.contains("'abd'") && !complaint.contains("LANDFAST_THREADS"),
            "{complaint}"
        );
    }
}

/// The message of a command that cannot begin.
fn refused(command: &mut Command) -> String {
    let output = run(command);
    assert!(!output.status.success(), "{command:?}");
    assert_eq!(text(&output.stdout), "", "{command:?}");
    text(&output.stderr)
}

/// The server retries an unreachable store for a while, several times a second; the log reports it
/// a few times.
#[test]
fn a_store_that_cannot_be_reached_is_named_a_few_times() {
    let directory = tempfile::tempdir().expect("a directory");
    // No process listens on the first port, and only root can.
    let output = run(&mut serve(
        directory.path(),
        &[
            "--provider",
            "redis",
            "--store",
            "redis://127.0.0.1:1",
            "--s3",
            "off",
        ],
    ));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!((2..=5).contains(&said.lines().count()), "{said}");
    assert!(
        said.lines().all(|line| line.contains("127.0.0.1:1")),
        "{said}"
    );
}
