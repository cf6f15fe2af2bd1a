//! What stays near: records leave when they are far-durable, clean rows when there is no room.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ports::{Error, Key, Result, Update, key_value::Scan};

use crate::{
    broken::Broken,
    engine::{Engine, Order},
    layout::{BATCH_CURSORS, Content, ITEMS, Record, Row, decode_body, payload_sort, record_sort},
    owner::{near_guard, no_longer_complete},
};

/// Rows looked at in one turn of eviction.
const EVICTION_ROWS: usize = 32;
/// How long the cleaner waits after the near store refused something.
const PAUSE: Duration = Duration::from_millis(50);

impl Engine {
    /// Cleans and evicts whenever there is something to, until this instance ends.
    pub(crate) async fn do_chores(self: Arc<Self>) -> Result<()> {
        loop {
            let chores = self.chores.notified();
            tokio::pin!(chores);
            chores.as_mut().enable();
            let next = self.state().to_clean.front().cloned();
            let did = match next {
                Some(record) => self.clean(&record).await.map(|()| {
                    self.state().to_clean.pop_front();
                    true
                }),
                None => self.make_room().await,
            };
            match did {
                Ok(true) => {}
                Ok(false) => chores.await,
                Err(error) if error.is_retryable() => self.clock.sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes what is left near of a far-durable record, except what rows refer to.
    async fn clean(&self, record: &Record) -> Result<()> {
        let range = &self.stores.range;
        let mut order = self.order.lock().await;
        let mut updates =
            vec![near_guard(range, self.epoch, order.position).depends_on(order.near)];
        let mut removed = 0;
        for written in &record.changes {
            let row = self.near_row(&written.key).await?;
            let refers = row
                .as_ref()
                .is_some_and(|row| row.payload() == written.payload);
            match (written.payload, row) {
                (Some(payload), _) if !refers => {
                    updates.push(Update::delete(Key::new(range, payload_sort(payload))));
                }
                (None, Some(row)) if is_grave(&row, record) => {
                    removed += row.bytes(&written.key);
                    updates.push(Update::delete(Key::new(range, &written.key)));
                }
                _ => {}
            }
        }
        updates.push(Update::delete(Key::new(range, record_sort(record.place))));
        if removed > 0 {
            self.removals.fetch_add(1, Ordering::AcqRel);
        }
        self.repeat_near(updates).await?;
        order.resident_bytes = order.resident_bytes.saturating_sub(removed);
        Ok(())
    }

    /// Evicts one page of clean rows if there are too many; whether there may be more to do.
    async fn make_room(&self) -> Result<bool> {
        if !self.state().wants_room {
            return Ok(false);
        }
        let mut order = self.order.lock().await;
        if order.resident_bytes <= self.options.near_bytes_max {
            self.state().wants_room = false;
            return Ok(false);
        }
        let scan = Scan {
            partition: self.stores.range.clone(),
            from: order
                .evict_from
                .clone()
                .max(Bytes::from_static(&[BATCH_CURSORS])),
            until: Some(Bytes::from_static(&[ITEMS + 1])),
            items_max: EVICTION_ROWS.min((self.limits.transact_items_max).max(1)),
        };
        let page = self.stores.near.scan(&scan).await?.value;
        let mut clean = Vec::new();
        for (sort, item) in page.items {
            let row: Row = decode_body(&item, "read a near row")?;
            let is_done = row
                .writer
                .is_none_or(|(place, _)| self.state().stream.is_done(place));
            if is_done {
                clean.push((sort, row));
            } else if self.options.breaks(Broken::EvictsDirty) {
                // The record still has its payload.
                clean.push((
                    sort,
                    Row {
                        content: Content::Nothing,
                        ..row
                    },
                ));
            }
        }
        let has_wrapped = page.next.is_none();
        order.evict_from = page.next.unwrap_or_default();
        let is_idle = clean.is_empty() && has_wrapped;
        if !clean.is_empty() {
            self.evict(&mut order, clean).await?;
        }
        if is_idle {
            // Everything that is left may be dirty: what becomes clean next calls again.
            self.state().wants_room = false;
        }
        Ok(!is_idle)
    }

    async fn evict(&self, order: &mut Order, rows: Vec<(Bytes, Row)>) -> Result<()> {
        let range = &self.stores.range;
        let guard = near_guard(range, self.epoch, order.position).depends_on(order.near);
        let mut updates = vec![no_longer_complete(guard)];
        let mut removed = 0;
        for (key, row) in rows {
            removed += row.bytes(&key);
            updates.extend(
                row.payload()
                    .map(|id| Update::delete(Key::new(range, payload_sort(id)))),
            );
            updates.push(Update::delete(Key::new(range, &key)));
        }
        // Before the rows go: who misses one from now on asks the far store.
        self.is_complete.store(false, Ordering::Release);
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.repeat_near(updates).await?;
        order.resident_bytes = order.resident_bytes.saturating_sub(removed);
        Ok(())
    }

    /// Far-durable records are to be cleaned, and what they wrote may be evicted.
    pub(crate) fn have_cleaned(&self, records: Vec<Arc<Record>>) {
        let is_large = !records.is_empty();
        let mut state = self.state();
        state.to_clean.extend(records);
        state.wants_room |= is_large;
        drop(state);
        self.chores.notify_one();
    }

    /// A near store that refuses for good ends this instance: it cannot be cleaned.
    pub(crate) async fn chores_apart(self: Arc<Self>) {
        let engine = Arc::clone(&self);
        let ended: Result<(), Error> = self.apart(async move { engine.do_chores().await }).await;
        if ended.is_err() {
            self.end(crate::engine::Ended::NearLost);
        }
    }
}

/// Whether a row is what is left of a deletion by this record, with nothing to remember.
fn is_grave(row: &Row, record: &Record) -> bool {
    let is_its = row.writer.is_some_and(|(place, _)| place == record.place);
    is_its
        && row.content == Content::Nothing
        && row.memory.as_ref().is_none_or(|memory| memory.is_empty())
}
