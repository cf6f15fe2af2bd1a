//! Walks over records in order: the overlay merged with the checkpoint store.

use bytes::Bytes;
use ports::Result;

use super::{Store, undecodable, unreadable};
use crate::{
    checkpoint_store::{StoreError, ViewRange},
    records::{Record, RecordKey},
};

/// The first byte under which a damaged walk is remembered. No table has this number.
const WALK: u8 = u8::MAX;

impl Store {
    /// Calls `visit` with the records from `from` up to and without `until`, in order, until it
    /// returns false.
    pub(crate) fn range(
        &mut self,
        from: &RecordKey,
        until: &RecordKey,
        mut visit: impl FnMut(RecordKey, Visited<'_>) -> Result<bool>,
    ) -> Result<()> {
        // Damage is remembered for the walk, not for the record at its start.
        let (mut walk, mut until_bytes) = (vec![WALK], Vec::new());
        from.write(&mut walk);
        until.write(&mut until_bytes);
        let range = self.read_below(&walk, |view| view.range(&walk[1..], &until_bytes));
        let range = range.map_err(|error| unreadable(from, error))?;
        let mut visited = Ok(());
        let merged = self.merge(range, from, until, |key, record| match visit(key, record) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                visited = Err(error);
                false
            }
        });
        merged.map_err(|error| {
            self.failed_below(&walk, &error);
            unreadable(from, error)
        })?;
        visited
    }

    fn merge(
        &self,
        range: Option<ViewRange>,
        from: &RecordKey,
        until: &RecordKey,
        mut visit: impl FnMut(RecordKey, Visited<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let mut below = range.into_iter().flatten().peekable();
        for (key, record) in self.overlay.range(from, until) {
            // A failed read is taken at once, and ends the walk.
            while let Some(next) =
                below.next_if(|next| next.as_ref().map_or(true, |(clean, _)| clean < key))
            {
                let (clean_key, clean) = next?;
                if !visit(clean_key, Visited::Clean(clean)) {
                    return Ok(());
                }
            }
            below.next_if(|next| next.as_ref().is_ok_and(|(clean, _)| clean == key));
            if let Some(record) = record
                && !visit(key.clone(), Visited::Changed(record))
            {
                return Ok(());
            }
        }
        for next in below {
            let (clean_key, clean) = next?;
            if !visit(clean_key, Visited::Clean(clean)) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// A record visited by [`Store::range`].
pub(crate) enum Visited<'store> {
    /// From the overlay.
    Changed(&'store Record),
    /// From the checkpoint store, still encoded.
    Clean(Bytes),
}

impl Visited<'_> {
    pub(crate) fn record(self, key: &RecordKey) -> Result<Record> {
        match self {
            Self::Changed(record) => Ok(record.clone()),
            Self::Clean(bytes) => Record::decode(key.table, bytes).ok_or_else(|| undecodable(key)),
        }
    }
}
