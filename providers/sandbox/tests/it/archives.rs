//! The cost of an archive in memory.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use sandbox::fuzzing::unpack;
use tar::{EntryType, Header};

use crate::allocations::peak_of;

/// More than the decompressor and the tar reader need.
const PEAK_BYTES_MAX: usize = 2 << 20;

/// An archive that begins with an entry of this kind and this many zeros.
fn zeros(kind: EntryType, bytes: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_path("zeros").expect("short");
    header.set_mode(0o644);
    header.set_size(bytes);
    header.set_cksum();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(header.as_bytes()).expect("written");
    std::io::copy(
        &mut std::io::Read::take(std::io::repeat(0), bytes + 1024),
        &mut encoder,
    )
    .expect("written");
    encoder.finish().expect("finished")
}

#[test]
fn no_entry_is_read_into_memory_however_long_it_is() {
    let bytes = 200 << 20;
    for (kind, is_taken) in [
        (EntryType::Regular, true),
        (EntryType::XGlobalHeader, true),
        (EntryType::GNULongName, false),
        (EntryType::GNULongLink, false),
        (EntryType::XHeader, false),
    ] {
        let content = zeros(kind, bytes);
        assert!(
            content.len() < 2 << 20,
            "it is a bomb: {} bytes",
            content.len()
        );
        let home = tempfile::tempdir().expect("a directory");
        let (unpacked, peak) = peak_of(|| unpack(&content, home.path()));
        assert_eq!(unpacked.is_ok(), is_taken, "{kind:?}: {unpacked:?}");
        assert!(peak < PEAK_BYTES_MAX, "{kind:?}: {peak} bytes of memory");
    }
}

#[test]
fn a_list_of_holes_is_not_read() {
    // The header of a sparse file announces more headers of holes, and they never end.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("sparse").expect("short");
    header.set_size(0);
    header.as_gnu_mut().expect("it is").set_is_extended(true);
    header.set_cksum();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(header.as_bytes()).expect("written");
    let mut more = [0_u8; 512];
    // One hole without length, and the announcement of more.
    more[..12].copy_from_slice(b"00000000000\0");
    more[12..24].copy_from_slice(b"00000000000\0");
    more[504] = 1;
    for _ in 0..200_000 {
        encoder.write_all(&more).expect("written");
    }
    let content = encoder.finish().expect("finished");
    let home = tempfile::tempdir().expect("a directory");
    let (unpacked, peak) = peak_of(|| unpack(&content, home.path()));
    assert!(
        unpacked
            .expect_err("it is refused")
            .to_string()
            .contains("is neither")
    );
    assert!(peak < PEAK_BYTES_MAX, "{peak} bytes of memory");
}
