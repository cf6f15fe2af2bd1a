//! T7, T9: once every window but that of client ids has passed, the store holds only what is
//! needed.

use std::collections::{BTreeMap, BTreeSet};

use transactions::{
    Figures,
    model::PackId,
    model::{Attempt, Key, Version},
    records::Write,
};

use super::{
    history::Writer,
    stored_state::{Decision, StoredState, is_deletion},
};

/// By how many slots at a time the sequencer's log is trimmed.
const SEQUENCED_MAX: usize = 64;

/// Leftovers: versions that are superseded, without effect or deletions; rows that decide about
/// nothing and keep no client id; slots; parts of write sets without a row; chunks without a
/// version, and versions with missing chunks.
pub fn leftovers(stored_state: &StoredState) -> Vec<String> {
    let mut violations = versions(stored_state);
    for (id, row) in &stored_state.rows {
        let has_versions = stored_state.versions.iter().any(|((_, attempt), item)| {
            *attempt == row.attempt
                && item.id == *id
                && matches!(row.decision, Decision::Committed(..))
        });
        let is_kept = row.decision != Decision::Undecided && stored_state.kept.contains(id);
        if !has_versions && !is_kept {
            violations.push(format!(
                "the row of {id:?} is left, and nothing needs it: {row:?}"
            ));
        }
    }
    let slots = stored_state
        .announced
        .iter()
        .map(|(attempt, id)| (id, attempt));
    violations
        .extend(slots.map(|(id, attempt)| format!("the slot of {id:?} as {attempt} is left")));
    violations.extend(
        stored_state
            .began
            .iter()
            .map(|attempt| format!("the slot of a begin as {attempt} is left")),
    );
    if stored_state.sequenced > SEQUENCED_MAX {
        violations.push(format!(
            "the sequencer's log has {} slots",
            stored_state.sequenced
        ));
    }
    violations.extend(
        stored_state
            .spilled
            .iter()
            .map(|attempt| format!("the slot of a spill of {attempt} is left")),
    );
    violations.extend(chunks(stored_state));
    violations.extend(packs(stored_state));
    for attempt in &stored_state.with_parts {
        if !stored_state
            .rows
            .values()
            .any(|row| row.attempt == *attempt)
        {
            violations.push(format!("parts of the write set of {attempt} are left"));
        }
    }
    violations
}

/// Packs without rows, rows without packs, named packs that are missing, and packs with too few
/// live bytes. At least half must be live, except for an eighth by which a row may lag.
fn packs(stored_state: &StoredState) -> Vec<String> {
    let mut live: BTreeMap<PackId, u64> = BTreeMap::new();
    for ((key, attempt), item) in &stored_state.versions {
        let Some(pack) = item.pack else { continue };
        let writer = Writer {
            id: item.id.clone(),
            attempt: *attempt,
        };
        let writes = stored_state.committed(&writer).unwrap_or_default();
        let write = writes.iter().find(|write| write.key == *key);
        *live.entry(pack).or_default() += write.map_or(0, Write::value_bytes);
    }
    let all: BTreeSet<PackId> = live
        .keys()
        .chain(&stored_state.packs)
        .chain(stored_state.pack_rows.keys())
        .copied()
        .collect();
    let said = all.into_iter().filter_map(|pack| {
        let (is_there, row) = (
            stored_state.packs.contains(&pack),
            stored_state.pack_rows.get(&pack),
        );
        let live = live.get(&pack).copied().unwrap_or(0);
        let is_right = is_there && row.is_some_and(|(bytes, _)| live * 8 >= bytes * 3);
        (!is_right)
            .then(|| format!("{pack:?} is there: {is_there}, its row: {row:?}, live: {live}"))
    });
    said.collect()
}

fn chunks(stored_state: &StoredState) -> Vec<String> {
    let mut named: BTreeMap<(Attempt, u32), u32> = BTreeMap::new();
    for ((key, attempt), item) in &stored_state.versions {
        let writer = Writer {
            id: item.id.clone(),
            attempt: *attempt,
        };
        let writes = stored_state.committed(&writer).unwrap_or_default();
        let write = writes
            .iter()
            .find(|write| write.key == *key && write.place.chunks() > 0);
        named.extend(write.map(|write| ((*attempt, write.write), write.place.chunks())));
    }
    let all: BTreeSet<_> = named.keys().chain(stored_state.chunks.keys()).collect();
    let differs = all
        .into_iter()
        .filter(|write| named.get(write) != stored_state.chunks.get(write));
    let said = differs.map(|write| {
        let (named, there) = (
            named.get(write).unwrap_or(&0),
            stored_state.chunks.get(write).unwrap_or(&0),
        );
        format!(
            "write {} of {} has {there} chunks, and versions name {named}",
            write.1, write.0
        )
    });
    said.collect()
}

fn versions(stored_state: &StoredState) -> Vec<String> {
    let mut newest: BTreeMap<&Key, Version> = BTreeMap::new();
    let order = stored_state.order();
    for (writer, version) in &order.committed {
        for write in stored_state.committed(writer).into_iter().flatten() {
            let newest = newest.entry(&write.key).or_insert(*version);
            *newest = (*newest).max(*version);
        }
    }
    let mut violations = Vec::new();
    for ((key, attempt), item) in &stored_state.versions {
        let writer = Writer {
            id: item.id.clone(),
            attempt: *attempt,
        };
        let writes = stored_state.committed(&writer).unwrap_or_default();
        let why = match writes.iter().find(|write| write.key == *key) {
            None => "did not commit",
            Some(write) if is_deletion(write) => "deleted it long ago",
            Some(_) if newest.get(key) != order.committed.get(&writer) => "was superseded long ago",
            Some(_) => continue,
        };
        violations.push(format!("{writer:?} {why} and left a version of {key:?}"));
    }
    violations
}

/// The memory that a node holds for transactions although none is open.
pub fn held(figures: &Figures) -> Vec<String> {
    match (figures.open, figures.buffered_bytes) {
        (0, 0) => Vec::new(),
        (open, buffered) => vec![format!(
            "{open} attempts are open and {buffered} bytes are buffered"
        )],
    }
}

#[cfg(test)]
mod tests {
    use transactions::{
        model::{NodeId, Position, Timestamp, TransactionId},
        records::{Place, StoredRecord, WriteSet},
    };

    use super::*;
    use crate::transactions::stored_state::{Row, StoredVersion};

    fn key() -> Key {
        Key::new("k").expect("short")
    }

    /// Adds an attempt that wrote a key, with all its stored state.
    fn written(stored_state: &mut StoredState, sequence: u64, place: Place) -> Writer {
        let attempt = Attempt {
            node: NodeId(1),
            sequence,
        };
        let id = TransactionId::new(format!("t{sequence}")).expect("a name");
        let version = Version {
            timestamp: Timestamp(sequence),
            node: NodeId(1),
        };
        let writes = vec![Write {
            key: key(),
            write: 1,
            place,
        }];
        let position = Position {
            log: NodeId(1),
            slot: sequence,
        };
        let record = StoredRecord {
            version,
            position,
            writes: WriteSet::Inline(writes.clone()),
            effects: 0,
        };
        stored_state.versions.insert(
            (key(), attempt),
            StoredVersion {
                id: id.clone(),
                value: None,
                pack: None,
            },
        );
        let decision = Decision::Committed(record, writes);
        stored_state
            .rows
            .insert(id.clone(), Row { attempt, decision });
        Writer { id, attempt }
    }

    /// T7, T9.
    #[test]
    fn leftovers_are_found() {
        let inline = Place::Inline { bytes: 1 };
        let mut stored_state = StoredState::default();
        written(&mut stored_state, 1, inline);
        let newer = written(&mut stored_state, 2, inline);
        assert_eq!(leftovers(&stored_state).len(), 1, "superseded");
        stored_state
            .rows
            .get_mut(&newer.id)
            .expect("there")
            .decision = Decision::Closed;
        assert_eq!(
            leftovers(&stored_state).len(),
            2,
            "a version that does not count, and its row"
        );
        let mut stored_state = StoredState::default();
        let writer = written(&mut stored_state, 1, inline);
        assert_eq!(leftovers(&stored_state), [""; 0]);
        stored_state
            .announced
            .insert(writer.attempt, writer.id.clone());
        stored_state.began.insert(writer.attempt);
        assert_eq!(leftovers(&stored_state).len(), 2, "slots");
        let mut stored_state = StoredState::default();
        let writer = written(&mut stored_state, 1, Place::Gone);
        assert_eq!(leftovers(&stored_state).len(), 1, "a deletion");
        stored_state.versions.clear();
        assert_eq!(
            leftovers(&stored_state).len(),
            1,
            "a row that decides about nothing"
        );
        stored_state.kept.insert(writer.id.clone());
        assert_eq!(leftovers(&stored_state), [""; 0], "the name is kept");
        stored_state
            .rows
            .get_mut(&writer.id)
            .expect("there")
            .decision = Decision::Undecided;
        assert_eq!(leftovers(&stored_state).len(), 1, "undecided");
        stored_state.rows.clear();
        stored_state.with_parts.insert(writer.attempt);
        assert_eq!(leftovers(&stored_state).len(), 1, "parts");
    }

    /// T7, T9.
    #[test]
    fn leftover_chunks_are_found() {
        let mut stored_state = StoredState::default();
        let writer = written(
            &mut stored_state,
            1,
            Place::Chunks {
                bytes: 9,
                chunks: 2,
                crc: 0,
            },
        );
        assert_eq!(
            leftovers(&stored_state).len(),
            1,
            "a version without its chunks"
        );
        stored_state.chunks.insert((writer.attempt, 1), 2);
        assert_eq!(leftovers(&stored_state), [""; 0]);
        stored_state.chunks.insert((writer.attempt, 2), 1);
        stored_state.spilled.insert(writer.attempt);
        assert_eq!(
            leftovers(&stored_state).len(),
            2,
            "chunks without a version, and their slot"
        );
        let mut stored_state = StoredState::default();
        let pack = PackId {
            node: NodeId(1),
            number: 1,
        };
        written(&mut stored_state, 1, Place::Packed { bytes: 30, crc: 0 });
        stored_state
            .versions
            .values_mut()
            .for_each(|item| item.pack = Some(pack));
        assert_eq!(
            leftovers(&stored_state).len(),
            1,
            "a version without its pack"
        );
        stored_state.packs.insert(pack);
        assert_eq!(leftovers(&stored_state).len(), 1, "without its row");
        stored_state.pack_rows.insert(pack, (80, 0));
        assert_eq!(leftovers(&stored_state), [""; 0]);
        stored_state.pack_rows.insert(pack, (81, 0));
        assert_eq!(
            leftovers(&stored_state).len(),
            1,
            "too little of it is live"
        );
        assert_eq!(
            held(&Figures {
                open: 1,
                ..Figures::default()
            })
            .len(),
            1
        );
        assert!(held(&Figures::default()).is_empty());
    }
}
