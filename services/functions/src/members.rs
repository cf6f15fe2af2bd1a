//! JSON that functions say, read as far as somebody looks at it.
//!
//! A function may answer what few can read (`1e999`, `"\ud800"`, deep nesting), and means the members beside that all the same. So
//! an object is read as its members, each as it was said, and whoever looks for one reads that alone.

use std::{borrow::Borrow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use serde_json::value::RawValue;

/// Members of an object, each as it was said; of several with one name the last.
pub type Members<'a> = BTreeMap<Text, &'a RawValue>;

/// A string, which in JSON may be no Unicode (`"\ud800"`). `String` refuses such a one, and with it the object that it is a name in: it is
/// read with replacement characters here, which no name has that anybody looks for.
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

            // As bytes a string may have surrogates alone.
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        deserializer.deserialize_bytes(OfBytes)
    }
}
