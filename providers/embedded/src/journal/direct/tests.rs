//! Frames keep their place and their pages while the buffer moves.

use super::*;
use crate::storage::DiskStorage;

/// A frame of `length` bytes behind `before`.
fn framed(buffer: &mut FrameBuffer, before: &[u8], length: usize, bound: usize) -> Vec<u8> {
    let frame: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
    buffer.begin(before, bound).extend_from_slice(&frame);
    buffer.finish();
    frame
}

#[test]
fn pages_are_aligned_although_the_buffer_had_to_grow() {
    let mut buffer = FrameBuffer::default();
    let before = vec![7; 100];
    for (length, bound, zeros) in [(9, 9, 4087), (5 * PAGE, 1, 60), (1, 1, 300 << 10)] {
        let frame = framed(&mut buffer, &before, length, bound);
        buffer.pad(zeros);
        assert_eq!(buffer.frame(), frame);
        let pages = buffer.pages();
        assert_eq!(pages.as_ptr().addr() % PAGE, 0, "{length} bytes");
        assert_eq!(pages[..100], before);
        assert_eq!(pages[100..100 + length], frame);
        assert_eq!(pages.len(), 100 + length + zeros);
        assert!(pages[100 + length..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn frames_of_any_length_follow_each_other_on_the_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("segment");
    let file = DiskStorage.open(&path).expect("the file opens");
    let bytes = 16 * PAGE_BYTES;
    file.allocate(bytes).expect("the disk has room");
    let mut written = vec![9; 64];
    file.write_at(&written, 0).expect("the file is written");
    let lengths = (64, bytes);
    let Some(mut direct) = DirectFile::open(&DiskStorage, &path, &*file, lengths) else {
        eprintln!("this file system takes no such writes");
        return;
    };
    let mut buffer = FrameBuffer::default();
    for length in [8, 4024, 4096, 1, 9000, 4095, 16] {
        let at = written.len() as u64;
        let frame = framed(&mut buffer, direct.page(), length, length);
        direct.write(&mut buffer, at, at).expect("it is written");
        direct.sync(&buffer).expect("it is synced");
        written.extend_from_slice(&frame);
        let mut read = vec![0; written.len().next_multiple_of(PAGE)];
        file.read_at(&mut read, 0).expect("the file reads");
        assert_eq!(read[..written.len()], written, "{length} bytes at {at}");
        assert!(read[written.len()..].iter().all(|byte| *byte == 0));
    }
}

/// A segment whose length is not whole pages is written through the page cache.
#[test]
fn a_segment_of_odd_length_is_not_written_directly() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("segment");
    let file = DiskStorage.open(&path).expect("the file opens");
    let opened = DirectFile::open(&DiskStorage, &path, &*file, (0, PAGE_BYTES + 8));
    assert!(opened.is_none());
}
