//! The index, from the records, at open.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use ports::{Error, Incarnation, Result, queue::Retention};

use super::{
    group::Entry,
    index::{QueueState, Queues, append, parse_message_key},
};
use crate::{
    record::{Record, RecordKey, Table},
    store::Store,
};

impl Queues {
    /// The index of what `store` holds.
    pub(crate) fn rebuild(store: &mut Store, dead_letters_max: usize) -> Result<Self> {
        let mut queues = Self {
            next_sequence: Self::first_sequence(store.incarnation),
            incarnation: Incarnation(store.incarnation),
            dead_letters_max: dead_letters_max as u64,
            ..Self::default()
        };
        let mut names: HashMap<u32, Arc<str>> = HashMap::new();
        visit(
            store,
            Table::Queue,
            &first(Table::Message),
            |key, record| {
                let Record::Queue(queue) = record else {
                    return None;
                };
                let name: Arc<str> = Arc::from(std::str::from_utf8(&key.key).ok()?);
                names.insert(queue.id, Arc::clone(&name));
                queues.next_id = queues.next_id.max(queue.id + 1);
                queues.by_name.insert(
                    name,
                    QueueState::new(queue.id, queue.options.clone(), queues.dead_letters_max),
                );
                Some(())
            },
        )?;
        visit(store, Table::Message, &first(Table::Attempts), |key, _| {
            let (queue, group, sequence) = parse_message_key(&key.key)?;
            let queue = queues.by_name.get_mut(names.get(&queue)?)?;
            queue.note_records();
            append(queue, group, Entry::new(sequence, key.key.clone(), None));
            Some(())
        })?;
        visit(
            store,
            Table::MessageId,
            &RecordKey::new(Table::MessageId, BEHIND_ALL),
            |key, record| {
                let Record::MessageId(id) = record else {
                    return None;
                };
                queues.entry(&names, &key.key)?.id = Some(Bytes::copy_from_slice(id));
                Some(())
            },
        )?;
        visit(
            store,
            Table::Attempts,
            &first(Table::Deduplication),
            |key, record| {
                let Record::Attempts(attempts) = record else {
                    return None;
                };
                let entry = queues.entry(&names, &key.key)?;
                entry.deliveries = attempts.deliveries;
                entry.failures = attempts.failures;
                entry.reason = Some(Arc::from(&*attempts.reason));
                Some(())
            },
        )?;
        let mut expiring = Vec::new();
        visit(
            store,
            Table::Deduplication,
            &first(Table::DeadLetter),
            |key, record| {
                let Record::Deduplication(expires) = record else {
                    return None;
                };
                let queue = u32::from_be_bytes(key.key.get(..4)?.try_into().ok()?);
                expiring.push((*expires, queue, key.key.slice(4..)));
                Some(())
            },
        )?;
        expiring.sort_unstable();
        for (expires, queue, id) in expiring {
            let Some(queue) = names
                .get(&queue)
                .and_then(|name| queues.by_name.get_mut(name))
            else {
                continue;
            };
            // What had this id is gone: it may be sent again. Its row goes when it would have.
            if queue.options.retention == Retention::Durable {
                queue.deduplication.insert(id.clone(), expires);
            }
            queue.expiring.push_back((expires, id));
        }
        queues.count_dead_letters(store, &names)?;
        Ok(queues)
    }

    /// Counts what was given up, of which only the keys are looked at.
    fn count_dead_letters(
        &mut self,
        store: &mut Store,
        names: &HashMap<u32, Arc<str>>,
    ) -> Result<()> {
        let behind = RecordKey::new(Table::DeadLetter, BEHIND_ALL);
        store.range(&first(Table::DeadLetter), &behind, |key, _| {
            let queue = key
                .key
                .get(..4)
                .and_then(|id| Some(u32::from_be_bytes(id.try_into().ok()?)));
            let name = queue.and_then(|queue| names.get(&queue));
            if let Some(queue) = name.and_then(|name| self.by_name.get_mut(name)) {
                queue.dead_letters += 1;
            }
            Ok(true)
        })
    }

    /// The message whose records lie under `key`.
    fn entry(&mut self, names: &HashMap<u32, Arc<str>>, key: &Bytes) -> Option<&mut Entry> {
        let (queue, group, sequence) = parse_message_key(key)?;
        let entries = &mut self
            .by_name
            .get_mut(names.get(&queue)?)?
            .groups
            .get_mut(&group)?
            .entries;
        let place = entries
            .binary_search_by_key(&sequence, |entry| entry.sequence)
            .ok()?;
        Some(&mut entries[place])
    }
}

/// No message and no dead letter has this key: queues are numbered from zero.
const BEHIND_ALL: Bytes = Bytes::from_static(&[0xff; 5]);

/// Where `table` begins.
fn first(table: Table) -> RecordKey {
    RecordKey::new(table, Bytes::new())
}

/// Hands every record of `table` to `take`, which answers none for one that does not fit.
fn visit(
    store: &mut Store,
    table: Table,
    until: &RecordKey,
    mut take: impl FnMut(&RecordKey, &Record) -> Option<()>,
) -> Result<()> {
    store.range(&first(table), until, |key, entry| {
        let record = entry.record(&key)?;
        take(&key, &record)
            .ok_or_else(|| Error::corrupt(format!("rebuild the queues: {key:?}")))?;
        Ok(true)
    })
}
