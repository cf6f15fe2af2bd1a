//! A disk in memory and the page cache over it: what the next process finds, and what a loss of power leaves.
//!
//! Processes come and go, one at a time ([`Disk::process`]); the page cache outlives each of them. A loss of power leaves
//! what was synced, and of the rest what a disk may have: of the writes to a file since its last sync each one, none of
//! it, or some of its sectors; of the names given and taken since their directory's last sync a prefix, or any, as long as what became of
//! one name stays in order. A sync that fails leaves some of the writes on the disk and the others in the cache, where they are clean: no later sync writes them.
//!
//! The store reaches its lock, its objects and the question whether a directory is there around
//! [`Storage`](embedded::storage::Storage), so directories are made on the real disk, too; one whose name is lost goes with all that is in it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::watch;

pub(crate) use process::Process;

mod process;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// So many changes to the disk are told when a test fails.
const TOLD_MAX: usize = 600;

/// What is done to a file.
#[derive(Debug, Clone)]
enum Change {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    /// To this length, longer or shorter.
    Resize(u64),
    /// To this length, if it was shorter.
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

    /// How long the file is then at least.
    fn end(&self) -> u64 {
        match self {
            Self::Write { offset, data } => offset + data.len() as u64,
            Self::Resize(length) | Self::Allocate(length) => *length,
        }
    }

    /// All of it, none of it, or some sectors in no order.
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

/// What a name stands for.
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

    /// The names that it gives or takes.
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

/// A change, with the life in which it was made.
type Given = (u64, NameChange);

/// What happens to the process that lives, or to what it does. Numbers count from one; zero: it does not happen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// It dies in so many changes to the disk; that one may be done, or done by half.
    pub(crate) dies_in: u64,
    /// It dies before it has synced the journal's directory that often.
    pub(crate) dies_in_journal_directory_sync: u64,
    /// That sync of a file fails.
    pub(crate) fails_sync: u64,
    /// That sync of a directory fails.
    pub(crate) fails_directory_sync: u64,
    /// The most bytes all files may take together; zero: no bound.
    pub(crate) capacity: u64,
    /// Breaks D1 on purpose: no directory is synced in which the process has renamed nothing itself.
    pub(crate) trusts_names: bool,
    /// Breaks D1 on purpose: no directory is synced in which the process has only removed names.
    pub(crate) trusts_removals: bool,
}

/// What a loss of power leaves of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsynced {
    /// What the dice say.
    Some,
    None,
}

#[derive(Debug)]
struct State {
    /// What lies above it, and itself, is there.
    root: PathBuf,
    files: Vec<File>,
    names: Names,
    durable_names: Names,
    unsynced_names: Vec<Given>,
    /// The number of the process that lives.
    life: u64,
    faults: Faults,
    has_failed: bool,
    random: fastrand::Rng,
    told: VecDeque<String>,
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Counts `fault` down; whether it happens now.
fn happens(fault: &mut u64) -> bool {
    let happens = *fault == 1;
    *fault = fault.saturating_sub(1);
    happens
}

impl State {
    fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.told.len() == TOLD_MAX {
            self.told.pop_front();
        }
        self.told.push_back(what());
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

    /// What of these changes is kept, and what is lost.
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
        self.tell(|| format!("power is lost, and with it {lost:?}"));
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

/// The disk; nothing is below `root` on the real one.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
    is_dead: Arc<watch::Sender<bool>>,
}

impl Disk {
    pub(crate) fn new(root: &Path, seed: u64) -> Self {
        let state = State {
            root: root.to_owned(),
            files: Vec::new(),
            names: Names::new(),
            durable_names: Names::new(),
            unsynced_names: Vec::new(),
            life: 0,
            faults: Faults::default(),
            has_failed: false,
            random: fastrand::Rng::with_seed(seed),
            told: VecDeque::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            is_dead: Arc::new(watch::Sender::new(false)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics holding it")
    }

    /// What the next process sees of the disk; the one before it sees nothing any more.
    pub(crate) fn process(&self) -> Process {
        let mut state = self.state();
        state.life += 1;
        state.faults = Faults::default();
        state.has_failed = false;
        let life = state.life;
        state.tell(|| format!("process {life}"));
        self.is_dead.send_replace(false);
        Process {
            disk: self.clone(),
            life,
        }
    }

    /// From now on; the process that lives has those before no longer.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Ends the process that lives.
    pub(crate) fn kill(&self) {
        self.state().tell(|| "killed".to_owned());
        self.is_dead.send_replace(true);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.is_dead.borrow()
    }

    /// Waits for the death of the process that lives.
    pub(crate) async fn death(&self) {
        let mut is_dead = self.is_dead.subscribe();
        is_dead
            .wait_for(|is_dead| *is_dead)
            .await
            .expect("the disk outlives it");
    }

    /// Whether a sync has failed in this life.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    /// Leaves the disk as a loss of power now may leave it. The last process is gone.
    pub(crate) fn lose_power(&self, unsynced: Unsynced) {
        self.state().lose_power(unsynced);
    }

    /// What all files take together, those apart that are called `name`.
    pub(crate) fn used_beside(&self, name: &str) -> u64 {
        let state = self.state();
        let apart = state.names.iter().filter(|(path, _)| path.ends_with(name));
        let apart: u64 = apart
            .filter_map(|(_, named)| named.file())
            .map(|file| state.files[file].cached.len() as u64)
            .sum();
        state.used() - apart
    }

    /// What was done to it last, a line for each change.
    pub(crate) fn told(&self) -> String {
        self.state().told.make_contiguous().join("\n")
    }

    /// Makes a change in process `life`, which may die of it: then a `change` that is told so does none or some of it.
    fn change(
        &self,
        life: u64,
        what: impl FnOnce() -> String,
        change: impl FnOnce(&mut State, Completeness),
    ) -> io::Result<()> {
        let mut state = self.living(life)?;
        state.tell(what);
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
            state.tell(|| "died of it".to_owned());
            self.is_dead.send_replace(true);
            return Err(broken());
        }
        Ok(())
    }

    /// The state, for the process that lives.
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
    /// The process dies meanwhile.
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
