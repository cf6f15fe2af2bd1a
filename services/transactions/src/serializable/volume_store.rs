//! The interface of a volume, the same in the server's process and in a client's.

use std::{fmt, ops::Range};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use ports::{DurabilityPoint, Read};

use crate::{
    Error, Result,
    serializable::model::{
        At, BlockBytes, Changed, Granted, Groups, Key, KeyRange, Lock, Owner, Page, PageLimits,
        PinName, Proposal, SessionId, Slot, Snapshot, StageId, Usage, Values, Verdict,
    },
};

/// One volume.
///
/// - **V1** Committed proposals and reads at the tail are strictly serializable. A proposal takes
///   place in its slot, and a read at the slot that it returns.
/// - **V2** A read at a slot sees exactly the commits up to it, in every call and on every node.
/// - **V3** A proposal commits at most once. A repeat of a committed one returns the same verdict.
/// - **V4** A proposal that writes nothing commits, except if a [`LockFree`] does not hold.
/// - **V5** Writes are not reads: a proposal without reads and predicates never conflicts.
/// - **V6** After [`externalize`](Self::externalize) returned, all that happened at or before the
///   point survives any crash. Nothing else waits for the disk.
///
/// Errors of all calls: `Unavailable`, `Corrupt`; of those with a slot also `SnapshotTooOld`, and
/// `Invalid` for a slot that was never visible. After `Unavailable` from `commit` the outcome is
/// not known: repeat the same proposal.
///
/// [`LockFree`]: crate::serializable::model::Predicate::LockFree
pub trait VolumeStore: fmt::Debug + Send + Sync {
    /// The size of its blocks. The engine does not use it.
    fn block_bytes(&self) -> BlockBytes;

    /// A consistent state that holds every commit answered before this call.
    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>>;

    /// The values of up to [`KEYS_MAX`] keys. The answer may end early. Errors: `TooLarge`.
    ///
    /// [`KEYS_MAX`]: crate::serializable::model::KEYS_MAX
    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>>;

    /// A page of the present keys of `range`. Several pages are one state if they name one slot.
    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>>;

    /// The keys that were written after `slot`; asked again from the returned slot, none is missed.
    fn changed_since<'a>(
        &'a self,
        slot: Slot,
        groups: &'a Groups,
    ) -> BoxFuture<'a, Result<Read<Changed>>>;

    /// Stores one part of a large write set, from [`encode_part`]. A part that is sent again
    /// replaces the former. A stage is kept for 15 minutes. Errors: `TooLarge`, `NoRoom`.
    ///
    /// [`encode_part`]: crate::serializable::model::encode_part
    fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> BoxFuture<'_, Result<DurabilityPoint>>;

    /// Decides a proposal, without waiting for the disk. Errors: `TooLarge`, `Invalid`.
    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>>;

    /// Waits until all at or before `point` is durable. Errors: `Unavailable` also if it is lost.
    fn externalize(&self, point: DurabilityPoint) -> BoxFuture<'_, Result<()>>;

    /// Keeps the state at `slot` readable until [`unpin`](Self::unpin). A pin of the same name
    /// moves.
    fn pin(&self, name: PinName, slot: Slot) -> BoxFuture<'_, Result<()>>;

    /// Removes a pin, if it exists.
    fn unpin<'a>(&'a self, name: &'a PinName) -> BoxFuture<'a, Result<()>>;

    /// All pins with their slots, in the order of their names.
    fn pins(&self) -> BoxFuture<'_, Result<Vec<(PinName, Slot)>>> {
        let error = Error::Invalid("this store does not list the pins of a volume");
        ready(Err(error)).boxed()
    }

    /// Takes, tests or frees a lock.
    fn lock(&self, owner: Owner, lock: Lock) -> BoxFuture<'_, Result<Granted>>;

    /// Notes that `session` uses `key`, which [`is_held`](Self::is_held) then tells.
    fn hold(&self, session: SessionId, key: Key) -> BoxFuture<'_, Result<()>>;

    /// Ends a hold, if it exists.
    fn release<'a>(&'a self, session: SessionId, key: &'a Key) -> BoxFuture<'a, Result<()>>;

    /// Whether any session holds `key`.
    fn is_held<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>>;

    /// Ends all locks and holds of `session`.
    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>>;

    /// [`NUMBERS_RESERVED`] numbers that no call returns again, also after a crash. They start at
    /// [`NUMBERS_RESERVED`], so that smaller ones may have a fixed meaning.
    ///
    /// [`NUMBERS_RESERVED`]: crate::serializable::model::NUMBERS_RESERVED
    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>>;

    /// The space that it takes; it may lag by a second.
    fn usage(&self) -> BoxFuture<'_, Result<Usage>>;
}
