//! The secret that the nodes of a store share, by which they recognise each other.

use std::fmt::{self, Debug};

use ports::{
    Condition, Entropy, Update,
    key_value::{Name, Test, Value},
};
use primitives::Mutant;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    broken::Broken,
    storage::{layout, store::Store},
};

/// The shared secret, which is known only to processes with access to the store. Each incarnation
/// of the store has another. A node that has yet to notice that the store was reset may have
/// applied lost commits, and is a stranger to the others.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub(crate) struct Secret(pub(crate) u128);

/// The row's attributes.
const SECRET: &str = "secret";
const INCARNATION: &str = "incarnation";

impl Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Reads the secret of `store` in its present incarnation; the first reader generates it.
    pub(crate) async fn of(
        store: &Store,
        entropy: &dyn Entropy,
        mutant: Mutant<Broken>,
    ) -> Result<Self> {
        let present = store.incarnation().0 as i64;
        let drawn = [
            entropy.next_u64().to_be_bytes(),
            entropy.next_u64().to_be_bytes(),
        ]
        .concat();
        let attributes = vec![
            (Name::from(SECRET), Value::Bytes(drawn.into())),
            (Name::from(INCARNATION), Value::Integer(present)),
        ];
        let is_earlier = [Test::Absent, Test::Below(present)]
            .map(|test| Condition::attribute(INCARNATION, test));
        let replaced = if mutant.breaks(Broken::BelievesEarlierLives) {
            Condition::Absent
        } else {
            Condition::Any(
                vec![Condition::Absent]
                    .into_iter()
                    .chain(is_earlier)
                    .collect(),
            )
        };
        store
            .update(Update::put(layout::secret(), attributes).when(replaced))
            .await?;
        let row = store.get(&layout::secret()).await?;
        store.externalize(row.point).await?;
        let bytes = row
            .value
            .and_then(|row| row.bytes(SECRET)?[..].try_into().ok());
        let damaged = || Error::Corrupt("decode the secret of the nodes".into());
        bytes
            .map(|bytes| Self(u128::from_be_bytes(bytes)))
            .ok_or_else(damaged)
    }
}
