//! Keys of state in order, as an attempt of a step sees them: what counts, and over it what the attempt has written.
//!
//! A page of what counts says up to which key it knows all there is. What was written beyond that key waits for its own page:
//! otherwise the next one, which goes on behind the last key shown, would leave out what counts before it.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::{
    DurabilityPoint, Item,
    key_value::{Page as Rows, Read, Scan},
};
use transactions::{
    layout::place,
    list::{KEYS_MAX, Listed, Listing, Page, VALUE_BYTES_MAX, VALUES_BYTES_MAX},
    model::{Call, Key},
};

use crate::{
    Result, Service,
    layout::state_keys,
    overlay::Writes,
    run::Run,
    shown::{ANSWER_MAX, Waited},
    step::Attempt,
    store::{State, Store, VALUE},
};

/// Keys of a page that an atomic run's transaction reads at a time.
const READS_AT_ONCE: usize = 16;

impl Service {
    /// A page of the keys that count for an attempt. Errors: `AttemptEnded`, `Port`, `State`.
    pub async fn list_keys(&self, token: &str, listing: &Listing) -> Result<Page> {
        self.inner.attempts.find(token)?.list(listing).await
    }

    /// A page of the keys of the workflow's state, as they count, once that is durable. Errors: `Unavailable` if that takes too long.
    pub async fn list_state(&self, name: &str, listing: &Listing) -> Result<Page> {
        let waited = Waited::default();
        let durable = async {
            let store = self.now_at(name, &waited).await?;
            let (page, point) = store.list_keys(listing).await?;
            store.externalize(point).await?;
            Ok(page)
        };
        self.within(ANSWER_MAX, self.late(&waited), durable).await
    }
}

impl Attempt {
    async fn list(&self, listing: &Listing) -> Result<Page> {
        // Looked at first: what an attempt writes meanwhile is its own doing, and one that has ended is told so.
        let written = self.overlay.written(&listing.prefix)?;
        let page = self.of_far(self.run.list(listing)).await?;
        Ok(laid_over(page, written, listing, |key| {
            self.run.store.place(key)
        }))
    }
}

impl Run {
    async fn list(&self, listing: &Listing) -> Result<Page> {
        let (mut page, point) = self.store.list_keys(listing).await?;
        self.saw(point);
        if let Some(call) = self.call_of_atomic() {
            page.keys = self.read_in(&call, page.keys).await?;
        }
        Ok(page)
    }

    /// The same keys as the transaction of an atomic run sees them.
    async fn read_in(&self, call: &Call, keys: Vec<Listed>) -> Result<Vec<Listed>> {
        let read = |Listed { key, .. }| async move {
            let value = self.get_in(call, key.name()).await?;
            Ok(value.map(|value| listed(key, value)))
        };
        let read = stream::iter(keys.into_iter().map(read)).buffered(READS_AT_ONCE);
        read.try_filter_map(|listed| async { Ok(listed) })
            .try_collect()
            .await
    }
}

impl Store {
    /// A page of the keys that count.
    async fn list_keys(&self, listing: &Listing) -> Result<(Page, DurabilityPoint)> {
        let State::Transactions(engine) = &self.state else {
            return self.list_range(listing).await;
        };
        let shown = engine.list_now(listing).await?;
        Ok((shown.value, shown.point))
    }

    async fn list_range(&self, listing: &Listing) -> Result<(Page, DurabilityPoint)> {
        let keys_max = listing.keys_max.clamp(1, KEYS_MAX);
        let after = listing.after.as_ref().map(Key::name);
        let mut scan: Scan = state_keys(&listing.prefix, after, keys_max);
        let Read {
            value: Rows { items, next },
            point,
        } = loop {
            let read = self.rows.scan(&scan).await?;
            match &read.value.next {
                // All there was is deleted, near and not yet far; where to go on is said by a key that is shown.
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

    /// Where a key lies among the keys of this store.
    fn place(&self, key: &Key) -> Bytes {
        match &self.state {
            State::Transactions(_) => place(key),
            State::Range(_) => key.name().clone(),
        }
    }
}

fn listed(key: Key, value: Bytes) -> Listed {
    let bytes = value.len() as u64;
    Listed {
        key,
        bytes,
        value: Some(value).filter(|_| bytes <= VALUE_BYTES_MAX),
    }
}

/// Ends a page where it has enough.
fn cut(page: &mut Page, keys_max: usize) {
    let mut bytes = 0;
    let is_full = |listed: &Listed| {
        bytes += listed.value.as_ref().map_or(0, Bytes::len);
        bytes >= VALUES_BYTES_MAX
    };
    let enough = page
        .keys
        .iter()
        .position(is_full)
        .map_or(keys_max, |last| keys_max.min(last + 1));
    if enough < page.keys.len() {
        page.keys.truncate(enough);
        page.next = page.keys.last().map(|last| last.key.clone());
    }
}

/// What counts, with what was written over it.
fn laid_over(
    page: Page,
    written: Writes,
    listing: &Listing,
    place: impl Fn(&Key) -> Bytes,
) -> Page {
    let Page { keys, next } = page;
    let mut merged: BTreeMap<Bytes, Listed> =
        keys.into_iter().map(|it| (place(&it.key), it)).collect();
    let (after, until) = (
        listing.after.as_ref().map(&place),
        next.as_ref().map(&place),
    );
    for (name, value) in written {
        let Ok(key) = Key::new(name) else { continue };
        let at = place(&key);
        if after.as_ref().is_some_and(|after| at <= *after)
            || until.as_ref().is_some_and(|until| at > *until)
        {
            continue;
        }
        match value {
            Some(value) => merged.insert(at, listed(key, value)),
            None => merged.remove(&at),
        };
    }
    let mut page = Page {
        keys: merged.into_values().collect(),
        next,
    };
    cut(&mut page, listing.keys_max.clamp(1, KEYS_MAX));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name.to_owned()).expect("short")
    }

    fn names(page: &Page) -> Vec<&str> {
        page.keys
            .iter()
            .map(|it| std::str::from_utf8(it.key.name()).expect("text"))
            .collect()
    }

    fn over(
        counts: &[&str],
        next: Option<&str>,
        written: &[(&str, bool)],
        keys_max: usize,
    ) -> Page {
        let keys = counts
            .iter()
            .map(|name| listed(key(name), "counts".into()))
            .collect();
        let page = Page {
            keys,
            next: next.map(key),
        };
        let written = written.iter().map(|(name, is_put)| {
            (
                Bytes::from(name.to_string()),
                is_put.then(|| Bytes::from_static(b"written")),
            )
        });
        let listing = Listing {
            prefix: Bytes::new(),
            after: Some(key("b")),
            keys_max,
        };
        laid_over(page, written.collect(), &listing, |key| key.name().clone())
    }

    /// W2: what an attempt wrote is in its pages once, in order, and what it deleted is not.
    #[test]
    fn what_was_written_is_laid_over_what_counts() {
        let written = [
            ("a", true),
            ("c", true),
            ("d", false),
            ("e", true),
            ("g", true),
        ];
        let page = over(&["c", "d", "f"], None, &written, 10);
        assert_eq!(
            (names(&page), page.next.clone()),
            (vec!["c", "e", "f", "g"], None)
        );
        // Of what lies behind the page, nothing yet; and what is too much for this page is in the next.
        let page = over(&["c", "d", "f"], Some("f"), &written, 10);
        assert_eq!(
            (names(&page), page.next.clone()),
            (vec!["c", "e", "f"], Some(key("f")))
        );
        let page = over(&["c", "d", "f"], None, &written, 2);
        assert_eq!(
            (names(&page), page.next.clone()),
            (vec!["c", "e"], Some(key("e")))
        );
        assert_eq!(page.keys[0].value.as_deref(), Some(&b"written"[..]));
    }
}
