//! One client: its files, its calls, and the checks of what it reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{APPEND_BYTES, Personality, open_log};
use crate::files::content::FileId;

/// One read or write has at most this length.
const CHUNK_BYTES: usize = 1 << 20;
/// After a torn record the log is searched for the next one in these steps.
const RECORD_STEP_BYTES: usize = 8;

/// An error ends the iteration.
pub(super) type Outcome = io::Result<()>;

/// What happened.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Calls that returned what they should.
    pub(super) calls: u64,
    /// Calls that failed.
    pub(super) errors: u64,
    /// Blocks of videos that were viewed.
    pub(super) blocks: u64,
    /// Reads with other content.
    pub(super) wrong: u64,
    /// The first failure.
    pub(super) first: Option<String>,
    /// Iterations.
    pub(super) iterations: u64,
    /// Iterations that ran again.
    pub(super) conflicts: u64,
    /// Records that it appended to the log, by their numbers.
    pub(super) appended: BTreeSet<u32>,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.wrong += other.wrong;
        self.blocks += other.blocks;
        self.first = self.first.take().or(other.first);
        self.iterations += other.iterations;
        self.conflicts += other.conflicts;
        self.appended.extend(other.appended);
    }
}

/// Counts records of the log at `path` that are absent, torn or there twice. `appended` are those
/// that clients know to be appended.
pub(super) fn lost(path: &Path, appended: &BTreeSet<u32>) -> Result<u64> {
    if appended.is_empty() {
        return Ok(0);
    }
    let content = fs::read(path).context("read the log")?;
    let (mut left, mut lost, mut at) = (appended.clone(), 0, 0);
    while at < content.len() {
        let id = FileId::of(&content[at..]).filter(|id| left.remove(&id.number));
        let whole = id.is_some_and(|id| {
            let bytes = content.get(at..at + APPEND_BYTES as usize);
            bytes.is_some_and(|bytes| id.is_in(bytes, 0))
        });
        lost += u64::from(!whole);
        at += if whole {
            APPEND_BYTES as usize
        } else {
            RECORD_STEP_BYTES
        };
    }
    Ok(lost + left.len() as u64)
}

#[derive(Debug, Clone, Copy)]
struct Own {
    id: FileId,
    length: u64,
}

/// What a client knows of the files, and its random numbers.
#[derive(Debug, Clone)]
pub(super) struct State {
    random: fastrand::Rng,
    own: BTreeMap<u32, Own>,
    generation: u32,
    records: u32,
    replaced: Instant,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) counts: Counts,
    personality: Personality,
    number: u32,
    clients: u32,
    files: u32,
    directory: PathBuf,
    /// Whether each iteration is a transaction, so that files stay open within one only.
    is_transactional: bool,
    records: u32,
    random: fastrand::Rng,
    /// The files that exist, by number, and that no failed call touched.
    own: BTreeMap<u32, Own>,
    generation: u32,
    replaced: Instant,
    /// The video, where the viewer is, and the open file.
    viewing: Option<(u32, u64, Option<File>)>,
    /// When the next block of a video is due; none: the viewer has not begun.
    pace: Option<Instant>,
    buffer: Vec<u8>,
}

impl Client {
    pub(super) fn new(
        personality: Personality,
        number: u32,
        clients: u32,
        files: u32,
        directory: PathBuf,
    ) -> Self {
        Self {
            counts: Counts::default(),
            personality,
            number,
            clients,
            files,
            directory,
            is_transactional: false,
            records: 0,
            random: fastrand::Rng::with_seed(u64::from(number) + 1),
            own: BTreeMap::new(),
            generation: 0,
            replaced: Instant::now(),
            viewing: None,
            pace: None,
            buffer: vec![0; CHUNK_BYTES],
        }
    }

    /// Makes its files.
    pub(super) fn fill(&mut self) -> Result<()> {
        for number in (self.number..self.files).step_by(self.clients as usize) {
            self.replace(number)
                .with_context(|| format!("make file {number}"))?;
        }
        self.counts = Counts::default();
        Ok(())
    }

    /// Notes its files as [`fill`](Self::fill) has made them in another process.
    /// From now on each iteration is a transaction.
    pub(super) fn adopt(&mut self) {
        self.is_transactional = true;
        for number in (self.number..self.files).step_by(self.clients as usize) {
            let made = self.new_file(number);
            self.own.insert(number, made);
        }
    }

    /// The state that an iteration changes, except the video that is viewed.
    pub(super) fn state(&self) -> State {
        State {
            random: self.random.clone(),
            own: self.own.clone(),
            generation: self.generation,
            records: self.records,
            replaced: self.replaced,
        }
    }

    /// Goes back to before an iteration that took no effect.
    pub(super) fn restore(&mut self, state: State) {
        self.random = state.random;
        self.own = state.own;
        self.generation = state.generation;
        self.records = state.records;
        self.replaced = state.replaced;
    }

    /// Counts a failure. The files that it may have touched were forgotten before the call.
    pub(super) fn note(&mut self, outcome: Outcome) {
        if let Err(error) = outcome {
            self.counts.errors += 1;
            self.counts.first.get_or_insert_with(|| error.to_string());
        }
    }

    /// One of its own files.
    pub(super) fn own(&mut self) -> u32 {
        let each = self.files / self.clients;
        self.random.u32(0..each.max(1)) * self.clients + self.number
    }

    /// A file of any client.
    pub(super) fn any(&mut self) -> u32 {
        self.random.u32(0..self.files)
    }

    /// Whether the client should replace a file again.
    pub(super) fn is_due(&mut self, interval: Duration) -> bool {
        let due = self.replaced.elapsed() >= interval;
        if due {
            self.replaced = Instant::now();
        }
        due
    }

    fn path(&self, number: u32) -> PathBuf {
        // Filebench puts about 20 files into a directory; one directory is harder for all.
        self.directory.join(format!("f{number}"))
    }

    /// Counts a call that succeeded.
    fn did<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.counts.calls += u64::from(result.is_ok());
        result
    }

    fn new_file(&mut self, number: u32) -> Own {
        self.generation += 1;
        self.own.remove(&number);
        Own {
            id: FileId {
                number,
                generation: self.generation,
            },
            length: self.personality.length(&mut self.random),
        }
    }

    /// create, write, close.
    pub(super) fn replace(&mut self, number: u32) -> Outcome {
        self.write_new(number, &self.path(number), false)
    }

    /// create, write, fsync, close.
    pub(super) fn replace_synced(&mut self, number: u32) -> Outcome {
        self.write_new(number, &self.path(number), true)
    }

    fn write_new(&mut self, number: u32, path: &PathBuf, synced: bool) -> Outcome {
        let new = self.new_file(number);
        let created = File::create(path);
        let mut file = self.did(created)?;
        self.write(&mut file, new.id, 0, new.length)?;
        if synced {
            let result = file.sync_all();
            self.did(result)?;
        }
        drop(file);
        self.counts.calls += 1;
        self.own.insert(number, new);
        Ok(())
    }

    /// create under another name, write, close, rename.
    pub(super) fn replace_by_rename(&mut self, number: u32) -> Outcome {
        let other = self.directory.join(format!("new{}", self.number));
        self.write_new(number, &other, false)?;
        let known = self.own.remove(&number);
        let renamed = fs::rename(&other, self.path(number));
        self.did(renamed)?;
        self.own.extend(known.map(|known| (number, known)));
        Ok(())
    }

    fn write(&mut self, file: &mut File, id: FileId, from: u64, length: u64) -> Outcome {
        let mut written = 0;
        while written < length {
            let bytes = (length - written).min(CHUNK_BYTES as u64);
            let buffer = &mut self.buffer[..bytes as usize];
            id.fill(buffer, from + written);
            let result = file.write_all(buffer);
            self.did(result)?;
            written += bytes;
        }
        Ok(())
    }

    /// open, write at the end, close; of a file that is absent, replace.
    pub(super) fn append(&mut self, number: u32, bytes: u64) -> Outcome {
        self.append_with(number, bytes, false)
    }

    /// The same with fsync.
    pub(super) fn append_synced(&mut self, number: u32, bytes: u64) -> Outcome {
        self.append_with(number, bytes, true)
    }

    fn append_with(&mut self, number: u32, bytes: u64, synced: bool) -> Outcome {
        // A file grows up to four appends beyond its first length, then it is replaced.
        let room = |known: &Own| known.length < self.personality.largest();
        let Some(mut known) = self.own.remove(&number).filter(room) else {
            return self.write_new(number, &self.path(number), synced);
        };
        let opened = OpenOptions::new().append(true).open(self.path(number));
        let mut file = self.did(opened)?;
        self.write(&mut file, known.id, known.length, bytes)?;
        if synced {
            let result = file.sync_all();
            self.did(result)?;
        }
        drop(file);
        self.counts.calls += 1;
        known.length += bytes;
        self.own.insert(number, known);
        Ok(())
    }

    /// unlink; of an absent file nothing.
    pub(super) fn delete(&mut self, number: u32) -> Outcome {
        if self.own.remove(&number).is_some() {
            let removed = fs::remove_file(self.path(number));
            self.did(removed)?;
        }
        Ok(())
    }

    /// stat. Another client's file may be absent.
    pub(super) fn stat(&mut self, number: u32) -> Outcome {
        match fs::metadata(self.path(number)) {
            Err(error) if self.may_be_absent(number, &error) => self.did(Ok(())),
            Err(error) => Err(error),
            Ok(attributes) => {
                let own = self.own.get(&number);
                self.counts.wrong +=
                    u64::from(own.is_some_and(|own| own.length != attributes.len()));
                self.did(Ok(()))
            }
        }
    }

    fn may_be_absent(&self, number: u32, error: &io::Error) -> bool {
        error.kind() == ErrorKind::NotFound && !self.own.contains_key(&number)
    }

    /// open, read all, close, and verify.
    pub(super) fn read(&mut self, number: u32) -> Outcome {
        let mut file = match File::open(self.path(number)) {
            Err(error) if self.may_be_absent(number, &error) => return self.did(Ok(())),
            opened => self.did(opened)?,
        };
        let (mut offset, mut id) = (0, None);
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = file.read(&mut buffer);
            if let Ok(bytes) = read {
                id = id.or_else(|| FileId::of(&buffer[..bytes]));
                self.check(number, id, &buffer[..bytes], offset);
            }
            self.buffer = buffer;
            let bytes = self.did(read)?;
            offset += bytes as u64;
            // Filebench reads as much as the file had at open; a short read is its end.
            if bytes < CHUNK_BYTES {
                break;
            }
        }
        self.counts.calls += 1;
        if let Some(own) = self.own.get(&number) {
            self.counts.wrong += u64::from(Some(own.id) != id || own.length != offset);
        }
        Ok(())
    }

    /// What was read must be a prefix of the content of some generation of that file. Another
    /// client's file may be empty while it is made.
    fn check(&mut self, number: u32, id: Option<FileId>, bytes: &[u8], offset: u64) {
        let right =
            bytes.is_empty() || id.is_some_and(|id| id.number == number && id.is_in(bytes, offset));
        self.counts.wrong += u64::from(!right);
    }

    /// Reads the next block of a video at a fixed rate.
    pub(super) fn view(&mut self, number: u32, bytes: u64, rate: f64) -> Outcome {
        let now = Instant::now();
        let due = self
            .pace
            .map_or(now, |last| last + Duration::from_secs_f64(1.0 / rate));
        thread::sleep(due.saturating_duration_since(now));
        // A viewer that stalled for a second does not catch up.
        let stalled = now.saturating_duration_since(due) > Duration::from_secs(1);
        self.pace = Some(if stalled { now } else { due });
        let (number, offset, open) = self.viewing.take().unwrap_or((number, 0, None));
        let file = if let Some(file) = open {
            file
        } else {
            let opened = File::open(self.path(number));
            self.did(opened)?
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let part = &mut buffer[..bytes as usize];
        let read = file.read_at(part, offset);
        if let Ok(read) = read {
            let id = FileId::of(part);
            // Only the first block names the generation; a replaced video keeps its descriptor.
            let right = match id {
                Some(id) if offset == 0 => id.number == number && id.is_in(&part[..read], 0),
                _ => true,
            };
            self.counts.wrong += u64::from(!right || read as u64 != bytes);
        }
        self.buffer = buffer;
        self.did(read)?;
        self.counts.blocks += 1;
        if offset + bytes < self.personality.largest() {
            let open = (!self.is_transactional).then_some(file);
            self.viewing = Some((number, offset + bytes, open));
        }
        Ok(())
    }

    /// Appends a record to the log of all clients, in one write.
    pub(super) fn log(&mut self) -> Outcome {
        let id = FileId {
            number: self.number << 24 | self.records,
            generation: self.number,
        };
        self.records += 1;
        let opened = open_log(&self.directory.join("log"));
        let mut file = self.did(opened)?;
        let buffer = &mut self.buffer[..APPEND_BYTES as usize];
        id.fill(buffer, 0);
        let written = file.write_all(buffer);
        self.did(written)?;
        drop(file);
        self.counts.calls += 1;
        self.counts.appended.insert(id.number);
        Ok(())
    }
}

impl Personality {
    /// The longest file, in bytes.
    fn largest(self) -> u64 {
        match self {
            Self::Fileserver => 256 << 10,
            Self::Networkfs => 2 << 20,
            Self::Videoserver => super::VIDEO_BYTES,
            Self::Varmail | Self::Webproxy | Self::Webserver => 80 << 10,
        }
    }
}
