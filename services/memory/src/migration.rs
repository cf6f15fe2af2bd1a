//! Fragments on their way from the object store into function memory: on-demand migration of those
//! that were read, and compaction into the newest groups (`infinistore.txt`, section 5.3.3).
//!
//! What a read misses is *cached* ([`crate::residency`]). It is loaded after that read has its
//! bytes, a few at a time. A fragment of an old group that is read moves as a *stored* one. In the
//! paper a chunk of a released function goes to the latest bucket before its read is answered
//! (section 5.3.3), and is cached there (section 5.4).

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::{
    fragment::Fragment,
    function::Partition,
    holds::Holds,
    reader::Reader,
    residency::{Residency, Wanted},
};

/// The fragments that are loaded at a time.
const LOADS_MAX: usize = 2;

/// Moves chunks into memory.
#[derive(Debug, Clone)]
pub(crate) struct Migration {
    pub(crate) reader: Reader,
    pub(crate) residency: Arc<Residency>,
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

    /// Loads a fragment before it is read. Whether it is in memory then.
    pub(crate) async fn load_early(&self, fragment: Fragment, partition: Partition) -> bool {
        // Space for a fragment that is gone would start a group of instances.
        if self.reader.durable.has(fragment.name).await
            && let Some(wanted) = self.residency.want_early(fragment, partition)
        {
            self.load(wanted).await;
        }
        self.residency.chunks(fragment.name).is_some()
    }

    async fn load(&self, wanted: Wanted) {
        let fragment = wanted.fragment;
        // The collector waits for it, or it waits for nothing.
        let Some(_hold) = self.holds.hold(fragment.name.segment) else {
            return;
        };
        let present = self.residency.chunks(fragment.name);
        if present
            .as_deref()
            .is_some_and(|present| !wanted.is_for(present))
        {
            return;
        }
        // The chunks themselves are not kept: cached ones may make room for their own fragment.
        let replaced = present.map(|present| present.replaced());
        let Some(mut slots) = self.residency.reserve_for(&wanted).await else {
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
        self.residency.seal(fragment, slots, replaced).await;
    }
}
