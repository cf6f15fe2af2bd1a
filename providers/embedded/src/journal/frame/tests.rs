//! Frames survive encoding and decoding, and other bytes are refused.

use super::*;

const HEADER: Header = Header {
    sequence: 7,
    incarnation: 3,
    end_position: 99,
};
const SALT: u32 = 0x5a17;

fn group() -> Group {
    let key =
        |table, name: &'static str| RecordKey::new(table, Bytes::from_static(name.as_bytes()));
    vec![
        (
            key(Table::Deduplication, "id"),
            Some(Record::Deduplication(300)),
        ),
        (key(Table::Item, "gone"), None),
        (
            key(Table::Message, ""),
            Some(Record::Message(Bytes::from(vec![9; 5000]))),
        ),
    ]
}

fn encoded() -> Vec<u8> {
    let mut buffer = Vec::new();
    encode(HEADER, &group(), SALT, &mut buffer);
    buffer
}

#[test]
fn a_frame_survives_encoding_and_decoding() {
    let bytes = encoded();
    assert_eq!(bytes.len() % ALIGNMENT, 0);
    assert_eq!(length(&bytes, SALT), Some(bytes.len() as u64));
    let frame = read(&bytes, SALT).expect("it is whole");
    assert_eq!(frame.header, HEADER);
    let mut entries = Group::new();
    decode(frame.payload, |key, record| entries.push((key, record))).expect("it decodes");
    assert_eq!(entries, group());
}

#[test]
fn a_frame_of_another_store_is_refused() {
    assert!(read(&encoded(), SALT + 1).is_none());
}

#[test]
fn a_frame_with_any_byte_changed_is_not_whole() {
    let bytes = encoded();
    let whole =
        HEADER_BYTES + u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
    for at in 0..whole {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(read(&changed, SALT).is_none(), "changed at {at}");
    }
}

#[test]
fn a_payload_of_hostile_bytes_never_panics_and_allocates_no_more_than_it_holds() {
    let mut random = fastrand::Rng::with_seed(3);
    let bytes = encoded();
    let payload = &read(&bytes, SALT).expect("it is whole").payload[..200];
    for _ in 0..20_000 {
        let mut hostile = payload.to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..hostile.len());
            hostile[at] = random.u8(..);
        }
        hostile.truncate(random.usize(..=hostile.len()));
        let _ = decode(&hostile, |_, _| {});
    }
}

#[test]
fn a_later_header_is_found_behind_garbage_and_an_earlier_one_is_not() {
    let mut bytes = vec![0xee; 4096];
    bytes.extend_from_slice(&encoded()[..HEADER_BYTES]);
    let is_found = |sequences, end| is_header_within(&bytes, &sequences, end, SALT);
    assert!(is_found(
        HEADER.sequence..HEADER.sequence + 1,
        HEADER.end_position
    ));
    assert!(!is_found(
        HEADER.sequence + 1..u64::MAX,
        HEADER.end_position
    ));
    assert!(!is_found(0..HEADER.sequence, HEADER.end_position));
    assert!(!is_found(0..u64::MAX, HEADER.end_position + 1));
}
