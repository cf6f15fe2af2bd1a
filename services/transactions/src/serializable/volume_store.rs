//! The interface of a volume, the same in the server's process and in a client's.

use std::{fmt, ops::Range};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use ports::{DurabilityPoint, Read};

use crate::{
    Error, Result,
    serializable::model::{
        At, BlockBytes, Changed, Granted, Groups, Key, KeyRange, Leased, Lock, Owner, Page,
        PageLimits, PinName, Proposal, Recall, SessionId, Slot, Snapshot, StageId, Usage, Values,
        Verdict,
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
/// - **V7** While a session has a lease on a group, no proposal of another session that writes there
///   commits. It waits until the session has acknowledged the recall, or until the lease is over.
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

    /// As [`get_many`](Self::get_many) at the tail. `session` also gets leases on groups of `keys`,
    /// which hold from before the read; a volume may grant none.
    fn get_leased<'a>(
        &'a self,
        session: SessionId,
        keys: &'a [Key],
    ) -> BoxFuture<'a, Result<Read<Leased>>> {
        let _ = session;
        Box::pin(async move {
            let Read { value, point } = self.get_many(At::Tail, keys).await?;
            let value = Leased {
                values: value,
                groups: Vec::new(),
            };
            Ok(Read { value, point })
        })
    }

    /// Waits for a recall of leases of `session`, at most [`LEASE_POLL`]. The call acknowledges all
    /// recalls up to `acknowledged`, and its arrival renews the leases for [`LEASE`].
    ///
    /// [`LEASE`]: crate::serializable::model::LEASE
    /// [`LEASE_POLL`]: crate::serializable::model::LEASE_POLL
    fn recalled(
        &self,
        session: SessionId,
        acknowledged: u64,
    ) -> BoxFuture<'_, Result<Read<Recall>>> {
        let _ = (session, acknowledged);
        let error = Error::Invalid("this store grants no leases");
        ready(Err(error)).boxed()
    }

    /// As [`commit`](Self::commit), without a recall of the leases of `session`. Its client must not
    /// answer from the keys that `proposal` writes until the verdict has come.
    fn commit_leased(
        &self,
        session: SessionId,
        proposal: Proposal,
    ) -> BoxFuture<'_, Result<Read<Verdict>>> {
        let _ = session;
        self.commit(proposal)
    }

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

    /// Ends all locks, holds and leases of `session`.
    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>>;

    /// [`NUMBERS_RESERVED`] numbers that no call returns again, also after a crash. They start at
    /// [`NUMBERS_RESERVED`], so that smaller ones may have a fixed meaning.
    ///
    /// [`NUMBERS_RESERVED`]: crate::serializable::model::NUMBERS_RESERVED
    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>>;

    /// The space that it takes; it may lag by a second.
    fn usage(&self) -> BoxFuture<'_, Result<Usage>>;
}

/// Implements the named calls of [`VolumeStore`] by those of `self.inner`, so that a store around
/// another one states only what it changes.
#[macro_export]
macro_rules! forward_volume_calls {
    ($($call:ident),* $(,)?) => { $($crate::forward_volume_calls!(@ $call);)* };
    (@ block_bytes) => {
        fn block_bytes(&self) -> $crate::serializable::model::BlockBytes {
            self.inner.block_bytes()
        }
    };
    (@ snapshot) => {
        fn snapshot(&self) -> futures_util::future::BoxFuture<'_, $crate::Result<ports::Read<$crate::serializable::model::Snapshot>>> {
            self.inner.snapshot()
        }
    };
    (@ get_many) => {
        fn get_many<'a>(&'a self, at: $crate::serializable::model::At, keys: &'a [$crate::serializable::model::Key]) -> futures_util::future::BoxFuture<'a, $crate::Result<ports::Read<$crate::serializable::model::Values>>> {
            self.inner.get_many(at, keys)
        }
    };
    (@ get_leased) => {
        fn get_leased<'a>(&'a self, session: $crate::serializable::model::SessionId, keys: &'a [$crate::serializable::model::Key]) -> futures_util::future::BoxFuture<'a, $crate::Result<ports::Read<$crate::serializable::model::Leased>>> {
            self.inner.get_leased(session, keys)
        }
    };
    (@ recalled) => {
        fn recalled(&self, session: $crate::serializable::model::SessionId, acknowledged: u64) -> futures_util::future::BoxFuture<'_, $crate::Result<ports::Read<$crate::serializable::model::Recall>>> {
            self.inner.recalled(session, acknowledged)
        }
    };
    (@ commit_leased) => {
        fn commit_leased(&self, session: $crate::serializable::model::SessionId, proposal: $crate::serializable::model::Proposal) -> futures_util::future::BoxFuture<'_, $crate::Result<ports::Read<$crate::serializable::model::Verdict>>> {
            self.inner.commit_leased(session, proposal)
        }
    };
    (@ scan) => {
        fn scan<'a>(&'a self, at: $crate::serializable::model::At, range: &'a $crate::serializable::model::KeyRange, limits: $crate::serializable::model::PageLimits) -> futures_util::future::BoxFuture<'a, $crate::Result<ports::Read<$crate::serializable::model::Page>>> {
            self.inner.scan(at, range, limits)
        }
    };
    (@ changed_since) => {
        fn changed_since<'a>(&'a self, slot: $crate::serializable::model::Slot, groups: &'a $crate::serializable::model::Groups) -> futures_util::future::BoxFuture<'a, $crate::Result<ports::Read<$crate::serializable::model::Changed>>> {
            self.inner.changed_since(slot, groups)
        }
    };
    (@ stage) => {
        fn stage(&self, stage: $crate::serializable::model::StageId, part: u32, writes: bytes::Bytes) -> futures_util::future::BoxFuture<'_, $crate::Result<ports::DurabilityPoint>> {
            self.inner.stage(stage, part, writes)
        }
    };
    (@ commit) => {
        fn commit(&self, proposal: $crate::serializable::model::Proposal) -> futures_util::future::BoxFuture<'_, $crate::Result<ports::Read<$crate::serializable::model::Verdict>>> {
            self.inner.commit(proposal)
        }
    };
    (@ externalize) => {
        fn externalize(&self, point: ports::DurabilityPoint) -> futures_util::future::BoxFuture<'_, $crate::Result<()>> {
            self.inner.externalize(point)
        }
    };
    (@ pin) => {
        fn pin(&self, name: $crate::serializable::model::PinName, slot: $crate::serializable::model::Slot) -> futures_util::future::BoxFuture<'_, $crate::Result<()>> {
            self.inner.pin(name, slot)
        }
    };
    (@ unpin) => {
        fn unpin<'a>(&'a self, name: &'a $crate::serializable::model::PinName) -> futures_util::future::BoxFuture<'a, $crate::Result<()>> {
            self.inner.unpin(name)
        }
    };
    (@ pins) => {
        fn pins(&self) -> futures_util::future::BoxFuture<'_, $crate::Result<Vec<($crate::serializable::model::PinName, $crate::serializable::model::Slot)>>> {
            self.inner.pins()
        }
    };
    (@ lock) => {
        fn lock(&self, owner: $crate::serializable::model::Owner, lock: $crate::serializable::model::Lock) -> futures_util::future::BoxFuture<'_, $crate::Result<$crate::serializable::model::Granted>> {
            self.inner.lock(owner, lock)
        }
    };
    (@ hold) => {
        fn hold(&self, session: $crate::serializable::model::SessionId, key: $crate::serializable::model::Key) -> futures_util::future::BoxFuture<'_, $crate::Result<()>> {
            self.inner.hold(session, key)
        }
    };
    (@ release) => {
        fn release<'a>(&'a self, session: $crate::serializable::model::SessionId, key: &'a $crate::serializable::model::Key) -> futures_util::future::BoxFuture<'a, $crate::Result<()>> {
            self.inner.release(session, key)
        }
    };
    (@ is_held) => {
        fn is_held<'a>(&'a self, key: &'a $crate::serializable::model::Key) -> futures_util::future::BoxFuture<'a, $crate::Result<bool>> {
            self.inner.is_held(key)
        }
    };
    (@ end_session) => {
        fn end_session(&self, session: $crate::serializable::model::SessionId) -> futures_util::future::BoxFuture<'_, $crate::Result<()>> {
            self.inner.end_session(session)
        }
    };
    (@ reserve_numbers) => {
        fn reserve_numbers(&self) -> futures_util::future::BoxFuture<'_, $crate::Result<std::ops::Range<u64>>> {
            self.inner.reserve_numbers()
        }
    };
    (@ usage) => {
        fn usage(&self) -> futures_util::future::BoxFuture<'_, $crate::Result<$crate::serializable::model::Usage>> {
            self.inner.usage()
        }
    };
}
