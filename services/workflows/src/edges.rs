//! What is read from rows and from what functions answer, by itself: for fuzzing, which drives it with bytes that nobody would write.

use bytes::Bytes;
use functions::manifest::workflow::Branch;
use ports::{
    Item,
    key_value::{Name, Value, Version},
};

use crate::{
    graph,
    records::{Given, RunRow, StepRow},
};

/// Reads the rows of a run, and that of a step, with these attributes, and what is written of it again. Whether it is a run.
pub fn row(attributes: Vec<(&'static str, Vec<u8>)>) -> bool {
    let attributes = attributes.into_iter().map(|(name, bytes)| {
        let number = <[u8; 8]>::try_from(bytes.as_slice()).map(i64::from_be_bytes);
        (
            Name::from(name),
            number.map_or_else(|_| Value::Bytes(bytes.into()), Value::Integer),
        )
    });
    let item = Item::from_parts(Version(1), attributes.collect());
    if let Ok(row) = StepRow::decode(&item) {
        let again = StepRow::decode(&Item::from_parts(Version(1), row.encode()));
        assert_eq!(again.expect("what was written is read"), row);
    }
    if let Ok(given) = Given::decode(&item) {
        let again = Given::decode(&Item::from_parts(Version(1), given.encode()));
        assert_eq!(again.expect("what was written is read"), given);
    }
    let Ok(row) = RunRow::decode(&item) else {
        return false;
    };
    let again = RunRow::decode(&Item::from_parts(Version(1), row.encode()));
    assert_eq!(again.expect("what was written is read"), row);
    true
}

/// How many elements a `map` finds in what it is given.
pub fn elements(input: &[u8]) -> Option<usize> {
    Some(graph::elements(input).ok()?.len())
}

/// Which of these branches, in JSON, a `choice` takes.
pub fn chosen(branches: &[u8], input: &[u8]) -> Option<usize> {
    let branches: Vec<Branch> = serde_json::from_slice(branches).ok()?;
    graph::chosen(&branches, input).ok()?
}

/// What the next step of branches with these outputs is given: a list of as many elements.
pub fn listed(outputs: &[Bytes]) -> Bytes {
    graph::listed(outputs)
}
