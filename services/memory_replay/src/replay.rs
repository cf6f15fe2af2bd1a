//! The replay of a trace in virtual time.
//!
//! Two hit ratios are reported. The paper counts chunks (table 2): those that function memory has,
//! of those that reads ask for. An object hits if function memory has at least 10 of the 12 chunks
//! of each fragment. Otherwise the service reads the fragment from the object store alone, and
//! caches it. A recovering function does not serve, although in the paper recovery functions serve
//! its chunks meanwhile.
//!
//! Time of functions (`infinistore.txt`, figures of section 6.1.1 divided by its counts): a GET
//! takes [`GET_SECONDS`] over its 12 chunks, which includes the PUTs of the workload. A recovery
//! takes [`RECOVERY_SECONDS`], a warm-up [`WARM_UP_SECONDS`]. Loads from the object store come on
//! top, at the speed of a function (section 6.4). Failures happen at random times, to random
//! functions.

use std::{collections::BTreeMap, time::Duration};

use memory::{
    least_recently_used::LeastRecentlyUsed,
    window::{Failed, FunctionId},
};
use ports::Monotonic;
use serde::Serialize;

use crate::{
    chance::Chance,
    fixed::{Fixed, FixedFunction},
    statistics::WorkingSet,
    trace::{Operation, Request, Trace},
    windowed::{CHUNKS, CHUNKS_MIN, Fragment, GROUPS_MAX, Pacing, ROUNDS, Windowed},
    workload::Profile,
};

/// The function time of a GET: $9.09 for 182,700 of them.
pub const GET_SECONDS: f64 = 1.99;
/// The function time of a recovery, of the failed function and 20 others: $2.49 for 1,083.
pub const RECOVERY_SECONDS: f64 = 92.0;
/// The function time of a warm-up: the unit of billing when the paper's predecessor was measured.
/// With it the paper's count of functions costs what the paper says.
pub const WARM_UP_SECONDS: f64 = 0.1;
/// The time until a recovered function serves again.
const RECOVERY: Duration = Duration::from_millis(4400);
/// Bytes a second that a function reads from the object store.
pub const LOAD_BYTES_PER_SECOND: f64 = 75e6;
/// The largest fragment.
const FRAGMENT_BYTES_MAX: u64 = 200_000_000;
/// Minutes between two warm-ups of a degraded function. An active one has one a minute.
const DEGRADED_WARM_UP_MINUTES: u64 = 5;
/// A cache node cluster of the paper: 8 cache.m6g.large.
const CACHE_BYTES: u64 = 51_040_000_000;

/// The functions that hold objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// With a sliding window.
    Window {
        /// Whether missed fragments are cached.
        caches: bool,
    },
    /// A static number of functions.
    Fixed {
        /// The functions.
        functions: u32,
        /// Whether functions that fail are recovered.
        recovers: bool,
    },
}

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Of failures and of compaction.
    pub seed: u64,
    /// The functions.
    pub cluster: Cluster,
    /// The window, and the memory of a function for chunks.
    pub pacing: Pacing,
    /// The failures of functions over the whole trace.
    pub failures: u32,
}

impl Options {
    /// As in the published run of a workload: functions of 1,536 MB, of which 100 MB are overhead,
    /// and HARDCAP excludes a twentieth.
    pub fn published(profile: &Profile, hours: u64, seed: u64) -> Self {
        let (gc_interval, active_intervals, degraded_intervals) = profile.window;
        Self {
            seed,
            cluster: Cluster::Window { caches: true },
            pacing: Pacing {
                gc_interval,
                active_intervals,
                degraded_intervals,
                storage_bytes: (1536 - 100 - 1536 / 20) << 20,
                cache_bytes: (1536 / 20) << 20,
                groups_max: GROUPS_MAX,
            },
            failures: (u64::from(profile.failures) * hours / profile.hours) as u32,
        }
    }
}

/// A minute of the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The active functions.
    pub active: usize,
    /// The degraded functions.
    pub degraded: usize,
    /// The bytes of the objects that were used in the last hour.
    pub hour_bytes: u64,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Outcome {
    /// The hours of the trace.
    pub hours: u64,
    /// The PUTs.
    pub puts: u64,
    /// The GETs.
    pub gets: u64,
    /// The GETs that function memory served.
    pub hits: u64,
    /// The chunks that GETs asked for.
    pub chunk_gets: u64,
    /// Those that were in function memory, also if too few to be read.
    pub chunk_hits: u64,
    /// The GETs that a cache of 51.04 GB would have served.
    pub cache_hits: u64,
    /// Fragments loaded after a miss, and their bytes with parity.
    pub loads: u64,
    /// Bytes.
    pub loaded_bytes: u64,
    /// Fragments moved to the newest bucket.
    pub moves: u64,
    /// Cached fragments that made room for others.
    pub evicted: u64,
    /// Functions that failed.
    pub failures: u64,
    /// Functions that were recovered. The others were dropped.
    pub recoveries: u64,
    /// Their chunks.
    pub recovered_chunks: u64,
    /// Warm-ups.
    pub warm_ups: u64,
    /// The fragments in the object store at the end, all as stored once.
    pub stored_fragments: u64,
    /// The bytes in the object store at the end, with parity.
    pub stored_bytes: u64,
    /// The same over time.
    pub stored_byte_hours: f64,
    /// By minute.
    pub samples: Vec<Sample>,
}

impl Outcome {
    /// The GETs that function memory served, from 0 to 1.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.gets.max(1) as f64
    }

    /// The chunks that it had: the paper's ratio.
    pub fn chunk_hit_ratio(&self) -> f64 {
        self.chunk_hits as f64 / self.chunk_gets.max(1) as f64
    }

    /// The functions on average over the minutes.
    pub fn functions_mean(&self) -> f64 {
        let samples = self.samples.iter();
        let sum: usize = samples.map(|one| one.active + one.degraded).sum();
        sum as f64 / self.samples.len().max(1) as f64
    }

    /// The most functions in a minute.
    pub fn functions_max(&self) -> usize {
        let samples = self.samples.iter();
        let functions = samples.map(|one| one.active + one.degraded);
        functions.max().unwrap_or(0)
    }

    /// How the number of functions follows the working set: their correlation over the minutes.
    pub fn correlation(&self) -> f64 {
        let pairs = || {
            let samples = self.samples.iter();
            samples.map(|one| ((one.active + one.degraded) as f64, one.hour_bytes as f64))
        };
        let count = self.samples.len().max(1) as f64;
        let (x, y) = pairs().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / count, b + y / count));
        let sum = |of: fn(f64, f64) -> f64| pairs().map(|(a, b)| of(a - x, b - y)).sum::<f64>();
        sum(|a, b| a * b) / (sum(|a, _| a * a) * sum(|_, b| b * b)).sqrt().max(1.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AnyFunction {
    Windowed(FunctionId),
    Fixed(FixedFunction),
}

#[derive(Debug)]
enum Functions {
    Windowed(Box<Windowed>),
    Fixed(Fixed),
}

impl Functions {
    fn store(&mut self, fragment: Fragment, chunk_bytes: u64) {
        match self {
            Self::Windowed(functions) => functions.store(fragment, chunk_bytes),
            Self::Fixed(functions) => functions.store(fragment, chunk_bytes),
        }
    }

    fn cache(&mut self, fragment: Fragment, chunk_bytes: u64) {
        match self {
            Self::Windowed(functions) => functions.cache(fragment, chunk_bytes),
            Self::Fixed(functions) => functions.store(fragment, chunk_bytes),
        }
    }

    fn forget(&mut self, fragment: Fragment) {
        match self {
            Self::Windowed(functions) => functions.forget(fragment),
            Self::Fixed(functions) => functions.forget(fragment),
        }
    }

    fn chunks(&self, fragment: Fragment) -> Vec<AnyFunction> {
        match self {
            Self::Windowed(of) => of.chunks(fragment).map(AnyFunction::Windowed).collect(),
            Self::Fixed(of) => of.chunks(fragment).map(AnyFunction::Fixed).collect(),
        }
    }

    fn accessed(&mut self, fragment: Fragment, now: Monotonic) {
        match self {
            Self::Windowed(functions) => functions.accessed(fragment, now),
            Self::Fixed(functions) => functions.accessed(fragment),
        }
    }

    /// A function that fails, and whether it is recovered.
    fn fail_any(&mut self, chance: &Chance) -> Option<(AnyFunction, bool)> {
        match self {
            Self::Windowed(functions) => {
                let function = functions.any_function(chance)?;
                let is_recovered = functions.fail(function) == Failed::Restart;
                Some((AnyFunction::Windowed(function), is_recovered))
            }
            Self::Fixed(functions) => {
                let (function, is_recovered) = functions.fail_any(chance);
                Some((AnyFunction::Fixed(function), is_recovered))
            }
        }
    }

    /// The chunks of a function.
    fn chunks_count(&self, function: AnyFunction) -> usize {
        match (self, function) {
            (Self::Windowed(of), AnyFunction::Windowed(function)) => of.chunks_count(function),
            (Self::Fixed(of), AnyFunction::Fixed(function)) => of.chunks_count(function),
            _ => 0,
        }
    }

    /// Active and degraded ones.
    fn count(&self) -> (usize, usize) {
        match self {
            Self::Windowed(functions) => functions.functions_by_phase(),
            Self::Fixed(functions) => (functions.functions(), 0),
        }
    }
}

#[derive(Debug)]
struct Replay {
    functions: Functions,
    caches: bool,
    chance: Chance,
    round: Duration,
    next_round: Duration,
    next_minute: u64,
    /// The times of failures that are to come, the next one last.
    failures: Vec<Duration>,
    /// Functions that recover, and the end of that.
    recovering: BTreeMap<AnyFunction, Duration>,
    hour: WorkingSet,
    cache: LeastRecentlyUsed<Fragment>,
    /// The bytes of each object in the object store, with parity.
    stored: Vec<u64>,
    outcome: Outcome,
}

/// Replays a trace.
pub fn replay(trace: &Trace, options: &Options) -> Outcome {
    let chance = Chance::new(options.seed);
    let end = Duration::from_hours(trace.hours());
    let mut failures: Vec<_> = (0..options.failures)
        .map(|_| end.mul_f64(chance.unit()))
        .collect();
    failures.sort_unstable_by(|a, b| b.cmp(a));
    let (functions, caches) = match options.cluster {
        Cluster::Window { caches } => {
            let windowed = Windowed::new(options.pacing);
            (Functions::Windowed(Box::new(windowed)), caches)
        }
        Cluster::Fixed {
            functions,
            recovers,
        } => {
            let fixed = Fixed::new(functions, options.pacing.storage_bytes, recovers);
            (Functions::Fixed(fixed), true)
        }
    };
    let round = options.pacing.gc_interval / ROUNDS;
    let mut replay = Replay {
        functions,
        caches,
        chance,
        round,
        next_round: round,
        next_minute: 1,
        failures,
        recovering: BTreeMap::new(),
        hour: WorkingSet::new(3_600_000, trace.keys.len()),
        cache: LeastRecentlyUsed::default(),
        stored: vec![0; trace.keys.len()],
        outcome: Outcome {
            hours: trace.hours(),
            ..Outcome::default()
        },
    };
    for request in &trace.requests {
        replay.run_until(Duration::from_millis(request.at_ms));
        replay.serve(request);
    }
    replay.run_until(end);
    if let Functions::Windowed(functions) = &replay.functions {
        replay.outcome.moves = functions.moved;
        replay.outcome.evicted = functions.evicted;
    }
    replay.outcome
}

impl Replay {
    /// Runs rounds, failures and minutes in the order of their times.
    fn run_until(&mut self, now: Duration) {
        loop {
            let minute = Duration::from_mins(self.next_minute);
            let failure = self.failures.last().copied().unwrap_or(Duration::MAX);
            let next = self.next_round.min(minute).min(failure);
            if next > now {
                return;
            }
            if next == failure {
                self.failures.pop();
                self.fail(next);
            } else if next == self.next_round {
                self.next_round += self.round;
                if let Functions::Windowed(functions) = &mut self.functions {
                    functions.slide(Monotonic(next), &self.chance);
                }
            } else {
                self.minute();
            }
        }
    }

    fn fail(&mut self, now: Duration) {
        let Some((function, is_recovered)) = self.functions.fail_any(&self.chance) else {
            return;
        };
        self.outcome.failures += 1;
        if is_recovered {
            self.outcome.recoveries += 1;
            self.outcome.recovered_chunks += self.functions.chunks_count(function) as u64;
            self.recovering.retain(|_, until| *until > now);
            self.recovering.insert(function, now + RECOVERY);
        }
    }

    fn minute(&mut self) {
        let (active, degraded) = self.functions.count();
        self.hour.expire(self.next_minute * 60_000);
        self.outcome.warm_ups += active as u64;
        if self.next_minute.is_multiple_of(DEGRADED_WARM_UP_MINUTES) {
            self.outcome.warm_ups += degraded as u64;
        }
        self.outcome.stored_byte_hours += self.outcome.stored_bytes as f64 / 60.0;
        self.outcome.samples.push(Sample {
            active,
            degraded,
            hour_bytes: self.hour.bytes(),
        });
        self.next_minute += 1;
    }

    fn serve(&mut self, request: &Request) {
        let (object, bytes) = (request.object, request.bytes);
        if request.operation == Operation::Delete {
            self.delete(object);
            return;
        }
        self.hour.add(request.at_ms, object, bytes);
        if request.operation == Operation::Put {
            self.outcome.puts += 1;
            self.delete(object);
            for (fragment, chunk_bytes) in fragments(object, bytes) {
                self.functions.store(fragment, chunk_bytes);
            }
        } else {
            self.get(request);
        }
        if self.stored[object as usize] == 0 {
            let of_fragments = fragments(object, bytes);
            let stored = of_fragments.map(|(_, chunk_bytes)| chunk_bytes * u64::from(CHUNKS));
            self.stored[object as usize] = stored.sum();
            self.outcome.stored_bytes += self.stored[object as usize];
            self.outcome.stored_fragments += fragments(object, bytes).count() as u64;
        }
        self.cache.add((object, 0), bytes, CACHE_BYTES);
    }

    fn delete(&mut self, object: u32) {
        let stored = std::mem::take(&mut self.stored[object as usize]);
        self.outcome.stored_bytes -= stored;
        for (fragment, _) in fragments(object, stored) {
            self.functions.forget(fragment);
        }
        self.cache.remove((object, 0));
    }

    fn get(&mut self, request: &Request) {
        let now = Duration::from_millis(request.at_ms);
        self.outcome.gets += 1;
        let is_cached = self.cache.touch((request.object, 0));
        self.outcome.cache_hits += u64::from(is_cached);
        let mut is_hit = true;
        for (fragment, chunk_bytes) in fragments(request.object, request.bytes) {
            let chunks = self.functions.chunks(fragment);
            let is_busy = |one: &&AnyFunction| self.recovering.get(*one) > Some(&now);
            let busy = chunks.iter().filter(is_busy).count();
            let served = chunks.len() - busy;
            self.outcome.chunk_gets += u64::from(CHUNKS);
            self.outcome.chunk_hits += served as u64;
            is_hit &= served >= CHUNKS_MIN as usize;
            if chunks.len() >= CHUNKS_MIN as usize {
                self.functions.accessed(fragment, Monotonic(now));
                continue;
            }
            self.outcome.loads += 1;
            self.outcome.loaded_bytes += chunk_bytes * u64::from(CHUNKS);
            if self.caches {
                self.functions.cache(fragment, chunk_bytes);
            }
        }
        self.outcome.hits += u64::from(is_hit);
    }
}

/// The fragments of an object, with the size of a chunk of each.
fn fragments(object: u32, bytes: u64) -> impl Iterator<Item = (Fragment, u64)> {
    let count = bytes.div_ceil(FRAGMENT_BYTES_MAX).max(1);
    (0..count).map(move |index| {
        let rest = bytes - index * FRAGMENT_BYTES_MAX;
        let chunk_bytes = rest.min(FRAGMENT_BYTES_MAX).div_ceil(CHUNKS_MIN.into());
        let chunk_bytes = chunk_bytes.max(1);
        ((object, index as u32), chunk_bytes)
    })
}

#[cfg(test)]
mod tests;
