//! Walks over records in order: the overlay merged with the checkpoint store.

use bytes::Bytes;
use ports::{Error, Result};

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
        visit: impl FnMut(RecordKey, Visited<'_>) -> Result<bool>,
    ) -> Result<()> {
        // Damage is remembered for the walk, not for the record at its start.
        let (mut walk, mut until_bytes) = (vec![WALK], Vec::new());
        from.write(&mut walk);
        until.write(&mut until_bytes);
        let range = self.read_below(&walk, |view| view.range(&walk[1..], &until_bytes));
        let range = range.map_err(|error| unreadable(from, error))?;
        match self.merge(range, from, until, visit) {
            Ok(()) => Ok(()),
            Err(Stopped::Visit(error)) => Err(error),
            Err(Stopped::Below(error)) => {
                self.failed_below(&walk, &error);
                Err(unreadable(from, error))
            }
        }
    }

    fn merge(
        &self,
        range: Option<ViewRange>,
        from: &RecordKey,
        until: &RecordKey,
        mut visit: impl FnMut(RecordKey, Visited<'_>) -> Result<bool>,
    ) -> Result<(), Stopped> {
        let mut below = Below::start(range)?;
        for (key, record) in self.overlay.range(from, until) {
            while let Some((clean_key, clean)) = below.before(key)? {
                if !visit(clean_key, Visited::Clean(clean))? {
                    return Ok(());
                }
            }
            below.skip(key)?;
            if let Some(record) = record
                && !visit(key.clone(), Visited::Changed(record))?
            {
                return Ok(());
            }
        }
        while let Some((clean_key, clean)) = below.take()? {
            if !visit(clean_key, Visited::Clean(clean))? {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Why a walk over records ended early.
enum Stopped {
    /// The checkpoint store could not be read.
    Below(StoreError),
    /// The visitor failed.
    Visit(Error),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Below(error)
    }
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Visit(error)
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

/// The checkpoint store's side of a merge, read one record ahead.
struct Below {
    range: Option<ViewRange>,
    ahead: Option<(RecordKey, Bytes)>,
}

impl Below {
    fn start(range: Option<ViewRange>) -> Result<Self, StoreError> {
        let mut below = Self { range, ahead: None };
        below.take()?;
        Ok(below)
    }

    /// Returns the record read ahead, and reads the next one.
    fn take(&mut self) -> Result<Option<(RecordKey, Bytes)>, StoreError> {
        let next = match &mut self.range {
            None => None,
            Some(range) => range.next()?,
        };
        Ok(std::mem::replace(&mut self.ahead, next))
    }

    fn before(&mut self, key: &RecordKey) -> Result<Option<(RecordKey, Bytes)>, StoreError> {
        if self.ahead.as_ref().is_some_and(|(ahead, _)| ahead < key) {
            self.take()
        } else {
            Ok(None)
        }
    }

    fn skip(&mut self, key: &RecordKey) -> Result<(), StoreError> {
        if self.ahead.as_ref().is_some_and(|(ahead, _)| ahead == key) {
            self.take()?;
        }
        Ok(())
    }
}
