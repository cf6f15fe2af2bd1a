//! Durability points: what "done" means, and who waits for it.
//!
//! A mutation on a near provider returns once it is ordered and visible; [`Externalize::externalize`] waits
//! until it, and all that was ordered before it, are durable. Inside the house nobody waits; at an edge (a
//! reply to a client, a delivered notification) somebody always does.
//!
//! Promises
//! - **D1** After `externalize(point)` returned `Ok`, everything ordered at or before `point` is there after
//!   any crash.
//! - **D2** Durable means a prefix: nothing ordered later survives a crash while something ordered earlier,
//!   in the same store, is lost.
//! - **D3** A point of an earlier incarnation answers `Ok` if it lies within what that incarnation left
//!   behind, and [`ErrorKind::Lost`](crate::ErrorKind::Lost) otherwise; never `Ok` because new positions
//!   passed the old number.
//! - **D4** An update that names what it rests on ([`Update::basis`](crate::Update::basis)) is refused as
//!   [`ErrorKind::Lost`](crate::ErrorKind::Lost), and changes nothing, where the store has lost that. So is one that
//!   names a start which the store has never made, or no longer remembers: it may stand there by a copy of older data.
//! - **D5** A crash, which a return to the durable state is too, may take an update that is transient
//!   ([`Update::transient`](crate::Update::transient)), but nothing with it: its item goes back to what it was like
//!   before it, at most to its last durable change, which took all before it along. In a transaction it is durable.
//!   Points say nothing of it: D1, D2 and D4 are about the others. A message of a transient queue that a crash has taken
//!   arrives when it is sent again, under the same id as well.
//! - **D6** Everything that an answer rests on lies at or before the point that it carries, also where it says that
//!   nothing is there, that a condition did not hold, that nothing changed, or that it was done before (rule P4).
//!
//! From `external-synchrony.txt`, section 3; the incarnation is ours (rule P3).

use std::{fmt::Debug, ops::AddAssign};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Item, Result, queue::Message};

/// Which start of a store: grows durably before the first visible write of each start.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// A place in a store's order of mutations.
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
    /// The place in its order.
    pub position: Position,
}

impl DurabilityPoint {
    /// The point of stores whose every answer is durable already, and the one before all others.
    pub const DURABLE: Self = Self {
        incarnation: Incarnation(0),
        position: Position(0),
    };
}

/// What a mutation cost, in the units clouds bill by. It follows from what was asked and what was there, so it is the
/// same whoever provides the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Items, and cursors of lanes, that were looked at and left as they are, each once: refused, done before, or not
    /// changed by what was asked; of a transaction that conflicts, the one item that it is refused for.
    pub reads: u32,
    /// Items made, changed or deleted, and cursors of lanes moved, each once; queues made, and messages sent,
    /// acknowledged or given back, as many as were asked for, also where that had been done before.
    pub writes: u32,
    /// The lengths of all these items as the call leaves them ([`Item::bytes_len`]), and of the bodies of messages sent.
    pub bytes: u64,
}

impl Cost {
    /// Of an item that is left as it is; none: there is none, or it is a lane's cursor.
    pub fn of_read(item: Option<&Item>) -> Self {
        Self {
            reads: 1,
            writes: 0,
            bytes: bytes_of(item),
        }
    }

    /// Of an item that was changed, as it is after that; none: it was deleted, or is a lane's cursor.
    pub fn of_write(item: Option<&Item>) -> Self {
        Self {
            reads: 0,
            writes: 1,
            bytes: bytes_of(item),
        }
    }

    /// Of messages that are sent.
    pub fn of_sending(messages: &[Message]) -> Self {
        let bytes = messages
            .iter()
            .map(|message| message.body.len() as u64)
            .sum();
        Self {
            bytes,
            ..Self::of_messages(messages.len())
        }
    }

    /// Of messages that are acknowledged or given back, or of a queue that is made.
    pub fn of_messages(count: usize) -> Self {
        Self {
            writes: count as u32,
            ..Self::default()
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes += other.bytes;
    }
}

fn bytes_of(item: Option<&Item>) -> u64 {
    item.map_or(0, Item::bytes_len) as u64
}

/// What every mutation returns beside its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receipt {
    /// Where the mutation stands in the store's order.
    pub point: DurabilityPoint,
    /// What it cost.
    pub cost: Cost,
}

/// A store that orders mutations first and makes them durable later.
#[async_trait]
pub trait Externalize: Debug + Send + Sync {
    /// Waits until everything ordered at or before `point` is durable.
    ///
    /// Errors: [`Lost`](crate::ErrorKind::Lost) if the point did not survive a restart of the store.
    async fn externalize(&self, point: DurabilityPoint) -> Result<()>;

    /// The store's position now: the point of a reply computed from what was read up to now (rule P4).
    fn point(&self) -> DurabilityPoint;

    /// Whether `externalize(point)` would return at once; for callers that would rather not wait.
    fn is_durable(&self, point: DurabilityPoint) -> bool;
}
