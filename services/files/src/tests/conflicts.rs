//! Concurrent transactions. Two that touch different things both commit. If two could not have
//! happened one after the other, one conflicts.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;

use super::*;
use crate::{
    Errno, Ino, Outcome, Transaction,
    model::{Privileges, RenameMode, SetAttributes},
};

const ROOT: Ino = Ino::ROOT;
const KEEP: Privileges = Privileges::Keep;

type Work = fn(&mut Transaction, [Ino; 3]) -> BoxFuture<'_, Result<()>>;

/// The work of one transaction, on the inodes of the directory `d`, the file `f` and the empty
/// directory `e`.
macro_rules! work {
    (|$t:ident, $d:ident, $f:ident, $e:ident| $body:expr) => {{
        fn work($t: &mut Transaction, [$d, $f, $e]: [Ino; 3]) -> BoxFuture<'_, Result<()>> {
            let _ = ($d, $f, $e);
            Box::pin(async move {
                $body.await?;
                Ok(())
            })
        }
        work as Work
    }};
}

/// Runs two transactions at the same time, and commits the first one first. Returns the end of the
/// second one, and the files.
async fn race(mutant: Mutant<Broken>, first: Work, second: Work) -> (Result<bool>, FileSystem) {
    let files = client(&volume(), 1, mutant).await;
    let d = files.mkdir(ROOT, ACCESS, &name("d")).await.expect("made");
    let e = files.mkdir(ROOT, ACCESS, &name("e")).await.expect("made");
    let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
    let ten = Bytes::from(vec![b'.'; 10]);
    files.write(f, 0, KEEP, &ten).await.expect("written");
    let inodes = [d, f, e];
    let (mut one, mut two) = (files.begin(), files.begin());
    // Both read at the same slot.
    one.lookup(ROOT, b".").await.expect("found");
    two.lookup(ROOT, b".").await.expect("found");
    first(&mut one, inodes).await.expect("the first one works");
    let worked = second(&mut two, inodes).await;
    let first = one.commit(None, || true).await.expect("a verdict");
    assert!(matches!(first, Outcome::Committed { .. }));
    let ended = match worked {
        Err(errno) => Err(errno),
        Ok(()) => two.commit(None, || true).await,
    };
    let is_committed = |outcome| matches!(outcome, Outcome::Committed { .. });
    (ended.map(is_committed), files)
}

fn both_commit(first: Work, second: Work) {
    for (first, second) in [(first, second), (second, first)] {
        let (ended, _) = simulated::run(race(Mutant::NONE, first, second));
        assert_eq!(ended, Ok(true));
    }
}

fn the_later_conflicts(mutant: Mutant<Broken>, first: Work, second: Work) {
    let (ended, _) = simulated::run(race(mutant, first, second));
    assert_eq!(ended, Ok(false));
}

fn one_conflicts(first: Work, second: Work) {
    the_later_conflicts(Mutant::NONE, first, second);
    the_later_conflicts(Mutant::NONE, second, first);
}

#[test]
fn different_names_in_one_directory_do_not_conflict() {
    let create = work!(|t, d, f, e| t.create(d, ACCESS, b"a"));
    both_commit(create, work!(|t, d, f, e| t.create(d, ACCESS, b"b")));
    both_commit(create, work!(|t, d, f, e| t.mkdir(d, ACCESS, b"b")));
    both_commit(create, work!(|t, d, f, e| t.link(f, d, b"b")));
    one_conflicts(create, work!(|t, d, f, e| t.mkdir(d, ACCESS, b"a")));
}

#[test]
fn a_path_through_a_directory_depends_on_its_permissions_alone() {
    let fill = work!(|t, d, f, e| t.create(d, ACCESS, b"a"));
    let passes = work!(|t, d, f, e| async {
        t.stat_entry(ROOT, b"d").await?;
        t.create(e, ACCESS, b"b").await
    });
    both_commit(fill, passes);
    let asks = work!(|t, d, f, e| async {
        t.stat(ROOT, b"d").await?;
        t.create(e, ACCESS, b"b").await
    });
    the_later_conflicts(Mutant::NONE, fill, asks);
    let protects = work!(|t, d, f, e| async {
        let set = SetAttributes {
            mode: Some(0o700),
            ..SetAttributes::default()
        };
        t.setattr(d, set).await
    });
    the_later_conflicts(Mutant::NONE, protects, passes);
}

/// The kernel has blocks of earlier transactions, and does not tell when it uses them.
#[test]
fn blocks_that_are_kept_count_as_read() {
    let write = work!(|t, d, f, e| async {
        let data = name("one");
        t.write(f, 2, KEEP, &data).await
    });
    let keep = work!(|t, d, f, e| async {
        let since = t.slot().expect("it has read");
        assert!(t.reread(f, since, &BTreeSet::from([0])).await?);
        t.create(d, ACCESS, b"a").await
    });
    the_later_conflicts(Mutant::NONE, write, keep);
    let broken = Mutant::of(Broken::RereadsNothing);
    let (ended, _) = simulated::run(race(broken, write, keep));
    assert_eq!(ended, Ok(true), "the mutant is caught");
    simulated::run(async {
        let files = fresh().await;
        let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
        let mut before = files.begin();
        before.read(f, 0, 1).await.expect("read");
        let since = before.slot().expect("it has read");
        files
            .write(f, 0, KEEP, &name("one"))
            .await
            .expect("written");
        let mut after = files.begin();
        let (changed, other) = (BTreeSet::from([0]), BTreeSet::from([9]));
        assert_eq!(after.reread(f, since, &other).await, Ok(true));
        assert_eq!(after.reread(f, since, &changed).await, Ok(false));
        let at = 9 * u64::from(files.block_bytes());
        after
            .write(f, at, KEEP, &name("own"))
            .await
            .expect("written");
        assert_eq!(after.reread(f, since, &other).await, Ok(false));
    });
}

#[test]
fn blind_writes_to_one_block_do_not_conflict() {
    let write = work!(|t, d, f, e| async {
        let data = name("one");
        t.write(f, 2, KEEP, &data).await
    });
    let other = work!(|t, d, f, e| async {
        let data = name("two");
        t.write(f, 6, KEEP, &data).await
    });
    both_commit(write, other);
    let (_, files) = simulated::run(race(Mutant::NONE, write, other));
    let read = simulated::run(async {
        let f = files.lookup(ROOT, &name("f")).await.expect("found").ino;
        files.read(f, 0, 99).await
    });
    assert_eq!(read, Ok(name("..one.two.")));
    both_commit(write, work!(|t, d, f, e| t.lookup(ROOT, b"f")));
}

#[test]
fn appends_do_not_conflict_and_readers_of_the_end_do() {
    let append = work!(|t, d, f, e| async {
        let data = name("one");
        t.append(f, KEEP, &data).await
    });
    let other = work!(|t, d, f, e| async {
        let data = name("two");
        t.append(f, KEEP, &data).await
    });
    both_commit(append, other);
    let (_, files) = simulated::run(race(Mutant::NONE, append, other));
    let read = simulated::run(async {
        let f = files.lookup(ROOT, &name("f")).await.expect("found").ino;
        files.read(f, 8, 99).await
    });
    assert_eq!(read, Ok(name("..onetwo")));
    // A transaction with a write: one without is never refused.
    let reads_end = work!(|t, d, f, e| async {
        t.read(f, 10, 5).await?;
        t.create(d, ACCESS, b"a").await
    });
    the_later_conflicts(Mutant::NONE, append, reads_end);
    let reads_at_its_end = work!(|t, d, f, e| async {
        let data = name("three");
        t.append(f, KEEP, &data).await?;
        t.getattr(f).await
    });
    the_later_conflicts(Mutant::NONE, append, reads_at_its_end);
    // The length may grow after the range that was read, as long as the block stays.
    let grow = work!(|t, d, f, e| t.truncate(f, 50));
    let reads_within = work!(|t, d, f, e| async {
        t.read(f, 0, 10).await?;
        t.create(d, ACCESS, b"a").await
    });
    both_commit(grow, reads_within);
}

#[test]
fn write_skew_is_refused() {
    let first = work!(|t, d, f, e| async {
        assert_eq!(t.lookup(e, b"x").await, Err(Errno::ENOENT));
        t.create(d, ACCESS, b"x").await
    });
    let second = work!(|t, d, f, e| async {
        assert_eq!(t.lookup(d, b"x").await, Err(Errno::ENOENT));
        t.create(e, ACCESS, b"x").await
    });
    one_conflicts(first, second);
    let listing = work!(|t, d, f, e| async {
        let mut listing = crate::Listing::new(d);
        assert_eq!(t.list(&mut listing, 2, 9).await?, []);
        t.create(e, ACCESS, b"x").await
    });
    let create = work!(|t, d, f, e| t.create(d, ACCESS, b"y"));
    the_later_conflicts(Mutant::NONE, create, listing);
}

#[test]
fn lost_updates_are_refused() {
    let update = work!(|t, d, f, e| async {
        let data = t.read(f, 0, 10).await?;
        t.write(f, 0, KEEP, &data).await
    });
    one_conflicts(update, update);
    let chmod = work!(|t, d, f, e| t.setattr(
        f,
        crate::model::SetAttributes {
            mode: Some(0o600),
            ..Default::default()
        }
    ));
    both_commit(chmod, update);
    one_conflicts(chmod, chmod);
}

fn a_directory_is_not_filled_while_it_goes(mutant: Mutant<Broken>) {
    let rmdir = work!(|t, d, f, e| t.rmdir(ROOT, b"d"));
    let create = work!(|t, d, f, e| t.create(d, ACCESS, b"a"));
    the_later_conflicts(mutant, create, rmdir);
    the_later_conflicts(mutant, rmdir, create);
}

#[test]
fn a_directory_that_goes_conflicts_with_what_is_created_in_it() {
    a_directory_is_not_filled_while_it_goes(Mutant::NONE);
    let mutant = Mutant::of(Broken::RmdirForgetsEntries);
    must_fail(move || a_directory_is_not_filled_while_it_goes(mutant));
}

fn directories_form_no_circle(mutant: Mutant<Broken>) {
    let one = work!(|t, d, f, e| t.rename(ROOT, e, RenameMode::Replace, b"d", b"x"));
    let two = work!(|t, d, f, e| t.rename(ROOT, d, RenameMode::Replace, b"e", b"y"));
    the_later_conflicts(mutant, one, two);
    the_later_conflicts(mutant, two, one);
}

#[test]
fn two_moves_that_form_a_circle_conflict() {
    directories_form_no_circle(Mutant::NONE);
    let mutant = Mutant::of(Broken::RenameForgetsAncestors);
    must_fail(move || directories_form_no_circle(mutant));
}

#[test]
fn renames_to_one_name_conflict() {
    let one = work!(|t, d, f, e| t.rename(ROOT, d, RenameMode::NoReplace, b"f", b"x"));
    one_conflicts(one, work!(|t, d, f, e| t.mkdir(d, ACCESS, b"x")));
    one_conflicts(one, work!(|t, d, f, e| t.unlink(ROOT, b"f")));
    both_commit(one, work!(|t, d, f, e| t.create(e, ACCESS, b"x")));
}

#[test]
fn calls_at_the_same_time_run_again_until_they_commit() {
    simulated::run(async {
        let volume = volume();
        let clients = [
            client(&volume, 1, Mutant::NONE).await,
            client(&volume, 2, Mutant::NONE).await,
        ];
        let counter = clients[0].create(ROOT, ACCESS, &name("n")).await;
        let counter = counter.expect("created");
        let count = async |files: &FileSystem| {
            for _ in 0..20 {
                let counted = files.transact(move |t| {
                    Box::pin(async move {
                        let size = t.getattr(counter).await?.size;
                        t.truncate(counter, size + 1).await
                    })
                });
                counted.await.expect("counted");
            }
        };
        futures_util::future::join(count(&clients[0]), count(&clients[1])).await;
        let size = clients[0].getattr(counter).await.expect("there").size;
        assert_eq!(size, 40);
    });
}

/// Deleting and making one name in one transaction gives two inodes and one entry; a transaction
/// that is dropped leaves nothing.
#[test]
fn a_transaction_sees_its_own_calls() {
    simulated::run(async {
        let files = fresh().await;
        let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
        let mut dropped = files.begin();
        dropped.unlink(ROOT, b"f").await.expect("unlinked");
        let new = dropped.create(ROOT, ACCESS, b"f").await.expect("created");
        let found = dropped.lookup(ROOT, b"f").await.expect("found");
        assert_eq!(found.ino, new);
        drop(dropped);
        let found = files.lookup(ROOT, &name("f")).await.expect("found");
        assert_eq!(found.ino, f);
        let mut kept = files.begin();
        let data = name("one");
        kept.append(f, KEEP, &data).await.expect("appended");
        kept.append(f, KEEP, &data).await.expect("appended");
        assert_eq!(kept.read(f, 0, 9).await, Ok(name("oneone")));
        let ended = kept.commit(None, || true).await;
        assert!(matches!(ended, Ok(Outcome::Committed { .. })));
        assert_eq!(files.read(f, 0, 9).await, Ok(name("oneone")));
    });
}
