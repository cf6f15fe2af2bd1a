//! The local server: one thread answers the requests of all processes that loaded the library,
//! another hands the shared memory to new ones.
//!
//! Requests are answered one after the other, because they share a transaction. The server keeps
//! no descriptors. A client opens an empty file for each open inode. The kernel's description of
//! it holds the position and the flags, and dup and fork share it. The same file carries
//! the locks of `flock` and `fcntl`, which exclude the processes of this server. Of each file that
//! they lock the client tells the server, so that the commit excludes all others (F-1).
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
use files::{Errno, Ino, Listing, Result, Transaction, file_system::lock_key, model::Space};
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
};
use tempfile::TempDir;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::timeout,
};
use transactions::serializable::model::{Lock, LockBytes, LockFamily, LockMode, Wait};

use crate::{
    cache::{CACHE_BYTES, Cache},
    calls::{self, Answer, encoded},
    environment,
    permissions::User,
    shared::{self, Buffers, Region, Slot, Word, state},
    walk::Rules,
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
/// The folder of the files that stand for open inodes, in the server's folder.
pub const OPEN_FOLDER: &str = "i";
/// The folder that mirrors working directories, in the server's folder.
pub const CWD_FOLDER: &str = "cwd";

/// How a server is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The absolute path at which programs see the volume, without `.`, `..` or a slash at its end.
    pub at: PathBuf,
    /// The shared buffers.
    pub buffers: Buffers,
    /// The library; `None`: it is searched.
    pub library: Option<PathBuf>,
    /// Refuses all changes with `EROFS`.
    pub is_read_only: bool,
    /// The user whose permissions are checked; `None`: none are checked, as for root.
    pub user: Option<User>,
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

/// A call that failed without a program that waited for it. Of a write, `fsync` reports it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a call failed with error number {errno}, and no program was told: run it again")]
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
    answering: Option<JoinHandle<(Transaction, Option<LostWrite>)>>,
    /// Completes when the thread that answers has ended.
    ended: oneshot::Receiver<()>,
    handing_out: Option<JoinHandle<()>>,
}

/// Ends both threads.
#[derive(Debug)]
struct Stop {
    is_set: AtomicBool,
    /// Whether the call that is under way shall fail.
    is_late: watch::Sender<bool>,
    region: Region,
}

/// The folder of a server, with those of its open files and working directories.
fn folder() -> io::Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("landfast-preload-")
        .tempdir()?;
    for name in [OPEN_FOLDER, CWD_FOLDER] {
        let path = folder.path().join(name);
        DirBuilder::new().mode(0o700).create(path)?;
    }
    Ok(folder)
}

impl Server {
    /// Starts a server. Its calls of the volume run on `runtime`, from a thread outside of it.
    pub fn start(
        transaction: Transaction,
        options: &Options,
        runtime: Handle,
    ) -> Result<Self, StartError> {
        if !is_normal(&options.at) {
            return Err(StartError::At(options.at.clone()));
        }
        let library = environment::find_library(options.library.as_deref());
        let library = library.map_err(StartError::Library)?;
        let bytes = options.buffers.region_bytes();
        let folder = folder()?;
        let memory = Memory::new(bytes.ok_or(StartError::Buffers)?)?;
        let region = Region::create(memory.region.as_fd(), options.buffers)?;
        let cache = Cache::create(memory.cache.as_fd())?;
        memory.seal()?;
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket)?;
        let stop = Arc::new(Stop {
            is_set: AtomicBool::new(false),
            is_late: watch::Sender::new(false),
            region,
        });
        let rules = Rules {
            at: Bytes::copy_from_slice(options.at.as_os_str().as_bytes()),
            is_read_only: options.is_read_only,
            user: options.user.clone(),
        };
        let is_late = stop.is_late.subscribe();
        let answers = Answers {
            transaction,
            region,
            cache,
            cached: BTreeSet::new(),
            lost: None,
            waiter: Waiter { runtime, is_late },
            rules,
            listings: BTreeMap::new(),
            listing: 0,
        };
        let (ending, ended) = oneshot::channel();
        let mut server = Self {
            variables: environment::variables(&library, &socket, &options.at),
            folder,
            stop: stop.clone(),
            answering: None,
            ended,
            handing_out: None,
        };
        let builder = thread::Builder::new().name("preload-memory".into());
        let ends = stop.clone();
        server.handing_out = Some(builder.spawn(move || hand_out(&listener, &memory, &ends))?);
        let builder = thread::Builder::new().name("preload-answers".into());
        server.answering = Some(builder.spawn(move || {
            let _ending = ending;
            answers.serve(&stop)
        })?);
        Ok(server)
    }

    /// The variables that a program needs in its environment to see the volume.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    /// The number of requests that it has answered.
    pub fn requests(&self) -> u32 {
        self.stop.region.word(Word::Done).load(Ordering::Relaxed)
    }

    /// Ends the server, after it has answered all requests that were posted. A call that takes
    /// longer than `patience` fails. Later calls of programs that still run fail with `EIO`. Returns
    /// the transaction; `None` if a thread of the server panicked. Errors: a call failed whose
    /// program did not wait for it, so nothing may be committed.
    pub async fn finish(mut self, patience: Duration) -> Result<Option<Transaction>, LostWrite> {
        self.stop();
        let ended = timeout(patience, &mut self.ended);
        if ended.await.is_err() {
            self.stop.is_late.send_replace(true);
        }
        match self.join() {
            Some((_, Some(lost))) => Err(lost),
            Some((transaction, None)) => Ok(Some(transaction)),
            None => Ok(None),
        }
    }

    fn stop(&self) {
        self.stop.is_set.store(true, Ordering::Release);
        shared::futex_wake(self.stop.region.word(Word::Doorbell));
    }

    fn join(&mut self) -> Option<(Transaction, Option<LostWrite>)> {
        let answering = self.answering.take()?;
        let ended = answering.join();
        // A connection ends the wait for one.
        drop(UnixStream::connect(self.folder.path().join("socket")));
        if let Some(handing_out) = self.handing_out.take() {
            drop(handing_out.join());
        }
        ended.ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        self.stop.is_late.send_replace(true);
        self.join();
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
    transaction: Transaction,
    region: Region,
    cache: Cache,
    /// The inodes that may have bytes in the cache.
    cached: BTreeSet<u64>,
    /// The first write that failed without a client that waited for it.
    lost: Option<LostWrite>,
    waiter: Waiter,
    rules: Rules,
    listings: BTreeMap<u64, Listing>,
    listing: u64,
}

/// Waits for calls of the volume.
#[derive(Debug)]
struct Waiter {
    runtime: Handle,
    is_late: watch::Receiver<bool>,
}

impl Waiter {
    /// Errors: those of the call, and `EIO` if it takes too long.
    fn wait<T>(&mut self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let late = self.is_late.wait_for(|is_late| *is_late);
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                answered = call => answered,
                _ = late => Err(Errno::EIO),
            }
        })
    }
}

impl Answers {
    fn serve(mut self, stop: &Stop) -> (Transaction, Option<LostWrite>) {
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
                return (self.transaction, self.lost);
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
        let room = self.region.buffers().bytes as usize - size_of_val(&answer.status);
        let (status, payload) = if answer.payload.len() > room {
            (libc::E2BIG, &[][..])
        } else {
            (answer.status, &answer.payload[..])
        };
        let len = self
            .region
            .copy_in(index, &[&status.to_le_bytes(), payload]);
        let bytes = self.region.slot(index, Slot::ReplyBytes);
        bytes.store(len, Ordering::Relaxed);
        let state = self.region.slot(index, Slot::State);
        state.store(state::ANSWERED, Ordering::Release);
        shared::futex_wake(state);
    }

    fn answer(&mut self, message: &Bytes) -> Answer {
        let answered = match Request::decode(message) {
            None => Ok(Answer::refused(libc::EPROTO)),
            Some(Request::List {
                ino,
                listing,
                cookie,
            }) => self.list(Ino(ino), listing, cookie),
            Some(Request::Locked { ino }) => Ok(self.locked(Ino(ino))),
            Some(Request::Sync {}) => Ok(self.sync()),
            Some(Request::Space {}) => Ok(space()),
            Some(request) => {
                self.before(&request);
                let answered = self.call(message);
                let answer = answered.unwrap_or_else(|errno| Answer::refused(errno as i32));
                self.after(&request, &answer);
                Ok(answer)
            }
        };
        answered.unwrap_or_else(|errno| Answer::refused(errno as i32))
    }

    /// Forgets the bytes and the replies that a call may make wrong.
    fn before(&mut self, request: &Request<'_>) {
        if calls::is_change(request) {
            let changes = self.region.word(Word::Changes);
            changes.fetch_add(1, Ordering::Release);
        }
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

    /// Notes the bytes that a call has read or written, and what it has found.
    fn after(&mut self, request: &Request<'_>, answer: &Answer) {
        if let Request::Stat { place, follows } = *request
            && matches!(answer.status, 0 | libc::ENOENT)
        {
            let changes = self.region.word(Word::Changes).load(Ordering::Relaxed);
            let (errno, follows) = (answer.status, follows != 0);
            self.cache
                .note_status(changes, place, follows, errno, &answer.payload);
        }
        if answer.status != 0 {
            if let Request::Write { ino, .. } = request {
                // It may have written some of the bytes.
                self.cache.forget(*ino);
            }
            return;
        }
        match request {
            Request::Read { ino, offset, .. } => {
                self.cached.insert(*ino);
                self.cache.note(*ino, *offset, &answer.payload);
            }
            Request::Write { ino, offset, data } => {
                self.cached.insert(*ino);
                self.cache.note(*ino, *offset, data);
            }
            _ => {}
        }
    }

    fn call(&mut self, message: &Bytes) -> Result<Answer> {
        let answered = calls::answer(&mut self.transaction, &self.rules, message);
        let answered = self.waiter.wait(answered);
        if *self.waiter.is_late.borrow() {
            // The call may have been left half way.
            let errno = libc::EIO;
            self.lost.get_or_insert(LostWrite { errno });
        }
        answered
    }

    fn list(&mut self, ino: Ino, number: u64, cookie: u64) -> Result<Answer> {
        let (number, mut listing) = if cookie == 0 {
            self.listing += 1;
            (self.listing, Listing::new(ino))
        } else {
            let listing = self.listings.remove(&number).ok_or(Errno::EIO)?;
            (number, listing)
        };
        let found = self.transaction.list(&mut listing, cookie, ENTRIES);
        let entries = self.waiter.wait(found)?;
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

    /// Excludes other clients by the commit (F-1): none may have or have had a lock on the file.
    fn locked(&mut self, ino: Ino) -> Answer {
        self.transaction.elide_lock(&Lock {
            key: lock_key(ino),
            family: LockFamily::Posix,
            bytes: LockBytes {
                first: 0,
                last: u64::MAX,
            },
            mode: LockMode::Exclusive,
            pid: 0,
            wait: Wait::Never,
        });
        Answer::DONE
    }

    fn sync(&self) -> Answer {
        let lost = self.lost.map(|LostWrite { errno }| errno);
        lost.map_or(Answer::DONE, Answer::refused)
    }
}

/// The space that a transaction sees. Its values must not change, and nothing is reserved.
fn space() -> Answer {
    const BLOCK_BYTES: u32 = 4_096;
    let blocks = Space::BYTES_WITHOUT_QUOTA / u64::from(BLOCK_BYTES);
    let mut payload = encoded(&BLOCK_BYTES);
    for number in [blocks, blocks, 0] {
        payload.extend(number.to_le_bytes());
    }
    Answer::of(payload)
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
