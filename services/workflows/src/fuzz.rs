//! Entry points for fuzzing: the decoders of rows and of functions' responses.

use std::fmt::Debug;

use bytes::Bytes;
use functions::manifest::workflow::Branch;
use ports::{
    Item,
    key_value::{Name, Value, Version},
};

use crate::{
    graph,
    storage::{Given, RunRow, StepRow},
};

/// Decodes attributes as the rows of a run and of a step, and checks that each row survives another
/// round of encoding. Returns whether they are a run.
pub fn row(attributes: Vec<(&'static str, Vec<u8>)>) -> bool {
    let attributes = attributes.into_iter().map(|(name, bytes)| {
        let number = <[u8; 8]>::try_from(bytes.as_slice()).map(i64::from_be_bytes);
        let value = number.map_or_else(|_| Value::Bytes(bytes.into()), Value::Integer);
        (Name::from(name), value)
    });
    let item = Item::from_parts(Version(1), attributes.collect());
    survives(&item, StepRow::decode, StepRow::encode);
    survives(&item, Given::decode, Given::encode);
    survives(&item, RunRow::decode, RunRow::encode)
}

fn survives<T: PartialEq + Debug>(
    item: &Item,
    decode: fn(&Item) -> ports::Result<T>,
    encode: fn(&T) -> Vec<(Name, Value)>,
) -> bool {
    let Ok(row) = decode(item) else {
        return false;
    };
    let again = decode(&Item::from_parts(Version(1), encode(&row)));
    assert_eq!(again.expect("an encoded row decodes"), row);
    true
}

/// The number of elements that a `map` finds in its input.
pub fn elements(input: &[u8]) -> Option<usize> {
    Some(graph::elements(input).ok()?.len())
}

/// The index of the branch, in JSON, that a `choice` takes.
pub fn chosen(branches: &[u8], input: &[u8]) -> Option<usize> {
    let branches: Vec<Branch> = serde_json::from_slice(branches).ok()?;
    graph::chosen(&branches, input).ok()?
}

/// The input of the step after branches with these outputs: a list of as many elements.
pub fn listed(outputs: &[Bytes]) -> Bytes {
    graph::listed(outputs)
}
