//! Read leases: while a session has one on a group of keys, its client answers reads of that group
//! from memory.
//!
//! ```text
//!  client                          server
//!  get_leased(session, keys)  ──▶  grants the groups, then reads at the tail
//!  recalled(session, n)       ──▶  waits for a recall; its arrival renews all leases
//!                             ◀──  Recall { number, groups }
//!  drops the groups
//!  recalled(session, number)  ──▶  a commit that waited for this one is ordered now
//! ```
//!
//! A lease ends [`LEASE`] after the last call that renewed it. The client counts from before it sent
//! that call, and the server from its arrival, so the client stops first.
//!
//! Answers may be lost or late, and a call may reach another node than the one before it. So a
//! client keeps these rules:
//! - While it wants leases it has a call of `recalled` under way, with the number of the last answer.
//!   The first has number 0, and its answer says `has_lapsed`. After such an answer, nothing is
//!   granted until its number is acknowledged.
//! - Answers of `recalled` renew. Those of `get_leased` renew only if they name a group.
//! - Once its leases are over by its own clock, or the session has lapsed, it drops all groups.
//! - A recall also covers the `get_leased` calls that were sent before its answer arrived. Their
//!   answers bring no lease on its groups; after `has_lapsed`, on none.
//! - A value that was read before the client's own commit on its key is not kept. Until that commit
//!   has its verdict, nothing is answered from what it writes. A client that does not repeat it
//!   until then takes another session, whose leases the commit recalls.
//!
//! Source: rule F-2 of the protocols. Write leases are left out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Values;
use crate::serializable::model::Slot;

/// How long a lease holds after the call that renewed it.
pub const LEASE: Duration = Duration::from_secs(2);
/// How long a call waits for a recall before it answers without one.
pub const LEASE_POLL: Duration = Duration::from_millis(500);

/// The answer to a read at the tail that may grant leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// What was read. Its slot is that of the read.
    pub values: Values,
    /// The groups on which the session has a lease now, among those of the keys.
    pub groups: Vec<bytes::Bytes>,
}

/// What a session must give up, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// The next call acknowledges this number, once the groups are dropped.
    pub number: u64,
    /// The groups to drop.
    pub groups: Vec<bytes::Bytes>,
    /// The session has no lease any more: they were over before this call arrived.
    pub has_lapsed: bool,
    /// A slot that was visible when the call was answered.
    pub visible: Slot,
}
