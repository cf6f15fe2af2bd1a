//! The log: lines to stderr, which a thread of its own writes.
//!
//! The reader of stderr may stop reading, and a full pipe blocks its writers: a worker thread with
//! every connection that it serves. So lines go to memory, and the thread writes them later. Lines
//! that cannot be written, because the pipe or the disk is full, are dropped and counted, and
//! clients notice nothing.
//!
//! Invariants
//! - At most [`WAITING_BYTES_MAX`] wait. A line beyond that is dropped.
//! - A line reports the number of dropped lines before the next line.
//! - At the end, and before a panic ends the process, all waiting lines are written, within
//!   [`FLUSH_MAX`].
//!
//! `tracing-appender` bounds the number of lines instead of their bytes, counts no failed writes,
//! and does not write the number of dropped lines into the log.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fs::File,
    io::{self, Write},
    os::fd::AsFd as _,
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Some thousand lines.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// The time for the last lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The queue of lines. Clones belong to one log.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// Bounded by the bytes that wait.
    entries: mpsc::Sender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
enum Entry {
    Line(Box<[u8]>),
    /// Its sender is dropped once all earlier lines are written.
    Flush {
        _written: mpsc::Sender<()>,
    },
}

#[derive(Debug, Default)]
struct Counts {
    waiting_bytes: AtomicUsize,
    dropped: AtomicU64,
}

impl Log {
    pub(crate) fn to_stderr() -> io::Result<Self> {
        // The standard library's handle has a lock, and a write that hangs would hold it forever.
        Self::to(File::from(io::stderr().as_fd().try_clone_to_owned()?))
    }

    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (entries, waiting) = mpsc::channel();
        let counts = Arc::<Counts>::default();
        let written = Arc::clone(&counts);
        thread::Builder::new()
            .name("landfast-log".into())
            .spawn(move || written.write(waiting, output))?;
        Ok(Self { entries, counts })
    }

    /// Writes panics to this log too. The default hook would wait for a reader, and the process
    /// with it.
    pub(crate) fn take_panics(&self) {
        let log = self.clone();
        panic::set_hook(Box::new(move |panic| {
            let backtrace = Backtrace::capture();
            let thread = thread::current();
            let name = thread.name().unwrap_or("unnamed");
            log.put(format!("thread '{name}' {panic}\n").as_bytes());
            if backtrace.status() == BacktraceStatus::Captured {
                log.put(format!("{backtrace}\n").as_bytes());
            }
            log.finish();
        }));
    }

    /// Adds a line, or several that belong together. Never waits for the reader.
    pub(crate) fn put(&self, line: &[u8]) {
        let waiting = &self.counts.waiting_bytes;
        if waiting.fetch_add(line.len(), Ordering::Relaxed) + line.len() > WAITING_BYTES_MAX {
            waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            // The thread lives as long as this sender.
            let _ = self.entries.send(Entry::Line(line.into()));
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, for [`FLUSH_MAX`].
    pub(crate) fn finish(&self) {
        self.flush(FLUSH_MAX);
    }

    fn flush(&self, patience: Duration) {
        let (sender, written) = mpsc::channel();
        let _ = self.entries.send(Entry::Flush { _written: sender });
        // A reader that is too slow misses the rest.
        let _ = written.recv_timeout(patience);
    }
}

impl Counts {
    fn write(&self, entries: mpsc::Receiver<Entry>, mut output: impl Write) {
        let mut told = 0;
        for entry in entries {
            let Entry::Line(line) = entry else { continue };
            let dropped = self.dropped.load(Ordering::Relaxed);
            let report = match dropped - told {
                0 => String::new(),
                count => format!("{count} lines of the log were dropped\n"),
            };
            let text = [report.as_bytes(), &line].concat();
            if output
                .write_all(&text)
                .and_then(|()| output.flush())
                .is_ok()
            {
                told = dropped;
            } else {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            self.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
        }
    }
}

/// A line is written at once, as the formatter of `tracing_subscriber` does.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const LINE: &[u8] = b"somebody was refused for the thousandth time\n";
    const PATIENCE: Duration = Duration::from_mins(2);

    /// The written bytes. Holding its lock blocks the writer.
    #[derive(Debug, Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .expect("no panic while it is held")
                .write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(output: &Output) -> String {
        String::from_utf8(output.0.lock().expect("no panic while it is held").clone())
            .expect("these are lines")
    }

    fn waiting(log: &Log) -> usize {
        log.counts.waiting_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn what_nobody_reads_is_dropped_and_told_of_and_waits_within_its_bound() {
        const PUT: usize = 4 * WAITING_BYTES_MAX / LINE.len();
        let output = Output::default();
        let log = Log::to(output.clone()).expect("a thread");
        let reader_is_away = output.0.lock().expect("no panic while it is held");
        for _ in 0..PUT {
            log.put(LINE);
            assert!(waiting(&log) <= WAITING_BYTES_MAX);
        }
        let dropped = log.dropped() as usize;
        // The waiting bytes, and those that are being written.
        assert!(
            dropped >= PUT - 2 * (WAITING_BYTES_MAX / LINE.len()) && dropped < PUT,
            "{dropped} of {PUT}"
        );
        drop(reader_is_away);
        log.flush(PATIENCE);
        log.put(b"afterwards\n");
        log.flush(PATIENCE);
        let written = written(&output);
        let told = written
            .lines()
            .filter_map(|line| line.strip_suffix(" lines of the log were dropped"));
        assert_eq!(
            told.map(|count| count.parse::<usize>().expect("a count"))
                .sum::<usize>(),
            dropped
        );
        assert_eq!(written.matches("refused").count(), PUT - dropped);
        assert!(written.ends_with("afterwards\n"));
        assert_eq!(waiting(&log), 0, "nothing is kept of it");
    }

    #[test]
    fn the_last_lines_wait_for_a_reader_and_not_for_ever() {
        let output = Output::default();
        let log = Log::to(output.clone()).expect("a thread");
        let reader_is_away = output.0.lock().expect("no panic while it is held");
        log.put(LINE);
        log.flush(Duration::from_millis(1));
        drop(reader_is_away);
        log.flush(PATIENCE);
        assert_eq!(written(&output).as_bytes(), LINE);
    }

    /// A writer whose disk is full.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let log = Log::to(Full).expect("a thread");
        for count in 1..=3 {
            log.put(LINE);
            log.flush(PATIENCE);
            // The line that reports earlier losses is lost as well.
            assert!(log.dropped() >= count);
        }
    }
}
