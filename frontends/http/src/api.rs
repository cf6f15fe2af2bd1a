//! The routes below `/v1`: one file per kind of thing that a client calls.

pub(crate) mod applications;
pub(crate) mod backup;
pub(crate) mod effects;
mod key_page;
pub(crate) mod open_transactions;
pub(crate) mod queues;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod transactions;
pub(crate) mod volume_files;
mod volume_transactions;
pub(crate) mod volumes;
pub(crate) mod workflows;
