//! The atomic list: many callers append elements and remove them.
//!
//! From FaaSKeeper, section 2.2: safe expansion and truncation in a single step. Ours has a bound,
//! because an item has one.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Condition, Error, Item, Key, Receipt, Result, Update,
    key_value::{Action, Operation, Outcome, SharedKeyValue, Test},
};

const ELEMENTS: &str = "elements";

/// A list in an item of its own. It is empty until the first append.
#[derive(Debug, Clone)]
pub struct AtomicList {
    key_value: SharedKeyValue,
    key: Key,
    elements_max: usize,
}

/// The content of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its elements, in order. After a recognised repeat: the present elements.
    pub elements: Vec<Bytes>,
    /// Whether the change was made. An append that does not fit is not made.
    pub fits: bool,
    /// The point of the answer.
    pub receipt: Receipt,
}

impl AtomicList {
    /// The list under `key`, of at most `elements_max` elements.
    pub fn new(key_value: SharedKeyValue, key: Key, elements_max: usize) -> Self {
        Self {
            key_value,
            key,
            elements_max,
        }
    }

    /// Appends all of `elements`, or none if they do not fit (S8). With an operation, appends them
    /// once.
    ///
    /// Errors: `Invalid` if `elements` alone exceed the bound.
    pub async fn append(
        &self,
        elements: Vec<Bytes>,
        operation: Option<Operation>,
    ) -> Result<Listed> {
        let Some(room) = (self.elements_max + 1)
            .checked_sub(elements.len())
            .filter(|room| *room > 0)
        else {
            let count = elements.len();
            return Err(Error::invalid(format!(
                "append {count} elements to the list {:?}",
                self.key
            )));
        };
        let fits = Condition::attribute(ELEMENTS, Test::ShorterThan(room));
        self.update(Action::Append(ELEMENTS.into(), elements), fits, operation)
            .await
    }

    /// Removes the first `count` elements, or all if there are fewer. With an operation, removes
    /// them once. Without one, a repeat removes further elements.
    pub async fn remove_first(&self, count: usize, operation: Option<Operation>) -> Result<Listed> {
        self.update(
            Action::RemoveFirst(ELEMENTS.into(), count),
            Condition::Always,
            operation,
        )
        .await
    }

    /// Removes every element that equals one of these. A repeat does no harm.
    pub async fn remove(&self, elements: Vec<Bytes>) -> Result<Listed> {
        self.update(
            Action::RemoveElements(ELEMENTS.into(), elements),
            Condition::Always,
            None,
        )
        .await
    }

    /// The present elements.
    pub async fn read(&self) -> Result<Listed> {
        let read = self.key_value.get(&self.key).await?;
        let receipt = Receipt { point: read.point };
        Ok(listed(read.value.as_ref(), true, receipt))
    }

    async fn update(
        &self,
        action: Action,
        condition: Condition,
        operation: Option<Operation>,
    ) -> Result<Listed> {
        let update = Update::modify(self.key.clone(), vec![action]).when(condition);
        let updated = self
            .key_value
            .update(Update {
                operation,
                ..update
            })
            .await?;
        Ok(match updated.outcome {
            Outcome::Done(item) => listed(item.as_ref(), true, updated.receipt),
            Outcome::Conflict(item) => listed(item.as_ref(), false, updated.receipt),
        })
    }
}

fn listed(item: Option<&Arc<Item>>, fits: bool, receipt: Receipt) -> Listed {
    let elements = item
        .map(|item| item.list(ELEMENTS).to_vec())
        .unwrap_or_default();
    Listed {
        elements,
        fits,
        receipt,
    }
}
