//! A checkpoint on a full disk: in parts, with those that shrink the store first.
//!
//! The checkpoint store copies every page it changes and frees the old page afterwards. A
//! transaction that deletes therefore needs room too, up to the size of everything it touches. Here
//! each transaction touches little, and the next one uses what it freed. The ballast carries the
//! first ones. The ballast is for deletions alone: it is taken back before the records that enlarge
//! the store are written. Those get only the space that deletions freed, and the free disk space beside the ballast.
//!
//! A part consists of absolute states and does not move the checkpoint's end in the journal. A
//! recovery from there replays the same states over it. The last transaction moves the end.
//! Meanwhile readers use the frozen generation, which covers all of it.

use super::Job;
use crate::{
    checkpoint_store::{CheckpointEnd, Expiring, StoreError},
    engine::Engine,
    records::{
        RecordKey,
        overlay::{Slot, entry_bound},
    },
    store::now_ms,
};

/// The records of a part, at most. Its bytes are at most one part in `BALLAST_PART` of the ballast.
const RECORDS_MAX: usize = 16;
const BALLAST_PART: u64 = 16;

type KeyedSlot<'records> = (&'records RecordKey, &'records Slot);

/// Writes `job` in parts. The caller has opened the store again after it met the full disk.
pub(super) fn fold(engine: &Engine, job: &Job) -> Result<(), StoreError> {
    let checkpoint_end = engine
        .parts
        .checkpoint_store
        .view()?
        .map_or(CheckpointEnd::default(), |view| view.checkpoint_end);
    let (smaller, larger) = split_by_growth(engine, job)?;
    engine.parts.checkpoint_store.begin_parts();
    engine
        .parts
        .ballast
        .release()
        .map_err(|error| Box::new(redb::Error::Io(error)))?;
    let shrunk = write(engine, &smaller, checkpoint_end);
    engine.parts.ballast.acquire();
    shrunk?;
    write(engine, &larger, checkpoint_end)?;
    engine
        .parts
        .checkpoint_store
        .write(std::iter::empty(), job.checkpoint_end, few_expired())
}

/// Splits the records of a job into those that take no more room than before, and the others.
fn split_by_growth<'job>(
    engine: &Engine,
    job: &'job Job,
) -> Result<(Vec<KeyedSlot<'job>>, Vec<KeyedSlot<'job>>), StoreError> {
    let view = engine.parts.checkpoint_store.view()?;
    let (mut smaller, mut larger) = (Vec::new(), Vec::new());
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for (record_key, slot) in job.generation.in_order() {
        key.clear();
        value.clear();
        record_key.write(&mut key);
        let is_smaller = match (&slot.record, &view) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(record), Some(view)) => {
                record.encode(&mut value);
                view.get(&key)?
                    .is_some_and(|earlier| value.len() <= earlier.len())
            }
        };
        let side = if is_smaller {
            &mut smaller
        } else {
            &mut larger
        };
        side.push((record_key, slot));
    }
    Ok((smaller, larger))
}

fn write(
    engine: &Engine,
    records: &[KeyedSlot<'_>],
    checkpoint_end: CheckpointEnd,
) -> Result<(), StoreError> {
    let bytes_max = engine.parts.ballast.whole_bytes() / BALLAST_PART;
    let mut rest = records;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest.iter().take(RECORDS_MAX).take_while(|(key, slot)| {
            bytes += entry_bound(key, slot.record.as_ref()) as u64;
            bytes <= bytes_max
        });
        let (part, others) = rest.split_at(fitting.count().max(1));
        engine
            .parts
            .checkpoint_store
            .write(part.iter().copied(), checkpoint_end, few_expired())?;
        rest = others;
        // A view keeps the pages that changed since it was made, so they are freed only when it is
        // dropped.
        let view = engine.parts.checkpoint_store.view()?;
        let earlier = std::mem::replace(&mut engine.state().store.view, view);
        drop(earlier);
    }
    Ok(())
}

/// A part removes as many expired memories as it writes records.
fn few_expired() -> Expiring {
    Expiring {
        now_ms: now_ms(),
        count_max: RECORDS_MAX,
    }
}

#[cfg(test)]
mod tests;
