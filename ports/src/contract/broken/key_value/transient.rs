//! K10 and K11, broken.

use async_trait::async_trait;

use super::Twist;
use crate::{
    Position, Result, Update,
    key_value::{Change, Room, SharedKeyValue, Updated},
    queue::Retention,
};

/// Answers a transient update as if it had made it (K10).
#[derive(Debug)]
pub(super) struct KeepsTransientsToItself(SharedKeyValue);

impl KeepsTransientsToItself {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for KeepsTransientsToItself {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
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

/// Gives transient updates points that nothing has reached (K10).
#[derive(Debug)]
pub(super) struct PutsTransientsAhead(SharedKeyValue);

impl PutsTransientsAhead {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for PutsTransientsAhead {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        let is_transient = update.retention == Retention::Transient;
        let mut updated = self.0.update(update).await?;
        if is_transient {
            updated.receipt.point.position = Position(u64::MAX);
        }
        Ok(updated)
    }
}

/// Does not notice that it refuses (K11).
#[derive(Debug)]
pub(super) struct SaysThereIsRoom(SharedKeyValue);

impl SaysThereIsRoom {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for SaysThereIsRoom {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    fn room(&self) -> Room {
        Room::Free
    }
}

/// Never says that there is room (K11).
#[derive(Debug)]
pub(super) struct SaysThereIsNone(SharedKeyValue);

impl SaysThereIsNone {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for SaysThereIsNone {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    fn room(&self) -> Room {
        Room::Scarce
    }
}
