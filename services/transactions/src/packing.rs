//! Packed values: on an object store, where a put costs as much as a thousand small writes elsewhere, the values of many
//! transactions go out as one object.
//!
//! ```text
//!  values of all commits and spills ──▶ gather: a while, or until they fill a pack ──▶ one put, PutMode::Create
//!    each knows its place at once:      version item ┐
//!                                       its pack ────┴──▶ both confirmed ──▶ the decision row (P6)
//!  collected, replaced, aborted ──▶ the pack's estimate ──▶ more than half is dead ─┬─▶ compactor.rs
//!                                                 many small packs of about a size ─┘
//! ```
//!
//! The commit and its log say only that a value is packed: its version item alone says where, so that it can move. Rows, slots
//! and version items stay in the key-value store. A pack's row holds what is thought to be dead in it; it is a hint, judged anew
//! before anything rests on it, and counted anew after a death (`sweep.rs`). Several nodes take care of the packs of a store, each
//! of its own; `custody.rs` says of what besides.
//!
//! Invariants
//! - A number of a node's packs is used once, and an object is never written again. A name that is taken was taken by the
//!   same put, whose answer was lost; or by a life of the store that it does not remember, as one that was set back to a backup
//!   while its objects were not, or by a copy of it: what lies there is compared, and a start numbers behind what it finds.
//! - A commit is decided once every pack it has values in is durable.
//! - Whoever may still write an item that names a pack *holds* it: nobody judges what is live in it meanwhile.
//!
//! From AFT, section 8, "Efficient Data Layout", which names log-structured file systems.

use std::sync::{Arc, OnceLock};

use ports::objects::ObjectStore;

use crate::context::Context;

mod compactor;
mod ownership;
mod placement;
mod put;
mod reading;

/// An object store.
pub type SharedObjects = Arc<dyn ObjectStore>;

/// The packs of this store among its objects.
#[derive(Debug)]
pub(crate) struct Packing {
    context: Arc<Context>,
    /// None: values stay in the store.
    pub(crate) objects: Option<SharedObjects>,
    /// What the names of packs begin with, once that is known.
    home: OnceLock<String>,
}

impl Packing {
    pub(crate) fn new(context: Arc<Context>, objects: Option<SharedObjects>) -> Self {
        Self {
            context,
            objects,
            home: OnceLock::new(),
        }
    }
}
