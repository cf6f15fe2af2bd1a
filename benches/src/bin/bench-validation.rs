//! How many proposals a second one core validates for a volume, without I/O.
//!
//! Proposals are those of file operations. Each is decided, its slot is encoded, and the validator
//! notes it, as the sequencer does around its append. Building the proposals is not measured. The
//! aim is 10,000 proposals a second (`docs/design/0007-files.md`).

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use benches::{figures::Machine, table};
use bytes::Bytes;
use clap::Parser;
use transactions::{
    model::NodeId,
    serializable::{
        lock_table::LockTable,
        model::{
            Is, Key, KeyRange, Patch, Predicate, Proposal, ProposalId, Slot, Verdict, Write, Writes,
        },
        validate::{Candidate, Decision, Limits, Validator},
    },
};

/// Proposals that wait while a slot is written.
const BATCHES: [usize; 3] = [1, 16, 128];
/// Proposals that are built before each measured stretch.
const STRETCH: usize = 4_096;
/// Files and directories of the volume.
const INODES: u64 = 10_000;
/// A proposal's snapshot is up to this many slots old.
const LAG_SLOTS_MAX: u64 = 8;

/// Measures decisions about proposals of file operations, in thousands a second on one core.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Time for each figure, in milliseconds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    measure_ms: u64,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

/// A kind of proposal.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// A file in one of the directories.
    Create,
    /// 4 KiB at a random place of a file.
    Write,
    /// 100 bytes to a file.
    Append,
    /// 50 reads and a scan, five writes.
    Transaction,
    /// All of them, on ten files: many conflict.
    Hot,
}

const LOADS: [(Load, &str); 5] = [
    (Load::Create, "create"),
    (Load::Write, "write 4 KiB"),
    (Load::Append, "append 100 B"),
    (Load::Transaction, "50 reads, a scan, 5 writes"),
    (Load::Hot, "all, on 10 inodes"),
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let machine = Machine::here()?;
    let mut text = format!(
        "`bench-validation`, {}\n\n{} x {}, Linux {}, load average {} before the run. One core. Thousands of \
         proposals a second, by the number in one slot.\n\n",
        machine.date, machine.processors, machine.processor, machine.kernel, machine.load_average,
    );
    let mut head = vec!["proposal".to_owned()];
    head.extend(BATCHES.map(|batch| format!("{batch} a slot")));
    head.push("conflicts, %".to_owned());
    let mut cells = vec![head];
    for (load, name) in LOADS {
        let mut row = vec![name.to_owned()];
        let mut conflicts = 0.0;
        for batch in BATCHES {
            let time = Duration::from_millis(arguments.measure_ms);
            let (rate, share) = measure(load, batch, time)?;
            row.push(format!("{:.0}", rate / 1e3));
            conflicts = share;
        }
        row.push(format!("{:.0}", conflicts * 100.0));
        cells.push(row);
    }
    table::grid(&mut text, &cells);
    println!("{text}");
    if let Some(path) = &arguments.markdown {
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Proposals a second, and the share of conflicts.
fn measure(load: Load, batch: usize, time: Duration) -> Result<(f64, f64)> {
    let (mut random, mut number) = (fastrand::Rng::with_seed(1), 0);
    let mut validator = Validator::new(Slot(0), Limits::default());
    let (mut busy, mut decided, mut conflicts) = (Duration::ZERO, 0, 0);
    while busy < time {
        let mut stretch: Vec<Proposal> = (0..STRETCH)
            .map(|_| {
                number += 1;
                proposal(load, number, &mut random)
            })
            .collect();
        for proposals in stretch.chunks_mut(batch) {
            for proposal in &mut *proposals {
                let lag = random.u64(0..LAG_SLOTS_MAX);
                proposal.at = Slot(validator.last().0.saturating_sub(lag));
                proposal.check()?;
            }
            let started = Instant::now();
            conflicts += slot(&mut validator, proposals)?;
            busy += started.elapsed();
            decided += proposals.len();
        }
    }
    let rate = decided as f64 / busy.as_secs_f64();
    Ok((rate, conflicts as f64 / decided as f64))
}

/// Decides all proposals, in as many slots as they take. Returns how many conflict.
fn slot(validator: &mut Validator, proposals: &[Proposal]) -> Result<usize> {
    let (locks, mut conflicts, mut waiting) = (LockTable::default(), 0, proposals);
    while !waiting.is_empty() {
        let (mut draft, mut done, mut wants) = (validator.draft(), 0, Vec::new());
        for proposal in waiting {
            let candidate = Candidate::inline(proposal);
            if done > 0 && !draft.has_room_for(&candidate) {
                break;
            }
            match draft.decide(&candidate, &locks) {
                Decision::Now(Verdict::Committed { .. }) => {}
                Decision::Now(_) => conflicts += 1,
                Decision::AfterSlot(outcome) => {
                    let verdict = outcome.verdict(Slot(0));
                    conflicts += usize::from(!matches!(verdict, Verdict::Committed { .. }));
                }
                Decision::Wants(keys) => {
                    wants = keys;
                    break;
                }
                Decision::Outdated(_) => anyhow::bail!("the snapshots are not that old"),
            }
            done += 1;
        }
        let (slot, noted) = draft.finish(0, NodeId(1));
        ensure!(!slot.encode().is_empty(), "a slot is not empty");
        let number = Slot(validator.last().0 + 1);
        validator.note(number, &slot, noted);
        for key in wants {
            validator.learn(&key, number, None);
        }
        waiting = &waiting[done..];
    }
    Ok(conflicts)
}

fn inode(number: u64, name: &'static str) -> Key {
    Key::new([&b"i"[..], &number.to_be_bytes()].concat(), name).expect("in bounds")
}

fn entry(directory: u64, name: String) -> Key {
    Key::new([&b"d"[..], &directory.to_be_bytes()].concat(), name).expect("in bounds")
}

fn blocks(number: u64) -> Key {
    Key::new([&b"b"[..], &number.to_be_bytes()].concat(), "").expect("in bounds")
}

fn put(key: Key, bytes: usize) -> Write {
    let value = Bytes::from(vec![1; bytes]);
    Write::Put { key, value }
}

fn times(number: u64) -> [Write; 2] {
    ["m", "c"].map(|name| put(inode(number, name), 12))
}

/// The writes of a create.
fn created(entry: Key, directory: u64, file: u64) -> Vec<Write> {
    let keys = ["e", "a", "s", "n", "t"].map(|name| put(inode(file, name), 12));
    let own = [
        keys.to_vec(),
        times(file).to_vec(),
        times(directory).to_vec(),
    ]
    .concat();
    [vec![put(entry, 9)], own].concat()
}

fn proposal(load: Load, number: u64, random: &mut fastrand::Rng) -> Proposal {
    let kinds = [Load::Create, Load::Write, Load::Append, Load::Transaction];
    let (load, inodes) = match load {
        Load::Hot => (kinds[random.usize(..4)], 10),
        load => (load, INODES),
    };
    let file = random.u64(..inodes);
    let (mut reads, mut predicates) = (vec![inode(file, "e")], Vec::new());
    let writes = match load {
        Load::Create => {
            let entry = entry(file, format!("name-{number}.txt"));
            reads.extend([entry.clone(), inode(file, "a")]);
            created(entry, file, INODES + number)
        }
        Load::Write => {
            let block = random.u64(..64);
            let patch = Write::Patch {
                key: blocks(file).block(block).expect("in bounds"),
                offset: 4096,
                data: Patch::Bytes(vec![1; 4096].into()),
            };
            let size = Write::Max {
                key: inode(file, "s"),
                value: block << 14,
            };
            [vec![patch, size], times(file).to_vec()].concat()
        }
        Load::Append => {
            let append = Write::Append {
                length: inode(file, "s"),
                blocks: blocks(file),
                block_bytes: 16 << 10,
                data: vec![1; 100].into(),
            };
            [vec![append], times(file).to_vec()].concat()
        }
        Load::Transaction | Load::Hot => {
            reads.extend((0..50).map(|_| inode(random.u64(..inodes), "m")));
            let directory = entry(file, String::new());
            let range = KeyRange::all(directory.group().clone()).expect("in bounds");
            predicates.push(Predicate::Untouched(range));
            predicates.push(Predicate::Number {
                key: inode(file, "s"),
                is: Is::AtLeast(0),
            });
            let files = (0..5).map(|_| random.u64(..inodes));
            files.map(|file| put(inode(file, "x"), 200)).collect()
        }
    };
    Proposal {
        at: Slot(0),
        id: ProposalId::new(random.u128(..).to_be_bytes().to_vec(), 0).expect("in bounds"),
        reads,
        predicates,
        writes: Writes::Inline(writes),
    }
}
