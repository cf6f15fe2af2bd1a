//! How a start takes a shard.
//!
//! The claim is written near before it is written far, so that the next start recognises its own.
//! `void` stays until all that belongs to another owner is deleted.
//! `docs/design/0004-synchrony.md`, section 5, describes the state after a death between the steps.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Clock, Condition, DurabilityPoint, Entropy, Error, ErrorKind, Item, Key, Monotonic, Result,
    Update,
    key_value::{Outcome, Scan, SharedKeyValue, Transacted},
};
use tokio::sync::{Notify, watch};

use crate::{
    broken::Broken,
    engine::{Engine, Order, State, Stores},
    layout::{
        BODY, CURSORS, ITEMS, LaneId, OWNER, PAGE_ITEMS, PAYLOADS, RECORDS, Record, Row, cursor_of,
        cursor_sort, decode_body, lane_of, payload_sort, scan_kind,
    },
    options::{Options, limits_of},
    owner::{End, FarOwner, Lease, NearOwner, epoch_is, name_of},
    stream::{Pending, Stream},
};

pub(crate) struct Opening {
    pub(crate) stores: Stores,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) options: Options,
    pub(crate) awaited: watch::Sender<Awaited>,
}

/// The cause of a wait during an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Awaited {
    /// A response of one of its stores.
    #[default]
    Stores,
    /// That another owner releases the shard, or gives no sign of life for a lease.
    Owner,
}

/// The time between two reads of another owner's lease.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The pause after a store failed.
const PAUSE: Duration = Duration::from_millis(100);

impl Opening {
    pub(crate) async fn open(self) -> Result<Engine> {
        let limits = limits_of(&*self.stores.near, &*self.stores.far)?;
        let (mut near, claimed) = self.claim().await?;
        let near_point = self.settle_near(&mut near).await?;
        let far_items_max = self.stores.far.limits().transact_items_max;
        let mut stream = Stream::new(self.options, far_items_max, near.epoch);
        stream.near_is_durable(near.position);
        let to_clean = self.restore(&mut stream, near.epoch, near_point).await?;
        let resident_bytes = self.resident_bytes().await?;
        let state = State {
            stream,
            ended: None,
            is_draining: false,
            lease: Lease {
                until: Some(claimed + self.options.lease),
                proven: Some(claimed),
            },
            failing: None,
            to_clean,
            wants_room: resident_bytes > self.options.near_bytes_max,
        };
        let order = Order {
            position: near.position,
            near: near_point,
            resident_bytes,
            evict_from: Bytes::new(),
        };
        Ok(Engine {
            near_incarnation: near_point.incarnation,
            epoch: near.epoch,
            claim: near.claim,
            ends: near.ends,
            order: tokio::sync::Mutex::new(order),
            renewing: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            is_complete: AtomicBool::new(near.is_complete),
            removals: AtomicU64::new(0),
            changed: Notify::new(),
            over: Notify::new(),
            work: Notify::new(),
            cleaning: Notify::new(),
            limits,
            stores: self.stores,
            clock: self.clock,
            entropy: self.entropy,
            options: self.options,
        })
    }

    /// Steps 1 to 4: takes the near row, then claims the shard far. Each turn reads both rows anew,
    /// as the owner and other starts over the same near store may have changed them. It reads the
    /// near row first. While that row is unchanged, no start over this store can have claimed the
    /// shard unseen. So a far row that names another owner cannot have become ours. Returns the near
    /// row, and when the accepted claim was sent.
    async fn claim(&self) -> Result<(NearOwner, Monotonic)> {
        loop {
            let near = self.near_owner().await?;
            let before = self.far_owner().await?;
            let may_be_alive = self.may_be_alive(&near, &before);
            if may_be_alive {
                self.awaited.send_replace(Awaited::Owner);
                if !self.outlast(&near, &before).await? {
                    continue;
                }
            }
            self.awaited.send_replace(Awaited::Stores);
            let Some(taken) = self.take_near(&near, &before).await? else {
                continue;
            };
            let sent = self.clock.monotonic();
            if self.claim_far(&before, &taken).await? {
                return Ok((taken, sent));
            }
        }
    }

    /// Takes the near row if it is unchanged: from here on no earlier start over the same near
    /// store writes. None: it has changed.
    async fn take_near(&self, near: &NearOwner, before: &FarOwner) -> Result<Option<NearOwner>> {
        let mut taken = near.clone();
        let name = if near.belongs_to(before) {
            let position = near.position;
            let ends = (near.epoch..=before.epoch).map(|epoch| End { epoch, position });
            taken.ends.extend(ends);
            name_of(&before.claim)
        } else {
            taken.is_void = true;
            self.draw()
        };
        if taken.is_void {
            taken.ends.clone_from(&before.ends);
        }
        taken.claim = [name, self.draw()].concat().into();
        taken.epoch = near.epoch.max(before.epoch) + 1;
        let condition = match near.epoch {
            1.. if self.options.mutant.breaks(Broken::TakesStalePosition) => epoch_is(near.epoch),
            _ => near.unchanged(),
        };
        Ok(self.put_near_owner(&taken, condition).await?.map(|_| taken))
    }

    /// Whether an owner of the shard may be alive. An owner over a near store that no other process
    /// uses is an earlier start of ours.
    fn may_be_alive(&self, near: &NearOwner, before: &FarOwner) -> bool {
        let is_shared =
            self.options.near_is_shared && !self.options.mutant.breaks(Broken::TakesFromTheLiving);
        let is_owned = !before.is_released && self.options.ended_epoch != Some(before.epoch);
        // A start that has only taken the near row is about to claim the shard. If we took the row
        // from it, both would fail.
        let is_being_taken = is_shared && near.epoch > before.epoch;
        is_being_taken || is_owned && (is_shared || !near.belongs_to(before))
    }

    /// Waits until an owner has given no sign of life for a whole lease. False: it has given one,
    /// or has released the shard.
    async fn outlast(&self, near: &NearOwner, before: &FarOwner) -> Result<bool> {
        let began = self.clock.monotonic();
        // A shard that never had an owner has no lease.
        let lease = if before.lease.is_zero() {
            self.options.lease
        } else {
            before.lease
        };
        // A tenth more tolerates clocks that differ in speed by a tenth.
        let length = lease + lease / 10;
        while self.clock.monotonic().since(began) < length {
            self.clock.sleep(LOOK_AGAIN).await;
            if self.far_owner().await? != *before {
                return Ok(false);
            }
            // An owner whose writes have no waiting callers, or whose barriers need no renewal,
            // changes this row alone.
            if self.options.near_is_shared && self.near_owner().await? != *near {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A random name.
    fn draw(&self) -> Bytes {
        let halves = [self.entropy.next_u64(), self.entropy.next_u64()];
        halves.map(u64::to_be_bytes).concat().into()
    }

    /// Takes the far row if it is unchanged; returns whether it did so durably.
    async fn claim_far(&self, before: &FarOwner, near: &NearOwner) -> Result<bool> {
        let taken = FarOwner {
            epoch: near.epoch,
            claim: near.claim.clone(),
            renewals: 0,
            lease: self.options.lease,
            is_released: false,
            ends: before.ends.clone(),
        };
        let key = self.owner_key();
        let update = Update::of(key.clone(), taken.change()).when(before.unchanged());
        loop {
            match self.stores.far.update(update.clone()).await {
                Ok(_) => {}
                Err(error) if error.is_retryable() => self.clock.sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
            let read = self.again(|| self.stores.far.get(&key)).await?;
            let now = FarOwner::decode(read.value.as_deref())?;
            if now.claim == near.claim {
                let durable = self.again(|| self.stores.far.externalize(read.point));
                return match durable.await {
                    Err(error) if error.kind() == ErrorKind::Lost => Ok(false),
                    durable => durable.map(|()| true),
                };
            }
            if now != *before {
                return Ok(false);
            }
        }
    }

    /// Steps 5 and 6: deletes the rows of another owner's past, and makes the near store ours. If
    /// another start over the same near store takes it meanwhile, its rows stay.
    async fn settle_near(&self, near: &mut NearOwner) -> Result<DurabilityPoint> {
        if near.is_void {
            let (store, shard) = (&self.stores.near, &self.stores.shard);
            for kind in [RECORDS, ITEMS, PAYLOADS] {
                let rows = self.all(store, scan_kind(shard, kind, PAGE_ITEMS)).await?;
                let sorts: Vec<Bytes> = rows.into_iter().map(|(sort, _)| sort).collect();
                if !self.delete(store, near.epoch, &sorts).await? {
                    return Err(taken_by_another());
                }
            }
            (near.position, near.is_complete) = (0, self.far_is_empty().await?);
        }
        near.is_void = false;
        let settled = self.put_near_owner(near, epoch_is(near.epoch)).await?;
        settled.ok_or_else(taken_by_another)
    }

    /// Deletes rows, in transactions that check our epoch. False: another start has taken the
    /// shard, and the remaining rows stay.
    async fn delete(&self, store: &SharedKeyValue, epoch: u64, sorts: &[Bytes]) -> Result<bool> {
        let chunk = store.limits().transact_items_max.saturating_sub(1).max(1);
        for sorts in sorts.chunks(chunk) {
            let mut updates = vec![Update::check(self.owner_key(), epoch_is(epoch))];
            let keys = sorts.iter().map(|sort| Key::new(&self.stores.shard, sort));
            updates.extend(keys.map(Update::delete));
            let deleted = self.again(|| store.transact(updates.clone())).await?;
            if matches!(deleted, Transacted::Conflict { .. }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn far_is_empty(&self) -> Result<bool> {
        let scan = scan_kind(&self.stores.shard, ITEMS, 1);
        let page = self.again(|| self.stores.far.scan(&scan)).await?.value;
        Ok(page.items.is_empty())
    }

    /// Step 7: restores the unsent tail (E9). Returns the records that only need cleaning. Deletes
    /// the cursors of lanes without remains; late batches of these lanes fail the check of the epoch.
    async fn restore(
        &self,
        stream: &mut Stream,
        epoch: u64,
        near: DurabilityPoint,
    ) -> Result<VecDeque<Arc<Record>>> {
        let cursors = self.cursors().await?;
        let mut lanes: BTreeMap<LaneId, Vec<Record>> = BTreeMap::new();
        let records = scan_kind(&self.stores.shard, RECORDS, PAGE_ITEMS);
        for (_, item) in self.all(&self.stores.near, records).await? {
            let record: Record = decode_body(&item, "read a near record")?;
            lanes.entry(record.place.lane).or_default().push(record);
        }
        let is_over = |lane: &&LaneId| !lanes.contains_key(*lane);
        let over = cursors.keys().filter(is_over).copied();
        let over: Vec<Bytes> = over.map(cursor_sort).collect();
        let mut to_clean = VecDeque::new();
        for (lane, mut records) in lanes {
            records.sort_by_key(|record| record.place.sequence);
            let done = cursors.get(&lane).copied().unwrap_or(0);
            let unsent =
                records.split_off(records.partition_point(|record| record.place.sequence <= done));
            to_clean.extend(records.into_iter().map(Arc::new));
            let is_next = |first: &Record| first.place.sequence == done + 1;
            if !unsent.first().is_none_or(is_next) {
                return Err(Error::corrupt("find the first unsent record of a lane"));
            }
            if self.options.mutant.breaks(Broken::ForgetsTheTail) {
                continue;
            }
            let mut pending = Vec::with_capacity(unsent.len());
            for record in unsent {
                pending.push(self.load(record, near).await?);
            }
            stream.restore(done, pending);
        }
        self.delete(&self.stores.far, epoch, &over).await?;
        Ok(to_clean)
    }

    async fn load(&self, record: Record, near: DurabilityPoint) -> Result<Pending> {
        let mut payloads = Vec::with_capacity(record.changes.len());
        for written in &record.changes {
            let Some(payload) = written.payload else {
                payloads.push(None);
                continue;
            };
            let key = Key::new(&self.stores.shard, payload_sort(payload));
            let item = self.again(|| self.stores.near.get(&key)).await?.value;
            let bytes = item.and_then(|item| item.bytes(BODY).cloned());
            let bytes = bytes.ok_or_else(|| Error::corrupt("find an unsent record's payload"))?;
            payloads.push(Some(bytes));
        }
        let now = self.clock.monotonic();
        Ok(Pending::new(Arc::new(record), payloads, near, now))
    }

    async fn cursors(&self) -> Result<BTreeMap<LaneId, u64>> {
        let scan = scan_kind(&self.stores.shard, CURSORS, PAGE_ITEMS);
        let rows = self.all(&self.stores.far, scan).await?;
        let cursor = |(sort, item): &(Bytes, Arc<Item>)| Some((lane_of(sort)?, cursor_of(item)?));
        let cursors = rows
            .iter()
            .map(|row| cursor(row).ok_or_else(|| Error::corrupt("read a far cursor")));
        cursors.collect()
    }

    async fn resident_bytes(&self) -> Result<usize> {
        let mut bytes = 0;
        let scan = scan_kind(&self.stores.shard, ITEMS, PAGE_ITEMS);
        for (sort, item) in self.all(&self.stores.near, scan).await? {
            let row: Row = decode_body(&item, "read a near row")?;
            bytes += row.bytes(&sort);
        }
        Ok(bytes)
    }

    async fn all(&self, store: &SharedKeyValue, mut scan: Scan) -> Result<Vec<(Bytes, Arc<Item>)>> {
        let mut items = Vec::new();
        loop {
            let page = self.again(|| store.scan(&scan)).await?.value;
            items.extend(page.items);
            match page.next {
                Some(next) => scan.from = next,
                None => return Ok(items),
            }
        }
    }

    fn owner_key(&self) -> Key {
        Key::new(&self.stores.shard, OWNER)
    }

    async fn near_owner(&self) -> Result<NearOwner> {
        let key = self.owner_key();
        let read = self.again(|| self.stores.near.get(&key)).await?;
        NearOwner::decode(read.value.as_deref())
    }

    async fn far_owner(&self) -> Result<FarOwner> {
        let key = self.owner_key();
        let read = self.again(|| self.stores.far.get(&key)).await?;
        FarOwner::decode(read.value.as_deref())
    }

    /// Writes the near owner row durably; none: the condition does not hold.
    async fn put_near_owner(
        &self,
        near: &NearOwner,
        condition: Condition,
    ) -> Result<Option<DurabilityPoint>> {
        let put = Update::of(self.owner_key(), near.change()).when(condition);
        let updated = self.again(|| self.stores.near.update(put.clone())).await?;
        // The response of an earlier attempt may have been lost. If so, the row has our claim,
        // which no other start has.
        let is_ours = matches!(updated.outcome, Outcome::Done(_));
        if !is_ours && self.near_owner().await?.claim != near.claim {
            return Ok(None);
        }
        let point = updated.receipt.point;
        self.again(|| self.stores.near.externalize(point)).await?;
        Ok(Some(point))
    }

    /// Retries a repeatable call until it succeeds or fails permanently.
    async fn again<T, F: Future<Output = Result<T>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        loop {
            match call().await {
                Err(error) if error.is_retryable() => self.clock.sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }
}

fn taken_by_another() -> Error {
    Error::unavailable("open a shard that another start is opening over the same near store")
}
