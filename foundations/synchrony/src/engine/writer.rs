//! Writes: evaluated over the rows, ordered near in one transaction with their record, and passed
//! to the stream.
//!
//! One writer at a time holds the order lock, from its read of the rows to the near store's
//! response. So near order is position order. Slow parts, such as a far read or a wait for
//! capacity, run without the lock.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::{
    DurabilityPoint, Error, ErrorKind, Item, Key, Result, Update,
    key_value::{Change, Read, Transacted, Value, evaluate::Stored},
};

use super::{Engine, Order};
use crate::{
    evaluation::Operation,
    health::Ended,
    layout::{
        BODY, Content, LaneId, OWNER, PayloadId, Record, RecordId, Row, RowKey, Written, body,
        decode_body, encode_attributes, far_change, payload_sort, record_sort,
    },
    options::Mode,
    owner::{NearOwner, moving_on, near_guard},
    stream::Pending,
};

/// The present row of a key.
struct CurrentRow {
    row: Option<Row>,
    stored: Stored,
}

/// The near transaction of one write.
struct Plan {
    updates: Vec<Update>,
    record: Record,
    payloads: Vec<Option<Bytes>>,
    resident_added: usize,
    resident_removed: usize,
}

/// The result of a call, with the highest position that its lane knows.
pub(crate) type Answered<T> = (T, u64);

impl Engine {
    /// Makes a call in a lane. `held` is a handle to the lane.
    pub(crate) async fn write<O: Operation>(
        self: &Arc<Self>,
        (lane, held): (LaneId, impl Send + 'static),
        operation: O,
    ) -> Result<Answered<O::Answer>> {
        operation.check(&self.limits)?;
        // The write continues if its caller gives up. It follows what its lane has read, which the
        // lane forgets when its last handle is dropped. So the task holds a handle.
        let engine = Arc::clone(self);
        let task = async move {
            let written = engine.write_here(lane, operation).await;
            drop(held);
            written
        };
        let (answer, written, high) = self.detached(task).await?;
        let is_sync = self.state().stream.mode() == Mode::Sync;
        if let Some(place) = written.filter(|_| is_sync) {
            self.wait_until_far(&[place]).await?;
        }
        Ok((answer, high))
    }

    async fn write_here<O: Operation>(
        &self,
        lane: LaneId,
        operation: O,
    ) -> Result<(O::Answer, Option<RecordId>, u64)> {
        let keys = operation.keys();
        loop {
            self.wait_for_room().await?;
            let mut order = self.order.lock().await;
            self.check_open()?;
            if self.has_no_room() {
                continue;
            }
            let found = match self.find_all(&keys).await? {
                Ok(found) => found,
                Err(missing) => {
                    drop(order);
                    try_join_all(missing.iter().map(|key| self.fill(key))).await?;
                    continue;
                }
            };
            let (place, dependencies) = self.join_in(lane, &found)?;
            let stored: Vec<Stored> = found.iter().map(|found| found.stored.clone()).collect();
            let judged = operation.decide(&stored, &self.limits)?;
            if judged.changed.is_empty() {
                return Ok((judged.answer, None, self.state().stream.high(lane)));
            }
            let record = Record {
                position: order.position + 1,
                place,
                dependencies,
                changes: Vec::new(),
            };
            let plan = self.plan(&keys, &found, judged.changed, record, &order)?;
            self.carry_out(&mut order, plan).await?;
            return Ok((judged.answer, Some(place), self.state().stream.high(lane)));
        }
    }

    fn has_no_room(&self) -> bool {
        let now = self.clock.monotonic();
        self.state().stream.is_full(now, 0)
    }

    /// Waits while too much is pending (E7).
    async fn wait_for_room(&self) -> Result<()> {
        self.until(|state| {
            if state.is_draining {
                return Some(Err(Error::unavailable(
                    "write to a shard that is being released",
                )));
            }
            (!state.stream.is_full(self.clock.monotonic(), 0)).then_some(Ok(()))
        })
        .await?
    }

    /// The rows of all keys, or the keys that are not known near.
    async fn find_all(&self, keys: &[RowKey]) -> Result<Result<Vec<CurrentRow>, Vec<RowKey>>> {
        let rows = try_join_all(keys.iter().map(|key| self.near_row(key))).await?;
        let is_complete = self.is_complete();
        let missing = keys
            .iter()
            .zip(&rows)
            .filter(|(_, row)| row.is_none() && !is_complete);
        let missing: Vec<RowKey> = missing.map(|(key, _)| key.clone()).collect();
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let found = rows.into_iter().map(|row| async {
            let stored = match &row {
                Some(row) => {
                    let attributes = self.attributes_of(row).await?;
                    let attributes =
                        attributes.ok_or_else(|| Error::corrupt("find a row's payload"))?;
                    row.stored(attributes.as_ref())?
                }
                None => Stored::default(),
            };
            Ok(CurrentRow { row, stored })
        });
        try_join_all(found).await.map(Ok)
    }

    /// Notes that the lane has seen the rows, and returns the place of its next record.
    fn join_in(&self, lane: LaneId, found: &[CurrentRow]) -> Result<(RecordId, Vec<RecordId>)> {
        let mut state = self.state();
        for row in found.iter().filter_map(|found| found.row.as_ref()) {
            state.stream.observe(lane, row.writer);
        }
        state.stream.next_place(lane)
    }

    fn plan(
        &self,
        keys: &[RowKey],
        current: &[CurrentRow],
        changed: BTreeMap<usize, Stored>,
        record: Record,
        order: &Order,
    ) -> Result<Plan> {
        let shard = &self.stores.shard;
        let guard = near_guard(shard, self.epoch, order.position).depends_on(order.near);
        let mut plan = Plan {
            updates: vec![moving_on(guard, record.position)],
            record,
            payloads: Vec::new(),
            resident_added: 0,
            resident_removed: 0,
        };
        for (at, next) in changed {
            self.plan_change(&mut plan, &keys[at], current[at].row.as_ref(), next)?;
        }
        plan.updates.push(Update::of(
            Key::new(shard, record_sort(plan.record.place)),
            body(&plan.record),
        ));
        Ok(plan)
    }

    /// Adds the change of one row to a plan.
    fn plan_change(
        &self,
        plan: &mut Plan,
        key: &RowKey,
        before: Option<&Row>,
        next: Stored,
    ) -> Result<()> {
        let shard = &self.stores.shard;
        let payload = next.item.as_deref().map(encode_attributes);
        self.check_far_size(key, &next, payload.as_ref())?;
        let id = PayloadId {
            position: plan.record.position,
            index: plan.record.changes.len() as u16,
        };
        let content = match &payload {
            Some(bytes) => {
                let item = Change::Put(vec![(BODY.into(), Value::Bytes(bytes.clone()))]);
                plan.updates
                    .push(Update::of(Key::new(shard, payload_sort(id)), item));
                Content::At(id, bytes.len() as u32)
            }
            None => Content::Nothing,
        };
        let row = Row {
            version: next.version,
            memory: next.memory.clone(),
            content,
            writer: Some((plan.record.place, plan.record.position)),
        };
        plan.updates
            .push(Update::of(Key::new(shard, key), body(&row)));
        plan.resident_added += row.bytes(key);
        plan.resident_removed += before.map_or(0, |before| before.bytes(key));
        plan.updates
            .extend(before.and_then(|before| self.delete_unreferred(before)));
        plan.record.changes.push(Written {
            key: key.clone(),
            version: next.version,
            memory: next.memory,
            payload: payload.is_some().then_some(id),
        });
        plan.payloads.push(payload);
        Ok(())
    }

    /// A clean row's payload is deleted with the row. A dirty row's payload belongs to its record,
    /// and is deleted when that is cleaned.
    fn delete_unreferred(&self, before: &Row) -> Option<Update> {
        let (place, _) = before.writer?;
        let is_clean = self.state().stream.is_done(place);
        let payload = before.payload().filter(|_| is_clean)?;
        Some(Update::delete(Key::new(
            &self.stores.shard,
            payload_sort(payload),
        )))
    }

    /// Refuses a write that is too large for the far store (E8).
    fn check_far_size(&self, key: &RowKey, next: &Stored, payload: Option<&Bytes>) -> Result<()> {
        let Change::Put(attributes) = far_change(next.version, next.memory.as_deref(), payload)
        else {
            return Ok(());
        };
        let bytes = Item::from_parts(next.version, attributes).bytes_len();
        let limit = self
            .stores
            .far
            .limits()
            .item_bytes_max
            .min(self.stores.near.limits().item_bytes_max);
        if bytes > limit {
            return Err(Error::invalid(format!(
                "store {bytes} bytes under {}, where {limit} is the limit",
                key.escape_ascii()
            )));
        }
        Ok(())
    }

    /// Orders a plan near, and passes its record to the stream.
    async fn carry_out(&self, order: &mut Order, plan: Plan) -> Result<()> {
        let near = self.order_near(order.position, plan.updates).await?;
        order.position += 1;
        order.near = near;
        order.resident_bytes =
            (order.resident_bytes + plan.resident_added).saturating_sub(plan.resident_removed);
        let now = self.clock.monotonic();
        let pending = Pending::new(Arc::new(plan.record), plan.payloads, near, now);
        let mut state = self.state();
        state.position = order.position;
        state.stream.append(pending);
        state.wants_room |= order.resident_bytes > self.options.near_bytes_max;
        let wants_room = state.wants_room;
        drop(state);
        self.work.notify_one();
        if wants_room {
            self.cleaning.notify_one();
        }
        Ok(())
    }

    /// Makes a near transaction that moves the position. If its response is lost, the owner row
    /// tells the outcome.
    async fn order_near(&self, position: u64, updates: Vec<Update>) -> Result<DurabilityPoint> {
        loop {
            match self.near_transact(updates.clone()).await {
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                answer => return answer,
            }
            let (owner, point) = self.near_owner().await?;
            if owner.epoch != self.epoch {
                self.end(Ended::Deposed);
                self.check_open()?;
            }
            if owner.position > position {
                return Ok(point);
            }
        }
    }

    /// Reads the near owner row, with as many attempts as it takes. Until the outcome of a write is
    /// known, no other write may begin.
    async fn near_owner(&self) -> Result<(NearOwner, DurabilityPoint)> {
        let key = Key::new(&self.stores.shard, OWNER);
        loop {
            match self.near_get(&key).await {
                Ok(read) => return Ok((NearOwner::decode(read.value.as_deref())?, read.point)),
                Err(error) if error.is_retryable() => self.clock.sleep(self.pause()).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// A near transaction whose first update is the guard.
    pub(crate) async fn near_transact(&self, updates: Vec<Update>) -> Result<DurabilityPoint> {
        match self.stores.near.transact(updates).await {
            Ok(Transacted::Done { receipt, .. }) => self.same_start(receipt.point),
            Ok(Transacted::Conflict { .. }) => {
                self.end(Ended::Deposed);
                Err(self.check_open().expect_err("it has ended"))
            }
            Err(error) => {
                if error.kind() == ErrorKind::Lost {
                    self.end(Ended::NearLost);
                }
                Err(error)
            }
        }
    }

    /// Reads near, and detects a restart of the near store.
    pub(crate) async fn near_get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let read = self.stores.near.get(key).await?;
        self.same_start(read.point)?;
        Ok(read)
    }

    pub(crate) fn same_start(&self, point: DurabilityPoint) -> Result<DurabilityPoint> {
        if point.incarnation != self.near_incarnation {
            self.end(Ended::NearLost);
        }
        self.check_open().map(|()| point)
    }

    pub(crate) async fn near_row(&self, key: &RowKey) -> Result<Option<Row>> {
        let read = self.near_get(&Key::new(&self.stores.shard, key)).await?;
        read.value
            .map(|item| decode_body(&item, "read a near row"))
            .transpose()
    }

    /// A row's attributes; `Some(None)`: the row is deleted; `None`: its payload is gone, as a
    /// later write has replaced the row.
    pub(crate) async fn attributes_of(&self, row: &Row) -> Result<Option<Option<Bytes>>> {
        match &row.content {
            Content::Nothing => Ok(Some(None)),
            Content::Inline(bytes) => Ok(Some(Some(bytes.clone()))),
            Content::At(payload, _) => {
                let read = self
                    .near_get(&Key::new(&self.stores.shard, payload_sort(*payload)))
                    .await?;
                Ok(read
                    .value
                    .and_then(|item| item.bytes(BODY).cloned())
                    .map(Some))
            }
        }
    }
}
