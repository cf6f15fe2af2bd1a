//! The primitives on a simulated cloud: paused holders, dead writers, lost answers, clocks that disagree.

mod backoff;
mod counter_and_list;
mod fenced_log;
mod timed_lock;
mod timed_lock_in_functions;

/// How many seeds each scenario runs; `SEEDS=1000 cargo test` runs more.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100)
}

/// How many seeds a broken variant has to show itself in.
const BROKEN_SEEDS: std::ops::Range<u64> = 0..100;

/// The most port calls one seed may make, as everywhere in simulation.
const PORT_CALLS_MAX: u64 = 2_000;
