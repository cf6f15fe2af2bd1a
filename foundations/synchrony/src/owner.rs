//! The owner of a shard: its near and far rows, and its lease.
//!
//! Every far write checks the epoch in the far row. Every near write checks epoch and position in
//! the near row. The lease only saves calls: while it holds, no successor can have begun, so a
//! barrier returns without a far call.

use std::time::Duration;

use bytes::Bytes;
use ports::{
    Condition, Item, Monotonic, Result,
    key_value::{Action, Change, Test, Value},
};
use serde::{Deserialize, Serialize};

use crate::layout::{decode, encode};

const EPOCH: &str = "e";
const CLAIM: &str = "c";
const POSITION: &str = "p";
const COMPLETE: &str = "k";
const VOID: &str = "d";
pub(crate) const RENEWALS: &str = "n";
const LEASE_MS: &str = "l";
const RELEASED: &str = "f";
const ENDS: &str = "x";

/// How many ends of earlier epochs are remembered. A point of an older epoch is lost.
const ENDS_MAX: usize = 256;

/// An epoch and its last remaining position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// The first bytes of a claim name a near store since it was last emptied; the rest name one start
/// over it.
pub(crate) const NAME_BYTES: usize = 16;

/// The near store that a claim names.
pub(crate) fn name_of(claim: &Bytes) -> Bytes {
    claim.slice(..claim.len().min(NAME_BYTES))
}

/// The near owner row. Each start that takes it increases its epoch, even if that start never gets
/// the shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NearOwner {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
    /// The claim of the start that has taken the row.
    pub(crate) claim: Bytes,
    /// Whether the near rows are another owner's past, to be deleted.
    pub(crate) is_void: bool,
    /// Whether all items of the shard are near.
    pub(crate) is_complete: bool,
    pub(crate) ends: Vec<End>,
}

impl NearOwner {
    pub(crate) fn decode(item: Option<&Item>) -> Result<Self> {
        let Some(item) = item else {
            return Ok(Self::default());
        };
        let number = |name| item.integer(name).unwrap_or(0);
        Ok(Self {
            epoch: number(EPOCH) as u64,
            position: number(POSITION) as u64,
            claim: item.bytes(CLAIM).cloned().unwrap_or_default(),
            is_void: number(VOID) != 0,
            is_complete: number(COMPLETE) != 0,
            ends: ends_of(item)?,
        })
    }

    /// Whether the near rows belong to the shard of `far`. Rows that came back older than that
    /// start do not.
    pub(crate) fn belongs_to(&self, far: &FarOwner) -> bool {
        let is_named = name_of(&self.claim) == name_of(&far.claim);
        far.epoch > 0 && self.epoch >= far.epoch && is_named
    }

    /// Holds if the row is unchanged: no start has taken it, and no owner has written.
    pub(crate) fn unchanged(&self) -> Condition {
        if self.epoch == 0 {
            return Condition::Absent;
        }
        let is = |name, value| Condition::attribute(name, Test::is_integer(value));
        Condition::All(vec![
            epoch_is(self.epoch),
            position_is(self.position),
            is(VOID, self.is_void.into()),
            is(COMPLETE, self.is_complete.into()),
        ])
    }

    pub(crate) fn change(&self) -> Change {
        Change::Put(vec![
            (EPOCH.into(), Value::Integer(self.epoch as i64)),
            (POSITION.into(), Value::Integer(self.position as i64)),
            (CLAIM.into(), Value::Bytes(self.claim.clone())),
            (VOID.into(), Value::Integer(self.is_void.into())),
            (COMPLETE.into(), Value::Integer(self.is_complete.into())),
            (ENDS.into(), last_of(&self.ends)),
        ])
    }
}

fn last_of(ends: &[End]) -> Value {
    let first = ends.len().saturating_sub(ENDS_MAX);
    Value::Bytes(encode(&ends[first..].to_vec()))
}

fn ends_of(item: &Item) -> Result<Vec<End>> {
    item.bytes(ENDS).map_or(Ok(Vec::new()), |bytes| {
        decode(bytes, "read where epochs ended")
    })
}

/// Holds if no other start has taken this owner row since it got this epoch.
pub(crate) fn epoch_is(epoch: u64) -> Condition {
    Condition::attribute(EPOCH, Test::is_integer(epoch as i64))
}

pub(crate) fn position_is(position: u64) -> Condition {
    Condition::attribute(POSITION, Test::is_integer(position as i64))
}

pub(crate) fn moving_to(position: u64) -> Change {
    Change::Modify(vec![Action::set_integer(POSITION, position as i64)])
}

pub(crate) fn no_longer_complete() -> Change {
    Change::Modify(vec![Action::set_integer(COMPLETE, 0)])
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FarOwner {
    pub(crate) epoch: u64,
    pub(crate) claim: Bytes,
    pub(crate) renewals: u64,
    pub(crate) lease: Duration,
    pub(crate) is_released: bool,
    pub(crate) ends: Vec<End>,
}

impl FarOwner {
    pub(crate) fn decode(item: Option<&Item>) -> Result<Self> {
        let Some(item) = item else {
            return Ok(Self {
                is_released: true,
                ..Self::default()
            });
        };
        let number = |name| item.integer(name).unwrap_or(0);
        Ok(Self {
            epoch: number(EPOCH) as u64,
            claim: item.bytes(CLAIM).cloned().unwrap_or_default(),
            renewals: number(RENEWALS) as u64,
            lease: Duration::from_millis(number(LEASE_MS) as u64),
            is_released: number(RELEASED) != 0,
            ends: ends_of(item)?,
        })
    }

    pub(crate) fn change(&self) -> Change {
        let lease_ms = self.lease.as_millis();
        Change::Put(vec![
            (EPOCH.into(), Value::Integer(self.epoch as i64)),
            (CLAIM.into(), Value::Bytes(self.claim.clone())),
            (RENEWALS.into(), Value::Integer(self.renewals as i64)),
            (LEASE_MS.into(), Value::Integer(lease_ms as i64)),
            (RELEASED.into(), Value::Integer(self.is_released.into())),
            (ENDS.into(), last_of(&self.ends)),
        ])
    }

    /// Holds if the row is unchanged.
    pub(crate) fn unchanged(&self) -> Condition {
        if self.epoch == 0 {
            return Condition::Absent;
        }
        Condition::All(vec![
            epoch_is(self.epoch),
            Condition::attribute(RENEWALS, Test::is_integer(self.renewals as i64)),
        ])
    }
}

/// The latest proofs that we own the shard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lease {
    /// No successor begins before this time.
    pub(crate) until: Option<Monotonic>,
    /// When the last far call was sent that found our epoch.
    pub(crate) proven: Option<Monotonic>,
}
