//! The key-value port: one item is one value under a key of its own, its partition's sort keys are one sorted set.
//!
//! A deleted item that remembers operations stays as a value without attributes, outside the sorted set, until Redis
//! lets it expire after [`KeyValueLimits::operation_retention_ms`] (K8, K9).
//!
//! On one server a batch is one atomic step with its lane's cursor. In a cluster it touches several slots, so it is
//! applied partition by partition, each with a mark of how far the lane has come there in the same atomic step, and
//! the cursor moves last: a repeat, also one of another process, finishes what an attempt left half done and does
//! nothing twice (K7). Readers may see a batch in part there; so may a batch that is refused as invalid, if another
//! writer changed an attribute's type between two attempts.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Cost, DurabilityPoint, Error, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{
        Batch, Batched, Change, KeyValueLimits, Outcome, Page, Read, Room, Scan, Transacted,
        Updated,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
};
use redis::Value;

use crate::{
    answer,
    codec::{self, Stamps},
    compare_and_set::{Decision, Place, Todo, settle},
    error::{Effect, Failure},
    scripts::Script,
    servers::Servers,
    store::Store,
};

/// What this provider cannot exceed; a cluster transacts within one partition.
pub(crate) const LIMITS: KeyValueLimits = KeyValueLimits {
    key_bytes_max: 2048,
    item_bytes_max: 4 << 20,
    transact_items_max: 128,
    transact_across_partitions: true,
    batch_items_max: 512,
    page_items_max: 1000,
    page_is_snapshot: true,
    operations_remembered: 64,
    operation_retention_ms: 10 * 60 * 1000,
    tells_room: false,
};

/// A page ends early once it holds this much: a script keeps everybody waiting while it runs.
const PAGE_BYTES_MAX: usize = 4 << 20;

#[async_trait]
impl KeyValue for Store {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        check_key(key, &self.key_value_limits)?;
        let found = self.servers.get(&self.names.item(key)).await;
        let (point, bytes) = found
            .map_err(|failure| failure.into_error(Effect::Reads, format_args!("get {key:?}")))?;
        Ok(Read {
            value: codec::decode(&bytes)?.item,
            point,
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        if scan.partition.len() > self.key_value_limits.key_bytes_max {
            return Err(Error::invalid("scan a partition whose name is too long"));
        }
        self.page(scan).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        check_key(&update.key, &self.key_value_limits)?;
        self.check_basis(update.depends_on).await?;
        let places = [self.place(&update.key)];
        let decide = |present: &[Bytes]| self.decide_one(&present[0], &update);
        let attempted = || format!("update {:?}", update.key);
        let ((outcome, cost), point) =
            settle(&self.servers, &self.turns, &places, &attempted, decide).await?;
        Ok(Updated {
            outcome,
            receipt: Receipt { point, cost },
        })
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        check_limits(&updates, &self.key_value_limits)?;
        let place = |update: &Update| Place {
            is_only_compared: update.change == Change::Keep,
            ..self.place(&update.key)
        };
        let places: Vec<Place> = updates.iter().map(place).collect();
        if places.is_empty() {
            let receipt = Receipt {
                point: self.servers.point(),
                cost: Cost::default(),
            };
            return Ok(Transacted::Done {
                items: Vec::new(),
                receipt,
            });
        }
        let decide = |present: &[Bytes]| self.decide_all(present, &updates);
        for update in &updates {
            self.check_basis(update.depends_on).await?;
        }
        let attempted = || {
            format!(
                "transact {} items from {:?} on",
                updates.len(),
                updates[0].key
            )
        };
        let (mut transacted, point) =
            settle(&self.servers, &self.turns, &places, &attempted, decide).await?;
        let (Transacted::Done { receipt, .. } | Transacted::Conflict { receipt, .. }) =
            &mut transacted;
        receipt.point = point;
        Ok(transacted)
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.check_batch(&batch)?;
        match *self.servers {
            Servers::Single(_) => self.write_at_once(&batch).await,
            Servers::Cluster(_) => self.write_by_partition(&batch).await,
        }
    }

    fn limits(&self) -> &KeyValueLimits {
        &self.key_value_limits
    }

    /// It cannot tell: it refuses when it is full.
    fn room(&self) -> Room {
        Room::Free
    }
}

/// What becomes of a place where `present` was and `changed` is to be.
fn todo(stamps: &Stamps, present: &Stored, changed: &Stored) -> Todo {
    match (&changed.item, &changed.memory) {
        (Some(_), _) if present.item.is_some() => Todo::Set(stamps.encode(changed)),
        (Some(_), _) => Todo::Enter(stamps.encode(changed)),
        (None, Some(_)) => Todo::Tombstone(stamps.encode(changed), LIMITS.operation_retention_ms),
        (None, None) => Todo::Delete,
    }
}

impl Store {
    /// Whether what an update rests on is there (D4), as of the server that is known when it is asked: a restart that
    /// strikes while the update is under way is not noticed in time.
    async fn check_basis(&self, basis: DurabilityPoint) -> Result<()> {
        if basis == DurabilityPoint::DURABLE
            || basis.incarnation == self.servers.point().incarnation
        {
            return Ok(());
        }
        self.servers.externalize(basis).await
    }

    fn place(&self, key: &Key) -> Place {
        let (name, index, sort) = (
            self.names.item(key),
            self.names.index(key.partition()),
            key.sort(),
        );
        Place {
            name,
            index,
            sort,
            is_only_compared: false,
        }
    }

    fn decide_one(&self, present: &Bytes, update: &Update) -> Result<Decision<(Outcome, Cost)>> {
        let present = codec::decode(present)?;
        Ok(match evaluate(&present, update, &self.key_value_limits)? {
            Evaluated::Refused => {
                let cost = Cost::of_read(present.item.as_deref());
                Decision {
                    todo: Vec::new(),
                    answer: (Outcome::Conflict(present.item), cost),
                }
            }
            Evaluated::Unchanged => {
                let cost = Cost::of_read(present.item.as_deref());
                Decision {
                    todo: Vec::new(),
                    answer: (Outcome::Done(present.item), cost),
                }
            }
            Evaluated::Changed(changed) => {
                let cost = Cost::of_write(changed.item.as_deref());
                let todo = vec![todo(&self.stamps, &present, &changed)];
                Decision {
                    todo,
                    answer: (Outcome::Done(changed.item), cost),
                }
            }
        })
    }

    fn decide_all(&self, present: &[Bytes], updates: &[Update]) -> Result<Decision<Transacted>> {
        let (mut all, mut items, mut cost) = (Vec::new(), Vec::new(), Cost::default());
        for (index, (bytes, update)) in present.iter().zip(updates).enumerate() {
            let stored = codec::decode(bytes)?;
            match evaluate(&stored, update, &self.key_value_limits)? {
                Evaluated::Refused => {
                    let receipt = Receipt {
                        cost: Cost::of_read(stored.item.as_deref()),
                        ..Receipt::default()
                    };
                    let answer = Transacted::Conflict {
                        index,
                        item: stored.item,
                        receipt,
                    };
                    return Ok(Decision {
                        todo: Vec::new(),
                        answer,
                    });
                }
                Evaluated::Unchanged => {
                    cost += Cost::of_read(stored.item.as_deref());
                    all.push(Todo::Check);
                    items.push(stored.item);
                }
                Evaluated::Changed(changed) => {
                    cost += Cost::of_write(changed.item.as_deref());
                    all.push(todo(&self.stamps, &stored, &changed));
                    items.push(changed.item);
                }
            }
        }
        let receipt = Receipt {
            point: DurabilityPoint::DURABLE,
            cost,
        };
        Ok(Decision {
            todo: all,
            answer: Transacted::Done { items, receipt },
        })
    }

    async fn page(&self, scan: &Scan) -> Result<Read<Page>> {
        let items_max = scan.items_max.min(self.key_value_limits.page_items_max);
        let from = if scan.from.is_empty() {
            b"-".to_vec()
        } else {
            [b"[", &scan.from[..]].concat()
        };
        let until = scan
            .until
            .as_ref()
            .map_or_else(|| b"+".to_vec(), |until| [b"(", &until[..]].concat());
        let keys = [
            self.names.index(&scan.partition),
            self.names.item_prefix(&scan.partition),
        ];
        let arguments = [
            from.into(),
            until.into(),
            Bytes::from(items_max.to_string()),
            Bytes::from(PAGE_BYTES_MAX.to_string()),
        ];
        let failed = |failure: Failure| {
            failure.into_error(Effect::Reads, format_args!("scan {:?}", scan.partition))
        };
        let scanned = self
            .servers
            .run(Script::Scan, &keys, &arguments, Effect::Reads)
            .await;
        let (point, rest) = scanned.map_err(failed)?;
        let mut rest = rest.into_iter();
        let entries = answer::array(rest.next().unwrap_or(Value::Nil)).map_err(failed)?;
        let mut page = Page {
            items: Vec::with_capacity(entries.len() / 2),
            next: None,
        };
        let mut entries = entries.into_iter();
        while let (Some(sort), Some(bytes)) = (entries.next(), entries.next()) {
            let stored = codec::decode(&answer::bytes(bytes).map_err(failed)?)?;
            let item = stored
                .item
                .ok_or_else(|| Error::corrupt(format!("scan {:?}", scan.partition)))?;
            page.items
                .push((answer::bytes(sort).map_err(failed)?, item));
        }
        if let Some(next @ Value::BulkString(_)) = rest.next()
            && items_max > 0
        {
            page.next = Some(answer::bytes(next).map_err(failed)?);
        }
        Ok(Read { value: page, point })
    }

    fn check_batch(&self, batch: &Batch) -> Result<()> {
        let limits = &self.key_value_limits;
        if batch.lane.len() > limits.key_bytes_max {
            return Err(Error::invalid(
                "write a batch to a lane whose name is too long",
            ));
        }
        if batch.changes.len() > limits.batch_items_max {
            let (items, limit) = (batch.changes.len(), limits.batch_items_max);
            return Err(Error::invalid(format!(
                "write a batch of {items} items, where {limit} is the limit"
            )));
        }
        batch
            .changes
            .iter()
            .try_for_each(|(key, _)| check_key(key, limits))
    }

    /// What is to become of the items of a batch, later changes of one item over earlier ones.
    fn stage(
        &self,
        items: &[(&Key, Vec<&Change>)],
        present: &[Bytes],
    ) -> Result<(Vec<Todo>, Cost)> {
        let (mut all, mut cost) = (Vec::with_capacity(items.len()), Cost::default());
        for ((key, changes), bytes) in items.iter().zip(present) {
            let before = codec::decode(bytes)?;
            let mut stored = before.clone();
            for change in changes {
                let update = Update::of((*key).clone(), (*change).clone());
                if let Evaluated::Changed(changed) =
                    evaluate(&stored, &update, &self.key_value_limits)?
                {
                    stored = changed;
                }
            }
            let is_changed = stored != before;
            let item = stored.item.as_deref();
            cost += if is_changed {
                Cost::of_write(item)
            } else {
                Cost::of_read(item)
            };
            all.push(if is_changed {
                todo(&self.stamps, &before, &stored)
            } else {
                Todo::Check
            });
        }
        Ok((all, cost))
    }

    /// On one server: the items and the lane's cursor in one step.
    async fn write_at_once(&self, batch: &Batch) -> Result<Batched> {
        let items = by_item(&batch.changes);
        let mut places = vec![Place::apart(self.names.lane(&batch.lane))];
        places.extend(items.iter().map(|(key, _)| self.place(key)));
        let decide = |present: &[Bytes]| {
            let cursor = codec::decode_cursor(&present[0])?;
            if let Some(answer) = out_of_turn(cursor, batch.sequence) {
                return Ok(Decision {
                    todo: Vec::new(),
                    answer,
                });
            }
            let (staged, mut cost) = self.stage(&items, &present[1..])?;
            cost += Cost::of_write(None);
            let mut todo = vec![Todo::Set(self.stamps.encode_cursor(batch.sequence))];
            todo.extend(staged);
            Ok(Decision {
                todo,
                answer: Batched::Done(Receipt {
                    cost,
                    ..Receipt::default()
                }),
            })
        };
        let attempted = || format!("write batch {} of lane {:?}", batch.sequence, batch.lane);
        let (batched, point) =
            settle(&self.servers, &self.turns, &places, &attempted, decide).await?;
        Ok(at(batched, point))
    }

    /// In a cluster: partition by partition, then the cursor.
    async fn write_by_partition(&self, batch: &Batch) -> Result<Batched> {
        let attempted = || format!("write batch {} of lane {:?}", batch.sequence, batch.lane);
        let lane = self.names.lane(&batch.lane);
        let found = self.servers.get(&lane).await;
        let (point, cursor) =
            found.map_err(|failure| failure.into_error(Effect::Reads, attempted()))?;
        if let Some(answer) = out_of_turn(codec::decode_cursor(&cursor)?, batch.sequence) {
            return Ok(at(answer, point));
        }
        let mut partitions: BTreeMap<&[u8], Vec<(&Key, Vec<&Change>)>> = BTreeMap::new();
        for (key, changes) in by_item(&batch.changes) {
            partitions
                .entry(key.partition())
                .or_default()
                .push((key, changes));
        }
        // All are judged before the first is changed.
        for items in partitions.values() {
            self.write_partition(batch, items, Judging::Only).await?;
        }
        let mut cost = Cost::of_write(None);
        for items in partitions.values() {
            cost += self
                .write_partition(batch, items, Judging::AndWriting)
                .await?;
        }
        let decide = |present: &[Bytes]| {
            let cursor = codec::decode_cursor(&present[0])?;
            if let Some(answer) = out_of_turn(cursor, batch.sequence) {
                return Ok(Decision {
                    todo: Vec::new(),
                    answer,
                });
            }
            let todo = vec![Todo::Set(self.stamps.encode_cursor(batch.sequence))];
            Ok(Decision {
                todo,
                answer: Batched::Done(Receipt {
                    cost,
                    ..Receipt::default()
                }),
            })
        };
        let places = [Place::apart(lane)];
        let (batched, point) =
            settle(&self.servers, &self.turns, &places, &attempted, decide).await?;
        Ok(at(batched, point))
    }

    /// One partition's part of a batch, once: its mark says how far the lane has come here.
    async fn write_partition(
        &self,
        batch: &Batch,
        items: &[(&Key, Vec<&Change>)],
        judging: Judging,
    ) -> Result<Cost> {
        let mut places = vec![Place::apart(
            self.names.mark(items[0].0.partition(), &batch.lane),
        )];
        places.extend(items.iter().map(|(key, _)| self.place(key)));
        let decide = |present: &[Bytes]| {
            if codec::decode_cursor(&present[0])? >= batch.sequence {
                return Ok(Decision {
                    todo: Vec::new(),
                    answer: Cost::default(),
                });
            }
            let (staged, answer) = self.stage(items, &present[1..])?;
            if judging == Judging::Only {
                return Ok(Decision {
                    todo: Vec::new(),
                    answer,
                });
            }
            let mut todo = vec![Todo::Set(self.stamps.encode_cursor(batch.sequence))];
            todo.extend(staged);
            Ok(Decision { todo, answer })
        };
        let attempted = || format!("write batch {} of lane {:?}", batch.sequence, batch.lane);
        Ok(
            settle(&self.servers, &self.turns, &places, &attempted, decide)
                .await?
                .0,
        )
    }
}

/// Whether a partition's part of a batch is written or only judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judging {
    Only,
    AndWriting,
}

/// The answer to a batch that is not the next one.
fn out_of_turn(cursor: u64, sequence: u64) -> Option<Batched> {
    let receipt = Receipt {
        cost: Cost::of_read(None),
        ..Receipt::default()
    };
    if sequence <= cursor {
        return Some(Batched::Repeat(receipt));
    }
    (sequence > cursor + 1).then_some(Batched::Early { cursor, receipt })
}

fn at(batched: Batched, point: DurabilityPoint) -> Batched {
    match batched {
        Batched::Done(receipt) => Batched::Done(Receipt { point, ..receipt }),
        Batched::Repeat(receipt) => Batched::Repeat(Receipt { point, ..receipt }),
        Batched::Early { cursor, receipt } => Batched::Early {
            cursor,
            receipt: Receipt { point, ..receipt },
        },
    }
}

/// A batch's changes, each item once, in the order in which they come first.
fn by_item(changes: &[(Key, Change)]) -> Vec<(&Key, Vec<&Change>)> {
    let mut places = BTreeMap::new();
    let mut items: Vec<(&Key, Vec<&Change>)> = Vec::new();
    for (key, change) in changes {
        let place = *places.entry(key).or_insert_with(|| {
            items.push((key, Vec::new()));
            items.len() - 1
        });
        items[place].1.push(change);
    }
    items
}
