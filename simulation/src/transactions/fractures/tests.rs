use super::*;
use crate::transactions::made::Story;

/// T1 writes l; T2 writes k and l.
fn two_writers() -> Story {
    let mut story = Story::default();
    story.begins("t1", &["l"]).commits("t1", 1);
    story
}

fn fractures(story: &Story) -> usize {
    fractured(&story.executions, &story.order()).len()
}

/// T2.
#[test]
fn a_part_of_a_commit_beside_something_older_is_fractured() {
    let mut story = two_writers();
    story.begins("r", &[]).reads("r", "l", "t1");
    story.begins("t2", &["k", "l"]).commits("t2", 2);
    assert_eq!(fractures(&story), 0);
    story.reads("r", "k", "t2");
    assert_eq!(fractures(&story), 1);
}

/// T2: in whichever order the two are read.
#[test]
fn something_older_beside_a_part_of_a_commit_is_fractured() {
    let mut story = two_writers();
    story.begins("t2", &["k", "l"]).commits("t2", 2);
    story
        .begins("r", &[])
        .reads("r", "k", "t2")
        .reads("r", "l", "t1");
    assert_eq!(fractures(&story), 1);
}

/// T2: something newer is none of it, and neither is another transaction's read.
#[test]
fn whole_and_newer_reads_are_not_fractured() {
    let mut story = two_writers();
    story.begins("t2", &["k", "l"]).commits("t2", 2);
    story.begins("t3", &["l"]).commits("t3", 3);
    story
        .begins("r", &[])
        .reads("r", "k", "t2")
        .reads("r", "l", "t3");
    story
        .begins("s", &[])
        .reads("s", "k", "t2")
        .reads("s", "l", "t2");
    story.begins("u", &[]).reads("u", "l", "t1");
    assert_eq!(fractures(&story), 0);
    assert!(not_repeatable(&story.executions).is_empty());
}

/// T2: absences.
#[test]
fn an_absence_beside_a_part_of_a_commit_is_fractured() {
    let mut story = Story::default();
    story.begins("r", &[]).shows("r", "l", Shown::Absent);
    story.begins("t", &["k", "l"]).commits("t", 1);
    assert_eq!(fractures(&story), 0);
    story.reads("r", "k", "t");
    assert_eq!(fractures(&story), 1);
}

/// T2: deletions.
#[test]
fn an_absence_that_is_a_newer_deletion_is_not_fractured() {
    let mut story = Story::default();
    story.begins("t", &["k", "l"]).commits("t", 1);
    story.begins("u", &["k", "-l"]).commits("u", 2);
    story
        .begins("r", &[])
        .reads("r", "k", "t")
        .shows("r", "l", Shown::Absent);
    story
        .begins("s", &[])
        .reads("s", "k", "u")
        .shows("s", "l", Shown::Absent);
    assert_eq!(fractures(&story), 0);
    // What a deletion stands beside must not be older than it.
    story
        .begins("v", &[])
        .reads("v", "k", "u")
        .reads("v", "l", "t");
    assert_eq!(fractures(&story), 1);
}

/// T2: a deletion that nobody had asked for yet explains nothing.
#[test]
fn an_absence_before_the_deletion_is_fractured() {
    let mut story = Story::default();
    story.begins("t", &["k", "l"]).commits("t", 1);
    story
        .begins("r", &[])
        .reads("r", "k", "t")
        .shows("r", "l", Shown::Absent);
    story.begins("u", &["-l"]).commits("u", 2);
    assert_eq!(fractures(&story), 1);
}

/// T3.
#[test]
fn reads_that_do_not_repeat_are_found() {
    let mut story = two_writers();
    story
        .begins("r", &[])
        .reads("r", "l", "t1")
        .reads("r", "l", "t1");
    assert!(not_repeatable(&story.executions).is_empty());
    story.begins("t2", &["l"]).commits("t2", 2);
    story.reads("r", "l", "t2");
    assert_eq!(not_repeatable(&story.executions).len(), 1);
    assert_eq!(fractures(&story), 0, "it is counted apart");
    story
        .begins("s", &[])
        .shows("s", "m", Shown::Absent)
        .reads("s", "l", "t1");
    story.shows("s", "l", Shown::Absent);
    assert_eq!(not_repeatable(&story.executions).len(), 2);
}

/// T3.
#[test]
fn a_read_that_misses_its_own_write_is_found() {
    let mut story = two_writers();
    story
        .begins("t2", &["l", "-m"])
        .reads("t2", "l", "t1")
        .writes("t2")
        .reads("t2", "l", "t2");
    story.shows("t2", "m", Shown::Absent);
    assert!(own_write_not_read(&story.executions).is_empty());
    story.reads("t2", "l", "t1");
    assert_eq!(own_write_not_read(&story.executions).len(), 1);
    story.reads("t2", "m", "t2");
    assert_eq!(own_write_not_read(&story.executions).len(), 2);
}
