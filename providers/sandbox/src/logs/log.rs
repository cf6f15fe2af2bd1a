//! The log of one function: a file of JSON lines, and the file that was put aside before it.
//!
//! On a full disk each write fails. Its lines are then lost, and the log pauses: all functions
//! share the writing thread, and a function that prints a lot would otherwise occupy it with
//! failing writes. The next line of the log is the number of lost lines.
//!
//! Invariants, under the lock of [`Log::end`]
//! - Lines are numbered without gaps: a lost line leaves its number to the next one.
//! - Only whole lines follow each other in a file. The part of a line that a failed write or a
//!   crash left is cut off before the next line.
//! - A page costs as much as its own lines: its first line is found by bisection, and a log opens
//!   with its last line.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ports::logs::{Line, Page};
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::{FILE_BYTES_MAX, Lines, SHARE_BYTES};
use crate::machine::now_ms;

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The bytes at the end of a file that hold its last line. The longest line has half of that.
const LAST_BYTES: u64 = 1 << 20;
/// The bytes in which a line is searched one by one.
const SEARCHED_BYTES: u64 = 64 << 10;
/// The bytes of lines that are written at once. In the file, an empty line takes a hundred times
/// its own length, so lines on their way are not converted all together.
const PIECE_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    /// The bytes of its lines on their way to the disk.
    bytes: AtomicUsize,
    has_room: Notify,
    /// Lost lines that the log does not mention yet.
    pub(crate) lost: AtomicUsize,
    /// The number after the last line that was written since the log is known.
    next: watch::Sender<u64>,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    /// The length of the file and the number of the next line; none: the file must tell.
    known: Option<(u64, u64)>,
    /// Nothing is written before this time.
    again_at: Option<Instant>,
}

#[derive(Serialize)]
struct Written<'a> {
    number: u64,
    at_ms: u64,
    id: &'a str,
    text: &'a str,
}

impl Log {
    /// The log of `function`, whose name is also a file name: letters, digits, `-` and `_`.
    pub(super) fn new(directory: &Path, function: &str) -> Self {
        Self {
            path: directory.join(format!("{function}.log")),
            bytes: AtomicUsize::new(0),
            has_room: Notify::new(),
            lost: AtomicUsize::new(0),
            next: watch::Sender::new(0),
            end: Mutex::default(),
        }
    }

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

    /// Charges its share. Returns all bytes on their way.
    pub(super) fn charge(&self, bytes: usize) -> usize {
        self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes
    }

    pub(super) fn release(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before >= SHARE_BYTES && before - bytes < SHARE_BYTES {
            self.has_room.notify_waiters();
        }
    }

    /// Writes `lines`, after the number of those that were lost before.
    ///
    /// Errors: lines were lost just now. Lines that are lost in the pause after that cause no
    /// error.
    pub(super) fn write(&self, lines: &[Lines], now: Instant) -> io::Result<()> {
        let mut end = self.end.lock();
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lines.is_empty() && lost == 0 {
            return Ok(());
        }
        let pauses = end.again_at.is_some_and(|again_at| now < again_at);
        let mut unwritten = lost + lines.iter().map(Lines::count).sum::<usize>();
        let written = if pauses {
            Ok(())
        } else {
            self.append(&mut end, lost, lines, &mut unwritten)
        };
        self.lost.fetch_add(unwritten, Ordering::Relaxed);
        if written.is_err() {
            end.again_at = Some(now + PAUSE);
        }
        written
    }

    /// Appends the number of `lost` lines and the `lines`, and counts `unwritten` down by those
    /// that are in a file.
    fn append(
        &self,
        end: &mut End,
        lost: usize,
        lines: &[Lines],
        unwritten: &mut usize,
    ) -> io::Result<()> {
        let mut file = self.open()?;
        let (mut bytes, mut number) = match end.known.take() {
            Some(known) => known,
            None => self.recover(&mut file)?,
        };
        let id = lines.first().map_or("", |lines| &*lines.id);
        let said = format!("({lost} lines before this one could not be kept)");
        let said = (lost > 0).then(|| (id, now_ms(), said.as_str(), lost));
        let lines = lines.iter().flat_map(|lines| {
            let texts = lines.text.split('\n');
            texts.map(|text| (&*lines.id, lines.at_ms, text, 1))
        });
        let mut all = said.into_iter().chain(lines).peekable();
        let (mut piece, mut counted) = (Vec::new(), 0);
        while let Some((id, at_ms, text, count)) = all.next() {
            let line = Written {
                number,
                at_ms,
                id,
                text,
            };
            serde_json::to_writer(&mut piece, &line).expect("memory takes texts and numbers");
            piece.push(b'\n');
            (number, counted) = (number + 1, counted + count);
            if piece.len() < PIECE_BYTES && all.peek().is_some() {
                continue;
            }
            end.known = None;
            bytes = self.put(&mut file, bytes, &piece)?;
            end.known = Some((bytes, number));
            self.next.send_replace(number);
            *unwritten -= counted;
            piece.clear();
            counted = 0;
        }
        Ok(())
    }

    /// Appends whole lines to `file`, which has `bytes` bytes, or to the next file if this one
    /// would become too long. Returns the new length.
    fn put(&self, file: &mut File, mut bytes: u64, lines: &[u8]) -> io::Result<u64> {
        if bytes > 0 && bytes + lines.len() as u64 > FILE_BYTES_MAX {
            fs::rename(&self.path, self.aside())?;
            (*file, bytes) = (self.open()?, 0);
        }
        file.write_all(lines).inspect_err(|_| {
            // If this fails too, the next write cuts off what is not a whole line. An operator may have
            // emptied the file meanwhile, which must not grow again.
            let is_longer = file.metadata().is_ok_and(|now| now.len() > bytes);
            let _ = is_longer.then(|| file.set_len(bytes));
        })?;
        Ok(bytes + lines.len() as u64)
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&self.path)
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("log.1")
    }

    /// Cuts off the part of a line at the end of `file`. Returns its length and the number of the
    /// next line.
    fn recover(&self, file: &mut File) -> io::Result<(u64, u64)> {
        let (text, rest) = last_lines(file)?;
        let bytes = file.metadata()?.len() - rest;
        file.set_len(bytes)?;
        let aside = match open_to_read(&self.aside())? {
            Some(mut aside) => last_lines(&mut aside)?.0,
            None => Vec::new(),
        };
        let last = |text: &[u8]| text.rsplit(|byte| *byte == b'\n').find_map(number_of);
        Ok((
            bytes,
            last(&text).or(last(&aside)).map_or(0, |last| last + 1),
        ))
    }

    pub(super) fn read(&self, page: Page) -> io::Result<Vec<Line>> {
        read_page(self.files()?, page)
    }

    /// The two files as they are now. A reader takes its time, and one thread writes all logs, so
    /// the lock is released before they are read.
    fn files(&self) -> io::Result<Vec<Lasting>> {
        let end = self.end.lock();
        let whole = end.known.map(|(bytes, _)| bytes);
        let aside = Lasting::open(&self.aside(), None)?;
        let present = Lasting::open(&self.path, whole)?;
        Ok(aside.into_iter().chain(present).collect())
    }

    pub(super) async fn more(&self, from: u64) {
        // No error: the sender lives as long as `self`.
        let _ = self.next.subscribe().wait_for(|next| *next > from).await;
    }
}

/// The first `bytes` bytes of a file, which no later write changes.
struct Lasting {
    file: BufReader<File>,
    bytes: u64,
    at: u64,
}

impl Lasting {
    /// The file at `path`, of which `bytes` are whole lines if that is known; none: there is none.
    fn open(path: &Path, bytes: Option<u64>) -> io::Result<Option<Self>> {
        let Some(file) = open_to_read(path)? else {
            return Ok(None);
        };
        let bytes = bytes.map_or_else(|| file.metadata().map(|found| found.len()), Ok)?;
        Ok(Some(Self {
            file: BufReader::new(file),
            bytes,
            at: 0,
        }))
    }

    fn seek(&mut self, at: u64) -> io::Result<()> {
        self.at = self.file.seek(SeekFrom::Start(at))?;
        Ok(())
    }

    /// Reads a line without its end into `text`. Returns its length in the file; 0: there is none.
    /// The end of a file without a line end is not a line.
    fn read_line(&mut self, text: &mut Vec<u8>) -> io::Result<u64> {
        text.clear();
        let rest = self.bytes.saturating_sub(self.at);
        let read = self.file.by_ref().take(rest).read_until(b'\n', text)? as u64;
        self.at += read;
        Ok(if text.pop() == Some(b'\n') { read } else { 0 })
    }

    /// Moves to the beginning of a line before the one with the number `from`, or of the file.
    fn seek_before(&mut self, from: u64) -> io::Result<()> {
        let (mut begin, mut end) = (0, self.bytes);
        let mut text = Vec::new();
        while begin + SEARCHED_BYTES < end {
            let middle = begin + (end - begin) / 2;
            self.seek(middle)?;
            // The rest of a line, and the line after it.
            let rest = self.read_line(&mut text)?;
            self.read_line(&mut text)?;
            match number_of(&text) {
                Some(number) if number < from => begin = middle + rest,
                _ => end = middle,
            }
        }
        self.seek(begin)
    }
}

/// The lines of a page in `files`, the older first.
fn read_page(files: Vec<Lasting>, page: Page) -> io::Result<Vec<Line>> {
    let (mut lines, mut bytes, mut next) = (Vec::new(), 0, page.from);
    for mut file in files {
        let mut text = Vec::new();
        file.seek_before(next)?;
        while file.read_line(&mut text)? > 0 {
            if number_of(&text).is_none_or(|number| number < next) {
                continue;
            }
            let Ok(line) = serde_json::from_slice::<Line>(&text) else {
                continue;
            };
            bytes += line.text.len();
            let is_full =
                lines.len() >= page.lines_max || bytes > page.bytes_max && !lines.is_empty();
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

/// The whole lines at the end of `file`, and the bytes after them.
fn last_lines(file: &mut File) -> io::Result<(Vec<u8>, u64)> {
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(LAST_BYTES)))?;
    let mut text = Vec::new();
    file.take(LAST_BYTES.min(bytes)).read_to_end(&mut text)?;
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let rest = text.split_off(whole).len() as u64;
    Ok((text, rest))
}

/// The number of a stored line, without decoding the rest.
fn number_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"number\":")?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::logs::tests::{lines, page};

    fn log(directory: &tempfile::TempDir) -> Log {
        Log::new(directory.path(), "one")
    }

    fn numbers(log: &Log, from: u64) -> Vec<u64> {
        let read = log.read(page(from, 2)).expect("read");
        read.iter().map(|line| line.number).collect()
    }

    fn texts(log: &Log) -> Vec<(u64, String)> {
        let read = log.read(page(0, usize::MAX)).expect("read");
        read.into_iter()
            .map(|line| (line.number, line.text))
            .collect()
    }

    fn is_told(log: &Log) -> bool {
        *log.next.borrow() > 0
    }

    /// Each line tried the disk again, and read the whole log for that.
    #[test]
    fn on_a_full_disk_writes_pause_and_lost_lines_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let (log, now) = (log(&directory), Instant::now());
        log.write(&[lines("a", "first")], now).expect("written");
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&log.path, &elsewhere).expect("renamed");
        symlink("/dev/full", &log.path).expect("linked");
        log.write(&[lines("a", "second\nthird")], now)
            .expect_err("the disk is full");
        for _ in 0..100 {
            log.write(&[lines("b", "lost")], now + PAUSE / 2)
                .expect("nothing is tried");
        }
        log.write(&[lines("c", "x\ny")], now + PAUSE)
            .expect_err("the disk is full still");
        fs::rename(&elsewhere, &log.path).expect("renamed");
        assert_eq!(texts(&log), [(0, "first".to_owned())]);
        log.write(&[], now + 2 * PAUSE).expect("there is room");
        log.write(&[lines("d", "last")], now + 2 * PAUSE)
            .expect("written");
        let lost = "(104 lines before this one could not be kept)";
        let all = [
            (0, "first".to_owned()),
            (1, lost.to_owned()),
            (2, "last".to_owned()),
        ];
        assert_eq!(texts(&log), all);
    }

    /// A follower of the log of a function that had printed to a full disk read it again and again
    /// without a pause.
    #[test]
    fn readers_learn_only_of_lines_in_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let (log, now) = (log(&directory), Instant::now());
        symlink("/dev/full", &log.path).expect("linked");
        log.write(&[lines("a", "line")], now)
            .expect_err("the disk is full");
        assert!(!is_told(&log), "there was no room for it");
        fs::remove_file(&log.path).expect("removed");
        log.write(&[], now + PAUSE).expect("there is room");
        assert!(
            is_told(&log),
            "of what was lost, though it printed nothing since"
        );
    }

    #[test]
    fn a_line_says_its_number_first() {
        let line = Written {
            number: 17,
            at_ms: 1,
            id: "i",
            text: "{\"number\":3}",
        };
        let line = serde_json::to_vec(&line).expect("JSON");
        assert_eq!(number_of(&line), Some(17));
        for torn in [&b""[..], b"{\"number\":", b"{\"number\":5"] {
            assert_eq!(number_of(torn), None);
        }
    }

    #[test]
    fn numbers_go_on_after_the_last_whole_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut all, now) = (String::new(), Instant::now());
        for torn in ["", "{\"number\":9", "{\"number\":9,\"at_ms\":1}"] {
            let log = log(&directory);
            log.write(&[lines("a", &"x".repeat(200_000))], now)
                .expect("written");
            all = fs::read_to_string(&log.path).expect("read");
            fs::write(&log.path, all.clone() + torn).expect("written");
        }
        assert_eq!(texts(&log(&directory)).len(), 3);
        fs::write(directory.path().join("one.log"), "").expect("written");
        fs::write(directory.path().join("one.log.1"), all).expect("written");
        let log = log(&directory);
        log.write(&[lines("a", "later")], now).expect("written");
        assert_eq!((numbers(&log, 2), numbers(&log, 3)), (vec![2, 3], vec![3]));
    }

    #[test]
    fn a_page_begins_at_any_line_of_either_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let (log, now) = (log(&directory), Instant::now());
        let printed = |bytes| lines("a", &["x".repeat(bytes), "y\n".repeat(999)].join("\n"));
        for number in 0..300 {
            log.write(&[printed(number * 100)], now).expect("written");
        }
        assert!(log.aside().exists(), "it is long");
        let all: Vec<_> = texts(&log).iter().map(|line| line.0).collect();
        for from in all.iter().step_by(997) {
            assert_eq!(numbers(&log, *from), [*from, from + 1]);
        }
        let next = all.last().expect("some") + 1;
        assert_eq!(numbers(&log, next), [] as [u64; 0]);
        assert_eq!(all.len() as u64, next - all[0], "without gaps");
    }

    /// The lines that a function may print in one round.
    fn many_empty_lines() -> Lines {
        lines("a", &"\n".repeat(SHARE_BYTES - 1))
    }

    /// A round of short lines took a hundred times its length at once, and made a file as long.
    #[test]
    fn a_round_of_many_short_lines_stays_within_the_bound_of_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = log(&directory);
        log.write(&[many_empty_lines()], Instant::now())
            .expect("written");
        for path in [&log.path, &log.aside()] {
            let bytes = fs::metadata(path).expect("it is there").len();
            assert!(bytes <= FILE_BYTES_MAX, "{bytes} bytes");
        }
        let all = texts(&log);
        let (first, last) = (all[0].0, all[all.len() - 1].0);
        assert_eq!(last, SHARE_BYTES as u64 - 1);
        assert_eq!(all.len() as u64, last + 1 - first, "without gaps");
    }

    /// Lines that were written before the failure are not lost.
    #[test]
    fn only_the_lines_after_a_failure_are_counted_as_lost() {
        let directory = tempfile::tempdir().expect("a directory");
        let (log, now) = (log(&directory), Instant::now());
        log.write(&[lines("a", "first")], now).expect("written");
        fs::create_dir(log.aside()).expect("made");
        log.write(&[many_empty_lines()], now)
            .expect_err("the first file cannot be put aside");
        fs::remove_dir(log.aside()).expect("removed");
        let written = texts(&log).len();
        assert!(written > 1 && written < SHARE_BYTES, "{written}");
        log.write(&[], now + PAUSE).expect("it is put aside");
        let lost = 1 + SHARE_BYTES - written;
        let said = format!("({lost} lines before this one could not be kept)");
        assert_eq!(texts(&log).last(), Some(&(written as u64, said)));
    }

    /// A long page held the lock, and so held up the thread that writes all logs.
    #[test]
    fn a_page_is_read_beside_later_writes() {
        let directory = tempfile::tempdir().expect("a directory");
        let (log, now) = (log(&directory), Instant::now());
        log.write(&[lines("a", "first")], now).expect("written");
        let files = log.files().expect("opened");
        for _ in 0..2 {
            log.write(&[many_empty_lines()], now).expect("written");
        }
        assert!(texts(&log)[0].0 > 0, "the first file is gone");
        let read = read_page(files, page(0, usize::MAX)).expect("read");
        let numbers: Vec<_> = read.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [0]);
    }
}
