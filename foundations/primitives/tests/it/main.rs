//! The primitives on a simulated cloud: paused and dead writers, lost answers.

mod backoff;
mod counter;
mod fenced_log;
mod record;
mod round_trips;

/// The seeds that a scenario plays: those asked for, or a few.
fn seeds() -> std::ops::Range<u64> {
    let seeds = simulated::seeds(100);
    println!("{} seeds", seeds.end - seeds.start);
    seeds
}

/// How many seeds a broken variant has to show itself in.
const BROKEN_SEEDS: std::ops::Range<u64> = 0..100;

/// The most port calls one seed may make, as everywhere in simulation.
const PORT_CALLS_MAX: u64 = 2_000;
