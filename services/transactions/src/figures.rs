//! Counters and gauges of an engine. The status shows them unchanged, so a published name stays.

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::model::Outcome;

/// Counters and gauges of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Whether no node serves: the last one could not go on, and the next one has not started.
    pub starting_over: bool,
    /// Attempts open now.
    pub open: u64,
    /// Attempts begun.
    pub begun: u64,
    /// Attempts committed.
    pub committed: u64,
    /// Attempts aborted by their clients, closed by other calls, or begun anew.
    pub aborted: u64,
    /// Attempts that ran out of time.
    pub expired: u64,
    /// Reads that found no valid version.
    pub no_valid_version: u64,
    /// Serializable attempts that ended because another transaction had written what they read.
    pub conflicts: u64,
    /// Keys loaded from the store.
    pub loads: u64,
    /// Keyspaces that a serializable transaction has made sequenced permanently (T-3). The HTTP
    /// interface has one keyspace.
    pub sequenced_keyspaces: u64,
    /// Slots written to the present log, each for one or more commits.
    pub slots: u64,
    /// Bytes in the key version index.
    pub index_bytes: u64,
    /// Bytes in the data cache.
    pub data_cache_bytes: u64,
    /// Bytes of values and effects not written yet.
    pub buffered_bytes: u64,
    /// Bytes of spilled values.
    pub spilled_bytes: u64,
    /// Effects sent, including repeats after lost answers.
    pub effects_sent: u64,
    /// Effects of commits that are not sent yet.
    pub effects_unsent: u64,
    /// Transactions whose next effect was refused at the last try: an operator should look.
    pub effects_failing: u64,
    /// Versions collected.
    pub collected_versions: u64,
    /// Bytes of values of collected versions.
    pub collected_bytes: u64,
    /// Old transactions whose snapshots were evicted.
    pub overtaken: u64,
    /// Slots of logs within their window.
    pub log_slots: u64,
    /// Client ids whose outcome outlives their slots.
    pub kept_names: u64,
    /// Versions and rows found that no log named.
    pub swept: u64,
    /// Packs put.
    pub packed: u64,
    /// Bytes of values in them, when they were put.
    pub packed_bytes: u64,
    /// Packs that were compacted.
    pub compacted: u64,
    /// Packs known now, including those kept only for readers.
    pub packs: u64,
    /// Bytes of values in those packs, including dead ones.
    pub packs_bytes: u64,
    /// How far this machine's clock is ahead of the median of all nodes, in milliseconds. Beyond
    /// 10,000 no transaction begins or commits here.
    pub clock_ahead_ms: u64,
    /// Members without an announcement for ten seconds. Until they send one, overwritten versions
    /// are kept.
    pub members_unheard: u64,
}

/// Counters of events; gauges are filled in by the engine.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Figures>);

impl Counters {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.lock()
    }

    pub(crate) fn ended(&self, outcome: Option<Outcome>) {
        let mut figures = self.lock();
        match outcome {
            Some(Outcome::Committed) => figures.committed += 1,
            Some(Outcome::Expired) => figures.expired += 1,
            Some(Outcome::Aborted | Outcome::BegunAnew) => figures.aborted += 1,
            Some(Outcome::Open | Outcome::Committing) | None => {}
        }
    }

    pub(crate) fn collected(&self, bytes: u64) {
        let mut figures = self.lock();
        figures.collected_versions += 1;
        figures.collected_bytes += bytes;
    }

    pub(crate) fn overtaken(&self) {
        self.lock().overtaken += 1;
    }

    pub(crate) fn log_slots(&self, slots: u64) {
        self.lock().log_slots = slots;
    }

    pub(crate) fn swept(&self) {
        self.lock().swept += 1;
    }

    pub(crate) fn packed(&self, bytes: u64) {
        let mut figures = self.lock();
        figures.packed += 1;
        figures.packed_bytes += bytes;
    }

    pub(crate) fn compacted(&self) {
        self.lock().compacted += 1;
    }

    /// Reserves memory for buffered bytes. Returns false if it would exceed `bytes_max`.
    pub(crate) fn buffer(&self, bytes: usize, bytes_max: usize) -> bool {
        let buffered = &mut self.lock().buffered_bytes;
        let sum = buffered.saturating_add(bytes as u64);
        let fits = sum <= bytes_max as u64;
        if fits {
            *buffered = sum;
        }
        fits
    }

    /// Releases memory.
    pub(crate) fn unbuffer(&self, bytes: usize) {
        self.lock().buffered_bytes -= bytes as u64;
    }
}
