//! Room in the journal: reserved before each change, with a part kept back.

use std::time::{Duration, Instant};

use ports::{Error, ErrorKind, Result};

use super::Store;
use crate::journal::frame::{PAYLOAD_BYTES_MAX, frame_bound};

/// How often refusals for lack of room may request an early checkpoint.
const EARLY_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// One part of this many of the reserve is for removals alone. Work that must go on adds too, and
/// would otherwise use up the room of the removals that free space.
const REMOVALS_PART: u64 = 4;

/// How much of the reserve, which is the last of the room, a change may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UseReserve {
    /// Nothing.
    No,
    /// All but the part for removals.
    Shared,
    /// All of it: the change only removes.
    Whole,
}

impl Store {
    /// Reserves room for records that take `bytes` of journal.
    ///
    /// Errors: `NoRoom` after the disk refused more; `Unavailable` while the journal is too far
    /// behind.
    pub(crate) fn reserve(&mut self, bytes: u64, reserve: UseReserve) -> Result<()> {
        self.reserved_bytes = self.overlay.pending_bytes() + bytes;
        let needed = frame_bound(self.reserved_bytes);
        if needed > PAYLOAD_BYTES_MAX {
            return Err(self.too_much(bytes));
        }
        let kept = self.spare.reserve_bytes();
        if !self.leaves(kept, needed) {
            self.spare_room = self.spare.grow(needed + kept);
        }
        let has_room = self.growth_refused.is_none() && self.leaves(kept, needed);
        self.spare.set_has_room(has_room);
        if has_room {
            self.refused_bytes = 0;
            return Ok(());
        }
        self.want_early_checkpoint();
        let is_reserved = match reserve {
            UseReserve::No => false,
            UseReserve::Shared => self.leaves(kept / REMOVALS_PART, needed),
            UseReserve::Whole => self.leaves(0, needed),
        };
        if is_reserved {
            return Ok(());
        }
        self.refused_bytes = bytes;
        let why = self.growth_refused.unwrap_or("the disk is full");
        Err(Error::new(
            ErrorKind::NoRoom,
            format!("append {bytes} bytes to the journal: {why}"),
        ))
    }

    /// The error that a group with `bytes` more would exceed the largest frame.
    fn too_much(&self, bytes: u64) -> Error {
        if frame_bound(bytes) > PAYLOAD_BYTES_MAX {
            return Error::invalid(format!("change {bytes} bytes in one mutation"));
        }
        self.durability.force();
        let kind = ErrorKind::Unavailable {
            retry_after_ms: Some(20),
        };
        Error::new(kind, "order a change while the journal is too far behind")
    }

    /// Whether changes that add to the store are accepted. If they were not, this asks the disk
    /// again. The answer stays no until the refused change would fit, up to the size of the reserve.
    pub(crate) fn ask_for_room(&mut self) -> bool {
        if !self.spare.has_room() {
            let bytes = self.refused_bytes.min(self.spare.reserve_bytes());
            // No caller waits for this reservation, so its failure concerns none.
            let _ = self.reserve(bytes, UseReserve::No);
        }
        self.spare.has_room()
    }

    /// Whether a group of `needed` bytes leaves `kept` bytes in one piece.
    fn leaves(&self, kept: u64, needed: u64) -> bool {
        let together = needed + kept;
        together <= self.tail_room
            || together <= self.spare_room
            || (needed <= self.tail_room && kept <= self.spare_room)
    }

    /// Refuses changes that add to the store from now on, or accepts them again.
    pub(crate) fn refuse_growth(&mut self, why: Option<&'static str>) {
        self.growth_refused = why;
        if why.is_some() {
            self.spare.set_has_room(false);
        }
    }

    fn want_early_checkpoint(&mut self) {
        let now = Instant::now();
        if self
            .early_checkpoint_at
            .is_none_or(|last| now - last > EARLY_CHECKPOINT_INTERVAL)
        {
            self.early_checkpoint_at = Some(now);
            self.checkpoint_wanted = true;
            self.durability.force();
        }
    }
}
