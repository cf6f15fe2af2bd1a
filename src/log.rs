//! The log: lines to stderr, which a thread of its own writes.
//!
//! The reader of stderr may stop reading, and a full pipe blocks its writers: a worker thread with
//! every connection that it serves. So lines go to memory, and the thread writes them later. Lines
//! that cannot be written, because the pipe or the disk is full, are dropped and counted, and
//! clients notice nothing.
//!
//! Invariants
//! - At most [`WAITING_BYTES_MAX`] wait, beside as many that are being written. A line beyond that
//!   is dropped.
//! - A line reports the number of dropped lines before the next lines.
//! - At the end, and before a panic ends the process, all waiting lines are written, within
//!   [`FLUSH_MAX`].
//!
//! `tracing-appender` uses a channel, rolling files and a calendar for this, and does not write the
//! number of dropped lines into the log.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fs::File,
    io::{self, Write},
    mem,
    os::fd::AsFd as _,
    panic,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Some thousand lines.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// The capacity that buffers keep after they were written.
const BYTES_KEPT: usize = 64 << 10;
/// The time for the last lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The queue of lines. Clones belong to one log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: Vec<u8>,
    /// Other lines were taken out and are not written yet.
    is_writing: bool,
    dropped: u64,
    /// How many of the dropped lines no line has reported yet.
    untold: u64,
}

impl Log {
    /// The log to this process's stderr.
    pub(crate) fn to_stderr() -> io::Result<Self> {
        // The standard library's handle has a lock, and a write that hangs would hold it forever.
        Self::to(File::from(io::stderr().as_fd().try_clone_to_owned()?))
    }

    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let log = Self::default();
        let writer = log.clone();
        thread::Builder::new()
            .name("landfast-log".into())
            .spawn(move || writer.write_to(output))?;
        Ok(log)
    }

    /// Writes panics to this log too. The default hook would wait for a reader, and the process
    /// with it.
    pub(crate) fn take_panics(&self) {
        let log = self.clone();
        panic::set_hook(Box::new(move |panic| {
            let backtrace = Backtrace::capture();
            let thread = thread::current();
            log.put(
                format!("thread '{}' {panic}\n", thread.name().unwrap_or("unnamed")).as_bytes(),
            );
            if backtrace.status() == BacktraceStatus::Captured {
                log.put(format!("{backtrace}\n").as_bytes());
            }
            log.flush(FLUSH_MAX);
        }));
    }

    /// Adds a line, or several that belong together. Never waits for the reader.
    pub(crate) fn put(&self, line: &[u8]) {
        let mut lines = self.lines();
        if lines.waiting.len() + line.len() > WAITING_BYTES_MAX {
            lines.drop_lines(1);
            return;
        }
        lines.waiting.extend_from_slice(line);
        self.0.changed.notify_all();
    }

    /// How many lines were dropped since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.lines().dropped
    }

    /// Waits until everything is written, for at most this long.
    fn flush(&self, patience: Duration) {
        let is_behind = |lines: &mut Lines| lines.is_writing || !lines.waiting.is_empty();
        // A reader that is too slow misses the rest.
        drop(
            self.0
                .changed
                .wait_timeout_while(self.lines(), patience, is_behind),
        );
    }

    /// The same for [`FLUSH_MAX`].
    pub(crate) fn finish(&self) {
        self.flush(FLUSH_MAX);
    }

    fn write_to(&self, mut output: impl Write) {
        let mut bytes = Vec::new();
        loop {
            self.take(&mut bytes);
            if output
                .write_all(&bytes)
                .and_then(|()| output.flush())
                .is_err()
            {
                let count = bytes.split_inclusive(|byte| *byte == b'\n').count();
                self.lines().drop_lines(count as u64);
            }
            bytes.clear();
            bytes.shrink_to(BYTES_KEPT);
        }
    }

    /// Waits for lines, and takes all of them.
    fn take(&self, bytes: &mut Vec<u8>) {
        let mut lines = self.lines();
        lines.is_writing = false;
        self.0.changed.notify_all();
        let waited = self
            .0
            .changed
            .wait_while(lines, |lines| lines.waiting.is_empty());
        lines = waited.unwrap_or_else(PoisonError::into_inner);
        lines.is_writing = true;
        if lines.untold > 0 {
            let untold = mem::take(&mut lines.untold);
            bytes.extend_from_slice(format!("{untold} lines of the log were dropped\n").as_bytes());
        }
        bytes.append(&mut lines.waiting);
        lines.waiting.shrink_to(BYTES_KEPT);
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn drop_lines(&mut self, count: u64) {
        self.dropped += count;
        self.untold += count;
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
    use super::*;

    const LINE: &[u8] = b"somebody was refused for the thousandth time\n";
    const PATIENCE: Duration = Duration::from_secs(30);

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

    #[test]
    fn what_nobody_reads_is_dropped_and_told_of_and_waits_within_its_bound() {
        const PUT: usize = 4 * WAITING_BYTES_MAX / LINE.len();
        let output = Output::default();
        let log = Log::to(output.clone()).expect("a thread");
        let reader_is_away = output.0.lock().expect("no panic while it is held");
        for _ in 0..PUT {
            log.put(LINE);
            assert!(log.lines().waiting.len() <= WAITING_BYTES_MAX);
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
        assert!(
            log.lines().waiting.capacity() <= BYTES_KEPT,
            "nothing is kept of it"
        );
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
