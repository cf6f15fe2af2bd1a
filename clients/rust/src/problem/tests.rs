use std::fs;

use super::*;
use crate::error::Outcome;

/// The `type`, its status, its kind, whether the request is repeated, whether its effect is certainly none,
/// whether the body may run again.
type Line = (&'static str, u16, ErrorKind, Repeat, bool, bool);

const TABLE: [Line; 33] = {
    use ErrorKind as K;
    use Repeat::{Elsewhere, Here, Never};
    [
        (
            "invalid-request",
            400,
            K::InvalidRequest,
            Never,
            true,
            false,
        ),
        ("reserved-name", 400, K::InvalidRequest, Never, true, false),
        ("request-timed-out", 408, K::Unavailable, Here, true, true),
        ("too-large", 413, K::TooLarge, Never, true, false),
        (
            "too-many-transactions",
            429,
            K::TooManyTransactions,
            Here,
            true,
            false,
        ),
        (
            "too-much-buffered",
            429,
            K::TooMuchBuffered,
            Here,
            true,
            false,
        ),
        (
            "no-such-transaction",
            404,
            K::NoSuchTransaction,
            Never,
            true,
            true,
        ),
        ("no-such-queue", 404, K::NoSuchQueue, Never, true, false),
        (
            "no-such-function",
            404,
            K::NoSuchFunction,
            Never,
            true,
            false,
        ),
        (
            "no-such-workflow",
            404,
            K::NoSuchWorkflow,
            Never,
            true,
            false,
        ),
        ("no-such-run", 404, K::NoSuchRun, Never, true, false),
        ("outside-of-run", 400, K::OutsideOfRun, Never, true, false),
        ("attempt-ended", 409, K::AttemptEnded, Never, true, false),
        (
            "run-input-differs",
            409,
            K::InvalidRequest,
            Never,
            true,
            false,
        ),
        ("server-stopped", 503, K::Unavailable, Never, false, true),
        ("too-many-runs", 429, K::TooManyRuns, Here, true, false),
        ("expired", 409, K::Expired, Never, true, false),
        (
            "several-sequencers",
            400,
            K::SeveralSequencers,
            Never,
            true,
            false,
        ),
        ("clock-ahead", 503, K::ClockAhead, Elsewhere, true, true),
        ("conflict", 409, K::Conflict, Never, true, true),
        (
            "no-valid-version",
            409,
            K::NoValidVersion,
            Never,
            true,
            true,
        ),
        (
            "snapshot-too-old",
            409,
            K::SnapshotTooOld,
            Never,
            true,
            true,
        ),
        (
            "outcome-unknown",
            503,
            K::OutcomeUnknown,
            Elsewhere,
            false,
            false,
        ),
        ("unavailable", 503, K::Unavailable, Elsewhere, false, true),
        (
            "condition-not-met",
            412,
            K::ConditionNotMet,
            Never,
            true,
            false,
        ),
        ("no-room", 507, K::NoRoom, Never, true, false),
        ("corrupt", 500, K::Corrupt, Never, false, false),
        ("not-ready", 503, K::Unavailable, Elsewhere, true, true),
        ("unauthorized", 401, K::Refused, Never, true, false),
        ("unknown-host", 403, K::Refused, Never, true, false),
        ("foreign-origin", 403, K::Refused, Never, true, false),
        ("no-such-path", 404, K::Refused, Never, true, false),
        ("method-not-allowed", 405, K::Refused, Never, true, false),
    ]
};

/// T15.
#[test]
fn every_problem_has_its_kind_and_its_repeats() {
    for (name, status, kind, repeat, is_certain, runs_again) in TABLE {
        let (error, meaning) = judged(status, &format!(r#"{{"type":"{name}","detail":"why"}}"#));
        assert_eq!(
            meaning,
            Meaning {
                kind,
                repeat,
                is_certain
            },
            "{name}"
        );
        assert_eq!(
            (error.kind(), error.body_may_run_again()),
            (kind, runs_again),
            "{name}"
        );
        assert_eq!(
            (error.problem(), error.status()),
            (Some(name), Some(status))
        );
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("get key \"a\" at node: {name}: why. ")),
            "{text}"
        );
        assert!(text.ends_with(['.', '?']), "{text}");
    }
}

/// T15. A new line there needs a new line here: both clients decide alike about repeats.
#[test]
fn the_python_client_decides_the_same() {
    let theirs = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../python/landfast/_problems.py"
    ));
    let theirs = theirs.expect("the Python client is in the same repository");
    let lines = theirs
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split_once("\": Meaning("));
    // Names of Lambda's API begin with a capital, and this client sends it no requests.
    let ours_too =
        lines.filter(|(name, _)| name.starts_with(|first: char| first.is_ascii_lowercase()));
    let theirs: Vec<(&str, &str)> = ours_too.collect();
    assert_eq!(theirs.len(), TABLE.len() + 1, "{theirs:?}");
    for (name, said) in theirs {
        let document = Document {
            r#type: Some(name.to_owned()),
            ..Document::default()
        };
        let ours = Meaning::of(&document, 418);
        let kind = format!("{:?}", ours.kind);
        let kind = kind.split('(').next().unwrap_or_default();
        let repeat = match ours.repeat {
            Repeat::Never => "",
            Repeat::Here => ", Repeat.HERE",
            Repeat::Elsewhere => ", Repeat.ELSEWHERE",
        };
        let certain = if ours.is_certain {
            ""
        } else {
            ", is_certain=False"
        };
        assert_eq!(said, format!("{kind}{repeat}{certain}),"), "{name}");
    }
}

/// T15. Both clients also treat the responses of proxies and load balancers alike.
#[test]
fn the_python_client_decides_the_same_by_status() {
    let theirs = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../python/landfast/_problems.py"
    ));
    let theirs = theirs.expect("the Python client is in the same repository");
    let line = |line: &str| {
        let (status, said) = line.trim().split_once(": Meaning(")?;
        Some((status.parse::<u16>().ok()?, said.to_owned()))
    };
    let theirs: Vec<(u16, String)> = theirs.lines().filter_map(line).collect();
    assert!(theirs.len() >= 7, "{theirs:?}");
    for (status, said) in theirs {
        let ours = judged(status, "").1;
        let repeat = match ours.repeat {
            Repeat::Never => "",
            Repeat::Here => ", Repeat.HERE",
            Repeat::Elsewhere => ", Repeat.ELSEWHERE",
        };
        let certain = if ours.is_certain {
            ""
        } else {
            ", is_certain=False"
        };
        assert_eq!(
            said,
            format!("{:?}{repeat}{certain}),", ours.kind),
            "{status}"
        );
    }
}

#[test]
fn a_finished_transaction_says_how_it_ended() {
    for (name, outcome, runs_again) in [
        ("aborted", Outcome::Aborted, true),
        ("expired", Outcome::Expired, false),
        ("begun-anew", Outcome::BegunAnew, false),
        ("committed", Outcome::Committed, false),
        ("else", Outcome::Other, false),
    ] {
        let (error, meaning) = judged(
            409,
            &format!(r#"{{"type":"transaction-finished","outcome":"{name}"}}"#),
        );
        assert_eq!(error.kind(), ErrorKind::TransactionFinished(outcome));
        assert_eq!(
            (meaning.repeat, error.body_may_run_again()),
            (Repeat::Never, runs_again),
            "{name}"
        );
        let shown = if outcome == Outcome::Other {
            "not known"
        } else {
            name
        };
        assert!(
            error.to_string().contains(&format!("(outcome: {shown}")),
            "{error}"
        );
    }
}

#[test]
fn an_answer_that_is_no_problem_document_is_judged_by_its_status() {
    let nested = "[".repeat(100_000);
    for body in [
        "",
        "<html>",
        "[]",
        r#"{"type":7,"detail":[],"outcome":{}}"#,
        r#"{"type":"else"}"#,
        &nested,
    ] {
        for (status, kind, repeat) in [
            (400, ErrorKind::UnexpectedAnswer, Repeat::Never),
            (401, ErrorKind::Refused, Repeat::Never),
            (413, ErrorKind::TooLarge, Repeat::Never),
            (429, ErrorKind::Unavailable, Repeat::Here),
            (500, ErrorKind::UnexpectedAnswer, Repeat::Here),
            (502, ErrorKind::Unavailable, Repeat::Elsewhere),
            (503, ErrorKind::Unavailable, Repeat::Elsewhere),
        ] {
            let (error, meaning) = judged(status, body);
            assert_eq!(
                (error.kind(), meaning.repeat),
                (kind, repeat),
                "{status} {body:.40}"
            );
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
    }
}

#[test]
fn a_pause_that_is_asked_for_is_seconds_within_reason() {
    assert_eq!(retry_after(" 2 "), Some(Duration::from_secs(2)));
    assert_eq!(retry_after("99999999999"), Some(RETRY_AFTER_MAX));
    for none in [
        "",
        "-1",
        "soon",
        "Wed, 21 Oct 2026 07:28:00 GMT",
        "99999999999999999999999",
    ] {
        assert_eq!(retry_after(none), None, "{none}");
    }
}

fn judged(status: u16, body: &str) -> (Error, Meaning) {
    let response = Response {
        status,
        body: body.to_owned().into(),
        ..Response::default()
    };
    refusal(&Call::get_state(b"a"), "node", &response)
}
