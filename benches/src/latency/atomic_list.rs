//! The atomic list of FaaSKeeper's section 2.2, as far as the benchmark measures it: expansion and
//! truncation in one step each. Ours has a bound, because an item has one.

use bytes::Bytes;
use ports::{
    Condition, Key, Receipt, Result, Update,
    key_value::{Action, Outcome, SharedKeyValue, Test},
};

const ELEMENTS: &str = "elements";

/// A list in an item of its own. It is empty until the first append.
pub(super) struct AtomicList {
    key_value: SharedKeyValue,
    key: Key,
    elements_max: usize,
}

impl AtomicList {
    /// The list under `key`, of at most `elements_max` elements.
    pub(super) fn new(key_value: SharedKeyValue, key: Key, elements_max: usize) -> Self {
        Self {
            key_value,
            key,
            elements_max,
        }
    }

    /// Appends all of `elements`, or none if they do not fit. Returns the length of the list.
    pub(super) async fn append(&self, elements: Vec<Bytes>) -> Result<(usize, Receipt)> {
        let room = (self.elements_max + 1).saturating_sub(elements.len());
        let fits = Condition::attribute(ELEMENTS, Test::ShorterThan(room));
        self.update(Action::Append(ELEMENTS.into(), elements), fits)
            .await
    }

    /// Removes all elements.
    pub(super) async fn clear(&self) -> Result<Receipt> {
        let action = Action::RemoveFirst(ELEMENTS.into(), self.elements_max);
        Ok(self.update(action, Condition::Always).await?.1)
    }

    async fn update(&self, action: Action, condition: Condition) -> Result<(usize, Receipt)> {
        let update = Update::modify(self.key.clone(), vec![action]).when(condition);
        let updated = self.key_value.update(update).await?;
        let (Outcome::Done(item) | Outcome::Conflict(item)) = updated.outcome;
        let length = item.map_or(0, |item| item.list(ELEMENTS).len());
        Ok((length, updated.receipt))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ports::Key;
    use simulated::World;

    use super::AtomicList;

    #[test]
    fn a_list_takes_what_fits_and_each_step_is_one_call() {
        simulated::run(async {
            let world = World::new(1);
            let list = AtomicList::new(world.key_value(), Key::new("lists", "a"), 3);
            let append = async |count| {
                let elements = vec![Bytes::from_static(b"e"); count];
                list.append(elements).await.expect("a calm world").0
            };
            assert_eq!(
                [append(2).await, append(2).await, append(1).await],
                [2, 2, 3]
            );
            list.clear().await.expect("a calm world");
            assert_eq!([append(4).await, append(3).await], [0, 3]);
            assert_eq!(world.port_calls(), 6);
        });
    }
}
