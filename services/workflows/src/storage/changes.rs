//! What steps write and send, to be committed together.

use std::collections::BTreeMap;

use bytes::Bytes;
use transactions::Effect;

/// What was written, by key; none: deleted.
pub(crate) type Writes = BTreeMap<Bytes, Option<Bytes>>;

/// What is to count together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) writes: Writes,
    pub(crate) sends: Vec<Effect>,
    /// The place of the first of them among what the attempt sends.
    pub(crate) first: u32,
    /// How many of them, the first ones, are to count by themselves, ahead of the step, or may already.
    pub(crate) ahead: usize,
    /// What tells the attempt from others of its step.
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
