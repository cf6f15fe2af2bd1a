//! Recovery of functions whose instance has died (`infinistore.txt`, section 5.5.2).
//!
//! An active function gets another instance, and workers write the chunks of the dead one into it.
//! PUTs go to the new instance at once. Reads decode a missing chunk from the others of its
//! fragment, or read the object store. A degraded function is dropped.
//!
//! The workers come from one pool, and each works for one function at a time. In the paper they are
//! recovery functions, because an instance there loads chunks through its own network link, and
//! keeps them for reads. Here the daemon copies bytes straight into the region of the new instance.
//! A recovery function would add no bandwidth, and its copies would only take memory.
//!
//! A worker decodes a chunk from the instances that live. It needs no request to the object store
//! then. It reads the chunk's own units there if too many instances are dead.

use std::sync::Arc;

use ports::{Clock, metering::function_memory::Category};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, yield_now},
};

use crate::{
    Error, Result,
    durable::DurableFragments,
    fragment::{Fragment, Stripe},
    groups::{Groups, Returning},
    holds::Holds,
    instance::{ReserveError, Slot},
    lost::Recovering,
    reader::Reader,
    residency::{Chunks, Residency, chunk_pages},
    window::FunctionId,
};

/// The workers (section 5.5.2: 20 recovery functions).
const WORKERS_MAX: usize = 20;
/// The pause after a failure of the object store.
const RETRY: std::time::Duration = std::time::Duration::from_secs(5);
/// The units of a chunk that a worker handles before it looks again at which instances live. Their
/// bytes are also the most that it reads from the object store at a time.
const BATCH_UNITS: u64 = 16;

/// Recovers functions. Clones share the workers.
#[derive(Debug, Clone)]
pub(crate) struct Recovery {
    reader: Reader,
    durable: DurableFragments,
    residency: Arc<Residency>,
    groups: Arc<Groups>,
    holds: Holds,
    clock: Arc<dyn Clock>,
    workers: Arc<Semaphore>,
}

impl Recovery {
    pub(crate) fn new(
        reader: Reader,
        groups: Arc<Groups>,
        holds: Holds,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            durable: reader.durable.clone(),
            residency: Arc::clone(&reader.residency),
            reader,
            groups,
            holds,
            clock,
            workers: Arc::new(Semaphore::new(WORKERS_MAX)),
        }
    }

    /// Recovers functions as they fail, until the service ends.
    pub(crate) async fn run(self) {
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(_) = running.join_next() => {}
                recovering = self.groups.lost.next() => {
                    running.spawn(self.clone().recover(recovering));
                }
            }
        }
    }

    async fn recover(self, recovering: Recovering) {
        let function = recovering.function;
        let lost = self.residency.lost(function);
        // A cached chunk takes the space that is left.
        let bytes = lost.iter().map(|chunks| chunks.storage_pages()).sum();
        let Some(restored) = self.groups.restore(function, bytes).await else {
            if !self.groups.has(function.group) {
                return;
            }
            self.residency.forget_incomplete(&lost);
            tracing::info!(
                chunks = lost.len(),
                "an instance of function memory died, and was not replaced"
            );
            return;
        };
        tracing::info!(
            chunks = lost.len(),
            bytes,
            "an instance of function memory died; its chunks are recovered"
        );
        let mut workers = JoinSet::new();
        let mut has_failed = false;
        for chunks in lost {
            let worker = Arc::clone(&self.workers).acquire_owned().await;
            while let Some(ended) = workers.try_join_next() {
                has_failed |= ended.unwrap_or(false);
            }
            let returning = restored.returning(chunks.storage_pages());
            let recovery = self.clone();
            workers.spawn(async move {
                let _worker = worker;
                recovery.recover_chunk(&chunks, function, &returning).await
            });
        }
        while let Some(ended) = workers.join_next().await {
            has_failed |= ended.unwrap_or(false);
        }
        drop(recovering);
        if has_failed {
            self.clock.sleep(RETRY).await;
            self.groups.lost.add(function);
        }
    }

    /// Whether the recovery of the chunk is to be tried again.
    async fn recover_chunk(
        &self,
        lost: &Chunks,
        function: FunctionId,
        returning: &Returning,
    ) -> bool {
        let Err(error) = self.copy_chunk(lost, function, returning).await else {
            return false;
        };
        tracing::debug!(%error, "a chunk of function memory is not recovered");
        // Nothing would look for the chunk again. A read loads the fragment anew.
        if matches!(error, Error::NoRoom(_)) {
            self.residency.forget_load(lost);
        }
        matches!(error, Error::Unavailable(_)) && !returning.is_dead()
    }

    /// The space of a lost chunk. Cached chunks make room for a stored one.
    async fn space(
        &self,
        lost: &Chunks,
        function: FunctionId,
        returning: &Returning,
    ) -> Result<Slot> {
        let (bytes, is_stored) = (chunk_pages(lost.fragment), lost.storage_pages() > 0);
        let name = lost.name(function.index.into());
        loop {
            let slot = returning.reserve(lost.partition, name, lost.fragment.chunk_bytes());
            match slot.await {
                Ok(slot) => return Ok(slot),
                Err(ReserveError::Full)
                    if is_stored && self.residency.evict(&[function], bytes).await => {}
                Err(ReserveError::Full) => {
                    return Err(Error::NoRoom("function memory is full".into()));
                }
                Err(ReserveError::Dead) => {
                    return Err(Error::Unavailable("the instance has died".into()));
                }
            }
        }
    }

    async fn copy_chunk(
        &self,
        lost: &Chunks,
        function: FunctionId,
        returning: &Returning,
    ) -> Result<()> {
        let (fragment, index) = (lost.fragment, usize::from(function.index));
        let Some(_hold) = self.holds.hold(fragment.name.segment) else {
            return Ok(());
        };
        let bytes = fragment.chunk_bytes();
        let meter = &self.residency.meter;
        meter.invoked(Category::Recovery, 1, bytes);
        let slot = self.space(lost, function, returning).await?;
        for first in (0..fragment.stripes()).step_by(BATCH_UNITS as usize) {
            let Some(present) = self.residency.chunks(fragment.name) else {
                return Ok(());
            };
            let end = fragment.stripes().min(first + BATCH_UNITS);
            let mut rest = Vec::new();
            for stripe in (first..end).map(|index| fragment.stripe(index)) {
                match self.reader.decode_unit(&present, &stripe, index) {
                    Some(cell) => slot.write(stripe.in_chunk().start, &cell)?,
                    None => rest.push(stripe),
                }
                // Decoding keeps the thread busy, and readers want it too.
                yield_now().await;
            }
            self.fill_from_store(&slot, fragment, index, &rest).await?;
        }
        // The death of the instance begins another recovery.
        if let Ok(chunk) = slot.seal().await {
            self.residency.put_back(lost, index, chunk);
        }
        Ok(())
    }

    /// Writes units of the chunk from the object store. Only a damaged one needs its whole stripe.
    async fn fill_from_store(
        &self,
        slot: &Slot,
        fragment: Fragment,
        index: usize,
        stripes: &[Stripe],
    ) -> Result<()> {
        if stripes.is_empty() {
            return Ok(());
        }
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
        Ok(())
    }
}
