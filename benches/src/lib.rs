//! Load generators and charts that put Landfast beside its peers.
//!
//! A figure is worth something only beside another one taken the same way, on the same disk, in the
//! same minute. So each benchmark starts our server and the peer once and measures cell by cell. It
//! measures one, then the other, while the idle one waits. The same generator speaks to both over
//! the same protocol. It checks every reply, since a wrong answer is easily fast. CPU per operation
//! is taken from the server process alone, and is the steadier figure on a busy machine.
//!
//! Reading order: [`wire`] (requests as bytes), [`load`] (connections and their measurements),
//! [`server`] (the processes under test), [`figures`] (results), then [`table`] and [`chart`]
//! (presentation). [`coordination`] has the measures beside the rows. Apart from them are [`latency`], which measures inside one process,
//! [`transactions`], [`workflows`], [`memory`](crate::memory) and [`files`].

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

pub mod chart;
pub mod connection;
pub mod coordination;
mod drawing;
pub mod figures;
pub mod files;
pub mod http;
pub mod latency;
pub mod load;
pub mod memory;
pub mod server;
pub mod table;
pub mod transactions;
pub mod wire;
pub mod workflows;
