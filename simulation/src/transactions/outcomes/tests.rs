use bytes::Bytes;

use super::*;
use crate::transactions::{
    history_builder::{HistoryBuilder, key},
    stored_state::{Decision, Row},
};

/// T1 commits; a reader sees it.
fn clean() -> HistoryBuilder {
    let mut builder = HistoryBuilder::default();
    builder.begins("t1", &["k", "-l"]).commits("t1", 1);
    builder
        .begins("r", &[])
        .reads("r", "k", "t1")
        .shows("r", "l", ReadResult::Absent)
        .receives_answer("r", Answer::Committed);
    builder
        .ends_with("k", Some("t1"))
        .ends_with("l", None)
        .ends_with("m", None);
    builder
}

fn all(builder: &HistoryBuilder) -> Vec<usize> {
    let HistoryBuilder {
        executions,
        stored_state,
        ..
    } = builder;
    let checks = [
        dirty(executions, stored_state),
        foreign(executions),
        lost(executions, stored_state),
        refused_and_committed(executions, stored_state),
        doubled(executions, stored_state),
        mixed(stored_state),
        not_seen_in_time(executions, stored_state, Duration::ZERO, Duration::ZERO),
        no_valid_version(executions, stored_state, Duration::ZERO),
    ];
    checks.iter().map(Vec::len).collect()
}

#[test]
fn a_clean_history_is_clean() {
    assert_eq!(all(&clean()), [0; 8]);
}

/// T1.
#[test]
fn reading_an_uncommitted_value_is_dirty() {
    let mut builder = clean();
    builder.begins("t2", &["k"]).writes("t2");
    builder.begins("s", &[]).reads("s", "k", "t2");
    assert_eq!(dirty(&builder.executions, &builder.stored_state).len(), 1);
    builder.receives_answer("t2", Answer::Unknown);
    assert_eq!(dirty(&builder.executions, &builder.stored_state).len(), 1);
    builder.decides("t2", 2);
    assert!(dirty(&builder.executions, &builder.stored_state).is_empty());
}

/// T1.
#[test]
fn bytes_without_a_writer_are_foreign() {
    let mut builder = clean();
    builder
        .begins("s", &[])
        .shows("s", "k", ReadResult::Value(Bytes::from_static(b"x")));
    assert_eq!(foreign(&builder.executions).len(), 1);
    let of_another_key = builder.value("t1", "k");
    builder
        .begins("u", &[])
        .shows("u", "m", ReadResult::Value(of_another_key));
    assert_eq!(foreign(&builder.executions).len(), 2);
}

/// T5.
#[test]
fn an_acknowledged_commit_without_a_row_is_lost() {
    let mut builder = clean();
    builder
        .begins("t2", &["m"])
        .writes("t2")
        .receives_answer("t2", Answer::Committed);
    assert_eq!(lost(&builder.executions, &builder.stored_state).len(), 1);
    builder.stored_state.shown.clear();
    builder.decides("t2", 2);
    assert!(lost(&builder.executions, &builder.stored_state).is_empty());
    builder
        .begins("t3", &["m"])
        .writes("t3")
        .receives_answer("t3", Answer::Unknown);
    assert!(
        lost(&builder.executions, &builder.stored_state).is_empty(),
        "it was not acknowledged"
    );
}

/// T4.
#[test]
fn a_commit_that_is_not_whole_is_lost() {
    let mut builder = clean();
    let item = builder
        .stored_state
        .versions
        .keys()
        .next()
        .cloned()
        .expect("a version");
    builder.stored_state.versions.remove(&item);
    assert_eq!(lost(&builder.executions, &builder.stored_state).len(), 1);
    let mut builder = clean();
    let Some(Row {
        decision: Decision::Committed(_, writes),
        ..
    }) = builder.stored_state.rows.values_mut().next()
    else {
        panic!("a committed row")
    };
    writes.pop();
    assert_eq!(
        lost(&builder.executions, &builder.stored_state).len(),
        1,
        "a deletion of t1 is not in its row"
    );
}

/// T5.
#[test]
fn a_node_that_shows_something_older_has_lost_the_newer() {
    let mut builder = clean();
    builder.begins("t2", &["k", "l"]).commits("t2", 2);
    builder.ends_with("l", Some("t2"));
    assert_eq!(lost(&builder.executions, &builder.stored_state).len(), 1);
    builder.ends_with("k", Some("t2"));
    assert!(lost(&builder.executions, &builder.stored_state).is_empty());
    builder.ends_with("l", None);
    assert_eq!(lost(&builder.executions, &builder.stored_state).len(), 1);
}

/// T4.
#[test]
fn a_refused_attempt_must_not_have_committed() {
    let mut builder = clean();
    builder
        .begins("t2", &["m"])
        .writes("t2")
        .decides("t2", 2)
        .receives_answer("t2", Answer::Refused);
    assert_eq!(
        refused_and_committed(&builder.executions, &builder.stored_state).len(),
        1
    );
    builder
        .stored_state
        .rows
        .remove(&builder.executions[builder.find("t2")].writer.id);
    assert!(refused_and_committed(&builder.executions, &builder.stored_state).is_empty());
}

/// T4.
#[test]
fn an_id_that_took_effect_twice_is_doubled() {
    let mut builder = clean();
    builder
        .begins("t2", &["m"])
        .writes("t2")
        .receives_answer("t2", Answer::Refused);
    builder.begins("t2/1", &["m"]).commits("t2/1", 2);
    assert!(
        doubled(&builder.executions, &builder.stored_state).is_empty(),
        "only the second did"
    );
    let mut read = clean();
    read.begins("t2", &["m"])
        .writes("t2")
        .begins("t2/1", &["m"])
        .commits("t2/1", 2);
    read.begins("s", &[]).reads("s", "m", "t2");
    assert_eq!(doubled(&read.executions, &read.stored_state).len(), 1);
    builder.receives_answer("t2", Answer::Committed);
    assert_eq!(doubled(&builder.executions, &builder.stored_state).len(), 1);
}

/// T8.
#[test]
fn a_version_of_another_attempt_is_mixed() {
    let mut builder = clean();
    builder.begins("t2", &["k"]).commits("t2", 2);
    let (first, second) = (
        builder.executions[0].writer.attempt,
        builder.executions[2].writer.attempt,
    );
    let of_first = builder.stored_state.versions[&(key("k"), first)]
        .value
        .clone();
    builder
        .stored_state
        .versions
        .get_mut(&(key("k"), second))
        .expect("a version")
        .value = of_first;
    assert_eq!(mixed(&builder.stored_state).len(), 1);
}

/// T5, T-1: even if the versions make the returned value the newer one.
#[test]
fn an_acknowledged_commit_that_a_later_transaction_misses_is_found() {
    let not_seen = |builder: &HistoryBuilder| {
        not_seen_in_time(
            &builder.executions,
            &builder.stored_state,
            Duration::ZERO,
            Duration::ZERO,
        )
        .len()
    };
    let mut builder = clean();
    builder
        .begins("t2", &["k", "l"])
        .begins("early", &[])
        .commits("t2", 0);
    builder.reads("early", "k", "t1");
    assert_eq!(not_seen(&builder), 0, "it had begun before");
    builder.begins("s", &[]).reads("s", "k", "t1");
    assert_eq!(not_seen(&builder), 1);
    builder.begins("u", &[]).shows("u", "l", ReadResult::Absent);
    assert_eq!(not_seen(&builder), 2, "the deletion is older");
    let long = Duration::from_secs(1);
    assert!(
        not_seen_in_time(
            &builder.executions,
            &builder.stored_state,
            long,
            Duration::ZERO
        )
        .is_empty()
    );
}

/// T5: either of two concurrent commits may be the newer one.
#[test]
fn commits_at_the_same_time_may_be_seen_in_any_order() {
    let mut builder = clean();
    builder.begins("t2", &["k"]).begins("t3", &["k"]);
    builder
        .writes("t2")
        .writes("t3")
        .decides("t2", 3)
        .decides("t3", 2);
    builder
        .receives_answer("t2", Answer::Unknown)
        .receives_answer("t3", Answer::Committed);
    builder.begins("s", &[]).reads("s", "k", "t2");
    assert!(
        not_seen_in_time(
            &builder.executions,
            &builder.stored_state,
            Duration::ZERO,
            Duration::ZERO
        )
        .is_empty()
    );
}

/// T6.
#[test]
fn no_valid_version_of_a_key_that_had_one_is_found() {
    let mut builder = clean();
    builder
        .begins("s", &[])
        .shows("s", "m", ReadResult::NoValidVersion);
    assert!(
        no_valid_version(&builder.executions, &builder.stored_state, Duration::ZERO).is_empty(),
        "it had none"
    );
    builder
        .begins("u", &[])
        .shows("u", "k", ReadResult::NoValidVersion);
    assert_eq!(
        no_valid_version(&builder.executions, &builder.stored_state, Duration::ZERO).len(),
        1
    );
}
