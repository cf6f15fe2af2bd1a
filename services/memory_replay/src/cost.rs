//! The cost of a replay in US dollars, by the categories of the paper's figure 10.
//!
//! The paper counts almost no charges for requests: 12 PUTs for each object would cost more than its
//! whole object store. Each category therefore has two parts, and ratios are given with and without
//! requests. An object in the store is charged from its PUT on. The paper charges all objects for
//! the whole time, which makes the ratio of the overhead smaller.

use serde::Serialize;

use crate::{
    replay::{GET_SECONDS, LOAD_BYTES_PER_SECOND, Outcome, RECOVERY_SECONDS, WARM_UP_SECONDS},
    windowed::CHUNKS,
};

/// The GB of memory of a function: 1,536 MB.
const FUNCTION_GB: f64 = 1.5;
/// The invocations of a recovery: of the failed function and 20 others.
const RECOVERY_INVOCATIONS: f64 = 21.0;
const HOURS_PER_MONTH: f64 = 730.0;

/// Prices in US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prices {
    /// A GB of a running function for a second.
    pub function_gb_second: f64,
    /// A million invocations.
    pub million_invocations: f64,
    /// A GB in the object store for a month.
    pub store_gb_month: f64,
    /// A thousand PUTs to the object store.
    pub store_thousand_puts: f64,
    /// A thousand GETs from it.
    pub store_thousand_gets: f64,
    /// All nodes of a provisioned cluster that holds every object, for an hour.
    pub storage_cluster_hour: f64,
    /// All nodes of a smaller one that is a cache of the object store, for an hour.
    pub cache_cluster_hour: f64,
}

/// AWS, us-east-1, at the time of the paper: Lambda, S3 Standard, ElastiCache with 12
/// cache.r6g.2xlarge and 8 cache.m6g.large.
pub const AWS: Prices = Prices {
    function_gb_second: 0.000_016_666_7,
    million_invocations: 0.20,
    store_gb_month: 0.023,
    store_thousand_puts: 0.005,
    store_thousand_gets: 0.0004,
    storage_cluster_hour: 12.0 * 0.821,
    cache_cluster_hour: 8.0 * 0.149,
};

/// The cost of a category.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Part {
    /// Time of functions, or storage.
    pub usage: f64,
    /// Invocations, or requests to the object store.
    pub requests: f64,
}

impl Part {
    fn total(self, with_requests: bool) -> f64 {
        self.usage + if with_requests { self.requests } else { 0.0 }
    }
}

/// The cost of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// GETs, PUTs, and loads of missed objects.
    pub io: Part,
    /// Warm-ups.
    pub warm_up: Part,
    /// Recoveries.
    pub recovery: Part,
    /// The object store.
    pub store: Part,
    /// A provisioned cluster for all objects.
    pub storage_cluster: f64,
    /// A provisioned cache, with the object store after it.
    pub cache_cluster: f64,
}

impl Cost {
    /// The cost of what happened.
    pub fn of(outcome: &Outcome, prices: &Prices) -> Self {
        let seconds = |seconds: f64| seconds * FUNCTION_GB * prices.function_gb_second;
        let invocations = |count: f64| count * prices.million_invocations / 1e6;
        let puts = |count: u64| count as f64 * prices.store_thousand_puts / 1e3;
        let gets = |count: u64| count as f64 * prices.store_thousand_gets / 1e3;
        let [loaded, warm_ups, recoveries] =
            [outcome.loaded_bytes, outcome.warm_ups, outcome.recoveries].map(|of| of as f64);
        let loads = loaded / LOAD_BYTES_PER_SECOND;
        let chunks = outcome.chunk_gets + outcome.stored_fragments * u64::from(CHUNKS);
        let store = Part {
            usage: outcome.stored_byte_hours / 1e9 / HOURS_PER_MONTH * prices.store_gb_month,
            requests: puts(outcome.stored_fragments)
                + gets(outcome.loads + outcome.moves + outcome.recovered_chunks),
        };
        let cache_misses = gets(outcome.gets - outcome.cache_hits);
        let hours = outcome.hours as f64;
        Self {
            io: Part {
                usage: seconds(outcome.gets as f64 * GET_SECONDS + loads),
                requests: invocations(chunks as f64),
            },
            warm_up: Part {
                usage: seconds(warm_ups * WARM_UP_SECONDS),
                requests: invocations(warm_ups),
            },
            recovery: Part {
                usage: seconds(recoveries * RECOVERY_SECONDS),
                requests: invocations(recoveries * RECOVERY_INVOCATIONS),
            },
            store,
            storage_cluster: prices.storage_cluster_hour * hours,
            cache_cluster: prices.cache_cluster_hour * hours
                + store.usage
                + puts(outcome.puts)
                + cache_misses,
        }
    }

    /// All of it.
    pub fn total(&self, with_requests: bool) -> f64 {
        let parts = [self.io, self.warm_up, self.recovery, self.store];
        parts.map(|part| part.total(with_requests)).iter().sum()
    }

    /// (warm-up + recovery) / (I/O + object store).
    pub fn overhead(&self, with_requests: bool) -> f64 {
        let of = |part: Part| part.total(with_requests);
        (of(self.warm_up) + of(self.recovery)) / (of(self.io) + of(self.store))
    }

    /// The same without requests, if each failed function were recovered instead of dropped.
    pub fn overhead_at_most(&self, outcome: &Outcome, prices: &Prices) -> f64 {
        let all = Outcome {
            recoveries: outcome.failures,
            ..outcome.clone()
        };
        Self::of(&all, prices).overhead(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The totals of `infinistore.txt`, section 6.1.1: $9.09 for I/O and $2.49 for recoveries; $492.6
    /// for the provisioned cluster.
    #[test]
    fn the_papers_counts_cost_what_the_paper_says() {
        let outcome = Outcome {
            hours: 50,
            gets: 182_700,
            recoveries: 1083,
            stored_byte_hours: 1053e9 * 50.0,
            ..Outcome::default()
        };
        let cost = Cost::of(&outcome, &AWS);
        for (name, found, published) in [
            ("I/O", cost.io.usage, 9.09),
            ("recovery", cost.recovery.usage, 2.49),
            ("object store", cost.store.usage, 1.68),
            ("cluster", cost.storage_cluster, 492.6),
        ] {
            assert!((found - published).abs() < 0.03, "{name}: {found}");
        }
    }
}
