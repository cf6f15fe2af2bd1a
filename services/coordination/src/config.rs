//! What can be set, and the defaults: ZooKeeper's where it has them.

use std::time::Duration;

use crate::{broken::Broken, node::LockOptions, user_store::DataPlacement};

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
