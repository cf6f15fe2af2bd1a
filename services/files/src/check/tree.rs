//! Inodes and the names that lead to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use transactions::serializable::model::number_in;

use super::{
    Check,
    reader::{Part, Stored},
    report::Problem,
};
use crate::{
    error::Result,
    inode::{self, Field, ORPHAN_SHARDS},
    model::{Ino, Kind},
    path_rules::PATH_BYTES_MAX,
};

/// How many inodes are read in one call.
const INODES_AT_ONCE: u64 = 100;

/// The inodes that are checked together.
#[derive(Debug)]
pub(super) struct Window {
    root: Option<u64>,
    numbers: Range<u64>,
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// Those whose kind is not known, with an entry that leads to each.
    damaged: BTreeMap<Ino, Option<(Ino, Bytes)>>,
}

/// The fields of an inode, and the entries that the check has found for it.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) size: u64,
    links: Option<u64>,
    parent: Option<Ino>,
    is_orphan: bool,
    /// How many entries lead to it.
    names: u64,
    /// The first of them.
    pub(super) name: Option<(Ino, Bytes)>,
    /// How many directories it lists.
    directories: u64,
    /// The values that do not decode.
    damaged: Vec<&'static str>,
}

/// The directories of the volume, and of each the entry that leads to it.
pub(super) type Directories = BTreeMap<Ino, Option<(Ino, Bytes)>>;

impl Window {
    pub(super) fn new(root: Option<u64>, numbers: Range<u64>) -> Self {
        Self {
            root,
            numbers,
            inodes: BTreeMap::new(),
            damaged: BTreeMap::new(),
        }
    }

    fn contains(&self, ino: Ino) -> bool {
        self.root == Some(ino.0) || self.numbers.contains(&ino.0)
    }
}

impl Check<'_> {
    /// All directories, each with the entry that its parent has for it, or else with any other.
    pub(super) async fn directories(&mut self, end: u64) -> Result<Directories> {
        let mut directories = Directories::new();
        let mut parents = BTreeMap::new();
        for numbers in chunks(Some(Ino::ROOT.0), first_number()..end, 500) {
            let keys = numbers.iter().flat_map(|number| {
                [Field::Existence, Field::Parent].map(|field| inode::field(Ino(*number), field))
            });
            let keys: Vec<_> = keys.collect();
            let values = self.reader.get_many(&keys).await?;
            for (number, values) in numbers.iter().zip(values.chunks(2)) {
                let Stored::Value(kind) = &values[0] else {
                    continue;
                };
                if inode::kind_in(kind) == Ok(Kind::Directory) {
                    directories.insert(Ino(*number), None);
                    if let Some(parent) = number_of(&values[1]) {
                        parents.insert(Ino(*number), Ino(parent));
                    }
                }
            }
        }
        let all: Vec<Ino> = directories.keys().copied().collect();
        for directory in all {
            self.each_entry(directory, &mut |name, value| {
                let Ok((to, _)) = inode::entry_in(value) else {
                    return;
                };
                if let Some(entry) = directories.get_mut(&to)
                    && (entry.is_none() || parents.get(&to) == Some(&directory))
                    && to != Ino::ROOT
                {
                    *entry = Some((directory, name.clone()));
                }
            })
            .await?;
        }
        Ok(directories)
    }

    /// Reads the inodes of a window.
    pub(super) async fn inodes(&mut self, window: &mut Window) -> Result<()> {
        const FIELDS: usize = Field::ALL.len() + 1;
        for numbers in chunks(window.root, window.numbers.clone(), INODES_AT_ONCE) {
            let keys = numbers.iter().flat_map(|number| {
                let fields = Field::ALL.map(|field| inode::field(Ino(*number), field));
                fields.into_iter().chain([inode::orphan(Ino(*number))])
            });
            let keys: Vec<_> = keys.collect();
            let values = self.reader.get_many(&keys).await?;
            for (number, values) in numbers.iter().zip(values.chunks(FIELDS)) {
                if values[0] != Stored::Absent {
                    window.inode(Ino(*number), values);
                }
            }
        }
        if window.root.is_some() && !window.inodes.contains_key(&Ino::ROOT) {
            window.damaged.insert(Ino::ROOT, None);
        }
        let count = window.inodes.len() as u64;
        self.advance(|counts| counts.inodes += count);
        Ok(())
    }

    /// Reads the entries of all directories, and checks those that lead into the window.
    pub(super) async fn entries(
        &mut self,
        window: &mut Window,
        directories: &Directories,
        end: u64,
    ) -> Result<()> {
        let is_first = window.root.is_some();
        for directory in directories.keys().copied() {
            let mut entries = 0;
            let mut found = Vec::new();
            self.each_entry(directory, &mut |name, value| {
                entries += 1;
                let Ok((to, kind)) = inode::entry_in(value) else {
                    if is_first {
                        found.push((name.clone(), Problem::DamagedEntry));
                    }
                    return;
                };
                let is_number = to == Ino::ROOT || (first_number()..end).contains(&to.0);
                if kind == Kind::Directory
                    && let Some(inode) = window.inodes.get_mut(&directory)
                    && is_main(directories, to, directory, name)
                {
                    inode.directories += 1;
                }
                if !window.contains(to) && (is_number || !is_first) {
                    return;
                }
                if let Some(problem) = window.entry(directories, directory, name, (to, kind)) {
                    found.push((name.clone(), problem));
                }
            })
            .await?;
            for (name, problem) in found {
                let path = path_in(directories, directory, &name);
                self.report.add(directory, Some(path), name, problem);
            }
            if is_first {
                self.advance(|counts| counts.entries += entries);
            }
        }
        Ok(())
    }

    /// Compares the fields that the inodes of a window store with the entries that concern these
    /// inodes.
    pub(super) fn judge(&mut self, window: &Window, directories: &Directories) {
        let path_of = |ino: Ino, name: &Option<(Ino, Bytes)>| match name {
            Some((parent, name)) => Some(path_in(directories, *parent, name)),
            None => (ino == Ino::ROOT).then(|| Bytes::from_static(b"/")),
        };
        for (ino, name) in &window.damaged {
            let problem = Problem::DamagedField { field: "existence" };
            let path = path_of(*ino, name);
            self.report.add(*ino, path, Bytes::new(), problem);
        }
        let mut rooted = BTreeSet::from([Ino::ROOT]);
        for (ino, inode) in &window.inodes {
            let name = inode.name.as_ref().map(|(_, name)| name.clone());
            for problem in inode.problems(*ino, directories, &mut rooted) {
                let (path, name) = (path_of(*ino, &inode.name), name.clone());
                self.report
                    .add(*ino, path, name.unwrap_or_default(), problem);
            }
        }
    }

    /// Checks that orphan candidates decode.
    pub(super) async fn orphans(&mut self) -> Result<()> {
        for shard in 0..ORPHAN_SHARDS {
            let mut rest = Some(inode::orphans(shard));
            while let Some(range) = rest.take() {
                let Part::Page(entries, next) = self.reader.scan(&range).await? else {
                    let problem = Problem::DamagedOrphan;
                    self.report.add(Ino(0), None, Bytes::new(), problem);
                    break;
                };
                for entry in entries {
                    let values = [inode::CANDIDATE, inode::UNNAMED, inode::DYING];
                    let is_value = values.contains(&entry.value);
                    let number = inode::number_of(&entry.name);
                    if !is_value || number.is_err() {
                        let ino = Ino(number.unwrap_or_default());
                        let problem = Problem::DamagedOrphan;
                        self.report.add(ino, None, Bytes::new(), problem);
                    }
                }
                rest = next.and_then(|next| range.starting_at(next).ok());
            }
        }
        Ok(())
    }

    /// Calls `each` with the names and values of a directory.
    async fn each_entry(
        &self,
        directory: Ino,
        each: &mut (dyn FnMut(&Bytes, &Bytes) + Send),
    ) -> Result<()> {
        let mut rest = Some(inode::entries(directory, Bytes::new()));
        while let Some(range) = rest.take() {
            match self.reader.scan(&range).await? {
                Part::Page(entries, next) => {
                    for entry in &entries {
                        each(&entry.name, &entry.value);
                    }
                    rest = next.and_then(|next| range.starting_at(next).ok());
                }
                // The name is not known, so the rest of the directory can not be read.
                Part::Damaged => each(range.from(), &Bytes::new()),
            }
        }
        Ok(())
    }
}

impl Window {
    /// Notes an inode from its fields, in the order of [`Field::ALL`], and its orphan candidate.
    fn inode(&mut self, ino: Ino, values: &[Stored]) {
        let decoded = |stored: &Stored| match stored {
            Stored::Value(value) => Some(value.clone()),
            Stored::Absent | Stored::Damaged => None,
        };
        let number = |stored: &Stored| match stored {
            Stored::Damaged => None,
            stored => number_in(decoded(stored).as_ref()),
        };
        let kind = decoded(&values[0]).and_then(|value| inode::kind_in(&value).ok());
        let Some(kind) = kind else {
            self.damaged.insert(ino, None);
            return;
        };
        let access = decoded(&values[1]).and_then(|value| inode::access_in(&value).ok());
        let (size, links) = (number(&values[2]), number(&values[3]));
        let is_time = |stored: &Stored| {
            let time = decoded(stored).and_then(|value| inode::time_in(&value).ok());
            time.is_some()
        };
        let target = decoded(&values[8]).filter(|target| !target.is_empty());
        let fields = [
            ("access", access.is_some()),
            ("size", size.is_some()),
            ("links", links.is_some()),
            ("mtime", is_time(&values[4])),
            ("ctime", is_time(&values[5])),
            ("atime", is_time(&values[6])),
            ("target", kind != Kind::Symlink || target.is_some()),
        ];
        let damaged = fields.iter().filter(|(_, is_whole)| !is_whole);
        let inode = Inode {
            kind,
            size: size.unwrap_or(u64::MAX),
            links,
            parent: number_of(&values[7]).map(Ino),
            is_orphan: values[9] != Stored::Absent,
            names: 0,
            name: None,
            directories: 0,
            damaged: damaged.map(|(field, _)| *field).collect(),
        };
        self.inodes.insert(ino, inode);
    }

    /// Notes an entry that leads to an inode of this window. Returns the problem of the entry, if
    /// it has one.
    fn entry(
        &mut self,
        directories: &Directories,
        directory: Ino,
        name: &Bytes,
        (to, kind): (Ino, Kind),
    ) -> Option<Problem> {
        if let Some(damaged) = self.damaged.get_mut(&to) {
            damaged.get_or_insert_with(|| (directory, name.clone()));
            return None;
        }
        let Some(inode) = self.inodes.get_mut(&to) else {
            return Some(Problem::DanglingEntry { to: to.0 });
        };
        if inode.kind == Kind::Directory && !is_main(directories, to, directory, name) {
            return Some(Problem::SecondName { to: to.0 });
        }
        inode.names += 1;
        inode.name.get_or_insert_with(|| (directory, name.clone()));
        (inode.kind != kind).then_some(Problem::WrongKind { to: to.0 })
    }
}

impl Inode {
    fn problems(
        &self,
        ino: Ino,
        directories: &Directories,
        rooted: &mut BTreeSet<Ino>,
    ) -> Vec<Problem> {
        let fields = self.damaged.iter();
        let mut problems: Vec<Problem> = fields
            .map(|field| Problem::DamagedField { field })
            .collect();
        let is_directory = self.kind == Kind::Directory;
        let counted = if is_directory {
            2 + self.directories
        } else {
            self.names
        };
        let is_kept = self.names > 0 || self.is_orphan || ino == Ino::ROOT;
        if !is_kept && !is_directory && self.links == Some(0) {
            problems.push(Problem::Unreaped);
        } else if !is_kept {
            problems.push(Problem::Lost);
        }
        if let Some(stored) = self.links
            && stored != counted
            && (is_kept || is_directory)
        {
            problems.push(Problem::WrongLinks { stored, counted });
        }
        if let (Kind::Directory, Some((listed_in, _))) = (self.kind, &self.name) {
            if self.parent != Some(*listed_in) {
                let listed_in = listed_in.0;
                problems.push(Problem::WrongParent { listed_in });
            }
            if is_circle(ino, directories, rooted) {
                let listed_in = listed_in.0;
                problems.push(Problem::Circle { listed_in });
            }
        }
        if ino == Ino::ROOT && self.parent != Some(Ino::ROOT) {
            problems.push(Problem::WrongParent {
                listed_in: Ino::ROOT.0,
            });
        }
        problems
    }
}

/// Whether the directory is below itself, and has the lowest number of its circle. `rooted` has
/// directories of which it is known that they end at the root, or at one without a name.
fn is_circle(ino: Ino, directories: &Directories, rooted: &mut BTreeSet<Ino>) -> bool {
    let (mut here, mut way) = (ino, BTreeSet::new());
    while !rooted.contains(&here) {
        if !way.insert(here) {
            // A circle. Its members are all of the way if `ino` is one of them.
            return here == ino && way.first() == Some(&ino);
        }
        let Some(Some((parent, _))) = directories.get(&here) else {
            break;
        };
        here = *parent;
    }
    rooted.extend(way);
    false
}

/// Whether the entry is the one that a directory is listed by.
fn is_main(directories: &Directories, to: Ino, directory: Ino, name: &Bytes) -> bool {
    let main = directories.get(&to).and_then(Option::as_ref);
    main.is_some_and(|(parent, main)| *parent == directory && main == name)
}

/// A path of the entry `name` of `directory`. One of more than [`PATH_BYTES_MAX`], and one of a
/// directory without a way to the root, begins at some directory.
pub(super) fn path_in(directories: &Directories, directory: Ino, name: &Bytes) -> Bytes {
    let (mut parts, mut here, mut bytes) = (vec![name.clone()], directory, name.len());
    let mut seen = BTreeSet::new();
    while here != Ino::ROOT && bytes < PATH_BYTES_MAX && seen.insert(here) {
        let Some(Some((parent, name))) = directories.get(&here) else {
            break;
        };
        bytes += name.len() + 1;
        parts.push(name.clone());
        here = *parent;
    }
    let mut path = BytesMut::with_capacity(bytes + 1);
    for (index, part) in parts.iter().rev().enumerate() {
        if index > 0 || here == Ino::ROOT {
            path.put_u8(b'/');
        }
        path.put_slice(part);
    }
    path.freeze()
}

fn number_of(stored: &Stored) -> Option<u64> {
    match stored {
        Stored::Value(value) => inode::number_of(value).ok(),
        _ => None,
    }
}

fn first_number() -> u64 {
    transactions::serializable::model::NUMBERS_RESERVED
}

/// The numbers of inodes, in pieces.
fn chunks(
    root: Option<u64>,
    numbers: Range<u64>,
    count: u64,
) -> impl Iterator<Item = Vec<u64>> + Send {
    let starts = numbers.clone().step_by(count as usize);
    let pieces = starts.map(move |start| (start..(start + count).min(numbers.end)).collect());
    root.into_iter().map(|root| vec![root]).chain(pieces)
}
