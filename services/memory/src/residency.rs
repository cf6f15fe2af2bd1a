//! Fragments in function memory: which chunk lies on which instance.
//!
//! Invariants
//! - Two chunks of a fragment are never on one instance: a fragment lies on one group, and each
//!   instance of a group keeps the chunks of one index.
//! - A fragment is found here only once all of its chunks were written whole.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    fragment::{Fragment, FragmentName, SegmentId, Stripe},
    groups::{Group, GroupId, Groups},
    instance::{ChunkName, HeldChunk, ReserveError, Slot},
};

/// The fragments that wait to be loaded into memory. Further ones stay in the object store until
/// they are read again.
const MISSES_MAX: usize = 64;

/// The chunks of one fragment in memory.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) fragment: Fragment,
    pub(crate) group: GroupId,
    /// By index; none: its instance is dead.
    held: Vec<Option<HeldChunk>>,
}

impl Chunks {
    /// Reads a unit with its checksum into `cell`. Whether it is there and intact (M4).
    pub(crate) fn read(&self, stripe: &Stripe, unit: usize, cell: &mut [u8]) -> bool {
        let Some(chunk) = self.held.get(unit).and_then(Option::as_ref) else {
            return false;
        };
        chunk.read(stripe.in_chunk().start, cell).is_ok() && stripe.is_intact(unit, cell)
    }

    /// The same chunks, with another one at `index`.
    fn with(&self, index: usize, chunk: Option<HeldChunk>) -> Self {
        let mut held = self.held.clone();
        held[index] = chunk;
        Self {
            held,
            fragment: self.fragment,
            group: self.group,
        }
    }

    pub(crate) fn is_missing(&self, index: usize) -> bool {
        self.held[index].is_none()
    }
}

/// Space for the chunks of a fragment. Dropping it frees the space.
#[derive(Debug)]
pub(crate) struct Slots {
    group: Arc<Group>,
    slots: Vec<Slot>,
}

impl Slots {
    /// Writes each unit of the stripe into its chunk. Whether all instances are alive.
    pub(crate) fn write(&self, stripe: &Stripe, cells: &[u8]) -> bool {
        let cells = cells.chunks_exact(stripe.cell_bytes());
        let start = stripe.in_chunk().start;
        let mut writes = self.slots.iter().zip(cells);
        writes.all(|(slot, cell)| slot.write(start, cell).is_ok())
    }
}

/// The fragments in memory.
#[derive(Debug)]
pub(crate) struct Residency {
    groups: Arc<Groups>,
    fragments: Mutex<BTreeMap<FragmentName, Arc<Chunks>>>,
    misses: mpsc::Sender<Fragment>,
}

impl Residency {
    /// With the fragments that are to be loaded ([`Self::miss`]).
    pub(crate) fn new(groups: Arc<Groups>) -> (Arc<Self>, mpsc::Receiver<Fragment>) {
        let (misses, missed) = mpsc::channel(MISSES_MAX);
        let residency = Self {
            groups,
            fragments: Mutex::default(),
            misses,
        };
        (Arc::new(residency), missed)
    }

    /// The chunks of a fragment, if it is in memory.
    pub(crate) fn chunks(&self, name: FragmentName) -> Option<Arc<Chunks>> {
        self.fragments.lock().get(&name).cloned()
    }

    /// Asks for a fragment to be loaded into memory.
    pub(crate) fn miss(&self, fragment: Fragment) {
        // If too many wait, a later read asks again.
        let _ = self.misses.try_send(fragment);
    }

    /// Space for a fragment on the oldest group that has it. None: memory is full.
    pub(crate) async fn reserve(&self, fragment: Fragment) -> Option<Slots> {
        let bytes = fragment.chunk_bytes();
        let mut after = None;
        loop {
            let group = self.groups.open(after).await?;
            match reserve_on(&group, fragment, bytes).await {
                Ok(slots) => return Some(slots),
                Err(ReserveError::Full) => group.seal(),
                Err(ReserveError::Dead) => {}
            }
            after = Some(group.id);
        }
    }

    /// Space for chunk `index` of a fragment on its group, after its instance has died.
    pub(crate) async fn reserve_again(&self, chunks: &Chunks, index: usize) -> Option<Slot> {
        let group = self.groups.get(chunks.group)?;
        let name = chunk_name(chunks.fragment, index);
        let bytes = chunks.fragment.chunk_bytes();
        group.instance(index).reserve(name, bytes).await.ok()
    }

    /// Shows the fragment, whose chunks were written whole.
    pub(crate) async fn seal(&self, fragment: Fragment, slots: Slots) {
        let sealed = join_all(slots.slots.into_iter().map(Slot::seal)).await;
        let chunks = Chunks {
            fragment,
            group: slots.group.id,
            held: sealed.into_iter().map(Result::ok).collect(),
        };
        self.fragments
            .lock()
            .insert(fragment.name, Arc::new(chunks));
    }

    /// Puts a chunk in the place of one whose instance has died.
    pub(crate) fn put_back(&self, name: FragmentName, index: usize, chunk: HeldChunk) {
        if let Some(chunks) = self.fragments.lock().get_mut(&name) {
            *chunks = Arc::new(chunks.with(index, Some(chunk)));
        }
    }

    /// Drops all chunks of a dead instance. Returns the fragments that miss one now.
    pub(crate) fn drop_chunks(&self, group: GroupId, index: usize) -> Vec<Arc<Chunks>> {
        let mut lost = Vec::new();
        for chunks in self.fragments.lock().values_mut() {
            if chunks.group == group && !chunks.is_missing(index) {
                *chunks = Arc::new(chunks.with(index, None));
                lost.push(Arc::clone(chunks));
            }
        }
        lost
    }

    /// Forgets a segment that is deleted. Its space is free once its last reader has ended.
    pub(crate) fn forget(&self, segment: SegmentId) {
        let name = |index| FragmentName { segment, index };
        let mut fragments = self.fragments.lock();
        let names: Vec<_> = fragments
            .range(name(0)..=name(u32::MAX))
            .map(|(name, _)| *name)
            .collect();
        for name in names {
            fragments.remove(&name);
        }
    }

    /// The number of fragments in memory.
    pub(crate) fn count(&self) -> usize {
        self.fragments.lock().len()
    }
}

fn chunk_name(fragment: Fragment, index: usize) -> ChunkName {
    ChunkName {
        segment: fragment.name.segment.0,
        fragment: fragment.name.index,
        index: index as u8,
    }
}

async fn reserve_on(
    group: &Arc<Group>,
    fragment: Fragment,
    bytes: u64,
) -> Result<Slots, ReserveError> {
    let reserved = (0..fragment.shape.total()).map(|index| {
        let instance = group.instance(index);
        async move { instance.reserve(chunk_name(fragment, index), bytes).await }
    });
    let slots = join_all(reserved).await;
    Ok(Slots {
        slots: slots.into_iter().collect::<Result<_, _>>()?,
        group: Arc::clone(group),
    })
}
