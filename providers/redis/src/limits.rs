//! The limits of this provider, as the ports define them.

use ports::{key_value::KeyValueLimits, queue::QueueLimits};

/// Key-value limits on one server. A cluster transacts within one partition.
pub(crate) const KEY_VALUE_LIMITS: KeyValueLimits = KeyValueLimits {
    key_bytes_max: 2048,
    item_bytes_max: 4 << 20,
    transact_items_max: 128,
    transact_across_partitions: true,
    batch_items_max: 512,
    page_items_max: 1000,
    page_is_snapshot: true,
    operations_remembered: 64,
    operation_retention_ms: 10 * 60 * 1000,
    tells_room: false,
};

/// Queue limits on one server. Only one server has a common order of queues and items (Q7).
pub(crate) const QUEUE_LIMITS: QueueLimits = QueueLimits {
    message_bytes_max: 4 << 20,
    batch_messages_max: 256,
    dead_letters_max: 10_000,
    deduplication_window_ms: 5 * 60 * 1000,
    shares_journal: true,
};
