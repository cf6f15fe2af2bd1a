//! Scale-out under GET (`infinistore.txt`, sections 5.3.3 and 6.3): more and more clients read at
//! the same time, until functions have all the requests that they take.
//!
//! Each client reads one object after the other. A read asks the 12 functions of a copy for a chunk
//! each, and ends with the tenth reply. A function sends one chunk at a time. If each copy has a
//! function with [`Options::requests_max`] requests on their way, the object is copied from the
//! object store into the cache partition of a group that has none such, and the read is served from
//! there. The window grows for it as for a PUT, up to [`Options::groups_max`]. Without a place the
//! read waits in the shortest queue.
//!
//! The service itself needs none of this: its reads take the shared memory of an instance, and
//! never wait for one. On a provider of instances without shared memory they would.
//!
//! Times are assumed: of a call, of the start of an instance, and of the first byte from the object
//! store. The paper gives the speed of a function (section 6.4), not the bound on its queue, nor
//! how often each object is read.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use memory::window::{FunctionId, GroupId};
use ports::{Entropy as _, Monotonic};
use serde::Serialize;

use crate::{
    chance::Chance,
    replay::LOAD_BYTES_PER_SECOND,
    windowed::{CHUNKS, CHUNKS_MIN, Pacing, Windowed},
};

/// The call of a running instance.
const CALL: Duration = Duration::from_millis(15);
/// The start of an instance.
const START: Duration = Duration::from_millis(250);
/// The first byte from the object store.
const STORE: Duration = Duration::from_millis(40);
/// The most copies of an object.
const COPIES_MAX: u32 = 64;

/// A run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Of the objects that are read.
    pub seed: u64,
    /// The objects.
    pub objects: u32,
    /// The bytes of each.
    pub object_bytes: u64,
    /// The Zipfian coefficient of their popularity.
    pub zipf: f64,
    /// The clients of each step.
    pub clients: [u32; 3],
    /// The length of a step.
    pub step: Duration,
    /// The requests on their way to a function at which it is overloaded.
    pub requests_max: usize,
    /// The most groups: the bound on all memory.
    pub groups_max: usize,
    /// Whether objects are copied.
    pub caches: bool,
}

impl Options {
    /// As in section 6.3: 10 machines with 1, 5 and 10 threads for 20 seconds each, 211 GB in
    /// objects of 10 MB, functions of 1,536 MB. The rest is assumed: YCSB's popularity, 4 requests,
    /// 600 GB.
    pub fn published(seed: u64, caches: bool) -> Self {
        Self {
            seed,
            objects: 21_100,
            object_bytes: 10_000_000,
            zipf: 0.99,
            clients: [10, 50, 100],
            step: Duration::from_secs(20),
            requests_max: 4,
            groups_max: 33,
            caches,
        }
    }
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Step {
    /// The clients that read at a time.
    pub clients: u32,
    /// The reads that ended.
    pub gets: u64,
    /// Their bytes in a second.
    pub bytes_per_second: f64,
    /// The median of their times, in milliseconds.
    pub p50_ms: f64,
    /// The time of nine in ten.
    pub p90_ms: f64,
    /// The reads that made a copy.
    pub copies: u64,
    /// The functions at the end.
    pub functions: usize,
}

/// The requests of a function.
#[derive(Debug, Default)]
struct Queue {
    /// When each request on its way ends, in order.
    ends: VecDeque<Duration>,
}

impl Queue {
    /// The requests on their way.
    fn requests(&self, now: Duration) -> usize {
        self.ends.len() - self.ends.partition_point(|end| *end <= now)
    }
}

struct Run {
    options: Options,
    memory: Windowed,
    queues: BTreeMap<FunctionId, Queue>,
    /// The most copies that each object ever had, with the stored one.
    copies: BTreeMap<u32, u32>,
    chunk_bytes: u64,
}

/// Runs the steps.
pub fn run(options: &Options) -> Vec<Step> {
    let chance = Chance::new(options.seed);
    let mut run = Run::new(*options);
    let popularity = zipfian(options.objects, options.zipf);
    let mut steps: Vec<Step> = Vec::new();
    // The times at which clients read again.
    let mut clients = BTreeSet::new();
    for (number, count) in (0..).zip(options.clients) {
        let (begin, end) = (options.step * number, options.step * (number + 1));
        for client in clients.len() as u32..count {
            clients.insert((begin, client));
        }
        let (mut times, mut copies) = (Vec::new(), 0);
        while let Some((now, client)) = clients.first().copied().filter(|(now, _)| *now < end) {
            clients.remove(&(now, client));
            let drawn = chance.unit();
            let object = popularity.partition_point(|share| *share < drawn) as u32;
            let (ended, is_copied) = run.read(object.min(options.objects - 1), now);
            times.push(ended.saturating_sub(now));
            copies += u64::from(is_copied);
            clients.insert((ended, client));
        }
        times.sort_unstable();
        let time = |share: f64| {
            let at = (times.len() as f64 * share) as usize;
            times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        let bytes = times.len() as u64 * options.object_bytes;
        steps.push(Step {
            clients: count,
            gets: times.len() as u64,
            bytes_per_second: bytes as f64 / options.step.as_secs_f64(),
            p50_ms: time(0.5),
            p90_ms: time(0.9),
            copies,
            functions: run.memory.functions().count(),
        });
    }
    steps
}

/// The sums of the shares of the objects, by rank.
fn zipfian(objects: u32, coefficient: f64) -> Vec<f64> {
    let weights = (1..=objects).map(|rank| f64::from(rank).powf(-coefficient));
    let sums = weights.scan(0.0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    let sums: Vec<f64> = sums.collect();
    let all = sums.last().copied().unwrap_or(1.0);
    sums.into_iter().map(|sum| sum / all).collect()
}

impl Run {
    /// With all objects stored in their functions.
    fn new(options: Options) -> Self {
        let published = crate::replay::Options::published(&crate::workload::IBM, 50, options.seed);
        let mut memory = Windowed::new(Pacing {
            groups_max: options.groups_max,
            ..published.pacing
        });
        let chunk_bytes = options.object_bytes.div_ceil(CHUNKS_MIN.into());
        // Objects arrive in an order that says nothing of their popularity.
        let chance = Chance::new(!options.seed);
        let mut objects: Vec<_> = (0..options.objects).collect();
        for at in (1..objects.len()).rev() {
            objects.swap(at, chance.below(at as u64 + 1) as usize);
        }
        for object in objects {
            memory.store((object, 0), chunk_bytes);
        }
        let queues = memory.functions().map(|of| (of, Queue::default()));
        Self {
            queues: queues.collect(),
            options,
            memory,
            copies: BTreeMap::new(),
            chunk_bytes,
        }
    }

    fn requests(&self, function: FunctionId, now: Duration) -> usize {
        let queue = self.queues.get(&function);
        queue.map_or(0, |queue| queue.requests(now))
    }

    /// The most requests of a copy's functions. None: it is not in memory.
    fn load(&self, object: u32, copy: u32, now: Duration) -> Option<usize> {
        let functions = self.memory.chunks((object, copy));
        functions.map(|of| self.requests(of, now)).max()
    }

    /// When a read of the object ends, and whether it makes a copy.
    fn read(&mut self, object: u32, now: Duration) -> (Duration, bool) {
        let known = self.copies.get(&object).copied().unwrap_or(1);
        let loads = (0..known).filter_map(|copy| Some((self.load(object, copy, now)?, copy)));
        let (load, least) = loads.min().unwrap_or((0, 0));
        if load >= self.options.requests_max
            && self.options.caches
            && let Some(copy) = self.copy(object, now)
        {
            return (self.serve(object, copy, now, STORE), true);
        }
        self.memory.accessed((object, least), Monotonic::default());
        (self.serve(object, least, now, Duration::ZERO), false)
    }

    /// Places a copy in the cache of a group without an overloaded function.
    fn copy(&mut self, object: u32, now: Duration) -> Option<u32> {
        let known = self.copies.get(&object).copied().unwrap_or(1);
        let is_evicted = |copy: &u32| self.load(object, *copy, now).is_none();
        let copy = (1..known).find(is_evicted).unwrap_or(known);
        if copy > COPIES_MAX {
            return None;
        }
        let (queues, requests_max) = (&self.queues, self.options.requests_max);
        let is_overloaded = |queue: &Queue| queue.requests(now) >= requests_max;
        let is_busy = |group: GroupId| {
            let from = FunctionId { group, index: 0 };
            let to = FunctionId {
                group,
                index: CHUNKS,
            };
            queues
                .range(from..to)
                .any(|(_, queue)| is_overloaded(queue))
        };
        let is_placed = self.memory.copy((object, copy), self.chunk_bytes, is_busy);
        is_placed.then(|| {
            self.copies.insert(object, known.max(copy + 1));
            copy
        })
    }

    /// When the tenth of a copy's functions has sent its chunk, which takes `more` to begin.
    fn serve(&mut self, object: u32, copy: u32, now: Duration, more: Duration) -> Duration {
        let transfer = Duration::from_secs_f64(self.chunk_bytes as f64 / LOAD_BYTES_PER_SECOND);
        let functions: Vec<_> = self.memory.chunks((object, copy)).collect();
        let ends = functions.into_iter().map(|function| {
            let is_new = !self.queues.contains_key(&function);
            let queue = self.queues.entry(function).or_default();
            let ended = queue.ends.partition_point(|end| *end <= now);
            queue.ends.drain(..ended);
            let start = if is_new { START } else { Duration::ZERO };
            let free = queue.ends.back().copied().unwrap_or(now);
            let end = free + start + CALL + more + transfer;
            queue.ends.push_back(end);
            end
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_unstable();
        ends.get(CHUNKS_MIN as usize - 1)
            .copied()
            .unwrap_or(now + STORE)
    }
}

/// The steps as a table.
pub fn table(name: &str, steps: &[Step]) -> String {
    let row = |step: &Step| {
        format!(
            "{name:<26} {:>7} {:>8} {:>6.2} {:>7.0} {:>7.0} {:>7} {:>10}\n",
            step.clients,
            step.gets,
            step.bytes_per_second / 1e9,
            step.p50_ms,
            step.p90_ms,
            step.copies,
            step.functions
        )
    };
    steps.iter().map(row).collect()
}

/// The heading of [`table`].
pub const HEADING: &str =
    "functions                  clients     GETs   GB/s  p50 ms  p90 ms  copies  functions\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn last(options: &Options) -> Step {
        let steps = run(options);
        *steps.last().expect("three steps")
    }

    /// Section 6.3: throughput grows with the clients, because hot objects are copied to further
    /// functions.
    #[test]
    fn reads_scale_out_over_copies_in_the_cache() {
        let ours = run(&Options::published(1, true));
        assert!(
            ours[2].bytes_per_second > 3.0 * ours[0].bytes_per_second,
            "{ours:?}"
        );
        assert!(
            ours[2].copies > 0 && ours[2].functions > ours[0].functions,
            "{ours:?}"
        );
        let without = last(&Options::published(1, false));
        assert_eq!(without.copies, 0);
        assert!(
            ours[2].bytes_per_second > 1.5 * without.bytes_per_second,
            "{without:?}"
        );
        assert!(ours[2].p90_ms < without.p90_ms, "{without:?}");
    }

    #[test]
    fn copies_stay_within_the_bound_on_memory() {
        let stored = last(&Options::published(1, false)).functions;
        let groups_max = stored / usize::from(CHUNKS) + 1;
        let bounded = Options {
            groups_max,
            ..Options::published(1, true)
        };
        let steps = run(&bounded);
        assert!(steps.iter().any(|step| step.copies > 0), "{steps:?}");
        assert_eq!(steps[2].functions, groups_max * usize::from(CHUNKS));
    }

    #[test]
    fn clients_that_overload_no_function_copy_nothing() {
        let few = Options {
            clients: [1, 2, 4],
            ..Options::published(1, true)
        };
        assert!(run(&few).iter().all(|step| step.copies == 0));
    }
}
