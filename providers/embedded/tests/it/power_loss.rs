//! A power loss drops, keeps or tears unsynced data, and nothing acknowledged is lost.
//!
//! A kill keeps the page cache, so it cannot reveal a missing sync. Here a preloaded shim records
//! the changes of a child to its directory in order, with its acknowledgements. The test then
//! rebuilds the directory as of many instants. Data synced by then is complete. For each write
//! after the last sync of its file, a seed decides: all of it, none of it, or some of its sectors.
//! Of the names after the last sync of their directory, a prefix survives. The first start is tried
//! after every step.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use embedded::{Embedded, OpenError};

use crate::{
    child::{Acknowledged, Orders, Talking, command, config},
    world::{block_on, directory},
};

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

/// How many instants are tried.
const INSTANTS: usize = 60;

/// One step of the child.
#[derive(Debug, Clone)]
enum Step {
    Create {
        file: u64,
        path: PathBuf,
    },
    Write {
        file: u64,
        offset: u64,
        data: Vec<u8>,
    },
    /// To this length, longer or shorter.
    Resize {
        file: u64,
        length: u64,
    },
    /// To this length, if the file was shorter.
    Allocate {
        file: u64,
        length: u64,
    },
    BeginSync {
        file: u64,
        thread: u64,
    },
    Sync {
        file: u64,
        thread: u64,
    },
    BeginSyncDirectory {
        thread: u64,
    },
    SyncDirectory {
        path: PathBuf,
        thread: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Unlink {
        path: PathBuf,
    },
    Acknowledge {
        text: String,
    },
}

/// A record of the shim, with two paths and data as fields.
struct Recorded {
    kind: u8,
    inode: u64,
    value: u64,
    fields: [Vec<u8>; 3],
}

/// One record of the shim, and the bytes after it; none at the end. The end may be torn, because
/// the child ends while its threads run.
fn next_record(bytes: &[u8]) -> Option<(Recorded, &[u8])> {
    let number = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (kind, inode, value) = (*bytes.first()?, number(1)?, number(9)?);
    let mut rest = &bytes[17..];
    let mut fields = [const { Vec::new() }; 3];
    for field in &mut fields {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        *field = rest.get(4..4 + length)?.to_vec();
        rest = &rest[4 + length..];
    }
    Some((
        Recorded {
            kind,
            inode,
            value,
            fields,
        },
        rest,
    ))
}

/// Reads the shim's records. Files get new numbers, because inodes are reused.
fn read_log(mut bytes: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut current: BTreeMap<u64, u64> = BTreeMap::new();
    let mut created = 0;
    while let Some((recorded, rest)) = next_record(bytes) {
        bytes = rest;
        let Recorded {
            kind,
            inode,
            value,
            fields,
        } = recorded;
        if kind == b'C' {
            created += 1;
            current.insert(inode, created);
        }
        let file = current.get(&inode).copied().unwrap_or(0);
        steps.push(step(kind, file, value, fields));
    }
    steps
}

/// The step that one record of the shim describes.
fn step(kind: u8, file: u64, value: u64, [first, second, data]: [Vec<u8>; 3]) -> Step {
    let path = |bytes: Vec<u8>| PathBuf::from(String::from_utf8(bytes).expect("paths are text"));
    match kind {
        b'C' => Step::Create {
            file,
            path: path(first),
        },
        b'W' => Step::Write {
            file,
            offset: value,
            data,
        },
        b'T' => Step::Resize {
            file,
            length: value,
        },
        b'F' => Step::Allocate {
            file,
            length: value,
        },
        b's' => Step::BeginSync {
            file,
            thread: value,
        },
        b'S' => Step::Sync {
            file,
            thread: value,
        },
        b'd' => Step::BeginSyncDirectory { thread: value },
        b'D' => Step::SyncDirectory {
            path: path(first),
            thread: value,
        },
        b'R' => Step::Rename {
            from: path(first),
            to: path(second),
        },
        b'U' => Step::Unlink { path: path(first) },
        b'A' => Step::Acknowledge {
            text: String::from_utf8_lossy(&data).into_owned(),
        },
        other => panic!("the shim wrote {other}"),
    }
}

/// A possible state of a file on the disk.
#[derive(Debug, Clone, Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<Step>,
    /// The number of durable steps so far.
    synced: usize,
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
    /// Name changes after the last sync of their directory, each with its number among all such
    /// steps.
    pending_names: Vec<(usize, Step)>,
    named: usize,
    /// By thread: the number of steps before its running sync began.
    begun: BTreeMap<u64, usize>,
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
        Step::Create { path, .. } | Step::Unlink { path } | Step::Rename { from: path, .. } => {
            path.parent()
        }
        _ => None,
    }
}

impl Disk {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Write { file, .. } | Step::Resize { file, .. } | Step::Allocate { file, .. } => {
                self.files
                    .entry(*file)
                    .or_default()
                    .pending
                    .push(step.clone());
            }
            Step::BeginSync { file, thread } => {
                let file = self.files.entry(*file).or_default();
                self.begun.insert(*thread, file.synced + file.pending.len());
            }
            Step::Sync { file, thread } => {
                let file = self.files.entry(*file).or_default();
                let begun = self
                    .begun
                    .remove(thread)
                    .expect("a sync that ends has begun");
                let covered = begun.saturating_sub(file.synced);
                file.synced += covered;
                for step in file.pending.drain(..covered) {
                    apply(&mut file.durable, &step);
                }
            }
            Step::BeginSyncDirectory { thread } => {
                self.begun.insert(*thread, self.named);
            }
            Step::SyncDirectory { path, thread } => {
                let begun = self
                    .begun
                    .remove(thread)
                    .expect("a sync that ends has begun");
                for (number, step) in std::mem::take(&mut self.pending_names) {
                    if number < begun && directory_of(&step) == Some(path) {
                        apply_name(&mut self.names, &step);
                    } else {
                        self.pending_names.push((number, step));
                    }
                }
            }
            Step::Create { .. } | Step::Rename { .. } | Step::Unlink { .. } => {
                self.pending_names.push((self.named, step.clone()));
                self.named += 1;
            }
            Step::Acknowledge { .. } => {}
        }
    }

    /// Writes the directory as a power loss at this moment may leave it.
    fn lose_power(&self, original: &Path, target: &Path, random: &mut fastrand::Rng) {
        let mut names = self.names.clone();
        let kept = random.usize(..=self.pending_names.len());
        for (_, step) in &self.pending_names[..kept] {
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
            let path = target.join(
                path.strip_prefix(original)
                    .expect("all names lie in the directory"),
            );
            fs::create_dir_all(path.parent().expect("it lies in one"))
                .expect("the directory is made");
            fs::write(path, content).expect("the file is written");
        }
    }
}

/// Applies some sectors of a write, in random order.
fn tear(content: &mut Vec<u8>, step: &Step, random: &mut fastrand::Rng) {
    let Step::Write { file, offset, data } = step else {
        return;
    };
    let first = SECTOR - (*offset as usize % SECTOR);
    let mut at = 0;
    while at < data.len() {
        let end = if at == 0 {
            first.min(data.len())
        } else {
            (at + SECTOR).min(data.len())
        };
        if random.bool() {
            let piece = Step::Write {
                file: *file,
                offset: offset + at as u64,
                data: data[at..end].to_vec(),
            };
            apply(content, &piece);
        }
        at = end;
    }
}

/// Compiles the shim. A machine that links Rust has a C compiler.
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
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    library
}

/// Records the steps of a child from an empty directory to its end.
fn record(workspace: &Path, orders: Orders) -> (PathBuf, Vec<Step>) {
    let (data, log) = (workspace.join("data"), workspace.join("log"));
    fs::create_dir(&data).expect("the directory is made");
    let data = data.canonicalize().expect("the directory is there");
    let mut command = command(&data, orders);
    if orders.acknowledge_early {
        command.env("POWER_LOSS_HOLDS_SYNCS", "1");
    }
    command
        .env("LD_PRELOAD", shim(workspace))
        .env("POWER_LOSS_DIRECTORY", &data)
        .env("POWER_LOSS_LOG", &log);
    Talking::start(command)
        .finish()
        .expect("the child works to its end");
    let steps = read_log(&fs::read(log).expect("the shim wrote"));
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    assert!(
        count(|step| matches!(step, Step::Sync { .. })) > 50,
        "the shim saw the syncs"
    );
    assert!(
        count(|step| matches!(step, Step::Rename { .. })) > 2,
        "segments were turned"
    );
    assert!(
        count(
            |step| matches!(step, Step::Rename { from, .. } if from.extension() == Some("log".as_ref()))
        ) > 1,
        "segments were reused"
    );
    (data, steps)
}

/// Loses power at many instants. Returns the result of each check.
fn lose_power_often(orders: Orders, seed: u64) -> Vec<Result<(), String>> {
    let workspace = directory();
    let (data, steps) = record(workspace.path(), orders);
    let mut random = fastrand::Rng::with_seed(seed);
    let instants = instants(&steps, &mut random);
    let (mut disk, mut acknowledged, mut ran) = (Disk::default(), Acknowledged::default(), 0);
    let mut found = Vec::new();
    for (number, instant) in instants.into_iter().enumerate() {
        for step in &steps[ran..instant] {
            disk.run(step);
            if let Step::Acknowledge { text } = step {
                text.lines().for_each(|line| acknowledged.note(line));
            }
        }
        ran = instant;
        let left = workspace.path().join(format!("left-{number}"));
        let mut twin = random.clone();
        disk.lose_power(&data, &left, &mut random);
        let mut checked = block_on(acknowledged.clone().check(&left));
        fs::remove_dir_all(&left).expect("the directory goes");
        if acknowledged.has_any() {
            disk.lose_power(&data, &left, &mut twin);
            checked = checked.and_then(|()| misses_its_journal(&left));
            fs::remove_dir_all(left).expect("the directory goes");
        }
        found.push(checked.map_err(|broken| format!("seed {seed}, step {instant}: {broken}")));
    }
    found
}

/// The instants of power losses: after every step of the first start, and then at random.
fn instants(steps: &[Step], random: &mut fastrand::Rng) -> Vec<usize> {
    let acknowledged = |step: &usize| matches!(steps[step - 1], Step::Acknowledge { .. });
    let says_ready = |step: &Step| matches!(step, Step::Acknowledge { text } if text.lines().any(|line| line == "ready"));
    let started = 1 + steps
        .iter()
        .position(says_ready)
        .expect("the child becomes ready");
    let mut instants: Vec<usize> = (1..=started).collect();
    instants.extend((0..INSTANTS).map(|number| {
        let any = random.usize(1..=steps.len());
        // Every other one directly follows an acknowledgement, where a missing sync shows best.
        let next = (any..=steps.len())
            .find(acknowledged)
            .filter(|_| number % 2 == 0);
        next.unwrap_or(any)
    }));
    instants.sort_unstable();
    instants
}

/// Checks that a directory with acknowledged data but without its journal is not taken for a new
/// one.
fn misses_its_journal(left: &Path) -> Result<(), String> {
    fs::remove_dir_all(left.join("journal")).expect("the journal goes");
    match block_on(Embedded::open(config(left))) {
        Err(OpenError::Missing { .. } | OpenError::Damaged { .. }) => Ok(()),
        Err(error) => Err(format!("open without its journal: {error}")),
        Ok(_) => Err("it opens without its journal".to_owned()),
    }
}

/// D1, D2, K5, Q3.
#[test]
fn a_power_loss_at_any_instant_loses_nothing_acknowledged() {
    let orders = Orders {
        rounds: 150,
        ..Orders::default()
    };
    let broken: Vec<_> = lose_power_often(orders, 1)
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// D1, O1: the test above detects a store that acknowledges before it syncs, at any speed of the
/// disk. The shim holds each sync until an acknowledgement of its data was sent. Objects are not
/// synced at all here.
#[test]
fn a_store_that_acknowledges_before_it_syncs_is_caught() {
    let orders = Orders {
        rounds: 150,
        acknowledge_early: true,
        ..Orders::default()
    };
    let found = lose_power_often(orders, 2);
    let lost = |what| {
        found
            .iter()
            .filter_map(|found| found.as_ref().err())
            .any(|lost| lost.contains(what))
    };
    assert!(
        lost(": pair ") || lost(": group "),
        "losing acknowledged writes went unnoticed"
    );
    assert!(
        lost("object "),
        "losing acknowledged objects went unnoticed"
    );
}
