//! Installs decided requests again, in case their writer died before it did.
//!
//! Installed states stay unchanged, because each installation ends the lock that it needs.

use std::collections::BTreeMap;

use ports::Result;

use super::{
    node::{self, Lock},
    session::Row,
};
use crate::{
    dependency::TrackedStore,
    records::{Decided, Touched},
};

/// Installs requests that were decided together under the same locks.
pub(crate) async fn install(store: &mut TrackedStore, together: &[Decided]) -> Result<()> {
    let Some(first) = together.first() else {
        return Ok(());
    };
    let lock = Lock::of(first.holder());
    let touched = together.iter().flat_map(|decided| &decided.touched);
    let last: BTreeMap<&str, &Touched> = touched
        .map(|touched| (touched.path.as_str(), touched))
        .collect();
    for (path, touched) in last {
        node::install(store, path, &lock, touched.becomes.as_ref()).await?;
    }
    Ok(())
}

/// Installs all requests in the outbox of a row.
pub(crate) async fn install_outbox(store: &mut TrackedStore, row: &Row) -> Result<()> {
    let decided = row.outbox_decoded()?;
    for together in decided.chunk_by(|one, next| one.holder() == next.holder()) {
        install(store, together).await?;
    }
    Ok(())
}
