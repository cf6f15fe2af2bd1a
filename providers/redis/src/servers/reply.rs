//! Parsing the replies of scripts.

use bytes::Bytes;
use redis::Value;

use crate::error::Failure;

/// A script's reply: the store's clock, and the remaining values.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) incarnation: u64,
    pub(crate) position: u64,
    pub(crate) rest: Vec<Value>,
}

impl Reply {
    /// Parses a reply that begins with an incarnation and a position.
    pub(crate) fn parse(value: Value) -> Result<Self, Failure> {
        let mut parts = array(value)?.into_iter();
        let (Some(incarnation), Some(position)) = (parts.next(), parts.next()) else {
            return Err(Failure::UnexpectedReply(
                "a reply without a point".to_owned(),
            ));
        };
        Ok(Self {
            incarnation: number(&incarnation)?,
            position: number(&position)?,
            rest: parts.collect(),
        })
    }

    /// The only value after the point.
    pub(crate) fn into_value(mut self) -> Result<Value, Failure> {
        self.rest
            .pop()
            .ok_or_else(|| Failure::UnexpectedReply("a reply without a value".to_owned()))
    }
}

pub(crate) fn array(value: Value) -> Result<Vec<Value>, Failure> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(garbled("a list", &other)),
    }
}

pub(crate) fn bytes(value: Value) -> Result<Bytes, Failure> {
    match value {
        Value::BulkString(bytes) => Ok(bytes.into()),
        Value::SimpleString(text) => Ok(text.into_bytes().into()),
        other => Err(garbled("bytes", &other)),
    }
}

pub(crate) fn text(value: Value) -> Result<String, Failure> {
    String::from_utf8(bytes(value)?.into())
        .map_err(|error| Failure::UnexpectedReply(error.to_string()))
}

/// A number, sent as an integer or as digits; nil stands for zero.
pub(crate) fn number(value: &Value) -> Result<u64, Failure> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok()),
        Value::Nil => Some(0),
        _ => None,
    }
    .ok_or_else(|| garbled("a number", value))
}

fn garbled(expected: &str, found: &Value) -> Failure {
    let kind = match found {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "bytes",
        Value::Array(_) => "a list",
        _ => "something else",
    };
    Failure::UnexpectedReply(format!("{kind} instead of {expected}"))
}
