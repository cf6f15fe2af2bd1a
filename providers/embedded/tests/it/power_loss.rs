//! Power loss: what was not synced is dropped, kept or torn, and nothing acknowledged is lost.
//!
//! A kill keeps the page cache, so it cannot show a missing sync. Here a preloaded shim records what a child
//! does to its directory, in order, with what it acknowledged; the test then rebuilds the directory as of
//! many instants. What was synced by then is there. Of each write behind the last sync of its file a seeded
//! choice is made: all of it, none of it, or some of its sectors; of the names behind the last sync of their
//! directory a prefix is there.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    child::{Orders, Said, Talking, command},
    world::{block_on, directory},
};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// How many instants are tried.
const INSTANTS: usize = 60;

/// What the child did, one step.
#[derive(Debug, Clone)]
enum Step {
    Create { file: u64, path: PathBuf },
    Write { file: u64, offset: u64, data: Vec<u8> },
    /// To this length, longer or shorter.
    Resize { file: u64, length: u64 },
    /// To this length, if it was shorter.
    Allocate { file: u64, length: u64 },
    Sync { file: u64 },
    SyncDirectory { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf },
    Unlink { path: PathBuf },
    Acknowledge { text: String },
}

/// Reads the shim's records; files are numbered anew, since inodes are used again.
fn read_log(bytes: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut current: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut at, mut created) = (0, 0);
    while at < bytes.len() {
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (kind, inode, value) = (bytes[at], number(at + 1), number(at + 9));
        at += 17;
        let mut field = || {
            let length = u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
            let field = bytes[at + 4..at + 4 + length].to_vec();
            at += 4 + length;
            field
        };
        let (first, second, data) = (field(), field(), field());
        let path = |bytes: Vec<u8>| PathBuf::from(String::from_utf8(bytes).expect("paths are text"));
        if kind == b'C' {
            created += 1;
            current.insert(inode, created);
        }
        let file = current.get(&inode).copied().unwrap_or(0);
        steps.push(match kind {
            b'C' => Step::Create { file, path: path(first) },
            b'W' => Step::Write { file, offset: value, data },
            b'T' => Step::Resize { file, length: value },
            b'F' => Step::Allocate { file, length: value },
            b'S' => Step::Sync { file },
            b'D' => Step::SyncDirectory { path: path(first) },
            b'R' => Step::Rename { from: path(first), to: path(second) },
            b'U' => Step::Unlink { path: path(first) },
            b'A' => Step::Acknowledge { text: String::from_utf8_lossy(&data).into_owned() },
            other => panic!("the shim wrote {other}"),
        });
    }
    steps
}

/// A file as the disk may have it.
#[derive(Debug, Clone, Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<Step>,
}

fn apply(content: &mut Vec<u8>, step: &Step) {
    match step {
        Step::Write { offset, data, .. } => {
            let end = *offset as usize + data.len();
            content.resize(content.len().max(end), 0);
            content[*offset as usize..end].copy_from_slice(data);
        }
        Step::Resize { length, .. } => content.resize(*length as usize, 0),
        Step::Allocate { length, .. } => content.resize(content.len().max(*length as usize), 0),
        _ => {}
    }
}

/// The disk while the steps run.
#[derive(Debug, Clone, Default)]
struct Disk {
    files: BTreeMap<u64, File>,
    names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<Step>,
}

fn apply_name(names: &mut BTreeMap<PathBuf, u64>, step: &Step) {
    match step {
        Step::Create { file, path } => {
            names.insert(path.clone(), *file);
        }
        Step::Rename { from, to } => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Step::Unlink { path } => {
            names.remove(path);
        }
        _ => {}
    }
}

fn directory_of(step: &Step) -> Option<&Path> {
    match step {
        Step::Create { path, .. } | Step::Unlink { path } | Step::Rename { from: path, .. } => path.parent(),
        _ => None,
    }
}

impl Disk {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Write { file, .. } | Step::Resize { file, .. } | Step::Allocate { file, .. } => {
                self.files.entry(*file).or_default().pending.push(step.clone());
            }
            Step::Sync { file } => {
                let file = self.files.entry(*file).or_default();
                for step in std::mem::take(&mut file.pending) {
                    apply(&mut file.durable, &step);
                }
            }
            Step::SyncDirectory { path } => {
                for step in std::mem::take(&mut self.pending_names) {
                    if directory_of(&step) == Some(path) {
                        apply_name(&mut self.names, &step);
                    } else {
                        self.pending_names.push(step);
                    }
                }
            }
            Step::Create { .. } | Step::Rename { .. } | Step::Unlink { .. } => {
                self.pending_names.push(step.clone());
            }
            Step::Acknowledge { .. } => {}
        }
    }

    /// Writes the directory as a loss of power now may leave it.
    fn lose_power(&self, original: &Path, target: &Path, random: &mut fastrand::Rng) {
        let mut names = self.names.clone();
        let kept = random.usize(..=self.pending_names.len());
        for step in &self.pending_names[..kept] {
            apply_name(&mut names, step);
        }
        fs::create_dir_all(target.join("journal")).expect("the directory is made");
        for (path, file) in names {
            let file = self.files.get(&file).cloned().unwrap_or_default();
            let mut content = file.durable;
            for step in &file.pending {
                match random.u8(..3) {
                    0 => {}
                    1 => apply(&mut content, step),
                    _ => tear(&mut content, step, random),
                }
            }
            let path = path.strip_prefix(original).expect("all names lie in the directory");
            fs::write(target.join(path), content).expect("the file is written");
        }
    }
}

/// Some sectors of a write, in no order.
fn tear(content: &mut Vec<u8>, step: &Step, random: &mut fastrand::Rng) {
    let Step::Write { file, offset, data } = step else { return };
    let first = SECTOR - (*offset as usize % SECTOR);
    let mut at = 0;
    while at < data.len() {
        let end = if at == 0 { first.min(data.len()) } else { (at + SECTOR).min(data.len()) };
        if random.bool() {
            let piece = Step::Write { file: *file, offset: offset + at as u64, data: data[at..end].to_vec() };
            apply(content, &piece);
        }
        at = end;
    }
}

/// Compiles the shim; this machine links Rust, so it has a C compiler.
fn shim(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_loss/shim.c");
    let library = directory.join("shim.so");
    let output = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// What a child does from an empty directory to its end.
fn record(workspace: &Path, orders: Orders) -> (PathBuf, Vec<Step>) {
    let (data, log) = (workspace.join("data"), workspace.join("log"));
    fs::create_dir(&data).expect("the directory is made");
    let data = data.canonicalize().expect("the directory is there");
    let mut command = command(&data, orders);
    command
        .env("LD_PRELOAD", shim(workspace))
        .env("POWER_LOSS_DIRECTORY", &data)
        .env("POWER_LOSS_LOG", &log);
    Talking::start(command).finish().expect("the child works to its end");
    let steps = read_log(&fs::read(log).expect("the shim wrote"));
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    assert!(count(|step| matches!(step, Step::Sync { .. })) > 50, "the shim saw the syncs");
    assert!(count(|step| matches!(step, Step::Rename { .. })) > 2, "segments were turned");
    assert!(count(|step| matches!(step, Step::Unlink { .. })) > 1, "checkpoints removed segments");
    (data, steps)
}

/// Loses power at many instants; answers what each check found.
fn lose_power_often(orders: Orders, seed: u64) -> Vec<Result<(), String>> {
    let workspace = directory();
    let (data, steps) = record(workspace.path(), orders);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut instants: Vec<usize> = (0..INSTANTS).map(|_| random.usize(1..=steps.len())).collect();
    instants.sort_unstable();
    let (mut disk, mut said, mut ran) = (Disk::default(), Said::default(), 0);
    let mut found = Vec::new();
    for (number, instant) in instants.into_iter().enumerate() {
        for step in &steps[ran..instant] {
            disk.run(step);
            if let Step::Acknowledge { text } = step {
                text.lines().for_each(|line| said.hear(line));
            }
        }
        ran = instant;
        let left = workspace.path().join(format!("left-{number}"));
        disk.lose_power(&data, &left, &mut random);
        found.push(
            block_on(said.clone().check(&left)).map_err(|broken| format!("seed {seed}, step {instant}: {broken}")),
        );
        fs::remove_dir_all(left).expect("the directory goes");
    }
    found
}

/// D1, D2, K5, Q3.
#[test]
fn a_loss_of_power_at_any_instant_loses_nothing_that_was_acknowledged() {
    let orders = Orders { rounds: 150, ..Orders::default() };
    let broken: Vec<_> = lose_power_often(orders, 1).into_iter().filter_map(Result::err).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// D1: the test above would notice a store that acknowledges before it syncs.
#[test]
fn a_store_that_acknowledges_before_it_syncs_is_caught() {
    let orders = Orders { rounds: 150, acknowledge_early: true };
    let found = lose_power_often(orders, 2);
    assert!(found.iter().any(Result::is_err), "losing acknowledged writes went unnoticed");
}
