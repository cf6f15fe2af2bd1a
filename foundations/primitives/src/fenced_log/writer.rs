//! The one writer of a log: how it takes over, appends, and learns that it has been fenced.

use bytes::Bytes;
use ports::{DurabilityPoint, Error, ErrorKind, Result, Update, key_value::Transacted};

use super::{Cursor, Epoch, FencedLog, Slot, SlotIndex, Slots, Stored};

/// How often a takeover begins again because others take over at the same time, or the store restarts.
const TAKEOVER_ATTEMPTS_MAX: usize = 1_000;

/// How an append ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It is in the log at this slot. Acknowledge it outside once the point is durable.
    At(SlotIndex, DurabilityPoint),
    /// A successor has sealed the log: nothing was appended, nor will anything be by this writer.
    Fenced,
}

/// The writer of one epoch. It is not cloned: an epoch has one writer.
#[derive(Debug)]
pub struct Writer {
    log: FencedLog,
    epoch: Epoch,
    sealed: SlotIndex,
    next: SlotIndex,
    /// Everything it has read and written lies at or before this point.
    point: DurabilityPoint,
    /// What was meant for the next slot when the answer was lost.
    unsettled: Option<Bytes>,
    is_fenced: bool,
}

impl FencedLog {
    /// Seals the log and becomes its writer. Also returns the records from `from` on, up to the seal: what
    /// earlier writers had appended and the caller may have to apply again (S10). What was trimmed is not
    /// among them.
    ///
    /// The seal, and with it all before, is durable on return, so that no crash of the store gives the same
    /// epoch to another.
    ///
    /// Errors: what the store answers; a seal whose answer was lost does no harm, and the next attempt
    /// passes it like anybody else's.
    pub async fn take_over(&self, from: Cursor) -> Result<(Writer, Vec<Slot>)> {
        for _ in 0..TAKEOVER_ATTEMPTS_MAX {
            let read = self.read_to_tail(from.max(self.start().await?)).await?;
            let epoch = Epoch(read.cursor.epoch.0 + 1);
            if let Some(point) = self.seal(&read, epoch).await? {
                return Ok((self.writer(epoch, read.cursor.next, point), read.slots));
            }
        }
        Err(Error::unavailable(
            "take over a log that many take over at once",
        ))
    }

    /// Puts a seal behind what was read, and rests it on that. None if it must be read again: somebody was faster, the
    /// store has lost what was read or the seal itself, or the free slot is a hole that a trim has left.
    async fn seal(&self, read: &Slots, epoch: Epoch) -> Result<Option<DurabilityPoint>> {
        let sealed = read.cursor.next;
        let (there, point) = match self
            .put(
                sealed,
                &Stored {
                    epoch,
                    payload: None,
                },
                read.point,
            )
            .await
        {
            Err(error) if error.kind() == ErrorKind::Lost => return Ok(None),
            put => put?,
        };
        if there.is_some() || self.start().await?.next > sealed {
            return Ok(None);
        }
        match self.key_value.externalize(point).await {
            Ok(()) => Ok(Some(point)),
            Err(error) if error.kind() == ErrorKind::Lost => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn writer(&self, epoch: Epoch, sealed: SlotIndex, point: DurabilityPoint) -> Writer {
        let next = SlotIndex(sealed.0 + 1);
        let log = self.clone();
        Writer {
            log,
            epoch,
            sealed,
            next,
            point,
            unsettled: None,
            is_fenced: false,
        }
    }

    /// Takes over as nobody may: without a seal. For tests that show what the seal is for.
    #[doc(hidden)]
    pub async fn take_over_without_seal(&self, from: Cursor) -> Result<(Writer, Vec<Slot>)> {
        let read = self.read_to_tail(from).await?;
        let before = SlotIndex(read.cursor.next.0 - 1);
        Ok((
            self.writer(Epoch(read.cursor.epoch.0 + 1), before, read.point),
            read.slots,
        ))
    }
}

impl Writer {
    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The slot of its seal.
    pub fn sealed(&self) -> SlotIndex {
        self.sealed
    }

    /// The slot that its next append goes to, unless that one is void.
    pub fn next(&self) -> SlotIndex {
        self.next
    }

    /// Everything it has read and written lies at or before this point.
    pub fn point(&self) -> DurabilityPoint {
        self.point
    }

    /// Appends `payload` (S11), after what an earlier append left unsettled.
    ///
    /// Errors: after `OutcomeUnknown`, or when the future was dropped, the payload has its slot, and
    /// [`Writer::settle`], or the next append, fills it for certain; after any other error it has none.
    /// `Lost` if the store has lost earlier slots (S12): then nothing more is appended, and somebody must
    /// take over.
    pub async fn append(&mut self, payload: Bytes) -> Result<Appended> {
        if let Some(Appended::Fenced) = self.settle().await? {
            return Ok(Appended::Fenced);
        }
        // Remembered before it is sent: this future may be dropped, and the put happen all the same.
        self.unsettled = Some(payload.clone());
        let appended = self.fill(payload).await;
        if let Err(error) = &appended
            && error.kind() != ErrorKind::OutcomeUnknown
        {
            self.unsettled = None;
        }
        appended
    }

    /// Appends `payload` and makes `changes` in one step, all or nothing (S16): a change is there only with the slot that
    /// it belongs to. None: somebody has been here, or a change was refused; nothing was done then.
    ///
    /// Errors: as [`Writer::append`]. After `OutcomeUnknown` the changes may have been made; once the slot is filled for
    /// certain, they are there or never will be.
    pub async fn append_with(
        &mut self,
        payload: Bytes,
        changes: Vec<Update>,
    ) -> Result<Option<(SlotIndex, DurabilityPoint)>> {
        if self.is_fenced || self.unsettled.is_some() {
            return Ok(None);
        }
        let slot = Stored {
            epoch: self.epoch,
            payload: Some(payload.clone()),
        };
        let filling = self.log.filling(self.next, &slot).resting_on(self.point);
        self.unsettled = Some(payload);
        let updates = std::iter::once(filling).chain(changes).collect();
        let transacted = self.log.key_value.transact(updates).await;
        if !transacted
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::OutcomeUnknown)
        {
            self.unsettled = None;
        }
        self.is_fenced |= transacted
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Lost);
        match transacted? {
            Transacted::Done { receipt, .. } => {
                self.point = self.point.max(receipt.point);
                let index = self.next;
                self.next.0 += 1;
                Ok(Some((index, receipt.point)))
            }
            // What stands in its slot, if that is it, the next append finds.
            Transacted::Conflict { .. } => Ok(None),
        }
    }

    /// What became of an append whose outcome was unknown; none if there is none.
    pub async fn settle(&mut self) -> Result<Option<Appended>> {
        match self.unsettled.clone() {
            Some(payload) => self.fill(payload).await.map(Some),
            None => Ok(None),
        }
    }

    async fn fill(&mut self, payload: Bytes) -> Result<Appended> {
        let slot = Stored {
            epoch: self.epoch,
            payload: Some(payload),
        };
        while !self.is_fenced {
            // Nothing is put behind a slot that a restart of the store took (S12).
            let put = self.log.put(self.next, &slot, self.point).await;
            self.is_fenced |= put
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::Lost);
            let (there, point) = put?;
            self.point = self.point.max(point);
            match there {
                // Another's seal: nothing of ours comes behind it.
                Some(there) if there.epoch > self.epoch => self.is_fenced = true,
                // Void, because a predecessor wrote it over the gap that our seal now fills; or a seal of
                // our epoch that a takeover left where the store's restart had taken the slots before it.
                Some(there) if there.epoch < self.epoch || there.payload.is_none() => {
                    self.next.0 += 1
                }
                // Ours: written just now, or by the attempt whose answer was lost.
                _ => {
                    self.unsettled = None;
                    let index = self.next;
                    self.next.0 += 1;
                    return Ok(Appended::At(index, point));
                }
            }
        }
        self.unsettled = None;
        Ok(Appended::Fenced)
    }

    /// Has the next appends rest on what the caller has seen up to `point` too: they are refused where the store has
    /// lost that.
    ///
    /// Errors: `Lost` if `point` is of a later start of the store, which has lost what the writer knows.
    pub async fn rest_on(&mut self, point: DurabilityPoint) -> Result<()> {
        if point.incarnation != self.point.incarnation {
            self.log
                .key_value
                .externalize(self.point.min(point))
                .await?;
        }
        self.point = self.point.max(point);
        Ok(())
    }

    /// The same as [`FencedLog::trim`], resting on what this writer knows of the log: a store that has gone back takes
    /// new slots where the old ones are trimmed.
    pub async fn trim(&self, until: Cursor) -> Result<()> {
        self.log.trim_resting_on(until, self.point).await
    }
}
