//! Lenient JSON: an object as its raw members, of which a reader decodes only those it needs.
//!
//! A function may return JSON that few libraries read (`1e999`, `"\ud800"`, deep nesting). Its
//! other members are still meant. Each member therefore stays raw until a reader asks for it.

use std::{borrow::Borrow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use serde_json::value::RawValue;

/// The raw members of an object. Of several members with one name, the last counts.
pub type Members<'a> = BTreeMap<Text, &'a RawValue>;

/// A JSON string, which may not be Unicode (`"\ud800"`). `String` refuses such a string, and with
/// it the whole object where it is a member name. Here it is read with replacement characters,
/// which no name that a reader looks for contains.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(pub String);

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfBytes;
        impl Visitor<'_> for OfBytes {
            type Value = Text;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            // Read as bytes, a string may contain lone surrogates.
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        deserializer.deserialize_bytes(OfBytes)
    }
}
