//! The cleaner: removes records that are durable far, and evicts clean rows when the near store is
//! full.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Key, Result, Update,
    key_value::{Change, Scan},
};

use super::{Engine, Order};
use crate::{
    broken::Broken,
    layout::{Content, ITEMS, Record, Row, decode_body, payload_sort, record_sort},
    owner::no_longer_complete,
};

/// Rows examined in one turn of eviction.
const EVICTION_ROWS: usize = 32;
const PAUSE: Duration = Duration::from_millis(50);

impl Engine {
    /// Cleans and evicts whenever there is work, until this instance ends.
    pub(crate) async fn clean_and_evict(self: Arc<Self>) -> Result<()> {
        loop {
            let cleaning = self.cleaning.notified();
            tokio::pin!(cleaning);
            cleaning.as_mut().enable();
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
                Ok(false) => cleaning.await,
                Err(error) if error.is_retryable() => self.clock.sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes the rest of a record that is durable far, except payloads that rows refer to.
    async fn clean(&self, record: &Record) -> Result<()> {
        let shard = &self.stores.shard;
        let mut order = self.order.lock().await;
        let mut updates = vec![self.guard(&order, Change::Keep)];
        let mut removed = 0;
        for written in &record.changes {
            let row = self.near_row(&written.key).await?;
            let refers = |row: &Row| row.payload() == written.payload;
            let refers = row.as_ref().is_some_and(refers);
            match (written.payload, row) {
                (Some(payload), _) if !refers => {
                    updates.push(Update::delete(Key::new(shard, payload_sort(payload))));
                }
                (None, Some(row)) if is_tombstone(&row, record) => {
                    removed += row.bytes(&written.key);
                    updates.push(Update::delete(Key::new(shard, &written.key)));
                }
                _ => {}
            }
        }
        updates.push(Update::delete(Key::new(shard, record_sort(record.place))));
        if removed > 0 {
            self.removals.fetch_add(1, Ordering::AcqRel);
        }
        self.repeat_near(updates).await?;
        order.resident_bytes = order.resident_bytes.saturating_sub(removed);
        Ok(())
    }

    /// Evicts one page of clean rows if the near store holds too much; returns whether there may be
    /// more to do.
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
            partition: self.stores.shard.clone(),
            from: (order.evict_from.clone()).max(Bytes::from_static(&[ITEMS])),
            until: Some(Bytes::from_static(&[ITEMS + 1])),
            items_max: EVICTION_ROWS.min(self.limits.transact_items_max),
        };
        let page = self.stores.near.scan(&scan).await?.value;
        let mut clean = Vec::new();
        for (sort, item) in page.items {
            let row: Row = decode_body(&item, "read a near row")?;
            let is_done = |(place, _)| self.state().stream.is_done(place);
            if row.writer.is_none_or(is_done) {
                clean.push((sort, row));
            } else if self.options.mutant.breaks(Broken::EvictsDirty) {
                // The record still has its payload.
                let content = Content::Nothing;
                clean.push((sort, Row { content, ..row }));
            }
        }
        let has_wrapped = page.next.is_none();
        order.evict_from = page.next.unwrap_or_default();
        let is_idle = clean.is_empty() && has_wrapped;
        if !clean.is_empty() {
            self.evict(&mut order, clean).await?;
        }
        if is_idle {
            // All remaining rows may be dirty. The next record that becomes durable far wakes us
            // again.
            self.state().wants_room = false;
        }
        Ok(!is_idle)
    }

    async fn evict(&self, order: &mut Order, rows: Vec<(Bytes, Row)>) -> Result<()> {
        let shard = &self.stores.shard;
        let mut updates = vec![self.guard(order, no_longer_complete())];
        let mut removed = 0;
        for (key, row) in rows {
            removed += row.bytes(&key);
            let payload = row.payload().map(payload_sort);
            let sorts = payload.into_iter().chain([key]);
            updates.extend(sorts.map(|sort| Update::delete(Key::new(shard, sort))));
        }
        // We set this before the rows are deleted, so that a reader that misses one asks the far
        // store.
        self.is_complete.store(false, Ordering::Release);
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.repeat_near(updates).await?;
        order.resident_bytes = order.resident_bytes.saturating_sub(removed);
        Ok(())
    }

    /// Queues records that are durable far for cleaning, and their rows for eviction.
    pub(crate) fn have_cleaned(&self, records: Vec<Arc<Record>>) {
        let is_large = !records.is_empty();
        let mut state = self.state();
        state.to_clean.extend(records);
        state.wants_room |= is_large;
        drop(state);
        self.cleaning.notify_one();
    }
}

/// Whether a row is a tombstone of this record without remembered operations.
fn is_tombstone(row: &Row, record: &Record) -> bool {
    let is_its = row.writer.is_some_and(|(place, _)| place == record.place);
    is_its
        && row.content == Content::Nothing
        && row.memory.as_ref().is_none_or(|memory| memory.is_empty())
}
