//! Plain state: one key at a time, or a page of them, outside any transaction.

use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::{
    after::After,
    call::{Call, Condition},
    error::Result,
    exchange::Core,
};

/// The keys that transactions write, one at a time.
///
/// A write whose response is lost is sent again. It may then be applied twice, with another
/// client's write of the key in between. Where that matters, use a transaction, which takes effect
/// once. A write under a condition is not sent again: it ends as
/// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown), so read the key.
#[derive(Debug)]
pub struct State {
    core: Core,
    after: Arc<After>,
}

/// Some keys in order, with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The keys with their values.
    pub items: Vec<(Bytes, Bytes)>,
    /// The key after which the next page begins; none after the last page.
    pub next: Option<Bytes>,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<Listed>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    key: String,
    value: Option<String>,
}

impl State {
    pub(crate) fn new(core: Core, after: Arc<After>) -> Self {
        Self { core, after }
    }

    /// The value of `key`; none if there is none.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let answer = self.core.exchange(&Call::get_state(key.as_ref())).await?;
        Ok(answer.response.value())
    }

    /// The value of `key` and its `ETag`, which changes with each write; none if there is no value.
    pub async fn get_with_etag(&self, key: impl AsRef<[u8]>) -> Result<Option<(Bytes, String)>> {
        let call = Call::get_state(key.as_ref());
        let answer = self.core.exchange(&call).await?;
        let etag = answer.response.etag.clone();
        let Some(value) = answer.response.value() else {
            return Ok(None);
        };
        let etag = etag.ok_or_else(|| call.unexpected("no ETag in the answer"))?;
        Ok(Some((value, etag)))
    }

    /// Examines up to `limit` keys (1,000 at the most) that begin with `prefix`, after the key
    /// `after`. Returns those that have a value, in order. Each value is the key's value at some
    /// moment during the call. Recently deleted keys make a page shorter, so go on until
    /// [`Page::next`] is none.
    pub async fn scan(
        &self,
        prefix: impl AsRef<[u8]>,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page> {
        let call = Call::scan_state(prefix.as_ref(), after, limit)?;
        let answer = self.core.exchange(&call).await?;
        let found = entries(&answer.response.body);
        let (entries, next) =
            found.ok_or_else(|| call.unexpected("the answer is no page of keys"))?;
        let mut page = Page {
            items: Vec::new(),
            next,
        };
        for (key, value) in entries {
            let value = match value {
                Some(value) => Some(value),
                // The value is too long for a page. If the key is gone by now, it is left out.
                None => self.get(&key).await?,
            };
            page.items.extend(value.map(|value| (key, value)));
        }
        Ok(page)
    }

    /// Sets `key`; it is durable when this returns.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        let call = Call::put_state(key.as_ref(), value.into())?;
        self.change(&call).await.map(drop)
    }

    /// Removes `key`, whether or not it exists.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let call = Call::delete_state(key.as_ref());
        self.change(&call).await.map(drop)
    }

    /// Sets `key` if `condition` holds at that moment, and returns the `ETag` of the value;
    /// otherwise [`ConditionNotMet`](crate::ErrorKind::ConditionNotMet). The first condition makes
    /// the keyspace sequenced permanently.
    pub async fn put_if(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        condition: Condition,
    ) -> Result<String> {
        let call = Call::put_state(key.as_ref(), value.into())?.under(condition);
        let etag = self.change(&call).await?;
        etag.ok_or_else(|| call.unexpected("no ETag in the answer"))
    }

    /// Removes `key` if `condition` holds at that moment, as [`State::put_if`].
    pub async fn delete_if(&self, key: impl AsRef<[u8]>, condition: Condition) -> Result<()> {
        let call = Call::delete_state(key.as_ref()).under(condition);
        self.change(&call).await.map(drop)
    }

    async fn change(&self, call: &Call) -> Result<Option<String>> {
        let answer = self.core.exchange(call).await?;
        self.after.heard(answer.response.after);
        Ok(answer.response.etag)
    }
}

/// The content of a page: keys, with the values that are not too long for it; and the key after
/// which the next page begins.
type Entries = (Vec<(Bytes, Option<Bytes>)>, Option<Bytes>);

/// None if the body is no page.
fn entries(body: &[u8]) -> Option<Entries> {
    let found: Keys = serde_json::from_slice(body).ok()?;
    let entry = |listed: Listed| {
        let value = listed
            .value
            .map(|value| BASE64_STANDARD.decode(value).map(Bytes::from));
        Some((key(&listed.key), value.transpose().ok()?))
    };
    let keys = found.keys.into_iter().map(entry).collect::<Option<_>>()?;
    Some((keys, found.next.as_deref().map(key)))
}

fn key(encoded: &str) -> Bytes {
    percent_decode_str(encoded).collect::<Vec<u8>>().into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;

    fn of_both_clients() -> Value {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../python/tests/testdata/both_clients.json"
        );
        let text = fs::read_to_string(path).expect("the Python client is in the same repository");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Bytes in hexadecimal; none for null.
    fn bytes(hex: &Value) -> Option<Bytes> {
        let digits = hex.as_str()?.as_bytes().chunks(2);
        let byte = |pair| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits")
        };
        Some(digits.map(byte).collect::<Vec<u8>>().into())
    }

    fn all<'a>(document: &'a Value, name: &str) -> &'a [Value] {
        document[name].as_array().expect("an array")
    }

    /// T18. The Python client's tests read the same file.
    #[test]
    fn the_python_client_scans_the_same() {
        let both = of_both_clients();
        for said in all(&both, "calls") {
            let (prefix, after) = (
                bytes(&said["prefix"]).expect("bytes"),
                bytes(&said["after"]),
            );
            let limit = said["limit"].as_u64().expect("a number") as usize;
            let call =
                Call::scan_state(&prefix, after.as_deref(), limit).expect("a limit that is one");
            assert_eq!(said["path"], call.path);
        }
        for limit in all(&both, "refused_limits") {
            let limit = limit.as_u64().expect("a number") as usize;
            let refused = Call::scan_state(b"", None, limit).expect_err("no page has so many");
            assert_eq!(refused.kind(), crate::ErrorKind::InvalidRequest);
        }
        for said in all(&both, "pages") {
            let item = |item: &Value| (bytes(&item[0]).expect("bytes"), bytes(&item[1]));
            let items: Vec<_> = all(said, "items").iter().map(item).collect();
            assert_eq!(
                entries(said["answer"].to_string().as_bytes()),
                Some((items, bytes(&said["next"])))
            );
        }
        for body in all(&both, "no_pages") {
            assert_eq!(
                entries(body.as_str().expect("text").as_bytes()),
                None,
                "{body}"
            );
        }
    }

    /// T14.
    #[test]
    fn the_python_client_carries_the_same_tokens() {
        let both = of_both_clients();
        let longest = "t".repeat(1_024);
        let longer = format!("{longest}t");
        let said = all(&both, "tokens").iter();
        let said = said.map(|said| {
            (
                said[0].as_str().expect("text"),
                said[1].as_bool().expect("yes or no"),
            )
        });
        for (token, is_one) in said.chain([(&*longest, true), (&*longer, false)]) {
            let after = After::default();
            let kept = is_one.then(|| token.to_owned());
            assert_eq!(after.heard(Some(token.to_owned())), kept, "{token:?}");
            assert_eq!(after.token(), kept);
        }
    }
}
