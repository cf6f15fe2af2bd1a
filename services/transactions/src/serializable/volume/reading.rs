//! Reads: the overlay of uninstalled slots, then the rows of versions.
//!
//! A read looks at the overlay and the installed slot at one moment, and ignores later rows. An
//! installation that runs meanwhile therefore does not change its result.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::future::join_all;
use ports::{Read, key_value::Scan};

use super::Volume;
use crate::{
    Error, Result,
    serializable::{
        apply::{Change, Fold},
        model::{
            At, Entry, KEYS_MAX, Key, KeyRange, PAGE_BYTES_MAX, Page, PageLimits, Slot, Values,
        },
        newest::{Content, Stored},
        registry::record,
        rows::{self, Version, VersionRow},
    },
};

/// Version rows in one page of a scan.
const PAGE_VERSIONS: usize = 256;
/// Version rows of one key in a page: a whole value and the deltas after it.
const PAGE_KEY_VERSIONS: usize = 9;
/// How often a value is looked up that a collection moves meanwhile.
const READS_MAX: usize = 4;
/// How many keys of one call are read at once.
const CONCURRENT_READS: usize = 16;

impl Volume {
    /// The values of several keys at one slot.
    pub(crate) async fn get_many(&self, at: At, keys: &[Key]) -> Result<Read<Values>> {
        if keys.len() > KEYS_MAX {
            return Err(Error::TooLarge("one call reads at most 1,000 keys"));
        }
        let slot = self.slot_of(at)?;
        for _ in 0..READS_MAX {
            let contents = self.contents(slot, keys).await?;
            let count = contents.len();
            if let Some(found) = self.bytes_of(contents).await? {
                return self.answer_at(slot, Values { slot, found });
            }
            // A collection has moved some of the values, or deleted them.
            let mut state = self.state();
            state.check_slot(slot)?;
            for key in &keys[..count] {
                state.newest.remove(key);
            }
        }
        Err(no_object())
    }

    /// The first of several values, as many as one answer may have.
    async fn contents(&self, slot: Slot, keys: &[Key]) -> Result<Vec<Option<Content>>> {
        let (mut found, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for some in keys.chunks(CONCURRENT_READS) {
            let reads: Vec<_> = some.iter().map(|key| self.content(key, slot)).collect();
            for content in join_all(reads).await {
                let content = content?;
                bytes += content.as_ref().map_or(0, Content::bytes_len);
                if bytes > PAGE_BYTES_MAX && !found.is_empty() {
                    return Ok(found);
                }
                found.push(content);
            }
        }
        Ok(found)
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
            (changes, slot.min(state.installed.slot))
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
        let own = (self.keyspace, until);
        let layers = std::iter::once(own).chain(self.parents.iter().copied());
        let layers = layers.map(|(keyspace, until)| Rows {
            scan: Some(rows::versions_in(keyspace, range, items_max)),
            until,
            read: VecDeque::new(),
        });
        let mut rows = Layers(layers.collect());
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
        let value = self.content(key, slot).await?;
        let stored = Stored {
            value,
            ..Stored::default()
        };
        // What is not here is in the rows alone.
        let installed = self.state().installed.slot;
        let stored = self.here(key, slot.min(installed), stored).await?;
        Ok(stored.bytes().cloned())
    }

    /// The value of `key` at `slot`, which is visible, or where it lies.
    pub(super) async fn content(&self, key: &Key, slot: Slot) -> Result<Option<Content>> {
        let (change, installed, known) = {
            let state = self.state();
            let change = state.overlay.change(key, slot);
            if let Some(change) = &change
                && !change.needs_base()
            {
                return Ok(change.apply(None).map(Content::Here));
            }
            let installed = state.installed.slot;
            let known = state.newest.get(key, slot.min(installed)).cloned();
            (change, installed, known)
        };
        let stored = match known {
            Some(stored) => stored,
            None => self.read_newest(key, slot, installed).await?,
        };
        let Some(change) = change else {
            return Ok(stored.value);
        };
        let stored = self.here(key, slot.min(installed), stored).await?;
        let value = change.apply(stored.bytes());
        self.state().overlay.know(key, slot, value.as_ref());
        Ok(value.map(Content::Here))
    }

    /// Reads the value of `key` at `slot` from its rows, as far as they are `installed`.
    async fn read_newest(&self, key: &Key, slot: Slot, installed: Slot) -> Result<Stored> {
        let stored = self.stored(key, slot.min(installed)).await?;
        let mut state = self.state();
        // It is the newest one only if nothing was installed meanwhile.
        if slot >= installed && state.installed.slot == installed {
            state.newest.insert(key.clone(), stored.clone());
        }
        Ok(stored)
    }

    /// The value of `key` in its rows up to slot `until`, and in those of the volumes that this one
    /// was cloned from.
    pub(super) async fn stored(&self, key: &Key, until: Slot) -> Result<Stored> {
        for _ in 0..READS_MAX {
            if let Some(stored) = self.read_stored(key, until).await? {
                return Ok(stored);
            }
        }
        Err(no_object())
    }

    /// The same with its value, which may have to be read from an object.
    pub(super) async fn here(&self, key: &Key, until: Slot, stored: Stored) -> Result<Stored> {
        let mut stored = stored;
        for _ in 0..READS_MAX {
            if !matches!(stored.value, Some(Content::Placed(..))) {
                return Ok(stored);
            }
            if let Some(found) = self.bytes_of(vec![stored.value.clone()]).await? {
                let value = found.into_iter().next().flatten();
                stored.value = value.map(Content::Here);
                return Ok(stored);
            }
            self.state().newest.remove(key);
            stored = self.stored(key, until).await?;
        }
        Err(no_object())
    }

    /// The same as [`stored`](Self::stored). `None`: an object is gone.
    async fn read_stored(&self, key: &Key, until: Slot) -> Result<Option<Stored>> {
        let (mut fold, mut stored) = (Fold::default(), Stored::default());
        let own = (self.keyspace, until);
        let mut is_first = true;
        for (keyspace, until) in std::iter::once(own).chain(self.parents.iter().copied()) {
            let mut scan = rows::versions(keyspace, key, until, PAGE_KEY_VERSIONS);
            loop {
                let page = self.store.scan(&scan).await?.value;
                for (sort, item) in &page.items {
                    if std::mem::take(&mut is_first) && keyspace == self.keyspace {
                        let (_, slot) = rows::version_of(sort).ok_or_else(corrupt)?;
                        stored.since = slot;
                    }
                    let change = match VersionRow::decode(record(item)?)? {
                        Version::Here(change) => change,
                        Version::Placed(place) => {
                            let content = Content::Placed(keyspace, place);
                            if stored.deltas == 0 {
                                stored.value = Some(content);
                                return Ok(Some(stored));
                            }
                            let Some(found) = self.bytes_of(vec![Some(content)]).await? else {
                                return Ok(None);
                            };
                            let value = found.into_iter().next().flatten();
                            value.map_or(Change::Delete, Change::Put)
                        }
                    };
                    if fold.add(change) {
                        stored.value = fold.value().map(Content::Here);
                        return Ok(Some(stored));
                    }
                    stored.deltas += 1;
                }
                match page.next {
                    Some(next) => scan.from = next,
                    None => break,
                }
            }
        }
        stored.value = fold.value().map(Content::Here);
        Ok(Some(stored))
    }

    fn slot_of(&self, at: At) -> Result<Slot> {
        self.check()?;
        let mut state = self.state();
        match at {
            At::Tail => Ok(state.visible),
            At::Slot(slot) => {
                state.check_slot(slot)?;
                state.touch(slot, self.context.clock.monotonic());
                Ok(slot)
            }
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

/// The keys of a range in the rows of a volume and of the volumes that it was cloned from.
struct Layers(Vec<Rows>);

impl Layers {
    /// The next key, and its value if it is present.
    async fn next(&mut self, volume: &Volume) -> Result<Option<(Bytes, Option<Bytes>)>> {
        let mut first = None::<Key>;
        for rows in &mut self.0 {
            if let Some((key, ..)) = rows.front(volume).await?
                && first.as_ref().is_none_or(|first| key < first)
            {
                first = Some(key.clone());
            }
        }
        let Some(key) = first else {
            return Ok(None);
        };
        let (mut fold, mut is_known, mut is_placed) = (Fold::default(), false, false);
        for rows in &mut self.0 {
            while let Some((next, slot, change)) = rows.front(volume).await?
                && *next == key
            {
                let (slot, change) = (*slot, change.clone());
                if !is_known && slot <= rows.until {
                    match VersionRow::decode(&change)? {
                        Version::Here(change) => is_known = fold.add(change),
                        Version::Placed(_) => (is_known, is_placed) = (true, true),
                    }
                }
                rows.read.pop_front();
            }
        }
        let value = match self.0.first() {
            Some(own) if is_placed => {
                let stored = volume.stored(&key, own.until).await?;
                let stored = volume.here(&key, own.until, stored).await?;
                stored.bytes().cloned()
            }
            _ => fold.value(),
        };
        Ok(Some((key.name().clone(), value)))
    }
}

/// The versions of a range in the rows of one volume, up to a slot.
struct Rows {
    scan: Option<Scan>,
    until: Slot,
    /// Changes that were read, from a key's newest to its oldest.
    read: VecDeque<(Key, Slot, Bytes)>,
}

impl Rows {
    async fn front(&mut self, volume: &Volume) -> Result<Option<&(Key, Slot, Bytes)>> {
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
                let (key, slot) = rows::version_of(&sort).ok_or_else(corrupt)?;
                let change = record(&item)?.clone();
                self.read.push_back((key, slot, change));
            }
        }
        Ok(self.read.front())
    }
}

fn no_object() -> Error {
    Error::Corrupt("an object with values of a volume is missing".into())
}

fn corrupt() -> Error {
    Error::Corrupt("a version of a volume has a key that no writer makes".into())
}
