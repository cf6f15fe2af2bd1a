//! Runs of the transactions engine: nodes that die at any point, functions that retry under their
//! ids, and checks of the promises over the histories and the final state of the store.
//!
//! [`workload`] draws the work of functions. [`client`] runs them on a [`cluster`] whose nodes are
//! [`crashable`], also in their [`objects`], and writes a [`history`]. Then the faults end, and
//! [`stored_state`] reads the store. An [`observer`] has watched the store since the start, because
//! rows and versions are collected. [`fractures`], [`outcomes`], [`serializability`] and
//! [`leftovers`] compare histories and state; [`scenario`] runs the seeds. The checks need only a
//! history and an order of commits, so they apply to other stores too. [`effects`] go to the
//! [`destinations`] of a node, and their receivers report what arrived. [`volumes`] are run on the
//! same clusters, with clients, histories and checks of their own.

pub mod client;
pub mod cluster;
pub mod crashable;
pub mod destinations;
pub mod effects;
pub mod ensemble;
mod fault_schedule;
pub mod fractures;
pub mod history;
#[cfg(test)]
mod history_builder;
pub mod leftovers;
pub mod network;
pub mod objects;
pub mod observer;
pub mod outcomes;
pub mod scenario;
pub mod serializability;
pub mod stored_state;
pub mod volumes;
pub mod workload;
