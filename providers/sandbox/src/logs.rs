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

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
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
use tokio::sync::{Notify, oneshot, watch};

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
    written: watch::Receiver<u64>,
}

impl Logs {
    /// Logs in `directory`, which is made if need be.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let (waiting, messages) = channel();
        let (tell, written) = watch::channel(0);
        let held = Arc::<AtomicUsize>::default();
        let files = Files {
            directory: directory.clone(),
            open: HashMap::new(),
            held: Arc::clone(&held),
            line: Vec::new(),
        };
        let writer = thread::Builder::new().name("function logs".into());
        let writer = writer.spawn(move || files.write(&messages, &tell))?.thread().clone();
        Ok(Self { directory, waiting, held, writer, written })
    }

    /// One whose messages wait until the test takes them.
    #[cfg(test)]
    pub(crate) fn stalled() -> (Self, Receiver<Message>) {
        let (waiting, messages) = channel();
        let (_, written) = watch::channel(0);
        let (directory, held, writer) = (PathBuf::new(), Arc::default(), thread::current());
        (Self { directory, waiting, held, writer, written }, messages)
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
        let path = path_of(&self.directory, function);
        let read = tokio::task::spawn_blocking(move || read(&path, page));
        read.await.map_err(io::Error::other)?
    }

    /// Ends when lines are written after this was called.
    pub(crate) async fn more(&self) {
        let mut written = self.written.clone();
        written.mark_unchanged();
        let _ = written.changed().await;
    }
}

/// Names of functions are those of files: letters, digits, `-` and `_`.
fn path_of(directory: &Path, function: &str) -> PathBuf {
    directory.join(format!("{function}.log"))
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// The file that is written to is opened before the one that was put aside: one that is put aside in between is read twice, and its
/// lines taken once, where in the other order none would have them.
fn read(path: &Path, page: Page) -> io::Result<Vec<Line>> {
    let (newer, older) = (open_to_read(path)?, open_to_read(&aside(path))?);
    let (mut lines, mut next, mut bytes) = (Vec::new(), page.from, 0);
    for file in [older, newer].into_iter().flatten() {
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            if number_of(&line).is_some_and(|number| number < next) {
                continue;
            }
            // A line that a crash tore is none.
            let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
            bytes += line.text.len();
            let is_full = lines.len() >= page.lines_max || bytes > page.bytes_max && !lines.is_empty();
            if is_full {
                return Ok(lines);
            }
            next = line.number + 1;
            lines.push(line);
        }
    }
    Ok(lines)
}

fn open_to_read(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of a line as it is written, without reading the rest: pages begin behind many others.
fn number_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"number\":")?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[derive(Debug)]
struct Open {
    file: BufWriter<File>,
    bytes: u64,
    next: u64,
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
    /// Where a line is put together.
    line: Vec<u8>,
}

impl Files {
    /// Writes what comes until nobody sends any more.
    fn write(mut self, messages: &Receiver<Message>, written: &watch::Sender<u64>) {
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
                            self.open.remove(function);
                        }
                    }
                }
                // There may always be more: as it is written its function prints on.
                next = if bytes < ROUND_BYTES { messages.try_recv().ok() } else { None };
            }
            for open in self.open.values_mut() {
                if let Err(error) = open.file.flush() {
                    tracing::warn!(%error, "what functions printed could not be kept");
                }
            }
            written.send_modify(|written| *written += 1);
            // Who asked may have gone.
            for told in flushed {
                let _ = told.send(());
            }
        }
    }

    fn keep(&mut self, lines: &Lines) -> io::Result<()> {
        let Lines { share, id, text, at_ms, .. } = lines;
        let function = &share.function;
        let path = path_of(&self.directory, function);
        if !self.open.contains_key(function) {
            if self.open.len() >= FILES_MAX {
                self.open.clear();
            }
            self.open.insert(function.to_owned(), open(&path)?);
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
                fs::rename(&path, aside(&path))?;
                let next = open.next;
                let file = OpenOptions::new().create(true).append(true).open(&path)?;
                *open = Open { file: BufWriter::new(file), bytes: 0, next };
            }
        }
        Ok(())
    }
}

/// Opens a file to go on behind its last line.
fn open(path: &Path) -> io::Result<Open> {
    let all = Page { from: 0, lines_max: usize::MAX, bytes_max: usize::MAX };
    let next = read(path, all)?.last().map_or(0, |line| line.number + 1);
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let bytes = file.metadata()?.len();
    // What a crash tore stands on a line of its own.
    if bytes > 0 {
        file.write_all(b"\n")?;
    }
    Ok(Open { file: BufWriter::new(file), bytes, next })
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to so many from there on, whatever they take.
    fn page(from: u64, lines_max: usize) -> Page {
        Page { from, lines_max, bytes_max: usize::MAX }
    }

    #[test]
    fn a_line_says_its_number_first() {
        let line = Line { number: 17, at_ms: 1, id: "i".to_owned(), text: "{\"number\":3}".to_owned() };
        assert_eq!(number_of(&serde_json::to_vec(&line).expect("JSON")), Some(17));
        assert_eq!(
            (number_of(b""), number_of(b"{\"number\":"), number_of(b"{\"number\":5")),
            (None, None, None)
        );
    }

    /// The file is put aside while it is read: first all the same in both, then each line once.
    #[test]
    fn a_file_that_is_put_aside_while_it_is_read_is_read_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = path_of(directory.path(), "one");
        let line = |number| {
            serde_json::to_string(&Line { number, at_ms: 0, id: String::new(), text: String::new() })
        };
        let line = |number| line(number).expect("JSON") + "\n";
        fs::write(&path, line(3) + &line(4)).expect("written");
        fs::write(aside(&path), line(3) + &line(4)).expect("written");
        let numbers = |from| {
            read(&path, page(from, 9)).expect("read").iter().map(|line| line.number).collect::<Vec<_>>()
        };
        assert_eq!((numbers(0), numbers(4), numbers(5)), (vec![3, 4], vec![4], vec![]));
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
