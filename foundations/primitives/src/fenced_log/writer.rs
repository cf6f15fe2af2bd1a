//! The one writer of a log: how it takes over, appends, and learns that it has been fenced.

use bytes::Bytes;
use ports::{DurabilityPoint, Error, ErrorKind, Result, Update, key_value::Transacted};

use super::{Cursor, Epoch, FencedLog, Slot, SlotIndex, Slots, Stored};

/// How often a takeover starts again because of concurrent takeovers or restarts of the store.
const TAKEOVER_ATTEMPTS_MAX: usize = 1_000;

/// How an append ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The payload is in the log at this slot. Acknowledge it to the outside once the point is
    /// durable.
    At(SlotIndex, DurabilityPoint),
    /// A successor has sealed the log. Nothing was appended, and this writer never appends again.
    Fenced,
}

/// The writer of one epoch. It is not `Clone`, because an epoch has one writer.
#[derive(Debug)]
pub struct Writer {
    log: FencedLog,
    epoch: Epoch,
    sealed: SlotIndex,
    next: SlotIndex,
    /// All slots that it has read and written lie at or before this point.
    point: DurabilityPoint,
    /// The payload for the next slot whose response was lost.
    unsettled: Option<Bytes>,
    is_fenced: bool,
}

impl FencedLog {
    /// Seals the log and becomes its writer. Also returns the records from `from` up to the seal:
    /// appends of earlier writers that the caller may have to apply again (S10). Trimmed records
    /// are not among them.
    ///
    /// The seal, and with it everything before it, is durable on return. No crash of the store can
    /// therefore give the same epoch to another writer.
    ///
    /// Errors: those of the store. A seal whose response was lost does no harm; the next attempt
    /// passes it like any other seal.
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

    /// Puts a seal after the slots that were read, depending on them. None if the log must be read
    /// again: another writer was faster, the store lost those slots or the seal itself, or the free
    /// slot is a hole that a trim left.
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

    /// A takeover without a seal, which no caller may do. Tests use it to show why the seal is
    /// needed.
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

    /// The slot of its next append, unless that slot is void.
    pub fn next(&self) -> SlotIndex {
        self.next
    }

    /// All slots that it has read and written lie at or before this point.
    pub fn point(&self) -> DurabilityPoint {
        self.point
    }

    /// Appends `payload` (S11), after it settled an earlier append.
    ///
    /// Errors: after `OutcomeUnknown`, or when the future was dropped, the payload owns its slot,
    /// and [`Writer::settle`] or the next append is certain to fill it. After any other error it
    /// has no slot. `Lost` if the store has lost earlier slots (S12): this writer appends nothing
    /// more, and another must take over.
    pub async fn append(&mut self, payload: Bytes) -> Result<Appended> {
        if let Some(Appended::Fenced) = self.settle().await? {
            return Ok(Appended::Fenced);
        }
        // Remembered before it is sent: this future may be dropped although the put arrives.
        self.unsettled = Some(payload.clone());
        let appended = self.fill(payload).await;
        if let Err(error) = &appended
            && error.kind() != ErrorKind::OutcomeUnknown
        {
            self.unsettled = None;
        }
        appended
    }

    /// Appends `payload` and makes `changes` in one step, all or nothing (S16): each change exists
    /// only together with its slot. None if the slot was taken or a change was refused. Nothing was
    /// done then.
    ///
    /// Errors: as [`Writer::append`]. After `OutcomeUnknown` the changes may have been made. Once
    /// the slot is certain to be filled, they exist or never will.
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
        let filling = self.log.filling(self.next, &slot).depends_on(self.point);
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
            // If the slot was taken, the next append finds out by which record.
            Transacted::Conflict { .. } => Ok(None),
        }
    }

    /// The outcome of an append that was unknown. None if there is no such append.
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
            // The put depends on the slots before it, so it is refused if a restart of the store
            // took one (S12).
            let put = self.log.put(self.next, &slot, self.point).await;
            self.is_fenced |= put
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::Lost);
            let (there, point) = put?;
            self.point = self.point.max(point);
            match there {
                // A successor's seal: this writer appends nothing after it.
                Some(there) if there.epoch > self.epoch => self.is_fenced = true,
                // Void: a predecessor wrote it over the gap that our seal now fills. Or a seal of
                // our epoch, which a takeover left where the store's restart had taken the slots
                // before it.
                Some(there) if there.epoch < self.epoch || there.payload.is_none() => {
                    self.next.0 += 1;
                }
                // Ours: written just now, or by the attempt whose response was lost.
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

    /// Makes the next appends also depend on `point`, up to which the caller has read the store.
    /// They are refused if the store has lost it.
    ///
    /// Errors: `Lost` if `point` belongs to a later start of the store, which has lost this
    /// writer's slots.
    pub async fn depend_on(&mut self, point: DurabilityPoint) -> Result<()> {
        if point.incarnation != self.point.incarnation {
            self.log
                .key_value
                .externalize(self.point.min(point))
                .await?;
        }
        self.point = self.point.max(point);
        Ok(())
    }

    /// As [`FencedLog::trim`], but depends on this writer's point. A store that went back writes
    /// new slots where the old ones are trimmed.
    pub async fn trim(&self, until: Cursor) -> Result<()> {
        self.log.trim_depending_on(until, self.point).await
    }
}
