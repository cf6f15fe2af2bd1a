//! Refuses updates that would exceed the hard limit of a quota, if the settings enforce quotas.
//!
//! As in ZooKeeper, the limits and statistics are read as they are applied, and the updates that
//! are decided and not applied yet do not count. A client that waits for each reply gets the exact
//! limit; concurrent ones may exceed it by their requests in progress.

use ports::Result;

use super::batch::PlanError;
use crate::{
    Error, path,
    quota::{self, Amounts, Compared},
    storage::user_store::UserStore,
};

/// A change that may need room in a quota.
#[derive(Debug, Clone, Copy)]
pub(super) enum Growth {
    /// A new znode with this much data, in bytes.
    Create(u64),
    /// New data of this length in bytes.
    Set(u64),
}

/// Checks a change of `path` against the quota of the deepest znode that contains it.
///
/// Errors: a refusal with [`Error::QuotaExceeded`].
pub(super) async fn check(store: &UserStore, path: &str, growth: Growth) -> Result<(), PlanError> {
    let Some((top, limits)) = limits_of(store, path).await? else {
        return Ok(());
    };
    let (count, bytes) = match growth {
        Growth::Create(bytes_len) => (1, bytes_len as i64),
        Growth::Set(bytes_len) => {
            let before = store.get(path).await?;
            let before = before.map_or(0, |node| node.stat.data_length);
            (0, bytes_len as i64 - i64::from(before))
        }
    };
    let Some(mut sums) = amounts(store, &quota::statistics_path(&top)).await? else {
        return Ok(());
    };
    sums.add(count, bytes);
    let compared = Compared {
        count: count != 0,
        bytes: bytes != 0,
    };
    match limits.exceeded_by(&sums, compared) {
        Some(exceeded) if exceeded.is_hard => Err(Error::QuotaExceeded.into()),
        _ => Ok(()),
    }
}

/// The deepest znode with a quota that contains `path`, and its limits.
async fn limits_of(store: &UserStore, path: &str) -> Result<Option<(String, Amounts)>> {
    let quotas = store.get(quota::ROOT).await?;
    if quotas.is_none_or(|root| root.stat.num_children == 0) {
        return Ok(None);
    }
    let mut level = Some(path);
    while let Some(top) = level {
        if let Some(limits) = amounts(store, &quota::limits_path(top)).await? {
            return Ok(Some((top.to_owned(), limits)));
        }
        level = path::split(top).map(|(parent, _)| parent);
    }
    Ok(None)
}

/// The amounts in the znode at `path`. None if it does not exist. The distributor warns of a
/// malformed text, which limits nothing.
async fn amounts(store: &UserStore, path: &str) -> Result<Option<Amounts>> {
    let Some(node) = store.get(path).await? else {
        return Ok(None);
    };
    let data = store.load(&node.data).await?.flatten();
    Ok(Some(Amounts::parse(data.as_deref()).unwrap_or_default()))
}
