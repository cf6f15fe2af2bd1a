//! S14, S15: waiting and trying again.

use std::{cell::Cell, time::Duration};

use ports::{Error, ErrorKind};
use primitives::{Backoff, retry, retry_repeatable};
use simulated::{World, run};

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(10),
    longest: Duration::from_millis(200),
    attempts_max: 8,
};

/// S14.
#[test]
fn delays_stay_below_a_doubling_ceiling_and_end() {
    const CEILINGS_MS: [u64; 7] = [10, 20, 40, 80, 160, 200, 200];
    let mut sums = std::collections::BTreeSet::new();
    let mut longest = [Duration::ZERO; CEILINGS_MS.len()];
    for seed in 0..100 {
        let chance = World::new(seed).entropy();
        let mut delays = BACKOFF.delays();
        let mut given = Vec::new();
        while let Some(delay) = delays.next_delay(&*chance) {
            given.push(delay);
        }
        assert_eq!(given.len(), 7, "one less than attempts");
        for ((delay, ceiling_ms), longest) in given.iter().zip(CEILINGS_MS).zip(&mut longest) {
            assert!(*delay <= Duration::from_millis(ceiling_ms), "{given:?}");
            *longest = (*longest).max(*delay);
        }
        sums.insert(given.iter().sum::<Duration>());
    }
    assert!(sums.len() > 90, "they differ from caller to caller");
    for (longest, ceiling_ms) in longest.iter().zip(CEILINGS_MS) {
        assert!(
            *longest > Duration::from_millis(ceiling_ms * 3 / 4),
            "{longest:?} of {ceiling_ms} ms"
        );
    }
}

/// S14: also where the first ceiling is set higher than all may be.
#[test]
fn no_delay_is_longer_than_the_longest() {
    let longest = Duration::from_millis(20);
    let backoff = Backoff {
        first: Duration::from_secs(1),
        longest,
        attempts_max: 100,
    };
    let (mut delays, chance) = (backoff.delays(), World::new(1).entropy());
    while let Some(delay) = delays.next_delay(&*chance) {
        assert!(delay <= longest, "{delay:?}");
    }
}

/// Fails with `kind` the first `failures` times; returns how it ended and how often it was tried.
fn try_through(
    kind: ErrorKind,
    failures: u32,
    repeatable: bool,
) -> (Option<ErrorKind>, u32, Duration) {
    run(async {
        let world = World::new(1);
        let (clock, chance) = (world.clock(), world.entropy());
        let tries = Cell::new(0);
        let attempt = || {
            tries.set(tries.get() + 1);
            let answer = if tries.get() <= failures {
                Err(Error::new(kind, "try"))
            } else {
                Ok(())
            };
            async { answer }
        };
        let start = clock.monotonic();
        let result = if repeatable {
            retry_repeatable(BACKOFF, &*clock, &*chance, attempt).await
        } else {
            retry(BACKOFF, &*clock, &*chance, attempt).await
        };
        (
            result.err().map(|error| error.kind()),
            tries.get(),
            clock.monotonic().since(start),
        )
    })
}

/// S14.
#[test]
fn what_is_unavailable_is_tried_again_until_attempts_run_out() {
    let unavailable = ErrorKind::Unavailable {
        retry_after_ms: None,
    };
    assert_eq!(try_through(unavailable, 3, false).0, None);
    let (error, tries, _) = try_through(unavailable, 100, false);
    assert_eq!((error, tries), (Some(unavailable), 8));
}

/// S14.
#[test]
fn a_providers_hint_is_waited_for_within_the_bound() {
    let hinted = ErrorKind::Unavailable {
        retry_after_ms: Some(150),
    };
    let (_, _, waited) = try_through(hinted, 2, false);
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    let absurd = ErrorKind::Unavailable {
        retry_after_ms: Some(u32::MAX),
    };
    let (_, _, waited) = try_through(absurd, 2, false);
    assert!(waited <= Duration::from_millis(410), "{waited:?}");
}

/// S15.
#[test]
fn an_unknown_outcome_is_repeated_only_where_that_is_safe() {
    let (error, tries, _) = try_through(ErrorKind::OutcomeUnknown, 2, false);
    assert_eq!((error, tries), (Some(ErrorKind::OutcomeUnknown), 1));
    let (error, tries, _) = try_through(ErrorKind::OutcomeUnknown, 2, true);
    assert_eq!((error, tries), (None, 3));
}

/// S15.
#[test]
fn what_waiting_does_not_help_is_not_repeated() {
    for kind in [ErrorKind::Invalid, ErrorKind::Corrupt, ErrorKind::Lost] {
        assert_eq!(try_through(kind, 1, true).1, 1);
    }
}

/// S14: the caller waits for the drawn delay, with or without a hint of the provider.
#[test]
fn the_delays_that_are_drawn_are_waited_for() {
    let chance = World::new(1).entropy();
    let mut delays = BACKOFF.delays();
    let drawn: Duration = std::iter::from_fn(|| delays.next_delay(&*chance)).sum();
    let (_, _, waited) = try_through(
        ErrorKind::Unavailable {
            retry_after_ms: None,
        },
        100,
        false,
    );
    assert!(
        drawn > Duration::from_millis(100) && waited >= drawn,
        "{waited:?} of {drawn:?}"
    );
}
