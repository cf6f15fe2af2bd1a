//! The key-value port on the engine.
//!
//! A call runs to its end without yielding. It holds the lock for a few microseconds, and reads a
//! record that is not in memory from the local checkpoint store in place.
//! [`ports::key_value::evaluate`] alone defines conditions and changes.
//!
//! A loop of calls that never wait would keep other tasks off its thread. Each call therefore
//! counts against its task's budget before it begins, and a task without budget yields.
//!
//! A deleted item that remembers operations stays as a record without attributes for
//! [`KeyValueLimits::operation_retention_ms`]. A late repeat is therefore recognised (K8), and the
//! version of the item does not go back (K9). After that the item counts as never created, and a
//! checkpoint removes the record.

use std::{borrow::Cow, fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    DurabilityPoint, Error, Externalize, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{
        KeyValueLimits, Outcome, Page, Read, Scan, Transacted, Updated,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate_once},
    },
    queue::Retention,
};
use tokio::task::coop::consume_budget;

use crate::{
    engine::Engine,
    records::{Record, RecordKey, StoredItem, Table, overlay::entry_bound},
    store::{Store, UseReserve, now_ms},
};

/// The limits of this provider.
pub(crate) const LIMITS: KeyValueLimits = KeyValueLimits {
    key_bytes_max: 2048,
    item_bytes_max: 4 << 20,
    transact_items_max: 1024,
    transact_across_partitions: true,
    page_items_max: 1000,
    page_is_snapshot: true,
    operations_remembered: 64,
    operation_retention_ms: 10 * 60 * 1000,
    tells_room: true,
};

/// A page ends early at this size, which bounds a scan of large items.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// The port for one kind of caller.
#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) engine: Arc<Engine>,
    /// How much of the reserve additions may use, so that they go on when the disk is full (rule P6).
    pub(crate) reserve: UseReserve,
}

#[async_trait]
impl Externalize for Items {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.engine.externalize(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.engine.point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.engine.is_durable(point)
    }
}

#[async_trait]
impl KeyValue for Items {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        consume_budget().await;
        check_key(key, &LIMITS)?;
        let mut state = self.engine.serving()?;
        let key = item_key(key.clone());
        let (value, _) = state
            .store
            .with_item(&key, |present| present.item.clone())?;
        Ok(Read {
            value,
            point: state.store.point(),
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        consume_budget().await;
        let mut state = self.engine.serving()?;
        let value = scan_page(&mut state.store, scan)?;
        Ok(Read {
            value,
            point: state.store.point(),
        })
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        consume_budget().await;
        check_key(&update.key, &LIMITS)?;
        update_one(&mut self.engine.serving()?.store, update, self.reserve)
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        consume_budget().await;
        check_limits(&updates, &LIMITS)?;
        transact(&mut self.engine.serving()?.store, updates, self.reserve)
    }

    fn limits(&self) -> &KeyValueLimits {
        &LIMITS
    }

    fn has_room(&self) -> bool {
        // The lock is needed only to ask the disk again.
        self.engine.parts.spare.has_room() || self.engine.state().store.ask_for_room()
    }
}

fn item_key(key: Key) -> RecordKey {
    RecordKey::new(Table::Item, key.into_bytes())
}

/// An item's key as errors show it. Decoded only for an error.
struct Readable<'key>(&'key RecordKey);

impl fmt::Debug for Readable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Key::from_bytes(self.0.key.clone()) {
            Some(key) => key.fmt(f),
            None => self.0.fmt(f),
        }
    }
}

/// The record of `stored`; none if nothing must be kept.
fn record_of(stored: Stored) -> Option<StoredItem> {
    match (&stored.item, &stored.memory) {
        (None, None) => None,
        (None, Some(_)) => Some(StoredItem {
            stored,
            expires_ms: now_ms() + LIMITS.operation_retention_ms,
        }),
        (Some(_), _) => Some(StoredItem {
            stored,
            expires_ms: 0,
        }),
    }
}

/// Changes of items that are made together or not at all.
#[derive(Default)]
struct Changes {
    records: Vec<(RecordKey, Option<Record>, bool)>,
    /// The journal bytes of the records, at most.
    bytes: usize,
    /// Whether one of them keeps or creates an item. Deletions alone may use the whole reserve,
    /// because they make a full store smaller.
    has_additions: bool,
}

impl Changes {
    fn add(&mut self, change: Change) {
        let Change {
            key,
            changed,
            was_there,
            below,
        } = change;
        self.has_additions |= changed.item.is_some() || !was_there;
        let record = record_of(changed).map(Record::Item);
        self.bytes += entry_bound(&key, record.as_ref());
        self.records.push((key, record, below));
    }

    fn make(self, store: &mut Store, reserve: UseReserve) -> Result<Receipt> {
        let reserve = if self.has_additions {
            reserve
        } else {
            UseReserve::Whole
        };
        store.reserve(self.bytes as u64, reserve)?;
        for (key, record, below) in self.records {
            store.overlay.set(key, record, below);
        }
        store.order();
        Ok(store.receipt())
    }
}

/// A change of one item that is not made yet.
struct Change {
    key: RecordKey,
    changed: Stored,
    /// Whether the item exists before it.
    was_there: bool,
    /// Whether a lower level may hold the item.
    below: bool,
}

/// The outcome of an update that changes nothing, or the change to make.
fn evaluate(store: &mut Store, update: Update) -> Result<Result<Change, Outcome>> {
    let Update {
        key,
        change,
        condition,
        operation,
        ..
    } = update;
    let key = item_key(key);
    let (evaluated, below) = store.with_item(&key, |present| {
        let evaluated = evaluate_once(
            present,
            &Readable(&key),
            Cow::Owned(change),
            (&condition, operation),
            &LIMITS,
        )?;
        let present = &present.item;
        Ok::<_, Error>(match evaluated {
            Evaluated::Changed(changed) => Ok((changed, present.is_some())),
            Evaluated::Unchanged => Err(Outcome::Done(present.clone())),
            Evaluated::Refused => Err(Outcome::Conflict(present.clone())),
        })
    })?;
    Ok(evaluated?.map(|(changed, was_there)| Change {
        key,
        changed,
        was_there,
        below,
    }))
}

fn update_one(store: &mut Store, update: Update, reserve: UseReserve) -> Result<Updated> {
    store.check_dependency(update.depends_on)?;
    let retention = update.retention;
    let change = match evaluate(store, update)? {
        Ok(change) => change,
        Err(outcome) => {
            let receipt = store.receipt();
            return Ok(Updated { outcome, receipt });
        }
    };
    let outcome = Outcome::Done(change.changed.item.clone());
    let mut changes = Changes::default();
    changes.add(change);
    let is_unjournaled = retention == Retention::Transient
        && matches!(&changes.records[..], [(key, Some(record), below)]
            if store.overlay.set_unjournaled(key, record, *below));
    let receipt = if is_unjournaled {
        store.receipt()
    } else {
        changes.make(store, reserve)?
    };
    Ok(Updated { outcome, receipt })
}

fn transact(store: &mut Store, updates: Vec<Update>, reserve: UseReserve) -> Result<Transacted> {
    let mut changes = Changes::default();
    changes.records.reserve(updates.len());
    let mut items = Vec::with_capacity(updates.len());
    updates
        .iter()
        .try_for_each(|update| store.check_dependency(update.depends_on))?;
    for (index, update) in updates.into_iter().enumerate() {
        match evaluate(store, update)? {
            Ok(change) => {
                items.push(change.changed.item.clone());
                changes.add(change);
            }
            Err(Outcome::Done(item)) => items.push(item),
            Err(Outcome::Conflict(item)) => {
                let receipt = store.receipt();
                return Ok(Transacted::Conflict {
                    index,
                    item,
                    receipt,
                });
            }
        }
    }
    let receipt = if changes.records.is_empty() {
        store.receipt()
    } else {
        changes.make(store, reserve)?
    };
    Ok(Transacted::Done { items, receipt })
}

fn scan_page(store: &mut Store, scan: &Scan) -> Result<Page> {
    if scan.partition.len() > LIMITS.key_bytes_max {
        return Err(Error::invalid("scan a partition whose name is too long"));
    }
    let items_max = scan.items_max.min(LIMITS.page_items_max);
    let from = item_key(Key::new(&scan.partition, &scan.from));
    let until = match &scan.until {
        Some(until) => item_key(Key::new(&scan.partition, until)),
        None => after_partition(&scan.partition),
    };
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    if from >= until || items_max == 0 {
        return Ok(page);
    }
    let mut bytes = 0;
    store.range(&from, &until, |key, entry| {
        let Record::Item(item) = entry.record(&key)? else {
            return Err(Error::corrupt(format!("scan {key:?}")));
        };
        let Some(present) = &item.stored.item else {
            return Ok(true);
        };
        let sort = Key::from_bytes(key.key)
            .ok_or_else(|| Error::corrupt("scan an invalid key"))?
            .sort();
        if page.items.len() == items_max || bytes >= PAGE_BYTES_MAX {
            page.next = Some(sort);
            return Ok(false);
        }
        bytes += present.bytes_len();
        page.items.push((sort, Arc::clone(present)));
        Ok(true)
    })?;
    Ok(page)
}

/// The first key after all keys of `partition`: its encoded form plus one.
fn after_partition(partition: &[u8]) -> RecordKey {
    let mut bytes = Key::new(partition, []).as_bytes().to_vec();
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            return RecordKey::new(Table::Item, Bytes::from(bytes));
        }
    }
    RecordKey::new(Table::Queue, Bytes::new())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use ports::key_value::{Action, Name, Value, Version};

    use super::*;
    use crate::config::Config;

    /// K11: callers ask before each request, and must not wait for a reader of the disk.
    #[test]
    fn a_store_with_room_says_so_while_others_hold_its_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(Config::new(directory.path())).expect("the store opens");
        let items = Items {
            engine: Arc::clone(&engine),
            reserve: UseReserve::No,
        };
        let state = engine.state();
        let (answer, answered) = mpsc::channel();
        let asking = thread::spawn(move || answer.send(items.has_room()));
        let answered = answered.recv_timeout(Duration::from_secs(20));
        drop(state);
        asking.join().expect("it asks").expect("it is heard");
        assert_eq!(answered, Ok(true));
        engine.shut_down(false);
    }

    /// K6.
    #[test]
    fn the_end_of_a_partition_lies_between_its_last_key_and_the_next_partition() {
        let last = item_key(Key::new([0xff, 0xff], [0xff; 40]));
        let behind = after_partition(&[0xff, 0xff]);
        assert!(last < behind);
        assert!(behind <= item_key(Key::new([0, 0, 0], [])));
    }

    /// K8.
    #[test]
    fn a_deleted_item_is_remembered_for_as_long_as_the_limits_say() {
        let deleted = || Stored {
            item: None,
            version: Version(3),
            memory: Some(Box::default()),
        };
        let now = now_ms();
        let kept = record_of(deleted()).expect("it remembers").expires_ms;
        let kept_ms = LIMITS.operation_retention_ms;
        assert!(
            (now + kept_ms..=now_ms() + kept_ms).contains(&kept),
            "{kept} at {now}"
        );
    }

    #[test]
    fn an_error_names_the_key_as_the_caller_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(Config::new(directory.path())).expect("the store opens");
        let name = || Name::from("count");
        let change = |action| Update::modify(Key::new("leases", "a"), vec![action]);
        let mut state = engine.state();
        let bytes = Action::Set(name(), Value::Bytes(Bytes::new()));
        update_one(&mut state.store, change(bytes), UseReserve::No).expect("it is set");
        let added = change(Action::Add(name(), 1));
        let error = update_one(&mut state.store, added, UseReserve::No).expect_err("bytes");
        let expected = "change count of leases/a, which has another type or would overflow";
        assert!(error.to_string().starts_with(expected), "{error}");
        drop(state);
        engine.shut_down(false);
    }

    /// K8.
    #[test]
    fn a_deleted_item_without_memory_needs_no_record() {
        let deleted = Stored {
            item: None,
            version: Version(3),
            memory: None,
        };
        assert_eq!(record_of(deleted), None);
    }
}
