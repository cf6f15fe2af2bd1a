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

/// How often a refusal for lack of room may ask for an early checkpoint.
const EARLY_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a change may take the last of the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UseReserve {
    /// It leaves the reserve.
    No,
    /// It may use the reserve.
    Yes,
}

impl UseReserve {
    /// The reserve of a change. Who frees as much as the journal takes for it gets out of a full store by it, and may use the
    /// reserve: a reserve spent on it has made room.
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

/// What a change makes of the items that it changes, in bytes. Their keys and the operations that they remember count, too, and
/// so does the cursor of a lane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpaceChange {
    /// What the journal takes for them, at most.
    takes: u64,
    /// What they took before it, at least.
    earlier: u64,
    /// What they take after it, at most.
    left: u64,
}

impl SpaceChange {
    /// Counts the change of `earlier` to `record`. Of a deletion the key alone counts: what it is remembered by goes in time.
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

    /// Counts that a lane's cursor moves, which takes as much as before, or was not there.
    pub(crate) fn count_cursor(&mut self, lane: &RecordKey, cursor: &Record, is_new: bool) {
        let bytes = entry_bound(lane, Some(cursor)) as u64;
        self.takes += bytes;
        self.left += if is_new { bytes } else { 0 };
    }
}

/// Whether what makes the store larger is taken, as far as the checkpoint store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// It is.
    Taken,
    /// The last checkpoint found no room, or took what the next one needs to take in deletions.
    NoRoom,
    /// Checkpoints fail, and the journal has grown as long as it may without one.
    NoCheckpoints,
}

impl Store {
    /// Reserves room for records that take `bytes` of journal.
    ///
    /// Errors: `NoRoom`, having asked the disk; `Unavailable` while the journal is too far behind.
    pub(crate) fn reserve(&mut self, bytes: u64, reserve: UseReserve) -> Result<()> {
        self.reserved_bytes = self.overlay.pending_bytes() + bytes;
        let needed = frame_bound(self.reserved_bytes);
        let kept = self.spare.reserve_bytes();
        if self.growth == Growth::Taken && self.leaves(kept, needed) {
            self.find_room(Room::Free);
            return Ok(());
        }
        if needed > PAYLOAD_BYTES_MAX {
            if frame_bound(bytes) > PAYLOAD_BYTES_MAX {
                return Err(Error::invalid(format!("change {bytes} bytes at once")));
            }
            self.durability.force();
            let kind = ErrorKind::Unavailable {
                retry_after_ms: Some(20),
            };
            return Err(Error::new(
                kind,
                "order a change while the journal is behind",
            ));
        }
        if !self.leaves(kept, needed) {
            self.spare_room = self.spare.grow(needed + kept);
        }
        if self.growth == Growth::Taken && self.leaves(kept, needed) {
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
            Growth::Taken => format!("journal {bytes} bytes"),
            Growth::NoRoom => {
                format!("take {bytes} bytes more, which no checkpoint would have room for")
            }
            Growth::NoCheckpoints => format!("journal {bytes} bytes more while checkpoints fail"),
        };
        Err(Error::new(ErrorKind::NoRoom, attempted))
    }

    /// What there is room for now, having asked the disk if it was too little. It stays too little until what was
    /// refused would fit, up to the size of the reserve.
    pub(crate) fn ask_for_room(&mut self) -> Room {
        if self.room != Room::Free || self.refused_bytes > 0 {
            let bytes = self.refused_bytes.min(self.spare.reserve_bytes());
            // What is refused here was asked for by nobody.
            let _ = self.reserve(bytes, UseReserve::No);
        }
        self.room
    }

    /// Whether a group that takes `needed` leaves `kept` bytes in one piece.
    fn leaves(&self, kept: u64, needed: u64) -> bool {
        let together = needed + kept;
        together <= self.tail_room
            || together <= self.spare_room
            || (needed <= self.tail_room && kept <= self.spare_room)
    }

    /// From now on growth is taken, or is not.
    pub(crate) fn set_growth(&mut self, growth: Growth) {
        self.growth = growth;
        if growth != Growth::Taken {
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
