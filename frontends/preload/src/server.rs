//! The local server: one thread answers the requests of all processes that loaded the library,
//! another hands the shared memory to new ones.
//!
//! Requests are answered one after the other, because they share a transaction. The server keeps
//! no descriptors. A client opens an empty file for each open inode. The kernel's description of
//! it holds the position and the flags, and dup and fork share it. The same file carries
//! the locks of `flock` and `fcntl`, so locks exclude the processes of this server, and no others.
//!
//! Invariants
//! - A request is answered once, in the order of the tickets.
//! - A reply in a buffer is complete before its state says so.
//! - The folder of the server exists until the server ends, and then is removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, DirBuilder},
    io::{self, IoSlice},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::DirBuilderExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use files::{Errno, FileSystem, Ino, Listing, Result, Transaction, model::Space};
use futures_util::FutureExt as _;
use nix::{
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{ControlMessage, MsgFlags, sendmsg},
        stat::Mode,
    },
};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::{
    cache::{CACHE_BYTES, Cache},
    calls::{self, Answer, encoded},
    environment,
    shared::{self, Buffers, Region, Slot, Word, state},
    wire::{Request, VERSION, set},
};

/// How long the server spins for the next request before it waits for it, if a processor is idle.
const SPIN: Duration = Duration::from_micros(16);
/// How often a waiting server looks whether it shall end.
const WAIT: Duration = Duration::from_millis(100);
/// The most listings of directories that are continued. Beyond them the oldest one ends.
const LISTINGS_MAX: usize = 64;
/// The entries of one reply: with names of 255 bytes they fill half a buffer.
const ENTRIES: usize = 4_096;
/// The first byte of the range of a file that clients lock while it is open. Positions that a
/// program can lock end here.
pub const OPEN_LOCK: i64 = 1 << 62;
/// The folder of the files that stand for open inodes, in the server's folder.
pub const OPEN_FOLDER: &str = "i";
/// The folder that mirrors working directories, in the server's folder.
pub const CWD_FOLDER: &str = "cwd";

/// The transaction or the file system that requests apply to.
#[derive(Debug)]
pub enum Backing {
    /// All calls together, and [`Server::finish`] returns it for its commit.
    Transaction(Box<Transaction>),
    /// Each call is a transaction of its own.
    FileSystem(Arc<FileSystem>),
}

/// How a server is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The absolute path at which programs see the volume, without `.`, `..` or a slash at its end.
    pub at: PathBuf,
    /// The shared buffers.
    pub buffers: Buffers,
    /// The library; `None`: it is searched.
    pub library: Option<PathBuf>,
}

/// The reason why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The path of the volume is unusable.
    #[error("{0} is no absolute, normalised path below the root: name one like /mnt/demo")]
    At(PathBuf),
    /// The buffers are unusable.
    #[error("the shared buffers are out of range: 1 to 64, of at least 1,064 KiB each")]
    Buffers,
    /// The library is missing.
    #[error("{0}")]
    Library(#[source] io::Error),
    /// The system refused memory, a socket, a folder or a thread.
    #[error("the system refused what a preload server needs: {0}")]
    System(#[from] io::Error),
}

/// A write that failed after its call had returned. `fsync` reports it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a write failed with error number {errno} after its call had returned: run it again")]
pub struct LostWrite {
    /// Linux's number of the error.
    pub errno: i32,
}

/// A running server. Dropping it ends it, and forgets its transaction.
#[derive(Debug)]
pub struct Server {
    folder: TempDir,
    variables: Vec<(OsString, OsString)>,
    stop: Arc<Stop>,
    answering: Option<JoinHandle<(Backing, Option<LostWrite>)>>,
    handing_out: Option<JoinHandle<()>>,
}

/// Ends both threads.
#[derive(Debug)]
struct Stop {
    is_set: AtomicBool,
    region: Region,
}

impl Backing {
    /// Tells the clients whether to report that they closed a file.
    fn tell(&self, region: Region) {
        let wants_closed = matches!(self, Self::FileSystem(_));
        let word = region.word(Word::WantsClosed);
        word.store(wants_closed.into(), Ordering::Relaxed);
        let word = region.word(Word::MayPost);
        word.store((!wants_closed).into(), Ordering::Relaxed);
    }
}

impl Server {
    /// Starts a server. Its calls of the volume run on `runtime`, from a thread outside of it.
    pub fn start(backing: Backing, options: &Options, runtime: Handle) -> Result<Self, StartError> {
        if !is_normal(&options.at) {
            return Err(StartError::At(options.at.clone()));
        }
        let library = match &options.library {
            Some(library) => library.clone(),
            None => environment::find_library().map_err(StartError::Library)?,
        };
        let region_bytes = options.buffers.region_bytes();
        let region_bytes = region_bytes.ok_or(StartError::Buffers)?;
        let folder = tempfile::Builder::new()
            .prefix("landfast-preload-")
            .tempdir()?;
        for name in [OPEN_FOLDER, CWD_FOLDER] {
            DirBuilder::new()
                .mode(0o700)
                .create(folder.path().join(name))?;
        }
        let memory = Memory::new(region_bytes)?;
        let region = Region::create(memory.region.as_fd(), options.buffers)?;
        let cache = Cache::create(memory.cache.as_fd())?;
        memory.seal()?;
        backing.tell(region);
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket)?;
        let stop = Arc::new(Stop {
            is_set: AtomicBool::new(false),
            region,
        });
        let answers = Answers {
            backing,
            region,
            cache,
            cached: BTreeSet::new(),
            lost: None,
            runtime,
            at: Bytes::copy_from_slice(options.at.as_os_str().as_bytes()),
            folder: folder.path().to_owned(),
            listings: BTreeMap::new(),
            listing: 0,
            open: BTreeMap::new(),
        };
        let mut server = Self {
            variables: environment::variables(&library, &socket, &options.at),
            folder,
            stop: stop.clone(),
            answering: None,
            handing_out: None,
        };
        let builder = thread::Builder::new().name("preload-memory".into());
        let ends = stop.clone();
        let handing_out = builder.spawn(move || {
            hand_out(&listener, &memory, &ends);
        })?;
        server.handing_out = Some(handing_out);
        let builder = thread::Builder::new().name("preload-answers".into());
        server.answering = Some(builder.spawn(move || answers.serve(&stop))?);
        Ok(server)
    }

    /// The variables that a program needs in its environment to see the volume.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    /// Ends the server, after it has answered all requests that were posted. Later calls of
    /// programs that still run fail with `EIO`. Returns the transaction, if it had one. Errors: a
    /// write failed whose program did not wait for it, so nothing may be committed.
    pub fn finish(mut self) -> Result<Option<Transaction>, LostWrite> {
        match self.end() {
            Some((_, Some(lost))) => Err(lost),
            Some((Backing::Transaction(transaction), None)) => Ok(Some(*transaction)),
            Some((Backing::FileSystem(_), None)) | None => Ok(None),
        }
    }

    fn end(&mut self) -> Option<(Backing, Option<LostWrite>)> {
        self.stop.is_set.store(true, Ordering::Release);
        shared::futex_wake(self.stop.region.word(Word::Doorbell));
        let answering = self.answering.take()?;
        let backing = answering.join();
        // A connection ends the wait for one.
        drop(UnixStream::connect(self.folder.path().join("socket")));
        if let Some(handing_out) = self.handing_out.take() {
            drop(handing_out.join());
        }
        backing.ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The shared memory.
#[derive(Debug)]
struct Memory {
    region: OwnedFd,
    region_bytes: usize,
    cache: OwnedFd,
}

impl Memory {
    fn new(region_bytes: usize) -> io::Result<Self> {
        let file = |bytes: usize| {
            let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
            let file = memfd_create(c"landfast-preload", flags)?;
            nix::unistd::ftruncate(&file, bytes as i64)?;
            Ok::<_, io::Error>(file)
        };
        Ok(Self {
            region: file(region_bytes)?,
            region_bytes,
            cache: file(CACHE_BYTES)?,
        })
    }

    /// From here on no process maps the cache for writing, and no file changes its length.
    fn seal(&self) -> io::Result<()> {
        let lengths = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&self.region, FcntlArg::F_ADD_SEALS(lengths))?;
        let future_write = SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE);
        fcntl(&self.cache, FcntlArg::F_ADD_SEALS(lengths | future_write))?;
        Ok(())
    }
}

/// Sends the shared memory to each process that connects.
fn hand_out(listener: &UnixListener, memory: &Memory, stop: &Stop) {
    for stream in listener.incoming() {
        if stop.is_set.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: it passes.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let mut greeting = VERSION.to_le_bytes().to_vec();
        greeting.extend((memory.region_bytes as u64).to_le_bytes());
        let descriptors = [memory.region.as_raw_fd(), memory.cache.as_raw_fd()];
        let sent = sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(&greeting)],
            &[ControlMessage::ScmRights(&descriptors)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        if let Err(error) = sent {
            tracing::debug!(%error, "a program did not take the shared memory");
        }
    }
}

fn is_normal(at: &Path) -> bool {
    let bytes = at.as_os_str().as_bytes();
    let names = bytes
        .strip_prefix(b"/")
        .map(|rest| rest.split(|byte| *byte == b'/'));
    names.is_some_and(|mut names| names.all(|name| !matches!(name, b"" | b"." | b"..")))
        && bytes.len() < 1_024
}

/// A request in a buffer.
#[derive(Debug, Clone, Copy)]
struct Posted {
    ticket: u32,
    index: u32,
    /// Its client does not wait for a reply.
    is_alone: bool,
}

/// The order of tickets, which begin again after the last one.
fn compare(one: u32, other: u32) -> std::cmp::Ordering {
    one.wrapping_sub(other).cast_signed().cmp(&0)
}

/// The thread that answers.
struct Answers {
    backing: Backing,
    region: Region,
    cache: Cache,
    /// The inodes that may have bytes in the cache.
    cached: BTreeSet<u64>,
    /// The first write that failed without a client that waited for it.
    lost: Option<LostWrite>,
    runtime: Handle,
    at: Bytes,
    folder: PathBuf,
    listings: BTreeMap<u64, Listing>,
    listing: u64,
    /// Inodes that are held because a client opened them.
    open: BTreeMap<Ino, u64>,
}

impl Answers {
    fn serve(mut self, stop: &Stop) -> (Backing, Option<LostWrite>) {
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut last = Instant::now();
        loop {
            let doorbell = self.region.word(Word::Doorbell).load(Ordering::Acquire);
            if self.answer_posted() {
                last = Instant::now();
                continue;
            }
            if stop.is_set.load(Ordering::Acquire) {
                self.region.word(Word::HasEnded).store(1, Ordering::Release);
                return (self.backing, self.lost);
            }
            let may_spin = self.region.word(Word::MaySpin);
            if may_spin.load(Ordering::Relaxed) != 0 && last.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let waiting = self.region.word(Word::IsWaiting);
            waiting.store(1, Ordering::SeqCst);
            shared::futex_wait(self.region.word(Word::Doorbell), doorbell, WAIT);
            waiting.store(0, Ordering::SeqCst);
            if last.elapsed() > WAIT {
                may_spin.store(is_idle(processors).into(), Ordering::Relaxed);
            }
            last = Instant::now();
        }
    }

    /// Answers the posted requests, in the order of their tickets. Returns whether there were any.
    fn answer_posted(&mut self) -> bool {
        let last = self
            .posted()
            .into_iter()
            .map(|posted| posted.ticket)
            .max_by(|one, other| compare(*one, *other));
        let Some(last) = last else {
            return false;
        };
        // A request with an earlier ticket may have come to a buffer that was looked at before. One
        // with a later ticket may follow one that was not seen, so it waits.
        let mut posted = self.posted();
        posted.retain(|posted| compare(posted.ticket, last).is_le());
        posted.sort_unstable_by(|one, other| compare(one.ticket, other.ticket));
        for Posted {
            index, is_alone, ..
        } in posted
        {
            let len = self
                .region
                .slot(index, Slot::RequestBytes)
                .load(Ordering::Relaxed);
            let message = Bytes::from(self.region.copy_out(index, len));
            let answer = self.answer(&message);
            if is_alone {
                if answer.status != 0 {
                    let errno = answer.status;
                    self.lost.get_or_insert(LostWrite { errno });
                }
                let state = self.region.slot(index, Slot::State);
                state.store(state::FREE, Ordering::Release);
            } else {
                self.reply(index, &answer);
            }
            self.region.word(Word::Done).fetch_add(1, Ordering::Release);
        }
        true
    }

    fn posted(&self) -> Vec<Posted> {
        let slots = 0..self.region.buffers().count;
        let posted = slots.filter_map(|index| {
            let state = self.region.slot(index, Slot::State).load(Ordering::Acquire);
            matches!(state, state::POSTED | state::POSTED_ALONE).then(|| Posted {
                ticket: self
                    .region
                    .slot(index, Slot::Ticket)
                    .load(Ordering::Relaxed),
                index,
                is_alone: state == state::POSTED_ALONE,
            })
        });
        posted.collect()
    }

    fn reply(&self, index: u32, answer: &Answer) {
        let status = answer.status.to_le_bytes();
        let len = self.region.copy_in(index, &[&status, &answer.payload]);
        let bytes = self.region.slot(index, Slot::ReplyBytes);
        bytes.store(len, Ordering::Relaxed);
        let state = self.region.slot(index, Slot::State);
        state.store(state::ANSWERED, Ordering::Release);
        shared::futex_wake(state);
    }

    fn answer(&mut self, message: &Bytes) -> Answer {
        let answered = match Request::decode(message) {
            None => Ok(Answer::refused(libc::EPROTO)),
            Some(Request::Closed { ino }) => self.closed(Ino(ino)),
            Some(Request::List {
                ino,
                listing,
                cookie,
            }) => self.list(Ino(ino), listing, cookie),
            Some(Request::Sync {}) => self.sync(),
            Some(Request::Space {}) => self.space(),
            Some(request) => {
                self.before(&request);
                self.call(message)
                    .inspect(|answer| self.after(&request, answer))
            }
        };
        answered.unwrap_or_else(|errno| Answer::refused(errno as i32))
    }

    /// Forgets the bytes that a call may take away.
    fn before(&mut self, request: &Request<'_>) {
        let shortens = match request {
            Request::Change { changes, .. } => changes.set & set::SIZE != 0,
            Request::Open { flags, .. } => flags & libc::O_TRUNC.cast_unsigned() != 0,
            Request::Allocate { .. } => true,
            _ => false,
        };
        if shortens {
            // The inode behind a path is not known yet, and calls that shorten are rare.
            for ino in std::mem::take(&mut self.cached) {
                self.cache.forget(ino);
            }
        }
    }

    /// Notes the inode or the bytes that a successful call has opened, read or written.
    fn after(&mut self, request: &Request<'_>, answer: &Answer) {
        if answer.status != 0 {
            if let Request::Write { ino, .. } = request {
                // It may have written some of the bytes.
                self.cache.forget(*ino);
            }
            return;
        }
        // Without a transaction, another client may change the bytes at any time.
        let has_snapshot = matches!(self.backing, Backing::Transaction(_));
        match request {
            Request::Open { .. } => self.opened(answer),
            Request::Read { ino, offset, .. } if has_snapshot => {
                self.cached.insert(*ino);
                self.cache.note(*ino, *offset, &answer.payload);
            }
            Request::Write { ino, offset, data } if has_snapshot => {
                self.cached.insert(*ino);
                self.cache.note(*ino, *offset, data);
            }
            _ => {}
        }
    }

    fn call(&mut self, message: &Bytes) -> Result<Answer> {
        match &mut self.backing {
            Backing::Transaction(transaction) => {
                let answered = calls::answer(transaction, &self.at, message);
                self.runtime.block_on(answered)
            }
            Backing::FileSystem(files) => {
                let (at, message) = (self.at.clone(), message.clone());
                let answered = files.transact(move |transaction| {
                    let (at, message) = (at.clone(), message.clone());
                    async move { calls::answer(transaction, &at, &message).await }.boxed()
                });
                self.runtime.block_on(answered)
            }
        }
    }

    fn list(&mut self, ino: Ino, number: u64, cookie: u64) -> Result<Answer> {
        let (number, mut listing) = if cookie == 0 {
            self.listing += 1;
            (self.listing, Listing::new(ino))
        } else {
            let listing = self.listings.remove(&number).ok_or(Errno::EIO)?;
            (number, listing)
        };
        let entries = match &mut self.backing {
            Backing::Transaction(transaction) => {
                let found = transaction.list(&mut listing, cookie, ENTRIES);
                self.runtime.block_on(found)?
            }
            Backing::FileSystem(files) => {
                let found = files.list(&mut listing, cookie, ENTRIES);
                self.runtime.block_on(found)?
            }
        };
        let is_complete = entries.len() < ENTRIES;
        if !is_complete {
            self.listings.insert(number, listing);
            if self.listings.len() > LISTINGS_MAX {
                self.listings.pop_first();
            }
        }
        let mut payload = encoded(&number);
        payload.push(is_complete.into());
        for entry in entries {
            payload.extend(entry.cookie.to_le_bytes());
            payload.extend(entry.ino.0.to_le_bytes());
            payload.push((entry.kind.type_bits() >> 12) as u8);
            payload.extend((entry.name.len() as u32).to_le_bytes());
            payload.extend_from_slice(&entry.name);
        }
        Ok(Answer::of(payload))
    }

    fn sync(&mut self) -> Result<Answer> {
        if let Backing::FileSystem(files) = &self.backing {
            self.runtime.block_on(files.fsync())?;
        }
        if let Some(LostWrite { errno }) = self.lost {
            return Ok(Answer::refused(errno));
        }
        Ok(Answer::DONE)
    }

    fn space(&mut self) -> Result<Answer> {
        let space = match &self.backing {
            Backing::FileSystem(files) => self.runtime.block_on(files.statfs())?,
            // The values that a transaction sees must not change, and nothing is reserved.
            Backing::Transaction(_) => Space {
                block_bytes: 4_096,
                blocks: Space::BYTES_WITHOUT_QUOTA / 4_096,
                blocks_free: Space::BYTES_WITHOUT_QUOTA / 4_096,
                keys: 0,
            },
        };
        let mut payload = encoded(&space.block_bytes);
        for number in [space.blocks, space.blocks_free, space.keys] {
            payload.extend(number.to_le_bytes());
        }
        Ok(Answer::of(payload))
    }

    /// Holds an inode that a client has opened.
    fn opened(&mut self, answer: &Answer) {
        let (Backing::FileSystem(files), Some(ino)) = (&self.backing, answer.payload.get(..8))
        else {
            return;
        };
        let Ok(ino) = ino.try_into().map(|ino| Ino(u64::from_le_bytes(ino))) else {
            return;
        };
        let count = self.open.entry(ino).or_default();
        *count += 1;
        if *count == 1
            && let Err(errno) = self.runtime.block_on(files.hold(ino))
        {
            tracing::warn!(ino = ino.0, %errno, "an open file is not held: its data end with its name");
        }
    }

    /// Releases an inode that no client has open.
    fn closed(&mut self, ino: Ino) -> Result<Answer> {
        let Backing::FileSystem(files) = &self.backing else {
            return Ok(Answer::DONE);
        };
        let path = self.folder.join(OPEN_FOLDER).join(ino.0.to_string());
        if self.open.contains_key(&ino) && !is_open(&path) {
            self.open.remove(&ino);
            self.runtime.block_on(files.close(ino))?;
            // The next client that opens the inode makes it again.
            drop(fs::remove_file(path));
        }
        Ok(Answer::DONE)
    }
}

/// Whether a client has the inode of this file open.
fn is_open(path: &Path) -> bool {
    let Ok(file) = nix::fcntl::open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: OPEN_LOCK,
        l_len: 0,
        l_pid: 0,
    };
    let asked = fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock));
    asked.is_err() || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Whether a processor is idle, by the load of the last minute.
fn is_idle(processors: usize) -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load
        .split(' ')
        .next()
        .and_then(|load| load.parse::<f64>().ok());
    processors > 1 && load.is_some_and(|load| load < processors as f64 - 0.5)
}
