//! What kind of cloud a world imitates.

use std::{ops::RangeInclusive, time::Duration};

use ports::{functions::FunctionLimits, key_value::KeyValueLimits, queue::QueueLimits};

/// What kind of cloud a [`World`](crate::World) imitates: its limits and how fast it is.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the key-value store says it cannot exceed, and does not. With `page_is_snapshot` off, a page is
    /// read in two halves between which others may write.
    pub key_value: KeyValueLimits,
    /// What the queues say they cannot exceed.
    pub queue: QueueLimits,
    /// What the functions say they cannot exceed.
    pub functions: FunctionLimits,
    /// How long a call travels, each way; none: it does not.
    pub latency: Option<RangeInclusive<Duration>>,
    /// How long one fsync of the store's journal takes; everybody who waits shares it.
    pub fsync: RangeInclusive<Duration>,
    /// Every mutation is durable once it is visible, as on DynamoDB; nothing is ever lost in a crash.
    pub durable_at_once: bool,
    /// Armed triggers and timers outlive a crash of the store, as a cloud's do; otherwise the program must
    /// arm them again.
    pub arming_survives_crash: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key_value: KeyValueLimits {
                key_bytes_max: 1_024,
                item_bytes_max: 400 * 1_024,
                transact_items_max: 100,
                transact_across_partitions: true,
                batch_items_max: 100,
                page_items_max: 1_000,
                page_is_snapshot: true,
                operations_remembered: 64,
                operation_retention_ms: 600_000,
                tells_room: true,
            },
            queue: QueueLimits {
                message_bytes_max: 256 * 1_024,
                batch_messages_max: 10,
                deduplication_window_ms: 300_000,
                dead_letters_max: 100,
                shares_journal: true,
            },
            functions: FunctionLimits {
                payload_bytes_max: 256 * 1_024,
                timeout_max: Duration::from_mins(15),
            },
            latency: None,
            fsync: Duration::from_micros(200)..=Duration::from_millis(3),
            durable_at_once: false,
            arming_survives_crash: true,
        }
    }
}
