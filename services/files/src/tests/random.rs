//! Random calls, beside a tree in memory that follows the manual pages: same calls, same results.

mod tree;

use std::collections::BTreeSet;

use fastrand::Rng;
use futures_util::future::FutureExt as _;
use transactions::serializable::{
    VolumeStore as _,
    model::{Granted, Lock, LockBytes, LockFamily, LockMode, Slot, Wait},
};

use self::tree::Tree;
use super::*;
use crate::{
    Errno, Ino, Listing, Outcome, Transaction,
    model::{Allocation, Kind, Privileges, RenameMode, Seek, SetAttributes, SetMode},
    reaper::reap,
};

/// A call.
#[derive(Debug, Clone)]
enum Call {
    Lookup(Ino, Bytes),
    Create(Ino, Bytes),
    CreateUnnamed(Ino),
    Mkdir(Ino, Bytes),
    Symlink(Ino, Bytes, Bytes),
    Readlink(Ino),
    Link(Ino, Ino, Bytes),
    Unlink(Ino, Bytes),
    Rmdir(Ino, Bytes),
    Rename(Ino, Bytes, Ino, Bytes, RenameMode),
    Getattr(Ino),
    Chmod(Ino, u32),
    Read(Ino, u64, u64),
    Write(Ino, u64, Bytes),
    Append(Ino, Bytes),
    Truncate(Ino, u64),
    Allocate(Ino, Allocation, u64, u64),
    Seek(Ino, Seek, u64),
    List(Ino),
    Setxattr(Ino, SetMode, Bytes, Bytes),
    Getxattr(Ino, Bytes),
    Removexattr(Ino, Bytes),
    Listxattr(Ino),
}

/// The part of an answer that does not depend on the implementation's choices.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Done,
    Created(Ino),
    Found(Ino, Kind),
    Data(Bytes),
    At(u64),
    Attributes {
        kind: Kind,
        mode: u32,
        links: u64,
        size: u64,
    },
    Names(Vec<Bytes>),
}

async fn apply(t: &mut Transaction, call: &Call) -> Result<Answer> {
    use Call::*;
    let keep = Privileges::Keep;
    let done = match call {
        Lookup(parent, name) => {
            let found = t.lookup(*parent, name).await?;
            return Ok(Answer::Found(found.ino, found.kind));
        }
        Create(parent, name) => {
            return Ok(Answer::Created(t.create(*parent, ACCESS, name).await?));
        }
        CreateUnnamed(parent) => {
            return Ok(Answer::Created(t.create_unnamed(*parent, ACCESS).await?));
        }
        Mkdir(parent, name) => return Ok(Answer::Created(t.mkdir(*parent, ACCESS, name).await?)),
        Symlink(parent, name, target) => {
            let made = t.symlink(*parent, ACCESS, name, target).await?;
            return Ok(Answer::Created(made));
        }
        Readlink(ino) => return Ok(Answer::Data(t.readlink(*ino).await?)),
        Link(ino, parent, name) => t.link(*ino, *parent, name).await,
        Unlink(parent, name) => t.unlink(*parent, name).await,
        Rmdir(parent, name) => t.rmdir(*parent, name).await,
        Rename(from, a, to, b, mode) => t.rename(*from, *to, *mode, a, b).await,
        Getattr(ino) => {
            let found = t.getattr(*ino).await?;
            return Ok(Answer::Attributes {
                kind: found.kind,
                mode: found.access.mode,
                links: found.links,
                size: found.size,
            });
        }
        Chmod(ino, mode) => {
            let mode = Some(*mode);
            let set = SetAttributes {
                mode,
                ..SetAttributes::default()
            };
            t.setattr(*ino, set).await
        }
        Read(ino, offset, count) => return Ok(Answer::Data(t.read(*ino, *offset, *count).await?)),
        Write(ino, offset, data) => t.write(*ino, *offset, keep, data).await,
        Append(ino, data) => t.append(*ino, keep, data).await,
        Truncate(ino, size) => t.truncate(*ino, *size).await,
        Allocate(ino, mode, offset, count) => t.fallocate(*ino, *mode, *offset, *count).await,
        Seek(ino, seek, offset) => return Ok(Answer::At(t.seek(*ino, *seek, *offset).await?)),
        List(ino) => return Ok(Answer::Names(names_in(t, *ino).await?)),
        Setxattr(ino, mode, name, value) => t.setxattr(*ino, *mode, name, value).await,
        Getxattr(ino, name) => return Ok(Answer::Data(t.getxattr(*ino, name).await?)),
        Removexattr(ino, name) => t.removexattr(*ino, name).await,
        Listxattr(ino) => return Ok(Answer::Names(t.listxattr(*ino).await?)),
    };
    done.map(|()| Answer::Done)
}

/// The names in a directory, from pages of three.
async fn names_in(t: &mut Transaction, directory: Ino) -> Result<Vec<Bytes>> {
    let (mut listing, mut names, mut cookie) = (Listing::new(directory), Vec::new(), 2);
    loop {
        let page = t.list(&mut listing, cookie, 3).await?;
        let Some(last) = page.last() else {
            return Ok(names);
        };
        cookie = last.cookie;
        names.extend(page.into_iter().map(|entry| entry.name));
    }
}

/// A generator of calls on inodes that exist, and on some that are gone.
struct Generator {
    random: Rng,
    known: Vec<Ino>,
}

impl Generator {
    fn ino(&mut self) -> Ino {
        let recent = self.known.len().saturating_sub(12);
        let from = if self.random.u8(..4) == 0 { 0 } else { recent };
        self.known[self.random.usize(from..self.known.len())]
    }

    fn parent(&mut self) -> Ino {
        if self.random.bool() {
            Ino::ROOT
        } else {
            self.ino()
        }
    }

    fn name(&mut self) -> Bytes {
        name(["a", "b", "c", "d", "e", "f"][self.random.usize(..6)])
    }

    fn offset(&mut self) -> u64 {
        let near = self.random.u64(..5) * BLOCK;
        (near + self.random.u64(..40)).saturating_sub(20)
    }

    fn data(&mut self) -> Bytes {
        let count = match self.random.u8(..4) {
            0 => self.random.usize(..3 * BLOCK as usize),
            1 => BLOCK as usize,
            _ => self.random.usize(..50),
        };
        (0..count).map(|_| self.random.u8(1..)).collect()
    }

    fn call(&mut self) -> Call {
        use Call::*;
        let ino = self.ino();
        match self.random.u8(..36) {
            0 => Lookup(self.parent(), self.name()),
            1..=4 => Create(self.parent(), self.name()),
            5..=7 => Mkdir(self.parent(), self.name()),
            8 => Symlink(self.parent(), self.name(), self.name()),
            9 => Readlink(ino),
            10 => Link(ino, self.parent(), self.name()),
            11 => Unlink(self.parent(), self.name()),
            12 => Rmdir(self.parent(), self.name()),
            13..=16 => {
                let modes = [
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ];
                let mode = modes[self.random.usize(..4)];
                Rename(self.parent(), self.name(), self.parent(), self.name(), mode)
            }
            17 => Getattr(ino),
            18 => Chmod(ino, self.random.u32(..0o10_000)),
            19 | 20 => Read(ino, self.offset(), self.random.u64(..3 * BLOCK)),
            21..=23 => Write(ino, self.offset(), self.data()),
            24 | 25 => Append(ino, self.data()),
            26 => Truncate(ino, self.offset()),
            27 => {
                let modes = [
                    Allocation::Extend,
                    Allocation::KeepSize,
                    Allocation::PunchHole,
                    Allocation::ZeroRange,
                ];
                let mode = modes[self.random.usize(..4)];
                Allocate(ino, mode, self.offset(), self.random.u64(..3 * BLOCK))
            }
            28 => {
                let seek =
                    [crate::model::Seek::Data, crate::model::Seek::Hole][self.random.usize(..2)];
                Seek(ino, seek, self.offset())
            }
            29 => List(ino),
            30 => {
                let modes = [SetMode::Any, SetMode::Create, SetMode::Replace];
                let mode = modes[self.random.usize(..3)];
                Setxattr(ino, mode, self.name(), self.name())
            }
            31 => Getxattr(ino, self.name()),
            32 => Removexattr(ino, self.name()),
            33 | 34 => CreateUnnamed(self.parent()),
            _ => Listxattr(ino),
        }
    }
}

/// Compares an answer with the tree's, and returns the inode that it made.
fn compare(tree: &mut Tree, call: &Call, answer: &Result<Answer>, seed: u64) -> Option<Ino> {
    let made = match answer {
        Ok(Answer::Created(ino)) => Some(*ino),
        _ => None,
    };
    if let Call::Seek(ino, seek, offset) = call {
        let answer = match answer {
            Ok(Answer::At(at)) => Ok(*at),
            Ok(_) => Err(Errno::EIO),
            Err(errno) => Err(*errno),
        };
        let is_right = tree.is_position(*ino, *seek, *offset, answer);
        assert!(is_right, "seed {seed}: {call:?} gave {answer:?}");
        return None;
    }
    let expected = tree.call(call, made.unwrap_or(Ino(0)));
    assert_eq!(*answer, expected, "seed {seed}: {call:?}");
    made
}

async fn run_calls(seed: u64) {
    let volume = volume();
    let files = client(&volume, seed, Mutant::NONE).await;
    let mut tree = Tree::new();
    let mut generator = Generator {
        random: Rng::with_seed(seed),
        known: vec![Ino::ROOT],
    };
    for _ in 0..60 {
        if generator.random.u8(..20) == 0 {
            let reaped = reap(&files).await.expect("reaped");
            assert_eq!(reaped, tree.reap(), "seed {seed}");
        }
        if generator.random.bool() {
            // Each call is a transaction.
            for _ in 0..4 {
                let call = generator.call();
                let shared = Arc::new(call.clone());
                let answer = files.transact(move |t| {
                    let call = shared.clone();
                    async move { apply(t, &call).await }.boxed()
                });
                let answer = answer.await;
                generator
                    .known
                    .extend(compare(&mut tree, &call, &answer, seed));
            }
            continue;
        }
        let mut draft = tree.clone();
        let mut made = Vec::new();
        let mut transaction = files.begin();
        for _ in 0..generator.random.usize(1..12) {
            generator.known.extend(made.iter().copied());
            let call = generator.call();
            generator.known.truncate(generator.known.len() - made.len());
            let answer = apply(&mut transaction, &call).await;
            made.extend(compare(&mut draft, &call, &answer, seed));
        }
        generator.known.extend(made);
        if generator.random.u8(..4) > 0 {
            let ended = transaction.commit(None, || true).await;
            assert!(matches!(ended, Ok(Outcome::Committed { .. })), "{ended:?}");
            tree = draft;
        }
    }
    let known: BTreeSet<Ino> = generator.known.iter().copied().collect();
    for ino in known {
        for call in [
            Call::Getattr(ino),
            Call::List(ino),
            Call::Read(ino, 0, 1 << 20),
        ] {
            let answer = apply(&mut files.begin(), &call).await;
            compare(&mut tree, &call, &answer, seed);
        }
    }
    let report = super::check::checked(volume, crate::check::Options::default()).await;
    assert!(report.is_clean(), "seed {seed}: {report:?}");
}

#[test]
fn random_calls_have_the_results_of_the_model() {
    for seed in simulated::seeds(200) {
        simulated::run(run_calls(seed));
    }
}

/// The inode on which another session takes locks.
const LOCKED: Ino = Ino::ROOT;

fn lock_of(ino: Ino, mode: LockMode) -> Lock {
    Lock {
        key: crate::file_system::lock_key(ino),
        family: LockFamily::Posix,
        bytes: LockBytes::ALL,
        mode,
        pid: 1,
        wait: Wait::Never,
    }
}

/// Another session, which takes and frees a lock.
struct Outside {
    volume: Arc<ModelVolume>,
    files: FileSystem,
    is_locked: bool,
    /// The slot of the last release.
    released: Slot,
}

impl Outside {
    async fn new(volume: &Arc<ModelVolume>, seed: u64) -> Self {
        Self {
            volume: volume.clone(),
            files: client(volume, seed + 1_000_000, Mutant::NONE).await,
            is_locked: false,
            released: Slot::default(),
        }
    }

    async fn change(&mut self, locks: bool) {
        let mode = if locks {
            LockMode::Exclusive
        } else {
            LockMode::Unlocked
        };
        let granted = self.files.lock(1, lock_of(LOCKED, mode)).await;
        assert_eq!(granted, Ok(Granted::Yes));
        if self.is_locked && !locks {
            let snapshot = self.volume.snapshot().await.expect("a snapshot");
            self.released = snapshot.value.slot;
        }
        self.is_locked = locks;
    }

    /// F-1: whether no lock was held after the slot.
    fn is_free_since(&self, slot: Option<Slot>) -> bool {
        !self.is_locked && slot.is_none_or(|slot| self.released <= slot)
    }
}

/// The calls of a transaction, and their answers.
type History = Vec<(Call, Result<Answer>)>;

/// Three transactions at the same time. Those that commit have the results that they would have
/// had one after the other, in the order of their commits.
async fn run_transactions(seed: u64, mutant: Mutant<Broken>) -> usize {
    let volume = volume();
    let files = client(&volume, seed, mutant).await;
    let mut tree = Tree::new();
    let mut generator = Generator {
        random: Rng::with_seed(seed),
        known: vec![Ino::ROOT],
    };
    let mut committed = 0;
    let mut outside = Outside::new(&volume, seed).await;
    for _ in 0..40 {
        let mut open: Vec<(Transaction, History, Option<Ino>)> =
            (0..3).map(|_| (files.begin(), Vec::new(), None)).collect();
        for _ in 0..generator.random.usize(3..12) {
            let which = generator.random.usize(..3);
            if generator.random.u8(..8) == 0 {
                outside.change(generator.random.bool()).await;
            }
            let (transaction, history, elided) = &mut open[which];
            if generator.random.u8(..16) == 0 {
                transaction.elide_lock(&lock_of(LOCKED, LockMode::Shared));
                *elided = Some(LOCKED);
            }
            let call = generator.call();
            let answer = apply(transaction, &call).await;
            history.push((call, answer));
        }
        while !open.is_empty() {
            let which = generator.random.usize(..open.len());
            let (transaction, history, elided) = open.swap_remove(which);
            let slot = transaction.slot();
            // One without writes takes place at its begin.
            let is_read_only = transaction.overlay.is_read_only();
            let ended = transaction.commit(None, || true).await.expect("a verdict");
            if elided.is_some() && matches!(ended, Outcome::Committed { .. }) {
                assert!(outside.is_free_since(slot), "seed {seed}: a lock was held");
            }
            if is_read_only || matches!(ended, Outcome::Conflict { .. }) {
                continue;
            }
            committed += 1;
            for (call, answer) in history {
                let made = compare(&mut tree, &call, &answer, seed);
                generator.known.extend(made);
            }
        }
        if generator.random.u8(..10) == 0 {
            let reaped = reap(&files).await.expect("reaped");
            assert_eq!(reaped, tree.reap(), "seed {seed}");
        }
    }
    committed
}

#[test]
fn transactions_at_the_same_time_are_serializable() {
    let run = |seed| simulated::run(run_transactions(seed, Mutant::NONE));
    let committed: usize = simulated::seeds(200).map(run).sum();
    assert!(committed > 0);
}

#[test]
fn a_transaction_that_reads_too_little_is_noticed() {
    for rule in [Broken::RmdirForgetsEntries, Broken::ElidesHeldLocks] {
        must_fail(move || {
            for seed in 0..200 {
                simulated::run(run_transactions(seed, Mutant::of(rule)));
            }
        });
    }
}
