//! How a transaction brings values of the volume into its cache.

use std::sync::Arc;

use bytes::Bytes;
use transactions::serializable::model::{KEYS_MAX, Key, Slot, Values};

use super::{CACHED_BYTES_MAX, Change, Overlay};
use crate::{
    broken::Broken,
    error::{Errno, Result},
    leased::LeasedVolume,
};

impl Overlay {
    /// Brings the volume's values of `keys` into the cache, in one call. The transaction does not
    /// depend on them yet.
    pub(crate) async fn fetch(&mut self, keys: &[Key]) -> Result<()> {
        if self.cached_bytes > CACHED_BYTES_MAX {
            self.fix().await?;
            self.cached.clear();
            self.cached_bytes = 0;
        }
        let is_missing = |key: &&Key| {
            let is_put = matches!(self.changes.get(*key), Some(Change::Whole(_)));
            !is_put && !self.cached.contains_key(*key)
        };
        let missing: Vec<Key> = keys.iter().filter(is_missing).cloned().collect();
        if missing.is_empty() || self.remember(&missing) {
            return Ok(());
        }
        if self.cached.len() + missing.len() > KEYS_MAX {
            self.fix().await?;
        }
        let is_fixed =
            |leased: &Arc<LeasedVolume>| self.at.is_some() && leased.breaks(Broken::KeepsFirstSlot);
        if let Some(leased) = self.leased.clone().filter(|leased| !is_fixed(leased)) {
            return self.extend(&leased, missing).await;
        }
        let found = self.read(&missing).await?;
        self.cache(missing.into_iter().zip(found));
        Ok(())
    }

    /// Reads more values, at the tail. All former reads must be the same there.
    async fn extend(&mut self, leased: &LeasedVolume, missing: Vec<Key>) -> Result<()> {
        let count = missing.len();
        let mut keys = missing;
        keys.extend(self.outside());
        let answer = leased.read(&keys).await;
        let Values { slot, mut found } = self.note(answer)?;
        self.at = Some(slot);
        if found.len() < keys.len() {
            // The answer of the volume is too long. Its slot is one of this call.
            self.leased = None;
            found.extend(self.read(&keys[found.len()..]).await?);
        }
        let mut found = keys.into_iter().zip(found);
        let new: Vec<_> = found.by_ref().take(count).collect();
        self.must_be_same(found)?;
        self.cache(new.into_iter());
        Ok(())
    }

    /// Stays at a slot of now from here on.
    async fn fix(&mut self) -> Result<()> {
        if self.leased.is_some() {
            let answer = self.store.snapshot().await;
            let slot = self.note(answer)?.slot;
            self.fix_at(slot).await?;
        }
        Ok(())
    }

    /// Stays at `slot` from here on, if it has read from memory so far. All reads must be the same
    /// there.
    pub(super) async fn fix_at(&mut self, slot: Slot) -> Result<()> {
        if self.leased.take().is_none() {
            return Ok(());
        }
        self.at = Some(slot);
        let keys = self.outside();
        let found = self.read(&keys).await?;
        self.must_be_same(keys.into_iter().zip(found))
    }

    /// The keys that it has read from the volume.
    fn outside(&self) -> Vec<Key> {
        let keys = self.cached.keys().filter(|key| !self.own.contains(*key));
        keys.cloned().collect()
    }

    /// Errors: `ESTALE` if a value is not the one that it has read. Then the call runs again.
    fn must_be_same(
        &mut self,
        mut found: impl Iterator<Item = (Key, Option<Bytes>)>,
    ) -> Result<()> {
        if found.all(|(key, value)| self.cached.get(&key) == Some(&value)) {
            return Ok(());
        }
        self.failure = Some(transactions::Error::SnapshotTooOld);
        Err(Errno::ESTALE)
    }

    /// The values of keys at its slot, or at the tail if it has none.
    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        let mut found = Vec::with_capacity(keys.len());
        while found.len() < keys.len() {
            let rest = &keys[found.len()..];
            let asked = &rest[..rest.len().min(KEYS_MAX)];
            let answer = self.store.get_many(self.moment(), asked).await;
            let values = self.note(answer)?;
            self.at.get_or_insert(values.slot);
            if values.found.is_empty() || values.found.len() > asked.len() {
                return Err(Errno::EIO);
            }
            found.extend(values.found);
        }
        Ok(found)
    }

    fn cache(&mut self, values: impl Iterator<Item = (Key, Option<Bytes>)>) {
        for (key, value) in values {
            self.cached_bytes += key.bytes_len() + value.as_ref().map_or(0, Bytes::len);
            self.cached.insert(key, value);
        }
    }

    /// Whether all of `keys` are remembered. Then they are in the cache.
    fn remember(&mut self, keys: &[Key]) -> bool {
        let Some((remembered, now)) = &self.remembered else {
            return false;
        };
        let Some(known) = remembered.all(keys, *now) else {
            return false;
        };
        for (key, known) in keys.iter().zip(known) {
            let oldest = self.remembered_at.map_or(known.at, |at| at.min(known.at));
            self.remembered_at = Some(oldest);
            self.cached.insert(key.clone(), known.value);
        }
        true
    }
}
