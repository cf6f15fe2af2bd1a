//! The key-value port: each item is one value under its own key, and a sorted set holds the sort
//! keys of each partition.
//!
//! A deleted item that remembers operations stays as a value without attributes, outside the sorted
//! set. Redis expires it after [`KeyValueLimits::operation_retention_ms`] (K8, K9).
//!
//! On one server, a batch and its lane's cursor change in one atomic step. In a cluster a batch
//! touches several slots, so it is applied one partition at a time. Each partition records the
//! lane's progress in the same atomic step, and the cursor moves last. A repeat, also from another
//! process, finishes an interrupted attempt and applies nothing twice (K7). In a cluster, readers
//! may see part of a batch. They may also see part of a batch that is refused as invalid, if
//! another writer changed an attribute's type between two attempts.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Cost, DurabilityPoint, Error, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{
        Batch, Batched, Change, KeyValueLimits, Outcome, Page, Read, Scan, Transacted, Updated,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
};
use redis::Value;

use crate::{
    codec::{self, Stamps},
    compare_and_set::{Decision, Target, Write, update_atomically},
    error::{Effect, Failure},
    limits::KEY_VALUE_LIMITS,
    servers::{Servers, reply, scripts::Script},
    store::Store,
};

/// A page ends early once it holds this many bytes, because a running script blocks all other
/// clients.
const PAGE_BYTES_MAX: usize = 4 << 20;

#[async_trait]
impl KeyValue for Store {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        check_key(key, &self.key_value_limits)?;
        let found = self.servers.get(&self.redis_keys.item(key)).await;
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
        self.check_dependency(update.depends_on).await?;
        let targets = [self.target(&update.key)];
        let decide = |present: &[Bytes]| self.decide_one(&present[0], &update);
        let attempted = || format!("update {:?}", update.key);
        let ((outcome, cost), point) =
            update_atomically(&self.servers, &self.pipelines, &targets, &attempted, decide).await?;
        Ok(Updated {
            outcome,
            receipt: Receipt { point, cost },
        })
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        check_limits(&updates, &self.key_value_limits)?;
        let target = |update: &Update| Target {
            is_only_compared: update.change == Change::Keep,
            ..self.target(&update.key)
        };
        let targets: Vec<Target> = updates.iter().map(target).collect();
        if targets.is_empty() {
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
            self.check_dependency(update.depends_on).await?;
        }
        let attempted = || {
            format!(
                "transact {} items from {:?} on",
                updates.len(),
                updates[0].key
            )
        };
        let (mut transacted, point) =
            update_atomically(&self.servers, &self.pipelines, &targets, &attempted, decide).await?;
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

    /// Redis does not report its free space; a full server refuses writes.
    fn has_room(&self) -> bool {
        true
    }
}

/// The write that turns `present` into `changed`.
fn write_for(stamps: &Stamps, present: &Stored, changed: &Stored) -> Write {
    match (&changed.item, &changed.memory) {
        (Some(_), _) if present.item.is_some() => Write::Set(stamps.encode(changed)),
        (Some(_), _) => Write::Enter(stamps.encode(changed)),
        (None, Some(_)) => Write::Tombstone(
            stamps.encode(changed),
            KEY_VALUE_LIMITS.operation_retention_ms,
        ),
        (None, None) => Write::Delete,
    }
}

impl Store {
    /// Checks that the point which an update depends on is present (D4). It uses the last known
    /// state of the server: a restart during the update is not noticed in time.
    async fn check_dependency(&self, basis: DurabilityPoint) -> Result<()> {
        if basis == DurabilityPoint::DURABLE
            || basis.incarnation == self.servers.point().incarnation
        {
            return Ok(());
        }
        self.servers.externalize(basis).await
    }

    fn target(&self, key: &Key) -> Target {
        let (name, index, sort) = (
            self.redis_keys.item(key),
            self.redis_keys.index(key.partition()),
            key.sort(),
        );
        Target {
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
                    writes: Vec::new(),
                    answer: (Outcome::Conflict(present.item), cost),
                }
            }
            Evaluated::Unchanged => {
                let cost = Cost::of_read(present.item.as_deref());
                Decision {
                    writes: Vec::new(),
                    answer: (Outcome::Done(present.item), cost),
                }
            }
            Evaluated::Changed(changed) => {
                let cost = Cost::of_write(changed.item.as_deref());
                let writes = vec![write_for(&self.stamps, &present, &changed)];
                Decision {
                    writes,
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
                        writes: Vec::new(),
                        answer,
                    });
                }
                Evaluated::Unchanged => {
                    cost += Cost::of_read(stored.item.as_deref());
                    all.push(Write::Check);
                    items.push(stored.item);
                }
                Evaluated::Changed(changed) => {
                    cost += Cost::of_write(changed.item.as_deref());
                    all.push(write_for(&self.stamps, &stored, &changed));
                    items.push(changed.item);
                }
            }
        }
        let receipt = Receipt {
            point: DurabilityPoint::DURABLE,
            cost,
        };
        Ok(Decision {
            writes: all,
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
            self.redis_keys.index(&scan.partition),
            self.redis_keys.item_prefix(&scan.partition),
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
        let entries = reply::array(rest.next().unwrap_or(Value::Nil)).map_err(failed)?;
        let mut page = Page {
            items: Vec::with_capacity(entries.len() / 2),
            next: None,
        };
        let mut entries = entries.into_iter();
        while let (Some(sort), Some(bytes)) = (entries.next(), entries.next()) {
            let stored = codec::decode(&reply::bytes(bytes).map_err(failed)?)?;
            let item = stored
                .item
                .ok_or_else(|| Error::corrupt(format!("scan {:?}", scan.partition)))?;
            page.items.push((reply::bytes(sort).map_err(failed)?, item));
        }
        if let Some(next @ Value::BulkString(_)) = rest.next()
            && items_max > 0
        {
            page.next = Some(reply::bytes(next).map_err(failed)?);
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
                "write a batch of {items} items; the limit is {limit}"
            )));
        }
        batch
            .changes
            .iter()
            .try_for_each(|(key, _)| check_key(key, limits))
    }

    /// Computes the writes of a batch to its items. Later changes of one item apply on top of
    /// earlier ones.
    fn apply_changes(
        &self,
        items: &[(&Key, Vec<&Change>)],
        present: &[Bytes],
    ) -> Result<(Vec<Write>, Cost)> {
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
                write_for(&self.stamps, &before, &stored)
            } else {
                Write::Check
            });
        }
        Ok((all, cost))
    }

    /// On one server: changes the items and the lane's cursor in one step.
    async fn write_at_once(&self, batch: &Batch) -> Result<Batched> {
        let items = by_item(&batch.changes);
        let mut targets = vec![Target::apart(self.redis_keys.lane(&batch.lane))];
        targets.extend(items.iter().map(|(key, _)| self.target(key)));
        let decide = |present: &[Bytes]| {
            let cursor = codec::decode_cursor(&present[0])?;
            if let Some(answer) = out_of_sequence(cursor, batch.sequence) {
                return Ok(Decision {
                    writes: Vec::new(),
                    answer,
                });
            }
            let (staged, mut cost) = self.apply_changes(&items, &present[1..])?;
            cost += Cost::of_write(None);
            let mut writes = vec![Write::Set(self.stamps.encode_cursor(batch.sequence))];
            writes.extend(staged);
            Ok(Decision {
                writes,
                answer: Batched::Done(Receipt {
                    cost,
                    ..Receipt::default()
                }),
            })
        };
        let attempted = || format!("write batch {} of lane {:?}", batch.sequence, batch.lane);
        let (batched, point) =
            update_atomically(&self.servers, &self.pipelines, &targets, &attempted, decide).await?;
        Ok(with_point(batched, point))
    }

    /// In a cluster: changes one partition after the other, then the cursor.
    async fn write_by_partition(&self, batch: &Batch) -> Result<Batched> {
        let attempted = || format!("write batch {} of lane {:?}", batch.sequence, batch.lane);
        let lane = self.redis_keys.lane(&batch.lane);
        let found = self.servers.get(&lane).await;
        let (point, cursor) =
            found.map_err(|failure| failure.into_error(Effect::Reads, attempted()))?;
        if let Some(answer) = out_of_sequence(codec::decode_cursor(&cursor)?, batch.sequence) {
            return Ok(with_point(answer, point));
        }
        let mut partitions: BTreeMap<&[u8], Vec<(&Key, Vec<&Change>)>> = BTreeMap::new();
        for (key, changes) in by_item(&batch.changes) {
            partitions
                .entry(key.partition())
                .or_default()
                .push((key, changes));
        }
        // Validate all partitions before the first one changes.
        for items in partitions.values() {
            self.write_partition(batch, items, PartitionStep::Check)
                .await?;
        }
        let mut cost = Cost::of_write(None);
        for items in partitions.values() {
            cost += self
                .write_partition(batch, items, PartitionStep::Write)
                .await?;
        }
        let decide = |present: &[Bytes]| {
            let cursor = codec::decode_cursor(&present[0])?;
            if let Some(answer) = out_of_sequence(cursor, batch.sequence) {
                return Ok(Decision {
                    writes: Vec::new(),
                    answer,
                });
            }
            let writes = vec![Write::Set(self.stamps.encode_cursor(batch.sequence))];
            Ok(Decision {
                writes,
                answer: Batched::Done(Receipt {
                    cost,
                    ..Receipt::default()
                }),
            })
        };
        let targets = [Target::apart(lane)];
        let (batched, point) =
            update_atomically(&self.servers, &self.pipelines, &targets, &attempted, decide).await?;
        Ok(with_point(batched, point))
    }

    /// Applies one partition's part of a batch exactly once: the lane's progress in the partition
    /// guards it.
    async fn write_partition(
        &self,
        batch: &Batch,
        items: &[(&Key, Vec<&Change>)],
        step: PartitionStep,
    ) -> Result<Cost> {
        let mut targets = vec![Target::apart(
            self.redis_keys
                .lane_progress(items[0].0.partition(), &batch.lane),
        )];
        targets.extend(items.iter().map(|(key, _)| self.target(key)));
        let decide = |present: &[Bytes]| {
            if codec::decode_cursor(&present[0])? >= batch.sequence {
                return Ok(Decision {
                    writes: Vec::new(),
                    answer: Cost::default(),
                });
            }
            let (staged, answer) = self.apply_changes(items, &present[1..])?;
            if step == PartitionStep::Check {
                return Ok(Decision {
                    writes: Vec::new(),
                    answer,
                });
            }
            let mut writes = vec![Write::Set(self.stamps.encode_cursor(batch.sequence))];
            writes.extend(staged);
            Ok(Decision { writes, answer })
        };
        let attempted = || format!("write batch {} of lane {:?}", batch.sequence, batch.lane);
        Ok(
            update_atomically(&self.servers, &self.pipelines, &targets, &attempted, decide)
                .await?
                .0,
        )
    }
}

/// Whether a partition's part of a batch is written or only validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartitionStep {
    Check,
    Write,
}

/// The result for a batch that is not the next of its lane.
fn out_of_sequence(cursor: u64, sequence: u64) -> Option<Batched> {
    let receipt = Receipt {
        cost: Cost::of_read(None),
        ..Receipt::default()
    };
    if sequence <= cursor {
        return Some(Batched::Repeat(receipt));
    }
    (sequence > cursor + 1).then_some(Batched::Early { cursor, receipt })
}

fn with_point(batched: Batched, point: DurabilityPoint) -> Batched {
    match batched {
        Batched::Done(receipt) => Batched::Done(Receipt { point, ..receipt }),
        Batched::Repeat(receipt) => Batched::Repeat(Receipt { point, ..receipt }),
        Batched::Early { cursor, receipt } => Batched::Early {
            cursor,
            receipt: Receipt { point, ..receipt },
        },
    }
}

/// Groups a batch's changes by item, in the order of each item's first change.
fn by_item(changes: &[(Key, Change)]) -> Vec<(&Key, Vec<&Change>)> {
    let mut indexes = BTreeMap::new();
    let mut items: Vec<(&Key, Vec<&Change>)> = Vec::new();
    for (key, change) in changes {
        let index = *indexes.entry(key).or_insert_with(|| {
            items.push((key, Vec::new()));
            items.len() - 1
        });
        items[index].1.push(change);
    }
    items
}
