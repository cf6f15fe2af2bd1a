//! Transactions of functions beside the same reads and writes on plain Redis: anomalies, latency, throughput.
//!
//! The load is the paper's (`aft.txt`, section 6.1.2 and table 2): functions that read and write
//! keys by Zipf's law, one call after the other. Every value names its writer and the writer's
//! other keys. So the anomalies are counted from the values read, by the same checks that the
//! simulations use.
//!
//! Reading order: [`target`] (the systems under test, with [`http`], [`plain`] and [`servers`]),
//! [`run`] (clients and their observations), [`turns`] (stores beside each other). Then come
//! [`collection`], [`overwrites`], [`lengths`], [`packs`] and [`scaling`] (the same load in other
//! ways), [`conditions`] (plain writes under a condition), [`disk`] (the layer below), and [`report`], [`chart`] and [`curve`] (presentation).

pub mod chart;
pub mod collection;
pub mod conditions;
pub mod curve;
pub mod disk;
pub mod engine;
pub mod http;
pub mod lengths;
pub mod overwrites;
pub mod packs;
pub mod plain;
pub mod report;
pub mod run;
pub mod scaling;
pub mod servers;
pub mod target;
pub mod turns;
