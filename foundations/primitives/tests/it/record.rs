//! S17: records and their versions.

use ports::ErrorKind;
use primitives::RecordFormat;

const FORMAT: RecordFormat = RecordFormat::new(3);

/// S17.
#[test]
fn a_record_decodes_to_the_value_that_was_encoded() {
    let record = (7_u64, "text".to_owned(), vec![1_u8; 200]);
    let bytes = FORMAT.encode(&record, 8);
    assert_eq!(bytes[0], 3);
    let decoded: (u64, String, Vec<u8>) = FORMAT.decode(&bytes, "a record").expect("it decodes");
    assert_eq!(decoded, record);
    let long = FORMAT.encode_after(b"head", &record, 300);
    assert_eq!(long, [b"head", &bytes[..]].concat());
}

/// S17.
#[test]
fn other_versions_and_damaged_bytes_are_corrupt() {
    for (bytes, message) in [
        (&b""[..], "decode a record from nothing: corrupt data"),
        (
            b"\x02\x01",
            "decode a record of record version 2, this build reads 3: corrupt data",
        ),
        (b"\x03", "decode a record: corrupt data"),
    ] {
        let error = FORMAT
            .decode::<u64>(bytes, "a record")
            .expect_err("it does not decode");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().starts_with(message), "{error}");
    }
}
