//! Reads: the overlay of uninstalled slots, then the rows of versions.
//!
//! A read looks at the overlay and the installed slot at one moment, and ignores later rows. An
//! installation that runs meanwhile therefore does not change what it sees.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::future::join_all;
use ports::{Read, key_value::Scan};

use super::Volume;
use crate::{
    Error, Result,
    broken::Broken,
    serializable::{
        apply::Fold,
        model::{
            At, Entry, KEYS_MAX, Key, KeyRange, PAGE_BYTES_MAX, Page, PageLimits, Slot, Values,
        },
        registry::record,
        rows::{self, VersionRow},
    },
};

/// Version rows in one page of a scan.
const PAGE_VERSIONS: usize = 256;
/// Version rows of one key in a page: a whole value and the deltas after it.
const PAGE_KEY_VERSIONS: usize = 9;
/// How many keys of one call are read at once.
const CONCURRENT_READS: usize = 16;

/// The value of a key in its rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) value: Option<Bytes>,
    /// The deltas since the last whole value.
    pub(super) deltas: usize,
}

impl Volume {
    /// The values of several keys at one slot.
    pub(crate) async fn get_many(&self, at: At, keys: &[Key]) -> Result<Read<Values>> {
        if keys.len() > KEYS_MAX {
            return Err(Error::TooLarge("one call reads at most 1,000 keys"));
        }
        let slot = self.slot_of(at)?;
        let (mut found, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        'keys: for some in keys.chunks(CONCURRENT_READS) {
            let reads: Vec<_> = some.iter().map(|key| self.value(key, slot)).collect();
            for value in join_all(reads).await {
                let value = value?;
                bytes += value.as_ref().map_or(0, Bytes::len);
                if bytes > PAGE_BYTES_MAX && !found.is_empty() {
                    break 'keys;
                }
                found.push(value);
            }
        }
        self.answer_at(slot, Values { slot, found })
    }

    /// A page of the present keys of a range.
    pub(crate) async fn scan(
        &self,
        at: At,
        range: &KeyRange,
        limits: PageLimits,
    ) -> Result<Read<Page>> {
        let slot = self.slot_of(at)?;
        let (mut changes, until) = {
            let state = self.state();
            let changes = state.overlay.changes_in(range, slot);
            (changes, self.rows_until(slot, state.installed.slot))
        };
        let mut page = Filling {
            limits,
            bytes: 0,
            page: Page {
                slot,
                entries: Vec::new(),
                next: None,
            },
        };
        let items_max = limits.keys_max.clamp(1, PAGE_VERSIONS).saturating_mul(2);
        let mut rows = Rows::new(rows::versions_in(self.keyspace, range, items_max), until);
        while let Some((name, stored)) = rows.next(self).await? {
            // Keys that are only in the overlay come in between.
            while let Some(entry) = changes.first_entry()
                && *entry.key() < name
            {
                let (name, change) = entry.remove_entry();
                if !page.add(name, change.apply(None)) {
                    return self.answer_at(slot, page.page);
                }
            }
            let value = match changes.remove(&name) {
                Some(change) => change.apply(stored.as_ref()),
                None => stored,
            };
            if !page.add(name, value) {
                return self.answer_at(slot, page.page);
            }
        }
        for (name, change) in changes {
            if !page.add(name, change.apply(None)) {
                break;
            }
        }
        self.answer_at(slot, page.page)
    }

    /// The value of `key` at `slot`, which is visible.
    pub(super) async fn value(&self, key: &Key, slot: Slot) -> Result<Option<Bytes>> {
        let (change, until) = {
            let state = self.state();
            let change = state.overlay.change(key, slot);
            (change, self.rows_until(slot, state.installed.slot))
        };
        match change {
            Some(change) if !change.needs_base() => Ok(change.apply(None)),
            Some(change) => {
                let stored = self.stored(key, until).await?;
                let value = change.apply(stored.value.as_ref());
                self.state().overlay.know(key, slot, value.as_ref());
                Ok(value)
            }
            None => Ok(self.stored(key, until).await?.value),
        }
    }

    /// The value of `key` in its rows up to slot `until`.
    pub(super) async fn stored(&self, key: &Key, until: Slot) -> Result<Stored> {
        let mut scan = rows::versions(self.keyspace, key, until, PAGE_KEY_VERSIONS);
        let (mut fold, mut deltas) = (Fold::default(), 0);
        loop {
            let page = self.store.scan(&scan).await?.value;
            for (_, item) in &page.items {
                if fold.add(VersionRow::decode(record(item)?)?) {
                    let value = fold.value();
                    return Ok(Stored { value, deltas });
                }
                deltas += 1;
            }
            match page.next {
                Some(next) => scan.from = next,
                None => break,
            }
        }
        let value = fold.value();
        Ok(Stored { value, deltas })
    }

    /// The last slot of which a read at `slot` may use rows.
    fn rows_until(&self, slot: Slot, installed: Slot) -> Slot {
        if self.context.breaks(Broken::ReadsAboveInstalled) {
            return slot;
        }
        slot.min(installed)
    }

    fn slot_of(&self, at: At) -> Result<Slot> {
        self.check()?;
        let state = self.state();
        match at {
            At::Tail => Ok(state.visible),
            At::Slot(slot) => state.check_slot(slot).map(|()| slot),
        }
    }

    /// The answer of a read at `slot`. Errors: `SnapshotTooOld` if its versions may have been
    /// collected meanwhile.
    fn answer_at<T>(&self, slot: Slot, value: T) -> Result<Read<T>> {
        self.check()?;
        let state = self.state();
        state.check_slot(slot)?;
        Ok(state.answer(value))
    }
}

/// A page that is being filled.
struct Filling {
    limits: PageLimits,
    bytes: usize,
    page: Page,
}

impl Filling {
    /// Adds a key that is present. Returns false if the page is full; it continues there.
    fn add(&mut self, name: Bytes, value: Option<Bytes>) -> bool {
        let Some(value) = value else {
            return true;
        };
        let more = name.len() + value.len();
        if !self.limits.admit(self.page.entries.len(), self.bytes, more) {
            self.page.next = Some(name);
            return false;
        }
        self.bytes += more;
        self.page.entries.push(Entry { name, value });
        true
    }
}

/// The keys of a range in the rows, with their values as of a slot.
struct Rows {
    scan: Option<Scan>,
    until: Slot,
    /// Changes that were read, from the key's newest to its oldest.
    read: VecDeque<(Bytes, Slot, Bytes)>,
}

impl Rows {
    fn new(scan: Scan, until: Slot) -> Self {
        Self {
            scan: Some(scan),
            until,
            read: VecDeque::new(),
        }
    }

    /// The next key, and its value if it is present.
    async fn next(&mut self, volume: &Volume) -> Result<Option<(Bytes, Option<Bytes>)>> {
        let (mut name, mut fold, mut is_known) = (None::<Bytes>, Fold::default(), false);
        loop {
            let Some((next, slot, change)) = self.front(volume).await? else {
                return Ok(name.map(|name| (name, fold.value())));
            };
            if let Some(name) = &name
                && *name != next
            {
                return Ok(Some((name.clone(), fold.value())));
            }
            self.read.pop_front();
            name.get_or_insert(next);
            if !is_known && slot <= self.until {
                is_known = fold.add(VersionRow::decode(&change)?);
            }
        }
    }

    async fn front(&mut self, volume: &Volume) -> Result<Option<(Bytes, Slot, Bytes)>> {
        while self.read.is_empty() {
            let Some(scan) = &mut self.scan else {
                return Ok(None);
            };
            let page = volume.store.scan(scan).await?.value;
            match page.next {
                Some(next) => scan.from = next,
                None => self.scan = None,
            }
            for (sort, item) in page.items {
                let corrupt = || Error::Corrupt("a version of a volume".into());
                let (key, slot) = rows::version_of(&sort).ok_or_else(corrupt)?;
                let change = record(&item)?.clone();
                self.read.push_back((key.name().clone(), slot, change));
            }
        }
        Ok(self.read.front().cloned())
    }
}
