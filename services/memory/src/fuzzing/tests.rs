//! The same from seeds, everywhere.

use fastrand::Rng;
use ports::{ErrorKind, Timestamp};

use super::*;
use crate::{
    fragment::Shape,
    function::{Call, ChunkId, ChunkName, Partition},
    model::{Attributes, SEGMENT_BYTES_MAX, VersionId},
    storage::rows::{BucketId, ETag, Place},
};

const SHAPE: Shape = Shape {
    data: 10,
    parity: 2,
    unit_bytes: 128 << 10,
};

fn segment(bytes: u64, shape: Shape) -> Segment {
    Segment {
        id: SegmentId(3),
        bytes,
        shape,
    }
}

fn pending(segment: Segment) -> Vec<u8> {
    let segments = vec![segment];
    FORMAT.encode(&PendingRow { segments }, 0).to_vec()
}

fn corpus() -> Vec<Vec<u8>> {
    let (modified, md5) = (Timestamp(1), [7; 16]);
    let place = Place {
        segments: vec![segment(1 << 30, SHAPE); 2],
        rest: vec![1; 20].into(),
    };
    let object = ObjectRow {
        version: VersionId(9),
        modified,
        etag: ETag {
            md5,
            parts: Some(3),
        },
        attributes: Attributes::default(),
        place: place.clone(),
    };
    let part = PartRow {
        modified,
        md5,
        checksums: [("x-amz-checksum-crc32".to_owned(), "AAAAAA==".to_owned())].into(),
        place,
    };
    let resident = ResidentRow {
        bytes: 1 << 20,
        shape: SHAPE,
        partition: Partition::Cache,
        since: modified,
    };
    let upload = UploadRow {
        key: "key".to_owned(),
        begun: modified,
        attributes: Attributes::default(),
        ended: Some(vec![1, 2]),
    };
    let bucket = BucketRow {
        id: BucketId(1),
        created: modified,
        is_being_deleted: true,
    };
    vec![
        pending(segment(SEGMENT_BYTES_MAX, SHAPE)),
        FORMAT.encode(&object, 0).to_vec(),
        FORMAT.encode(&part, 0).to_vec(),
        FORMAT.encode(&resident, 0).to_vec(),
        FORMAT.encode(&upload, 0).to_vec(),
        FORMAT.encode(&bucket, 0).to_vec(),
    ]
}

/// Some bytes are changed, cut or noise.
fn mutated(bytes: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.u8(0..4) {
        let at = random.usize(1..bytes.len());
        match random.u8(0..4) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] = *random.choice([0, 1, 127, 128, 255].iter()).expect("some"),
            2 => bytes.insert(at, 255),
            _ => drop(bytes.drain(at.max(2)..)),
        }
    }
    bytes
}

#[test]
fn hostile_rows_are_refused_or_can_be_used() {
    let (corpus, mut random) = (corpus(), Rng::with_seed(1));
    assert!(corpus.iter().all(|row| rows(row) > 0));
    let inputs = 100_000;
    let accepted = (0..inputs).filter(|_| {
        let row = &corpus[random.usize(0..corpus.len())];
        rows(&mutated(row, &mut random)) > 0
    });
    assert!((inputs / 10..inputs).contains(&accepted.count()));
}

#[test]
fn a_row_without_a_usable_erasure_code_is_refused() {
    let shape = |data, parity, unit_bytes| Shape {
        data,
        parity,
        unit_bytes,
    };
    assert!(rows(&pending(segment(1, shape(32, 8, 16 << 20)))) > 0);
    for (bytes, shape) in [
        (1, shape(0, 2, 1 << 10)),
        (1, shape(10, 2, 0)),
        (1, shape(33, 2, 1 << 10)),
        (1, shape(10, 9, 1 << 10)),
        (1, shape(10, 2, (16 << 20) + 1)),
        (SEGMENT_BYTES_MAX + 1, SHAPE),
        (u64::MAX, SHAPE),
    ] {
        let row = pending(segment(bytes, shape));
        rows(&row);
        let error = FORMAT.decode::<PendingRow>(&row, "pending segments");
        let error = error.expect_err("refused");
        let named = error.to_string().contains("decode pending segments");
        assert!(named && error.kind() == ErrorKind::Corrupt, "{error}");
    }
    for bytes in [0, SHAPE.fragment_bytes() + 1] {
        let row = ResidentRow {
            bytes,
            shape: SHAPE,
            partition: Partition::Storage,
            since: Timestamp(1),
        };
        let row = FORMAT.encode(&row, 0);
        assert!(FORMAT.decode::<ResidentRow>(&row, "a fragment").is_err());
    }
}

#[test]
fn an_instance_takes_hostile_requests_and_keeps_its_bounds() {
    let mut random = Rng::with_seed(2);
    for _ in 0..2_000 {
        let messages: Vec<_> = (0..20)
            .map(|_| mutated(&request(&mut random).encode(), &mut random))
            .collect();
        requests(&messages);
    }
}

fn request(random: &mut Rng) -> Request {
    let id = ChunkId(random.u64(0..4));
    let call = match random.u8(0..4) {
        0 | 1 => Call::Reserve {
            id,
            name: ChunkName {
                segment: random.u128(..),
                fragment: 1,
                index: 2,
            },
            bytes: [0, 1, 1 << 19, 1 << 20, u64::MAX][random.usize(0..5)],
            partition: [Partition::Storage, Partition::Cache][random.usize(0..2)],
        },
        2 => Call::Seal(id),
        _ => Call::Remove(vec![id]),
    };
    Request {
        number: 1,
        epoch: Epoch(7),
        record: Record::default(),
        call,
    }
}
