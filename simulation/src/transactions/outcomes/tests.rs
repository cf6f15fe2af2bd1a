use bytes::Bytes;

use super::*;
use crate::transactions::{
    at_rest::{Decision, Row},
    made::{Story, key},
};

/// T1 commits; a reader sees it.
fn clean() -> Story {
    let mut story = Story::default();
    story.begins("t1", &["k", "-l"]).commits("t1", 1);
    story
        .begins("r", &[])
        .reads("r", "k", "t1")
        .shows("r", "l", Shown::Absent)
        .is_told("r", Answer::Committed);
    story
        .ends_with("k", Some("t1"))
        .ends_with("l", None)
        .ends_with("m", None);
    story
}

fn all(story: &Story) -> Vec<usize> {
    let Story {
        executions,
        at_rest,
        ..
    } = story;
    let checks = [
        dirty(executions, at_rest),
        foreign(executions),
        lost(executions, at_rest),
        refused_and_committed(executions, at_rest),
        doubled(executions, at_rest),
        mixed(at_rest),
        not_seen_in_time(executions, at_rest, Duration::ZERO, Duration::ZERO),
        no_valid_version(executions, at_rest, Duration::ZERO),
    ];
    checks.iter().map(Vec::len).collect()
}

#[test]
fn a_clean_history_is_clean() {
    assert_eq!(all(&clean()), [0; 8]);
}

/// T1.
#[test]
fn reading_what_did_not_commit_is_dirty() {
    let mut story = clean();
    story.begins("t2", &["k"]).writes("t2");
    story.begins("s", &[]).reads("s", "k", "t2");
    assert_eq!(dirty(&story.executions, &story.at_rest).len(), 1);
    story.is_told("t2", Answer::Unknown);
    assert_eq!(dirty(&story.executions, &story.at_rest).len(), 1);
    story.decides("t2", 2);
    assert!(dirty(&story.executions, &story.at_rest).is_empty());
}

/// T1.
#[test]
fn bytes_that_nobody_wrote_are_foreign() {
    let mut story = clean();
    story
        .begins("s", &[])
        .shows("s", "k", Shown::Value(Bytes::from_static(b"x")));
    assert_eq!(foreign(&story.executions).len(), 1);
    let of_another_key = story.value("t1", "k");
    story
        .begins("u", &[])
        .shows("u", "m", Shown::Value(of_another_key));
    assert_eq!(foreign(&story.executions).len(), 2);
}

/// T5.
#[test]
fn an_acknowledged_commit_without_a_row_is_lost() {
    let mut story = clean();
    story
        .begins("t2", &["m"])
        .writes("t2")
        .is_told("t2", Answer::Committed);
    assert_eq!(lost(&story.executions, &story.at_rest).len(), 1);
    story.at_rest.shown.clear();
    story.decides("t2", 2);
    assert!(lost(&story.executions, &story.at_rest).is_empty());
    story
        .begins("t3", &["m"])
        .writes("t3")
        .is_told("t3", Answer::Unknown);
    assert!(
        lost(&story.executions, &story.at_rest).is_empty(),
        "nobody was told"
    );
}

/// T4.
#[test]
fn a_commit_that_is_not_whole_is_lost() {
    let mut story = clean();
    let item = story
        .at_rest
        .versions
        .keys()
        .next()
        .cloned()
        .expect("a version");
    story.at_rest.versions.remove(&item);
    assert_eq!(lost(&story.executions, &story.at_rest).len(), 1);
    let mut story = clean();
    let Some(Row {
        decision: Decision::Committed(_, writes),
        ..
    }) = story.at_rest.rows.values_mut().next()
    else {
        panic!("a committed row")
    };
    writes.pop();
    assert_eq!(
        lost(&story.executions, &story.at_rest).len(),
        1,
        "a deletion of t1 is not in its row"
    );
}

/// T5.
#[test]
fn a_node_that_shows_something_older_has_lost_the_newer() {
    let mut story = clean();
    story.begins("t2", &["k", "l"]).commits("t2", 2);
    story.ends_with("l", Some("t2"));
    assert_eq!(lost(&story.executions, &story.at_rest).len(), 1);
    story.ends_with("k", Some("t2"));
    assert!(lost(&story.executions, &story.at_rest).is_empty());
    story.ends_with("l", None);
    assert_eq!(lost(&story.executions, &story.at_rest).len(), 1);
}

/// T4.
#[test]
fn what_was_refused_must_not_have_committed() {
    let mut story = clean();
    story
        .begins("t2", &["m"])
        .writes("t2")
        .decides("t2", 2)
        .is_told("t2", Answer::Refused);
    assert_eq!(
        refused_and_committed(&story.executions, &story.at_rest).len(),
        1
    );
    story
        .at_rest
        .rows
        .remove(&story.executions[story.find("t2")].writer.id);
    assert!(refused_and_committed(&story.executions, &story.at_rest).is_empty());
}

/// T4.
#[test]
fn an_id_that_took_effect_twice_is_doubled() {
    let mut story = clean();
    story
        .begins("t2", &["m"])
        .writes("t2")
        .is_told("t2", Answer::Refused);
    story.begins("t2/1", &["m"]).commits("t2/1", 2);
    assert!(
        doubled(&story.executions, &story.at_rest).is_empty(),
        "only the second did"
    );
    let mut read = clean();
    read.begins("t2", &["m"])
        .writes("t2")
        .begins("t2/1", &["m"])
        .commits("t2/1", 2);
    read.begins("s", &[]).reads("s", "m", "t2");
    assert_eq!(doubled(&read.executions, &read.at_rest).len(), 1);
    story.is_told("t2", Answer::Committed);
    assert_eq!(doubled(&story.executions, &story.at_rest).len(), 1);
}

/// T8.
#[test]
fn a_version_of_another_attempt_is_mixed() {
    let mut story = clean();
    story.begins("t2", &["k"]).commits("t2", 2);
    let (first, second) = (
        story.executions[0].writer.attempt,
        story.executions[2].writer.attempt,
    );
    let of_first = story.at_rest.versions[&(key("k"), first)].value.clone();
    story
        .at_rest
        .versions
        .get_mut(&(key("k"), second))
        .expect("a version")
        .value = of_first;
    assert_eq!(mixed(&story.at_rest).len(), 1);
}

/// T5, T-1: also if the versions say that what is shown is newer.
#[test]
fn an_acknowledged_commit_that_a_later_transaction_misses_is_found() {
    let not_seen = |story: &Story| {
        not_seen_in_time(
            &story.executions,
            &story.at_rest,
            Duration::ZERO,
            Duration::ZERO,
        )
        .len()
    };
    let mut story = clean();
    story
        .begins("t2", &["k", "l"])
        .begins("early", &[])
        .commits("t2", 0);
    story.reads("early", "k", "t1");
    assert_eq!(not_seen(&story), 0, "it had begun before");
    story.begins("s", &[]).reads("s", "k", "t1");
    assert_eq!(not_seen(&story), 1);
    story.begins("u", &[]).shows("u", "l", Shown::Absent);
    assert_eq!(not_seen(&story), 2, "the deletion is older");
    let long = Duration::from_secs(1);
    assert!(not_seen_in_time(&story.executions, &story.at_rest, long, Duration::ZERO).is_empty());
}

/// T5: of two commits at the same time either may be the newer.
#[test]
fn commits_at_the_same_time_may_be_seen_in_any_order() {
    let mut story = clean();
    story.begins("t2", &["k"]).begins("t3", &["k"]);
    story
        .writes("t2")
        .writes("t3")
        .decides("t2", 3)
        .decides("t3", 2);
    story
        .is_told("t2", Answer::Unknown)
        .is_told("t3", Answer::Committed);
    story.begins("s", &[]).reads("s", "k", "t2");
    assert!(
        not_seen_in_time(
            &story.executions,
            &story.at_rest,
            Duration::ZERO,
            Duration::ZERO
        )
        .is_empty()
    );
}

/// T6.
#[test]
fn no_valid_version_of_a_key_that_had_one_is_found() {
    let mut story = clean();
    story
        .begins("s", &[])
        .shows("s", "m", Shown::NoValidVersion);
    assert!(
        no_valid_version(&story.executions, &story.at_rest, Duration::ZERO).is_empty(),
        "it had none"
    );
    story
        .begins("u", &[])
        .shows("u", "k", Shown::NoValidVersion);
    assert_eq!(
        no_valid_version(&story.executions, &story.at_rest, Duration::ZERO).len(),
        1
    );
}
