use super::*;
use crate::call::AttemptName;

/// T4. A late copy of the first write would undo the second.
#[test]
fn a_key_whose_write_was_sent_twice_is_not_written_again() {
    let mut attempt = Attempt::begun("x", false);
    attempt.may_write(&put(b"a"), b"a").expect("open");
    attempt.wrote(b"a", true);
    attempt.may_write(&put(b"b"), b"b").expect("another key");
    attempt.wrote(b"b", false);
    attempt
        .may_write(&put(b"b"), b"b")
        .expect("it was sent once");
    let error = attempt
        .may_write(&put(b"a"), b"a")
        .expect_err("it would race with its own copy");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.body_may_run_again());
    attempt.may_commit(&commit()).expect_err("torn");
    attempt.may_call(&put(b"b")).expect_err("torn");
    assert!(matches!(attempt.verdict(), Verdict::Again(_)));
}

/// T4.
#[test]
fn an_attempt_with_a_write_that_may_or_may_not_have_arrived_never_commits() {
    let lost = || Error::new(ErrorKind::Unavailable, "put", "reset").that_may_have_happened(true);
    let mut attempt = Attempt::begun("x", false);
    attempt.write_failed(&put(b"a"), lost());
    attempt.may_commit(&commit()).expect_err("torn");
    let mut attempt = Attempt::begun("x", false);
    attempt.tear();
    attempt.may_commit(&commit()).expect_err("torn");
    let mut attempt = Attempt::begun("x", false);
    attempt.failed(&put(b"a"), lost());
    attempt
        .may_commit(&commit())
        .expect("a read leaves nothing behind");
}

#[test]
fn a_commit_may_be_asked_for_again_while_its_outcome_is_unknown() {
    let mut attempt = Attempt::begun("x", false);
    attempt.may_commit(&commit()).expect("open");
    let unknown =
        Error::new(ErrorKind::OutcomeUnknown, "commit", "reset").that_may_have_happened(true);
    attempt.commit_failed(&commit(), unknown);
    assert_eq!(attempt.phase, Phase::Committing);
    let error = attempt
        .may_write(&put(b"a"), b"a")
        .expect_err("it may have committed");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    attempt.may_commit(&commit()).expect("the same again");
    let not_sent = Error::new(ErrorKind::Unavailable, "commit", "refused");
    attempt.commit_failed(&commit(), not_sent);
    assert_eq!(attempt.phase, Phase::Open, "it certainly did not commit");
}

/// T8.
#[test]
fn an_attempt_that_was_begun_anew_is_left_alone_unless_by_its_own_begin() {
    for (is_begin_doubled, runs_again) in [(false, false), (true, true)] {
        let mut attempt = Attempt::begun("x", is_begin_doubled);
        let error = attempt.failed(&put(b"a"), finished(Outcome::BegunAnew));
        assert_eq!(error.body_may_run_again(), runs_again);
        // A body that ignores the error gets it again.
        let error = attempt.may_commit(&commit()).expect_err("it has ended");
        assert_eq!(
            error.kind(),
            ErrorKind::TransactionFinished(Outcome::BegunAnew)
        );
        assert_eq!(error.body_may_run_again(), runs_again);
        assert!(
            !attempt.may_abort(&commit()).expect("over"),
            "an abort would hit the later attempt"
        );
        assert!(!attempt.is_given_up(), "it did not end itself");
    }
}

/// T4.
#[test]
fn an_id_that_has_committed_meanwhile_is_skipped() {
    let mut attempt = Attempt::begun("x", false);
    let error = attempt.failed(&put(b"a"), finished(Outcome::Committed));
    assert_eq!(
        (error.kind(), error.transaction()),
        (ErrorKind::AlreadyCommitted, Some("x"))
    );
    assert_eq!(attempt.phase, Phase::Committed);
    // Neither a cleanup nor another call in flight changes that.
    let error = attempt
        .may_write(&put(b"b"), b"b")
        .expect_err("it has ended");
    assert_eq!(error.kind(), ErrorKind::AlreadyCommitted);
    for late in [
        unavailable(),
        finished(Outcome::Committed),
        Error::new(ErrorKind::Conflict, "get", ""),
    ] {
        assert_eq!(
            attempt.failed(&put(b"c"), late).kind(),
            ErrorKind::AlreadyCommitted
        );
        assert_eq!(attempt.phase, Phase::Committed);
    }
    assert!(matches!(attempt.verdict(), Verdict::Skip));
}

#[test]
fn the_last_error_decides_whether_a_body_runs_again() {
    let mut attempt = Attempt::begun("x", false);
    attempt.failed(&put(b"a"), Error::new(ErrorKind::NoValidVersion, "get", ""));
    assert!(matches!(attempt.verdict(), Verdict::Again(_)));
    attempt.failed(&put(b"a"), Error::new(ErrorKind::TooLarge, "put", ""));
    assert!(matches!(attempt.verdict(), Verdict::Failed));
    assert_eq!(attempt.phase, Phase::Open);
}

/// A body that goes on has handled the earlier failure.
#[test]
fn a_failure_decides_until_the_body_asks_for_something_else() {
    let mut attempt = Attempt::begun("x", false);
    attempt.failed(&put(b"a"), unavailable());
    assert!(matches!(attempt.verdict(), Verdict::Again(_)));
    attempt.may_call(&put(b"b")).expect("open");
    assert!(matches!(attempt.verdict(), Verdict::Failed));
}

/// With `join!`, the client cannot know which of the branches caused the body's error.
#[test]
fn a_call_that_begins_after_another_has_failed_goes_on_also_where_they_are_side_by_side() {
    let mut attempt = Attempt::begun("x", false);
    attempt.may_call(&put(b"a")).expect("open");
    attempt.may_call(&put(b"b")).expect("open");
    attempt.failed(&put(b"a"), unavailable());
    attempt.failed(&put(b"b"), unavailable());
    assert!(
        matches!(attempt.verdict(), Verdict::Again(_)),
        "all that were under way have failed"
    );
    attempt.may_call(&put(b"c")).expect("open");
    assert!(matches!(attempt.verdict(), Verdict::Failed));
}

/// T4. A second run would find its id committed, and lose its error.
#[test]
fn a_body_whose_transaction_may_have_committed_does_not_run_again() {
    let mut attempt = Attempt::begun("x", false);
    attempt.may_commit(&commit()).expect("open");
    attempt.failed(&put(b"a"), unavailable());
    assert!(matches!(attempt.verdict(), Verdict::Failed));
    for late in [unavailable(), finished(Outcome::Committed)] {
        attempt.committed();
        attempt.failed(&put(b"a"), late);
        assert_eq!(attempt.phase, Phase::Committed);
        assert!(matches!(attempt.verdict(), Verdict::Failed));
    }
}

#[test]
fn an_abort_ends_it_unless_it_has_committed() {
    for (answer, phase) in [
        (None, Phase::Aborted),
        (Some(finished(Outcome::Expired)), Phase::Aborted),
        (
            Some(Error::new(ErrorKind::NoSuchTransaction, "abort", "")),
            Phase::Aborted,
        ),
        (Some(finished(Outcome::Committed)), Phase::Committed),
        (
            Some(Error::new(ErrorKind::Unavailable, "abort", "")),
            Phase::Aborted,
        ),
    ] {
        let mut attempt = Attempt::begun("x", false);
        assert!(attempt.may_abort(&commit()).expect("open"));
        let is_told = matches!(
            answer.as_ref().map(Error::kind),
            Some(ErrorKind::Unavailable | ErrorKind::TransactionFinished(Outcome::Committed))
        );
        assert_eq!(attempt.aborted(answer).is_err(), is_told);
        assert_eq!(attempt.phase, phase);
        assert!(attempt.is_given_up() || phase == Phase::Committed);
        attempt
            .may_write(&put(b"a"), b"a")
            .expect_err("it has ended");
    }
}

fn finished(outcome: Outcome) -> Error {
    Error::new(ErrorKind::TransactionFinished(outcome), "put", "").of_transaction(Some("x"))
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "get", "reset")
}

fn put(key: &[u8]) -> Call {
    Call::put(&name(), key, "1".into()).expect("small")
}

fn commit() -> Call {
    Call::commit(&name(), None)
}

fn name() -> AttemptName {
    AttemptName {
        id: "x".to_owned(),
        token: "1-1".to_owned(),
    }
}
