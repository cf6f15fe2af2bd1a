use super::*;
use crate::transactions::made::Story;

fn found(story: &Story) -> usize {
    cycles(&story.executions, &story.at_rest).len()
}

/// T11: one after the other is one after the other.
#[test]
fn a_serial_run_is_clean() {
    let mut story = Story::default();
    story
        .begins_serializable("t1", &["k", "l"])
        .shows("t1", "k", Shown::Absent)
        .commits("t1", 1);
    story
        .begins_serializable("t2", &["k"])
        .reads("t2", "k", "t1")
        .reads("t2", "l", "t1")
        .commits("t2", 2);
    story.begins("t3", &["l"]).commits("t3", 3);
    story
        .begins_serializable("t4", &[])
        .reads("t4", "k", "t2")
        .reads("t4", "l", "t3");
    assert_eq!(found(&story), 0);
}

/// T11: two increments of one counter, one of them gone.
#[test]
fn a_lost_update_is_found() {
    let mut story = Story::default();
    story.begins("t0", &["k"]).commits("t0", 1);
    story
        .begins_serializable("t1", &["k"])
        .begins_serializable("t2", &["k"]);
    story.reads("t1", "k", "t0").reads("t2", "k", "t0");
    story.commits("t1", 2).commits("t2", 3);
    assert_eq!(found(&story), 1);
    story.executions[2].isolation = Isolation::ReadAtomic;
    assert_eq!(
        found(&story),
        0,
        "which is allowed to those that did not ask for more"
    );
}

/// T11: each read what the other has overwritten.
#[test]
fn write_skew_is_found() {
    let mut story = Story::default();
    story.begins("t0", &["k", "l"]).commits("t0", 1);
    story
        .begins_serializable("t1", &["k"])
        .begins_serializable("t2", &["l"]);
    for reader in ["t1", "t2"] {
        story.reads(reader, "k", "t0").reads(reader, "l", "t0");
    }
    story.commits("t1", 2);
    assert_eq!(found(&story), 0);
    story.commits("t2", 3);
    assert_eq!(found(&story), 1);
}

/// T11: each created a key that the other had found absent.
#[test]
fn a_phantom_is_found() {
    let mut story = Story::default();
    story
        .begins_serializable("t1", &["k"])
        .begins_serializable("t2", &["l"]);
    story
        .shows("t1", "l", Shown::Absent)
        .shows("t2", "k", Shown::Absent);
    story.commits("t1", 1).commits("t2", 2);
    assert_eq!(found(&story), 1);
}

/// T11: a reader that begins after a commit was acknowledged, and does not see it.
#[test]
fn a_stale_read_is_found() {
    for isolation in [Isolation::ReadAtomic, Isolation::Serializable] {
        let mut story = Story::default();
        story.begins("t0", &["k"]).commits("t0", 1);
        story.begins_serializable("early", &[]);
        story.begins("t1", &["k"]).commits("t1", 2);
        story.executions[2].isolation = isolation;
        story.reads("early", "k", "t0");
        assert_eq!(found(&story), 0);
        story
            .begins_serializable("late", &[])
            .reads("late", "k", "t0");
        assert_eq!(found(&story), 1);
    }
}

/// T11: what did not commit was shown one instant as well.
#[test]
fn a_mixed_snapshot_of_an_aborted_one_is_found() {
    let mut story = Story::default();
    story.begins("t0", &["k", "l"]).commits("t0", 1);
    story
        .begins_serializable("t1", &["k"])
        .reads("t1", "k", "t0");
    story.begins("t2", &["k", "l"]).commits("t2", 2);
    story
        .reads("t1", "l", "t2")
        .writes("t1")
        .is_told("t1", Answer::Conflict);
    assert_eq!(found(&story), 1);
}

/// T12.
#[test]
fn a_reader_in_conflict_is_found() {
    let mut story = Story::default();
    story
        .begins_serializable("t1", &["k"])
        .writes("t1")
        .is_told("t1", Answer::Conflict);
    assert_eq!(readers_in_conflict(&story.executions), [""; 0]);
    story
        .begins_serializable("t2", &[])
        .is_told("t2", Answer::Conflict);
    assert_eq!(readers_in_conflict(&story.executions).len(), 1);
}
