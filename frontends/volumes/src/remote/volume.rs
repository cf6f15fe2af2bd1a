//! One volume of a server.

use std::{fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use ports::{DurabilityPoint, Read};
use transactions::{
    Error, Result,
    serializable::{
        VolumeStore,
        model::{
            At, BlockBytes, Changed, Granted, Groups, KEYS_MAX, Key, KeyRange, Leased, Lock,
            LockMode, Owner, Page, PageLimits, PinName, Proposal, Recall, SessionId, Slot,
            Snapshot, StageId, Usage, Values, Verdict, proposal::PART_BYTES_MAX,
        },
        volumes::VolumeName,
    },
};

use super::{
    Handle,
    client::{self, Client, Repeat},
    held_locks::Ticket,
};
use crate::wire::{Answer, Call, List, Request, VolumeNumber, answer::unexpected};

/// A volume that every connection of this client opens, until it is dropped.
#[derive(Debug)]
pub(super) struct Number {
    handle: Arc<Handle>,
    number: VolumeNumber,
}

impl Number {
    /// A new number for the volume `name`.
    pub(super) fn new(handle: &Arc<Handle>, name: &VolumeName) -> Self {
        let number = handle.client.volume_number();
        handle.client.held().volumes.insert(number, name.clone());
        Self {
            handle: Arc::clone(handle),
            number,
        }
    }

    /// Opens the volume.
    pub(super) async fn open(self, name: &VolumeName) -> Result<RemoteVolume> {
        let request = Request::Open(self.number, name.clone());
        match self
            .handle
            .client
            .call(&request, Repeat::WhileUnavailable)
            .await?
        {
            Answer::Opened(block_bytes) => Ok(RemoteVolume {
                number: self,
                block_bytes,
            }),
            _ => Err(unexpected()),
        }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let (client, number) = (&self.handle.client, self.number);
        let held = &mut *client.held();
        held.volumes.remove(&number);
        held.holds.retain(|(volume, ..)| *volume != number);
        held.locks.close(number);
        if let Some(link) = client.link_now() {
            link.tell(&Request::Close(number));
        }
    }
}

/// A volume of a server.
pub(super) struct RemoteVolume {
    number: Number,
    block_bytes: BlockBytes,
}

impl RemoteVolume {
    fn client(&self) -> &Arc<Client> {
        &self.number.handle.client
    }

    async fn call(&self, call: Call) -> Result<Answer> {
        self.call_with(call, Repeat::WhileUnavailable).await
    }

    async fn call_with(&self, call: Call, repeat: Repeat) -> Result<Answer> {
        let request = Request::On(self.number.number, call);
        self.client().call(&request, repeat).await
    }

    async fn done(&self, call: Call) -> Result<()> {
        match self.call(call).await? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

impl fmt::Debug for RemoteVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteVolume")
            .field(&self.number.number)
            .finish()
    }
}

/// The future of a call whose answer is `$answer`.
macro_rules! answered {
    ($self:ident, $call:expr, $answer:pat => $result:expr) => {
        Box::pin(async move {
            match $self.call($call).await? {
                $answer => Ok($result),
                _ => Err(unexpected()),
            }
        })
    };
}

impl VolumeStore for RemoteVolume {
    fn block_bytes(&self) -> BlockBytes {
        self.block_bytes
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        answered!(self, Call::Snapshot, Answer::Snapshot(value, point) => Read { value, point })
    }

    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        if keys.len() > KEYS_MAX {
            return failed(Error::TooLarge("one call reads at most 1,000 keys"));
        }
        let call = Call::GetMany(at, List(keys.to_vec()));
        answered!(self, call, Answer::Values(value, point) => Read { value, point })
    }

    fn get_leased<'a>(
        &'a self,
        session: SessionId,
        keys: &'a [Key],
    ) -> BoxFuture<'a, Result<Read<Leased>>> {
        if keys.len() > KEYS_MAX {
            return failed(Error::TooLarge("one call reads at most 1,000 keys"));
        }
        let call = Call::GetLeased(session, List(keys.to_vec()));
        answered!(self, call, Answer::Leased(value, point) => Read { value, point })
    }

    fn recalled(
        &self,
        session: SessionId,
        acknowledged: u64,
    ) -> BoxFuture<'_, Result<Read<Recall>>> {
        Box::pin(async move {
            let call = Call::Recalled(session, acknowledged);
            // Not repeated: its caller gives up its leases when a connection ends.
            match self.call_with(call, Repeat::Never).await? {
                Answer::Recalled(value, point) => Ok(Read { value, point }),
                _ => Err(unexpected()),
            }
        })
    }

    fn commit_leased(
        &self,
        session: SessionId,
        proposal: Proposal,
    ) -> BoxFuture<'_, Result<Read<Verdict>>> {
        if let Err(error) = proposal.check() {
            return failed(error);
        }
        let call = Call::CommitLeased(session, proposal.into());
        answered!(self, call, Answer::Verdict(value, point) => Read { value, point })
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>> {
        let call = Call::Scan(at, range.clone(), limits);
        answered!(self, call, Answer::Page(value, point) => Read { value, point })
    }

    fn changed_since<'a>(
        &'a self,
        slot: Slot,
        groups: &'a Groups,
    ) -> BoxFuture<'a, Result<Read<Changed>>> {
        if matches!(groups, Groups::Of(groups) if groups.len() > KEYS_MAX) {
            return failed(Error::TooLarge("one call asks for at most 1,000 groups"));
        }
        let call = Call::changed_since(slot, groups);
        answered!(self, call, Answer::Changed(value, point) => Read { value, point })
    }

    fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> BoxFuture<'_, Result<DurabilityPoint>> {
        if writes.len() > PART_BYTES_MAX {
            return failed(Error::TooLarge("a stage has 65,536 parts of 300 KiB"));
        }
        let call = Call::Stage(stage, part, writes);
        answered!(self, call, Answer::Point(point) => point)
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        if let Err(error) = proposal.check() {
            return failed(error);
        }
        let call = Call::Commit(proposal.into());
        answered!(self, call, Answer::Verdict(value, point) => Read { value, point })
    }

    fn externalize(&self, point: DurabilityPoint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // A point that is lost is answered so too, and then a repeat cannot help.
            match self
                .call_with(Call::Externalize(point), Repeat::AfterLoss)
                .await?
            {
                Answer::Done => Ok(()),
                _ => Err(unexpected()),
            }
        })
    }

    fn pin(&self, name: PinName, slot: Slot) -> BoxFuture<'_, Result<()>> {
        self.done(Call::Pin(name, slot)).boxed()
    }

    fn unpin<'a>(&'a self, name: &'a PinName) -> BoxFuture<'a, Result<()>> {
        self.done(Call::Unpin(name.clone())).boxed()
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<(PinName, Slot)>>> {
        answered!(self, Call::Pins, Answer::Pins(pins) => pins.0)
    }

    fn lock(&self, owner: Owner, lock: Lock) -> BoxFuture<'_, Result<Granted>> {
        let ticket = Ticket {
            volume: self.number.number,
            owner,
            lock,
        };
        Box::pin(async move {
            if ticket.lock.mode == LockMode::Unlocked {
                // First, so that a reconnect does not reclaim it.
                self.client().held().locks.take(&ticket);
            }
            client::lock(self.client(), ticket).await
        })
    }

    fn hold(&self, session: SessionId, key: Key) -> BoxFuture<'_, Result<()>> {
        let hold = (self.number.number, session, key.clone());
        Box::pin(async move {
            // First, so that a reconnect repeats it.
            self.client().held().holds.insert(hold.clone());
            let held = self.done(Call::Hold(session, key)).await;
            if held.is_err() {
                self.client().held().holds.remove(&hold);
            }
            held
        })
    }

    fn release<'a>(&'a self, session: SessionId, key: &'a Key) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let hold = (self.number.number, session, key.clone());
            self.client().held().holds.remove(&hold);
            self.done(Call::Release(session, key.clone())).await
        })
    }

    fn is_held<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        answered!(self, Call::IsHeld(key.clone()), Answer::IsHeld(is_held) => is_held)
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let number = self.number.number;
            {
                let held = &mut *self.client().held();
                held.holds
                    .retain(|(volume, of, _)| (*volume, *of) != (number, session));
                held.locks.end_session(number, session);
            }
            self.done(Call::EndSession(session)).await
        })
    }

    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>> {
        answered!(self, Call::ReserveNumbers, Answer::Numbers(numbers) => numbers)
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        answered!(self, Call::Usage, Answer::Usage(usage) => usage)
    }
}

fn failed<'a, T: Send + 'a>(error: Error) -> BoxFuture<'a, Result<T>> {
    std::future::ready(Err(error)).boxed()
}
