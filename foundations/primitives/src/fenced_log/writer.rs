//! The one writer of a log: how it takes over, appends, and learns that it has been fenced.

use bytes::Bytes;
use ports::{DurabilityPoint, Error, ErrorKind, Result};

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
    /// Whether the put for the next slot was answered, but not yet believed in.
    is_written: bool,
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
        Err(Error::unavailable("take over a log that many take over at once"))
    }

    /// Puts a seal behind what was read. None if it must be read again: somebody was faster, the store has
    /// restarted and may have lost what was read, or the free slot is a hole that a trim has left.
    async fn seal(&self, read: &Slots, epoch: Epoch) -> Result<Option<DurabilityPoint>> {
        let sealed = read.cursor.next;
        let (there, point) = self.put(sealed, &Stored { epoch, payload: None }).await?;
        if there.is_some() || point.incarnation != read.point.incarnation {
            return Ok(None);
        }
        if self.start().await?.next > sealed {
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
        Writer { log, epoch, sealed, next, point, unsettled: None, is_written: false, is_fenced: false }
    }

    /// Takes over as nobody may: without a seal. For tests that show what the seal is for.
    #[doc(hidden)]
    pub async fn take_over_without_seal(&self, from: Cursor) -> Result<(Writer, Vec<Slot>)> {
        let read = self.read_to_tail(from).await?;
        let before = SlotIndex(read.cursor.next.0 - 1);
        Ok((self.writer(Epoch(read.cursor.epoch.0 + 1), before, read.point), read.slots))
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
            && !self.is_written
        {
            self.unsettled = None;
        }
        appended
    }

    /// What became of an append whose outcome was unknown; none if there is none.
    pub async fn settle(&mut self) -> Result<Option<Appended>> {
        match self.unsettled.clone() {
            Some(payload) => self.fill(payload).await.map(Some),
            None => Ok(None),
        }
    }

    async fn fill(&mut self, payload: Bytes) -> Result<Appended> {
        let slot = Stored { epoch: self.epoch, payload: Some(payload) };
        while !self.is_fenced {
            let (there, point) = self.log.put(self.next, &slot).await?;
            self.is_written = there.is_none();
            self.survive(point).await?;
            match there {
                // Another's seal: nothing of ours comes behind it.
                Some(there) if there.epoch > self.epoch => self.is_fenced = true,
                // Void, because a predecessor wrote it over the gap that our seal now fills; or a seal of
                // our epoch that a takeover left where the store's restart had taken the slots before it.
                Some(there) if there.epoch < self.epoch || there.payload.is_none() => self.next.0 += 1,
                // Ours: written just now, or by the attempt whose answer was lost.
                _ => {
                    self.unsettled = None;
                    self.is_written = false;
                    let index = self.next;
                    self.next.0 += 1;
                    return Ok(Appended::At(index, point));
                }
            }
        }
        self.unsettled = None;
        Ok(Appended::Fenced)
    }

    /// Makes sure that a restart of the store took none of the slots before the one at `point` (S12).
    async fn survive(&mut self, point: DurabilityPoint) -> Result<()> {
        if point.incarnation != self.point.incarnation
            && let Err(error) = self.log.key_value.externalize(self.point).await
        {
            self.is_fenced |= error.kind() == ErrorKind::Lost;
            return Err(error);
        }
        self.point = point;
        Ok(())
    }
}
