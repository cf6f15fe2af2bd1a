//! The number of requests that a call sends to the volume, and its behaviour when replies are lost.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::FutureExt as _;
use transactions::serializable::VolumeStore;

use super::{granting::Server, lossy::Counted, *};
use crate::{
    Ino,
    cache::{CachedVolume, Policy},
    leased::LeasedVolume,
    model::{Privileges, RenameMode},
};

#[test]
fn a_call_whose_answers_are_lost_takes_effect_once() {
    simulated::run(async {
        let (volume, files) = Counted::open(&World::new(1)).await;
        let f = files.create(Ino::ROOT, ACCESS, &name("f")).await;
        let f = f.expect("created");
        for lost_every in [2, 3, 4] {
            volume.lost_every.store(lost_every, Ordering::Relaxed);
            for text in ["a", "b", "c", "d"] {
                let appended = files.append(f, Privileges::Keep, &name(text)).await;
                appended.expect("appended");
            }
        }
        assert_eq!(files.read(f, 0, 99).await, Ok(name("abcdabcdabcd")));
        for _ in 0..4 {
            let mut listing = crate::Listing::new(Ino::ROOT);
            let listed = files.list(&mut listing, 2, 9).await;
            assert_eq!(listed.expect("listed").len(), 1);
        }
    });
}

#[test]
fn a_volume_that_does_not_answer_gives_eio_after_the_time_of_a_call() {
    simulated::run(async {
        let world = World::new(1);
        let (volume, files) = Counted::open(&world).await;
        volume.lost_every.store(1, Ordering::Relaxed);
        let clock = world.clock();
        let before = clock.monotonic();
        refused(files.getattr(Ino::ROOT).await, crate::Errno::EIO);
        let seconds = clock.monotonic().since(before).as_secs();
        assert!((30..32).contains(&seconds), "{seconds}");
        refused(files.fsync().await, crate::Errno::EIO);
        refused(files.hold(Ino::ROOT).await, crate::Errno::EIO);
        refused(files.statfs().await, crate::Errno::EIO);
    });
}

#[test]
fn calls_take_few_round_trips() {
    simulated::run(async {
        let (counted, files) = Counted::open(&World::new(1)).await;
        takes_few_round_trips(&counted, &files).await;
    });
}

#[test]
fn a_memory_without_leases_takes_no_more() {
    simulated::run(async {
        let world = World::new(1);
        let (counted, _) = Counted::open(&world).await;
        let (store, clock, entropy) = (counted.clone(), world.clock(), world.entropy());
        let leased = Arc::new(LeasedVolume::new(store, clock, entropy, 1 << 20));
        let (clock, entropy) = (world.clock(), world.entropy());
        let opened = FileSystem::open_leased(leased, clock, entropy, SessionId(2), ACCESS);
        let files = opened.await.expect("opened");
        takes_few_round_trips(&counted, &files).await;
    });
}

async fn takes_few_round_trips(counted: &Counted, files: &FileSystem) {
    let root = Ino::ROOT;
    let (a, b) = (name("a"), name("b"));
    // This one also reserves numbers.
    let f = files.create(root, ACCESS, &a).await.expect("created");
    let mut before = counted.calls.load(Ordering::Relaxed);
    let mut took = |what: &str, expected: usize| {
        let now = counted.calls.load(Ordering::Relaxed);
        assert_eq!(now - before, expected, "{what}");
        before = now;
    };
    files.create(root, ACCESS, &b).await.expect("created");
    took("create", 2);
    files.stat(root, &a).await.expect("found");
    took("stat", 1);
    files.getattr(f).await.expect("there");
    took("getattr", 1);
    let keep = Privileges::Keep;
    files.write(f, 9, keep, &a).await.expect("written");
    took("write", 2);
    files.append(f, keep, &a).await.expect("appended");
    took("append", 2);
    files.read(f, 0, 1 << 20).await.expect("read");
    took("read", 1);
    let large = Bytes::from(vec![7; 1 << 20]);
    files.write(f, 0, keep, &large).await.expect("written");
    took("large write", 6);
    files.read(f, 0, 1 << 20).await.expect("read");
    took("large read", 1);
    files.truncate(f, 1).await.expect("cut");
    took("truncate", 2);
    files.hold(f).await.expect("open");
    took("hold", 2);
    let replace = RenameMode::Replace;
    files
        .rename(root, root, replace, &b, &a)
        .await
        .expect("renamed");
    took("rename", 3);
    files.unlink(root, &a).await.expect("unlinked");
    took("unlink", 2);
    files.fsync().await.expect("durable");
    took("fsync", 1);
}

/// The hold and the proposal are sent at once, so no reaper comes between them.
#[test]
fn a_created_file_is_held() {
    simulated::run(async {
        let (counted, files) = Counted::open(&World::new(1)).await;
        files
            .create(Ino::ROOT, ACCESS, &name("a"))
            .await
            .expect("created");
        let before = counted.calls.load(Ordering::Relaxed);
        let b = name("b");
        let opened = files.open_created(Ino::ROOT, ACCESS, &b).await;
        let opened = opened.expect("created").ino;
        // One read, then both.
        assert_eq!(counted.calls.load(Ordering::Relaxed) - before, 3);
        let again = files.open_created(Ino::ROOT, ACCESS, &b).await;
        assert_eq!(again, Err(crate::Errno::EEXIST));
        files.unlink(Ino::ROOT, &b).await.expect("unlinked");
        assert_eq!(crate::reaper::reap(&files).await, Ok(0));
        files.getattr(opened).await.expect("it is open");
        files.close(opened).await.expect("closed");
        assert_eq!(crate::reaper::reap(&files).await, Ok(1));
    });
}

/// An answer that is lost before anything is proposed makes the call run again.
#[test]
fn a_large_write_goes_on_after_a_lost_answer() {
    simulated::run(async {
        let (volume, files) = Counted::open(&World::new(1)).await;
        let f = files.create(Ino::ROOT, ACCESS, &name("f")).await;
        let f = f.expect("created");
        let large: Bytes = (0..300_000_u32).map(|byte| byte as u8).collect();
        for call in ["stage", "snapshot", "commit", "get_many"] {
            *volume.lost.lock() = (call, 1);
            let written = files.write(f, 7, Privileges::Keep, &large).await;
            assert_eq!(written, Ok(()), "{call}");
        }
        assert_eq!(files.read(f, 7, 300_000).await, Ok(large));
    });
}

/// A close whose release has no answer sends it again, so that the reaper does not wait for ever.
#[test]
fn a_release_without_an_answer_is_sent_again() {
    simulated::run(async {
        let (volume, files) = Counted::open(&World::new(1)).await;
        let f = files.create(Ino::ROOT, ACCESS, &name("f")).await;
        let f = f.expect("created");
        let key = crate::file_system::hold_key(f);
        let is_held = async || volume.volume.is_held(&key).await.expect("an answer");
        files.hold(f).await.expect("open");
        *volume.lost.lock() = ("release", 1);
        files.close(f).await.expect("sent again");
        assert!(!is_held().await);
        files.hold(f).await.expect("open");
        *volume.lost.lock() = ("release", usize::MAX);
        refused(files.close(f).await, crate::Errno::EIO);
        assert!(is_held().await, "the release was lost on its way");
        *volume.lost.lock() = ("", 0);
        files.close(f).await.expect("the release is sent again");
        assert!(!is_held().await);
    });
}

/// An inode that waits for the volume does not hold up others.
#[test]
fn opens_of_different_inodes_do_not_wait_for_each_other() {
    simulated::run(async {
        let (volume, files) = Counted::open(&World::new(1)).await;
        let f = files.create(Ino::ROOT, ACCESS, &name("f")).await;
        let f = f.expect("created");
        *volume.lost.lock() = ("hold", 1);
        let waiting = files.hold(f);
        let other = async {
            files.hold(Ino::ROOT).await.expect("open");
            "other"
        };
        let waiting = async {
            waiting.await.expect("open");
            "waiting"
        };
        futures_util::pin_mut!(waiting, other);
        let first = futures_util::future::select(waiting, other).await;
        assert_eq!(first.factor_first().0, "other");
    });
}

/// Cached values are not read again, and a change begins at the slot that the cache knows.
#[test]
fn with_a_cache_a_change_is_one_call() {
    simulated::run(async {
        let world = World::new(1);
        let (counted, _) = Counted::open(&world).await;
        let store = counted.clone() as Arc<dyn VolumeStore>;
        let cached = Arc::new(CachedVolume::new(store, Policy::Eager, 1 << 20));
        let session = SessionId(2);
        let opened =
            FileSystem::open(cached, world.clock(), world.entropy(), session, ACCESS).await;
        let files = opened.expect("opened");
        let f = files
            .create(Ino::ROOT, ACCESS, &name("f"))
            .await
            .expect("created");
        let write = |text: &'static str| {
            files.change(move |transaction| {
                async move { transaction.write(f, 0, Privileges::Keep, &name(text)).await }.boxed()
            })
        };
        write("first").await.expect("written");
        let calls = || counted.calls.load(Ordering::Relaxed);
        let before = calls();
        write("again").await.expect("written");
        assert_eq!(calls() - before, 1, "a write");
        files.read(f, 0, 9).await.expect("read");
        let before = calls();
        assert_eq!(files.read(f, 0, 9).await, Ok(name("again")));
        assert_eq!(calls() - before, 1, "a read of what is cached");
    });
}

/// The files of a client with leases, and the count of its calls.
async fn leased(world: &World) -> (FileSystem, Arc<AtomicUsize>) {
    let granting = Server::new(world.clock()).connect(None);
    let calls = Arc::clone(&granting.calls);
    let (clock, entropy) = (world.clock(), world.entropy());
    let leased = LeasedVolume::new(Arc::new(granting), clock, entropy, 1 << 20);
    let leased = Arc::new(leased);
    let run = Arc::clone(&leased);
    tokio::spawn(async move { run.run().await });
    let (clock, entropy) = (world.clock(), world.entropy());
    let opened = FileSystem::open_leased(leased, clock, entropy, SessionId(2), ACCESS);
    (opened.await.expect("opened"), calls)
}

/// F-2: under leases, reads cost no call, and a change costs its commit.
#[test]
fn with_leases_reads_are_no_calls() {
    simulated::run(async {
        let world = World::new(1);
        let (files, calls) = leased(&world).await;
        let (a, b, long) = (name("a"), name("b"), name("long"));
        let upper = files.mkdir(Ino::ROOT, ACCESS, &a).await.expect("made");
        let lower = files.mkdir(upper, ACCESS, &a).await.expect("made");
        let file = files.create(lower, ACCESS, &a).await.expect("created");
        let written = files.write(file, 0, Privileges::Keep, &a);
        written.await.expect("written");
        let stat = async || {
            for parent in [Ino::ROOT, upper, lower] {
                files.stat(parent, &a).await.expect("found");
            }
            files.getattr(file).await.expect("there")
        };
        let list = async || {
            let mut listing = crate::Listing::new(lower);
            files.list(&mut listing, 0, 99).await.expect("listed").len()
        };
        // The first one asks for leases.
        stat().await;
        world.clock().sleep(Duration::from_millis(9)).await;
        for _ in 0..2 {
            stat().await;
            list().await;
            files.read(file, 0, 9).await.expect("read");
        }
        let mut before = calls.load(Ordering::Relaxed);
        let mut took = |what: &str, expected: usize| {
            let now = calls.load(Ordering::Relaxed);
            assert_eq!(now - before, expected, "{what}");
            before = now;
        };
        assert_eq!(stat().await.size, 1);
        took("stat of a path", 0);
        assert_eq!(files.read(file, 0, 9).await, Ok(a.clone()));
        took("read", 0);
        let written = files.write(file, 0, Privileges::Keep, &long);
        written.await.expect("written");
        took("write", 1);
        assert_eq!(stat().await.size, 4);
        assert_eq!(files.read(file, 0, 9).await, Ok(long));
        took("stat and read of what was written", 0);
        let appended = files.append(file, Privileges::Keep, &a);
        appended.await.expect("appended");
        assert_eq!(stat().await.size, 5);
        took("append, and stat", 1);
        refused(files.stat(lower, &b).await, crate::Errno::ENOENT);
        took("a name that is free", 1);
        files.create(lower, ACCESS, &b).await.expect("created");
        took("create", 1);
        assert_eq!(list().await, 4);
        took("list", 1);
        files.unlink(lower, &b).await.expect("unlinked");
        took("unlink", 1);
        refused(files.stat(lower, &b).await, crate::Errno::ENOENT);
        took("a name that was removed", 0);
    });
}

/// A client that knows an old state must neither fail by it nor overwrite a value that it does not
/// know.
#[test]
fn a_change_on_an_old_state_runs_again_on_the_new_one() {
    simulated::run(async {
        let (volume, world) = (volume(), World::new(1));
        let other = client(&volume, 2, Mutant::NONE).await;
        let cached = Arc::new(CachedVolume::new(volume.clone(), Policy::Eager, 1 << 20));
        let session = SessionId(1);
        let opened =
            FileSystem::open(cached, world.clock(), world.entropy(), session, ACCESS).await;
        let files = opened.expect("opened");
        refused(
            files.stat(Ino::ROOT, &name("f")).await,
            crate::Errno::ENOENT,
        );
        let made = other.create(Ino::ROOT, ACCESS, &name("f")).await;
        made.expect("created");
        let made = files.change(|transaction| {
            async move { transaction.create(Ino::ROOT, ACCESS, &name("f")).await }.boxed()
        });
        refused(made.await, crate::Errno::EEXIST);
        let unlinked = files.change(|transaction| {
            async move { transaction.unlink(Ino::ROOT, &name("f")).await }.boxed()
        });
        unlinked.await.expect("it is there by now");
        refused(
            other.stat(Ino::ROOT, &name("f")).await,
            crate::Errno::ENOENT,
        );
    });
}
