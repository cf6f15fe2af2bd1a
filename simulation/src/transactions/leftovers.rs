//! T7, T9: when all is over and every window but that of names is, nothing stands there but what is needed.

use std::collections::{BTreeMap, BTreeSet};

use transactions::{
    Figures,
    model::PackId,
    model::{Attempt, Key, Version},
    records::Write,
};

use super::{
    at_rest::{AtRest, Decision, is_deletion},
    history::Writer,
};

/// The sequencer's log is trimmed by so many slots at a time.
const SEQUENCED_MAX: usize = 64;

/// Versions that are not the newest of their keys, or do not count, or delete; rows that decide about nothing and are no
/// kept names; slots; parts of write sets without a row; chunks that no version names, and versions whose chunks are not there.
pub fn leftovers(at_rest: &AtRest) -> Vec<String> {
    let mut violations = versions(at_rest);
    for (id, row) in &at_rest.rows {
        let has_versions = at_rest.versions.iter().any(|((_, attempt), item)| {
            *attempt == row.attempt
                && item.id == *id
                && matches!(row.decision, Decision::Committed(..))
        });
        let is_kept = row.decision != Decision::Undecided && at_rest.kept.contains(id);
        if !has_versions && !is_kept {
            violations.push(format!(
                "the row of {id:?} is left, and nothing needs it: {row:?}"
            ));
        }
    }
    let slots = at_rest.announced.iter().map(|(attempt, id)| (id, attempt));
    violations
        .extend(slots.map(|(id, attempt)| format!("the slot of {id:?} as {attempt} is left")));
    violations.extend(
        at_rest
            .began
            .iter()
            .map(|attempt| format!("the slot of a begin as {attempt} is left")),
    );
    if at_rest.sequenced > SEQUENCED_MAX {
        violations.push(format!(
            "the sequencer's log has {} slots",
            at_rest.sequenced
        ));
    }
    violations.extend(
        at_rest
            .spilled
            .iter()
            .map(|attempt| format!("the slot of a spill of {attempt} is left")),
    );
    violations.extend(chunks(at_rest));
    violations.extend(packs(at_rest));
    for attempt in &at_rest.with_parts {
        if !at_rest.rows.values().any(|row| row.attempt == *attempt) {
            violations.push(format!("parts of the write set of {attempt} are left"));
        }
    }
    violations
}

/// Packs without rows and rows without packs, packs that versions name and that are not there, and packs of which little is
/// live: half at least, but for an eighth that a row may be behind.
fn packs(at_rest: &AtRest) -> Vec<String> {
    let mut live: BTreeMap<PackId, u64> = BTreeMap::new();
    for ((key, attempt), item) in &at_rest.versions {
        let Some(pack) = item.pack else { continue };
        let writer = Writer {
            id: item.id.clone(),
            attempt: *attempt,
        };
        let writes = at_rest.committed(&writer).unwrap_or_default();
        let write = writes.iter().find(|write| write.key == *key);
        *live.entry(pack).or_default() += write.map_or(0, Write::value_bytes);
    }
    let all: BTreeSet<PackId> = live
        .keys()
        .chain(&at_rest.packs)
        .chain(at_rest.pack_rows.keys())
        .copied()
        .collect();
    let said = all.into_iter().filter_map(|pack| {
        let (is_there, row) = (at_rest.packs.contains(&pack), at_rest.pack_rows.get(&pack));
        let live = live.get(&pack).copied().unwrap_or(0);
        let is_right = is_there && row.is_some_and(|(bytes, _)| live * 8 >= bytes * 3);
        (!is_right)
            .then(|| format!("{pack:?} is there: {is_there}, its row: {row:?}, live: {live}"))
    });
    said.collect()
}

fn chunks(at_rest: &AtRest) -> Vec<String> {
    let mut named: BTreeMap<(Attempt, u32), u32> = BTreeMap::new();
    for ((key, attempt), item) in &at_rest.versions {
        let writer = Writer {
            id: item.id.clone(),
            attempt: *attempt,
        };
        let writes = at_rest.committed(&writer).unwrap_or_default();
        let write = writes
            .iter()
            .find(|write| write.key == *key && write.place.chunks() > 0);
        named.extend(write.map(|write| ((*attempt, write.write), write.place.chunks())));
    }
    let all: BTreeSet<_> = named.keys().chain(at_rest.chunks.keys()).collect();
    let differs = all
        .into_iter()
        .filter(|write| named.get(write) != at_rest.chunks.get(write));
    let said = differs.map(|write| {
        let (named, there) = (
            named.get(write).unwrap_or(&0),
            at_rest.chunks.get(write).unwrap_or(&0),
        );
        format!(
            "write {} of {} has {there} chunks, and versions name {named}",
            write.1, write.0
        )
    });
    said.collect()
}

fn versions(at_rest: &AtRest) -> Vec<String> {
    let mut newest: BTreeMap<&Key, Version> = BTreeMap::new();
    let order = at_rest.order();
    for (writer, version) in &order.committed {
        for write in at_rest.committed(writer).into_iter().flatten() {
            let newest = newest.entry(&write.key).or_insert(*version);
            *newest = (*newest).max(*version);
        }
    }
    let mut violations = Vec::new();
    for ((key, attempt), item) in &at_rest.versions {
        let writer = Writer {
            id: item.id.clone(),
            attempt: *attempt,
        };
        let writes = at_rest.committed(&writer).unwrap_or_default();
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

/// What a node holds of transactions although none is open.
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
    use crate::transactions::at_rest::{Row, VersionAtRest};

    fn key() -> Key {
        Key::new("k").expect("short")
    }

    /// An attempt that wrote a key, and all of it at rest.
    fn written(at_rest: &mut AtRest, sequence: u64, place: Place) -> Writer {
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
        at_rest.versions.insert(
            (key(), attempt),
            VersionAtRest {
                id: id.clone(),
                value: None,
                pack: None,
            },
        );
        let decision = Decision::Committed(record, writes);
        at_rest.rows.insert(id.clone(), Row { attempt, decision });
        Writer { id, attempt }
    }

    /// T7, T9.
    #[test]
    fn what_nothing_needs_is_found() {
        let inline = Place::Inline { bytes: 1 };
        let mut at_rest = AtRest::default();
        written(&mut at_rest, 1, inline);
        let newer = written(&mut at_rest, 2, inline);
        assert_eq!(leftovers(&at_rest).len(), 1, "superseded");
        at_rest.rows.get_mut(&newer.id).expect("there").decision = Decision::Closed;
        assert_eq!(
            leftovers(&at_rest).len(),
            2,
            "a version that does not count, and its row"
        );
        let mut at_rest = AtRest::default();
        let writer = written(&mut at_rest, 1, inline);
        assert_eq!(leftovers(&at_rest), [""; 0]);
        at_rest.announced.insert(writer.attempt, writer.id.clone());
        at_rest.began.insert(writer.attempt);
        assert_eq!(leftovers(&at_rest).len(), 2, "slots");
        let mut at_rest = AtRest::default();
        let writer = written(&mut at_rest, 1, Place::Gone);
        assert_eq!(leftovers(&at_rest).len(), 1, "a deletion");
        at_rest.versions.clear();
        assert_eq!(
            leftovers(&at_rest).len(),
            1,
            "a row that decides about nothing"
        );
        at_rest.kept.insert(writer.id.clone());
        assert_eq!(leftovers(&at_rest), [""; 0], "the name is kept");
        at_rest.rows.get_mut(&writer.id).expect("there").decision = Decision::Undecided;
        assert_eq!(leftovers(&at_rest).len(), 1, "undecided");
        at_rest.rows.clear();
        at_rest.with_parts.insert(writer.attempt);
        assert_eq!(leftovers(&at_rest).len(), 1, "parts");
        let mut at_rest = AtRest::default();
        let writer = written(
            &mut at_rest,
            1,
            Place::Chunks {
                bytes: 9,
                chunks: 2,
                crc: 0,
            },
        );
        assert_eq!(leftovers(&at_rest).len(), 1, "a version without its chunks");
        at_rest.chunks.insert((writer.attempt, 1), 2);
        assert_eq!(leftovers(&at_rest), [""; 0]);
        at_rest.chunks.insert((writer.attempt, 2), 1);
        at_rest.spilled.insert(writer.attempt);
        assert_eq!(
            leftovers(&at_rest).len(),
            2,
            "chunks that nobody names, and their slot"
        );
        let mut at_rest = AtRest::default();
        let pack = PackId {
            node: NodeId(1),
            number: 1,
        };
        written(&mut at_rest, 1, Place::Packed { bytes: 30, crc: 0 });
        at_rest
            .versions
            .values_mut()
            .for_each(|item| item.pack = Some(pack));
        assert_eq!(leftovers(&at_rest).len(), 1, "a version without its pack");
        at_rest.packs.insert(pack);
        assert_eq!(leftovers(&at_rest).len(), 1, "without its row");
        at_rest.pack_rows.insert(pack, (80, 0));
        assert_eq!(leftovers(&at_rest), [""; 0]);
        at_rest.pack_rows.insert(pack, (81, 0));
        assert_eq!(leftovers(&at_rest).len(), 1, "too little of it is live");
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
