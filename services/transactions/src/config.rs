//! Every limit, with its default, and what happens at it.

use std::time::Duration;

use crate::{broken::Broken, storage::layout::Buckets};

/// The service's settings. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Over how many partitions a new store spreads its versions and decisions. One that is there refuses another number.
    pub buckets: Buckets,
    /// The longest value; a longer one is refused as too large.
    pub value_bytes_max: usize,
    /// Values beyond this are kept in chunks, not in their version items. At most a quarter of what the store allows an item.
    pub inline_bytes_max: usize,
    /// The longest chunk. At most what the store allows an item, and some room for its names.
    pub chunk_bytes_max: usize,
    /// Where there are objects: values beyond this go into packs there, not into their version items.
    pub pack_bytes_min: usize,
    /// The most that values in one pack take; a longer value has one to itself.
    pub pack_bytes_max: u64,
    /// So many packs of about one size become one, where none is full: so there are few, however slowly they are filled.
    /// Two or more.
    pub packs_merged: usize,
    /// How long a pack gathers values until it is put, if they do not fill it before: so often an object is put at the most, but
    /// for full ones.
    pub pack_wait: Duration,
    /// How long the object of a pack is kept that nothing names any more, for who looked before.
    pub pack_kept: Duration,
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
    /// The most that one attempt writes, values that it replaced after they were written ahead included.
    pub attempt_bytes_max: u64,
    /// The most that one attempt's unwritten values take; beyond it they are written ahead.
    pub attempt_buffer_bytes_max: usize,
    /// The most that all of them take on one node; beyond it the largest attempt's are written ahead, and if none is left to
    /// be, the write is refused.
    pub node_buffer_bytes_max: usize,
    /// The most that values in chunks take which are being read, until whoever asked for them lets them go; the next read
    /// waits, and is refused after [`Config::read_wait_max`].
    pub read_bytes_max: usize,
    /// How long a read waits for others to let go of their values.
    pub read_wait_max: Duration,
    /// For how long announcements of others are gathered at the most, to become visible together.
    pub gathered_for: Duration,
    /// Memory for what was committed here lately; beyond it the collector reads the oldest back from the store.
    pub recent_bytes_max: usize,
    /// Memory for the key version index; the coldest entries go, the next read loads them.
    pub index_bytes_max: u64,
    /// Memory for values.
    pub data_cache_bytes_max: u64,
    /// The most that one slot of the node's log holds; what waits beyond it goes into the next.
    pub slot_bytes_max: usize,
    /// The most items written in one step with a slot: data and rows of its commits, where the store changes items of several
    /// partitions together; 0: each commit writes its own after the slot, as it does where the store cannot.
    pub group_items_max: usize,
    /// A write set beyond this is kept in parts of its own beside the decision row.
    pub write_set_inline_bytes_max: usize,
    /// A commit that is not decided within this is answered as unknown; it goes on.
    pub commit_answer_timeout: Duration,
    /// How long the outcome of an ended transaction is known without asking the store, and how long the client of
    /// a generated id may repeat its commit.
    pub retry_window: Duration,
    /// How long the outcome of a name is kept that somebody has chosen.
    pub named_window: Duration,
    /// How long that of a name is kept which its client has drawn at random: longer than clients repeat their calls by default.
    /// At most [`Config::named_window`] counts.
    pub random_window: Duration,
    /// The most names kept; beyond it the oldest go early.
    pub names_max: u64,
    /// The most bytes that superseded versions take while a transaction may need them; beyond it the oldest no
    /// longer keeps them. A write to a key that is not known counts as if it superseded as much.
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
    /// Whether what nobody needs is collected; off in measurements alone, of what that costs.
    #[doc(hidden)]
    pub collects: bool,
    /// A rule to drop, for tests alone.
    #[doc(hidden)]
    pub broken: Option<Broken>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            buckets: Buckets::default(),
            value_bytes_max: 64 << 20,
            inline_bytes_max: 64 << 10,
            chunk_bytes_max: 1 << 20,
            pack_bytes_min: 1 << 10,
            pack_bytes_max: 8 << 20,
            packs_merged: 16,
            pack_wait: Duration::from_millis(100),
            pack_kept: Duration::from_mins(1),
            keys_written_max: 10_000,
            keys_read_max: 100_000,
            open_max: 10_000,
            idle_timeout: Duration::from_mins(1),
            life_max: Duration::from_mins(15),
            attempt_bytes_max: 1 << 30,
            attempt_buffer_bytes_max: 8 << 20,
            node_buffer_bytes_max: 256 << 20,
            read_bytes_max: 256 << 20,
            read_wait_max: Duration::from_secs(3),
            gathered_for: Duration::from_millis(500),
            recent_bytes_max: 16 << 20,
            index_bytes_max: 128 << 20,
            data_cache_bytes_max: 256 << 20,
            slot_bytes_max: 256 << 10,
            group_items_max: 128,
            write_set_inline_bytes_max: 64 << 10,
            commit_answer_timeout: Duration::from_secs(5),
            retry_window: Duration::from_mins(2),
            named_window: Duration::from_hours(7 * 24),
            random_window: Duration::from_mins(10),
            names_max: 10_000_000,
            superseded_bytes_max: 8 << 30,
            ended_lately_max: 100_000,
            slots_unpublished_max: 1_000,
            effects_max: 100,
            effect_bytes_max: 256 << 10,
            effects_inline_bytes_max: 64 << 10,
            unsent_max: 10_000,
            last_writers_max: 1_000_000,
            collects: true,
            broken: None,
        }
    }
}

impl Config {
    pub(crate) fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
}
