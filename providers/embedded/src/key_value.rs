//! The key-value port on the engine.
//!
//! A call that has begun runs to its end without yielding: the lock is held for a few microseconds, and what is not in
//! memory is read from the local checkpoint store in place. What conditions and changes mean is
//! [`ports::key_value::evaluate`]'s word alone.
//!
//! A loop of calls that are all answered at once would keep its thread from everything else. So each counts against its task's
//! budget before it begins; where that is used up, others run first.
//!
//! A deleted item that remembers operations stays as a record without attributes for
//! [`KeyValueLimits::operation_retention_ms`], so that a late repeat is recognised (K8) and its version does
//! not go back (K9); after that it counts as never having been, and a checkpoint removes it.

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Cost, DurabilityPoint, Error, Externalize, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{
        Batch, Batched, Change, KeyValueLimits, Outcome, Page, Read, Room, Scan, Transacted,
        Updated, Version,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
    queue::Retention,
};
use tokio::task::coop::consume_budget;

use crate::{
    engine::Engine,
    overlay::entry_bound,
    record::{Record, RecordKey, StoredItem, Table},
    store::{Claim, Found, Freed, Store, now_ms},
};

/// What this provider cannot exceed.
pub(crate) const LIMITS: KeyValueLimits = KeyValueLimits {
    key_bytes_max: 2048,
    item_bytes_max: 4 << 20,
    transact_items_max: 1024,
    transact_across_partitions: true,
    batch_items_max: 1024,
    page_items_max: 1000,
    page_is_snapshot: true,
    operations_remembered: 64,
    operation_retention_ms: 10 * 60 * 1000,
    tells_room: true,
};

/// A page ends early once it holds this much, so that a scan of large items stays bounded.
const PAGE_BYTES_MAX: usize = 16 << 20;

#[async_trait]
impl KeyValue for Engine {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        consume_budget().await;
        check_key(key, &LIMITS)?;
        let mut state = self.serving()?;
        let found = state.store.item(&item_key(key))?;
        let value = found.value.and_then(|item| item.stored.item.clone());
        Ok(Read {
            value,
            point: state.store.point(),
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        consume_budget().await;
        let mut state = self.serving()?;
        let value = scan_page(&mut state.store, scan)?;
        Ok(Read {
            value,
            point: state.store.point(),
        })
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        consume_budget().await;
        self.update_by(&update, Claim::Ordinary)
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        consume_budget().await;
        self.transact_by(&updates, Claim::Ordinary)
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        consume_budget().await;
        self.write_batch_by(batch, Claim::Ordinary)
    }

    fn limits(&self) -> &KeyValueLimits {
        &LIMITS
    }

    fn room(&self) -> Room {
        if self.spare().is_scarce() {
            self.state().store.ask_for_room()
        } else {
            Room::Free
        }
    }
}

impl Engine {
    fn update_by(&self, update: &Update, claim: Claim) -> Result<Updated> {
        check_key(&update.key, &LIMITS)?;
        update_one(&mut self.serving()?.store, update, claim)
    }

    fn transact_by(&self, updates: &[Update], claim: Claim) -> Result<Transacted> {
        check_limits(updates, &LIMITS)?;
        transact(&mut self.serving()?.store, updates, claim)
    }

    fn write_batch_by(&self, batch: Batch, claim: Claim) -> Result<Batched> {
        check_batch(&batch)?;
        write_batch(&mut self.serving()?.store, batch, claim)
    }
}

/// The same port for one who may use the reserve: what it changes goes on when the disk is full (rule P6).
#[derive(Debug)]
pub(crate) struct WithReserve(pub(crate) Arc<Engine>);

#[async_trait]
impl Externalize for WithReserve {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.0.externalize(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.0.point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.0.is_durable(point)
    }
}

#[async_trait]
impl KeyValue for WithReserve {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.0.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.0.scan(scan).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        consume_budget().await;
        self.0.update_by(&update, Claim::Reserve)
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        consume_budget().await;
        self.0.transact_by(&updates, Claim::Reserve)
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        consume_budget().await;
        self.0.write_batch_by(batch, Claim::Reserve)
    }

    fn limits(&self) -> &KeyValueLimits {
        &LIMITS
    }

    fn room(&self) -> Room {
        self.0.room()
    }
}

fn item_key(key: &Key) -> RecordKey {
    RecordKey::new(Table::Item, key.as_bytes().clone())
}

/// What a condition is judged by: the item found, or what one that is not there looks like.
fn stored(found: Option<&StoredItem>) -> &Stored {
    static NOTHING: Stored = Stored {
        item: None,
        version: Version(0),
        memory: None,
    };
    found.map_or(&NOTHING, |item| &item.stored)
}

/// The record that keeps `stored`; none where nothing need be kept.
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

fn update_one(store: &mut Store, update: &Update, claim: Claim) -> Result<Updated> {
    store.check_basis(update.depends_on)?;
    let key = item_key(&update.key);
    let found = store.item(&key)?;
    let present = stored(found.value.as_deref());
    match evaluate(present, update, &LIMITS)? {
        Evaluated::Refused => {
            let item = present.item.clone();
            let cost = Cost::of_read(item.as_deref());
            let receipt = Receipt {
                point: store.point(),
                cost,
            };
            Ok(Updated {
                outcome: Outcome::Conflict(item),
                receipt,
            })
        }
        Evaluated::Unchanged => {
            let item = present.item.clone();
            let cost = Cost::of_read(item.as_deref());
            let receipt = Receipt {
                point: store.point(),
                cost,
            };
            Ok(Updated {
                outcome: Outcome::Done(item),
                receipt,
            })
        }
        Evaluated::Changed(changed) => {
            let item = changed.item.clone();
            let record = record_of(changed).map(|item| Record::Item(Arc::new(item)));
            let cost = Cost::of_write(item.as_deref());
            if let Some(record) = &record
                && update.retention == Retention::Transient
                && store.overlay.set_unjournaled(&key, record, found.below)
            {
                let receipt = Receipt {
                    point: store.point(),
                    cost,
                };
                return Ok(Updated {
                    outcome: Outcome::Done(item),
                    receipt,
                });
            }
            let mut freed = Freed::default();
            freed.count(&key, present, record.as_ref());
            store.reserve(
                entry_bound(&key, record.as_ref()) as u64,
                claim.freeing(freed),
            )?;
            store.set(key, record, found.below);
            let receipt = Receipt {
                point: store.order(),
                cost,
            };
            Ok(Updated {
                outcome: Outcome::Done(item),
                receipt,
            })
        }
    }
}

fn transact(store: &mut Store, updates: &[Update], claim: Claim) -> Result<Transacted> {
    let mut changes = Vec::with_capacity(updates.len());
    let mut items = Vec::with_capacity(updates.len());
    let (mut reserved, mut cost, mut freed) = (0, Cost::default(), Freed::default());
    updates
        .iter()
        .try_for_each(|update| store.check_basis(update.depends_on))?;
    for (index, update) in updates.iter().enumerate() {
        let key = item_key(&update.key);
        let found = store.item(&key)?;
        let present = stored(found.value.as_deref());
        match evaluate(present, update, &LIMITS)? {
            Evaluated::Refused => {
                let item = present.item.clone();
                let receipt = Receipt {
                    point: store.point(),
                    cost: Cost::of_read(item.as_deref()),
                };
                return Ok(Transacted::Conflict {
                    index,
                    item,
                    receipt,
                });
            }
            Evaluated::Unchanged => {
                cost += Cost::of_read(present.item.as_deref());
                items.push(present.item.clone());
            }
            Evaluated::Changed(changed) => {
                cost += Cost::of_write(changed.item.as_deref());
                items.push(changed.item.clone());
                let record = record_of(changed).map(|item| Record::Item(Arc::new(item)));
                freed.count(&key, present, record.as_ref());
                reserved += entry_bound(&key, record.as_ref()) as u64;
                changes.push((key, record, found.below));
            }
        }
    }
    if changes.is_empty() {
        return Ok(Transacted::Done {
            items,
            receipt: Receipt {
                point: store.point(),
                cost,
            },
        });
    }
    store.reserve(reserved, claim.freeing(freed))?;
    for (key, record, below) in changes {
        store.set(key, record, below);
    }
    Ok(Transacted::Done {
        items,
        receipt: Receipt {
            point: store.order(),
            cost,
        },
    })
}

fn check_batch(batch: &Batch) -> Result<()> {
    if batch.lane.len() > LIMITS.key_bytes_max {
        return Err(Error::invalid(
            "write a batch to a lane whose name is too long",
        ));
    }
    if batch.changes.len() > LIMITS.batch_items_max {
        let (items, limit) = (batch.changes.len(), LIMITS.batch_items_max);
        return Err(Error::invalid(format!(
            "write a batch of {items} items, where {limit} is the limit"
        )));
    }
    batch
        .changes
        .iter()
        .try_for_each(|(key, _)| check_key(key, &LIMITS))
}

fn write_batch(store: &mut Store, batch: Batch, claim: Claim) -> Result<Batched> {
    let lane = RecordKey::new(Table::Lane, batch.lane);
    let found = store.record(&lane)?;
    let cursor = match found.value {
        Some(Record::Lane(cursor)) => cursor,
        Some(_) => return Err(Error::corrupt(format!("read the cursor of {lane:?}"))),
        None => 0,
    };
    let receipt = Receipt {
        point: store.point(),
        cost: Cost::of_read(None),
    };
    if batch.sequence <= cursor {
        return Ok(Batched::Repeat(receipt));
    }
    if batch.sequence > cursor + 1 {
        return Ok(Batched::Early { cursor, receipt });
    }
    let (mut cost, mut freed) = (Cost::of_write(None), Freed::default());
    let staged = stage(store, batch.changes)?;
    let moved = Record::Lane(batch.sequence);
    let mut reserved = entry_bound(&lane, Some(&moved)) as u64;
    freed.count_cursor(&lane, &moved, found.value.is_none());
    let mut changes = Vec::with_capacity(staged.len());
    for (
        key,
        Staged {
            stored,
            below,
            changed_from,
        },
    ) in staged
    {
        let Some(earlier) = changed_from else {
            cost += Cost::of_read(stored.item.as_deref());
            continue;
        };
        cost += Cost::of_write(stored.item.as_deref());
        let record = record_of(stored).map(|item| Record::Item(Arc::new(item)));
        freed.count(&key, &earlier, record.as_ref());
        reserved += entry_bound(&key, record.as_ref()) as u64;
        changes.push((key, record, below));
    }
    store.reserve(reserved, claim.freeing(freed))?;
    for (key, record, below) in changes {
        store.set(key, record, below);
    }
    store.set(lane, Some(moved), found.below);
    Ok(Batched::Done(Receipt {
        point: store.order(),
        cost,
    }))
}

/// An item as a batch makes it.
struct Staged {
    stored: Stored,
    /// Whether there is a record of it below the overlay.
    below: bool,
    /// What it was before; none: it is as it was.
    changed_from: Option<Stored>,
}

/// What a batch makes of each item it touches, later changes of one item over earlier ones.
fn stage(store: &mut Store, changes: Vec<(Key, Change)>) -> Result<BTreeMap<RecordKey, Staged>> {
    let mut staged: BTreeMap<RecordKey, Staged> = BTreeMap::new();
    for (key, change) in changes {
        let place = match staged.entry(item_key(&key)) {
            btree_map::Entry::Occupied(there) => there.into_mut(),
            btree_map::Entry::Vacant(free) => {
                let Found { value, below } = store.item(free.key())?;
                let stored = stored(value.as_deref()).clone();
                free.insert(Staged {
                    stored,
                    below,
                    changed_from: None,
                })
            }
        };
        if let Evaluated::Changed(stored) =
            evaluate(&place.stored, &Update::of(key, change), &LIMITS)?
        {
            let earlier = std::mem::replace(&mut place.stored, stored);
            place.changed_from.get_or_insert(earlier);
        }
    }
    Ok(staged)
}

fn scan_page(store: &mut Store, scan: &Scan) -> Result<Page> {
    if scan.partition.len() > LIMITS.key_bytes_max {
        return Err(Error::invalid("scan a partition whose name is too long"));
    }
    let items_max = scan.items_max.min(LIMITS.page_items_max);
    let from = item_key(&Key::new(&scan.partition, &scan.from));
    let until = match &scan.until {
        Some(until) => item_key(&Key::new(&scan.partition, until)),
        None => behind_partition(&scan.partition),
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
            .ok_or_else(|| Error::corrupt("scan a key that is none"))?
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

/// The first key behind all keys of `partition`: its encoded form counted up by one.
fn behind_partition(partition: &[u8]) -> RecordKey {
    let mut bytes = Key::new(partition, []).as_bytes().to_vec();
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            return RecordKey::new(Table::Item, Bytes::from(bytes));
        }
    }
    RecordKey::new(Table::Lane, Bytes::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K6.
    #[test]
    fn the_end_of_a_partition_lies_behind_its_last_key_and_before_the_next_partition() {
        let last = item_key(&Key::new([0xff, 0xff], [0xff; 40]));
        let behind = behind_partition(&[0xff, 0xff]);
        assert!(last < behind);
        assert!(behind <= item_key(&Key::new([0, 0, 0], [])));
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
