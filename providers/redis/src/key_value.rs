//! The key-value port: each item is one value under its own key, and a sorted set holds the sort
//! keys of each partition.
//!
//! A deleted item that remembers operations stays as a value without attributes, outside the sorted
//! set. Redis expires it after [`KeyValueLimits::operation_retention_ms`] (K8, K9).

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    DurabilityPoint, Error, Item, Key, KeyValue, Receipt, Result, Update,
    key_value::{
        Change, KeyValueLimits, Outcome, Page, Read, Scan, Transacted, Updated,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
};
use redis::Value;

use crate::{
    codec::{self, Stamps},
    compare_and_set::{Decision, Target, Write, update_atomically},
    config::KEY_VALUE_LIMITS,
    error::{Effect, Failure},
    servers::{reply, scripts::Script},
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
        let (outcome, point) =
            update_atomically(&self.servers, &self.pipelines, &targets, &attempted, decide).await?;
        Ok(Updated {
            outcome,
            receipt: Receipt { point },
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

    fn decide_one(&self, present: &Bytes, update: &Update) -> Result<Decision<Outcome>> {
        let present = codec::decode(present)?;
        let (writes, answer) = match evaluate(&present, update, &self.key_value_limits)? {
            Evaluated::Refused => (Vec::new(), Outcome::Conflict(present.item)),
            Evaluated::Unchanged => (Vec::new(), Outcome::Done(present.item)),
            Evaluated::Changed(changed) => (
                vec![write_for(&self.stamps, &present, &changed)],
                Outcome::Done(changed.item),
            ),
        };
        Ok(Decision { writes, answer })
    }

    fn decide_all(&self, present: &[Bytes], updates: &[Update]) -> Result<Decision<Transacted>> {
        let (mut writes, mut items, receipt) = (Vec::new(), Vec::new(), Receipt::default());
        for (index, (bytes, update)) in present.iter().zip(updates).enumerate() {
            let stored = codec::decode(bytes)?;
            match evaluate(&stored, update, &self.key_value_limits)? {
                Evaluated::Refused => {
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
                    writes.push(Write::Check);
                    items.push(stored.item);
                }
                Evaluated::Changed(changed) => {
                    writes.push(write_for(&self.stamps, &stored, &changed));
                    items.push(changed.item);
                }
            }
        }
        let answer = Transacted::Done { items, receipt };
        Ok(Decision { writes, answer })
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
}
