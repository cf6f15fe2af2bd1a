//! What an engine has done and holds, in numbers: the status shows them as they are, so a name once given stays.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::model::Outcome;

/// What an engine has done and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Whether nobody serves: its node could not go on, and the next one has not started.
    pub starting_over: bool,
    /// Attempts open now.
    pub open: u64,
    /// Attempts begun.
    pub begun: u64,
    /// Attempts committed.
    pub committed: u64,
    /// Attempts aborted by their clients, by somebody who closed them, or begun anew.
    pub aborted: u64,
    /// Attempts that ran out of time.
    pub expired: u64,
    /// Reads that found no valid version.
    pub no_valid_version: u64,
    /// Serializable attempts that ended because somebody had written what they read.
    pub conflicts: u64,
    /// Keys loaded from the store.
    pub loads: u64,
    /// Slots of the present log written, each for one or more commits.
    pub slots: u64,
    /// Bytes that the key version index holds.
    pub index_bytes: u64,
    /// Bytes that the data cache holds.
    pub data_cache_bytes: u64,
    /// Bytes of values and effects not written yet.
    pub buffered_bytes: u64,
    /// Bytes of values written ahead of their commits.
    pub spilled_bytes: u64,
    /// Effects sent, repeats of those whose answers were lost included.
    pub effects_sent: u64,
    /// Effects of commits that are not sent yet.
    pub effects_unsent: u64,
    /// Transactions whose next effect was refused when it was last tried: somebody has to look.
    pub effects_failing: u64,
    /// Versions collected.
    pub collected_versions: u64,
    /// Bytes of values that went with them.
    pub collected_bytes: u64,
    /// Old transactions that no longer keep what they may need.
    pub overtaken: u64,
    /// Slots of logs that are within their window.
    pub log_slots: u64,
    /// Names whose outcome is kept although their slots are not.
    pub kept_names: u64,
    /// Versions and rows found that no log named.
    pub swept: u64,
    /// Packs put.
    pub packed: u64,
    /// Bytes of values in them, when they were put.
    pub packed_bytes: u64,
    /// Packs that were compacted.
    pub compacted: u64,
    /// Packs known of now, those that are kept for readers alone included.
    pub packs: u64,
    /// Bytes of values in those, dead ones included.
    pub packs_bytes: u64,
    /// By how much this machine's clock is ahead of the median of all nodes': beyond 10,000 nothing begins or commits here.
    pub clock_ahead_ms: u64,
    /// Members that have not been heard for ten seconds: until they are, what was overwritten is kept.
    pub members_unheard: u64,
}

/// What is counted as it happens.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    begun: AtomicU64,
    committed: AtomicU64,
    aborted: AtomicU64,
    expired: AtomicU64,
    no_valid_version: AtomicU64,
    conflicts: AtomicU64,
    loads: AtomicU64,
    buffered_bytes: AtomicUsize,
    spilled_bytes: AtomicU64,
    effects_sent: AtomicU64,
    collected_versions: AtomicU64,
    collected_bytes: AtomicU64,
    overtaken: AtomicU64,
    log_slots: AtomicU64,
    swept: AtomicU64,
    packed: AtomicU64,
    packed_bytes: AtomicU64,
    compacted: AtomicU64,
}

impl Counters {
    pub(crate) fn begun(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, outcome: Option<Outcome>) {
        let counter = match outcome {
            Some(Outcome::Committed) => &self.committed,
            Some(Outcome::Expired) => &self.expired,
            Some(Outcome::Aborted | Outcome::BegunAnew) => &self.aborted,
            Some(Outcome::Open | Outcome::Committing) | None => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn no_valid_version(&self) {
        self.no_valid_version.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn loaded(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn spilled(&self, bytes: u64) {
        self.spilled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) {
        self.effects_sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn collected(&self, bytes: u64) {
        self.collected_versions.fetch_add(1, Ordering::Relaxed);
        self.collected_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn overtaken(&self) {
        self.overtaken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn log_slots(&self, slots: u64) {
        self.log_slots.store(slots, Ordering::Relaxed);
    }

    pub(crate) fn swept(&self) {
        self.swept.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn packed(&self, bytes: u64) {
        self.packed.fetch_add(1, Ordering::Relaxed);
        self.packed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn compacted(&self) {
        self.compacted.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes room for what is buffered; false: there is not as much within `bytes_max`.
    pub(crate) fn buffer(&self, bytes: usize, bytes_max: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= bytes_max);
        self.buffered_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    /// Gives room back.
    pub(crate) fn unbuffer(&self, bytes: usize) {
        self.buffered_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> Figures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            begun: count(&self.begun),
            committed: count(&self.committed),
            aborted: count(&self.aborted),
            expired: count(&self.expired),
            no_valid_version: count(&self.no_valid_version),
            conflicts: count(&self.conflicts),
            loads: count(&self.loads),
            spilled_bytes: count(&self.spilled_bytes),
            effects_sent: count(&self.effects_sent),
            buffered_bytes: self.buffered_bytes.load(Ordering::Relaxed) as u64,
            collected_versions: count(&self.collected_versions),
            collected_bytes: count(&self.collected_bytes),
            overtaken: count(&self.overtaken),
            log_slots: count(&self.log_slots),
            swept: count(&self.swept),
            packed: count(&self.packed),
            packed_bytes: count(&self.packed_bytes),
            compacted: count(&self.compacted),
            ..Figures::default()
        }
    }
}
