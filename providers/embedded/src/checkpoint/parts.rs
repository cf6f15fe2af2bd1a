//! A checkpoint on a full disk: in parts, what makes the store smaller first.
//!
//! The checkpoint store copies every page that it changes and gives the old one back afterwards, so a transaction that
//! deletes needs room too, up to the whole of what it touches. Here each transaction touches little and the next one uses what
//! it gave back; the ballast carries the first ones. The ballast is for deletions: what makes the store larger gets only what they have
//! freed, and what the disk has beside a quarter of the ballast.
//!
//! A part is absolute states, and leaves the place in the journal where it was: a recovery from there replays the same
//! states over it. The last transaction moves the place. Whoever reads meanwhile reads the generation, which covers all of it.

use crate::{
    base::{BaseError, Expiring, Place},
    engine::Engine,
    overlay::{Slot, entry_bound},
    record::RecordKey,
    store::now_ms,
};

use super::Job;

/// How many records go with a part, and how many bytes of the ballast.
const RECORDS_MAX: usize = 16;
const BALLAST_PART: u64 = 16;

type Entry<'records> = (&'records RecordKey, &'records Slot);

/// Folds `job`; the caller has opened the store again after it met the full disk.
pub(super) fn fold(engine: &Engine, job: &Job) -> Result<(), BaseError> {
    let place = engine
        .base
        .view()?
        .map_or(Place::default(), |view| view.place);
    let (smaller, larger) = divided(engine, job)?;
    engine
        .ballast
        .let_go()
        .map_err(|error| Box::new(redb::Error::Io(error)))?;
    let shrunk = write(engine, &smaller, place);
    engine.ballast.take();
    shrunk?;
    write(engine, &larger, place)?;
    engine.base.write(std::iter::empty(), job.place, few())
}

/// The records of a job: those that take no more room than before, and the others.
fn divided<'job>(
    engine: &Engine,
    job: &'job Job,
) -> Result<(Vec<Entry<'job>>, Vec<Entry<'job>>), BaseError> {
    let view = engine.base.view()?;
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

fn write(engine: &Engine, records: &[Entry<'_>], place: Place) -> Result<(), BaseError> {
    let bytes_max = engine.ballast.whole_bytes() / BALLAST_PART;
    let mut rest = records;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fitting = rest.iter().take(RECORDS_MAX).take_while(|(key, slot)| {
            bytes += entry_bound(key, slot.record.as_ref()) as u64;
            bytes <= bytes_max
        });
        let (part, others) = rest.split_at(fitting.count().max(1));
        engine.base.write(part.iter().copied(), place, few())?;
        rest = others;
        // A view keeps what was changed since it was made: nothing is given back before it goes.
        let view = engine.base.view()?;
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
