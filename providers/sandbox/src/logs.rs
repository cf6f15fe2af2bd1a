//! The logs port: lines that functions print, in one file per function. A long file loses its older
//! half.
//!
//! A thread of its own writes, so that readers of the pipes never wait for the disk. The lines on
//! their way to it have a bound per function, its [`Share`]. While the share is full, the
//! function's output is not read, and the function waits in its own write. A function that prints
//! without end thus slows only itself and loses nothing.
//!
//! The end of an invocation cannot wait, so it may exceed the share up to a second bound. Lines
//! beyond that are dropped, and the caller counts them. The thread waits briefly after the first
//! lines, because each short invocation has three: a wake-up costs more than a write. Nothing is
//! synced; after a crash of the machine the last lines may be missing.
//!
//! Invariants
//! - No line of a function is dropped because of others' output, while fewer than
//!   [`WAITING_BYTES_MAX`] are on their way.
//! - Lines that the disk refuses are lost, and counted in their log ([`log`]). The server's log
//!   reports this at growing intervals.
//! - Readers learn only of lines that are in a file. Otherwise they would read again and again.

mod log;
mod reading;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, Thread},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use ports::{
    LogThrottle, Monotonic,
    logs::{Line, Page},
};
use tokio::sync::{Notify, oneshot};

use self::{log::Log, reading::Readers};

/// The size at which a file is put aside. The file that was put aside before is then deleted.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// The most bytes of a function's lines on their way to the disk, if further lines can wait.
pub(crate) const SHARE_BYTES: usize = 256 << 10;
/// The same bound, if further lines cannot wait.
const SHARE_BYTES_MAX: usize = 1 << 20;
/// The most bytes of all functions' lines on their way: the shares of 64 functions that print at
/// full speed while the disk does not respond.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// The bytes of a message beside its text. They bound the number of messages too.
pub(crate) const MESSAGE_BYTES: usize = 128;
/// How long lines wait for others to share a write, while they are fewer than [`HURRY_BYTES`].
const LINGER: Duration = Duration::from_millis(5);
const HURRY_BYTES: usize = SHARE_BYTES / 2;
/// The bytes that are written before waiting callers are notified.
const ROUND_BYTES: usize = SHARE_BYTES;
/// The most open files.
const FILES_MAX: usize = 64;
/// The disk counts as working again once no write has failed for this long.
const QUIET: Duration = Duration::from_mins(1);

/// A message to the thread that writes.
pub(crate) enum Message {
    Lines(Lines),
    /// A request to write everything before it to the files.
    Flush(oneshot::Sender<()>),
}

/// Lines of one invocation on their way. They take part of their function's share until they are
/// dropped.
pub(crate) struct Lines {
    share: Arc<Share>,
    held: Arc<AtomicUsize>,
    pub(crate) id: Arc<str>,
    /// One or more lines; the last one has no line end.
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

/// The bytes of one function's lines on their way to the disk.
#[derive(Debug)]
pub(crate) struct Share {
    function: String,
    bytes: AtomicUsize,
    has_room: Notify,
}

impl Share {
    pub(crate) fn new(function: &str) -> Self {
        Self {
            function: function.to_owned(),
            bytes: AtomicUsize::new(0),
            has_room: Notify::new(),
        }
    }

    /// Waits until the share has room.
    pub(crate) async fn room(&self) {
        loop {
            // Registered before the check, so that no write in between is missed.
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
    /// Unbounded as a channel, and bounded by the bytes of its messages.
    waiting: Sender<Message>,
    /// The bytes of all lines on their way.
    held: Arc<AtomicUsize>,
    writer: Thread,
    readers: Arc<Readers>,
}

impl Logs {
    /// Logs in `directory`, which is created if needed.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let (waiting, messages) = channel();
        let (held, readers) = (Arc::<AtomicUsize>::default(), Arc::<Readers>::default());
        let files = Files::new(directory.clone(), Arc::clone(&held), Arc::clone(&readers));
        let writer = thread::Builder::new().name("function logs".into());
        let writer = writer
            .spawn(move || files.write(&messages))?
            .thread()
            .clone();
        Ok(Self {
            directory,
            waiting,
            held,
            writer,
            readers,
        })
    }

    /// Logs whose messages wait until a test takes them.
    #[cfg(test)]
    pub(crate) fn stalled() -> (Self, Receiver<Message>) {
        let (waiting, messages) = channel();
        let (directory, held, writer) = (PathBuf::new(), Arc::default(), thread::current());
        (
            Self {
                directory,
                waiting,
                held,
                writer,
                readers: Arc::default(),
            },
            messages,
        )
    }

    /// Passes `text`, one line or more, to the thread. Whether there is room for it.
    #[must_use]
    pub(crate) fn keep(&self, share: &Arc<Share>, id: &Arc<str>, text: String) -> bool {
        let (share, held, id) = (Arc::clone(share), Arc::clone(&self.held), Arc::clone(id));
        let bytes = MESSAGE_BYTES + text.len();
        let own = share.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let all = held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let lines = Lines {
            share,
            held,
            id,
            text,
            at_ms: now_ms(),
        };
        if own > SHARE_BYTES_MAX || all > WAITING_BYTES_MAX {
            return false;
        }
        // An error means that the thread has ended.
        let is_sent = self.waiting.send(Message::Lines(lines)).is_ok();
        if all >= HURRY_BYTES && all - bytes < HURRY_BYTES {
            self.writer.unpark();
        }
        is_sent
    }

    /// Waits until all earlier lines are in the files.
    pub(crate) async fn flush(&self) {
        let (flushed, wait) = oneshot::channel();
        // An error means that the thread has ended: no more lines will come.
        let _ = self.waiting.send(Message::Flush(flushed));
        self.writer.unpark();
        let _ = wait.await;
    }
}

#[async_trait]
impl ports::Logs for Logs {
    /// The flush comes first, so that the page has every line that was printed before the call.
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.flush().await;
        let (readers, function) = (Arc::clone(&self.readers), function.to_owned());
        let path = path_of(&self.directory, &function);
        let read = tokio::task::spawn_blocking(move || {
            readers.read(&function, [&path, &aside(&path)], page)
        });
        read.await.map_err(io::Error::other)?
    }

    /// Wakes once the line is in its file.
    async fn more_lines(&self, function: &str, from: u64) {
        self.readers.more(function, from).await;
    }
}

/// A function's name is also a file name: letters, digits, `-` and `_`.
fn path_of(directory: &Path, function: &str) -> PathBuf {
    directory.join(format!("{function}.log"))
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

#[derive(Debug)]
struct Files {
    directory: PathBuf,
    logs: HashMap<String, Log>,
    held: Arc<AtomicUsize>,
    readers: Arc<Readers>,
    trouble: Trouble,
}

impl Files {
    fn new(directory: PathBuf, held: Arc<AtomicUsize>, readers: Arc<Readers>) -> Self {
        Self {
            directory,
            logs: HashMap::new(),
            held,
            readers,
            trouble: Trouble::new(Instant::now()),
        }
    }

    /// Writes messages until all senders are gone.
    fn write(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            if matches!(first, Message::Lines(_)) && self.held.load(Ordering::Relaxed) < HURRY_BYTES
            {
                thread::park_timeout(LINGER);
            }
            let (mut flushed, mut bytes) = (Vec::new(), 0);
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Flush(notified) => flushed.push(notified),
                    Message::Lines(lines) => {
                        bytes += lines.bytes();
                        self.keep(&lines);
                    }
                }
                // There may always be more, because the function prints while the thread writes.
                next = if bytes < ROUND_BYTES {
                    messages.try_recv().ok()
                } else {
                    None
                };
            }
            self.flush();
            // The caller may be gone.
            for notified in flushed {
                let _ = notified.send(());
            }
        }
    }

    fn flush(&mut self) {
        let now = Instant::now();
        for (function, log) in &mut self.logs {
            if let Err(error) = log.flush(&self.readers, now) {
                self.trouble.failed(function, &error, now);
            }
        }
        self.trouble.may_have_ended(now);
    }

    fn keep(&mut self, lines: &Lines) {
        let (function, now) = (&lines.share.function, Instant::now());
        if !self.logs.contains_key(function) {
            if self.logs.len() >= FILES_MAX {
                self.flush();
                self.logs.values_mut().for_each(Log::close);
                self.logs.retain(|_, log| log.owes());
            }
            let log = Log::new(function, path_of(&self.directory, function));
            self.logs.insert(function.to_owned(), log);
        }
        let log = self
            .logs
            .get_mut(function)
            .expect("it is there, or just made");
        if let Err(error) = log.keep(lines, &self.readers, now) {
            self.trouble.failed(function, &error, now);
        }
    }
}

/// Reports in the server's log that the disk refuses lines, once for all functions.
#[derive(Debug)]
struct Trouble {
    began: Instant,
    outage: LogThrottle,
    failed_last: Instant,
}

impl Trouble {
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            outage: LogThrottle::default(),
            failed_last: now,
        }
    }

    fn failed(&mut self, function: &str, error: &io::Error, now: Instant) {
        self.failed_last = now;
        if let Some(lasts) = self
            .outage
            .failed(Monotonic(now - self.began), &error.to_string())
        {
            tracing::warn!(%error, function, ?lasts, "lines of functions are lost; their logs say how many");
        }
    }

    /// A nearly full disk takes some lines between failures, which is no recovery.
    fn may_have_ended(&mut self, now: Instant) {
        if self.outage.reason().is_some() && now - self.failed_last >= QUIET {
            let lasted = self.outage.ended(Monotonic(self.failed_last - self.began));
            tracing::info!(?lasted, "lines of functions are kept again");
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write as _};

    use ports::Logs as _;

    use super::*;

    /// Up to `lines_max` lines from `from` on.
    pub(super) fn page(from: u64, lines_max: usize) -> Page {
        Page {
            from,
            lines_max,
            bytes_max: usize::MAX,
        }
    }

    /// Lines of an invocation on their way.
    pub(super) fn lines(id: &str, text: &str) -> Lines {
        let (logs, messages) = Logs::stalled();
        keep(&logs, &Arc::new(Share::new("one")), id, text);
        match messages.try_recv() {
            Ok(Message::Lines(lines)) => lines,
            _ => panic!("what was kept is on its way"),
        }
    }

    fn keep(logs: &Logs, share: &Arc<Share>, id: &str, text: &str) {
        assert!(
            logs.keep(share, &id.into(), text.to_owned()),
            "there is room"
        );
    }

    #[tokio::test]
    async fn numbers_go_on_over_restarts_and_readers_start_at_any_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        let [one, two] = ["one", "two"].map(|function| Arc::new(Share::new(function)));
        keep(&logs, &one, "a", "first\nsecond");
        keep(&logs, &two, "b", "another's");
        let lines = logs.lines("one", page(0, 10)).await.expect("read");
        let texts: Vec<_> = lines
            .iter()
            .map(|line| (line.number, line.text.as_str()))
            .collect();
        assert_eq!(texts, [(0, "first"), (1, "second")]);
        drop(logs);
        OpenOptions::new()
            .append(true)
            .open(directory.path().join("one.log"))
            .and_then(|mut file| file.write_all(b"{\"number\":2,\"at"))
            .expect("torn");
        let logs = Logs::open(directory.path().into()).expect("opened");
        keep(&logs, &one, "c", "third");
        let lines = logs.lines("one", page(1, 10)).await.expect("read");
        let texts: Vec<_> = lines
            .iter()
            .map(|line| (line.number, line.text.as_str()))
            .collect();
        assert_eq!(texts, [(1, "second"), (2, "third")]);
    }

    /// Whether readers were notified of a line of `function`.
    pub(super) async fn is_told(readers: &Readers, function: &str) -> bool {
        tokio::select! {
            biased;
            () = readers.more(function, 0) => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn readers_learn_of_lines_whose_file_is_closed_for_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let (logs, messages) = Logs::stalled();
        for number in 0..=FILES_MAX {
            keep(
                &logs,
                &Arc::new(Share::new(&number.to_string())),
                "a",
                "text",
            );
        }
        let (held, readers) = (Arc::clone(&logs.held), Arc::clone(&logs.readers));
        let mut files = Files::new(directory.path().into(), held, readers);
        while let Ok(Message::Lines(lines)) = messages.try_recv() {
            files.keep(&lines);
        }
        assert!(is_told(&files.readers, "0").await, "it is open no more");
        assert!(
            !is_told(&files.readers, &FILES_MAX.to_string()).await,
            "its line is in memory yet"
        );
    }

    /// A nearly full disk takes some lines between failures. The server's log must not report each
    /// of them.
    #[test]
    fn trouble_ends_once_no_write_has_failed_for_a_while() {
        let now = Instant::now();
        let mut trouble = Trouble::new(now);
        trouble.failed("one", &io::ErrorKind::StorageFull.into(), now);
        trouble.may_have_ended(now + QUIET / 2);
        assert!(trouble.outage.reason().is_some(), "it may go on");
        trouble.failed("one", &io::ErrorKind::StorageFull.into(), now + QUIET / 2);
        trouble.may_have_ended(now + QUIET);
        assert!(trouble.outage.reason().is_some(), "it has gone on");
        trouble.may_have_ended(now + QUIET / 2 + QUIET);
        assert_eq!(trouble.outage.reason(), None);
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
