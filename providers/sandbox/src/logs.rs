//! Lines that functions print, kept in one file per function, of which the older half goes when it is long.
//!
//! A thread of its own writes, so that nobody who reads what is printed waits for the disk. What is on its way there has a bound for each
//! function, its [`Share`]: whose share is full is not read on, and waits in its own write, so that whoever prints without end slows
//! itself and loses nothing. What cannot wait, the end of an invocation, may go beyond that, up to another bound; what is beyond this
//! is dropped, and whoever has it to keep counts it. The thread lingers over the first lines, so that short
//! invocations, each of which has three, do not each wake it: to be woken costs more than to be written. Nothing here is synced; after a
//! crash of the machine the last lines may be missing.
//!
//! Invariants
//! - No line of a function is dropped for what others print, while fewer than [`WAITING_BYTES_MAX`] are on their way.
//! - Readers are told of what is in a file, and of nothing else: they would look for it again and again.

mod reading;

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, Thread},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ports::runtime::{Line, Page};
use serde::Serialize;
use tokio::sync::{Notify, oneshot};

use self::reading::Readers;

/// Where a file is put aside, and the one put aside before it goes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// What lines of one function may hold on their way to the disk where more of them can wait.
pub(crate) const SHARE_BYTES: usize = 256 << 10;
/// The same where they cannot.
const SHARE_BYTES_MAX: usize = 1 << 20;
/// What those of all functions may hold: the shares of 64 that print as fast as they can while the disk does not answer.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// What a message holds beside its text. It bounds their number too.
pub(crate) const MESSAGE_BYTES: usize = 128;
/// How long they wait for others to be written with, while they are fewer than would make it hurry.
const LINGER: Duration = Duration::from_millis(5);
const HURRY_BYTES: usize = SHARE_BYTES / 2;
/// What is written before who waits for it is told.
const ROUND_BYTES: usize = SHARE_BYTES;
/// Files open at a time.
const FILES_MAX: usize = 64;

/// What goes to the thread that writes.
pub(crate) enum Message {
    Lines(Lines),
    /// All before it is to be in the files.
    Flush(oneshot::Sender<()>),
}

/// Lines of one invocation on their way. They hold some of their function's share until they are dropped.
pub(crate) struct Lines {
    share: Arc<Share>,
    held: Arc<AtomicUsize>,
    pub(crate) id: Arc<str>,
    /// One or more of them, without the end of the last.
    pub(crate) text: String,
    at_ms: u64,
}

impl Lines {
    fn bytes(&self) -> usize {
        MESSAGE_BYTES + self.text.len()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
        let before = self.share.bytes.fetch_sub(self.bytes(), Ordering::AcqRel);
        if before >= SHARE_BYTES && before - self.bytes() < SHARE_BYTES {
            self.share.has_room.notify_waiters();
        }
    }
}

/// What lines of one function hold on their way to the disk.
#[derive(Debug)]
pub(crate) struct Share {
    function: String,
    bytes: AtomicUsize,
    has_room: Notify,
}

impl Share {
    pub(crate) fn new(function: &str) -> Self {
        Self { function: function.to_owned(), bytes: AtomicUsize::new(0), has_room: Notify::new() }
    }

    /// Ends once more may be on its way.
    pub(crate) async fn room(&self) {
        loop {
            // Before the look: what is written between the two is heard of.
            let has_room = self.has_room.notified();
            if self.bytes.load(Ordering::Acquire) < SHARE_BYTES {
                return;
            }
            has_room.await;
        }
    }
}

/// The lines of all functions.
#[derive(Debug)]
pub(crate) struct Logs {
    directory: PathBuf,
    /// Bounded by what its messages hold.
    waiting: Sender<Message>,
    /// What all lines on their way hold.
    held: Arc<AtomicUsize>,
    writer: Thread,
    readers: Arc<Readers>,
}

impl Logs {
    /// Logs in `directory`, which is made if need be.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let (waiting, messages) = channel();
        let (held, readers) = (Arc::<AtomicUsize>::default(), Arc::<Readers>::default());
        let files = Files {
            directory: directory.clone(),
            open: HashMap::new(),
            held: Arc::clone(&held),
            readers: Arc::clone(&readers),
            line: Vec::new(),
        };
        let writer = thread::Builder::new().name("function logs".into());
        let writer = writer.spawn(move || files.write(&messages))?.thread().clone();
        Ok(Self { directory, waiting, held, writer, readers })
    }

    /// One whose messages wait until the test takes them.
    #[cfg(test)]
    pub(crate) fn stalled() -> (Self, Receiver<Message>) {
        let (waiting, messages) = channel();
        let (directory, held, writer) = (PathBuf::new(), Arc::default(), thread::current());
        (Self { directory, waiting, held, writer, readers: Arc::default() }, messages)
    }

    /// Keeps `text`, one line or more, soon. Whether there is room for it.
    #[must_use]
    pub(crate) fn keep(&self, share: &Arc<Share>, id: &Arc<str>, text: String) -> bool {
        let (share, held, id) = (Arc::clone(share), Arc::clone(&self.held), Arc::clone(id));
        let bytes = MESSAGE_BYTES + text.len();
        let own = share.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let all = held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let lines = Lines { share, held, id, text, at_ms: now_ms() };
        if own > SHARE_BYTES_MAX || all > WAITING_BYTES_MAX {
            return false;
        }
        // An error means that nobody writes any more.
        let is_sent = self.waiting.send(Message::Lines(lines)).is_ok();
        if all >= HURRY_BYTES && all - bytes < HURRY_BYTES {
            self.writer.unpark();
        }
        is_sent
    }

    /// Returns once all that was kept before is in the files.
    pub(crate) async fn flush(&self) {
        let (flushed, wait) = oneshot::channel();
        // An error means that nobody writes any more: what is there is all there is.
        let _ = self.waiting.send(Message::Flush(flushed));
        self.writer.unpark();
        let _ = wait.await;
    }

    /// Some of the lines of `function`.
    pub(crate) async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.flush().await;
        let (readers, function) = (Arc::clone(&self.readers), function.to_owned());
        let path = path_of(&self.directory, &function);
        let read = tokio::task::spawn_blocking(move || readers.read(&function, [&path, &aside(&path)], page));
        read.await.map_err(io::Error::other)?
    }

    /// Ends once the line of `function` with the number `from`, or a later one, is in its file.
    pub(crate) async fn more(&self, function: &str, from: u64) {
        self.readers.more(function, from).await;
    }
}

/// Names of functions are those of files: letters, digits, `-` and `_`.
fn path_of(directory: &Path, function: &str) -> PathBuf {
    directory.join(format!("{function}.log"))
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

#[derive(Debug)]
struct Open {
    file: BufWriter<File>,
    bytes: u64,
    next: u64,
    /// Readers were told of all lines before this one.
    told: u64,
}

impl Open {
    /// Writes what waits in memory, and tells readers of what they were not told of.
    fn flush(&mut self, function: &str, readers: &Readers) {
        if let Err(error) = self.file.flush() {
            tracing::warn!(%error, function, "what a function printed could not be kept");
        } else if self.told != self.next {
            readers.tell(function, self.next);
            self.told = self.next;
        }
    }
}

/// A [`Line`] as it is written.
#[derive(Serialize)]
struct Written<'a> {
    number: u64,
    at_ms: u64,
    id: &'a str,
    text: &'a str,
}

#[derive(Debug)]
struct Files {
    directory: PathBuf,
    open: HashMap<String, Open>,
    held: Arc<AtomicUsize>,
    readers: Arc<Readers>,
    /// Where a line is put together.
    line: Vec<u8>,
}

impl Files {
    /// Writes what comes until nobody sends any more.
    fn write(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            if matches!(first, Message::Lines(_)) && self.held.load(Ordering::Relaxed) < HURRY_BYTES {
                thread::park_timeout(LINGER);
            }
            let (mut flushed, mut bytes) = (Vec::new(), 0);
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Flush(told) => flushed.push(told),
                    Message::Lines(lines) => {
                        bytes += lines.bytes();
                        if let Err(error) = self.keep(&lines) {
                            let function = &lines.share.function;
                            tracing::warn!(%error, function, "what a function printed could not be kept");
                            if let Some(mut open) = self.open.remove(function) {
                                open.flush(function, &self.readers);
                            }
                        }
                    }
                }
                // There may always be more: as it is written its function prints on.
                next = if bytes < ROUND_BYTES { messages.try_recv().ok() } else { None };
            }
            self.flush();
            // Who asked may have gone.
            for told in flushed {
                let _ = told.send(());
            }
        }
    }

    fn flush(&mut self) {
        for (function, open) in &mut self.open {
            open.flush(function, &self.readers);
        }
    }

    fn keep(&mut self, lines: &Lines) -> io::Result<()> {
        let Lines { share, id, text, at_ms, .. } = lines;
        let function = &share.function;
        let path = path_of(&self.directory, function);
        if !self.open.contains_key(function) {
            if self.open.len() >= FILES_MAX {
                self.flush();
                self.open.clear();
            }
            self.open.insert(function.to_owned(), open(&self.readers, function, &path)?);
        }
        let open = self.open.get_mut(function).expect("just opened");
        for text in text.split('\n') {
            self.line.clear();
            serde_json::to_writer(&mut self.line, &Written { number: open.next, at_ms: *at_ms, id, text })?;
            self.line.push(b'\n');
            open.file.write_all(&self.line)?;
            open.next += 1;
            open.bytes += self.line.len() as u64;
            if open.bytes >= FILE_BYTES_MAX {
                open.file.flush()?;
                let file = self.readers.put_aside(function, || {
                    fs::rename(&path, aside(&path))?;
                    OpenOptions::new().create(true).append(true).open(&path)
                })?;
                (open.file, open.bytes) = (BufWriter::new(file), 0);
            }
        }
        Ok(())
    }
}

/// Opens a file to go on behind its last line.
fn open(readers: &Readers, function: &str, path: &Path) -> io::Result<Open> {
    let all = Page { from: 0, lines_max: usize::MAX, bytes_max: usize::MAX };
    let lines = readers.read(function, [path, &aside(path)], all)?;
    let next = lines.last().map_or(0, |line| line.number + 1);
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let bytes = file.metadata()?.len();
    // What a crash tore stands on a line of its own.
    if bytes > 0 {
        file.write_all(b"\n")?;
    }
    // Whoever had it open before may not have told them of the last lines.
    Ok(Open { file: BufWriter::new(file), bytes, next, told: 0 })
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;

    /// Up to so many from there on, whatever they take.
    fn page(from: u64, lines_max: usize) -> Page {
        Page { from, lines_max, bytes_max: usize::MAX }
    }

    fn keep(logs: &Logs, share: &Arc<Share>, id: &str, text: &str) {
        assert!(logs.keep(share, &id.into(), text.to_owned()), "there is room");
    }

    #[tokio::test]
    async fn lines_are_numbered_on_over_restarts_and_read_from_any_of_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        let [one, two] = ["one", "two"].map(|function| Arc::new(Share::new(function)));
        keep(&logs, &one, "a", "first\nsecond");
        keep(&logs, &two, "b", "another's");
        let lines = logs.lines("one", page(0, 10)).await.expect("read");
        let texts: Vec<_> = lines.iter().map(|line| (line.number, line.text.as_str())).collect();
        assert_eq!(texts, [(0, "first"), (1, "second")]);
        drop(logs);
        fs::OpenOptions::new()
            .append(true)
            .open(directory.path().join("one.log"))
            .and_then(|mut file| file.write_all(b"{\"number\":2,\"at"))
            .expect("torn");
        let logs = Logs::open(directory.path().into()).expect("opened");
        keep(&logs, &one, "c", "third");
        let lines = logs.lines("one", page(1, 10)).await.expect("read");
        let texts: Vec<_> = lines.iter().map(|line| (line.number, line.text.as_str())).collect();
        assert_eq!(texts, [(1, "second"), (2, "third")]);
    }

    /// Whether readers were told of a line of `function`.
    async fn is_told(readers: &Readers, function: &str) -> bool {
        tokio::select! {
            biased;
            () = readers.more(function, 0) => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Who followed the log of a function that had printed to a full disk read it again and again, without a pause.
    #[tokio::test]
    async fn readers_are_told_of_what_is_in_the_file_alone() {
        let (directory, readers) = (tempfile::tempdir().expect("a directory"), Readers::default());
        let mut log = open(&readers, "one", &directory.path().join("one.log")).expect("opened");
        let full = OpenOptions::new().write(true).open("/dev/full").expect("opened");
        let file = mem::replace(&mut log.file, BufWriter::new(full));
        log.file.write_all(b"line\n").expect("it is held back");
        log.next = 1;
        log.flush("one", &readers);
        assert!(!is_told(&readers, "one").await, "there was no room for it");
        log.file = file;
        log.flush("one", &readers);
        assert!(is_told(&readers, "one").await, "though it printed nothing since");
    }

    #[tokio::test]
    async fn readers_are_told_of_what_was_printed_before_others_take_the_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let (logs, messages) = Logs::stalled();
        for number in 0..=FILES_MAX {
            keep(&logs, &Arc::new(Share::new(&number.to_string())), "a", "text");
        }
        let mut files = Files {
            directory: directory.path().into(),
            open: HashMap::new(),
            held: Arc::clone(&logs.held),
            readers: Arc::clone(&logs.readers),
            line: Vec::new(),
        };
        while let Ok(Message::Lines(lines)) = messages.try_recv() {
            files.keep(&lines).expect("there is room");
        }
        assert!(is_told(&files.readers, "0").await, "it is open no more");
        assert!(!is_told(&files.readers, &FILES_MAX.to_string()).await, "its line is in memory yet");
    }

    #[tokio::test]
    async fn a_long_log_loses_its_older_half() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        let one = Arc::new(Share::new("one"));
        let text = "x".repeat(1 << 19);
        for _ in 0..80 {
            keep(&logs, &one, "a", &text);
            logs.lines("one", page(u64::MAX, 0)).await.expect("flushed");
        }
        let lines = logs.lines("one", page(0, 100)).await.expect("read");
        assert_eq!(lines.last().expect("some").number, 79);
        assert!(lines.len() <= 36, "{} lines of 512 KiB", lines.len());
    }
}
