//! Reads lines from any number on.
//!
//! A follower asks again and again from the end of its last page. The ends of pages are therefore
//! remembered, and the next page begins there. A reader that asks from another place, as after a
//! restart, makes the log read from its beginning.
//!
//! Invariants
//! - An offset belongs to a file, not to a name. A file that is put aside keeps its offsets, and
//!   the older file loses its own. Files are put aside and opened for reading under one lock, so no
//!   reader takes one for the other.
//! - The end of a file without a line end is not a line yet. No offset lies after it.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use parking_lot::Mutex;
use ports::logs::{Line, Page};
use tokio::sync::watch;

/// The most remembered ends of pages per log: as many followers can continue where they were.
const ENDS_MAX: usize = 16;
/// The most functions for which more is known than that a reader waits for lines.
const KNOWN_MAX: usize = 1024;

/// The bytes at the end of a log in which its last line is searched; doubled until there is one.
const LAST_BYTES: u64 = 64 << 10;

/// The number of a file among all that were ever opened.
type FileNumber = u64;

/// The state that readers of all logs share with the writer.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Index>);

#[derive(Debug, Default)]
struct Index {
    last: FileNumber,
    known: HashMap<String, Known>,
}

/// A log that was read.
#[derive(Debug)]
struct Known {
    newer: FileNumber,
    older: FileNumber,
    /// Ends of pages, each with the number of the line after it, the latest one last.
    ends: VecDeque<(u64, Place)>,
    /// The number after the last line that was written since the log is known.
    next: watch::Sender<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    file: FileNumber,
    offset: u64,
}

impl Index {
    fn number(&mut self) -> FileNumber {
        self.last += 1;
        self.last
    }

    fn known(&mut self, function: &str) -> &mut Known {
        if !self.known.contains_key(function) {
            if self.known.len() >= KNOWN_MAX {
                self.known
                    .retain(|_, known| known.next.receiver_count() > 0);
            }
            let (older, newer) = (self.number(), self.number());
            let known = Known {
                newer,
                older,
                ends: VecDeque::new(),
                next: watch::Sender::new(0),
            };
            self.known.insert(function.to_owned(), known);
        }
        self.known.get_mut(function).expect("it was just put there")
    }
}

impl Readers {
    /// Lines of `function`, from its files `newer` and, put aside, `older`.
    pub(super) fn read(
        &self,
        function: &str,
        [newer, older]: [&Path; 2],
        page: Page,
    ) -> io::Result<Vec<Line>> {
        let (mut files, begins) = {
            let mut index = self.0.lock();
            let known = index.known(function);
            let files = [
                (known.older, open_to_read(older)?),
                (known.newer, open_to_read(newer)?),
            ];
            let ends = known.ends.iter().find(|(next, _)| *next == page.from);
            (files, ends.map(|(_, place)| *place))
        };
        let mut reading = Reading::new(page);
        for (number, file) in &mut files {
            let Some(file) = file else { continue };
            let offset = match begins {
                // The older file ends before this offset.
                Some(place) if place.file > *number => continue,
                Some(place) if place.file == *number => place.offset,
                _ => 0,
            };
            if !reading.take_from(file, *number, offset)? {
                break;
            }
        }
        if let Some(end) = reading.end {
            self.remember(function, reading.next, end);
        }
        Ok(reading.lines)
    }

    fn remember(&self, function: &str, next: u64, end: Place) {
        let mut index = self.0.lock();
        let Some(known) = index.known.get_mut(function) else {
            return;
        };
        if end.file != known.newer && end.file != known.older {
            return;
        }
        known.ends.retain(|(other, _)| *other != next);
        known.ends.push_back((next, end));
        if known.ends.len() > ENDS_MAX {
            known.ends.pop_front();
        }
    }

    /// Waits until the line `from`, or a later one, is written.
    pub(super) async fn more(&self, function: &str, from: u64) {
        let mut next = self.0.lock().known(function).next.subscribe();
        // An error means that the writer is gone.
        let _ = next.wait_for(|next| *next > from).await;
    }

    /// Records that all lines before the number `next` are in the files.
    pub(super) fn notify(&self, function: &str, next: u64) {
        // Even without a reader so far: the next one would wait for lines that are there already.
        self.0.lock().known(function).next.send_replace(next);
    }

    /// Lets `put_aside` rename the newer file and create another.
    pub(super) fn put_aside<T>(
        &self,
        function: &str,
        put_aside: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut index = self.0.lock();
        let put = put_aside();
        // In any case, the offsets of a file that is gone are invalid.
        let number = index.number();
        if let Some(known) = index.known.get_mut(function) {
            known.older = std::mem::replace(&mut known.newer, number);
            let older = known.older;
            known.ends.retain(|(_, place)| place.file == older);
        }
        put
    }
}

/// A page while it is read.
struct Reading {
    page: Page,
    lines: Vec<Line>,
    bytes: usize,
    /// The number after its last line.
    next: u64,
    /// The end of that line in its file.
    end: Option<Place>,
}

impl Reading {
    fn new(page: Page) -> Self {
        Self {
            page,
            lines: Vec::new(),
            bytes: 0,
            next: page.from,
            end: None,
        }
    }

    /// Takes the lines of `file` from `offset` on. Whether there is room for more.
    fn take_from(&mut self, file: &mut File, number: FileNumber, offset: u64) -> io::Result<bool> {
        file.seek(SeekFrom::Start(offset))?;
        let (mut file, mut text) = (BufReader::new(file), Vec::new());
        let mut place = Place {
            file: number,
            offset,
        };
        loop {
            self.end = Some(place);
            text.clear();
            let read = file.read_until(b'\n', &mut text)?;
            if text.pop() != Some(b'\n') {
                return Ok(true);
            }
            if !self.take(&text) {
                return Ok(false);
            }
            place.offset += read as u64;
        }
    }

    /// Takes a line if it belongs to the page. Whether there was room for it.
    fn take(&mut self, text: &[u8]) -> bool {
        if number_of(text).is_some_and(|number| number < self.next) {
            return true;
        }
        // A line that a crash cut is not a line.
        let Ok(line) = serde_json::from_slice::<Line>(text) else {
            return true;
        };
        self.bytes += line.text.len();
        let is_full = self.lines.len() >= self.page.lines_max
            || self.bytes > self.page.bytes_max && !self.lines.is_empty();
        if is_full {
            return false;
        }
        self.next = line.number + 1;
        self.lines.push(line);
        true
    }
}

fn open_to_read(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number after the last line of a log, in its files `newer` and, put aside, `older`. It is
/// searched from their ends.
pub(super) fn next_number([newer, older]: [&Path; 2]) -> io::Result<u64> {
    for path in [newer, older] {
        let Some(mut file) = open_to_read(path)? else {
            continue;
        };
        let bytes = file.metadata()?.len();
        let mut looked_at = LAST_BYTES;
        loop {
            let begin = bytes.saturating_sub(looked_at);
            file.seek(SeekFrom::Start(begin))?;
            let mut end = Vec::new();
            (&mut file).take(bytes - begin).read_to_end(&mut end)?;
            // The first part may be the end of a line, which is no line.
            let number = |text| {
                serde_json::from_slice::<Line>(text)
                    .ok()
                    .map(|line| line.number + 1)
            };
            if let Some(next) = end.rsplit(|byte| *byte == b'\n').find_map(number) {
                return Ok(next);
            }
            if begin == 0 {
                break;
            }
            looked_at *= 2;
        }
    }
    Ok(0)
}

/// The number of a stored line, without decoding the rest: pages skip many lines.
fn number_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"number\":")?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A log of two files, for reading.
    struct Log {
        readers: Readers,
        directory: tempfile::TempDir,
    }

    impl Log {
        fn new() -> Self {
            Self {
                readers: Readers::default(),
                directory: tempfile::tempdir().expect("a directory"),
            }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.directory.path().join(name)
        }

        fn append(&self, name: &str, text: &str) {
            let before = fs::read_to_string(self.path(name)).unwrap_or_default();
            fs::write(self.path(name), before + text).expect("written");
        }

        /// The numbers from there on, at most two.
        fn numbers(&self, from: u64) -> Vec<u64> {
            let page = Page {
                from,
                lines_max: 2,
                bytes_max: usize::MAX,
            };
            let read = self
                .readers
                .read("f", [&self.path("newer"), &self.path("older")], page);
            read.expect("read").iter().map(|line| line.number).collect()
        }

        fn put_aside(&self) {
            let put = self
                .readers
                .put_aside("f", || fs::rename(self.path("newer"), self.path("older")));
            put.expect("put aside");
        }
    }

    fn line(number: u64) -> String {
        let line = Line {
            number,
            at_ms: 1,
            id: "i".to_owned(),
            text: "{\"number\":3}".to_owned(),
        };
        serde_json::to_string(&line).expect("JSON") + "\n"
    }

    #[test]
    fn a_line_says_its_number_first() {
        assert_eq!(number_of(line(17).as_bytes()), Some(17));
        assert_eq!(
            (
                number_of(b""),
                number_of(b"{\"number\":"),
                number_of(b"{\"number\":5")
            ),
            (None, None, None)
        );
    }

    #[test]
    fn the_last_line_is_found_without_the_rest_of_the_log() {
        let log = Log::new();
        let next = || next_number([&log.path("newer"), &log.path("older")]).expect("read");
        assert_eq!(next(), 0);
        log.append("older", &(line(900) + &line(5)));
        assert_eq!(next(), 6, "not that of a line before it");
        log.append("newer", &line(7)[..9]);
        assert_eq!(next(), 6, "what a crash tore is none");
        let long = serde_json::to_string(&Line {
            text: "x".repeat(200_000),
            ..read_line(&line(8))
        });
        log.append("newer", &format!("\n{}\n", long.expect("JSON")));
        assert_eq!(next(), 9);
        log.append("newer", &(line(9)[..9].to_owned() + "\n"));
        assert_eq!(next(), 9, "what a crash tore is none");
    }

    fn read_line(text: &str) -> Line {
        serde_json::from_str(text).expect("a line")
    }

    /// After a crash between the two steps, a line in both files counts once.
    #[test]
    fn a_line_in_both_files_is_read_once() {
        let log = Log::new();
        log.append("newer", &(line(3) + &line(4)));
        log.append("older", &(line(3) + &line(4)));
        assert_eq!(
            (log.numbers(0), log.numbers(4), log.numbers(5)),
            (vec![3, 4], vec![4], vec![])
        );
    }

    /// Text before the end of the last page is not read again: this test changes it meanwhile.
    #[test]
    fn a_follower_goes_on_where_its_last_page_ended() {
        let log = Log::new();
        log.append("newer", &(line(0) + &line(1)));
        assert_eq!(log.numbers(0), [0, 1]);
        fs::write(
            log.path("newer"),
            line(0).replace("\"number\":0", "\"number\":9") + &line(1),
        )
        .expect("written");
        log.append("newer", &line(2));
        assert_eq!(log.numbers(2), [2], "not what it begins with");
        assert_eq!(log.numbers(1), [9], "who begins elsewhere reads all of it");
    }

    #[test]
    fn a_follower_goes_on_over_files_that_are_put_aside() {
        let log = Log::new();
        log.append("newer", &(line(0) + &line(1)));
        assert_eq!(log.numbers(0), [0, 1]);
        log.append("newer", &line(2));
        log.put_aside();
        log.append("newer", &(line(3) + &line(4)));
        assert_eq!((log.numbers(2), log.numbers(4)), (vec![2, 3], vec![4]));
        log.append("newer", &line(5));
        assert_eq!(log.numbers(5), [5]);
        log.put_aside();
        log.append("newer", &line(6));
        log.put_aside();
        log.append("newer", &line(7));
        assert_eq!(
            (log.numbers(6), log.numbers(2)),
            (vec![6, 7], vec![6, 7]),
            "its place was in a file that is gone"
        );
    }

    #[test]
    fn a_line_is_read_once_it_has_its_line_end() {
        let log = Log::new();
        let (begun, rest) = (line(1)[..9].to_owned(), line(1)[9..].to_owned());
        log.append("newer", &(line(0) + &begun));
        assert_eq!((log.numbers(0), log.numbers(1)), (vec![0], vec![]));
        log.append("newer", &rest);
        assert_eq!(log.numbers(1), [1]);
    }
}
