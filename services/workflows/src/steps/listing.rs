//! A page of committed keys with the attempt's own writes laid over it.
//!
//! A page of committed keys is complete up to its last key. Writes of the attempt beyond that key
//! wait for their own page. Otherwise the next page, which begins after the last key shown, would
//! omit committed keys before it.

use std::collections::BTreeMap;

use bytes::Bytes;
use transactions::{
    list::{KEYS_MAX, Listed, Listing, Page},
    model::Key,
};

use crate::storage::{Writes, cut, listed};

/// Lays `written` over a page. `position` orders the keys as the store does.
pub(super) fn overlaid(
    page: Page,
    written: Writes,
    listing: &Listing,
    position: impl Fn(&Key) -> Bytes,
) -> Page {
    let Page { keys, next } = page;
    let mut merged: BTreeMap<Bytes, Listed> =
        keys.into_iter().map(|it| (position(&it.key), it)).collect();
    let (after, until) = (
        listing.after.as_ref().map(&position),
        next.as_ref().map(&position),
    );
    for (name, value) in written {
        let Ok(key) = Key::new(name) else { continue };
        let at = position(&key);
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
        overlaid(page, written.collect(), &listing, |key| key.name().clone())
    }

    /// W2: a page has each key that the attempt wrote once, in order, and no key that it deleted.
    #[test]
    fn writes_of_the_attempt_are_laid_over_committed_keys() {
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
        // Keys after the end of the page wait for theirs. A page that is too long ends earlier.
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
