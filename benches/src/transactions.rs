//! Transactions of functions beside the same reads and writes on plain Redis: anomalies, latency, throughput.
//!
//! The load is the paper's (`aft.txt`, section 6.1.2 and table 2): functions that read and write keys by Zipf's law, one
//! call after the other. Every value says who wrote it and what else its writer wrote, so the anomalies are counted
//! from what was read, by the same checks that the simulations use.
//!
//! Reading order: [`target`] (who is asked, with [`http`], [`plain`] and [`servers`]), [`run`] (clients and what they saw),
//! [`turns`] (stores beside each other), [`collection`], [`overwrites`], [`lengths`], [`packs`] and [`scaling`] (the same load
//! in other ways), [`disk`] (what is below), [`report`], [`chart`] and [`curve`] (how it is shown).

pub mod chart;
pub mod collection;
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
