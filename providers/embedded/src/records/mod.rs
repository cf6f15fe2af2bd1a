//! Records: the unit of the journal and of the checkpoint store.

pub(crate) mod overlay;
mod record;

pub(crate) use record::{Attempts, QueueRecord, Record, RecordKey, StoredItem, Table, put, read};
