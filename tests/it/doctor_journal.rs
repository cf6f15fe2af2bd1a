//! `doctor` on a journal: it reports the same as a start would.

use std::{fs, path::Path};

use crate::process::{Server, landfast, run, serve, text};

const FIRST_SEGMENT: &str = "00000001.log";
/// An offset after the head, in the first record.
const IN_THE_FIRST_RECORD: usize = 80;

/// Its output, and whether it passes.
fn doctor(directory: &Path) -> (String, String, bool) {
    let arguments = [
        "doctor",
        "--zookeeper",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--json",
    ];
    let output = run(&mut landfast(directory, &arguments));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut checks = report["checks"].as_array().expect("checks").iter();
    let found = checks
        .find(|check| check["check"] == "journal")
        .expect("it is looked at");
    let said = |name: &str| found[name].as_str().expect("a text").to_owned();
    (said("verdict"), said("found"), output.status.success())
}

fn flip(journal: &Path, at: usize) {
    let file = journal.join(FIRST_SEGMENT);
    let mut bytes = fs::read(&file).expect("it reads");
    bytes[at] ^= 4;
    fs::write(&file, bytes).expect("it is written");
}

/// A directory whose server was killed.
fn killed() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    drop(Server::start(&mut serve(directory.path(), &[])));
    directory
}

#[test]
fn what_a_start_refuses_fails_by_its_name() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 5] = [
        ("is damaged at byte 0", |journal| flip(journal, 4)),
        ("is damaged at byte 64", |journal| {
            flip(journal, IN_THE_FIRST_RECORD);
        }),
        ("is damaged at byte 0", |journal| {
            fs::write(journal.join(FIRST_SEGMENT), "").expect("it is written");
        }),
        ("00000001.log is missing", |journal| {
            fs::remove_dir_all(journal).expect("it goes");
        }),
        ("", |journal| {
            fs::remove_dir_all(journal).expect("it goes");
            fs::write(journal, "").expect("it is written");
        }),
    ];
    for (number, (named, damage)) in damages.into_iter().enumerate() {
        let directory = killed();
        let (verdict, found, _) = doctor(directory.path());
        assert!(
            verdict == "ok" && found.ends_with("records, each whole"),
            "{verdict} {found}"
        );
        damage(&directory.path().join("landfast-data/journal"));
        let (verdict, found, passes) = doctor(directory.path());
        assert!(
            verdict == "fail" && found.contains(named) && !passes,
            "{number}: {verdict} {found}"
        );
        let refused = run(&mut serve(directory.path(), &[]));
        assert!(
            !refused.status.success(),
            "{number}: {}",
            text(&refused.stderr)
        );
    }
}

#[test]
fn a_torn_tail_is_told_and_stays_as_it_is() {
    let directory = killed();
    let file = directory
        .path()
        .join("landfast-data/journal")
        .join(FIRST_SEGMENT);
    let mut bytes = fs::read(&file).expect("it reads");
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("it has records");
    bytes[end + 40] = 1;
    fs::write(&file, &bytes).expect("it is written");
    for _ in 0..2 {
        let (verdict, found, passes) = doctor(directory.path());
        assert!(
            verdict == "warn" && found.contains("torn bytes behind them") && passes,
            "{verdict} {found}"
        );
        assert!(
            fs::read(&file).expect("it reads") == bytes,
            "looking changes nothing"
        );
    }
    drop(Server::start(&mut serve(directory.path(), &[])));
    let (verdict, found, _) = doctor(directory.path());
    assert_eq!(verdict, "ok", "{found}");
}

#[test]
fn a_journal_that_has_become_shorter_is_told_once() {
    let directory = killed();
    let file = directory
        .path()
        .join("landfast-data/journal")
        .join(FIRST_SEGMENT);
    let bytes = fs::read(&file).expect("it reads");
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("it has records")
        .next_multiple_of(8);
    fs::write(&file, &bytes[..end]).expect("it is written");
    let (verdict, found, passes) = doctor(directory.path());
    let missing = format!("{} bytes missing", bytes.len() - end);
    assert!(
        verdict == "warn" && found.contains(&missing) && passes,
        "{verdict} {found}"
    );
    drop(Server::start(&mut serve(directory.path(), &[])));
    let (verdict, found, _) = doctor(directory.path());
    assert_eq!(verdict, "ok", "{found}");
}

#[test]
fn a_torn_head_of_the_checkpoint_is_told_and_mended_by_a_start() {
    for at in [0, 9_000] {
        let directory = tempfile::tempdir().expect("a directory");
        let server = Server::start(&mut serve(directory.path(), &[]));
        server.signal("TERM");
        assert!(server.ended().status.success());
        let file = directory.path().join("landfast-data/state.redb");
        let mut bytes = fs::read(&file).expect("stopping writes a checkpoint");
        bytes[at] ^= 4;
        fs::write(&file, &bytes).expect("it is written");
        let (verdict, found, passes) = doctor(directory.path());
        assert!(
            verdict == "warn" && found.contains("state.redb is not whole") && passes,
            "{verdict} {found}"
        );
        assert!(
            fs::read(&file).expect("it reads") == bytes,
            "looking changes nothing"
        );
        drop(Server::start(&mut serve(directory.path(), &[])));
        let (verdict, found, _) = doctor(directory.path());
        assert_eq!(verdict, "ok", "{found}");
    }
}

#[test]
fn a_running_server_has_read_its_journal() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(directory.path(), &[]));
    let (verdict, found, _) = doctor(directory.path());
    assert!(
        verdict == "ok" && found.starts_with("in use"),
        "{verdict} {found}"
    );
    drop(server);
}
