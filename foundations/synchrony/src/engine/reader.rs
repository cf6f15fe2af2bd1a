//! Reads: near first, then far. A fetched row is stored near unless the key may have changed
//! meanwhile.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::{
    DurabilityPoint, Error, ErrorKind, Item, Key, Result, Update,
    key_value::{Change, Page, Read, Scan, evaluate::check_key},
};

use super::Engine;
use crate::{
    broken::Broken,
    layout::{Content, LaneId, RecordId, Row, RowKey, body, decode_body, item_row, row_of_far},
};

/// Rows of one of the user's partitions by sort key, and the key up to which they are complete.
#[derive(Default)]
struct Stretch {
    rows: BTreeMap<Bytes, Row>,
    known_until: Option<Bytes>,
}

impl Engine {
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    pub(crate) async fn read(&self, lane: LaneId, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        check_key(key, &self.limits)?;
        let key = item_row(key);
        loop {
            self.check_open()?;
            let row = match self.near_row(&key).await? {
                Some(row) => row,
                None if self.is_complete() => {
                    let (value, point) = (None, self.point(lane));
                    return Ok(Read { value, point });
                }
                None => match self.fill(&key).await? {
                    Some(row) => row,
                    None => continue,
                },
            };
            // If the payload is gone, a later write has replaced the row, too.
            let Some(stored) = self.stored(&row).await? else {
                continue;
            };
            let (value, point) = (stored.item, self.saw(lane, row.writer));
            return Ok(Read { value, point });
        }
    }

    fn saw(&self, lane: LaneId, writer: Option<(RecordId, u64)>) -> DurabilityPoint {
        self.state().stream.observe(lane, writer);
        self.point(lane)
    }

    /// Fetches a row that is not near and stores it there; none: the key may have changed
    /// meanwhile, so the caller looks again.
    pub(crate) async fn fill(&self, key: &RowKey) -> Result<Option<Row>> {
        let removals = self.removals.load(Ordering::Acquire);
        let place = Key::new(&self.stores.shard, key);
        let row = row_of_far(self.stores.far.get(&place).await?.value.as_deref())?;
        let mut order = self.order.lock().await;
        let is_bold = self.options.mutant.breaks(Broken::FillsOverAWrite);
        if self.removals.load(Ordering::Acquire) != removals && !is_bold {
            return Ok(None);
        }
        if self.near_row(key).await?.is_some() && !is_bold {
            return Ok(None);
        }
        let guard = self.guard(&order, Change::Keep);
        let filled = vec![guard, Update::of(place, body(&row))];
        match self.repeat_near(filled).await {
            Ok(()) => {
                order.resident_bytes += row.bytes(key);
                if order.resident_bytes > self.options.near_bytes_max {
                    self.state().wants_room = true;
                    self.cleaning.notify_one();
                }
                Ok(Some(row))
            }
            // A full near store does not prevent the read.
            Err(error) if error.kind() == ErrorKind::NoRoom => Ok(Some(row)),
            Err(error) => Err(error),
        }
    }

    /// A near transaction that keeps the position and has the same effect when repeated.
    pub(crate) async fn repeat_near(&self, updates: Vec<Update>) -> Result<()> {
        loop {
            match self.near_transact(updates.clone()).await {
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                    self.clock.sleep(self.pause()).await;
                }
                answer => return answer.map(drop),
            }
        }
    }

    pub(crate) async fn scan(&self, lane: LaneId, scan: &Scan) -> Result<Read<Page>> {
        check_key(&Key::new(&scan.partition, &scan.from), &self.limits)?;
        if scan.until.as_ref().is_some_and(|until| *until <= scan.from) {
            let (items, next) = (Vec::new(), None);
            let (value, point) = (Page { items, next }, self.point(lane));
            return Ok(Read { value, point });
        }
        let items_max = scan.items_max.min(self.limits.page_items_max).max(1);
        loop {
            self.check_open()?;
            let removals = self.removals.load(Ordering::Acquire);
            let far = if self.is_complete() {
                None
            } else {
                Some(self.far_stretch(scan, items_max).await?)
            };
            // The lock keeps writers out, so that the page shows no half of a call.
            let _order = self.order.lock().await;
            if self.removals.load(Ordering::Acquire) == removals {
                let stretch = self.merge(scan, items_max, far).await?;
                return self.page(lane, items_max, stretch).await;
            }
        }
    }

    async fn far_stretch(&self, scan: &Scan, items_max: usize) -> Result<Stretch> {
        let inner = self.scan_of_rows(scan, items_max);
        let page = self.stores.far.scan(&inner).await?.value;
        let skip = item_row(&Key::new(&scan.partition, b"")).len();
        let rows = page
            .items
            .into_iter()
            .map(|(sort, item)| Ok((sort.slice(skip..), row_of_far(Some(&item))?)));
        let known_until = page.next.map(|next| next.slice(skip..));
        Ok(Stretch {
            rows: rows.collect::<Result<_>>()?,
            known_until,
        })
    }

    fn scan_of_rows(&self, scan: &Scan, items_max: usize) -> Scan {
        let until = match &scan.until {
            Some(until) => item_row(&Key::new(&scan.partition, until)),
            None => behind(&item_row(&Key::new(&scan.partition, b""))),
        };
        Scan {
            partition: self.stores.shard.clone(),
            from: item_row(&Key::new(&scan.partition, &scan.from)),
            until: Some(until),
            items_max,
        }
    }

    /// Lays near rows over far ones, until there are more than enough that are not deleted.
    async fn merge(&self, scan: &Scan, items_max: usize, far: Option<Stretch>) -> Result<Stretch> {
        let mut merged = far.unwrap_or_default();
        let until = merged.known_until.clone().or_else(|| scan.until.clone());
        let scan = Scan {
            until,
            ..scan.clone()
        };
        let mut inner = self.scan_of_rows(&scan, self.limits.page_items_max);
        let skip = item_row(&Key::new(&scan.partition, b"")).len();
        loop {
            let read = self.stores.near.scan(&inner).await?;
            self.same_start(read.point)?;
            for (sort, item) in read.value.items {
                let row = decode_body(&item, "read a near row")?;
                merged.rows.insert(sort.slice(skip..), row);
            }
            let Some(next) = read.value.next else {
                return Ok(merged);
            };
            let near_until = next.slice(skip..);
            let known = merged.rows.range(..near_until.clone());
            if known.filter(|(_, row)| !is_nothing(row)).count() > items_max {
                merged.known_until = Some(near_until);
                return Ok(merged);
            }
            inner.from = next;
        }
    }

    async fn page(&self, lane: LaneId, items_max: usize, stretch: Stretch) -> Result<Read<Page>> {
        let Stretch {
            rows,
            mut known_until,
        } = stretch;
        let is_known = |sort: &Bytes| known_until.as_ref().is_none_or(|until| sort < until);
        let mut taken = Vec::new();
        let mut more = None;
        for (sort, row) in rows.into_iter().filter(|(sort, _)| is_known(sort)) {
            if taken.len() == items_max && !is_nothing(&row) {
                more = Some(sort);
                break;
            }
            self.saw(lane, row.writer);
            if !is_nothing(&row) {
                taken.push((sort, row));
            }
        }
        if more.is_some() {
            known_until = more;
        }
        let items = taken.into_iter().map(|(sort, row)| async move {
            let item = self.stored(&row).await?.and_then(|stored| stored.item);
            let item = item.ok_or_else(|| Error::corrupt("find a row's payload"))?;
            Ok((sort, item))
        });
        let (items, next) = (try_join_all(items).await?, known_until);
        let (value, point) = (Page { items, next }, self.point(lane));
        Ok(Read { value, point })
    }
}

fn is_nothing(row: &Row) -> bool {
    row.content == Content::Nothing
}

/// The first key after all that begin with `prefix`, which begins with a letter.
fn behind(prefix: &[u8]) -> Bytes {
    let kept = prefix
        .iter()
        .rposition(|byte| *byte < u8::MAX)
        .expect("it begins with a letter");
    let mut next = prefix[..=kept].to_vec();
    next[kept] += 1;
    next.into()
}
