//! Changes that use the values that their client remembers.

use std::sync::atomic::Ordering;

use futures_util::future::FutureExt as _;

use super::{lossy::Counted, *};
use crate::{Errno, Ino, model::Privileges};

const ROOT: Ino = Ino::ROOT;

async fn create(files: &FileSystem, parent: Ino, text: &str) -> Result<Ino> {
    let name = name(text);
    let work = files.change(move |transaction| {
        let name = name.clone();
        async move {
            let ino = transaction.create(parent, ACCESS, &name).await?;
            transaction.getattr(ino).await?;
            Ok(ino)
        }
        .boxed()
    });
    work.await
}

async fn append(files: &FileSystem, ino: Ino, text: &str) -> Result<()> {
    let data = name(text);
    let work = files.change(move |transaction| {
        let data = data.clone();
        async move { transaction.append(ino, Privileges::Keep, &data).await }.boxed()
    });
    work.await
}

async fn unlink(files: &FileSystem, parent: Ino, text: &str) -> Result<()> {
    let name = name(text);
    let work = files.change(move |transaction| {
        let name = name.clone();
        async move { transaction.unlink(parent, &name).await }.boxed()
    });
    work.await
}

#[test]
fn a_change_reads_nothing_that_was_just_read() {
    simulated::run(async {
        let (counted, files) = Counted::open(&World::new(1)).await;
        create(&files, ROOT, "first").await.expect("created");
        let mut before = counted.calls.load(Ordering::Relaxed);
        let mut took = |what: &str, expected: usize| {
            let now = counted.calls.load(Ordering::Relaxed);
            assert_eq!(now - before, expected, "{what}");
            before = now;
        };
        refused(files.stat(ROOT, &name("f")).await, Errno::ENOENT);
        took("lookup of a name that is free", 1);
        let f = create(&files, ROOT, "f").await.expect("created");
        took("create", 1);
        files.stat(ROOT, &name("f")).await.expect("found");
        took("lookup of a name that was looked up", 1);
        append(&files, f, "text").await.expect("appended");
        took("append", 1);
        unlink(&files, ROOT, "f").await.expect("unlinked");
        took("unlink", 1);
    });
}

/// The scenario: another client has changed each thing that a change rests on.
async fn stale(mutant: Mutant<Broken>) {
    let volume = volume();
    let files = client(&volume, 1, mutant).await;
    let other = client(&volume, 2, Mutant::NONE).await;
    let d = files.mkdir(ROOT, ACCESS, &name("d")).await.expect("made");
    let f = create(&files, ROOT, "f").await.expect("created");
    refused(files.stat(d, &name("x")).await, Errno::ENOENT);
    refused(files.stat(ROOT, &name("x")).await, Errno::ENOENT);
    other.rmdir(ROOT, &name("d")).await.expect("removed");
    let x = other.create(ROOT, ACCESS, &name("x")).await;
    let x = x.expect("created");
    refused(create(&files, d, "x").await, Errno::ENOENT);
    refused(create(&files, ROOT, "x").await, Errno::EEXIST);
    let found = other.lookup(ROOT, &name("x")).await.expect("there");
    assert_eq!(found.ino, x);
    other.unlink(ROOT, &name("f")).await.expect("unlinked");
    crate::reaper::reap(&other).await.expect("reaped");
    refused(append(&files, f, "text").await, Errno::ENOENT);
    // A refusal rests on no memory either.
    other.create(ROOT, ACCESS, &name("f")).await.expect("again");
    unlink(&files, ROOT, "f").await.expect("it is there again");
}

#[test]
fn a_change_that_rests_on_an_old_state_runs_again() {
    simulated::run(stale(Mutant::NONE));
}

#[test]
fn the_test_notices_memory_that_is_not_validated() {
    must_fail(|| simulated::run(stale(Mutant::of(Broken::TrustsMemory))));
}
