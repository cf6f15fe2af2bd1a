//! Entry points for fuzzing: the decoders of rows, and the requests of a daemon to an instance.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    fragment::{Fragment, Segment, SegmentId},
    function::{Epoch, Function, Record, Reply, Request},
    storage::rows::{BucketRow, FORMAT, ObjectRow, PartRow, PendingRow, ResidentRow, UploadRow},
};

/// Decodes bytes as each kind of row. A row that is accepted survives another round of encoding, and
/// has positions within its fragments. Returns the number of kinds that are accepted.
pub fn rows(bytes: &[u8]) -> usize {
    let objects = row(bytes, |row: &ObjectRow| row.place.segments.clone());
    let parts = row(bytes, |row: &PartRow| row.place.segments.clone());
    let pending = row(bytes, |row: &PendingRow| row.segments.clone());
    let resident = row(bytes, |row: &ResidentRow| {
        vec![Segment {
            id: SegmentId(0),
            bytes: row.bytes,
            shape: row.shape,
        }]
    });
    let others = row(bytes, |_: &UploadRow| Vec::new()) + row(bytes, |_: &BucketRow| Vec::new());
    objects + parts + pending + resident + others
}

fn row<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    bytes: &[u8],
    segments: fn(&T) -> Vec<Segment>,
) -> usize {
    let Ok(row) = FORMAT.decode::<T>(bytes, "a row") else {
        return 0;
    };
    for segment in segments(&row) {
        let bytes: u64 = segment.fragments().map(positions).sum();
        assert_eq!(bytes, segment.bytes);
    }
    let again = FORMAT.decode::<T>(&FORMAT.encode(&row, 0), "a row");
    assert_eq!(again.expect("an encoded row decodes"), row);
    1
}

/// Computes the positions in a fragment. Returns the bytes of its content.
fn positions(fragment: Fragment) -> u64 {
    let (first, last) = (fragment.stripe(0), fragment.stripe(fragment.stripes() - 1));
    let total = fragment.shape.total();
    assert_eq!(last.in_object(0..total).end, fragment.stored_bytes());
    assert_eq!(last.content.end, fragment.bytes);
    for stripe in [first, last] {
        let units = stripe.units_of(&stripe.content);
        assert!(!units.is_empty() && units.end <= total);
    }
    fragment.bytes
}

/// Has an instance answer messages one after the other. Those that are no request have no effect.
pub fn requests(messages: &[Vec<u8>]) {
    const EPOCH: Epoch = Epoch(7);
    let function = Function::new(EPOCH, 1 << 20);
    for message in messages {
        let _ = Reply::decode(message);
        let Ok(request) = Request::decode(message) else {
            continue;
        };
        let fitting = Request {
            epoch: EPOCH,
            record: Record::default(),
            ..request.clone()
        };
        for request in [request, fitting] {
            let reply = function.answer(&request);
            let counts = reply.counts;
            assert!(counts.storage_bytes + counts.cache_bytes <= counts.capacity_bytes);
            assert_eq!(Reply::decode(&reply.encode()).expect("whole"), reply);
        }
    }
}

#[cfg(test)]
mod tests;
