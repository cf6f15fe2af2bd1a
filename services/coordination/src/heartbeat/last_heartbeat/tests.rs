//! C-6: which time counts as silence.

use ports::Incarnation;

use super::*;

const SESSION: SessionId = SessionId(7);
const TIMING: Timing = Timing {
    period: Duration::from_secs(1),
    clocks_apart_max: Duration::from_secs(4),
};

/// A machine's clocks at a moment, in true milliseconds. Its monotonic clock started at zero.
fn read(true_ms: i64, wall_ahead_ms: i64) -> Moment {
    Moment {
        own_ms: true_ms,
        wall_ms: 1_000_000 + true_ms + wall_ahead_ms,
    }
}

/// A run that continues from `before` and sees `renewals`. Returns the silence and its
/// observations.
fn run(before: &LastHeartbeats, renewals: i64, now: Moment) -> (Duration, LastHeartbeats) {
    let mut next = before.next(now);
    let silence = before.silence(SESSION, renewals, &mut next, now);
    (silence, next)
}

/// Like [`run`], in an instance without observations of its own.
fn cold_run(stored: &StoredHeartbeats, renewals: i64, now: Moment) -> (Duration, StoredHeartbeats) {
    let (silence, mut heartbeats) = run(
        &LastHeartbeats::from_stored(stored.clone(), now, TIMING),
        renewals,
        now,
    );
    (
        silence,
        heartbeats
            .stored_if_due(TIMING, 10)
            .expect("another instance stored it"),
    )
}

fn first_stored(now: Moment) -> StoredHeartbeats {
    let (_, mut heartbeats) = run(&LastHeartbeats::first(now, Incarnation(1)), 1, now);
    heartbeats
        .stored_if_due(TIMING, 10)
        .expect("no observations are stored yet")
}

#[test]
fn an_instance_counts_by_its_own_clock_until_a_renewal() {
    let mut heartbeats = LastHeartbeats::first(read(0, 0), Incarnation(1));
    for second in 0..10 {
        // The wall clock is wrong, but the instance does not use it.
        let now = read(second * 1000, second * 3_600_000);
        assert!(heartbeats.are_fresh(now, TIMING));
        let (silence, next) = run(&heartbeats, 1, now);
        assert_eq!(silence, Duration::from_secs(second as u64));
        heartbeats = next;
    }
    assert_eq!(run(&heartbeats, 2, read(10_000, 0)).0, Duration::ZERO);
    assert!(
        !heartbeats.are_fresh(read(30_000, 0), TIMING),
        "others may have written better ones"
    );
}

/// Another machine makes each run. The computed silence never exceeds the truth, and falls short
/// only by the allowance for clock differences.
#[test]
fn cold_instances_continue_from_each_others_observations() {
    let ahead = [0, 2_000, -2_000, 1_500, -1_000];
    let mut stored = first_stored(read(0, 2_000));
    for second in 1..60 {
        let now = read(second * 1000, ahead[second as usize % ahead.len()]);
        let (silence, next) = cold_run(&stored, 1, now);
        let truth = Duration::from_secs(second as u64);
        assert!(silence <= truth, "{silence:?} after {truth:?}");
        assert!(
            silence + TIMING.clocks_apart_max * 2 >= truth,
            "{silence:?} after {truth:?}"
        );
        stored = next;
    }
}

#[test]
fn time_in_which_no_heartbeat_ran_does_not_count() {
    let stored = first_stored(read(0, 0));
    let (silence, stored) = cold_run(&stored, 1, read(3_600_000, 0));
    assert!(silence <= TIMING.period, "{silence:?}");
    let (later, _) = cold_run(&stored, 1, read(3_601_000, 0));
    assert_eq!(later, silence + Duration::from_secs(1));
}

#[test]
fn a_clock_that_is_set_forward_moves_its_observations_with_it() {
    let before = read(0, 0);
    let (_, heartbeats) = run(&LastHeartbeats::first(before, Incarnation(1)), 1, before);
    let set_forward = read(1_000, 3_600_000);
    let (_, mut heartbeats) = run(&heartbeats, 1, set_forward);
    let stored = heartbeats
        .stored_if_due(TIMING, 10)
        .expect("no observations are stored yet");
    let (silence, _) = cold_run(&stored, 1, read(2_000, 3_600_000));
    assert!(silence <= Duration::from_secs(2), "{silence:?}");
}

/// The wall clock is set back by an hour, either during an instance's life or before the next
/// instance starts.
#[test]
fn a_clock_that_is_set_back_does_not_keep_silent_sessions_alive() {
    let (second, hour) = (1000, 3_600_000);
    let found_later = cold_run(&first_stored(read(0, 0)), 1, read(20 * second, -hour)).1;
    let (_, heartbeats) = run(
        &LastHeartbeats::first(read(0, 0), Incarnation(1)),
        1,
        read(0, 0),
    );
    let (_, mut heartbeats) = run(&heartbeats, 1, read(second, -hour));
    let lived_through = heartbeats
        .stored_if_due(TIMING, 10)
        .expect("no observations are stored yet");
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
fn a_cold_instance_stores_its_observations_and_then_every_few_runs() {
    let mut heartbeats =
        LastHeartbeats::from_stored(first_stored(read(0, 0)), read(1_000, 0), TIMING);
    let mut written = Vec::new();
    for second in 1..10 {
        (_, heartbeats) = run(&heartbeats, 1, read(second * 1000, 0));
        written.extend(heartbeats.stored_if_due(TIMING, 10).map(|_| second));
    }
    assert_eq!(written, [1, 5, 9]);
}

#[test]
fn the_longest_silent_sessions_are_stored_if_not_all_fit() {
    let now = read(0, 0);
    let mut next = LastHeartbeats::first(now, Incarnation(1)).next(now);
    for (session, seen_at) in [(1, 300), (2, 100), (3, 200)] {
        LastHeartbeats::first(now, Incarnation(1)).silence(
            SessionId(session),
            0,
            &mut next,
            read(seen_at, 0),
        );
    }
    let stored = next
        .stored_if_due(TIMING, 2)
        .expect("no observations are stored yet");
    let kept: Vec<i64> = stored
        .sightings
        .iter()
        .map(|(session, ..)| session.0)
        .collect();
    assert_eq!(kept, [2, 3]);
}

#[test]
fn sweeps_are_a_period_apart_across_instances() {
    let period = Duration::from_mins(10);
    let mut heartbeats = LastHeartbeats::first(read(0, 0), Incarnation(1));
    assert!(!heartbeats.sweep_is_due(period));
    let later = read(600_000, 0);
    heartbeats = LastHeartbeats::from_stored(
        heartbeats
            .stored_if_due(TIMING, 10)
            .expect("no observations are stored yet"),
        later,
        TIMING,
    );
    assert!(heartbeats.sweep_is_due(period));
    assert!(!heartbeats.sweep_is_due(period));
}

#[test]
fn checks_fall_due_across_instances() {
    let period = Duration::from_mins(1);
    let mut heartbeats = LastHeartbeats::first(read(0, 0), Incarnation(1));
    let stored = heartbeats.stored_if_due(TIMING, 10);
    let stored = stored.expect("no observations are stored yet");
    let later = read(60_000, 0);
    let before = LastHeartbeats::from_stored(stored, later, TIMING);
    let next = before.next(later);
    assert!(next.crosses(&before, period));
    assert!(!next.next(later).crosses(&next, period));
}
