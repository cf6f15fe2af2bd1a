use super::*;
use crate::transactions::history_builder::HistoryBuilder;

/// T1 writes l; T2 writes k and l.
fn two_writers() -> HistoryBuilder {
    let mut builder = HistoryBuilder::default();
    builder.begins("t1", &["l"]).commits("t1", 1);
    builder
}

fn fractures(builder: &HistoryBuilder) -> usize {
    fractured(&builder.executions, &builder.order()).len()
}

/// T2.
#[test]
fn a_part_of_a_commit_beside_something_older_is_fractured() {
    let mut builder = two_writers();
    builder.begins("r", &[]).reads("r", "l", "t1");
    builder.begins("t2", &["k", "l"]).commits("t2", 2);
    assert_eq!(fractures(&builder), 0);
    builder.reads("r", "k", "t2");
    assert_eq!(fractures(&builder), 1);
}

/// T2: in either order of the two reads.
#[test]
fn something_older_beside_a_part_of_a_commit_is_fractured() {
    let mut builder = two_writers();
    builder.begins("t2", &["k", "l"]).commits("t2", 2);
    builder
        .begins("r", &[])
        .reads("r", "k", "t2")
        .reads("r", "l", "t1");
    assert_eq!(fractures(&builder), 1);
}

/// T2: newer values and reads of another transaction do not count.
#[test]
fn whole_and_newer_reads_are_not_fractured() {
    let mut builder = two_writers();
    builder.begins("t2", &["k", "l"]).commits("t2", 2);
    builder.begins("t3", &["l"]).commits("t3", 3);
    builder
        .begins("r", &[])
        .reads("r", "k", "t2")
        .reads("r", "l", "t3");
    builder
        .begins("s", &[])
        .reads("s", "k", "t2")
        .reads("s", "l", "t2");
    builder.begins("u", &[]).reads("u", "l", "t1");
    assert_eq!(fractures(&builder), 0);
    assert!(not_repeatable(&builder.executions).is_empty());
}

/// T2: absences.
#[test]
fn an_absence_beside_a_part_of_a_commit_is_fractured() {
    let mut builder = HistoryBuilder::default();
    builder.begins("r", &[]).shows("r", "l", ReadResult::Absent);
    builder.begins("t", &["k", "l"]).commits("t", 1);
    assert_eq!(fractures(&builder), 0);
    builder.reads("r", "k", "t");
    assert_eq!(fractures(&builder), 1);
}

/// T2: deletions.
#[test]
fn an_absence_that_is_a_newer_deletion_is_not_fractured() {
    let mut builder = HistoryBuilder::default();
    builder.begins("t", &["k", "l"]).commits("t", 1);
    builder.begins("u", &["k", "-l"]).commits("u", 2);
    builder
        .begins("r", &[])
        .reads("r", "k", "t")
        .shows("r", "l", ReadResult::Absent);
    builder
        .begins("s", &[])
        .reads("s", "k", "u")
        .shows("s", "l", ReadResult::Absent);
    assert_eq!(fractures(&builder), 0);
    // The values read beside a deletion must not be older than it.
    builder
        .begins("v", &[])
        .reads("v", "k", "u")
        .reads("v", "l", "t");
    assert_eq!(fractures(&builder), 1);
}

/// T2: a deletion that was not requested yet explains no absence.
#[test]
fn an_absence_before_the_deletion_is_fractured() {
    let mut builder = HistoryBuilder::default();
    builder.begins("t", &["k", "l"]).commits("t", 1);
    builder
        .begins("r", &[])
        .reads("r", "k", "t")
        .shows("r", "l", ReadResult::Absent);
    builder.begins("u", &["-l"]).commits("u", 2);
    assert_eq!(fractures(&builder), 1);
}

/// T3.
#[test]
fn reads_that_do_not_repeat_are_found() {
    let mut builder = two_writers();
    builder
        .begins("r", &[])
        .reads("r", "l", "t1")
        .reads("r", "l", "t1");
    assert!(not_repeatable(&builder.executions).is_empty());
    builder.begins("t2", &["l"]).commits("t2", 2);
    builder.reads("r", "l", "t2");
    assert_eq!(not_repeatable(&builder.executions).len(), 1);
    assert_eq!(fractures(&builder), 0, "it is counted apart");
    builder
        .begins("s", &[])
        .shows("s", "m", ReadResult::Absent)
        .reads("s", "l", "t1");
    builder.shows("s", "l", ReadResult::Absent);
    assert_eq!(not_repeatable(&builder.executions).len(), 2);
}

/// T3.
#[test]
fn a_read_that_misses_its_own_write_is_found() {
    let mut builder = two_writers();
    builder
        .begins("t2", &["l", "-m"])
        .reads("t2", "l", "t1")
        .writes("t2")
        .reads("t2", "l", "t2");
    builder.shows("t2", "m", ReadResult::Absent);
    assert!(own_write_not_read(&builder.executions).is_empty());
    builder.reads("t2", "l", "t1");
    assert_eq!(own_write_not_read(&builder.executions).len(), 1);
    builder.reads("t2", "m", "t2");
    assert_eq!(own_write_not_read(&builder.executions).len(), 2);
}
