//! Reads at a read timestamp: the keyspace as it was at one slot of the sequencer's log.
//!
//! A serializable transaction reads at the last slot that was heard when it began, after this node has followed the log to its
//! tail ([`sequencer`](crate::sequencer)): whatever was acknowledged before is at or below that slot (T-4). What it has heard at
//! its begin holds that slot, so the horizon keeps what it may read until it ends.
//!
//! One that only reads is serialized at its read timestamp, which lies between its begin and its end: it has nothing to
//! validate, and never conflicts.

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

/// What is to be validated of a transaction's reads; none: it is read-atomic.
pub(crate) fn observed(transaction: &Transaction, reads: &ReadSet) -> Option<Observed> {
    let at = transaction.read_at()?;
    Some(Observed {
        at,
        keys: reads.keys().map(Trace::of).collect(),
    })
}

/// What a key was at `slot`; `versions` are all of it that may still be needed, oldest first.
pub(crate) fn choose(versions: &[Arc<CommitRecord>], slot: u64) -> Choice {
    let last = Version::sequenced(slot, u32::MAX);
    let newest = versions.iter().rfind(|record| record.version <= last);
    newest.map_or(Choice::Absent, |record| Choice::Version(Arc::clone(record)))
}
