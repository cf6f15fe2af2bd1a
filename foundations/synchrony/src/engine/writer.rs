//! Writes: evaluated over the rows, ordered near in one transaction with their record, and passed
//! to the stream.
//!
//! One writer at a time holds the order lock, from its read of the rows to the near store's
//! response. So near order is position order. Slow parts, such as a far read or a wait for
//! capacity, run without the lock.

use std::{collections::BTreeMap, iter::zip, sync::Arc};

use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::{
    DurabilityPoint, Error, ErrorKind, Item, Key, Result, Update,
    key_value::{
        Change, KeyValueLimits, Read, Transacted, Value,
        evaluate::{Evaluated, Stored, check_limits, evaluate},
    },
};

use super::{Engine, Order};
use crate::{
    health::Ended,
    layout::{
        BODY, Content, LaneId, OWNER, PayloadId, Record, RecordId, Row, RowKey, Written, body,
        decode_body, encode_attributes, far_change, item_row, payload_sort, record_sort,
    },
    options::Mode,
    owner::{NearOwner, moving_to},
    stream::Pending,
};

/// The items after a call, in the order of its updates, or the index and the present item of an
/// update whose condition does not hold.
pub(crate) type Decision = Result<Vec<Option<Arc<Item>>>, (usize, Option<Arc<Item>>)>;

struct CurrentRow {
    row: Option<Row>,
    stored: Stored,
}

struct Plan {
    updates: Vec<Update>,
    record: Record,
    payloads: Vec<Option<Bytes>>,
    /// How many bytes more, or fewer, rows and payloads take after it.
    resident: isize,
}

impl Engine {
    /// Makes updates in a lane, all or none; returns the point of the lane then. `held` is a handle
    /// to the lane.
    pub(crate) async fn write(
        self: &Arc<Self>,
        (lane, held): (LaneId, impl Send + 'static),
        updates: Vec<Update>,
    ) -> Result<(Decision, DurabilityPoint)> {
        check_limits(&updates, &self.limits)?;
        // The write continues if its caller gives up. It follows what its lane has read, which the
        // lane forgets when its last handle is dropped. So the task holds a handle.
        let engine = Arc::clone(self);
        let task = async move {
            let written = engine.write_here(lane, &updates).await;
            let point = engine.point(lane);
            drop(held);
            written.map(|written| (written, point))
        };
        let ((decision, written), point) = self.detached(task).await?;
        if let Some(place) = written.filter(|_| self.options.mode == Mode::Sync) {
            self.wait_until_far(&[place]).await?;
        }
        Ok((decision, point))
    }

    async fn write_here(
        &self,
        lane: LaneId,
        updates: &[Update],
    ) -> Result<(Decision, Option<RecordId>)> {
        let keys: Vec<RowKey> = updates.iter().map(|it| item_row(&it.key)).collect();
        loop {
            self.wait_for_room().await?;
            let mut order = self.order.lock().await;
            self.check_open()?;
            if self.state().stream.is_full(self.clock.monotonic()) {
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
            let (place, dependencies) = {
                let mut state = self.state();
                let rows = found.iter().filter_map(|found| found.row.as_ref());
                rows.for_each(|row| state.stream.observe(lane, row.writer));
                state.stream.next_place(lane)?
            };
            let (changed, decision) = decide(updates, &found, &self.limits)?;
            if changed.is_empty() {
                return Ok((decision, None));
            }
            let record = Record {
                position: order.position + 1,
                place,
                dependencies,
                changes: Vec::new(),
            };
            let plan = self.plan(&keys, &found, changed, record, &order)?;
            self.carry_out(&mut order, plan).await?;
            return Ok((decision, Some(place)));
        }
    }

    /// Waits while too much is pending (E7).
    async fn wait_for_room(&self) -> Result<()> {
        self.until(|state| {
            if state.is_draining {
                let what = "write to a shard that is being released";
                return Some(Err(Error::unavailable(what)));
            }
            (!state.stream.is_full(self.clock.monotonic())).then_some(Ok(()))
        })
        .await
    }

    /// The rows of all keys, or the keys that are not known near.
    async fn find_all(&self, keys: &[RowKey]) -> Result<Result<Vec<CurrentRow>, Vec<RowKey>>> {
        let rows = try_join_all(keys.iter().map(|key| self.near_row(key))).await?;
        let is_complete = self.is_complete();
        let is_missing = |row: &Option<Row>| row.is_none() && !is_complete;
        let found = keys.iter().zip(&rows);
        let missing = found.filter(|(_, row)| is_missing(row)).map(|(key, _)| key);
        let missing: Vec<RowKey> = missing.cloned().collect();
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let found = rows.into_iter().map(|row| async {
            let stored = match &row {
                Some(row) => {
                    let stored = self.stored(row).await?;
                    stored.ok_or_else(|| Error::corrupt("find a row's payload"))?
                }
                None => Stored::default(),
            };
            Ok(CurrentRow { row, stored })
        });
        try_join_all(found).await.map(Ok)
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
        let mut plan = Plan {
            updates: vec![self.guard(order, moving_to(record.position))],
            record,
            payloads: Vec::new(),
            resident: 0,
        };
        for (at, next) in changed {
            self.plan_change(&mut plan, &keys[at], current[at].row.as_ref(), next)?;
        }
        let key = Key::new(shard, record_sort(plan.record.place));
        plan.updates.push(Update::of(key, body(&plan.record)));
        Ok(plan)
    }

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
                let attributes = vec![(BODY.into(), Value::Bytes(bytes.clone()))];
                let put = Update::put(Key::new(shard, payload_sort(id)), attributes);
                plan.updates.push(put);
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
        let put = Update::of(Key::new(shard, key), body(&row));
        plan.updates.push(put);
        plan.resident += row.bytes(key) as isize;
        if let Some(before) = before {
            plan.resident -= before.bytes(key) as isize;
            plan.updates.extend(self.delete_unreferred(before));
        }
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
        let key = Key::new(&self.stores.shard, payload_sort(payload));
        Some(Update::delete(key))
    }

    /// Refuses a write that is too large for the far store (E8).
    fn check_far_size(&self, key: &RowKey, next: &Stored, payload: Option<&Bytes>) -> Result<()> {
        let Change::Put(attributes) = far_change(next.version, next.memory.as_deref(), payload)
        else {
            return Ok(());
        };
        let bytes = Item::from_parts(next.version, attributes).bytes_len();
        let (near, far) = (self.stores.near.limits(), self.stores.far.limits());
        let limit = far.item_bytes_max.min(near.item_bytes_max);
        if bytes > limit {
            let key = key.escape_ascii();
            let what = format!("store {bytes} bytes under {key}, where {limit} is the limit");
            return Err(Error::invalid(what));
        }
        Ok(())
    }

    /// Orders a plan near, and passes its record to the stream.
    async fn carry_out(&self, order: &mut Order, plan: Plan) -> Result<()> {
        let near = self.order_near(order.position, plan.updates).await?;
        order.position += 1;
        order.near = near;
        order.resident_bytes = order.resident_bytes.saturating_add_signed(plan.resident);
        let now = self.clock.monotonic();
        let pending = Pending::new(Arc::new(plan.record), plan.payloads, near, now);
        let mut state = self.state();
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
        let row = read.value.map(|item| decode_body(&item, "read a near row"));
        row.transpose()
    }

    /// A row with its payload; none: the payload is gone, as a later write has replaced the row.
    pub(crate) async fn stored(&self, row: &Row) -> Result<Option<Stored>> {
        let attributes = match &row.content {
            Content::Nothing => None,
            Content::Inline(bytes) => Some(bytes.clone()),
            Content::At(payload, _) => {
                let key = Key::new(&self.stores.shard, payload_sort(*payload));
                let payload = self.near_get(&key).await?.value;
                let Some(bytes) = payload.and_then(|item| item.bytes(BODY).cloned()) else {
                    return Ok(None);
                };
                Some(bytes)
            }
        };
        row.stored(attributes.as_ref()).map(Some)
    }
}

/// Evaluates updates over the rows of their keys; also returns the changed rows, by the index of
/// their keys.
fn decide(
    updates: &[Update],
    found: &[CurrentRow],
    limits: &KeyValueLimits,
) -> Result<(BTreeMap<usize, Stored>, Decision)> {
    let (mut items, mut changed) = (Vec::new(), BTreeMap::new());
    for (index, (update, CurrentRow { stored, .. })) in zip(updates, found).enumerate() {
        let now = || stored.item.clone();
        match evaluate(stored, update, limits)? {
            Evaluated::Refused => return Ok((BTreeMap::new(), Err((index, now())))),
            Evaluated::Unchanged => items.push(now()),
            Evaluated::Changed(next) => {
                items.push(next.item.clone());
                changed.insert(index, next);
            }
        }
    }
    Ok((changed, Ok(items)))
}
