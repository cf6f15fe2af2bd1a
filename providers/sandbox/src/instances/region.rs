//! The region shared with an instance: a file in memory, which this process maps once to read it.
//!
//! Writes go through the file. A mapping would fill each fresh page with zeros first, and cost a
//! fault for it.
//!
//! Invariants
//! - The file is sealed, so that its size never changes. No access to the mapping faults.
//! - Of bytes in the mapping that are shared, this process changes none ([`Claims`]).
//! - **X8** Bytes that the kernel sends from the file arrive as they were when they were sent, even if they are discarded, and
//!   written anew after that, before the receiver takes them.

// Why: a mapping of a file, and slices of it.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    ops::{Deref, Range},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
    path::Path,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use bytes::Bytes;
use nix::{
    fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};
use parking_lot::{Mutex, RwLock};
use ports::{Error, Result, instances::Region};

use super::unavailable;

/// Where the kernel keeps its settings of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";
/// The setting for files in memory, of all sizes and of each.
const SHARED_HUGE_PAGES: &str = "shmem_enabled";
/// Its values with which our files have none: we advise nothing.
const SMALL: [&str; 4] = ["[never]", "[deny]", "[advise]", "[inherit]"];

/// A region.
#[derive(Debug)]
pub(super) struct SharedMemory {
    file: File,
    mapping: Mapping,
    claims: Mutex<Claims>,
    regions: Arc<Regions>,
}

impl SharedMemory {
    /// A region of `bytes` bytes, at least 1, which is one of `regions` as long as it lives.
    pub(super) fn new(bytes: u64, regions: &Arc<Regions>) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"landfast-instance", flags)?);
        file.set_len(bytes)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let mapping = Mapping::new(&file, bytes)?;
        regions.add(&mapping, file.try_clone()?.into());
        Ok(Self {
            file,
            mapping,
            claims: Mutex::default(),
            regions: Arc::clone(regions),
        })
    }

    /// A descriptor of the file, for the instance.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    fn range(&self, offset: u64, bytes: u64) -> Result<Range<u64>> {
        let end = offset.checked_add(bytes);
        let end = end.filter(|end| *end <= self.bytes()).ok_or_else(|| {
            let why = format!("access {bytes} bytes at {offset}: outside of the region");
            Error::invalid(why)
        })?;
        Ok(offset..end)
    }

    /// The right to change bytes. Errors: `Invalid` if some are shared, or lie outside.
    fn change(&self, offset: u64, bytes: u64) -> Result<Claim<&Self>> {
        Claim::new(self, self.range(offset, bytes)?, Use::Change)
    }
}

impl Region for SharedMemory {
    fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.range(offset, buffer.len() as u64)?;
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| unavailable("read a shared region", error))
    }

    fn share(self: Arc<Self>, offset: u64, bytes: usize) -> Result<Bytes> {
        let range = self.range(offset, bytes as u64)?;
        let claim = Claim::new(self, range, Use::Share)?;
        Ok(Bytes::from_owner(claim))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let _claim = self.change(offset, bytes.len() as u64)?;
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| unavailable("write to a shared region", error))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        let _claim = self.change(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let discarded = fallocate(&self.file, flags, offset as i64, bytes as i64);
        discarded.map_err(|error| unavailable("discard part of a shared region", error.into()))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // Before the mapping goes: another one may get its place.
        self.regions.remove(&self.mapping);
    }
}

/// The regions of this process, by where their mappings lie.
#[derive(Debug)]
pub(crate) struct Regions {
    /// By the start: the end, and the file.
    mapped: RwLock<BTreeMap<usize, (usize, Arc<OwnedFd>)>>,
    has_small_pages: bool,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self {
            mapped: RwLock::default(),
            has_small_pages: has_small_pages(Path::new(HUGE_PAGES)),
        }
    }

    fn add(&self, mapping: &Mapping, file: OwnedFd) {
        let start = mapping.start.as_ptr().addr();
        let region = (start + mapping.bytes, Arc::new(file));
        self.mapped.write().insert(start, region);
    }

    fn remove(&self, mapping: &Mapping) {
        self.mapped.write().remove(&mapping.start.as_ptr().addr());
    }

    /// The file of the region that `shared` bytes lie in, and their offset in it. None: they lie in none, or X8 would not hold.
    pub(crate) fn file_of(&self, shared: &[u8]) -> Option<(Arc<OwnedFd>, u64)> {
        let from = shared.as_ptr().addr();
        let mapped = self.mapped.read();
        let (start, (end, file)) = mapped.range(..=from).next_back()?;
        let is_inside = from + shared.len() <= *end && self.has_small_pages;
        is_inside.then(|| (Arc::clone(file), (from - start) as u64))
    }
}

/// Whether files in memory have pages of the smallest size alone.
///
/// X8 rests on it. A discard takes whole pages out of the file, and a packet under way keeps them. Of a larger page that a packet
/// keeps, the kernel overwrites the discarded part with zeros.
fn has_small_pages(settings: &Path) -> bool {
    // A kernel without huge pages has no such setting.
    let is_small = |setting: &Path| {
        fs::read_to_string(setting).map_or(true, |setting| {
            SMALL.iter().any(|small| setting.contains(small))
        })
    };
    let sizes = fs::read_dir(settings).into_iter().flatten().flatten();
    is_small(&settings.join(SHARED_HUGE_PAGES))
        && sizes
            .into_iter()
            .all(|size| is_small(&size.path().join(SHARED_HUGE_PAGES)))
}

/// A whole file, mapped to be read.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, and no thread writes through it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`.
    fn new(file: &File, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let (anywhere, kind) = (ptr::null_mut(), libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: the kernel picks the place, so that no memory of this process is replaced. The
        // descriptor is open.
        let start =
            unsafe { libc::mmap(anywhere, bytes, libc::PROT_READ, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping, and each slice of it borrows from here.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// How this process uses a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Share,
    Change,
}

/// The ranges in use. None is shared and changed at a time.
#[derive(Debug, Default)]
struct Claims {
    shares: Ranges,
    changes: Ranges,
}

impl Claims {
    fn of(&mut self, with: Use) -> (&mut Ranges, &Ranges) {
        match with {
            Use::Share => (&mut self.shares, &self.changes),
            Use::Change => (&mut self.changes, &self.shares),
        }
    }
}

/// Ranges that may overlap.
#[derive(Debug, Default)]
struct Ranges {
    /// How often each is there, by its start and end.
    counts: BTreeMap<(u64, u64), usize>,
    /// The length of the longest that ever was.
    longest: u64,
}

impl Ranges {
    fn overlap(&self, range: &Range<u64>) -> bool {
        let first = range.start.saturating_sub(self.longest);
        let mut before_end = self.counts.range((first, 0)..(range.end, 0));
        before_end.any(|(&(_, end), _)| end > range.start)
    }

    fn add(&mut self, range: &Range<u64>) {
        self.longest = self.longest.max(range.end - range.start);
        *self.counts.entry((range.start, range.end)).or_default() += 1;
    }

    fn remove(&mut self, range: &Range<u64>) {
        let key = (range.start, range.end);
        if let Some(count) = self.counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
            }
        }
    }
}

/// A range in use, until it is dropped.
struct Claim<R: Deref<Target = SharedMemory>> {
    region: R,
    range: Range<u64>,
    with: Use,
}

impl<R: Deref<Target = SharedMemory>> Claim<R> {
    /// Errors: `Invalid` if the opposite use of some bytes is under way.
    fn new(region: R, range: Range<u64>, with: Use) -> Result<Self> {
        {
            let mut claims = region.claims.lock();
            let (own, opposite) = claims.of(with);
            if opposite.overlap(&range) {
                let why = match with {
                    Use::Share => "share bytes of a region: some are being changed",
                    Use::Change => "change bytes of a region: some are shared",
                };
                return Err(Error::invalid(why));
            }
            own.add(&range);
        }
        Ok(Self {
            region,
            range,
            with,
        })
    }
}

impl<R: Deref<Target = SharedMemory>> Drop for Claim<R> {
    fn drop(&mut self) {
        let mut claims = self.region.claims.lock();
        claims.of(self.with).0.remove(&self.range);
    }
}

impl AsRef<[u8]> for Claim<Arc<SharedMemory>> {
    /// The bytes of a shared range.
    fn as_ref(&self) -> &[u8] {
        assert_eq!(self.with, Use::Share, "others may change these bytes");
        let bytes = (self.range.end - self.range.start) as usize;
        // SAFETY: the range lies in the mapping, which lives as long as the region, which this claim
        // keeps. Seals keep the file as long as the mapping, so that reads do not fault. While this
        // claim lives, no write or discard of this process changes these bytes. The instance could.
        // The port leaves that to the caller, who picks the program. If a program does it, readers
        // see other values, and each value is a valid byte.
        unsafe {
            let start = self.region.mapping.start.add(self.range.start as usize);
            slice::from_raw_parts(start.as_ptr(), bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        net::{TcpListener, TcpStream},
        num::NonZeroUsize,
        os::unix::fs::MetadataExt as _,
    };

    use ports::ErrorKind;
    use socket2::SockRef;

    use super::*;

    const MEGABYTE: u64 = 1 << 20;

    fn region() -> Arc<SharedMemory> {
        Arc::new(SharedMemory::new(4 * MEGABYTE, &Arc::new(Regions::new())).expect("made"))
    }

    /// X6.
    #[test]
    fn the_pages_of_discarded_bytes_go_back_to_the_system() {
        let region = region();
        let held = || region.file.metadata().expect("read").blocks() * 512;
        let bytes = vec![1; 3 * MEGABYTE as usize];
        region.write(0, &bytes).expect("inside");
        let before = held();
        assert!(before >= 3 * MEGABYTE, "{before}");
        let shared = Arc::clone(&region).share(0, bytes.len()).expect("inside");
        assert_eq!(shared, bytes);
        drop(shared);
        region.discard(MEGABYTE, MEGABYTE).expect("inside");
        assert_eq!(held(), before - MEGABYTE);
    }

    /// X7.
    #[test]
    fn shared_bytes_are_not_changed_until_the_last_clone_is_dropped() {
        let region = region();
        region.write(100, b"content").expect("inside");
        let long = Arc::clone(&region).share(0, 2 << 20).expect("inside");
        let short = Arc::clone(&region).share(100, 7).expect("inside");
        let part = short.slice(3..);
        drop(short);
        let refused = |offset, bytes| {
            let written = region.write(offset, &vec![0; bytes]).map_err(|e| e.kind());
            let discarded = region.discard(offset, bytes as u64).map_err(|e| e.kind());
            assert_eq!(written, discarded, "{offset} {bytes}");
            written == Err(ErrorKind::Invalid)
        };
        assert!(refused(MEGABYTE, 1) && refused((2 << 20) - 1, 2));
        assert!(!refused(2 << 20, 1), "after both");
        drop(long);
        assert!(!refused(MEGABYTE, 1) && !refused(99, 1) && !refused(107, 1));
        assert!(refused(99, 2) && refused(106, 1) && refused(0, 4096));
        assert_eq!(part, &b"tent"[..]);
        drop(part);
        assert!(!refused(0, 4096));
    }

    /// X7.
    #[test]
    fn bytes_that_are_being_changed_are_not_shared() {
        let region = region();
        let change = region.change(10, 10).expect("none is shared");
        assert!(Arc::clone(&region).share(19, 5).is_err());
        assert!(Arc::clone(&region).share(20, 5).is_ok());
        region.write(12, b"x").expect("two changes may overlap");
        drop(change);
        assert!(Arc::clone(&region).share(19, 5).is_ok());
        assert!(region.share(4 * MEGABYTE - 4, 5).is_err(), "outside");
    }

    /// X8.
    #[test]
    fn bytes_that_were_sent_stay_when_their_place_is_used_again() {
        let region = region();
        let bytes = 64 << 10;
        region.write(4096, &vec![1; bytes]).expect("inside");
        let shared = Arc::clone(&region).share(4096, bytes).expect("inside");
        let found = region.regions.file_of(&shared[100..]).expect("it is known");
        assert_eq!(found.1, 4196);
        assert!(region.regions.file_of(&[0; 10]).is_none());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let sender = TcpStream::connect(address).expect("connected");
        let (mut receiver, _) = listener.accept().expect("accepted");
        let length = NonZeroUsize::new(bytes);
        let sent = SockRef::from(&sender).sendfile(&*found.0, 4096, length);
        let sent = sent.expect("sent");
        drop((sender, shared));
        region.discard(4096, bytes as u64).expect("none is shared");
        region.write(4096, &vec![2; bytes]).expect("inside");
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).expect("all of it");
        assert_eq!(received, vec![1; sent]);
    }

    /// X8.
    #[test]
    fn huge_pages_of_files_in_memory_are_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(has_small_pages(folder.path()), "a kernel without them");
        let all = folder.path().join(SHARED_HUGE_PAGES);
        fs::write(&all, "always within_size advise [never] deny force").expect("written");
        let size = folder.path().join("hugepages-64kB");
        fs::create_dir(&size).expect("made");
        let size = size.join(SHARED_HUGE_PAGES);
        fs::write(&size, "always [inherit] within_size advise never").expect("written");
        assert!(has_small_pages(folder.path()));
        fs::write(&size, "[always] inherit within_size advise never").expect("written");
        assert!(!has_small_pages(folder.path()));
        fs::write(&size, "always inherit within_size advise [never]").expect("written");
        fs::write(&all, "always [within_size] advise never deny force").expect("written");
        assert!(!has_small_pages(folder.path()));
    }

    /// X7.
    #[test]
    fn shared_bytes_outlive_the_region() {
        let region = region();
        region.write(5000, b"content").expect("inside");
        let shared = Arc::clone(&region).share(5000, 7).expect("inside");
        drop(region);
        assert_eq!(shared, &b"content"[..]);
    }
}
