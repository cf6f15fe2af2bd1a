//! Prices as data: the charge of a cloud for each unit, with its region, date and source.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

const AWS: &str = include_str!("aws.toml");
/// A gibibyte, in which clouds bill memory and storage.
pub(super) const GIB: f64 = (1_u64 << 30) as f64;

/// The prices of a cloud.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceBook {
    pub(super) provider: String,
    pub(super) invocation: Invocation,
    pub(super) prices: Prices,
    nodes: BTreeMap<String, Node>,
}

/// The time that an invocation of function memory is assumed to take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Invocation {
    /// Without the transfer of its bytes.
    pub(super) fixed_ms: f64,
    pub(super) transfer_bytes_per_second: f64,
    source: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    pub(super) lambda_request: Price,
    pub(super) lambda_gb_second: Price,
    pub(super) s3_put: Price,
    pub(super) s3_get: Price,
    pub(super) s3_gb_month: Price,
    pub(super) dynamodb_read_unit: Price,
    pub(super) dynamodb_write_unit: Price,
    pub(super) sqs_request: Price,
}

/// The price of one unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Price {
    pub(super) usd: f64,
    pub(super) region: String,
    pub(super) date: String,
    source: String,
}

/// A node of a provisioned cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    memory_gib: f64,
    usd_per_hour: f64,
    region: String,
    date: String,
    source: String,
}

/// A provisioned cache that holds a working set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Provisioned {
    pub(super) node: String,
    pub(super) nodes: u64,
    pub(super) memory_gib: f64,
    pub(super) hours: f64,
    pub(super) usd: f64,
}

impl PriceBook {
    pub(super) fn aws() -> anyhow::Result<Self> {
        toml::from_str(AWS).context("the price book of AWS")
    }

    /// The cheapest cache of equal nodes that holds `bytes` for `hours`. None: there is no content.
    pub(super) fn provisioned(&self, bytes: u64, hours: f64) -> Option<Provisioned> {
        if bytes == 0 {
            return None;
        }
        let caches = self.nodes.iter().map(|(name, node)| {
            let nodes = (bytes as f64 / (node.memory_gib * GIB)).ceil();
            Provisioned {
                node: name.clone(),
                nodes: nodes as u64,
                memory_gib: nodes * node.memory_gib,
                hours,
                usd: nodes * node.usd_per_hour * hours,
            }
        });
        // By the price of an hour: a period without length costs nothing.
        caches.min_by(|one, other| {
            let hourly =
                |cache: &Provisioned| self.nodes[&cache.node].usd_per_hour * cache.nodes as f64;
            hourly(one).total_cmp(&hourly(other))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prices_are_those_of_the_paper() {
        let book = PriceBook::aws().expect("a price book");
        assert!((book.prices.lambda_gb_second.usd - 0.000_016_666_7).abs() < 1e-12);
        // 633.64 GB in 12 nodes for 50 hours cost 492.6 USD (`infinistore.txt`, section 6.1.1).
        let node = &book.nodes["cache.r6g.2xlarge"];
        assert!((12.0 * node.memory_gib - 633.64).abs() < 0.5);
        assert!((12.0 * node.usd_per_hour * 50.0 - 492.6).abs() < 0.1);
    }

    #[test]
    fn a_provisioned_cache_is_the_cheapest_that_holds_the_peak() {
        let book = PriceBook::aws().expect("a price book");
        assert_eq!(book.provisioned(0, 1.0), None);
        let small = book.provisioned(1, 2.0).expect("a cache");
        assert_eq!((small.node.as_str(), small.nodes), ("cache.m6g.large", 1));
        assert!((small.usd - 0.298).abs() < 1e-9);
        let fits = book.provisioned(7 << 30, 1.0).expect("a cache");
        assert_eq!((fits.node.as_str(), fits.nodes), ("cache.r6g.large", 1));
        let large = book.provisioned(40 << 30, 1.0).expect("a cache");
        assert!(large.memory_gib >= 40.0);
        assert!((large.usd - 0.821).abs() < 0.01, "{large:?}");
    }
}
