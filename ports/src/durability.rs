//! Durability points: the meaning of "done", and who waits for it.
//!
//! A mutation on a near provider returns once it is ordered and visible.
//! [`Externalize::externalize`] waits until it, and all mutations ordered before it, are durable.
//! Services never wait. Edges always do: a reply to a client, or a delivered notification.
//!
//! Promises
//! - **D1** After `externalize(point)` returned `Ok`, everything ordered at or before `point`
//!   survives any crash.
//! - **D2** Durable means a prefix. Within one store, no later mutation survives a crash that loses
//!   an earlier one.
//! - **D3** A point of an earlier incarnation returns `Ok` if that incarnation's durable data
//!   includes it, and [`ErrorKind::Lost`](crate::ErrorKind::Lost) otherwise. It never returns `Ok`
//!   because new positions passed the old number.
//! - **D4** An update that names a point it depends on
//!   ([`Update::depends_on`](crate::Update::depends_on())) is refused as
//!   [`ErrorKind::Lost`](crate::ErrorKind::Lost), and changes nothing, if the store has lost that
//!   point. So is an update that names a start which the store never made or no longer remembers:
//!   the store may be a copy of older data. A transaction depends on the points of all its
//!   updates: one of them refuses it as a whole (K5).
//! - **D5** A crash may take an update that is transient
//!   ([`Update::transient`](crate::Update::transient)), but nothing else with it. A return to the
//!   durable state is a crash, too. The item goes back to its state before the update, at most to
//!   its last durable change, which includes all changes before it. In a transaction such an update
//!   is durable. Points say nothing about transient updates: D1, D2 and D4 are about the others. A
//!   message of a transient queue that a crash took arrives when it is sent again, even under the
//!   same id.
//! - **D6** An answer depends on nothing after its point. This holds also for an answer that the
//!   item is missing, that a condition did not hold, that nothing changed, or that the update was
//!   done before (rule P4).
//!
//! From `external-synchrony.txt`, section 3. The incarnation is ours (rule P3).

use std::fmt::Debug;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::Result;

/// The number of a store's start. It grows durably before the first visible write of each start.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// A position in a store's order of mutations.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Position(pub u64);

/// A position in one start of a store. Points of one store are ordered, incarnation first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct DurabilityPoint {
    /// The start of the store.
    pub incarnation: Incarnation,
    /// The position in its order.
    pub position: Position,
}

impl DurabilityPoint {
    /// The point of stores whose every answer is already durable. It is before all others.
    pub const DURABLE: Self = Self {
        incarnation: Incarnation(0),
        position: Position(0),
    };
}

/// Returned by every mutation beside its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receipt {
    /// The mutation's position in the store's order.
    pub point: DurabilityPoint,
}

/// A store that orders mutations first and makes them durable later.
#[async_trait]
pub trait Externalize: Debug + Send + Sync {
    /// Waits until everything ordered at or before `point` is durable.
    ///
    /// Errors: [`Lost`](crate::ErrorKind::Lost) if the point did not survive a restart of the
    /// store.
    async fn externalize(&self, point: DurabilityPoint) -> Result<()>;

    /// The store's present position: the point of a reply computed from the data read so far (rule
    /// P4).
    fn point(&self) -> DurabilityPoint;

    /// Whether `externalize(point)` would return at once. For callers that must not wait.
    fn is_durable(&self, point: DurabilityPoint) -> bool;
}
