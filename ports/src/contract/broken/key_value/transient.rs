//! K10 and K11, broken.

use crate::{
    KeyValue, Position, Result, Update,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{Change, SharedKeyValue, Updated},
    queue::Retention,
};

/// Answers a transient update as if it had made it (K10).
#[derive(Debug)]
pub(super) struct KeepsTransientsToItself(pub(super) SharedKeyValue);

decorates!(KeepsTransientsToItself, dyn KeyValue, 0);

impl KeyValueDecorator for KeepsTransientsToItself {
    async fn update(&self, update: Update) -> Result<Updated> {
        match update.retention {
            Retention::Durable => self.0.update(update).await,
            Retention::Transient => {
                self.0
                    .update(Update {
                        change: Change::Keep,
                        ..update
                    })
                    .await
            }
        }
    }
}

/// Returns points of transient updates that the store has not reached (K10).
#[derive(Debug)]
pub(super) struct PutsTransientsAhead(pub(super) SharedKeyValue);

decorates!(PutsTransientsAhead, dyn KeyValue, 0);

impl KeyValueDecorator for PutsTransientsAhead {
    async fn update(&self, update: Update) -> Result<Updated> {
        let is_transient = update.retention == Retention::Transient;
        let mut updated = self.0.update(update).await?;
        if is_transient {
            updated.receipt.point.position = Position(u64::MAX);
        }
        Ok(updated)
    }
}

/// Reports room although it refuses updates (K11).
#[derive(Debug)]
pub(super) struct SaysThereIsRoom(pub(super) SharedKeyValue);

decorates!(SaysThereIsRoom, dyn KeyValue, 0);

impl KeyValueDecorator for SaysThereIsRoom {
    fn has_room(&self) -> bool {
        true
    }
}

/// Never reports room (K11).
#[derive(Debug)]
pub(super) struct SaysThereIsNone(pub(super) SharedKeyValue);

decorates!(SaysThereIsNone, dyn KeyValue, 0);

impl KeyValueDecorator for SaysThereIsNone {
    fn has_room(&self) -> bool {
        false
    }
}
