//! A volume that counts its calls, and loses the answers of some.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use ports::{DurabilityPoint, Read};
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
    get_many(at: At, keys: &'a [Key]) -> Read<Values>;
    scan(at: At, range: &'a KeyRange, limits: PageLimits) -> Read<Page>;
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
            written_max: AtomicU64::new(0),
        });
        let (clock, entropy) = (world.clock(), world.entropy());
        let files = FileSystem::open(counted.clone(), clock, entropy, SessionId(1), ACCESS);
        let files = files.await.expect("opened");
        (counted, files)
    }
}
