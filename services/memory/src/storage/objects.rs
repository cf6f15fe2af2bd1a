//! The rows of objects, and the one write that decides each change (M1).

use bytes::Bytes;
use ports::{
    DurabilityPoint, Key,
    key_value::{Scan, Version},
};

use super::{
    rows::{BucketId, ObjectRow},
    table::{Found, Table, Write},
};
use crate::{
    Error, Result,
    model::{Attributes, Conditions, LIST_ITEMS_MAX, List, Listing},
};

const PARTITION: &str = "memory/o/";

fn partition(bucket: BucketId) -> Bytes {
    format!("{PARTITION}{:032x}", bucket.0).into()
}

fn key(bucket: BucketId, key: &str) -> Key {
    Key::new(partition(bucket), key)
}

/// The row of an object, and the point that the answer depends on.
pub(crate) async fn read(
    table: &Table,
    bucket: BucketId,
    object: &str,
) -> Result<(Option<Found<ObjectRow>>, DurabilityPoint)> {
    Ok(table.get(&key(bucket, object), "an object").await?)
}

/// The change that puts the row, if the present one is at `before`.
pub(crate) fn put(
    bucket: BucketId,
    object: &str,
    row: &ObjectRow,
    before: Option<Version>,
) -> Write {
    Write::put(key(bucket, object), row, before)
}

/// The change that deletes the row, if it is at `before`.
pub(crate) fn delete(bucket: BucketId, object: &str, before: Version) -> Write {
    Write::delete(key(bucket, object), before)
}

/// Checks `conditions` on the present version.
pub(crate) fn check(conditions: &Conditions, present: Option<&ObjectRow>) -> Result<()> {
    let etag = present.map(|row| row.etag.text());
    if let Some(etags) = &conditions.if_match {
        match &etag {
            None => return Err(Error::NoSuchObject),
            Some(etag) if !etags.include(etag) => return Err(Error::ConditionFailed),
            Some(_) => {}
        }
    }
    if let (Some(etags), Some(etag)) = (&conditions.if_none_match, &etag)
        && etags.include(etag)
    {
        return Err(Error::ConditionFailed);
    }
    Ok(())
}

/// Whether the bucket has no object.
pub(crate) async fn are_none(table: &Table, bucket: BucketId) -> Result<bool> {
    let scan = Scan::partition(partition(bucket), 1);
    let page = table.scan::<ObjectRow>(&scan, "an object").await?;
    table.externalize(page.point).await?;
    Ok(page.found.is_empty())
}

/// One page of a bucket. Keys with a common prefix are skipped as a whole, so that the cost depends
/// on the size of the page alone.
pub(crate) async fn list(table: &Table, bucket: BucketId, list: &List) -> Result<Listing> {
    let items_max = list.items_max.min(LIST_ITEMS_MAX);
    let mut listing = Listing::default();
    if items_max == 0 {
        return Ok(listing);
    }
    let mut from = start(list);
    let until = successor(list.prefix.as_bytes());
    // The last key or prefix of the page so far.
    let mut last = list.after.clone();
    let mut point = table.key_value.point();
    'pages: loop {
        let scan = Scan {
            until: until.clone(),
            ..Table::page(partition(bucket), from.clone())
        };
        let page = table.scan::<ObjectRow>(&scan, "an object").await?;
        point = point.max(page.point);
        let mut skip_to = Bytes::new();
        for (sort, found) in page.found {
            if sort < skip_to {
                continue;
            }
            if listing.objects.len() + listing.prefixes.len() == items_max {
                listing.next = last;
                break 'pages;
            }
            let name = String::from_utf8_lossy(&sort).into_owned();
            if let Some(common) = common_prefix(&name, list) {
                let after = successor(common.as_bytes());
                last = Some(common.clone());
                listing.prefixes.push(common);
                let Some(after) = after else { break 'pages };
                skip_to = after;
                continue;
            }
            let mut object = found.row.object(&name);
            object.attributes = Attributes::default();
            listing.objects.push(object);
            last = Some(name);
        }
        match page.next {
            Some(next) => from = next.max(skip_to),
            None => break,
        }
    }
    table.externalize(point).await?;
    Ok(listing)
}

/// The first key that a page may show.
fn start(list: &List) -> Bytes {
    let prefix = Bytes::from(list.prefix.clone());
    let Some(after) = &list.after else {
        return prefix;
    };
    // After a common prefix come the keys that do not have it.
    let is_common_prefix = common_prefix(after, list).is_some_and(|common| common == *after);
    let next = if is_common_prefix {
        successor(after.as_bytes()).unwrap_or_default()
    } else {
        [after.as_bytes(), b"\0"].concat().into()
    };
    next.max(prefix)
}

/// The common prefix that a list shows for `key`.
fn common_prefix(key: &str, list: &List) -> Option<String> {
    let delimiter = list.delimiter.as_deref().filter(|text| !text.is_empty())?;
    let rest = key.strip_prefix(list.prefix.as_str())?;
    let end = rest.find(delimiter)? + delimiter.len();
    Some(key[..list.prefix.len() + end].to_owned())
}

/// The first key after all that begin with `prefix`; none: there is no such key.
fn successor(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{ETags, VersionId},
        storage::rows::{ETag, Place},
    };

    fn row(digit: u8) -> ObjectRow {
        ObjectRow {
            version: VersionId(1),
            modified: ports::Timestamp(1),
            etag: ETag {
                md5: [digit; 16],
                parts: None,
            },
            attributes: Attributes::default(),
            place: Place::default(),
        }
    }

    #[test]
    fn conditions_are_on_the_present_version() {
        let any = Conditions {
            if_match: Some(ETags::Any),
            if_none_match: None,
        };
        let absent = Conditions {
            if_match: None,
            if_none_match: Some(ETags::Any),
        };
        let named = Conditions {
            if_match: Some(ETags::OneOf(vec!["11".repeat(16)])),
            if_none_match: None,
        };
        let (one, two) = (row(0x11), row(0x22));
        assert!(check(&any, Some(&one)).is_ok());
        assert!(matches!(check(&any, None), Err(Error::NoSuchObject)));
        assert!(check(&absent, None).is_ok());
        assert!(matches!(
            check(&absent, Some(&one)),
            Err(Error::ConditionFailed)
        ));
        assert!(check(&named, Some(&one)).is_ok());
        assert!(matches!(
            check(&named, Some(&two)),
            Err(Error::ConditionFailed)
        ));
    }

    #[test]
    fn the_key_after_a_prefix_is_the_first_that_does_not_begin_with_it() {
        assert_eq!(successor(b"a/").as_deref(), Some(&b"a0"[..]));
        assert_eq!(successor(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(successor(b"\xff"), None);
        assert_eq!(successor(b""), None);
    }
}
