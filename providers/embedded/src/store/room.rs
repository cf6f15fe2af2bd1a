//! Room in the journal: reserved before each change, with a part kept back.

use std::time::{Duration, Instant};

use ports::{
    Error, ErrorKind, Result,
    key_value::{Room, evaluate::Stored},
};

use super::Store;
use crate::{
    journal::frame::{PAYLOAD_BYTES_MAX, frame_bound},
    records::{Record, RecordKey, memory_bytes, overlay::entry_bound},
};

/// How often refusals for lack of room may request an early checkpoint.
const EARLY_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a change may use the reserve, which is the last of the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UseReserve {
    /// It may not.
    No,
    /// It may.
    Yes,
}

impl UseReserve {
    /// Allows the reserve for a change that frees at least what it takes in the journal. Such a
    /// change helps a full store to recover, because the reserve spent on it makes room.
    pub(crate) fn if_freeing(
        self,
        SpaceChange {
            takes,
            earlier,
            left,
        }: SpaceChange,
    ) -> Self {
        if earlier > 0 && takes <= earlier.saturating_sub(left) {
            Self::Yes
        } else {
            self
        }
    }
}

/// The bytes that a change takes and frees. Keys, operation memories and the cursor of a lane are
/// included.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpaceChange {
    /// The journal bytes of the change, at most.
    takes: u64,
    /// The bytes of the items before the change, at least.
    earlier: u64,
    /// The bytes of the items after the change, at most.
    left: u64,
}

impl SpaceChange {
    /// Adds the change from `earlier` to `record`. A deletion counts its key alone, because its
    /// operation memory expires.
    pub(crate) fn count(&mut self, key: &RecordKey, earlier: &Stored, record: Option<&Record>) {
        if let Some(item) = &earlier.item {
            self.earlier +=
                (entry_bound(key, None) + item.bytes_len() + memory_bytes(earlier)) as u64;
        }
        let left = record
            .filter(|record| matches!(record, Record::Item(item) if item.stored.item.is_some()));
        let bytes = entry_bound(key, left) as u64;
        self.takes += bytes;
        self.left += if left.is_some() { bytes } else { 0 };
    }
}

/// Whether changes that make the store larger are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// They are.
    Accepted,
    /// They are not: the last checkpoint found no room, or used the space that the next one needs
    /// to apply deletions.
    NoRoom,
    /// They are not: checkpoints fail, and the journal has reached its bound without one.
    NoCheckpoints,
}

impl Store {
    /// Reserves room for records that take `bytes` of journal.
    ///
    /// Errors: `NoRoom` after the disk refused more; `Unavailable` while the journal is too far
    /// behind.
    pub(crate) fn reserve(&mut self, bytes: u64, reserve: UseReserve) -> Result<()> {
        self.reserved_bytes = self.overlay.pending_bytes() + bytes;
        let needed = frame_bound(self.reserved_bytes);
        let kept = self.spare.reserve_bytes();
        if self.growth == Growth::Accepted && self.leaves(kept, needed) {
            self.find_room(Room::Free);
            return Ok(());
        }
        if needed > PAYLOAD_BYTES_MAX {
            if frame_bound(bytes) > PAYLOAD_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "change {bytes} bytes in one mutation"
                )));
            }
            self.durability.force();
            let kind = ErrorKind::Unavailable {
                retry_after_ms: Some(20),
            };
            return Err(Error::new(
                kind,
                "order a change while the journal is too far behind",
            ));
        }
        if !self.leaves(kept, needed) {
            self.spare_room = self.spare.grow(needed + kept);
        }
        if self.growth == Growth::Accepted && self.leaves(kept, needed) {
            self.find_room(Room::Free);
            return Ok(());
        }
        let room = if self.leaves(kept / 2, needed) {
            Room::Scarce
        } else if self.leaves(kept / 8, needed) {
            Room::Critical
        } else {
            Room::Exhausted
        };
        self.find_room(room);
        self.want_early_checkpoint();
        if reserve == UseReserve::Yes && self.leaves(0, needed) {
            return Ok(());
        }
        self.refused_bytes = bytes;
        let attempted = match self.growth {
            Growth::Accepted => format!("append {bytes} bytes to the journal"),
            Growth::NoRoom => {
                format!("add {bytes} bytes that no checkpoint would have room for")
            }
            Growth::NoCheckpoints => {
                format!("append {bytes} bytes to the journal while checkpoints fail")
            }
        };
        Err(Error::new(ErrorKind::NoRoom, attempted))
    }

    /// The present room. If there was too little, this asks the disk again. The room stays too
    /// little until the refused change would fit, up to the size of the reserve.
    pub(crate) fn ask_for_room(&mut self) -> Room {
        if self.room != Room::Free || self.refused_bytes > 0 {
            let bytes = self.refused_bytes.min(self.spare.reserve_bytes());
            // No caller waits for this reservation, so its failure concerns none.
            let _ = self.reserve(bytes, UseReserve::No);
        }
        self.room
    }

    /// Whether a group of `needed` bytes leaves `kept` bytes in one piece.
    fn leaves(&self, kept: u64, needed: u64) -> bool {
        let together = needed + kept;
        together <= self.tail_room
            || together <= self.spare_room
            || (needed <= self.tail_room && kept <= self.spare_room)
    }

    /// Sets whether growth is accepted.
    pub(crate) fn set_growth(&mut self, growth: Growth) {
        self.growth = growth;
        if growth != Growth::Accepted {
            self.find_room(self.room.min(Room::Scarce));
        }
    }

    fn find_room(&mut self, room: Room) {
        self.room = room;
        self.spare.note_scarcity(room != Room::Free);
        if room == Room::Free {
            self.refused_bytes = 0;
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
