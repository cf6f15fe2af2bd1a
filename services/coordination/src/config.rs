//! The service's settings and their defaults, which are ZooKeeper's where it has the setting.

use std::time::Duration;

use primitives::Mutant;

use crate::{broken::Broken, model::Timeline};

/// The service's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The shortest session timeout granted (ZooKeeper: two ticks of 2 s).
    pub session_timeout_min: Duration,
    /// The longest session timeout granted (ZooKeeper: twenty ticks of 2 s).
    pub session_timeout_max: Duration,
    /// Data beyond this many bytes travels to the writer as a temporary object.
    pub message_payload_bytes_max: usize,
    /// How often unneeded temporary objects are swept while there are sessions. They are also swept
    /// when the last session has ended.
    pub temporary_sweep_period: Duration,
    /// How often containers and znodes with a time to live are checked for those to remove
    /// (ZooKeeper: `znode.container.checkIntervalMs`).
    pub container_check_period: Duration,
    /// Whether updates beyond the hard limit of a quota are refused (ZooKeeper: `enforceQuota`).
    pub enforces_quotas: bool,
    /// Where the data of znodes is stored.
    pub placement: DataPlacement,
    /// The timeline of a restored store, which the names of new objects contain.
    pub timeline: Option<Timeline>,
    /// How often a process with clients reads the log for slots that other processes distributed.
    /// `None` if every slot is announced to this process.
    pub log_poll_period: Option<Duration>,
    /// Whether the system store and the user store are one, and no other process uses them. Then
    /// one transaction decides requests, numbers them and applies them, where it can.
    pub applies_directly: bool,
    /// Wait and expiry times of locks.
    pub locks: LockOptions,
    /// A rule to drop, only for tests.
    #[doc(hidden)]
    pub mutant: Mutant<Broken>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session_timeout_min: Duration::from_secs(4),
            session_timeout_max: Duration::from_secs(40),
            message_payload_bytes_max: 128 * 1024,
            temporary_sweep_period: Duration::from_mins(10),
            container_check_period: Duration::from_mins(1),
            enforces_quotas: false,
            placement: DataPlacement::KeyValue,
            timeline: None,
            log_poll_period: None,
            applies_directly: false,
            locks: LockOptions::default(),
            mutant: Mutant::NONE,
        }
    }
}

/// Where the data of a znode is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPlacement {
    /// In the item: cheapest to read while data is small.
    KeyValue,
    /// In an object named after the update that wrote it: cheapest to store.
    Objects,
    /// In the item up to this many bytes, otherwise in an object.
    Hybrid {
        /// The largest data stored in the item, in bytes.
        inline_bytes_max: usize,
    },
}

/// Wait and expiry times of locks.
#[derive(Debug, Clone, Copy)]
pub struct LockOptions {
    /// How long a writer may hold a lock before others may break it.
    pub hold_max: Duration,
    /// The largest assumed difference between functions' clocks (the paper: 2 s).
    pub drift_allowance: Duration,
    /// The first wait for a held lock.
    pub wait_min: Duration,
    /// The longest wait between two attempts.
    pub wait_max: Duration,
    /// Whether writers first try without locks, where the store's transactions allow it: the
    /// decision and the new states are one write, on the condition that no znode has changed.
    pub is_optimistic: bool,
}

impl LockOptions {
    /// The defaults for writers that always take locks.
    pub fn locking() -> Self {
        Self {
            is_optimistic: false,
            ..Self::default()
        }
    }
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            hold_max: Duration::from_secs(5),
            drift_allowance: Duration::from_secs(2),
            wait_min: Duration::from_micros(200),
            wait_max: Duration::from_millis(100),
            is_optimistic: true,
        }
    }
}
