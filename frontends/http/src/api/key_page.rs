//! Pages of keys: the query that asks for one, and its JSON.
//!
//! A key is bytes. In the query and in the page it is percent-encoded, as in a path. A value is
//! Base64.

use axum::{http::Uri, response::Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Serialize;
use transactions::{
    list::{KEYS_MAX, Listing, Page},
    model::Key,
};

use crate::{problem::Problem, response::json, segment};

/// The default of `limit`: how many keys a page looks at.
const KEYS_DEFAULT: usize = 100;

#[derive(Serialize)]
struct Keys {
    keys: Vec<Listed>,
    /// The `after` of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
struct Listed {
    key: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// Parses the query. Unknown parameters are refused: a misspelt prefix must not list everything.
pub(crate) fn parse(uri: &Uri) -> Result<Listing, Problem> {
    let shape = || {
        Problem::invalid(format!(
            "?prefix=KEY&after=KEY&limit=1..{KEYS_MAX}, each at most once, keys percent-encoded"
        ))
    };
    let (mut prefix, mut after, mut limit) = (None, None, None);
    let parts = uri.query().unwrap_or_default().split('&');
    for part in parts.filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(shape)?;
        let value = Bytes::from(segment::decode(value).ok_or_else(shape)?);
        let place = match name {
            "prefix" => &mut prefix,
            "after" => &mut after,
            "limit" => &mut limit,
            _ => return Err(shape()),
        };
        if place.replace(value).is_some() {
            return Err(shape());
        }
    }
    let keys_max = match limit {
        None => KEYS_DEFAULT,
        Some(limit) => {
            // `parse` would take a plus sign.
            let digits = std::str::from_utf8(&limit)
                .ok()
                .filter(|text| !text.starts_with('+'));
            let limit = digits.and_then(|digits| digits.parse().ok());
            let limit = limit.filter(|limit| (1..=KEYS_MAX).contains(limit));
            limit.ok_or_else(shape)?
        }
    };
    // A prefix that is too long for a key has no keys.
    let prefix = Key::new(prefix.unwrap_or_default())?.name().clone();
    Ok(Listing {
        prefix,
        after: after.map(Key::new).transpose()?,
        keys_max,
    })
}

/// A page in JSON.
pub(crate) fn response(page: &Page) -> Response {
    let keys = page.keys.iter().map(|listed| Listed {
        key: segment::encode(listed.key.name()),
        bytes: listed.bytes,
        value: listed
            .value
            .as_ref()
            .map(|value| BASE64_STANDARD.encode(value)),
    });
    let next = page.next.as_ref().map(|key| segment::encode(key.name()));
    let keys = keys.collect();
    json(&Keys { keys, next })
}
