//! Chunks on their way from the object store into function memory: on-demand migration of fragments
//! that were read, and the recovery of chunks whose instance has died (`infinistore.txt`, sections
//! 5.3.3 and 5.5).

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::{
    Result,
    durable::DurableFragments,
    fragment::{Fragment, Stripe},
    groups::{Groups, Lost},
    holds::Holds,
    instance::Slot,
    reader::Reader,
    residency::{Chunks, Residency},
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
    /// Loads fragments that were missed, until the service ends.
    pub(crate) async fn load_missed(self, missed: mpsc::Receiver<Fragment>) {
        let missed = futures_util::stream::unfold(missed, async |mut missed| {
            Some((missed.recv().await?, missed))
        });
        missed
            .for_each_concurrent(LOADS_MAX, |fragment| self.load(fragment))
            .await;
    }

    async fn load(&self, fragment: Fragment) {
        // The collector waits for it, or it waits for nothing.
        let Some(_hold) = self.holds.hold(fragment.name.segment) else {
            return;
        };
        if self.residency.chunks(fragment.name).is_some() {
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
        self.residency.seal(fragment, slots).await;
    }

    /// Replaces instances that died, and recovers their chunks, until the service ends.
    pub(crate) async fn recover_lost(self, mut lost: mpsc::Receiver<Lost>) {
        while let Some(lost) = lost.recv().await {
            let chunks = self.residency.drop_chunks(lost.group, lost.index);
            tracing::info!(
                chunks = chunks.len(),
                "an instance of function memory died; its chunks are recovered from the object store"
            );
            if !self.groups.replace(lost).await {
                continue;
            }
            futures_util::stream::iter(chunks)
                .for_each_concurrent(RECOVERIES_MAX, |chunks| self.recover(chunks, lost.index))
                .await;
        }
    }

    async fn recover(&self, chunks: Arc<Chunks>, index: usize) {
        let name = chunks.fragment.name;
        let Some(_hold) = self.holds.hold(name.segment) else {
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
            self.residency.put_back(name, index, chunk);
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
