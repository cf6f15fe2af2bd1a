//! A replay as text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    cost::{Cost, Prices},
    replay::{Cluster, Outcome},
};

/// A replay with its cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The functions that were replayed.
    pub name: String,
    /// Chunks that function memory had, from 0 to 1: the paper's ratio.
    pub chunk_hit_ratio: f64,
    /// Objects that it served.
    pub hit_ratio: f64,
    /// (warm-up + recovery) / (I/O + object store), without charges for requests.
    pub overhead: f64,
    /// With them.
    pub overhead_with_requests: f64,
    /// Without them, if every failed function were recovered.
    pub overhead_at_most: f64,
    /// The functions on average, and at most.
    pub functions: (f64, usize),
    /// The correlation of the number of functions with the working set of an hour.
    pub correlation: f64,
    /// The cost.
    pub cost: Cost,
    /// What happened.
    pub outcome: Outcome,
}

impl Report {
    /// The report on an outcome.
    pub fn new(cluster: Cluster, outcome: Outcome, prices: &Prices) -> Self {
        let cost = Cost::of(&outcome, prices);
        Self {
            name: Self::name(cluster),
            chunk_hit_ratio: outcome.chunk_hit_ratio(),
            hit_ratio: outcome.hit_ratio(),
            overhead: cost.overhead(false),
            overhead_with_requests: cost.overhead(true),
            overhead_at_most: cost.overhead_at_most(&outcome, prices),
            functions: (outcome.functions_mean(), outcome.functions_max()),
            correlation: outcome.correlation(),
            cost,
            outcome,
        }
    }

    /// A cluster in words.
    pub fn name(cluster: Cluster) -> String {
        match cluster {
            Cluster::Window { caches: true } => "sliding window".to_owned(),
            Cluster::Window { caches: false } => "sliding window, no cache".to_owned(),
            Cluster::Fixed {
                functions,
                recovers,
            } => format!(
                "static {functions}{}",
                if recovers { "" } else { ", no recovery" }
            ),
        }
    }

    /// All figures, a line each.
    pub fn text(&self) -> String {
        let Self { outcome, cost, .. } = self;
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<14}{value}");
        };
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        line(
            "trace",
            format!(
                "{} h, {} PUTs, {} GETs, {:.0} GB stored with parity",
                outcome.hours,
                outcome.puts,
                outcome.gets,
                outcome.stored_bytes as f64 / 1e9
            ),
        );
        line(
            "functions",
            format!("{}: {}", self.name, self.functions_text()),
        );
        line(
            "hits",
            format!(
                "chunks {}, as the paper counts; objects {}",
                percent(self.chunk_hit_ratio),
                percent(self.hit_ratio)
            ),
        );
        line(
            "failures",
            format!(
                "{}: {} functions recovered, the others dropped",
                outcome.failures, outcome.recoveries
            ),
        );
        line("cost", cost_text(cost));
        line(
            "overhead",
            format!(
                "{} ({} with requests, {} if every failed function were recovered)",
                percent(self.overhead),
                percent(self.overhead_with_requests),
                percent(self.overhead_at_most)
            ),
        );
        line("provisioned", self.provisioned_text());
        text
    }

    fn provisioned_text(&self) -> String {
        let Self { outcome, cost, .. } = self;
        let times = |cluster: f64| cluster / cost.total(true);
        format!(
            "${:.2} for all objects in memory ({:.1}x), ${:.2} for a cache before the store ({:.1}x, {:.2} % hits)",
            cost.storage_cluster,
            times(cost.storage_cluster),
            cost.cache_cluster,
            times(cost.cache_cluster),
            outcome.cache_hits as f64 / outcome.gets.max(1) as f64 * 100.0
        )
    }

    fn functions_text(&self) -> String {
        let (mean, most) = self.functions;
        format!(
            "{mean:.0} on average, {most} at most, correlation with the working set of an hour {:.2}",
            self.correlation
        )
    }

    /// The heading of [`Self::row`].
    pub fn heading() -> &'static str {
        "functions                        hits chunks    objects   functions   I/O $  warm-up $  recovery $  store $  total $  overhead\n"
    }

    /// The main figures in one line of a table, without charges for requests.
    pub fn row(&self) -> String {
        let Cost {
            io,
            warm_up,
            recovery,
            store,
            ..
        } = self.cost;
        format!(
            "{:<32} {:>9.2} % {:>8.2} % {:>11.0} {:>7.2} {:>10.2} {:>11.2} {:>8.2} {:>8.2} {:>7.1} %\n",
            self.name,
            self.chunk_hit_ratio * 100.0,
            self.hit_ratio * 100.0,
            self.functions.0,
            io.usage,
            warm_up.usage,
            recovery.usage,
            store.usage,
            self.cost.total(false),
            self.overhead * 100.0
        )
    }
}

fn cost_text(cost: &Cost) -> String {
    let part = |name: &str, usage: f64, requests: f64| format!("{name} {usage:.2} + {requests:.2}");
    let parts = [
        part("I/O", cost.io.usage, cost.io.requests),
        part("warm-up", cost.warm_up.usage, cost.warm_up.requests),
        part("recovery", cost.recovery.usage, cost.recovery.requests),
        part("object store", cost.store.usage, cost.store.requests),
    ];
    format!(
        "${:.2}, ${:.2} with requests: {}",
        cost.total(false),
        cost.total(true),
        parts.join(", ")
    )
}
