//! The logs port: lines that functions print, in one file per function. A long file loses its older
//! half.
//!
//! A thread of its own writes, so that readers of the pipes never wait for the disk. The lines on
//! their way to it have a bound per log, its share. While the share is full, the
//! function's output is not read, and the function waits in its own write. A function that prints
//! without end thus slows only itself and loses nothing.
//!
//! The end of an invocation cannot wait, so it may exceed the share up to a second bound. Lines
//! beyond that are lost. The thread waits briefly after the first lines, because each short
//! invocation has three: a wake-up costs more than a write. Nothing is synced; after a crash of the
//! machine the last lines may be missing.
//!
//! Invariants
//! - No line of a function is dropped because of others' output, while fewer than
//!   [`WAITING_BYTES_MAX`] are on their way.
//! - Lost lines are counted in their log ([`log`]). The server's log reports that a disk refuses
//!   lines, once a minute.
//! - Readers learn only of lines that are in a file. Otherwise they would read again and again.

mod log;

use std::{
    collections::HashMap,
    fs, io, iter,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use ports::logs::{Line, Page};
use tokio::sync::oneshot;

pub(crate) use self::log::Log;
use crate::machine::now_ms;

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
/// How long lines wait for others to share a write.
const LINGER: Duration = Duration::from_millis(5);
/// The bytes that are written before waiting callers are notified.
const ROUND_BYTES: usize = SHARE_BYTES;
/// The logs that are remembered although no instance and no reader uses them.
const LOGS_MAX: usize = 1024;
const REPORT_EVERY: Duration = Duration::from_mins(1);

pub(crate) enum Message {
    Lines(Lines),
    /// A request to write everything before it to the files.
    Flush(oneshot::Sender<()>),
}

/// Lines of one invocation on their way. They take part of their log's share until they are
/// dropped.
pub(crate) struct Lines {
    log: Arc<Log>,
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

    fn count(&self) -> usize {
        self.text.split('\n').count()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
        self.log.release(self.bytes());
    }
}

#[derive(Debug)]
pub(crate) struct Logs {
    directory: PathBuf,
    all: Mutex<HashMap<String, Arc<Log>>>,
    /// Unbounded as a channel, and bounded by the bytes of its messages.
    waiting: Sender<Message>,
    /// The bytes of all lines on their way.
    held: Arc<AtomicUsize>,
}

impl Logs {
    /// Logs in `directory`, which is created if needed.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let (logs, messages) = Self::with_messages(directory);
        thread::Builder::new()
            .name("function logs".into())
            .spawn(move || write(&messages))?;
        Ok(logs)
    }

    fn with_messages(directory: PathBuf) -> (Self, Receiver<Message>) {
        let (waiting, messages) = channel();
        let logs = Self {
            directory,
            all: Mutex::default(),
            waiting,
            held: Arc::default(),
        };
        (logs, messages)
    }

    pub(crate) fn log(&self, function: &str) -> Arc<Log> {
        let mut all = self.all.lock();
        if all.len() >= LOGS_MAX {
            all.retain(|_, log| Arc::strong_count(log) > 1);
        }
        let new = || Arc::new(Log::new(&self.directory, function));
        Arc::clone(all.entry(function.to_owned()).or_insert_with(new))
    }

    /// Passes `text`, one line or more, to the thread. Without room for it, it is lost.
    pub(crate) fn keep(&self, log: &Arc<Log>, id: &Arc<str>, text: String) {
        let bytes = MESSAGE_BYTES + text.len();
        let own = log.charge(bytes);
        let all = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let lines = Lines {
            log: Arc::clone(log),
            held: Arc::clone(&self.held),
            id: Arc::clone(id),
            text,
            at_ms: now_ms(),
        };
        if own > SHARE_BYTES_MAX || all > WAITING_BYTES_MAX {
            log.lost.fetch_add(lines.count(), Ordering::Relaxed);
        } else {
            // An error means that the thread has ended.
            let _ = self.waiting.send(Message::Lines(lines));
        }
    }

    /// Waits until all earlier lines are in the files.
    pub(crate) async fn flush(&self) {
        let (flushed, wait) = oneshot::channel();
        // An error means that the thread has ended: no more lines will come.
        let _ = self.waiting.send(Message::Flush(flushed));
        let _ = wait.await;
    }
}

#[async_trait]
impl ports::Logs for Logs {
    /// The flush comes first, so that the page has every line that was printed before the call.
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.flush().await;
        let log = self.log(function);
        let read = tokio::task::spawn_blocking(move || {
            // Mentions lost lines even if the function prints no more. A failure changes nothing.
            let _ = log.write(&[], Instant::now());
            log.read(page)
        });
        read.await.map_err(io::Error::other)?
    }

    async fn more_lines(&self, function: &str, from: u64) {
        self.log(function).more(from).await;
    }
}

/// Writes messages until all senders are gone.
fn write(messages: &Receiver<Message>) {
    let (mut reported, mut bytes) = (None, 0);
    while let Ok(first) = messages.recv() {
        if matches!(first, Message::Lines(_)) && bytes < ROUND_BYTES {
            thread::sleep(LINGER);
        }
        let (mut flushed, mut round) = (Vec::new(), Vec::new());
        bytes = 0;
        for message in iter::once(first).chain(messages.try_iter()) {
            match message {
                Message::Flush(notified) => flushed.push(notified),
                Message::Lines(lines) => {
                    bytes += lines.bytes();
                    round.push(lines);
                }
            }
            // There may always be more, because functions print while the thread writes.
            if bytes >= ROUND_BYTES {
                break;
            }
        }
        round.sort_by_key(|lines| Arc::as_ptr(&lines.log));
        for lines in round.chunk_by(|one, other| Arc::ptr_eq(&one.log, &other.log)) {
            let now = Instant::now();
            let Err(error) = lines[0].log.write(lines, now) else {
                continue;
            };
            if reported.is_none_or(|reported| now - reported >= REPORT_EVERY) {
                reported = Some(now);
                tracing::warn!(%error, "lines of functions are lost; their logs say how many");
            }
        }
        // The caller may be gone.
        for notified in flushed {
            let _ = notified.send(());
        }
    }
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

    impl Logs {
        /// Logs whose messages wait until a test takes them.
        pub(crate) fn stalled() -> (Self, Receiver<Message>) {
            Self::with_messages(PathBuf::new())
        }
    }

    /// Lines of an invocation on their way.
    pub(super) fn lines(id: &str, text: &str) -> Lines {
        let (logs, messages) = Logs::stalled();
        keep(&logs, "one", id, text);
        match messages.try_recv() {
            Ok(Message::Lines(lines)) => lines,
            _ => panic!("what was kept is on its way"),
        }
    }

    fn keep(logs: &Logs, function: &str, id: &str, text: &str) {
        logs.keep(&logs.log(function), &id.into(), text.to_owned());
    }

    #[tokio::test]
    async fn numbers_go_on_over_restarts_and_readers_start_at_any_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        keep(&logs, "one", "a", "first\nsecond");
        keep(&logs, "two", "b", "another's");
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
        keep(&logs, "one", "c", "third");
        let lines = logs.lines("one", page(1, 10)).await.expect("read");
        let texts: Vec<_> = lines
            .iter()
            .map(|line| (line.number, line.text.as_str()))
            .collect();
        assert_eq!(texts, [(1, "second"), (2, "third")]);
    }

    #[tokio::test]
    async fn a_long_log_loses_its_older_half() {
        let directory = tempfile::tempdir().expect("a directory");
        let logs = Logs::open(directory.path().into()).expect("opened");
        let text = "x".repeat(1 << 19);
        for _ in 0..80 {
            keep(&logs, "one", "a", &text);
            logs.lines("one", page(u64::MAX, 0)).await.expect("flushed");
        }
        let lines = logs.lines("one", page(0, 100)).await.expect("read");
        assert_eq!(lines.last().expect("some").number, 79);
        assert!(lines.len() <= 36, "{} lines of 512 KiB", lines.len());
    }
}
