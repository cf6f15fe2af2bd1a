//! Chunks on their way from the object store into function memory: on-demand migration of fragments
//! that were read, compaction into the newest groups, and the recovery of chunks whose instance has
//! died (`infinistore.txt`, sections 5.3.3 and 5.5).

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::{
    Result,
    durable::DurableFragments,
    fragment::{Fragment, Stripe},
    groups::Groups,
    holds::Holds,
    instance::Slot,
    reader::Reader,
    residency::{Chunks, Reason, Residency, Wanted},
    window::{Failed, FunctionId},
};

/// The fragments that are loaded at a time.
const LOADS_MAX: usize = 2;
/// The fragments whose lost chunks are recovered at a time.
const RECOVERIES_MAX: usize = 4;
/// The units that one request to the object store reads.
const BATCH_UNITS: u64 = 32;

/// Moves chunks into memory.
#[derive(Debug, Clone)]
pub(crate) struct Migration {
    pub(crate) reader: Reader,
    pub(crate) durable: DurableFragments,
    pub(crate) residency: Arc<Residency>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) holds: Holds,
}

impl Migration {
    /// Loads fragments that were missed or are to be moved, until the service ends.
    pub(crate) async fn load_wanted(self, wanted: mpsc::Receiver<Wanted>) {
        let wanted = futures_util::stream::unfold(wanted, async |mut wanted| {
            Some((wanted.recv().await?, wanted))
        });
        wanted
            .for_each_concurrent(LOADS_MAX, |wanted| self.load(wanted))
            .await;
    }

    async fn load(&self, wanted: Wanted) {
        let fragment = wanted.fragment;
        // The collector waits for it, or it waits for nothing.
        let Some(_hold) = self.holds.hold(fragment.name.segment) else {
            return;
        };
        let present = self.residency.chunks(fragment.name);
        if wanted.reason == Reason::Missed && present.as_ref().is_some_and(|one| one.is_whole()) {
            return;
        }
        let Some(slots) = self.residency.reserve(fragment).await else {
            return;
        };
        for index in 0..fragment.stripes() {
            let stripe = fragment.stripe(index);
            match self.reader.stripe(fragment, &stripe).await {
                Ok(cells) if slots.write(&stripe, &cells) => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "a fragment cannot be loaded into function memory");
                    return;
                }
            }
        }
        self.residency
            .seal(fragment, slots, present.as_deref())
            .await;
    }

    /// Replaces instances that died, and recovers their chunks, until the service ends. Functions of
    /// degraded groups are dropped instead.
    pub(crate) async fn recover_lost(self, mut lost: mpsc::Receiver<FunctionId>) {
        while let Some(function) = lost.recv().await {
            let Some(failed) = self.groups.failed(function) else {
                continue;
            };
            let chunks = self.residency.drop_chunks(function);
            let count = chunks.len();
            if failed == Failed::Dropped || !self.groups.replace(function).await {
                self.residency.forget_incomplete(&chunks);
                tracing::info!(
                    chunks = count,
                    "an instance of function memory died, and was not replaced"
                );
                continue;
            }
            tracing::info!(
                chunks = count,
                "an instance of function memory died; its chunks are recovered from the object store"
            );
            let index = usize::from(function.index);
            futures_util::stream::iter(chunks)
                .for_each_concurrent(RECOVERIES_MAX, |chunks| self.recover(chunks, index))
                .await;
        }
    }

    async fn recover(&self, chunks: Arc<Chunks>, index: usize) {
        let Some(_hold) = self.holds.hold(chunks.fragment.name.segment) else {
            return;
        };
        // Reads decode the chunk meanwhile, and if it does not come back.
        let Some(slot) = self.residency.reserve_again(&chunks, index).await else {
            return;
        };
        if let Err(error) = self.fill(&slot, chunks.fragment, index).await {
            tracing::debug!(%error, "a chunk cannot be recovered");
            return;
        }
        if let Ok(chunk) = slot.seal().await {
            self.residency.put_back(&chunks, index, chunk);
        }
    }

    async fn fill(&self, slot: &Slot, fragment: Fragment, index: usize) -> Result<()> {
        for first in (0..fragment.stripes()).step_by(BATCH_UNITS as usize) {
            let stripes: Vec<_> = (first..fragment.stripes().min(first + BATCH_UNITS))
                .map(|index| fragment.stripe(index))
                .collect();
            let place = |stripe: &Stripe| stripe.in_object(index..index + 1);
            let ranges: Vec<_> = stripes.iter().map(place).collect();
            let cells = self.durable.read_ranges(fragment.name, &ranges).await?;
            for (stripe, cell) in stripes.iter().zip(cells) {
                let cell = if stripe.is_intact(index, &cell) {
                    cell
                } else {
                    let all = self.reader.stripe(fragment, stripe).await?;
                    let start = index * stripe.cell_bytes();
                    all.slice(start..start + stripe.cell_bytes())
                };
                slot.write(stripe.in_chunk().start, &cell)?;
            }
        }
        Ok(())
    }
}
