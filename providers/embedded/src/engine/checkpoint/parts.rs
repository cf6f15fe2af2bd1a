//! A checkpoint on a full disk: in parts, what makes the store smaller first.
//!
//! The checkpoint store copies every page that it changes and gives the old one back afterwards, so a transaction that
//! deletes needs room too, up to the whole of what it touches. Here each transaction touches little and the next one uses what
//! it gave back; the ballast carries the first ones. The ballast is for deletions: what makes the store larger gets only what they have
//! freed, and what the disk has beside a quarter of the ballast.
//!
//! A part is absolute states, and leaves the checkpoint_end in the journal where it was: a recovery from there replays the same
//! states over it. The last transaction moves the checkpoint_end. Whoever reads meanwhile reads the generation, which covers all of it.

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

/// How many records go with a part, and how many bytes of the ballast.
const RECORDS_MAX: usize = 16;
const BALLAST_PART: u64 = 16;

type KeyedSlot<'records> = (&'records RecordKey, &'records Slot);

/// Folds `job`; the caller has opened the store again after it met the full disk.
pub(super) fn fold(engine: &Engine, job: &Job) -> Result<(), StoreError> {
    let checkpoint_end = engine
        .checkpoint_store
        .view()?
        .map_or(CheckpointEnd::default(), |view| view.checkpoint_end);
    let (smaller, larger) = divided(engine, job)?;
    engine
        .ballast
        .release()
        .map_err(|error| Box::new(redb::Error::Io(error)))?;
    let shrunk = write(engine, &smaller, checkpoint_end);
    engine.ballast.take();
    shrunk?;
    write(engine, &larger, checkpoint_end)?;
    engine
        .checkpoint_store
        .write(std::iter::empty(), job.checkpoint_end, few())
}

/// The records of a job: those that take no more room than before, and the others.
fn divided<'job>(
    engine: &Engine,
    job: &'job Job,
) -> Result<(Vec<KeyedSlot<'job>>, Vec<KeyedSlot<'job>>), StoreError> {
    let view = engine.checkpoint_store.view()?;
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
    let bytes_max = engine.ballast.whole_bytes() / BALLAST_PART;
    let mut rest = records;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest.iter().take(RECORDS_MAX).take_while(|(key, slot)| {
            bytes += entry_bound(key, slot.record.as_ref()) as u64;
            bytes <= bytes_max
        });
        let (part, others) = rest.split_at(fitting.count().max(1));
        engine
            .checkpoint_store
            .write(part.iter().copied(), checkpoint_end, few())?;
        rest = others;
        // A view keeps what was changed since it was made: nothing is given back before it goes.
        let view = engine.checkpoint_store.view()?;
        let earlier = std::mem::replace(&mut engine.state().store.view, view);
        drop(earlier);
    }
    Ok(())
}

/// Expired memories go with a part as records do.
fn few() -> Expiring {
    Expiring {
        now_ms: now_ms(),
        count_max: RECORDS_MAX,
    }
}

#[cfg(test)]
mod tests;
