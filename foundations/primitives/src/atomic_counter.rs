//! The atomic counter: an integer to which many callers add.
//!
//! From FaaSKeeper, section 2.2.

use ports::{
    Error, Key, Receipt, Result, Update,
    key_value::{Action, Operation, Outcome, SharedKeyValue},
};

const VALUE: &str = "value";

/// An integer in an item of its own. It is zero until the first addition.
#[derive(Debug, Clone)]
pub struct AtomicCounter {
    key_value: SharedKeyValue,
    key: Key,
}

/// The value of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Its value.
    pub value: i64,
    /// The point of the answer.
    pub receipt: Receipt,
}

impl AtomicCounter {
    /// The counter under `key`.
    pub fn new(key_value: SharedKeyValue, key: Key) -> Self {
        Self { key_value, key }
    }

    /// Adds `amount` and returns the value right after it. While all amounts are positive, no other
    /// addition returns the same value (S6).
    ///
    /// Errors: `Invalid` if the sum does not fit 64 bits; `OutcomeUnknown`, and then the addition
    /// may have counted.
    pub async fn add(&self, amount: i64) -> Result<Counted> {
        self.update(amount, None).await
    }

    /// Adds `amount` once, however often it is repeated with the same operation (S7). The value
    /// contains this addition. After a repeat it may also contain later additions of others, so it
    /// is not a unique number.
    ///
    /// Errors: as [`AtomicCounter::add`]; `OutcomeUnknown` also if the operation may have been
    /// forgotten.
    pub async fn add_once(&self, amount: i64, operation: Operation) -> Result<Counted> {
        self.update(amount, Some(operation)).await
    }

    /// The present value.
    pub async fn read(&self) -> Result<Counted> {
        let read = self.key_value.get(&self.key).await?;
        let value = read.value.and_then(|item| item.integer(VALUE)).unwrap_or(0);
        Ok(Counted {
            value,
            receipt: Receipt { point: read.point },
        })
    }

    async fn update(&self, amount: i64, operation: Option<Operation>) -> Result<Counted> {
        let update = Update::modify(self.key.clone(), vec![Action::Add(VALUE.into(), amount)]);
        let updated = self
            .key_value
            .update(Update {
                operation,
                ..update
            })
            .await?;
        let (Outcome::Done(item) | Outcome::Conflict(item)) = updated.outcome;
        let value = item
            .and_then(|item| item.integer(VALUE))
            .ok_or_else(|| Error::corrupt(format!("add to the counter {:?}", self.key)))?;
        Ok(Counted {
            value,
            receipt: updated.receipt,
        })
    }
}
