//! Pages of keys: both versions of ListObjects.

use std::fmt::Write as _;

use memory::model::{LIST_ITEMS_MAX, List, Listing};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::{
    S3Error, S3Result,
    dto::{
        CommonPrefix, EncodingType, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
        ListObjectsV2Output, Object, ObjectStorageClass,
    },
};

use crate::{
    acl::owner,
    conditions::{etag, time},
    errors::{from_service, invalid_argument},
};

/// As `encoding-type=url` writes keys. A space becomes `+` afterwards.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'*')
    .remove(b'/')
    .remove(b' ');

/// As in a path of a URL.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// A key as a part of a URL.
pub(crate) fn url_encoded(key: &str) -> String {
    utf8_percent_encode(key, IN_PATH).to_string()
}

/// How a response writes keys. XML 1.0 cannot hold all characters that keys can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Plain,
    Url,
}

impl Encoding {
    /// Errors: `InvalidArgument`.
    pub(crate) fn chosen(asked: Option<&EncodingType>) -> Result<Self, S3Error> {
        match asked.map(EncodingType::as_str) {
            None | Some("") => Ok(Self::Plain),
            Some("url") => Ok(Self::Url),
            Some(_) => Err(invalid_argument(
                "Invalid Encoding Method specified in Request",
            )),
        }
    }

    pub(crate) fn write(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Url => utf8_percent_encode(text, ENCODED)
                .to_string()
                .replace(' ', "+"),
        }
    }

    pub(crate) fn prefixes(self, prefixes: &[String]) -> Option<Vec<CommonPrefix>> {
        let written = prefixes.iter().map(|prefix| CommonPrefix {
            prefix: Some(self.write(prefix)),
        });
        (!prefixes.is_empty()).then(|| written.collect())
    }
}

/// The most items of a page.
///
/// Errors: `InvalidArgument` for a negative number.
pub(crate) fn items_max(asked: Option<i32>, name: &str) -> Result<usize, S3Error> {
    let asked = asked.unwrap_or(LIST_ITEMS_MAX as i32);
    let asked = usize::try_from(asked).map_err(|_| {
        invalid_argument(format!(
            "Argument {name} must be an integer between 0 and 2147483647"
        ))
    })?;
    Ok(asked.min(LIST_ITEMS_MAX))
}

/// A page asks for no item to learn whether the bucket is there.
async fn page(service: &memory::Service, bucket: &str, list: &List) -> Result<Listing, S3Error> {
    if list.items_max == 0 {
        service.bucket(bucket).await.map_err(from_service)?;
        return Ok(Listing::default());
    }
    service.list(bucket, list).await.map_err(from_service)
}

fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn contents(listing: &Listing, encoding: Encoding, has_owner: bool) -> Option<Vec<Object>> {
    let objects = listing.objects.iter().map(|object| Object {
        key: Some(encoding.write(&object.key)),
        e_tag: Some(etag(&object.etag)),
        last_modified: Some(time(object.modified)),
        size: i64::try_from(object.bytes).ok(),
        storage_class: Some(ObjectStorageClass::from_static(
            ObjectStorageClass::STANDARD,
        )),
        owner: has_owner.then(owner),
        ..Object::default()
    });
    (!listing.objects.is_empty()).then(|| objects.collect())
}

pub(crate) async fn list(
    service: &memory::Service,
    input: ListObjectsInput,
) -> S3Result<ListObjectsOutput> {
    let encoding = Encoding::chosen(input.encoding_type.as_ref())?;
    let max = items_max(input.max_keys, "max-keys")?;
    let prefix = input.prefix.unwrap_or_default();
    let marker = input.marker.unwrap_or_default();
    let list = List {
        prefix: prefix.clone(),
        delimiter: non_empty(input.delimiter),
        after: non_empty(Some(marker.clone())),
        items_max: max,
    };
    let listing = page(service, &input.bucket, &list).await?;
    // Without a delimiter a client continues after the last key.
    let next = listing.next.as_deref().filter(|_| list.delimiter.is_some());
    Ok(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.write(&prefix)),
        marker: Some(encoding.write(&marker)),
        max_keys: Some(max as i32),
        is_truncated: Some(listing.next.is_some()),
        contents: contents(&listing, encoding, true),
        common_prefixes: encoding.prefixes(&listing.prefixes),
        delimiter: list.delimiter.as_deref().map(|text| encoding.write(text)),
        next_marker: next.map(|text| encoding.write(text)),
        encoding_type: input.encoding_type,
        request_charged: None,
    })
}

pub(crate) async fn list_v2(
    service: &memory::Service,
    input: ListObjectsV2Input,
) -> S3Result<ListObjectsV2Output> {
    let encoding = Encoding::chosen(input.encoding_type.as_ref())?;
    let max = items_max(input.max_keys, "max-keys")?;
    let prefix = input.prefix.unwrap_or_default();
    let token = input
        .continuation_token
        .as_deref()
        .map(from_token)
        .transpose()?;
    let list = List {
        prefix: prefix.clone(),
        delimiter: non_empty(input.delimiter),
        after: token.or_else(|| non_empty(input.start_after.clone())),
        items_max: max,
    };
    let listing = page(service, &input.bucket, &list).await?;
    let count = listing.objects.len() + listing.prefixes.len();
    Ok(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.write(&prefix)),
        max_keys: Some(max as i32),
        key_count: Some(count as i32),
        continuation_token: input.continuation_token,
        is_truncated: Some(listing.next.is_some()),
        contents: contents(&listing, encoding, input.fetch_owner.unwrap_or(false)),
        common_prefixes: encoding.prefixes(&listing.prefixes),
        delimiter: list.delimiter.as_deref().map(|text| encoding.write(text)),
        next_continuation_token: listing.next.as_deref().map(to_token),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|text| encoding.write(&text)),
        request_charged: None,
    })
}

/// A token is a key in hexadecimal digits, since it travels in XML and in queries.
pub(crate) fn to_token(key: &str) -> String {
    key.bytes().fold(String::new(), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    })
}

/// Errors: `InvalidArgument`.
pub(crate) fn from_token(token: &str) -> Result<String, S3Error> {
    let invalid = || invalid_argument("The continuation token provided is incorrect");
    if token.is_empty()
        || !token.len().is_multiple_of(2)
        || !token.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Err(invalid());
    }
    let digits = (0..token.len()).step_by(2).map(|at| &token[at..at + 2]);
    let bytes = digits.map(|pair| u8::from_str_radix(pair, 16));
    let bytes = bytes
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| invalid())?;
    String::from_utf8(bytes).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_as_s3_does() {
        let cases = [
            ("a b+c", "a+b%2Bc"),
            ("dir/ü~*-_.", "dir/%C3%BC%7E*-_."),
            ("100%&?", "100%25%26%3F"),
            ("\u{1}\n", "%01%0A"),
        ];
        for (key, expected) in cases {
            assert_eq!(Encoding::Url.write(key), expected, "{key:?}");
            assert_eq!(Encoding::Plain.write(key), key);
        }
    }

    #[test]
    fn a_token_gives_its_key_back_and_another_text_is_refused() {
        for key in ["a", "ü/😀", "\u{0}"] {
            assert_eq!(from_token(&to_token(key)).expect("a token"), key);
        }
        for token in ["", "6", "zz", "ü", "ff", "+1"] {
            let error = from_token(token).expect_err(token);
            assert_eq!(error.code().as_str(), "InvalidArgument", "{token}");
        }
    }

    #[test]
    fn a_page_has_at_most_a_thousand_items_and_may_have_none() {
        assert_eq!(items_max(None, "max-keys").expect("default"), 1000);
        assert_eq!(items_max(Some(5000), "max-keys").expect("more"), 1000);
        assert_eq!(items_max(Some(0), "max-keys").expect("none"), 0);
        assert!(items_max(Some(-1), "max-keys").is_err());
    }
}
