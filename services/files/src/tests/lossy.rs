//! A volume that counts its calls, and loses the answers of some.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use ports::{Clock, DurabilityPoint, Read};
use transactions::serializable::{
    VolumeStore,
    model::{
        At, Changed, Granted, Groups, Key, KeyRange, Lock, Owner, Page, PageLimits, PinName,
        Proposal, Slot, Snapshot, StageId, Usage, Values, Verdict, Write, Writes,
    },
};

use super::*;

/// A volume that counts its calls, and loses the answers of some.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) volume: Arc<ModelVolume>,
    pub(super) calls: AtomicUsize,
    /// Each call whose number this divides has no answer, although it took effect.
    pub(super) lost_every: AtomicUsize,
    /// So many of the next calls of this name get lost on their way.
    pub(super) lost: Mutex<(&'static str, usize)>,
    /// Reads of these keys fail, as their stored values do not decode.
    pub(super) damaged: Mutex<BTreeSet<Key>>,
    /// Scans of any part of this range fail.
    pub(super) damaged_page: Mutex<Option<KeyRange>>,
    /// How long a damaged read takes.
    pub(super) damaged_takes: Mutex<Duration>,
    clock: Arc<dyn Clock>,
    /// The most bytes of writes that one proposal had so far.
    pub(super) written_max: AtomicU64,
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        // Some arguments have the lifetime.
        #[allow(clippy::elidable_lifetime_names, clippy::needless_lifetimes)]
        impl VolumeStore for Counted {
            fn block_bytes(&self) -> BlockBytes {
                self.volume.block_bytes()
            }

            fn commit(
                &self,
                proposal: Proposal,
            ) -> BoxFuture<'_, transactions::Result<Read<Verdict>>> {
                self.note(&proposal.writes);
                self.forward("commit", || self.volume.commit(proposal))
            }

            fn get_many<'a>(
                &'a self,
                at: At,
                keys: &'a [Key],
            ) -> BoxFuture<'a, transactions::Result<Read<Values>>> {
                self.forward("get_many", || match self.damaged_in(|key| keys.contains(key)) {
                    true => self.corrupt(),
                    false => self.volume.get_many(at, keys),
                })
            }

            fn scan<'a>(
                &'a self,
                at: At,
                range: &'a KeyRange,
                limits: PageLimits,
            ) -> BoxFuture<'a, transactions::Result<Read<Page>>> {
                let is_damaged = self.damaged_in(|key| range.contains(key)) || self.meets_page(range);
                self.forward("scan", || match is_damaged {
                    true => self.corrupt(),
                    false => self.volume.scan(at, range, limits),
                })
            }

            $(
                fn $name<'a>(
                    &'a self,
                    $($argument: $type),*
                ) -> BoxFuture<'a, transactions::Result<$answer>> {
                    self.forward(stringify!($name), || self.volume.$name($($argument),*))
                }
            )*
        }
    };
}

forward! {
    snapshot() -> Read<Snapshot>;
    changed_since(slot: Slot, groups: &'a Groups) -> Read<Changed>;
    stage(stage: StageId, part: u32, writes: Bytes) -> DurabilityPoint;
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
    /// Notes the length of a proposal.
    fn note(&self, writes: &Writes) {
        let bytes = match writes {
            Writes::Inline(writes) => writes.iter().map(Write::bytes_len).sum::<usize>() as u64,
            Writes::Staged { bytes, .. } => *bytes,
        };
        self.written_max.fetch_max(bytes, Ordering::Relaxed);
    }

    fn damaged_in(&self, is_read: impl Fn(&Key) -> bool) -> bool {
        self.damaged.lock().iter().any(is_read)
    }

    /// The answer of a damaged read, after its time.
    fn corrupt<'a, T: Send + 'a>(&self) -> BoxFuture<'a, transactions::Result<T>> {
        let (clock, takes) = (self.clock.clone(), *self.damaged_takes.lock());
        Box::pin(async move {
            clock.sleep(takes).await;
            Err(transactions::Error::Corrupt("a test damaged it".into()))
        })
    }

    /// Whether a range has a part of the damaged page.
    fn meets_page(&self, range: &KeyRange) -> bool {
        let page = self.damaged_page.lock();
        page.as_ref().is_some_and(|page| {
            let ends_before = |one: &KeyRange, other: &KeyRange| {
                one.until().is_some_and(|until| *until <= other.from())
            };
            page.group() == range.group() && !ends_before(range, page) && !ends_before(page, range)
        })
    }

    fn forward<'a, T: Send + 'a>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> BoxFuture<'a, transactions::Result<T>>,
    ) -> BoxFuture<'a, transactions::Result<T>> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let no_answer = || Err(transactions::Error::Unavailable("no answer".into()));
        let (lost, count) = &mut *self.lost.lock();
        if *lost == name && *count > 0 {
            *count -= 1;
            return Box::pin(async move { no_answer() });
        }
        let answer = call();
        if !number.is_multiple_of(self.lost_every.load(Ordering::Relaxed)) {
            return answer;
        }
        Box::pin(async move {
            drop(answer.await);
            no_answer()
        })
    }

    /// One that answers always, and its files.
    pub(super) async fn open(world: &World) -> (Arc<Self>, FileSystem) {
        let counted = Arc::new(Self {
            volume: volume(),
            calls: AtomicUsize::new(1),
            lost_every: AtomicUsize::new(usize::MAX),
            lost: Mutex::new(("", 0)),
            damaged: Mutex::default(),
            damaged_page: Mutex::default(),
            damaged_takes: Mutex::default(),
            clock: world.clock(),
            written_max: AtomicU64::new(0),
        });
        let (clock, entropy) = (world.clock(), world.entropy());
        let files = FileSystem::open(counted.clone(), clock, entropy, SessionId(1), ACCESS);
        let files = files.await.expect("opened");
        (counted, files)
    }
}
