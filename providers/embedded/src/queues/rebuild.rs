//! Rebuilding the queues in memory from their records, at open.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use ports::{
    Error, Result,
    queue::{Queued, Retention, Sequence},
};

use super::{
    Queues,
    message_records::{StoredMessage, parse_message_key},
    state::QueueState,
};
use crate::{
    records::{Record, RecordKey, Table},
    store::Store,
};

impl Queues {
    /// The queues whose records `store` holds.
    pub(crate) fn rebuild(store: &mut Store, dead_letters_max: usize) -> Result<Self> {
        let mut rebuilding = Rebuilding {
            queues: Self::new(store.incarnation, dead_letters_max),
            names: HashMap::new(),
        };
        rebuilding.queues(store)?;
        rebuilding.messages(store)?;
        rebuilding.message_ids(store)?;
        rebuilding.attempts(store)?;
        rebuilding.deduplication(store)?;
        rebuilding.count_dead_letters(store)?;
        Ok(rebuilding.queues)
    }
}

/// The queues so far. Each method reads one table of records.
struct Rebuilding {
    queues: Queues,
    /// The names of the queues by their numbers.
    names: HashMap<u32, Arc<str>>,
}

impl Rebuilding {
    fn queues(&mut self, store: &mut Store) -> Result<()> {
        let until = first(Table::Message);
        visit(store, Table::Queue, &until, |key, record| {
            let Record::Queue(queue) = record else {
                return None;
            };
            let name: Arc<str> = Arc::from(std::str::from_utf8(&key.key).ok()?);
            self.names.insert(queue.id, Arc::clone(&name));
            self.queues.add(name, queue.id, queue.options.clone());
            Some(())
        })
    }

    fn messages(&mut self, store: &mut Store) -> Result<()> {
        visit(store, Table::Message, &first(Table::Attempts), |key, _| {
            let (queue, group, sequence) = parse_message_key(&key.key)?;
            let queue = self.queue(queue)?;
            queue.has_records = true;
            let stored = StoredMessage {
                key: key.key.clone(),
                body: None,
            };
            let message = Queued::new(Sequence(sequence), None, stored);
            queue.groups.insert(group, message);
            Some(())
        })
    }

    fn message_ids(&mut self, store: &mut Store) -> Result<()> {
        let until = RecordKey::new(Table::MessageId, AFTER_ALL);
        visit(store, Table::MessageId, &until, |key, record| {
            let Record::MessageId(id) = record else {
                return None;
            };
            self.message(&key.key)?.deduplication = Some(Bytes::copy_from_slice(id));
            Some(())
        })
    }

    fn attempts(&mut self, store: &mut Store) -> Result<()> {
        let until = first(Table::Deduplication);
        visit(store, Table::Attempts, &until, |key, record| {
            let Record::Attempts(attempts) = record else {
                return None;
            };
            let message = self.message(&key.key)?;
            message.attempts = attempts.deliveries;
            message.failures = attempts.failures;
            message.reason = Arc::from(&*attempts.reason);
            Some(())
        })
    }

    fn deduplication(&mut self, store: &mut Store) -> Result<()> {
        let mut expiring = Vec::new();
        let until = first(Table::DeadLetter);
        visit(store, Table::Deduplication, &until, |key, record| {
            let Record::Deduplication(expires) = record else {
                return None;
            };
            let queue = u32::from_be_bytes(key.key.get(..4)?.try_into().ok()?);
            expiring.push((*expires, queue, key.key.slice(4..)));
            Some(())
        })?;
        expiring.sort_unstable();
        for (expires, queue, id) in expiring {
            let Some(queue) = self.queue(queue) else {
                continue;
            };
            // A transient queue lost its messages, so their ids may be sent again. The records of
            // the ids still expire.
            if queue.options.retention == Retention::Durable {
                queue.deduplication.insert(id.clone(), expires);
            }
            queue.expiring.push_back((expires, id));
        }
        Ok(())
    }

    /// Counts the dead letters. Their values are not decoded.
    fn count_dead_letters(&mut self, store: &mut Store) -> Result<()> {
        let until = RecordKey::new(Table::DeadLetter, AFTER_ALL);
        store.range(&first(Table::DeadLetter), &until, |key, _| {
            let id = key
                .key
                .get(..4)
                .and_then(|id| Some(u32::from_be_bytes(id.try_into().ok()?)));
            if let Some(queue) = id.and_then(|id| self.queue(id)) {
                queue.dead_letter_count += 1;
            }
            Ok(true)
        })
    }

    fn queue(&mut self, id: u32) -> Option<&mut QueueState> {
        self.queues.by_name.get_mut(self.names.get(&id)?)
    }

    /// The message whose records have this `key`.
    fn message(&mut self, key: &Bytes) -> Option<&mut Queued<StoredMessage>> {
        let (queue, group, sequence) = parse_message_key(key)?;
        let groups = &mut self.queue(queue)?.groups;
        groups.get_mut(&group, Sequence(sequence))
    }
}

/// No message and no dead letter has this key: queues are numbered from zero.
const AFTER_ALL: Bytes = Bytes::from_static(&[0xff; 5]);

/// The first key of `table`.
fn first(table: Table) -> RecordKey {
    RecordKey::new(table, Bytes::new())
}

/// Calls `take` with every record of `table`. `take` returns none for a record that does not fit.
fn visit(
    store: &mut Store,
    table: Table,
    until: &RecordKey,
    mut take: impl FnMut(&RecordKey, &Record) -> Option<()>,
) -> Result<()> {
    store.range(&first(table), until, |key, visited| {
        let record = visited.record(&key)?;
        take(&key, &record)
            .ok_or_else(|| Error::corrupt(format!("rebuild the queues: {key:?}")))?;
        Ok(true)
    })
}
