//! Several processes on one store: membership, leadership, and the right to answer.

use std::{panic, time::Duration};

use fastrand::Rng;
use ports::Clock;
use simulated::{World, percent};
use simulation::{
    budget::Budget,
    processes::{Dropped, Processes, partitionable::Ability},
    scenario::seeds,
    transactions::crashable::Side,
};
use transactions::broken::Broken;

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 400;
/// The promised time until a dead member is removed.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The longest time for everything without faults.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an ordered death may wait for its call.
const STRIKES_WITHIN: Duration = Duration::from_secs(2);
/// The time between two checks of all processes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The fault of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessFault {
    /// It dies, between any two of its calls.
    Dies,
    /// It is paused for a while, or partitioned from the store.
    Suffers(Ability),
}

/// A scenario.
#[derive(Debug, Clone, Copy)]
struct MembershipScenario {
    processes: usize,
    faults: usize,
    dropped: Dropped,
}

/// The result of a run.
#[derive(Debug)]
struct Ending {
    violations: Vec<String>,
    port_calls: u64,
    trace_hash: u64,
}

impl MembershipScenario {
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
        for _ in 0..self.faults {
            let faults = [
                ProcessFault::Dies,
                ProcessFault::Suffers(Ability::Nothing),
                ProcessFault::Suffers(Ability::NoCalls),
            ];
            let fault = faults[rng.usize(..faults.len())];
            let late = self.strike(fault, &processes, &*clock, &mut rng).await;
            // A process that is about to join, or to join again, condemns no other, and starts
            // counting once it is a member.
            violations.extend(late.filter(|_| !has_suffered));
            has_suffered |= fault != ProcessFault::Dies;
            clock.sleep(Duration::from_millis(rng.u64(0..1_000))).await;
        }
        world.faults().calm();
        if !comes_true(&*clock, PATIENCE, || processes.are_whole()).await {
            violations.push("not everybody is a member in the end".to_owned());
        }
        violations.append(&mut processes.observer().violations);
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

    /// One fault of one process, and the resulting violations.
    async fn strike(
        self,
        fault: ProcessFault,
        processes: &Processes,
        clock: &dyn Clock,
        rng: &mut Rng,
    ) -> Option<String> {
        let process = rng.usize(0..processes.count());
        let control = processes.control(process);
        match fault {
            ProcessFault::Dies => {
                let side = if rng.bool() {
                    Side::Before
                } else {
                    Side::After
                };
                control.life().ends_after(rng.u64(0..12), side);
                // The call may be one that waits for a message: the process then dies while it
                // waits.
                comes_true(clock, STRIKES_WITHIN, || control.life().is_over()).await;
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
            ProcessFault::Suffers(ability) => {
                control.set(ability);
                clock
                    .sleep(Duration::from_millis(rng.u64(100..4_500)))
                    .await;
                control.set(Ability::All);
                None
            }
        }
    }

    /// Runs every requested seed and panics at the first violation.
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

    /// Panics if the mutant shows no violation. A seed that panics does not count.
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

fn three() -> MembershipScenario {
    MembershipScenario {
        processes: 3,
        faults: 2,
        dropped: Dropped::default(),
    }
}

/// T10, C-6: no process answers that others consider gone, no two lead at once, and a dead process
/// is removed in time.
#[test]
fn dead_members_are_removed_in_time_and_never_too_early() {
    three().holds("dead_members_are_removed_in_time_and_never_too_early");
}

/// T10: the same with two processes, of which one remains.
#[test]
fn one_of_two_processes_continues_alone() {
    MembershipScenario {
        processes: 2,
        faults: 3,
        ..three()
    }
    .holds("one_of_two_processes_continues_alone");
}

/// T10, broken: the lease is ignored.
#[test]
fn answering_without_a_lease_is_caught() {
    let dropped = Dropped {
        membership: Some(Broken::AnswersWithoutLease),
        ..Dropped::default()
    };
    MembershipScenario { dropped, ..three() }.is_caught();
}

/// C-6, broken: a member is condemned before its silence has lasted long enough.
#[test]
fn condemning_members_at_their_first_silence_is_caught() {
    let broken = Some(coordination::broken::Broken::ExpiresAtFirstSilence);
    MembershipScenario {
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
