//! Locks in transactions (F-1): a process outside is never asked, and the commit checks that none
//! was in the way.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    process::{Child, Stdio},
};

use files::{Ino, Outcome, broken::Broken, file_system::lock_key};
use nix::{
    fcntl::{FcntlArg, Flock, FlockArg, fcntl},
    libc,
};
use primitives::Mutant;

use crate::volume::{Calls, Mounted, mounted, mounted_with, program, text, volume};

/// How a process of the transaction uses the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Flock,
    Fcntl,
    /// It asks by `F_GETLK` whether the lock is free.
    Test,
    Nothing,
}

/// When a process of another mount has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    Never,
    BeforeTheBegin,
    /// It gives the lock back before the commit.
    Between,
    AtTheCommit,
}

fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

fn opened(mounted: &Mounted, name: &str) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .open(mounted.path().join(name));
    file.expect("it opens")
}

/// Takes and frees the lock of the file as a process of the transaction, which must succeed.
fn use_lock(inside: &Mounted, how: Use) {
    let file = opened(inside, "f");
    match how {
        Use::Flock => {
            Flock::lock(file, FlockArg::LockSharedNonblock).expect("no process inside has it");
        }
        Use::Fcntl => {
            fcntl(&file, FcntlArg::F_SETLK(&whole(libc::F_WRLCK))).expect("as above");
        }
        Use::Test => {
            let mut lock = whole(libc::F_WRLCK);
            fcntl(&file, FcntlArg::F_GETLK(&mut lock)).expect("an answer");
            assert_eq!(lock.l_type, libc::F_UNLCK as i16);
        }
        Use::Nothing => {}
    }
}

/// Whether a transaction conflicts over a lock. It uses the lock of one file, and if it `writes`,
/// another file. `None`: this user may not mount.
fn conflicts(how: Use, when: Outside, writes: bool, mutant: Mutant<Broken>) -> Option<bool> {
    let (test, volume) = (
        "locks::a_transaction_conflicts_with_a_lock_outside",
        volume(),
    );
    let other = mounted(&volume, 1, Calls::Each, test)?;
    other.text("mkdir d; : > f; : > g");
    let lock = || Flock::lock(opened(&other, "f"), FlockArg::LockExclusiveNonblock);
    if when == Outside::BeforeTheBegin {
        drop(lock().expect("it is free"));
        // A lock counts as held up to the slot at which it is given back.
        other.text(": > d/between");
    }
    let mut inside = mounted_with(mutant, &volume, 2, Calls::Together, test)?;
    let key = lock_key(Ino(fs::metadata(inside.path().join("f"))
        .expect("it is there")
        .ino()));
    let held = (when == Outside::AtTheCommit).then(|| lock().expect("it is free"));
    use_lock(&inside, how);
    if when == Outside::Between {
        let held = lock().expect("a transaction has no locks outside");
        other.text(": > d/between");
        drop(held.unlock().expect("it unlocks"));
    }
    if writes {
        inside.text("echo x >> g");
    }
    let outcome = inside.commit();
    drop(held);
    let is_committed = matches!(outcome, Outcome::Committed { .. });
    assert!(is_committed || outcome == Outcome::Conflict { key: Some(key) });
    let expected = if is_committed && writes { "x\n" } else { "" };
    assert_eq!(other.text("cat g"), expected);
    Some(!is_committed)
}

#[test]
fn a_transaction_conflicts_with_a_lock_outside() {
    for how in [Use::Flock, Use::Fcntl, Use::Test] {
        for (when, expected) in [
            (Outside::Never, false),
            (Outside::BeforeTheBegin, false),
            (Outside::Between, true),
            (Outside::AtTheCommit, true),
        ] {
            let Some(found) = conflicts(how, when, true, Mutant::NONE) else {
                return;
            };
            assert_eq!(found, expected, "{how:?} {when:?}");
        }
        let found = conflicts(how, Outside::AtTheCommit, false, Mutant::NONE);
        assert_eq!(found, Some(true), "it only reads: {how:?}");
        let mutant = Mutant::of(Broken::ElidesHeldLocks);
        let found = conflicts(how, Outside::AtTheCommit, true, mutant);
        assert_eq!(found, Some(false), "the mutant does not see it: {how:?}");
    }
    let found = conflicts(Use::Nothing, Outside::AtTheCommit, true, Mutant::NONE);
    assert_eq!(found, Some(false), "it takes no lock");
}

/// Two transactions elide a lock that each of them takes.
#[test]
fn transactions_that_take_one_lock_both_commit() {
    let test = "locks::transactions_that_take_one_lock_both_commit";
    let volume = volume();
    let Some(other) = mounted(&volume, 1, Calls::Each, test) else {
        return;
    };
    other.text(": > f; : > g; : > h");
    let two = [2, 3].map(|session| mounted(&volume, session, Calls::Together, test));
    let [mut first, mut second] = two.map(|mounted| mounted.expect("as before"));
    first.text("flock -n f sh -c 'echo x >> g'");
    second.text("flock -n f sh -c 'echo x >> h'");
    for inside in [&mut first, &mut second] {
        let outcome = inside.commit();
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    }
    assert_eq!(other.text("cat g h"), "x\nx\n");
}

const MAKE: &str = "
import sqlite3
connection = sqlite3.connect('database')
connection.execute('CREATE TABLE numbers (value)')
connection.execute('INSERT INTO numbers VALUES (1)')
connection.commit()
";

const ADD: &str = "
import sqlite3
connection = sqlite3.connect('database', isolation_level=None)
connection.execute('UPDATE numbers SET value = value + 10')
connection.close()
";

/// Writes, and holds the lock of the database until its stdin ends.
const HOLD: &str = "
import sqlite3, sys
connection = sqlite3.connect('database', isolation_level=None)
connection.execute('BEGIN IMMEDIATE')
connection.execute('UPDATE numbers SET value = value + 100')
print('held', flush=True)
sys.stdin.read()
connection.execute('COMMIT')
connection.close()
";

const SHOW: &str = "
import sqlite3
connection = sqlite3.connect('database')
print(connection.execute('PRAGMA integrity_check').fetchone()[0])
print(connection.execute('SELECT value FROM numbers').fetchone()[0])
";

fn holder(mounted: &Mounted) -> Child {
    let mut holder = program(mounted.path(), "python3", &["-c", HOLD])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let stdout = holder.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut [0; 5]).expect("it locks");
    holder
}

/// A process outside has a journal and the lock that says that it is in use. A transaction takes it
/// for the journal of a process that died, and rolls it back. It must not commit that.
#[test]
fn sqlite_in_a_transaction_conflicts_with_a_writer_outside() {
    let test = "locks::sqlite_in_a_transaction_conflicts_with_a_writer_outside";
    for mutant in [Mutant::NONE, Mutant::of(Broken::ElidesHeldLocks)] {
        let volume = volume();
        let Some(other) = mounted(&volume, 1, Calls::Each, test) else {
            return;
        };
        text(other.path(), "python3", &["-c", MAKE]);
        let mut process = holder(&other);
        let inside = mounted_with(mutant, &volume, 2, Calls::Together, test);
        let mut inside = inside.expect("as before");
        text(inside.path(), "python3", &["-c", ADD]);
        let outcome = inside.commit();
        if mutant.is_any() {
            assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
            // It may fail, as its journal is gone.
            drop(process.stdin.take());
            process.wait().expect("it ends");
            continue;
        }
        let metadata = fs::metadata(other.path().join("database")).expect("it is there");
        let key = Some(lock_key(Ino(metadata.ino())));
        assert_eq!(outcome, Outcome::Conflict { key });
        drop(process.stdin.take());
        assert!(process.wait().expect("it ends").success());
        let mut inside = mounted(&volume, 3, Calls::Together, test).expect("as before");
        text(inside.path(), "python3", &["-c", ADD]);
        let outcome = inside.commit();
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
        assert_eq!(text(other.path(), "python3", &["-c", SHOW]), "ok\n111\n");
    }
}
