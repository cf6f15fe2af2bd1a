//! Locks of sessions, and transactions that elide them (F-1).

use std::task::Poll;

use futures_util::{future::FutureExt as _, poll};
use transactions::serializable::model::{Granted, Lock, LockBytes, LockFamily, LockMode, Wait};

use super::*;
use crate::{Ino, Outcome, file_system::lock_key, model::Privileges};

const ROOT: Ino = Ino::ROOT;
const KEEP: Privileges = Privileges::Keep;

fn lock(
    ino: Ino,
    family: LockFamily,
    bytes: std::ops::RangeInclusive<u64>,
    mode: LockMode,
) -> Lock {
    Lock {
        key: lock_key(ino),
        family,
        bytes: LockBytes {
            first: *bytes.start(),
            last: *bytes.end(),
        },
        mode,
        pid: 42,
        wait: Wait::Never,
    }
}

fn exclusive(ino: Ino) -> Lock {
    lock(ino, LockFamily::Posix, 0..=9, LockMode::Exclusive)
}

fn unlocked(ino: Ino) -> Lock {
    lock(ino, LockFamily::Posix, 0..=u64::MAX, LockMode::Unlocked)
}

async fn two(volume: &Arc<ModelVolume>) -> (FileSystem, FileSystem, Ino) {
    let one = client(volume, 1, Mutant::NONE).await;
    let two = client(volume, 2, Mutant::NONE).await;
    let f = one.create(ROOT, ACCESS, &name("f")).await.expect("made");
    (one, two, f)
}

/// F-1: locks of two sessions, and of two owners of one, exclude each other.
#[test]
fn locks_exclude_owners_of_all_sessions() {
    simulated::run(async {
        let (one, two, f) = two(&volume()).await;
        assert_eq!(one.lock(7, exclusive(f)).await, Ok(Granted::Yes));
        let refused = Granted::No {
            bytes: LockBytes { first: 0, last: 9 },
            mode: LockMode::Exclusive,
            pid: 42,
        };
        for (files, owner) in [(&one, 8), (&two, 7)] {
            assert_eq!(files.lock(owner, exclusive(f)).await, Ok(refused.clone()));
            let test = Lock {
                wait: Wait::Test,
                ..exclusive(f)
            };
            assert_eq!(files.lock(owner, test).await, Ok(refused.clone()));
            let beside = lock(f, LockFamily::Posix, 10..=19, LockMode::Exclusive);
            assert_eq!(files.lock(owner, beside).await, Ok(Granted::Yes));
            assert_eq!(files.lock(owner, unlocked(f)).await, Ok(Granted::Yes));
            let flock = lock(f, LockFamily::Flock, 0..=u64::MAX, LockMode::Shared);
            assert_eq!(files.lock(owner, flock).await, Ok(Granted::Yes));
        }
        let waiting = Lock {
            wait: Wait::UntilGranted,
            ..exclusive(f)
        };
        let mut waiting = two.lock(7, waiting).boxed();
        assert_eq!(poll!(&mut waiting), Poll::Pending);
        one.end_session().await.expect("ended");
        assert_eq!(waiting.await, Ok(Granted::Yes));
    });
}

/// Whether a transaction commits that elides `lock` on the file which `other` has locked, or has
/// locked and unlocked.
async fn elided(
    other: &FileSystem,
    files: &FileSystem,
    (f, lock): (Ino, &Lock),
    writes: bool,
    frees: bool,
) -> bool {
    let mut transaction = files.begin();
    transaction.getattr(f).await.expect("there");
    transaction.elide_lock(lock);
    if writes {
        let written = transaction.write(f, 0, KEEP, &name("x")).await;
        written.expect("written");
    }
    assert_eq!(other.lock(1, exclusive(f)).await, Ok(Granted::Yes));
    if frees {
        // A commit between moves the volume on, so that the lock was held after the begin.
        let other = other.create(ROOT, ACCESS, &name("between")).await;
        other.expect("created");
    }
    if frees {
        assert_eq!(other.lock(1, unlocked(f)).await, Ok(Granted::Yes));
    }
    let ended = transaction.commit(None, || true).await.expect("a verdict");
    let conflict = Outcome::Conflict {
        key: Some(lock_key(f)),
    };
    assert!(ended == conflict || matches!(ended, Outcome::Committed { .. }));
    ended != conflict
}

fn held_locks_are_not_elided(mutant: Mutant<Broken>) {
    let of =
        |wait| [(true, false), (true, true), (false, false), (false, true)].map(|way| (wait, way));
    for (wait, (writes, frees)) in [Wait::Never, Wait::Test].into_iter().flat_map(of) {
        simulated::run(async {
            let volume = volume();
            let (one, _, f) = two(&volume).await;
            let files = client(&volume, 3, mutant).await;
            let lock = Lock {
                wait,
                ..exclusive(f)
            };
            assert!(!elided(&one, &files, (f, &lock), writes, frees).await);
        });
    }
}

/// F-1: a lock outside that is held, or was held since the begin, is a conflict, also for a
/// transaction that only reads.
#[test]
fn a_lock_outside_ends_elision() {
    held_locks_are_not_elided(Mutant::NONE);
    must_fail(|| held_locks_are_not_elided(Mutant::of(Broken::ElidesHeldLocks)));
}

/// F-1: two transactions that take the same lock both commit, if they change different files.
#[test]
fn elided_locks_do_not_conflict_with_each_other() {
    simulated::run(async {
        let (one, two, f) = two(&volume()).await;
        let g = two.create(ROOT, ACCESS, &name("g")).await.expect("made");
        let h = two.create(ROOT, ACCESS, &name("h")).await.expect("made");
        // A lock before the begin is no matter.
        assert_eq!(one.lock(1, exclusive(f)).await, Ok(Granted::Yes));
        assert_eq!(one.lock(1, unlocked(f)).await, Ok(Granted::Yes));
        let mut open = Vec::new();
        for (files, ino) in [(&one, g), (&two, h)] {
            let mut transaction = files.begin();
            transaction.elide_lock(&exclusive(f));
            let written = transaction.write(ino, 0, KEEP, &name("x")).await;
            written.expect("written");
            open.push(transaction);
        }
        for transaction in open {
            let ended = transaction.commit(None, || true).await;
            assert!(matches!(ended, Ok(Outcome::Committed { .. })), "{ended:?}");
        }
    });
}
