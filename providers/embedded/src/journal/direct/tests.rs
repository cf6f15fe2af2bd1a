//! Frames keep their place and their pages while the buffer moves.

use std::path::PathBuf;

use super::*;
use crate::storage::{DiskStorage, whole_pages::WholePages};

/// A disk whose files take at most this many pages at once around the page cache.
#[derive(Debug)]
struct Takes(usize);

impl Storage for Takes {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        DiskStorage.open(path)
    }

    fn open_direct(&self, path: &Path) -> Option<Arc<dyn StorageFile>> {
        let file = DiskStorage.open(path).expect("the file opens");
        let pages_max = self.0;
        Some(Arc::new(WholePages { file, pages_max }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        DiskStorage.list(directory)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        DiskStorage.create_directory(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        DiskStorage.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        DiskStorage.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        DiskStorage.sync_directory(directory)
    }
}

/// A segment of 64 pages with 64 bytes of nines.
fn segment(directory: &Path) -> (PathBuf, Arc<dyn StorageFile>) {
    let path = directory.join("segment");
    let file = DiskStorage.open(&path).expect("the file opens");
    file.allocate(64 * PAGE_BYTES).expect("the disk has room");
    file.write_at(&[9; 64], 0).expect("the file is written");
    (path, file)
}

/// A frame of `length` bytes after `before`.
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
        let pages = buffer.pages().to_vec();
        assert_eq!(buffer.pages().as_ptr().addr() % PAGE, 0, "{length} bytes");
        assert_eq!(buffer.frame(), frame);
        assert_eq!(pages[..100], before);
        assert_eq!(pages[100..100 + length], frame);
        assert_eq!(pages.len(), 100 + length + zeros);
        assert!(pages[100 + length..].iter().all(|byte| *byte == 0));
    }
}

/// The segment is opened again before each frame or only at first, as after starts.
#[test]
fn frames_of_any_length_follow_each_other_on_the_disk() {
    for is_reopened in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, file) = segment(directory.path());
        let mut written = vec![9; 64];
        let opened = |end| DirectFile::open(&Takes(99), &path, &*file, end as u64);
        let opened = |end| opened(end).expect("it is written").expect("it is taken");
        let mut direct = opened(written.len());
        let mut buffer = FrameBuffer::default();
        for (length, zeros) in [8, 4024, 4096, 1, 9000, 4095, 16]
            .into_iter()
            .zip([0, 5000].into_iter().cycle())
        {
            if is_reopened {
                direct = opened(written.len());
            }
            let at = written.len() as u64;
            let frame = framed(&mut buffer, direct.last_page(), length, length);
            let until = at + length as u64 + zeros;
            direct.write(&mut buffer, at, until).expect("it is written");
            direct.sync(&buffer).expect("it is synced");
            written.extend_from_slice(&frame);
            let mut read = vec![0; (until as usize).next_multiple_of(PAGE)];
            file.read_at(&mut read, 0).expect("the file reads");
            assert_eq!(read[..written.len()], written, "{length} bytes at {at}");
            assert!(read[written.len()..].iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_file_system_that_refuses_whole_pages_is_written_through_its_page_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, file) = segment(directory.path());
    let opened = DirectFile::open(&Takes(0), &path, &*file, 64);
    assert!(opened.expect("a refusal is no failure").is_none());
}

#[test]
fn the_disk_takes_whole_pages_or_says_that_it_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, file) = segment(directory.path());
    DirectFile::open(&DiskStorage, &path, &*file, 64).expect("a refusal is no failure");
    let mut read = vec![0; 64];
    file.read_at(&mut read, 0).expect("the file reads");
    assert_eq!(read, [9; 64]);
}
