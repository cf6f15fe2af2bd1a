//! Lines that functions print, kept in one file per function, of which the older half goes when it is long.
//!
//! Whoever prints never waits for the disk: a thread of its own writes, and lines that come faster than it writes are
//! dropped and counted in a line of their own. It lingers over the first one, so that short invocations, each of which has
//! three lines, do not each wake it: to be woken costs more than to be written. Nothing here is synced; after a crash of the machine the last lines may be
//! missing.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, Thread},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ports::runtime::{Line, Page};
use tokio::sync::{oneshot, watch};

/// Where a file is put aside, and the one put aside before it goes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Lines on their way to the disk.
const WAITING_LINES_MAX: usize = 4096;
/// What they hold.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// How long they wait for others to be written with, while they are fewer than would make it hurry.
const LINGER: Duration = Duration::from_millis(5);
const HURRY_LINES: usize = WAITING_LINES_MAX / 4;
/// Files open at a time.
const FILES_MAX: usize = 64;

enum Message {
    Line {
        function: String,
        id: String,
        text: String,
        at_ms: u64,
    },
    /// All before it is to be in the files.
    Flush(oneshot::Sender<()>),
}

/// The lines of all functions.
#[derive(Debug)]
pub(crate) struct Logs {
    directory: PathBuf,
    waiting: SyncSender<Message>,
    held: Arc<Held>,
    writer: Thread,
    dropped: AtomicU64,
    written: watch::Receiver<u64>,
}

/// What lines on their way take.
#[derive(Debug, Default)]
struct Held {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

impl Logs {
    /// Logs in `directory`, which is made if need be.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let (waiting, messages) = sync_channel(WAITING_LINES_MAX);
        let (tell, written) = watch::channel(0);
        let held = Arc::<Held>::default();
        let files = Files { directory: directory.clone(), open: HashMap::new(), held: Arc::clone(&held) };
        let writer = thread::Builder::new().name("function logs".into());
        let writer = writer.spawn(move || files.write(&messages, &tell))?.thread().clone();
        Ok(Self { directory, waiting, held, writer, dropped: AtomicU64::new(0), written })
    }

    /// Keeps a line, soon.
    pub(crate) fn keep(&self, function: &str, id: &str, text: &str) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 && !self.send(function, id, format!("({dropped} lines came too fast to be kept)")) {
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        if !self.send(function, id, text.to_owned()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn send(&self, function: &str, id: &str, text: String) -> bool {
        let bytes = text.len();
        let lines = self.held.lines.fetch_add(1, Ordering::Relaxed);
        if self.held.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= WAITING_BYTES_MAX {
            let (function, id) = (function.to_owned(), id.to_owned());
            if self.waiting.try_send(Message::Line { function, id, text, at_ms: now_ms() }).is_ok() {
                if lines == HURRY_LINES {
                    self.writer.unpark();
                }
                return true;
            }
        }
        self.held.lines.fetch_sub(1, Ordering::Relaxed);
        self.held.bytes.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    /// Returns once all that was kept before is in the files.
    pub(crate) async fn flush(&self) {
        let (flushed, wait) = oneshot::channel();
        let mut message = Message::Flush(flushed);
        while let Err(TrySendError::Full(back)) = self.waiting.try_send(message) {
            message = back;
            tokio::task::yield_now().await;
        }
        self.writer.unpark();
        // An error means that nobody writes any more: what is there is all there is.
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

#[derive(Debug)]
struct Files {
    directory: PathBuf,
    open: HashMap<String, Open>,
    held: Arc<Held>,
}

impl Files {
    /// Writes what comes until nobody sends any more.
    fn write(mut self, messages: &Receiver<Message>, written: &watch::Sender<u64>) {
        while let Ok(first) = messages.recv() {
            if matches!(first, Message::Line { .. }) && self.held.lines.load(Ordering::Relaxed) < HURRY_LINES
            {
                thread::park_timeout(LINGER);
            }
            let mut flushed = Vec::new();
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Flush(told) => flushed.push(told),
                    Message::Line { function, id, text, at_ms } => {
                        self.held.lines.fetch_sub(1, Ordering::Relaxed);
                        self.held.bytes.fetch_sub(text.len(), Ordering::Relaxed);
                        if let Err(error) = self.keep(&function, Line { number: 0, at_ms, id, text }) {
                            tracing::warn!(%error, function, "what a function printed could not be kept");
                            self.open.remove(&function);
                        }
                    }
                }
                next = messages.try_recv().ok();
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

    fn keep(&mut self, function: &str, line: Line) -> io::Result<()> {
        let path = path_of(&self.directory, function);
        if !self.open.contains_key(function) {
            if self.open.len() >= FILES_MAX {
                self.open.clear();
            }
            self.open.insert(function.to_owned(), open(&path)?);
        }
        let open = self.open.get_mut(function).expect("just opened");
        let mut bytes = serde_json::to_vec(&Line { number: open.next, ..line })?;
        bytes.push(b'\n');
        open.file.write_all(&bytes)?;
        open.next += 1;
        open.bytes += bytes.len() as u64;
        if open.bytes >= FILE_BYTES_MAX {
            open.file.flush()?;
            fs::rename(&path, aside(&path))?;
            let next = open.next;
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            *open = Open { file: BufWriter::new(file), bytes: 0, next };
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

    #[tokio::test]
    async fn lines_are_numbered_on_over_restarts_and_read_from_any_of_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        logs.keep("one", "a", "first");
        logs.keep("two", "b", "another's");
        logs.keep("one", "a", "second");
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
        logs.keep("one", "c", "third");
        let lines = logs.lines("one", page(1, 10)).await.expect("read");
        let texts: Vec<_> = lines.iter().map(|line| (line.number, line.text.as_str())).collect();
        assert_eq!(texts, [(1, "second"), (2, "third")]);
    }

    #[tokio::test]
    async fn a_long_log_loses_its_older_half() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        let text = "x".repeat(1 << 20);
        for _ in 0..40 {
            logs.keep("one", "a", &text);
            logs.lines("one", page(u64::MAX, 0)).await.expect("flushed");
        }
        let lines = logs.lines("one", page(0, 100)).await.expect("read");
        assert_eq!(lines.last().expect("some").number, 39);
        assert!(lines.len() <= 18, "{} lines of 1 MiB", lines.len());
    }
}
