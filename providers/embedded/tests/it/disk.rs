//! A disk in memory with a page cache: what the next process finds, and what a power loss leaves.
//!
//! Processes run one at a time ([`Disk::process`]), and the page cache outlives each of them. A
//! power loss leaves all synced data, and a random part of the rest:
//!
//! - of each write since the last sync of its file: all, nothing, or some of its sectors;
//! - of the name changes since the last sync of their directory: a prefix or any subset that keeps
//!   the order of changes to one name.
//!
//! A failed sync puts some of the writes on the disk and leaves the others clean in the cache, so
//! that no later sync writes them.
//!
//! The store reaches its lock, its objects and the check for a directory around
//! [`Storage`](embedded::storage::Storage). Directories are therefore also created on the real
//! disk, and a directory whose name is lost is removed with its content.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::watch;

pub(crate) use process::Process;

mod process;

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

/// How many changes to the disk a failing test prints.
const TRACE_MAX: usize = 600;

/// A change to a file.
#[derive(Debug, Clone)]
enum Change {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    /// To this length, longer or shorter.
    Resize(u64),
    /// To this length, if the file was shorter.
    Allocate(u64),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                content.resize(content.len().max(end), 0);
                content[start..end].copy_from_slice(data);
            }
            Self::Resize(length) => content.resize(*length as usize, 0),
            Self::Allocate(length) => content.resize(content.len().max(*length as usize), 0),
        }
    }

    /// The least length of the file afterwards.
    fn end(&self) -> u64 {
        match self {
            Self::Write { offset, data } => offset + data.len() as u64,
            Self::Resize(length) | Self::Allocate(length) => *length,
        }
    }

    /// Applies all of the change, nothing, or some sectors in random order.
    fn apply_partly(&self, content: &mut Vec<u8>, random: &mut fastrand::Rng) {
        match (random.u8(..3), self) {
            (0, _) => {}
            (1, _) => self.apply(content),
            (_, Self::Write { offset, data }) => {
                let mut at = 0;
                while at < data.len() {
                    let sector_end = SECTOR - (*offset as usize + at) % SECTOR;
                    let end = (at + sector_end).min(data.len());
                    if random.bool() {
                        Self::Write {
                            offset: offset + at as u64,
                            data: data[at..end].to_vec(),
                        }
                        .apply(content);
                    }
                    at = end;
                }
            }
            _ => {}
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { offset, data } => write!(f, "write {} bytes at {offset} of", data.len()),
            Self::Resize(length) => write!(f, "resize to {length}"),
            Self::Allocate(length) => write!(f, "allocate {length} for"),
        }
    }
}

#[derive(Debug, Default)]
struct File {
    cached: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

/// The object that a name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    File(usize),
    Directory,
}

type Names = BTreeMap<PathBuf, Named>;

#[derive(Debug, Clone)]
enum NameChange {
    Give(PathBuf, Named),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Give(path, named) => {
                names.insert(path.clone(), *named);
            }
            Self::Rename(from, to) => {
                if let Some(named) = names.remove(from) {
                    names.insert(to.clone(), named);
                }
            }
            Self::Remove(path) => {
                names.remove(path);
            }
        }
    }

    /// The names that the change adds or removes.
    fn names(&self) -> impl Iterator<Item = &PathBuf> {
        let (first, second) = match self {
            Self::Give(path, _) | Self::Remove(path) => (path, None),
            Self::Rename(from, to) => (from, Some(to)),
        };
        [Some(first), second].into_iter().flatten()
    }

    fn is_in(&self, directory: &Path) -> bool {
        let (Self::Give(path, _) | Self::Rename(path, _) | Self::Remove(path)) = self;
        path.parent() == Some(directory)
    }
}

/// A change, with the number of the process that made it.
type Given = (u64, NameChange);

/// The faults of the running process. Counts start at one; zero: never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// The process dies in this change to the disk. The change may be complete, partial or missing.
    pub(crate) dies_in: u64,
    /// The process dies before this sync of the journal's directory.
    pub(crate) dies_in_journal_directory_sync: u64,
    /// This sync of a file fails.
    pub(crate) fails_sync: u64,
    /// This sync of a directory fails.
    pub(crate) fails_directory_sync: u64,
    /// The bytes that all files may take together; zero: unbounded.
    pub(crate) capacity: u64,
    /// Breaks D1: a directory is synced only if the process has renamed a file there.
    pub(crate) trusts_names: bool,
    /// Breaks D1: a directory in which the process only removed names is not synced.
    pub(crate) trusts_removals: bool,
}

/// The part of the unsynced changes that a power loss leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsynced {
    /// A random part.
    Some,
    None,
}

#[derive(Debug)]
struct State {
    /// The root directory. It and those above it exist.
    root: PathBuf,
    files: Vec<File>,
    names: Names,
    durable_names: Names,
    unsynced_names: Vec<Given>,
    /// The number of the running process.
    life: u64,
    faults: Faults,
    has_failed: bool,
    /// How many pages a write around the page cache may have. None if there are no such writes.
    direct_pages_max: Option<usize>,
    random: fastrand::Rng,
    trace: VecDeque<String>,
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Counts `fault` down. Returns whether it happens now.
fn happens(fault: &mut u64) -> bool {
    let happens = *fault == 1;
    *fault = fault.saturating_sub(1);
    happens
}

impl State {
    fn log(&mut self, what: impl FnOnce() -> String) {
        if self.trace.len() == TRACE_MAX {
            self.trace.pop_front();
        }
        self.trace.push_back(what());
    }

    fn new_file(&mut self) -> usize {
        self.files.push(File::default());
        self.files.len() - 1
    }

    fn used(&self) -> u64 {
        let bytes = |named: &Named| match named {
            Named::File(file) => self.files[*file].cached.len() as u64,
            Named::Directory => 0,
        };
        self.names.values().map(bytes).sum()
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push((self.life, change));
    }

    fn sync(&mut self, file: usize) {
        let File {
            durable, unsynced, ..
        } = &mut self.files[file];
        unsynced.drain(..).for_each(|change| change.apply(durable));
    }

    fn sync_names(&mut self, directory: &Path) {
        for (life, change) in std::mem::take(&mut self.unsynced_names) {
            if change.is_in(directory) {
                change.apply(&mut self.durable_names);
            } else {
                self.unsynced_names.push((life, change));
            }
        }
    }

    /// Splits changes at random into those kept and those lost.
    fn some(&mut self, mut pending: Vec<Given>) -> (Vec<Given>, Vec<Given>) {
        if self.random.bool() {
            let lost = pending.split_off(self.random.usize(..=pending.len()));
            return (pending, lost);
        }
        let mut lost_names = BTreeSet::new();
        pending.into_iter().partition(|(_, change)| {
            let is_kept =
                self.random.bool() && change.names().all(|name| !lost_names.contains(name));
            if !is_kept {
                lost_names.extend(change.names().cloned());
            }
            is_kept
        })
    }

    fn lose_power(&mut self, unsynced: Unsynced) {
        let is_all_lost = unsynced == Unsynced::None || self.random.u8(..3) == 0;
        let mut names = self.durable_names.clone();
        let pending = std::mem::take(&mut self.unsynced_names);
        let (kept, lost) = if is_all_lost {
            (Vec::new(), pending)
        } else {
            self.some(pending)
        };
        for (_, change) in kept {
            change.apply(&mut names);
        }
        let reachable: Names = names
            .iter()
            .filter(|(path, _)| {
                let mut above = path
                    .ancestors()
                    .skip(1)
                    .take_while(|above| *above != self.root);
                above.all(|above| names.get(above) == Some(&Named::Directory))
            })
            .map(|(path, named)| (path.clone(), *named))
            .collect();
        self.log(|| format!("power is lost, and with it {lost:?}"));
        for path in self
            .names
            .keys()
            .filter(|path| !reachable.contains_key(*path))
        {
            if path.is_dir() {
                fs::remove_dir_all(path).expect("the directory goes");
            }
        }
        self.names.clone_from(&reachable);
        self.durable_names = reachable;
        let kept: Vec<usize> = self
            .names
            .values()
            .filter_map(|named| named.file())
            .collect();
        for (number, file) in self.files.iter_mut().enumerate() {
            for change in std::mem::take(&mut file.unsynced) {
                if !is_all_lost {
                    change.apply_partly(&mut file.durable, &mut self.random);
                }
            }
            if !kept.contains(&number) {
                file.durable = Vec::new();
            }
            file.cached.clone_from(&file.durable);
        }
    }
}

impl Named {
    fn file(self) -> Option<usize> {
        match self {
            Self::File(file) => Some(file),
            Self::Directory => None,
        }
    }
}

/// The disk. On the real disk, nothing is below `root` at first.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
    is_dead: Arc<watch::Sender<bool>>,
}

impl Disk {
    pub(crate) fn new(root: &Path, seed: u64) -> Self {
        // Of a seed of its own, so that it shifts no other choice.
        let direct_pages_max = [None, Some(0), Some(2), Some(usize::MAX >> 12)][seed as usize % 4];
        let state = State {
            root: root.to_owned(),
            files: Vec::new(),
            names: Names::new(),
            durable_names: Names::new(),
            unsynced_names: Vec::new(),
            life: 0,
            faults: Faults::default(),
            has_failed: false,
            direct_pages_max,
            random: fastrand::Rng::with_seed(seed),
            trace: VecDeque::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            is_dead: Arc::new(watch::Sender::new(false)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The disk as the next process sees it. The process before it gets only errors.
    pub(crate) fn process(&self) -> Process {
        let mut state = self.state();
        state.life += 1;
        state.faults = Faults::default();
        state.has_failed = false;
        let life = state.life;
        state.log(|| format!("process {life}"));
        self.is_dead.send_replace(false);
        Process {
            disk: self.clone(),
            life,
        }
    }

    /// Sets the faults from now on, in place of the present ones.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Kills the running process.
    pub(crate) fn kill(&self) {
        self.state().log(|| "killed".to_owned());
        self.is_dead.send_replace(true);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.is_dead.borrow()
    }

    /// Waits until the running process dies.
    pub(crate) async fn death(&self) {
        let mut is_dead = self.is_dead.subscribe();
        is_dead
            .wait_for(|is_dead| *is_dead)
            .await
            .expect("the disk outlives it");
    }

    /// Whether a sync has failed in the running process.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    /// Leaves the disk as a power loss at this moment may leave it. The last process has ended.
    pub(crate) fn lose_power(&self, unsynced: Unsynced) {
        self.state().lose_power(unsynced);
    }

    /// The bytes of all files, except those called `name`.
    pub(crate) fn used_beside(&self, name: &str) -> u64 {
        let state = self.state();
        let apart = state.names.iter().filter(|(path, _)| path.ends_with(name));
        let apart: u64 = apart
            .filter_map(|(_, named)| named.file())
            .map(|file| state.files[file].cached.len() as u64)
            .sum();
        state.used() - apart
    }

    /// The latest changes to the disk, one per line.
    pub(crate) fn trace(&self) -> String {
        self.state().trace.make_contiguous().join("\n")
    }

    /// Makes a change for process `life`, which may die of it. In that case `change` does nothing
    /// or a part.
    fn change(
        &self,
        life: u64,
        what: impl FnOnce() -> String,
        change: impl FnOnce(&mut State, Completeness),
    ) -> io::Result<()> {
        let mut state = self.living(life)?;
        state.log(what);
        let is_last = happens(&mut state.faults.dies_in);
        change(
            &mut state,
            if is_last {
                Completeness::Unknown
            } else {
                Completeness::Whole
            },
        );
        if is_last {
            state.log(|| "died of it".to_owned());
            self.is_dead.send_replace(true);
            return Err(broken());
        }
        Ok(())
    }

    /// The state, if process `life` is the running one.
    fn living(&self, life: u64) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.life == life && !self.is_dead() {
            Ok(state)
        } else {
            Err(broken())
        }
    }
}

/// How much of a change is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Completeness {
    Whole,
    /// The process dies during the change.
    Unknown,
}

impl Completeness {
    fn is_done(self, random: &mut fastrand::Rng) -> bool {
        self == Self::Whole || random.bool()
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
