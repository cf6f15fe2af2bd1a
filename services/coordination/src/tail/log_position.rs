//! A position in the distributor's log, and reading on from it.

use ports::{DurabilityPoint, Incarnation, Result};
use primitives::{Cursor, Epoch, FencedLog, SlotIndex};

use crate::records::Wake;

/// Slots per page.
const PAGE_SLOTS: usize = 64;

/// The last slot that was delivered.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogPosition {
    pub(super) index: u64,
    pub(super) epoch: u64,
    /// The incarnation of the store in which the position was found.
    pub(super) incarnation: Incarnation,
}

impl LogPosition {
    /// Moves to a slot that was delivered.
    pub(super) fn reached(&mut self, index: u64, epoch: u64) {
        (self.index, self.epoch) = (index, epoch);
    }

    /// The unannounced slots up to `until`. They are applied, because slot `until` is.
    pub(super) async fn read_on(
        self,
        log: &FencedLog,
        until: u64,
        point: DurabilityPoint,
    ) -> Result<Vec<Wake>> {
        let from = match self.index {
            0 => Cursor::START,
            index => Cursor {
                next: SlotIndex(index + 1),
                epoch: Epoch(self.epoch),
            },
        };
        let read = log.read(from, PAGE_SLOTS).await?.slots;
        let applied = read.into_iter().filter(|logged| logged.index.0 <= until);
        let announced: Vec<_> = applied
            .map(|logged| Wake {
                previous: logged.index.0 - 1,
                index: logged.index.0,
                epoch: logged.epoch.0,
                slot: logged.payload,
                point,
            })
            .collect();
        if announced.is_empty() {
            return Err(ports::Error::unavailable(format!(
                "find the slots up to {until} in the log"
            )));
        }
        Ok(announced)
    }
}
