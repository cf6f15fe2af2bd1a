//! The cases of [`Clock`] and [`Entropy`].

use std::{fmt, sync::Arc, time::Duration};

use super::{Case, PATIENCE, Spawn, eventually, in_place, together};
use crate::{Clock, Entropy};

/// Makes the provider's source of randomness from a seed.
pub type Seeded = fn(u64) -> Arc<dyn Entropy>;

/// Makes one more clock of the same process.
pub type Clocks = Arc<dyn Fn() -> Arc<dyn Clock> + Send + Sync>;

/// A clock, and how to make others and a source of randomness.
#[derive(Clone)]
pub struct Subject {
    /// The clock under test.
    pub clock: Arc<dyn Clock>,
    /// Other clocks beside it.
    pub others: Clocks,
    /// The source under test.
    pub entropy: Seeded,
    /// How the cases run sleepers beside each other.
    pub spawn: Spawn,
}

impl Subject {
    /// A subject whose sleepers run on one thread.
    pub fn new(
        clocks: impl Fn() -> Arc<dyn Clock> + Send + Sync + 'static,
        entropy: Seeded,
    ) -> Self {
        Self {
            clock: clocks(),
            others: Arc::new(clocks),
            entropy,
            spawn: in_place,
        }
    }

    /// The same with sleepers run by `spawn`.
    pub fn spawning(mut self, spawn: Spawn) -> Self {
        self.spawn = spawn;
        self
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::clock_contract!(@list);

/// One test per case of the clock contract; `run` takes a
/// [`Case<contract::clock::Subject>`](crate::contract::Case) and runs it.
#[macro_export]
macro_rules! clock_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] clock {
            cases {
                "L1" a_sleep_lasts_at_least_as_long_as_asked_for,
                "L1" monotonic_time_never_goes_back,
                "L1" sleepers_do_not_wait_for_each_other,
                "L2" the_wall_clock_goes_on_beside_the_monotonic_one,
                "L3" one_seed_gives_one_sequence,
                "L3" another_seed_gives_another_sequence,
                "L4" all_clocks_of_a_process_count_from_one_moment,
            }
        } }
    };
}

mod cases {
    use super::{Arc, Clock, Duration, PATIENCE, Subject, eventually, together};

    /// The largest error between two readings of a wall clock: twice the skew that providers may
    /// show.
    const SKEW: Duration = Duration::from_secs(4);

    /// L1.
    pub(super) async fn a_sleep_lasts_at_least_as_long_as_asked_for(subject: Subject) {
        for ms in [0, 1, 3, 20, 50] {
            let (started, asked) = (subject.clock.monotonic(), Duration::from_millis(ms));
            subject.clock.sleep(asked).await;
            let passed = subject.clock.monotonic().since(started);
            assert!(passed >= asked, "{passed:?} instead of {asked:?}");
        }
    }

    /// L1.
    pub(super) async fn monotonic_time_never_goes_back(subject: Subject) {
        let mut last = subject.clock.monotonic();
        for round in 0..1_000 {
            if round % 100 == 0 {
                subject.clock.sleep(Duration::from_millis(1)).await;
            }
            let now = subject.clock.monotonic();
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    }

    /// One after the other they would sleep for more than [`PATIENCE`].
    const SLEEPERS: usize = 5_000;

    /// L1: the sleep lasts no longer than that of another clock.
    pub(super) async fn sleepers_do_not_wait_for_each_other(subject: Subject) {
        let started = subject.clock.monotonic();
        let woken = together(
            subject.spawn,
            (0..SLEEPERS).map(|_| {
                let clock: Arc<dyn Clock> = Arc::clone(&subject.clock);
                async move {
                    clock.sleep(Duration::from_millis(100)).await;
                    clock.monotonic()
                }
            }),
        )
        .await;
        for woken in woken {
            let passed = woken.since(started);
            assert!(passed >= Duration::from_millis(100));
            assert!(passed < PATIENCE, "sleeps one after the other: {passed:?}");
        }
    }

    /// L2: it may be wrong by the machine's skew, and by no more.
    pub(super) async fn the_wall_clock_goes_on_beside_the_monotonic_one(subject: Subject) {
        let (wall, monotonic) = (subject.clock.now(), subject.clock.monotonic());
        for _ in 0..20 {
            subject.clock.sleep(Duration::from_millis(5)).await;
            let passed = subject.clock.monotonic().since(monotonic);
            let now = subject.clock.now();
            let shown = Duration::from_millis(now.ms_since(wall));
            assert!(
                shown <= passed + SKEW && shown + SKEW >= passed,
                "{shown:?} beside {passed:?}"
            );
            assert!(
                wall.ms_since(now) <= SKEW.as_millis() as u64,
                "the wall clock went back to {now:?}"
            );
        }
        eventually(&*subject.clock, "the wall clock to move", async || {
            (subject.clock.now() != wall).then_some(())
        })
        .await;
    }

    /// L3.
    pub(super) async fn one_seed_gives_one_sequence(subject: Subject) {
        let (one, other) = ((subject.entropy)(42), (subject.entropy)(42));
        for draw in 0..1_000 {
            assert_eq!(one.next_u64(), other.next_u64(), "draw {draw}");
        }
    }

    /// L3.
    pub(super) async fn another_seed_gives_another_sequence(subject: Subject) {
        let sequence = |seed| {
            let entropy = (subject.entropy)(seed);
            (0..8).map(|_| entropy.next_u64()).collect::<Vec<u64>>()
        };
        assert_ne!(sequence(1), sequence(2));
        assert!(
            sequence(3).is_sorted_by(|left, right| left != right),
            "and it goes on"
        );
    }

    /// L4.
    pub(super) async fn all_clocks_of_a_process_count_from_one_moment(subject: Subject) {
        let mut last = subject.clock.monotonic();
        for _ in 0..3 {
            subject.clock.sleep(Duration::from_millis(5)).await;
            for clock in [(subject.others)(), subject.clock.clone()] {
                let now = clock.monotonic();
                assert!(now >= last, "{now:?} by a clock made later, after {last:?}");
                last = now;
            }
        }
    }
}
