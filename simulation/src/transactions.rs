//! Runs of the transactions engine: nodes that die anywhere, functions that retry under their names, and the
//! promises checked over what was shown and what stands in the store at the end.
//!
//! [`workload`] draws what functions do, [`client`] runs them on a [`house`] whose nodes are [`mortal`], and
//! with its [`objects`], writes a [`history`]; the world is healed and what is [`at_rest`] is read, beside what a [`witness`] has seen of it since
//! the start, because rows and versions are collected; [`fractures`], [`outcomes`], [`serializability`] and [`leftovers`] compare the two;
//! [`scenario`] goes through the seeds. The checks know no engine: a history and an order of commits are enough for them, so
//! that other stores can be held against the same promises. [`effects`] go to [`destinations`] of a node, and their receivers
//! say what came.

pub mod at_rest;
pub mod client;
pub mod destinations;
pub mod effects;
pub mod ensemble;
mod fate;
pub mod fractures;
pub mod history;
pub mod house;
pub mod leftovers;
#[cfg(test)]
mod made;
pub mod mortal;
pub mod network;
pub mod objects;
pub mod outcomes;
pub mod scenario;
pub mod serializability;
pub mod witness;
pub mod workload;
