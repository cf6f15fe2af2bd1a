//! What can be set, and the defaults: ZooKeeper's where it has them.

use std::time::Duration;

use crate::broken::Broken;

/// The service's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The shortest session timeout granted (ZooKeeper: two ticks of 2 s).
    pub session_timeout_min: Duration,
    /// The longest (twenty ticks).
    pub session_timeout_max: Duration,
    /// Data beyond this travels to the writer as a temporary object.
    pub message_payload_bytes_max: usize,
    /// How often temporary objects that nobody needs any more are looked for while there are sessions; also
    /// when the last one has ended.
    pub temporary_sweep_period: Duration,
    /// Where znodes' data is kept.
    pub placement: DataPlacement,
    /// Where several processes run the functions: how often each reads the log for what the others distributed, while
    /// it has clients. None: this process is told of everything.
    pub log_look_period: Option<Duration>,
    /// How locks wait and expire.
    pub locks: LockOptions,
    /// A rule to drop, for tests alone.
    #[doc(hidden)]
    pub broken: Option<Broken>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session_timeout_min: Duration::from_secs(4),
            session_timeout_max: Duration::from_secs(40),
            message_payload_bytes_max: 128 * 1024,
            temporary_sweep_period: Duration::from_mins(10),
            placement: DataPlacement::KeyValue,
            log_look_period: None,
            locks: LockOptions::default(),
            broken: None,
        }
    }
}

/// Where a znode's data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPlacement {
    /// In the item: cheapest to read while data is small.
    KeyValue,
    /// In an object named by the update that wrote it: cheapest to keep.
    Objects,
    /// In the item up to this many bytes, in an object beyond.
    Hybrid {
        /// The largest data kept in the item.
        inline_bytes_max: usize,
    },
}

/// How locks wait and expire.
#[derive(Debug, Clone, Copy)]
pub struct LockOptions {
    /// How long a writer may hold a lock before others ask what became of it.
    pub hold_max: Duration,
    /// How far functions' clocks may be apart (the paper: 2 s).
    pub drift_allowance: Duration,
    /// The first wait for a lock that is held.
    pub wait_min: Duration,
    /// The longest wait between two attempts.
    pub wait_max: Duration,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            hold_max: Duration::from_secs(5),
            drift_allowance: Duration::from_secs(2),
            wait_min: Duration::from_micros(200),
            wait_max: Duration::from_millis(100),
        }
    }
}
