//! How often a call asks the volume, and what it does when answers are lost.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use ports::{DurabilityPoint, Read};
use transactions::serializable::{
    VolumeStore,
    model::{
        At, Changed, Granted, Groups, Key, KeyRange, Lock, Owner, Page, PageLimits, PinName,
        Proposal, Slot, Snapshot, StageId, Usage, Values, Verdict,
    },
};

use super::*;
use crate::{
    Ino,
    model::{Privileges, RenameMode},
};

/// A volume that counts its calls, and loses the answers of some.
#[derive(Debug)]
struct Counted {
    volume: Arc<ModelVolume>,
    calls: AtomicUsize,
    /// Each call whose number this divides has no answer, although it took effect.
    lost_every: AtomicUsize,
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        // Some arguments have the lifetime.
        #[allow(clippy::elidable_lifetime_names, clippy::needless_lifetimes)]
        impl VolumeStore for Counted {
            fn block_bytes(&self) -> BlockBytes {
                self.volume.block_bytes()
            }

            $(
                fn $name<'a>(
                    &'a self,
                    $($argument: $type),*
                ) -> BoxFuture<'a, transactions::Result<$answer>> {
                    let call = self.calls.fetch_add(1, Ordering::Relaxed);
                    let answer = self.volume.$name($($argument),*);
                    if call % self.lost_every.load(Ordering::Relaxed) != 0 {
                        return answer;
                    }
                    Box::pin(async move {
                        drop(answer.await);
                        Err(transactions::Error::Unavailable("no answer".into()))
                    })
                }
            )*
        }
    };
}

forward! {
    snapshot() -> Read<Snapshot>;
    get_many(at: At, keys: &'a [Key]) -> Read<Values>;
    scan(at: At, range: &'a KeyRange, limits: PageLimits) -> Read<Page>;
    changed_since(slot: Slot, groups: &'a Groups) -> Read<Changed>;
    stage(stage: StageId, part: u32, writes: Bytes) -> DurabilityPoint;
    commit(proposal: Proposal) -> Read<Verdict>;
    externalize(point: DurabilityPoint) -> ();
    pin(name: PinName, slot: Slot) -> ();
    unpin(name: &'a PinName) -> ();
    lock(owner: Owner, lock: Lock) -> Granted;
    hold(session: SessionId, key: Key) -> ();
    release(session: SessionId, key: &'a Key) -> ();
    is_held(key: &'a Key) -> bool;
    end_session(session: SessionId) -> ();
    reserve_numbers() -> Range<u64>;
    usage() -> Usage;
}

impl Counted {
    /// One that answers always, and its files.
    async fn open(world: &World) -> (Arc<Self>, FileSystem) {
        let counted = Arc::new(Self {
            volume: volume(),
            calls: AtomicUsize::new(1),
            lost_every: AtomicUsize::new(usize::MAX),
        });
        let (clock, entropy) = (world.clock(), world.entropy());
        let files = FileSystem::open(counted.clone(), clock, entropy, SessionId(1), ACCESS);
        let files = files.await.expect("opened");
        (counted, files)
    }
}

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
        took("stat", 2);
        files.getattr(f).await.expect("there");
        took("getattr", 1);
        let keep = Privileges::Keep;
        files.write(f, 9, keep, &a).await.expect("written");
        took("write", 2);
        files.append(f, keep, &a).await.expect("appended");
        took("append", 2);
        files.read(f, 0, 1 << 20).await.expect("read");
        took("read", 1);
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
    });
}
