//! Reads at a read timestamp: the keyspace as of one slot of the sequencer's log.
//!
//! A serializable transaction reads at the last slot applied when it began, after this node has
//! read the log to its tail ([`follow`](crate::serializable)). Everything acknowledged before is at
//! or below that slot (T-4). The frontier captured at its begin includes that slot, so the horizon
//! protects the versions it may read until it ends.
//!
//! A read-only transaction is serialized at its read timestamp, which lies between its begin and
//! its end. It has nothing to validate, and never conflicts.

use std::sync::Arc;

use crate::{
    attempts::{
        read_set::{Choice, ReadSet},
        transaction::Transaction,
    },
    model::Version,
    sequencer::validation::{Observed, Trace},
    storage::records::CommitRecord,
};

/// The reads to validate; `None` for a read-atomic transaction.
pub(crate) fn observed(transaction: &Transaction, reads: &ReadSet) -> Option<Observed> {
    let at = transaction.read_at()?;
    Some(Observed {
        at,
        keys: reads.keys().map(Trace::of).collect(),
    })
}

/// The value of a key at `slot`; `versions` are all that may still be needed, oldest first.
pub(crate) fn choose(versions: &[Arc<CommitRecord>], slot: u64) -> Choice {
    let last = Version::sequenced(slot, u32::MAX);
    let newest = versions.iter().rfind(|record| record.version <= last);
    newest.map_or(Choice::Absent, |record| Choice::Version(Arc::clone(record)))
}
