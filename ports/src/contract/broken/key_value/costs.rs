//! K12, broken.

use crate::{
    Cost, KeyValue, Receipt, Result, Update,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{Batch, Batched, Outcome, SharedKeyValue, Transacted, Updated},
};

/// Which cost is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrongly {
    /// A refused update costs the write that it would have been.
    Refusals,
    /// Items cost the bytes that they had before.
    Growth,
    /// A repeat costs nothing.
    Repeats,
    /// A transaction costs only its first update.
    Transactions,
    /// A batch costs only its cursor.
    Batches,
}

/// Reports a wrong cost for one kind of call (K12).
#[derive(Debug)]
pub(super) struct Misbills {
    honest: SharedKeyValue,
    wrongly: Wrongly,
}

macro_rules! misbilling {
    ($($name:ident, $wrongly:ident;)*) => {
        impl Misbills {
            $(pub(super) fn $name(honest: SharedKeyValue) -> Self {
                Self { honest, wrongly: Wrongly::$wrongly }
            })*
        }
    };
}

misbilling! {
    refusals, Refusals;
    growth, Growth;
    repeats, Repeats;
    transactions, Transactions;
    batches, Batches;
}

impl Misbills {
    fn spoil(&self, wrongly: Wrongly, receipt: &mut Receipt, cost: Cost) {
        if wrongly == self.wrongly {
            receipt.cost = cost;
        }
    }
}

decorates!(Misbills, dyn KeyValue, honest);

impl KeyValueDecorator for Misbills {
    async fn update(&self, update: Update) -> Result<Updated> {
        let (before, is_operation) = (
            self.honest.get(&update.key).await?.value,
            update.operation.is_some(),
        );
        let mut updated = self.honest.update(update).await?;
        let receipt = &mut updated.receipt;
        match &updated.outcome {
            Outcome::Conflict(item) => {
                self.spoil(Wrongly::Refusals, receipt, Cost::of_write(item.as_deref()));
            }
            Outcome::Done(_) if receipt.cost.writes > 0 => {
                self.spoil(Wrongly::Growth, receipt, Cost::of_write(before.as_deref()));
            }
            Outcome::Done(_) if is_operation => {
                self.spoil(Wrongly::Repeats, receipt, Cost::default());
            }
            Outcome::Done(_) => {}
        }
        Ok(updated)
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let mut transacted = self.honest.transact(updates).await?;
        match &mut transacted {
            Transacted::Done { items, receipt } => {
                let first = items.first().and_then(Option::as_deref);
                self.spoil(Wrongly::Transactions, receipt, Cost::of_write(first));
            }
            Transacted::Conflict { item, receipt, .. } => {
                self.spoil(Wrongly::Refusals, receipt, Cost::of_write(item.as_deref()));
            }
        }
        Ok(transacted)
    }
    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        let mut batched = self.honest.write_batch(batch).await?;
        match &mut batched {
            Batched::Done(receipt) => self.spoil(Wrongly::Batches, receipt, Cost::of_write(None)),
            Batched::Repeat(receipt) => self.spoil(Wrongly::Repeats, receipt, Cost::default()),
            Batched::Early { receipt, .. } => {
                self.spoil(Wrongly::Refusals, receipt, Cost::of_write(None));
            }
        }
        Ok(batched)
    }
}
