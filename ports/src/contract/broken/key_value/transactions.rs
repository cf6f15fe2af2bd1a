//! K5, broken.

use async_trait::async_trait;

use super::Twist;
use crate::{
    Receipt, Result, Update,
    contract::pause,
    key_value::{Outcome, SharedKeyValue, Transacted},
};

/// Applies the updates of a transaction one by one until one is refused (K5).
#[derive(Debug)]
pub(super) struct HalfTransacts(SharedKeyValue);

impl HalfTransacts {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for HalfTransacts {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let (mut items, mut receipt) = (Vec::new(), Receipt::default());
        for (index, update) in updates.into_iter().enumerate() {
            let updated = self.0.update(update).await?;
            receipt = updated.receipt;
            match updated.outcome {
                Outcome::Done(item) => items.push(item),
                Outcome::Conflict(item) => return Ok(Transacted::Conflict { index, item, receipt }),
            }
            pause().await;
        }
        Ok(Transacted::Done { items, receipt })
    }
}
