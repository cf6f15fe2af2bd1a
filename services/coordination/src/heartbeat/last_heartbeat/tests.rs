//! C-6: what counts as silence, and what does not.

use ports::Incarnation;

use super::*;

const SESSION: SessionId = SessionId(7);
const PACE: Pace = Pace {
    period: Duration::from_secs(1),
    clocks_apart_max: Duration::from_secs(4),
};

/// A machine's reading of a moment, in true milliseconds: its own clock began with it.
fn read(true_ms: i64, wall_ahead_ms: i64) -> Moment {
    Moment {
        own_ms: true_ms,
        wall_ms: 1_000_000 + true_ms + wall_ahead_ms,
    }
}

/// A run that goes on with `before` and sees `renewals`: the silence, and its notes.
fn run(before: &Notes, renewals: i64, now: Moment) -> (Duration, Notes) {
    let mut next = before.next(now);
    let silence = before.silence(SESSION, renewals, &mut next, now);
    (silence, next)
}

/// The same by an instance that was not there before.
fn cold_run(stored: &Stored, renewals: i64, now: Moment) -> (Duration, Stored) {
    let (silence, mut notes) = run(&Notes::taken_up(stored.clone(), now, PACE), renewals, now);
    (
        silence,
        notes
            .to_store(PACE, 10)
            .expect("another wrote what is there"),
    )
}

fn first_stored(now: Moment) -> Stored {
    let (_, mut notes) = run(&Notes::first(now, Incarnation(1)), 1, now);
    notes.to_store(PACE, 10).expect("nobody has written any")
}

#[test]
fn an_instance_counts_by_its_own_clock_until_a_renewal() {
    let mut notes = Notes::first(read(0, 0), Incarnation(1));
    for second in 0..10 {
        // Its wall clock goes wrong, which it does not look at.
        let now = read(second * 1000, second * 3_600_000);
        assert!(notes.are_fresh(now, PACE));
        let (silence, next) = run(&notes, 1, now);
        assert_eq!(silence, Duration::from_secs(second as u64));
        notes = next;
    }
    assert_eq!(run(&notes, 2, read(10_000, 0)).0, Duration::ZERO);
    assert!(
        !notes.are_fresh(read(30_000, 0), PACE),
        "others may have written better ones"
    );
}

/// Every run is by another machine. None is ever more than the truth, and all of it but what clocks may differ by
/// is counted.
#[test]
fn instances_that_never_meet_count_on_what_they_leave_to_each_other() {
    let ahead = [0, 2_000, -2_000, 1_500, -1_000];
    let mut stored = first_stored(read(0, 2_000));
    for second in 1..60 {
        let now = read(second * 1000, ahead[second as usize % ahead.len()]);
        let (silence, next) = cold_run(&stored, 1, now);
        let truth = Duration::from_secs(second as u64);
        assert!(silence <= truth, "{silence:?} after {truth:?}");
        assert!(
            silence + PACE.clocks_apart_max * 2 >= truth,
            "{silence:?} after {truth:?}"
        );
        stored = next;
    }
}

#[test]
fn time_in_which_no_heartbeat_ran_does_not_count() {
    let stored = first_stored(read(0, 0));
    let (silence, stored) = cold_run(&stored, 1, read(3_600_000, 0));
    assert!(silence <= PACE.period, "{silence:?}");
    let (later, _) = cold_run(&stored, 1, read(3_601_000, 0));
    assert_eq!(later, silence + Duration::from_secs(1));
}

#[test]
fn a_clock_that_is_set_forward_takes_what_it_saw_with_it() {
    let before = read(0, 0);
    let (_, notes) = run(&Notes::first(before, Incarnation(1)), 1, before);
    let set_forward = read(1_000, 3_600_000);
    let (_, mut notes) = run(&notes, 1, set_forward);
    let stored = notes.to_store(PACE, 10).expect("nobody has written any");
    let (silence, _) = cold_run(&stored, 1, read(2_000, 3_600_000));
    assert!(silence <= Duration::from_secs(2), "{silence:?}");
}

/// Set back by an hour, whether an instance lives through that or the next one finds it.
#[test]
fn a_clock_that_is_set_back_does_not_keep_silent_sessions_alive() {
    let (second, hour) = (1000, 3_600_000);
    let found_later = cold_run(&first_stored(read(0, 0)), 1, read(20 * second, -hour)).1;
    let (_, notes) = run(&Notes::first(read(0, 0), Incarnation(1)), 1, read(0, 0));
    let (_, mut notes) = run(&notes, 1, read(second, -hour));
    let lived_through = notes.to_store(PACE, 10).expect("nobody has written any");
    for (stored, since) in [(found_later, 20 * second), (lived_through, 0)] {
        let runs = (1..=9).map(|run| read(since + run * second, -hour));
        let (silence, _) = runs.fold((Duration::ZERO, stored), |(_, stored), now| {
            cold_run(&stored, 1, now)
        });
        assert!(
            silence <= Duration::from_millis((since + 9 * second) as u64),
            "{silence:?}"
        );
        assert!(silence > Duration::ZERO, "what passed since has to count");
    }
}

#[test]
fn notes_are_stored_by_who_took_them_up_and_then_now_and_then() {
    let mut notes = Notes::taken_up(first_stored(read(0, 0)), read(1_000, 0), PACE);
    let mut written = Vec::new();
    for second in 1..10 {
        (_, notes) = run(&notes, 1, read(second * 1000, 0));
        written.extend(notes.to_store(PACE, 10).map(|_| second));
    }
    assert_eq!(written, [1, 5, 9]);
}

#[test]
fn who_has_been_silent_for_longest_is_stored_where_not_all_fit() {
    let now = read(0, 0);
    let mut next = Notes::first(now, Incarnation(1)).next(now);
    for (session, seen_at) in [(1, 300), (2, 100), (3, 200)] {
        Notes::first(now, Incarnation(1)).silence(
            SessionId(session),
            0,
            &mut next,
            read(seen_at, 0),
        );
    }
    let stored = next.to_store(PACE, 2).expect("nobody has written any");
    let kept: Vec<i64> = stored.seen.iter().map(|(session, ..)| session.0).collect();
    assert_eq!(kept, [2, 3]);
}

#[test]
fn sweeps_are_a_period_apart_whoever_makes_them() {
    let period = Duration::from_mins(10);
    let mut notes = Notes::first(read(0, 0), Incarnation(1));
    assert!(!notes.sweep_is_due(period));
    let later = read(600_000, 0);
    notes = Notes::taken_up(
        notes.to_store(PACE, 10).expect("nobody has written any"),
        later,
        PACE,
    );
    assert!(notes.sweep_is_due(period));
    assert!(!notes.sweep_is_due(period));
}
