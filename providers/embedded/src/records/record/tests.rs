//! Records survive encoding and decoding, and other bytes are refused.

use ports::{
    key_value::{OperationId, Update, Value, evaluate},
    queue::{LetterId, OnFailure, Retention, Sequence},
};

use super::*;

/// A random record of `table`.
fn any(table: Table, random: &mut fastrand::Rng) -> Record {
    let bytes = |random: &mut fastrand::Rng| {
        let length = random.usize(..200);
        Bytes::from((0..length).map(|_| random.u8(..)).collect::<Vec<u8>>())
    };
    let text = |random: &mut fastrand::Rng| {
        (0..random.usize(..40))
            .map(|_| random.char('a'..='ö'))
            .collect::<String>()
    };
    match table {
        Table::Incarnations => Record::Incarnations(Arc::new(
            (0..random.u64(..20))
                .map(|number| (number, random.u64(..)))
                .collect(),
        )),
        Table::Item => Record::Item(any_item(random)),
        Table::Deduplication => Record::Deduplication(random.u64(..)),
        Table::Queue => Record::Queue(Arc::new(QueueRecord {
            id: random.u32(..),
            options: QueueOptions {
                visibility_timeout_ms: random.u64(..),
                attempts_max: random.u32(..),
                on_failure: if random.bool() {
                    OnFailure::Block
                } else {
                    OnFailure::DeadLetter
                },
                retention: if random.bool() {
                    Retention::Durable
                } else {
                    Retention::Transient
                },
            },
        })),
        Table::Message => Record::Message(bytes(random)),
        Table::MessageId => Record::MessageId(bytes(random)),
        Table::Attempts => Record::Attempts(Arc::new(Attempts {
            deliveries: random.u32(..),
            failures: random.u32(..),
            reason: text(random),
        })),
        Table::DeadLetter => Record::DeadLetter(Arc::new(DeadLetter {
            id: LetterId(random.u128(..)),
            group: bytes(random),
            sequence: Sequence(random.u64(..)),
            deduplication: random.bool().then(|| bytes(random)),
            body: bytes(random),
            attempts: random.u32(..),
            reason: text(random),
        })),
    }
}

/// An item with every kind of value and a full memory, or a deleted one.
fn any_item(random: &mut fastrand::Rng) -> StoredItem {
    let key = ports::Key::new("partition", "sort");
    let attributes = vec![
        (
            "list".into(),
            Value::List(
                (0..random.usize(..9))
                    .map(|_| Bytes::from(vec![7; random.usize(..50)]))
                    .collect(),
            ),
        ),
        ("number".into(), Value::Integer(random.i64(..))),
        (
            "value".into(),
            Value::Bytes(Bytes::from(vec![1; random.usize(..300)])),
        ),
    ];
    let mut stored = Stored::default();
    for round in 0..random.usize(1..80) {
        let mut update = Update::put(key.clone(), attributes.clone());
        if round % 7 == 6 {
            update = Update::delete(key.clone());
        }
        let update = update.as_operation(OperationId(random.u128(..)), stored.version);
        let Ok(evaluate::Evaluated::Changed(changed)) =
            evaluate::evaluate(&stored, &update, &crate::key_value::LIMITS)
        else {
            unreachable!("an operation with a fresh id and no condition always applies")
        };
        stored = changed;
    }
    let expires_ms = if stored.item.is_none() {
        random.u64(..)
    } else {
        0
    };
    StoredItem { stored, expires_ms }
}

fn tables() -> impl Iterator<Item = Table> {
    (0..=u8::MAX).filter_map(Table::from_byte)
}

#[test]
fn every_record_survives_encoding_within_its_bound() {
    let mut random = fastrand::Rng::with_seed(1);
    for table in tables() {
        for _ in 0..300 {
            let record = any(table, &mut random);
            let mut encoded = Vec::new();
            record.encode(&mut encoded);
            assert!(
                encoded.len() <= record.encoded_bound(),
                "{record:?} takes {}",
                encoded.len()
            );
            assert_eq!(Record::decode(table, Bytes::from(encoded)), Some(record));
        }
    }
}

#[test]
fn bytes_that_are_no_record_decode_to_none_or_to_another_and_never_panic() {
    let mut random = fastrand::Rng::with_seed(2);
    for table in tables() {
        for _ in 0..3000 {
            let mut encoded = Vec::new();
            any(table, &mut random).encode(&mut encoded);
            for _ in 0..random.usize(1..4) {
                match random.u8(..3) {
                    0 if !encoded.is_empty() => {
                        let at = random.usize(..encoded.len());
                        encoded[at] = random.u8(..);
                    }
                    1 => encoded.truncate(random.usize(..=encoded.len())),
                    _ => encoded.push(random.u8(..)),
                }
            }
            let _ = Record::decode(table, Bytes::from(encoded));
        }
    }
}
