//! The writing side of one function's log.
//!
//! On a full disk each write fails. Its lines are then lost, and the log pauses: all functions
//! share the writing thread, and a function that prints a lot would otherwise occupy it with
//! failing writes. The next line of the log is the number of lost lines.
//!
//! Invariants
//! - Lines are numbered without gaps: a lost line leaves its number to the next one.
//! - The part of a line that a failed write or a crash left gets a line end before the next line,
//!   and counts as no line.
//! - Opening a log costs as much as reading its last line, however long the log is.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{FILE_BYTES_MAX, Lines, aside, now_ms, reading, reading::Readers};

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The most bytes that wait in memory, beside one line.
const WAITING_BYTES: usize = 16 << 10;

/// A [`Line`](ports::logs::Line) as it is stored.
#[derive(Serialize)]
struct Written<'a> {
    number: u64,
    at_ms: u64,
    id: &'a str,
    text: &'a str,
}

/// Lost lines.
#[derive(Debug)]
struct Lost {
    /// The last invocation that lost lines.
    id: Arc<str>,
    lines: usize,
}

#[derive(Debug)]
pub(super) struct Log {
    function: String,
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    /// Whether the file may end without a line end.
    is_torn: bool,
    /// Whole lines that are not in the file yet.
    waiting: Vec<u8>,
    /// The invocation that printed the last of them.
    id: Arc<str>,
    /// The number of the next line.
    next: u64,
    /// Readers were notified of all lines before this number.
    notified: u64,
    /// Lost lines that the log does not mention yet.
    lost: Option<Lost>,
    again_at: Option<Instant>,
}

impl Log {
    /// The log of `function` at `path`. The file is opened for the first line.
    pub(super) fn new(function: &str, path: PathBuf) -> Self {
        Self {
            function: function.to_owned(),
            path,
            file: None,
            bytes: 0,
            is_torn: false,
            waiting: Vec::new(),
            id: "".into(),
            next: 0,
            notified: 0,
            lost: None,
            again_at: None,
        }
    }

    /// Whether it has lost lines that it does not mention yet.
    pub(super) fn owes(&self) -> bool {
        self.lost.is_some()
    }

    /// Takes lines. Most are in the file after a flush.
    ///
    /// Errors: lines were lost just now. Lines that are lost in the pause after that cause no
    /// error.
    pub(super) fn keep(
        &mut self,
        lines: &Lines,
        readers: &Readers,
        now: Instant,
    ) -> io::Result<()> {
        let mut left = lines.text.split('\n');
        let kept = if self.pauses(now) {
            Ok(())
        } else {
            self.put(lines, &mut left, readers)
        };
        self.lose(&lines.id, left.count());
        self.after(kept, now)
    }

    /// Writes the lines in memory, and notifies readers of new lines.
    ///
    /// Errors: as [`Self::keep`].
    pub(super) fn flush(&mut self, readers: &Readers, now: Instant) -> io::Result<()> {
        if self.pauses(now)
            || self.waiting.is_empty() && self.lost.is_none() && self.notified == self.next
        {
            return Ok(());
        }
        let flushed = self
            .open()
            .and_then(|()| self.own_up())
            .and_then(|()| self.write());
        self.after(flushed, now)?;
        readers.notify(&self.function, self.next);
        self.notified = self.next;
        Ok(())
    }

    /// Closes the file after a flush. The log can be used again.
    pub(super) fn close(&mut self) {
        self.file = None;
    }

    fn pauses(&self, now: Instant) -> bool {
        self.again_at.is_some_and(|again_at| now < again_at)
    }

    fn after(&mut self, result: io::Result<()>, now: Instant) -> io::Result<()> {
        if result.is_err() {
            self.again_at = Some(now + PAUSE);
        }
        result
    }

    /// Moves the rest of `lines` to the buffer.
    fn put<'a>(
        &mut self,
        lines: &'a Lines,
        left: &mut impl Iterator<Item = &'a str>,
        readers: &Readers,
    ) -> io::Result<()> {
        self.open()?;
        self.own_up()?;
        for text in left {
            self.add(&lines.id, lines.at_ms, text);
            let bytes = self.bytes + self.waiting.len() as u64;
            if self.waiting.len() >= WAITING_BYTES || bytes >= FILE_BYTES_MAX {
                self.write()?;
            }
            if self.bytes >= FILE_BYTES_MAX {
                self.put_aside(readers)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, id: &Arc<str>, at_ms: u64, text: &str) {
        let line = Written {
            number: self.next,
            at_ms,
            id,
            text,
        };
        serde_json::to_writer(&mut self.waiting, &line).expect("memory takes texts and numbers");
        self.waiting.push(b'\n');
        self.next += 1;
        self.id = Arc::clone(id);
    }

    /// Reports lost lines in the log.
    fn own_up(&mut self) -> io::Result<()> {
        let Some(lost) = self.lost.take() else {
            return Ok(());
        };
        let text = format!(
            "({} lines of this invocation, or before it, could not be kept)",
            lost.lines
        );
        self.add(&lost.id, now_ms(), &text);
        let written = self.write();
        if written.is_err() {
            self.lost = Some(lost);
        }
        written
    }

    /// Writes the buffer. Lines that cannot be written are lost.
    fn write(&mut self) -> io::Result<()> {
        let (mut written, result) = self.write_some();
        self.bytes += written as u64;
        let is_line_end = |byte: &u8| *byte == b'\n';
        if written > 0 {
            let whole = self.waiting[..written]
                .iter()
                .rposition(is_line_end)
                .map_or(0, |end| end + 1);
            self.is_torn = whole < written;
            written = whole;
        }
        let lost = self.waiting[written..]
            .iter()
            .filter(|byte| is_line_end(byte))
            .count();
        self.next -= lost as u64;
        self.waiting.clear();
        self.lose(&Arc::clone(&self.id), lost);
        result
    }

    /// The number of written bytes of the buffer.
    fn write_some(&mut self) -> (usize, io::Result<()>) {
        let Some(file) = &mut self.file else {
            return (0, Ok(()));
        };
        if self.is_torn && !self.waiting.is_empty() {
            if let Err(error) = file.write_all(b"\n") {
                return (0, Err(error));
            }
            (self.is_torn, self.bytes) = (false, self.bytes + 1);
        }
        let mut written = 0;
        while written < self.waiting.len() {
            match file.write(&self.waiting[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    fn lose(&mut self, id: &Arc<str>, lines: usize) {
        if lines > 0 {
            let lost = self.lost.get_or_insert_with(|| Lost {
                id: Arc::clone(id),
                lines: 0,
            });
            (lost.id, lost.lines) = (Arc::clone(id), lost.lines + lines);
        }
    }

    /// Opens the file, if needed, to continue after its last line.
    fn open(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let next = reading::next_number([&self.path, &aside(&self.path)])?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)?;
        let bytes = file.metadata()?.len();
        // The earlier holder of the file may not have notified readers of the last lines.
        (
            self.file,
            self.bytes,
            self.is_torn,
            self.next,
            self.notified,
        ) = (Some(file), bytes, bytes > 0, next, 0);
        Ok(())
    }

    fn put_aside(&mut self, readers: &Readers) -> io::Result<()> {
        // After a failure it is unknown which of the two files this is, so it is opened again.
        self.file = None;
        let path = &self.path;
        let file = readers.put_aside(&self.function, || {
            fs::rename(path, aside(path))?;
            OpenOptions::new().create(true).append(true).open(path)
        })?;
        (self.file, self.bytes) = (Some(file), 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        os::fd::{AsFd as _, OwnedFd},
    };

    use super::*;
    use crate::logs::tests::{is_told, lines, page};

    fn log(directory: &tempfile::TempDir) -> (Log, Readers) {
        (
            Log::new("one", directory.path().join("one.log")),
            Readers::default(),
        )
    }

    fn texts(log: &Log, readers: &Readers) -> Vec<(u64, String)> {
        let read = readers
            .read("one", [&log.path, &aside(&log.path)], page(0, usize::MAX))
            .expect("read");
        read.into_iter()
            .map(|line| (line.number, line.text))
            .collect()
    }

    fn full() -> File {
        OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .expect("opened")
    }

    /// Each line tried the disk again, and read the whole log for that.
    #[test]
    fn on_a_full_disk_writes_pause_and_lost_lines_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let ((mut log, readers), now) = (log(&directory), Instant::now());
        log.keep(&lines("a", "first"), &readers, now).expect("kept");
        log.flush(&readers, now).expect("there is room");
        let file = log.file.replace(full());
        log.keep(&lines("a", "second\nthird"), &readers, now)
            .expect("it waits");
        log.flush(&readers, now).expect_err("the disk is full");
        log.file = file;
        let soon = now + PAUSE / 2;
        for _ in 0..100 {
            log.keep(&lines("b", "lost"), &readers, soon)
                .expect("nothing is tried");
            log.flush(&readers, soon).expect("nothing is tried");
        }
        assert_eq!(texts(&log, &readers), [(0, "first".to_owned())]);
        let file = log.file.replace(full());
        log.keep(&lines("c", "x\ny"), &readers, now + PAUSE)
            .expect_err("the disk is full still");
        log.file = file;
        let later = now + 2 * PAUSE;
        log.flush(&readers, later).expect("there is room");
        log.keep(&lines("d", "last"), &readers, later)
            .expect("kept");
        log.flush(&readers, later).expect("there is room");
        let lost = "(104 lines of this invocation, or before it, could not be kept)";
        let all = [
            (0, "first".to_owned()),
            (1, lost.to_owned()),
            (2, "last".to_owned()),
        ];
        assert_eq!(texts(&log, &readers), all);
    }

    /// A reader goes on after the number of the last line it has read.
    #[test]
    fn of_a_write_that_fails_in_the_midst_whole_lines_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let ((mut log, readers), now) = (log(&directory), Instant::now());
        let (mut end, pipe) = io::pipe().expect("a pipe");
        nix::fcntl::fcntl(
            pipe.as_fd(),
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )
        .expect("it does not wait");
        log.file = Some(File::from(OwnedFd::from(pipe)));
        let printed: Vec<_> = (0..100).map(|number| format!("{number:01000}")).collect();
        log.keep(&lines("a", &printed.join("\n")), &readers, now)
            .expect_err("a pipe holds 64 KiB");
        let mut written = vec![0; 1 << 20];
        let length = end.read(&mut written).expect("read");
        let whole = written[..length]
            .split_inclusive(|byte| *byte == b'\n')
            .count()
            - 1;
        assert!(whole > 0 && log.is_torn, "{whole} of {length} bytes");
        assert_eq!(
            (log.next, log.lost.as_ref().map(|lost| lost.lines)),
            (whole as u64, Some(100 - whole))
        );
        log.flush(&readers, now + PAUSE).expect("there is room");
        let length = end.read(&mut written).expect("read");
        assert!(written[..length].starts_with(format!("\n{{\"number\":{whole},").as_bytes()));
    }

    /// A follower of the log of a function that had printed to a full disk read it again and again
    /// without a pause.
    #[tokio::test]
    async fn readers_learn_only_of_lines_in_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let ((mut log, readers), now) = (log(&directory), Instant::now());
        log.file = Some(full());
        log.keep(&lines("a", "line"), &readers, now)
            .expect("it is held back");
        log.flush(&readers, now).expect_err("the disk is full");
        assert!(!is_told(&readers, "one").await, "there was no room for it");
        log.file = None;
        log.flush(&readers, now + PAUSE).expect("there is room");
        assert!(
            is_told(&readers, "one").await,
            "of what was lost, though it printed nothing since"
        );
    }
}
