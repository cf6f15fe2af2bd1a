use super::*;
use crate::transactions::history_builder::HistoryBuilder;

fn found(builder: &HistoryBuilder) -> usize {
    cycles(&builder.executions, &builder.stored_state).len()
}

/// T11: a serial execution.
#[test]
fn a_serial_run_is_clean() {
    let mut builder = HistoryBuilder::default();
    builder
        .begins_serializable("t1", &["k", "l"])
        .shows("t1", "k", ReadResult::Absent)
        .commits("t1", 1);
    builder
        .begins_serializable("t2", &["k"])
        .reads("t2", "k", "t1")
        .reads("t2", "l", "t1")
        .commits("t2", 2);
    builder.begins("t3", &["l"]).commits("t3", 3);
    builder
        .begins_serializable("t4", &[])
        .reads("t4", "k", "t2")
        .reads("t4", "l", "t3");
    assert_eq!(found(&builder), 0);
}

/// T11: two increments of one counter, one of them lost.
#[test]
fn a_lost_update_is_found() {
    let mut builder = HistoryBuilder::default();
    builder.begins("t0", &["k"]).commits("t0", 1);
    builder
        .begins_serializable("t1", &["k"])
        .begins_serializable("t2", &["k"]);
    builder.reads("t1", "k", "t0").reads("t2", "k", "t0");
    builder.commits("t1", 2).commits("t2", 3);
    assert_eq!(found(&builder), 1);
    builder.executions[2].isolation = Isolation::ReadAtomic;
    assert_eq!(
        found(&builder),
        0,
        "which is allowed to those that did not ask for more"
    );
}

/// T11: each read what the other has overwritten.
#[test]
fn write_skew_is_found() {
    let mut builder = HistoryBuilder::default();
    builder.begins("t0", &["k", "l"]).commits("t0", 1);
    builder
        .begins_serializable("t1", &["k"])
        .begins_serializable("t2", &["l"]);
    for reader in ["t1", "t2"] {
        builder.reads(reader, "k", "t0").reads(reader, "l", "t0");
    }
    builder.commits("t1", 2);
    assert_eq!(found(&builder), 0);
    builder.commits("t2", 3);
    assert_eq!(found(&builder), 1);
}

/// T11: each created a key that the other had found absent.
#[test]
fn a_phantom_is_found() {
    let mut builder = HistoryBuilder::default();
    builder
        .begins_serializable("t1", &["k"])
        .begins_serializable("t2", &["l"]);
    builder
        .shows("t1", "l", ReadResult::Absent)
        .shows("t2", "k", ReadResult::Absent);
    builder.commits("t1", 1).commits("t2", 2);
    assert_eq!(found(&builder), 1);
}

/// T11: a reader that begins after a commit was acknowledged, and does not see it.
#[test]
fn a_stale_read_is_found() {
    for isolation in [Isolation::ReadAtomic, Isolation::Serializable] {
        let mut builder = HistoryBuilder::default();
        builder.begins("t0", &["k"]).commits("t0", 1);
        builder.begins_serializable("early", &[]);
        builder.begins("t1", &["k"]).commits("t1", 2);
        builder.executions[2].isolation = isolation;
        builder.reads("early", "k", "t0");
        assert_eq!(found(&builder), 0);
        builder
            .begins_serializable("late", &[])
            .reads("late", "k", "t0");
        assert_eq!(found(&builder), 1);
    }
}

/// T11: an attempt that did not commit also saw one instant.
#[test]
fn a_mixed_snapshot_of_an_aborted_one_is_found() {
    let mut builder = HistoryBuilder::default();
    builder.begins("t0", &["k", "l"]).commits("t0", 1);
    builder
        .begins_serializable("t1", &["k"])
        .reads("t1", "k", "t0");
    builder.begins("t2", &["k", "l"]).commits("t2", 2);
    builder
        .reads("t1", "l", "t2")
        .writes("t1")
        .receives_answer("t1", Answer::Conflict);
    assert_eq!(found(&builder), 1);
}

/// T12.
#[test]
fn a_reader_in_conflict_is_found() {
    let mut builder = HistoryBuilder::default();
    builder
        .begins_serializable("t1", &["k"])
        .writes("t1")
        .receives_answer("t1", Answer::Conflict);
    assert_eq!(readers_in_conflict(&builder.executions), [""; 0]);
    builder
        .begins_serializable("t2", &[])
        .receives_answer("t2", Answer::Conflict);
    assert_eq!(readers_in_conflict(&builder.executions).len(), 1);
}
