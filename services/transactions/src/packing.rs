//! Packed values. On an object store one put costs as much as a thousand small writes elsewhere, so
//! the values of many transactions are put as one object, a pack.
//!
//! ```text
//!  values of all commits and spills ──▶ gather: a while, or until they fill a pack
//!    ──▶ one put, PutMode::Create
//!    each position is known at once:    version item ┐
//!                                       its pack ────┴──▶ both confirmed ──▶ the decision row (P6)
//!  collected, replaced, aborted ──▶ the pack's estimate ──▶ more than half is dead ─┬─▶ compactor.rs
//!                                                 many small packs of about a size ─┘
//! ```
//!
//! The commit and its log record only that a value is packed. Its version item alone holds the
//! position, so that the value can move. Rows, slots and version items stay in the key-value store.
//! A pack's row holds an estimate of its dead bytes. The estimate is a hint: it is checked before
//! any decision depends on it, and counted again after a crash (`sweep.rs`). Among several nodes
//! each owns its own packs; `ownership.rs` defines which node owns the others.
//!
//! Invariants
//! - A number of a node's packs is used once, and an object is never rewritten. If a name exists
//!   already, there are two reasons. The same put created it, and its answer was lost. Or an
//!   earlier history of the store created it: the store was restored from a backup without its
//!   objects, or a copy of it is at work. The content is therefore compared, and a start numbers
//!   its packs after those that exist.
//! - A commit is decided only once every pack with its values is durable.
//! - A task that may still write an item that names a pack *holds* the pack: its live values are
//!   not determined meanwhile.
//!
//! From AFT, section 8, "Efficient Data Layout", which names log-structured file systems.

use std::sync::{Arc, OnceLock};

use ports::objects::{self, ObjectError, ObjectPath};

pub use crate::context::SharedObjects;
use crate::{Error, Result, context::Context, storage::store::Store};

mod compactor;
mod ownership;
mod placement;
mod put;
mod reading;

/// The packs of this store in its object store.
#[derive(Debug)]
pub(crate) struct Packing {
    context: Arc<Context>,
    /// `None`: values stay in the key-value store.
    pub(crate) objects: Option<SharedObjects>,
    /// The path prefix of packs, once that is known.
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

    /// Errors: the service was given no object store, but values lie in one.
    fn objects(&self) -> Result<&SharedObjects> {
        let missing =
            || Error::Corrupt("the value lies in an object store that was not given".into());
        self.objects.as_ref().ok_or_else(missing)
    }

    fn home(&self) -> Result<&str> {
        let home = self.home.get().map(String::as_str);
        home.ok_or_else(|| Error::unavailable("the node starts"))
    }
}

/// Repeats a call for an object as often as needed. `None` if there is no such object.
async fn find<T, F: Future<Output = objects::Result<T>>>(
    store: &Store,
    verb: &str,
    path: &ObjectPath,
    call: impl Fn() -> F,
) -> Result<Option<T>> {
    let attempt = || async {
        match call().await {
            Ok(found) => Ok(Some(found)),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(objects::failed(format!("{verb} {path}"), error)),
        }
    };
    store.again(attempt).await
}
