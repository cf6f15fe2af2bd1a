//! K5, broken.

use crate::{
    KeyValue, Receipt, Result, Update,
    contract::pause,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{Condition, Outcome, SharedKeyValue, Transacted, evaluate::holds},
};

/// Applies the updates of a transaction one by one until one is refused (K5).
#[derive(Debug)]
pub(super) struct HalfTransacts(pub(super) SharedKeyValue);

decorates!(HalfTransacts, dyn KeyValue, 0);

impl KeyValueDecorator for HalfTransacts {
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let (mut items, mut receipt) = (Vec::new(), Receipt::default());
        for (index, update) in updates.into_iter().enumerate() {
            let updated = self.0.update(update).await?;
            receipt = updated.receipt;
            match updated.outcome {
                Outcome::Done(item) => items.push(item),
                Outcome::Conflict(item) => {
                    return Ok(Transacted::Conflict {
                        index,
                        item,
                        receipt,
                    });
                }
            }
            pause().await;
        }
        Ok(Transacted::Done { items, receipt })
    }
}

/// Checks all conditions of a transaction, lets others write, and then writes all at once (K5).
#[derive(Debug)]
pub(super) struct JudgesThenTransacts(pub(super) SharedKeyValue);

decorates!(JudgesThenTransacts, dyn KeyValue, 0);

impl KeyValueDecorator for JudgesThenTransacts {
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        for update in &updates {
            let read = self.0.get(&update.key).await?.value;
            if !holds(&update.condition, read.as_deref()) {
                return self.0.transact(updates).await;
            }
        }
        pause().await;
        let judged = updates
            .into_iter()
            .map(|update| update.when(Condition::Always));
        self.0.transact(judged.collect()).await
    }
}
