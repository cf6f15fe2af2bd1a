//! Writes and messages of steps, to be committed together.

use std::collections::BTreeMap;

use bytes::Bytes;
use transactions::Effect;

/// Written values by key; none: deleted.
pub(crate) type Writes = BTreeMap<Bytes, Option<Bytes>>;

/// Changes that commit together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) writes: Writes,
    pub(crate) sends: Vec<Effect>,
    /// The position of the first message among those of the attempt.
    pub(crate) first: u32,
    /// How many messages, from the first on, commit ahead of the step, or may have.
    pub(crate) ahead: usize,
    /// Distinguishes the attempts of one step.
    pub(crate) attempt: u64,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.sends.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        let writes = self
            .writes
            .iter()
            .map(|(key, value)| size(key, value.as_ref()))
            .sum::<usize>();
        writes + self.sends.iter().map(Effect::bytes_len).sum::<usize>()
    }
}

pub(crate) fn size(key: &Bytes, value: Option<&Bytes>) -> usize {
    key.len() + value.map_or(0, Bytes::len) + 64
}
