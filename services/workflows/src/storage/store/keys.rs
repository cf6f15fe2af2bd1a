//! Keys of functions' state: read and listed.

use bytes::Bytes;
use ports::{
    DurabilityPoint, Item,
    key_value::{Page as Rows, Read, Scan},
};
use transactions::{
    layout::place,
    list::{KEYS_MAX, Listed, Listing, Page, VALUE_BYTES_MAX, VALUES_BYTES_MAX},
    model::{Call, Key},
};

use super::{State, Store, VALUE};
use crate::{
    Error, Result,
    storage::{layout, layout::state_keys, transaction::state_key},
};

impl Store {
    /// Errors: `TooLarge` for a key that is too long for an item.
    pub(crate) fn check_key(&self, bytes: usize) -> Result<()> {
        let most = self.rows.limits().key_bytes_max;
        if self.is_far() && bytes > most {
            return Err(Error::too_long("key", bytes, most));
        }
        Ok(())
    }

    pub(crate) async fn get(&self, key: &Bytes) -> Result<(Option<Bytes>, DurabilityPoint)> {
        match &self.state {
            State::Transactions(engine) => {
                let shown = engine.get_now(&state_key(key)?).await?;
                Ok((shown.value, shown.point))
            }
            State::Shard(_) => {
                let read = self.rows.get(&layout::state(key)).await?;
                let value = read.value.and_then(|item| item.bytes(VALUE).cloned());
                Ok((value, read.point))
            }
        }
    }

    /// The value of `key` in a transaction.
    pub(crate) async fn get_in(
        &self,
        call: &Call,
        key: &Bytes,
    ) -> Result<(Option<Bytes>, DurabilityPoint)> {
        let State::Transactions(engine) = &self.state else {
            return self.get(key).await;
        };
        let shown = engine.get(call, &state_key(key)?).await?;
        Ok((shown.value, shown.point))
    }

    pub(crate) async fn list_keys(&self, listing: &Listing) -> Result<(Page, DurabilityPoint)> {
        let State::Transactions(engine) = &self.state else {
            return self.list_shard(listing).await;
        };
        let shown = engine.list_now(listing).await?;
        Ok((shown.value, shown.point))
    }

    async fn list_shard(&self, listing: &Listing) -> Result<(Page, DurabilityPoint)> {
        let keys_max = listing.keys_max.clamp(1, KEYS_MAX);
        let after = listing.after.as_ref().map(Key::name);
        let mut scan: Scan = state_keys(&listing.prefix, after, keys_max);
        let Read {
            value: Rows { items, next },
            point,
        } = loop {
            let read = self.rows.scan(&scan).await?;
            match &read.value.next {
                // All keys of this page were deleted near, and not yet far. A page has to end with
                // a key, so we read on.
                Some(next) if read.value.items.is_empty() => scan.from = next.clone(),
                _ => break read,
            }
        };
        let value = |item: &Item| item.bytes(VALUE).cloned().unwrap_or_default();
        let mut page = Page::default();
        let mut last = None;
        for (name, item) in items {
            let key = Key::new(name)?;
            last = Some(key.clone());
            page.keys.push(listed(key, value(&item)));
        }
        page.next = next.and(last);
        cut(&mut page, keys_max);
        Ok((page, point))
    }

    /// The position of a key in the order of this store.
    pub(crate) fn position_of(&self, key: &Key) -> Bytes {
        match &self.state {
            State::Transactions(_) => place(key),
            State::Shard(_) => key.name().clone(),
        }
    }
}

pub(crate) fn listed(key: Key, value: Bytes) -> Listed {
    let bytes = value.len() as u64;
    Listed {
        key,
        bytes,
        value: Some(value).filter(|_| bytes <= VALUE_BYTES_MAX),
    }
}

/// Ends a page once it has enough keys or bytes.
pub(crate) fn cut(page: &mut Page, keys_max: usize) {
    let mut bytes = 0;
    let is_full = |listed: &Listed| {
        bytes += listed.value.as_ref().map_or(0, Bytes::len);
        bytes >= VALUES_BYTES_MAX
    };
    let full = page.keys.iter().position(is_full);
    let enough = full.map_or(keys_max, |last| keys_max.min(last + 1));
    if enough < page.keys.len() {
        page.keys.truncate(enough);
        page.next = page.keys.last().map(|last| last.key.clone());
    }
}
