//! The values that a client has read lately, so that a change need not read them again.
//!
//! The values may be old. A change that uses them depends on them as on any read, so its commit
//! tells whether they still hold. If they do not, the change runs again without them. Calls that
//! only read never use them, and no refusal depends on them.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::Monotonic;
use transactions::serializable::model::{Key, Slot};

/// The most keys that are remembered. Beyond it, all are forgotten.
const KEYS_MAX: usize = 10_000;
/// How long a value is of use: a commit looks for writes since it was read.
const AGE_MAX: Duration = Duration::from_secs(5);

/// Values by their keys.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<BTreeMap<Key, Known>>);

/// A value as of a slot.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) at: Slot,
    pub(crate) since: Monotonic,
    /// `None`: the key is absent.
    pub(crate) value: Option<Bytes>,
}

impl Remembered {
    pub(crate) fn learn(&self, values: impl Iterator<Item = (Key, Known)>) {
        let known = &mut *self.0.lock();
        for (key, value) in values {
            if known.len() >= KEYS_MAX {
                known.clear();
            }
            known.insert(key, value);
        }
    }

    /// Forgets all, as the state that it is from may be lost.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }

    /// The value of a key, of any age.
    pub(crate) fn value(&self, key: &Key) -> Option<Bytes> {
        self.0.lock().get(key)?.value.clone()
    }

    /// The values of all `keys`; `None` if one is not remembered, or too old at `now`.
    pub(crate) fn all(&self, keys: &[Key], now: Monotonic) -> Option<Vec<Known>> {
        let known = self.0.lock();
        let fresh = |key| known.get(key).filter(|known| known.since + AGE_MAX >= now);
        keys.iter().map(|key| fresh(key).cloned()).collect()
    }
}
