//! Several processes on one store: who is a member, who leads, and what one may answer that the others may miss.

use std::{panic, time::Duration};

use fastrand::Rng;
use ports::Clock;
use simulated::{World, percent};
use simulation::{
    budget::Budget,
    processes::{Dropped, Processes, reach::Ability},
    scenario::seeds,
    transactions::mortal::Side,
};
use transactions::broken::Broken;

/// How many seeds a broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 400;
/// What the design promises of a member that is gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// How long everything may take that goes well.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a death may wait for the call that it was ordered for.
const STRIKES_WITHIN: Duration = Duration::from_secs(2);
/// From one look at all processes to the next.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What befalls a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It dies, between any two of its calls.
    Dies,
    /// It stands still for a while, or is cut off from the store.
    Suffers(Ability),
}

/// What is run.
#[derive(Debug, Clone, Copy)]
struct Story {
    processes: usize,
    fates: usize,
    dropped: Dropped,
}

/// What a run came to.
#[derive(Debug)]
struct Ending {
    violations: Vec<String>,
    port_calls: u64,
    trace_hash: u64,
}

impl Story {
    fn run(self, seed: u64) -> Ending {
        simulated::run(self.play(seed))
    }

    async fn play(self, seed: u64) -> Ending {
        let (world, mut rng) = (World::new(seed), Rng::with_seed(seed));
        world.faults().delay(
            percent(20),
            Duration::ZERO..=Duration::from_millis(rng.u64(1..=20)),
        );
        let clock = world.clock();
        let processes = Processes::new(&world, self.dropped);
        for _ in 0..self.processes {
            processes.start();
        }
        let mut violations = Vec::new();
        if !comes_true(&*clock, PATIENCE, || processes.are_whole()).await {
            violations.push("not everybody has joined".to_owned());
        }
        let mut has_suffered = false;
        for _ in 0..self.fates {
            let fates = [
                Fate::Dies,
                Fate::Suffers(Ability::Nothing),
                Fate::Suffers(Ability::NoCalls),
            ];
            let fate = fates[rng.usize(..fates.len())];
            let late = self.strike(fate, &processes, &*clock, &mut rng).await;
            // Who is about to become a member, or one again, judges nobody, and begins to count when it is one.
            violations.extend(late.filter(|_| !has_suffered));
            has_suffered |= fate != Fate::Dies;
            clock.sleep(Duration::from_millis(rng.u64(0..1_000))).await;
        }
        world.faults().calm();
        if !comes_true(&*clock, PATIENCE, || processes.are_whole()).await {
            violations.push("not everybody is a member in the end".to_owned());
        }
        violations.append(&mut processes.witness().violations);
        let trace = world.trace();
        if std::env::var_os("LANDFAST_HISTORY").is_some() {
            trace.entries().for_each(|entry| println!("{entry:?}"));
        }
        Ending {
            violations,
            port_calls: world.port_calls(),
            trace_hash: trace.hash(),
        }
    }

    /// One fate of one process, and what came of it that may not be.
    async fn strike(
        self,
        fate: Fate,
        processes: &Processes,
        clock: &dyn Clock,
        rng: &mut Rng,
    ) -> Option<String> {
        let process = rng.usize(0..processes.count());
        let reach = processes.reach(process);
        match fate {
            Fate::Dies => {
                let side = if rng.bool() {
                    Side::Before
                } else {
                    Side::After
                };
                reach.life().ends_after(rng.u64(0..12), side);
                // The call may be one that waits for a message: then it dies while it waits.
                comes_true(clock, STRIKES_WITHIN, || reach.life().is_over()).await;
                let was_whole = processes.are_whole();
                let node = processes.kill(process);
                let is_missed = match node {
                    Some(node) if was_whole => {
                        comes_true(clock, GONE_WITHIN, || processes.have_missed(node)).await
                    }
                    _ => true,
                };
                processes.start();
                (!is_missed)
                    .then(|| format!("{node:?} is a member {GONE_WITHIN:?} after its death"))
            }
            Fate::Suffers(ability) => {
                reach.set(ability);
                clock
                    .sleep(Duration::from_millis(rng.u64(100..4_500)))
                    .await;
                reach.set(Ability::All);
                None
            }
        }
    }

    /// Runs every seed asked for and panics at the first that violates anything.
    fn holds(self, test: &str) {
        let mut budget = Budget::default();
        for seed in seeds() {
            let ending = self.run(seed);
            assert!(
                ending.violations.is_empty(),
                "seed {seed} of {test}:\n  {}\nreplay: LANDFAST_SEED={seed} cargo test --profile simulation -p \
                 landfast-simulation {test}",
                ending.violations.join("\n  ")
            );
            budget.spend(seed, ending.port_calls);
        }
        budget.report(test);
    }

    /// Panics if a broken variant shows nothing. One that panics shows nothing either.
    fn is_caught(self) {
        let quiet = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let shows = |seed| {
            panic::catch_unwind(|| self.run(seed)).is_ok_and(|ending| !ending.violations.is_empty())
        };
        let caught = (0..SEEDS_UNTIL_CAUGHT).any(shows);
        panic::set_hook(quiet);
        assert!(
            caught,
            "{:?} was not caught by {SEEDS_UNTIL_CAUGHT} seeds",
            self.dropped
        );
    }
}

/// Whether `condition` holds at some moment within `time`.
async fn comes_true(clock: &dyn Clock, time: Duration, condition: impl Fn() -> bool) -> bool {
    let until = clock.monotonic() + time;
    while !condition() {
        if clock.monotonic() >= until {
            return false;
        }
        clock.sleep(LOOK_AGAIN).await;
    }
    true
}

fn three() -> Story {
    Story {
        processes: 3,
        fates: 2,
        dropped: Dropped::default(),
    }
}

/// T10, C-6: nobody answers whom others take for gone, nobody leads behind another's back, and who dies is out in time.
#[test]
fn members_are_missed_in_time_and_never_too_early() {
    three().holds("members_are_missed_in_time_and_never_too_early");
}

/// T10: the same of two, one of which is all that is left.
#[test]
fn one_of_two_processes_goes_on_alone() {
    Story {
        processes: 2,
        fates: 3,
        ..three()
    }
    .holds("one_of_two_processes_goes_on_alone");
}

/// T10, broken: the lease is not looked at.
#[test]
fn answering_without_a_lease_is_caught() {
    let dropped = Dropped {
        membership: Some(Broken::AnswersWithoutLease),
        ..Dropped::default()
    };
    Story { dropped, ..three() }.is_caught();
}

/// C-6, broken: a member is condemned before its silence has lasted.
#[test]
fn condemning_members_at_their_first_silence_is_caught() {
    let broken = Some(coordination::broken::Broken::ExpiresAtFirstSilence);
    Story {
        dropped: Dropped {
            coordination: broken,
            ..Dropped::default()
        },
        ..three()
    }
    .is_caught();
}

/// One seed, one run.
#[test]
fn a_run_of_several_processes_is_reproduced_by_its_seed() {
    for seed in 0..5 {
        let (first, second) = (three().run(seed), three().run(seed));
        assert_eq!(
            (first.trace_hash, first.port_calls),
            (second.trace_hash, second.port_calls),
            "seed {seed}"
        );
    }
}
