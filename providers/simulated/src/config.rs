//! Options: the kind of cloud that a world imitates.

use std::{ops::RangeInclusive, time::Duration};

use ports::{functions::FunctionLimits, key_value::KeyValueLimits, queue::QueueLimits};

/// The kind of cloud that a [`World`](crate::World) imitates: its limits and its speed.
#[derive(Debug, Clone)]
pub struct Options {
    /// The enforced limits of the key-value store. With `page_is_snapshot` off, a page is read in
    /// two halves, and other calls may write between them.
    pub key_value: KeyValueLimits,
    /// The enforced limits of the queues.
    pub queue: QueueLimits,
    /// The enforced limits of the functions.
    pub functions: FunctionLimits,
    /// The latency of a call in each direction; none: no latency.
    pub latency: Option<RangeInclusive<Duration>>,
    /// The duration of one fsync of the store's journal, which all waiting callers share.
    pub fsync: RangeInclusive<Duration>,
    /// Whether every mutation is durable once it is visible, as on DynamoDB. A crash then loses
    /// nothing.
    pub durable_at_once: bool,
    /// Whether armed triggers and timers survive a crash of the store, like those of a cloud.
    /// Otherwise the program must arm them again.
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
