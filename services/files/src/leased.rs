//! A client's memory of a volume, under read leases (F-2).
//!
//! ```text
//!  read(keys)   all in memory, and the lease valid by the local clock?  ──▶ answer, no call
//!               else get_leased(missing) ──▶ keeps what is leased
//!  commit       commit_leased; its keys are not answered from memory before the verdict
//!  run          recalled ──▶ drops the groups ──▶ recalled(number) acknowledges
//! ```
//!
//! A read from memory takes place at the instant at which the client finds its lease valid. Until
//! then no other client has written the groups (V7), and this client's own commits suspend the keys
//! that they write. So each value holds from the slot at which it was read to that instant, and also
//! at the highest slot that the client has learnt, which the answer names.
//!
//! That slot may be old: other groups may have changed since. A read of several steps therefore
//! asks for the keys of all former steps again, at the tail. If they are the same, the state that it
//! has seen is a newer one. So [`read`](LeasedVolume::read) is no [`VolumeStore::get_many`], whose
//! slot is as new as its call; that one never answers a read at the tail from memory.
//!
//! Invariants
//! - **M1** All groups in memory are leased since their entries were read. What ends the lease drops
//!   the group, and what the calls under way read of it is not kept.
//! - **M2** A lease counts from before the renewing call was sent. An answer that comes when the
//!   lease is over drops all.
//! - **M3** While an own commit is under way, its keys are neither answered nor kept. Its verdict
//!   updates a key that no other commit and no recall has met; others are dropped.
//! - **M4** After a commit whose outcome is not known, the client has another session. So the commit
//!   recalls the leases of this one if it takes place later.
//! - **M5** When the server restarts on a store that went back, all is dropped. A client that did not
//!   run meanwhile may answer from the lost state for up to 2 s after its last renewal.

mod memory;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use parking_lot::Mutex;
use ports::{Clock, Entropy, Read};
use primitives::Mutant;
use tokio::sync::Notify;
use transactions::{
    Result,
    serializable::{
        VolumeStore,
        model::{
            At, Key, KeyRange, LEASE_POLL, Page, PageLimits, Proposal, SessionId, Slot, Snapshot,
            Values, Verdict, Write, Writes,
        },
    },
};

use self::memory::{CallNumber, Found, Known, Memory};
use crate::broken::Broken;

/// A volume for a client that reads at the tail, with a memory of what it has leases on. Only
/// [`run`](Self::run) keeps leases.
#[derive(Debug)]
pub struct LeasedVolume {
    inner: Arc<dyn VolumeStore>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    mutant: Mutant<Broken>,
    memory: Mutex<Memory>,
    /// The memory is of use, and no call waits for recalls.
    wanted: Notify,
}

impl LeasedVolume {
    /// A memory of at most `bytes_max` bytes before `inner`.
    pub fn new(
        inner: Arc<dyn VolumeStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        bytes_max: usize,
    ) -> Self {
        Self::broken(inner, clock, entropy, bytes_max, Mutant::NONE)
    }

    /// As [`new`](Self::new), with a rule dropped; only for tests.
    #[doc(hidden)]
    pub fn broken(
        inner: Arc<dyn VolumeStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        bytes_max: usize,
        mutant: Mutant<Broken>,
    ) -> Self {
        let session = SessionId(entropy.next_u64());
        Self {
            memory: Mutex::new(Memory::new(session, bytes_max, mutant)),
            inner,
            clock,
            entropy,
            mutant,
            wanted: Notify::new(),
        }
    }

    /// Keeps the leases, and gives up those that are recalled. It never returns. Without reads it
    /// gives up all after a few seconds, and then costs nothing.
    pub async fn run(&self) {
        loop {
            let next = {
                let memory = &mut *self.memory.lock();
                let next = memory.next_poll(self.clock.monotonic());
                if next.is_none() {
                    memory.abandon(self.new_session());
                }
                next
            };
            if let Some(poll) = next {
                let answer = self.inner.recalled(poll.session, poll.acknowledged);
                if let Ok(recall) = answer.await {
                    let now = self.clock.monotonic();
                    self.memory.lock().recalled(&poll, &recall, now);
                } else {
                    self.memory.lock().drop_all();
                    self.clock.sleep(LEASE_POLL).await;
                }
            }
            let abandoned = std::mem::take(&mut self.memory.lock().abandoned);
            for session in abandoned {
                // Without an answer they run out.
                let _ = self.inner.end_session(session).await;
            }
            if next.is_none() {
                self.wanted.notified().await;
            }
        }
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.mutant.breaks(rule)
    }

    /// The values of `keys` at one moment of this call, as [`VolumeStore::get_many`] returns them.
    /// Its slot may be older than the call, but the values hold at both.
    pub(crate) async fn read(&self, keys: &[Key]) -> Result<Read<Values>> {
        let sent = self.clock.monotonic();
        let (mut found, missing, number, session) = {
            let memory = &mut *self.memory.lock();
            let found = memory.look_up(keys, None, sent);
            if found.iter().all(Option::is_some) {
                let slot = memory.known();
                let found = found.into_iter().flatten();
                let found = found.map(|Found(value)| value).collect();
                return Ok(memory.answer(Values { slot, found }));
            }
            let missing = keys.iter().zip(&found).filter(|(_, found)| found.is_none());
            let missing: Vec<Key> = missing.map(|(key, _)| key.clone()).collect();
            let number = memory.begin_read(&missing);
            (found, missing, number, memory.session())
        };
        self.wanted.notify_one();
        let mut call = UnderWay::new(self, number, session);
        let answer = self.inner.get_leased(session, &missing).await?;
        let (at, now) = (answer.value.values.slot, self.clock.monotonic());
        {
            let memory = &mut *self.memory.lock();
            memory.end_read(number, (sent, now), &missing, &answer);
            call.has_ended = true;
            // What was in memory counts if it still is, and holds at the slot of the others.
            let mut values = answer.value.values.found.into_iter();
            let still = memory.look_up(keys, Some(at), now);
            for (found, still) in found.iter_mut().zip(still) {
                *found = match found {
                    Some(_) => still,
                    None => values.next().map(Found),
                };
            }
        }
        self.fill(at, keys, &mut found).await?;
        // The volume may have answered fewer.
        let found = found
            .into_iter()
            .map_while(|found| Some(found?.0))
            .collect();
        Ok(self.memory.lock().answer(Values { slot: at, found }))
    }

    /// Reads those of `keys` that are not found at `at`.
    async fn fill(&self, at: Slot, keys: &[Key], found: &mut [Known]) -> Result<()> {
        let missing = keys
            .iter()
            .zip(&*found)
            .filter(|(_, found)| found.is_none());
        let missing: Vec<Key> = missing.map(|(key, _)| key.clone()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let answer = self.inner.get_many(At::Slot(at), &missing).await?;
        self.learn(at, &answer);
        let gaps = found.iter_mut().filter(|found| found.is_none());
        for (gap, value) in gaps.zip(answer.value.found) {
            *gap = Some(Found(value));
        }
        Ok(())
    }

    fn learn<T>(&self, slot: Slot, answer: &Read<T>) {
        self.memory.lock().learn(slot, answer.point);
    }

    fn new_session(&self) -> SessionId {
        SessionId(self.entropy.next_u64())
    }

    async fn commit_inline(&self, writes: &[Write], proposal: Proposal) -> Result<Read<Verdict>> {
        let (number, session) = {
            let memory = &mut *self.memory.lock();
            (memory.begin_commit(writes), memory.session())
        };
        let mut call = UnderWay::new(self, number, session);
        call.is_commit = true;
        let answer = self.inner.commit_leased(session, proposal).await?;
        let memory = &mut *self.memory.lock();
        if memory.session() == session {
            memory.end_commit(number, writes, &answer);
        }
        call.has_ended = true;
        Ok(answer)
    }
}

/// A call that may be dropped before its answer.
struct UnderWay<'a> {
    volume: &'a LeasedVolume,
    number: CallNumber,
    session: SessionId,
    is_commit: bool,
    has_ended: bool,
}

impl<'a> UnderWay<'a> {
    fn new(volume: &'a LeasedVolume, number: CallNumber, session: SessionId) -> Self {
        Self {
            volume,
            number,
            session,
            is_commit: false,
            has_ended: false,
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let memory = &mut *self.volume.memory.lock();
        if !self.is_commit {
            memory.forget_call(self.number);
        } else if memory.session() == self.session {
            memory.abandon(self.volume.new_session());
        }
    }
}

impl VolumeStore for LeasedVolume {
    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        Box::pin(async move {
            let answer = self.inner.snapshot().await?;
            self.learn(answer.value.slot, &answer);
            Ok(answer)
        })
    }

    /// A read at a slot answers from memory if it has all of the keys.
    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        if let At::Slot(slot) = at {
            let memory = &mut *self.memory.lock();
            let found = memory.look_up(keys, Some(slot), self.clock.monotonic());
            let found = found.into_iter().map(|found| Some(found?.0));
            if let Some(found) = found.collect() {
                let answer = memory.answer(Values { slot, found });
                return std::future::ready(Ok(answer)).boxed();
            }
        }
        self.inner.get_many(at, keys)
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>> {
        Box::pin(async move {
            let answer = self.inner.scan(at, range, limits).await?;
            self.learn(answer.value.slot, &answer);
            Ok(answer)
        })
    }

    /// Of a staged proposal the keys are not known here, so it recalls the own leases as well.
    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        match &proposal.writes {
            Writes::Staged { .. } => self.inner.commit(proposal),
            Writes::Inline(writes) => {
                let writes = writes.clone();
                async move { self.commit_inline(&writes, proposal).await }.boxed()
            }
        }
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let own = {
                let memory = &mut *self.memory.lock();
                let own = memory.session();
                memory.abandon(self.new_session());
                own
            };
            self.inner.end_session(own).await?;
            self.inner.end_session(session).await
        })
    }

    transactions::forward_volume_calls! {
        block_bytes, changed_since, stage, externalize, pin, unpin, pins, lock, hold, release,
        is_held, reserve_numbers, usage
    }
}
