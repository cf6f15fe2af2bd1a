//! Every limit, with its default, and what happens at it.

use std::time::Duration;

use crate::broken::Broken;

/// The service's settings. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Values beyond this are refused as too large: they do not fit a version item. At most a quarter of what
    /// the store allows an item.
    pub inline_bytes_max: usize,
    /// The most keys one attempt writes.
    pub keys_written_max: usize,
    /// The most keys one attempt reads.
    pub keys_read_max: usize,
    /// The most attempts open on one node; the next begin is refused.
    pub open_max: usize,
    /// An attempt without a call for this long ends.
    pub idle_timeout: Duration,
    /// An attempt ends this long after its begin, whatever it does.
    pub life_max: Duration,
    /// The most that one attempt's unwritten values take; the next write is refused.
    pub attempt_buffer_bytes_max: usize,
    /// The most that all of them take on one node; the next write is refused.
    pub node_buffer_bytes_max: usize,
    /// Memory for the key version index; the coldest entries go, the next read loads them.
    pub index_bytes_max: u64,
    /// Memory for values.
    pub data_cache_bytes_max: u64,
    /// The most that one slot of the node's log holds; what waits beyond it goes into the next.
    pub slot_bytes_max: usize,
    /// A write set beyond this is kept in parts of its own beside the decision row.
    pub write_set_inline_bytes_max: usize,
    /// A commit that is not decided within this is answered as unknown; it goes on.
    pub commit_answer_timeout: Duration,
    /// How long the outcome of an ended transaction is known without asking the store, and how long the client of
    /// a generated id may repeat its commit.
    pub retry_window: Duration,
    /// How long the outcome of a name is kept.
    pub named_window: Duration,
    /// The most names kept; beyond it the oldest go early.
    pub names_max: u64,
    /// The most bytes that superseded versions take while a transaction may need them; beyond it the oldest no
    /// longer keeps them.
    pub superseded_bytes_max: u64,
    /// The most outcomes known without asking the store.
    pub ended_lately_max: usize,
    /// How many slots of a node's log may follow the last one it has told a successor to begin at.
    pub slots_unpublished_max: u64,
    /// The most effects one transaction has.
    pub effects_max: usize,
    /// The most bytes one effect carries; at most half of what the store allows an item.
    pub effect_bytes_max: usize,
    /// Effects of one transaction beyond this are kept in parts of their own beside the outbox row.
    pub effects_inline_bytes_max: usize,
    /// The most transactions whose effects are not sent yet; beyond it no further effect is taken.
    pub unsent_max: usize,
    /// How many writes the sequencer remembers, to validate by; who read before the oldest is refused.
    pub last_writers_max: usize,
    /// A rule to drop, for tests alone.
    #[doc(hidden)]
    pub broken: Option<Broken>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            inline_bytes_max: 64 << 10,
            keys_written_max: 10_000,
            keys_read_max: 100_000,
            open_max: 10_000,
            idle_timeout: Duration::from_mins(1),
            life_max: Duration::from_mins(15),
            attempt_buffer_bytes_max: 8 << 20,
            node_buffer_bytes_max: 256 << 20,
            index_bytes_max: 128 << 20,
            data_cache_bytes_max: 256 << 20,
            slot_bytes_max: 256 << 10,
            write_set_inline_bytes_max: 64 << 10,
            commit_answer_timeout: Duration::from_secs(5),
            retry_window: Duration::from_mins(2),
            named_window: Duration::from_hours(7 * 24),
            names_max: 10_000_000,
            superseded_bytes_max: 8 << 30,
            ended_lately_max: 100_000,
            slots_unpublished_max: 1_000,
            effects_max: 100,
            effect_bytes_max: 256 << 10,
            effects_inline_bytes_max: 64 << 10,
            unsent_max: 10_000,
            last_writers_max: 1_000_000,
            broken: None,
        }
    }
}

impl Config {
    pub(crate) fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
}
