//! Calls evaluated over their rows, with the port's own `evaluate`: one update, a transaction, or a
//! batch.

use std::{collections::BTreeMap, sync::Arc};

use ports::{
    Cost, Error, Item, Receipt, Result, Update,
    key_value::{
        Batch, Batched, KeyValueLimits, Outcome, Transacted, Updated, Value, Version,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
};

use crate::layout::{RowKey, batch_cursor_row, item_row};

/// The attribute of a user's batch cursor.
const CURSOR: &str = "cursor";

/// The changes of a call, what it costs, and its result once it has a receipt.
pub(crate) struct Decision<T> {
    /// Changed rows, by the index of their keys.
    pub(crate) changed: BTreeMap<usize, Stored>,
    pub(crate) cost: Cost,
    pub(crate) answer: Box<dyn FnOnce(Receipt) -> T + Send>,
}

impl<T> Decision<T> {
    fn new(
        changed: BTreeMap<usize, Stored>,
        cost: Cost,
        answer: impl FnOnce(Receipt) -> T + Send + 'static,
    ) -> Self {
        let answer = Box::new(answer);
        Self {
            changed,
            cost,
            answer,
        }
    }

    /// The call changes nothing.
    fn unchanged(cost: Cost, answer: impl FnOnce(Receipt) -> T + Send + 'static) -> Self {
        Self::new(BTreeMap::new(), cost, answer)
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
        let cost = cost_of(&evaluated, stored);
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
        Ok(Decision::new(changed, cost, answer))
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
        let (mut items, mut changed, mut cost) = (Vec::new(), BTreeMap::new(), Cost::default());
        for (index, (update, stored)) in self.0.iter().zip(rows).enumerate() {
            let evaluated = evaluate(stored, update, limits)?;
            let one = cost_of(&evaluated, stored);
            cost += one;
            match evaluated {
                Evaluated::Refused => {
                    let item = stored.item.clone();
                    let answer = move |receipt| Transacted::Conflict {
                        index,
                        item,
                        receipt,
                    };
                    return Ok(Decision::unchanged(one, answer));
                }
                Evaluated::Unchanged => items.push(stored.item.clone()),
                Evaluated::Changed(next) => {
                    items.push(next.item.clone());
                    changed.insert(index, next);
                }
            }
        }
        let answer = |receipt| Transacted::Done { items, receipt };
        Ok(Decision::new(changed, cost, answer))
    }
}

/// [`ports::KeyValue::write_batch`]: the cursor of the user's lane is a row of the same record.
pub(crate) struct Lined {
    batch: Batch,
    /// The cursor's row, then those of the items, each once.
    keys: Vec<RowKey>,
    /// For each change, the index of its row.
    places: Vec<usize>,
}

impl Lined {
    pub(crate) fn new(batch: Batch) -> Self {
        let mut keys = vec![batch_cursor_row(&batch.lane)];
        let mut places = Vec::with_capacity(batch.changes.len());
        let mut known: BTreeMap<RowKey, usize> = BTreeMap::new();
        for (key, _) in &batch.changes {
            let row = item_row(key);
            let place = *known.entry(row.clone()).or_insert(keys.len());
            if place == keys.len() {
                keys.push(row);
            }
            places.push(place);
        }
        Self {
            batch,
            keys,
            places,
        }
    }
}

impl Operation for Lined {
    type Answer = Batched;

    fn keys(&self) -> Vec<RowKey> {
        self.keys.clone()
    }

    fn check(&self, limits: &KeyValueLimits) -> Result<()> {
        let (changes, limit) = (self.batch.changes.len(), limits.batch_items_max);
        if changes > limit {
            let what = format!("write a batch of {changes} changes, where {limit} is the limit");
            return Err(Error::invalid(what));
        }
        if self.batch.lane.len() > limits.key_bytes_max {
            let what = format!("name a lane by more than {} bytes", limits.key_bytes_max);
            return Err(Error::invalid(what));
        }
        let mut keys = self.batch.changes.iter().map(|(key, _)| key);
        keys.try_for_each(|key| check_key(key, limits))
    }

    fn decide(&self, rows: &[Stored], limits: &KeyValueLimits) -> Result<Decision<Self::Answer>> {
        let cursor = rows[0].item.as_ref().and_then(|item| item.integer(CURSOR));
        let cursor = cursor.unwrap_or(0) as u64;
        let (sequence, cost) = (self.batch.sequence, Cost::of_read(None));
        if sequence <= cursor {
            return Ok(Decision::unchanged(cost, Batched::Repeat));
        }
        if sequence > cursor + 1 {
            let answer = move |receipt| Batched::Early { cursor, receipt };
            return Ok(Decision::unchanged(cost, answer));
        }
        let mut changed: BTreeMap<usize, Stored> = BTreeMap::new();
        let mut costs: BTreeMap<usize, Cost> = BTreeMap::new();
        for ((key, change), place) in self.batch.changes.iter().zip(&self.places) {
            let update = Update::of(key.clone(), change.clone());
            let stored = changed.get(place).unwrap_or(&rows[*place]);
            let evaluated = evaluate(stored, &update, limits)?;
            let one = cost_of(&evaluated, stored);
            if let Evaluated::Changed(next) = evaluated {
                costs.insert(*place, one);
                changed.insert(*place, next);
            } else {
                costs.entry(*place).or_insert(one);
            }
        }
        let mut cost = Cost::of_write(None);
        for one in costs.into_values() {
            cost += one;
        }
        let version = Version(rows[0].version.0 + 1);
        let attributes = vec![(CURSOR.into(), Value::Integer(sequence as i64))];
        let moved = Stored {
            item: Some(Arc::new(Item::from_parts(version, attributes))),
            version,
            memory: None,
        };
        changed.insert(0, moved);
        Ok(Decision::new(changed, cost, Batched::Done))
    }
}

fn cost_of(evaluated: &Evaluated, stored: &Stored) -> Cost {
    match evaluated {
        Evaluated::Refused | Evaluated::Unchanged => Cost::of_read(stored.item.as_deref()),
        Evaluated::Changed(next) => Cost::of_write(next.item.as_deref()),
    }
}
