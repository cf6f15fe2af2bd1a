use super::*;
use crate::{
    cost::{AWS, Cost},
    workload::{AZURE, IBM},
};

fn registry(hours: u64, cluster: Cluster) -> (Outcome, Cost) {
    let trace = IBM.generate(hours, 1);
    let options = Options {
        cluster,
        ..Options::published(&IBM, hours, 1)
    };
    let outcome = replay(&trace, &options);
    let cost = Cost::of(&outcome, &AWS);
    (outcome, cost)
}

const WINDOW: Cluster = Cluster::Window { caches: true };

/// Section 6.1.1: 95.8 % of the chunks, and an overhead of 26 %. Of the objects the service misses
/// a little more, because it reads an incomplete fragment from the object store as a whole.
#[test]
fn a_registry_trace_is_served_from_memory_at_the_published_ratio_and_overhead() {
    let (outcome, cost) = registry(50, WINDOW);
    let chunks = outcome.chunk_hit_ratio();
    assert!(chunks >= 0.958, "{chunks}");
    assert!(outcome.hit_ratio() >= 0.95, "{}", outcome.hit_ratio());
    assert!(outcome.hit_ratio() < chunks);
    assert!(cost.overhead(false) <= 0.26, "{}", cost.overhead(false));
    assert!(cost.overhead(true) <= 0.26, "{}", cost.overhead(true));
    assert!(cost.storage_cluster / cost.total(true) > 30.0);
    assert!(outcome.correlation() > 0.5, "{}", outcome.correlation());
    assert_eq!(outcome.failures, 1083);
}

/// Without failures only objects that were not read for three hours are missed.
#[test]
fn without_failures_misses_are_long_gaps_alone() {
    let trace = IBM.generate(50, 1);
    let options = Options {
        failures: 0,
        ..Options::published(&IBM, 50, 1)
    };
    let outcome = replay(&trace, &options);
    let mut last = vec![None; trace.keys.len()];
    let is_long = |request: &&Request| {
        let before = last[request.object as usize].replace(request.at_ms);
        before.is_some_and(|before: u64| request.at_ms - before > 170 * 60_000)
    };
    let long = trace.requests.iter().filter(is_long).count() as u64;
    let missed = outcome.gets - outcome.hits;
    assert!(missed > 0 && missed <= long, "{missed} missed of {long}");
    assert_eq!(outcome.recoveries, 0);
}

#[test]
fn a_replay_with_a_seed_gives_the_same_outcome_again() {
    let (outcome, _) = registry(6, WINDOW);
    assert_eq!(outcome, registry(6, WINDOW).0);
    let trace = IBM.generate(6, 1);
    let other = replay(&trace, &Options::published(&IBM, 6, 2));
    assert_ne!(outcome, other, "the failures are others");
}

/// Section 6.5.
#[test]
fn each_part_of_the_design_is_worth_its_cost() {
    let (ours, cost) = registry(24, WINDOW);
    let (no_cache, _) = registry(24, Cluster::Window { caches: false });
    assert!(no_cache.hits < ours.hits, "no cache functions");
    let fixed = |functions, recovers| {
        registry(
            24,
            Cluster::Fixed {
                functions,
                recovers,
            },
        )
    };
    let (_, static_95) = fixed(95, true);
    assert!(static_95.total(false) > cost.total(false), "static 95");
    let (recovered, static_400) = fixed(400, true);
    assert!(
        static_400.total(false) > static_95.total(false),
        "static 400"
    );
    let (lossy, _) = fixed(400, false);
    assert!(lossy.hits < recovered.hits, "without recovery");
}

#[test]
fn a_blob_trace_is_served_from_memory() {
    let trace = AZURE.generate(5, 1);
    let outcome = replay(&trace, &Options::published(&AZURE, 5, 1));
    assert!(outcome.hit_ratio() > 0.98, "{}", outcome.hit_ratio());
}

/// The window ends with the workload: nothing is warmed up any more.
#[test]
fn no_function_is_left_after_the_window_has_passed_without_requests() {
    let text = "time_ms,operation,key,size\n0,put,a,1000\n86400000,get,a,1000\n";
    let trace = Trace::parse(text).expect("a trace");
    let outcome = replay(&trace, &Options::published(&IBM, 24, 1));
    let functions = |minute: usize| {
        let sample = outcome.samples[minute];
        sample.active + sample.degraded
    };
    assert_eq!(functions(1), 12);
    assert_eq!(functions(10 * 60), 0);
    assert_eq!((outcome.gets, outcome.hits), (1, 0));
}

/// Section 5.4: what reads miss is cached in the functions that are there, and makes room for more
/// of it.
#[test]
fn cold_reads_take_the_cache_of_one_group_and_replace_each_other() {
    let mut text = "time_ms,operation,key,size\n".to_owned();
    for (at_ms, operation) in [(0, "put"), (86_400_000, "get")] {
        for key in 0..40 {
            let line = [
                &(at_ms + key).to_string(),
                operation,
                &key.to_string(),
                "1000000000\n",
            ];
            text += &line.join(",");
        }
    }
    let trace = Trace::parse(&text).expect("a trace");
    let options = Options {
        failures: 0,
        ..Options::published(&IBM, 25, 1)
    };
    let outcome = replay(&trace, &options);
    assert_eq!((outcome.gets, outcome.hits, outcome.loads), (40, 0, 200));
    assert!(outcome.evicted > 100, "{}", outcome.evicted);
    assert_eq!(outcome.samples[1].active, 36);
    assert_eq!(outcome.samples[24 * 60].active, 12);
    let without = Options {
        cluster: Cluster::Window { caches: false },
        ..options
    };
    assert_eq!(replay(&trace, &without).samples[24 * 60].active, 0);
}
