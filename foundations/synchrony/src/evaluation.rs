//! Calls evaluated over their rows, with the port's own `evaluate`: one update or a
//! transaction.

use std::collections::BTreeMap;

use ports::{
    Receipt, Result, Update,
    key_value::{
        KeyValueLimits, Outcome, Transacted, Updated,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
};

use crate::layout::{RowKey, item_row};

/// The changes of a call, and its result once it has a receipt.
pub(crate) struct Decision<T> {
    /// Changed rows, by the index of their keys.
    pub(crate) changed: BTreeMap<usize, Stored>,
    pub(crate) answer: Answered<T>,
}

/// The result of a call that has yet to get its receipt.
pub(crate) type Answered<T> = Box<dyn FnOnce(Receipt) -> T + Send>;

impl<T> Decision<T> {
    fn new(
        changed: BTreeMap<usize, Stored>,
        answer: impl FnOnce(Receipt) -> T + Send + 'static,
    ) -> Self {
        let answer = Box::new(answer);
        Self { changed, answer }
    }
}

/// A call that changes rows under conditions.
pub(crate) trait Operation: Send + Sync + 'static {
    type Answer: Send + 'static;

    /// The keys of its rows, each once.
    fn keys(&self) -> Vec<RowKey>;

    /// Refuses a call that exceeds the limits, before any read.
    fn check(&self, limits: &KeyValueLimits) -> Result<()>;

    /// Evaluates the call over the rows of its keys.
    fn decide(&self, rows: &[Stored], limits: &KeyValueLimits) -> Result<Decision<Self::Answer>>;
}

/// [`ports::KeyValue::update`].
pub(crate) struct One(pub(crate) Update);

impl Operation for One {
    type Answer = Updated;

    fn keys(&self) -> Vec<RowKey> {
        vec![item_row(&self.0.key)]
    }

    fn check(&self, limits: &KeyValueLimits) -> Result<()> {
        check_key(&self.0.key, limits)
    }

    fn decide(&self, rows: &[Stored], limits: &KeyValueLimits) -> Result<Decision<Self::Answer>> {
        let stored = &rows[0];
        let evaluated = evaluate(stored, &self.0, limits)?;
        let mut changed = BTreeMap::new();
        let outcome = match evaluated {
            Evaluated::Refused => Outcome::Conflict(stored.item.clone()),
            Evaluated::Unchanged => Outcome::Done(stored.item.clone()),
            Evaluated::Changed(next) => {
                let item = next.item.clone();
                changed.insert(0, next);
                Outcome::Done(item)
            }
        };
        let answer = |receipt| Updated { outcome, receipt };
        Ok(Decision::new(changed, answer))
    }
}

/// [`ports::KeyValue::transact`].
pub(crate) struct Several(pub(crate) Vec<Update>);

impl Operation for Several {
    type Answer = Transacted;

    fn keys(&self) -> Vec<RowKey> {
        self.0.iter().map(|update| item_row(&update.key)).collect()
    }

    fn check(&self, limits: &KeyValueLimits) -> Result<()> {
        check_limits(&self.0, limits)
    }

    fn decide(&self, rows: &[Stored], limits: &KeyValueLimits) -> Result<Decision<Self::Answer>> {
        let (mut items, mut changed) = (Vec::new(), BTreeMap::new());
        for (index, (update, stored)) in self.0.iter().zip(rows).enumerate() {
            let evaluated = evaluate(stored, update, limits)?;
            match evaluated {
                Evaluated::Refused => {
                    let item = stored.item.clone();
                    let answer = move |receipt| Transacted::Conflict {
                        index,
                        item,
                        receipt,
                    };
                    return Ok(Decision::new(BTreeMap::new(), answer));
                }
                Evaluated::Unchanged => items.push(stored.item.clone()),
                Evaluated::Changed(next) => {
                    items.push(next.item.clone());
                    changed.insert(index, next);
                }
            }
        }
        let answer = |receipt| Transacted::Done { items, receipt };
        Ok(Decision::new(changed, answer))
    }
}
