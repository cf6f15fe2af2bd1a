//! Every limit, with its default and its behaviour at the bound.

use std::time::Duration;

use primitives::Mutant;

use crate::{broken::Broken, storage::layout::Buckets};

/// The service's settings. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The number of partitions for versions and decisions of a new store. An existing store
    /// refuses another number.
    pub buckets: Buckets,
    /// The most bytes of one value. A longer value is refused as too large.
    pub value_bytes_max: usize,
    /// Values beyond this are kept in chunks instead of their version items. At most a quarter of
    /// the store's item limit.
    pub inline_bytes_max: usize,
    /// The most bytes of one chunk. At most the store's item limit less some space for names.
    pub chunk_bytes_max: usize,
    /// With an object store: values beyond this go into packs instead of their version items.
    pub pack_bytes_min: usize,
    /// The most bytes of values in one pack. A longer value gets a pack of its own.
    pub pack_bytes_max: u64,
    /// This many small packs become one; a pack is small if so many of its size fit a full one. The
    /// number of packs stays small however slowly they fill. Two or more.
    pub packs_merged: usize,
    /// How long a pack gathers values before it is put, unless they fill it sooner. It bounds the
    /// rate of puts of packs that are not full.
    pub pack_wait: Duration,
    /// The most keys one attempt writes.
    pub keys_written_max: usize,
    /// The most keys one attempt reads.
    pub keys_read_max: usize,
    /// The most attempts open on one node; further begins are refused.
    pub open_max: usize,
    /// An attempt without a call for this long ends.
    pub idle_timeout: Duration,
    /// An attempt ends this long after its begin, even if it is active.
    pub life_max: Duration,
    /// The most bytes that one attempt writes, including spilled values that it replaced later.
    pub attempt_bytes_max: u64,
    /// The most bytes of one attempt's unwritten values; beyond it they are spilled.
    pub attempt_buffer_bytes_max: usize,
    /// The most bytes of unwritten values on one node. Beyond it the largest attempt's values are
    /// spilled. If none can be spilled, the write is refused.
    pub node_buffer_bytes_max: usize,
    /// The most bytes of chunked values being read, until their callers drop them. The next read
    /// waits, and is refused after [`Config::read_wait_max`].
    pub read_bytes_max: usize,
    /// How long a read waits for others to drop their values.
    pub read_wait_max: Duration,
    /// The longest time for which announcements of other nodes wait in a batch before they become
    /// visible together.
    pub batch_wait: Duration,
    /// Memory for this node's recent commits; beyond it the collector reads the oldest back from
    /// the store.
    pub recent_bytes_max: usize,
    /// Memory for the key version index. Beyond it the coldest entries are evicted, and the next
    /// read loads them.
    pub index_bytes_max: u64,
    /// Memory for values.
    pub data_cache_bytes_max: u64,
    /// The most bytes of one slot of the node's log; entries beyond it go into the next slot.
    pub slot_bytes_max: usize,
    /// The most items written in one step with a slot: data and rows of its commits, where the
    /// store changes items of several partitions atomically. With 0, each commit writes its own
    /// items after the slot, as on stores that cannot do this.
    pub group_items_max: usize,
    /// A write set beyond this is kept in separate parts beside the decision row.
    pub write_set_inline_bytes_max: usize,
    /// A commit undecided after this time is answered as unknown, and continues.
    pub commit_answer_timeout: Duration,
    /// How long the outcome of an ended transaction is known without asking the store, and how long
    /// the client of a generated id may repeat its commit.
    pub retry_window: Duration,
    /// How long the outcome of a client id is kept.
    pub named_window: Duration,
    /// How long the outcome of a random id is kept: longer than the default retry time of clients.
    /// At most [`Config::named_window`] applies.
    pub random_window: Duration,
    /// The most client ids kept; beyond it the oldest are dropped early.
    pub names_max: u64,
    /// The most bytes of superseded versions kept for transactions that may need them. Beyond it
    /// the oldest transaction's snapshot is evicted. A write to an unknown key is assumed to
    /// supersede as many bytes as it writes.
    pub superseded_bytes_max: u64,
    /// The most outcomes known without asking the store.
    pub ended_lately_max: usize,
    /// How many slots a node's log may advance past the published start for a successor.
    pub slots_unpublished_max: u64,
    /// The most effects of one transaction.
    pub effects_max: usize,
    /// The most bytes of one effect; at most half of the store's item limit.
    pub effect_bytes_max: usize,
    /// Effects of one transaction beyond this are kept in separate parts beside the outbox row.
    pub effects_inline_bytes_max: usize,
    /// The most transactions with unsent effects; beyond it no further effect is accepted.
    pub unsent_max: usize,
    /// How many writes the sequencer remembers for validation. A transaction that read before the
    /// oldest is refused.
    pub last_writers_max: usize,
    /// From how many bytes on a value of a volume is large: it may lie in an object.
    pub volume_value_bytes_min: usize,
    /// The fewest bytes of large values that are put as one object. Fewer stay in their rows.
    pub volume_object_bytes_min: usize,
    /// Whether garbage is collected. Only measurements of its cost turn it off.
    #[doc(hidden)]
    pub collects: bool,
    /// Whether packs without a row are left alone: those that interrupted puts leave, and those of
    /// another store that went on from the same backup and uses the same objects.
    pub keeps_unknown_packs: bool,
    /// A rule that a mutant breaks; only for tests.
    #[doc(hidden)]
    pub mutant: Mutant<Broken>,
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
            packs_merged: 64,
            pack_wait: Duration::from_millis(100),
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
            batch_wait: Duration::from_millis(500),
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
            volume_value_bytes_min: 4 << 10,
            volume_object_bytes_min: 1 << 20,
            collects: true,
            keeps_unknown_packs: false,
            mutant: Mutant::NONE,
        }
    }
}
