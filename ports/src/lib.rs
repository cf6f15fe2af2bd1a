//! Traits for the cloud services that Landfast needs.
//!
//! A port is a small trait whose documentation numbers its promises. A provider implements it, and
//! a service knows nothing else of the provider. One contract suite per port ([`contract`]) holds
//! every provider to the numbers. Nothing in this crate does I/O, reads a clock or starts a task.
//!
//! Reading order: [`durability`] (the meaning of "done"), [`key_value`], [`queue`], [`functions`],
//! [`runtime`], [`code_store`], [`logs`], [`instances`], [`clock`], [`objects`]. Then the decorators,
//! which work around any provider: [`decorate`], [`metering`] and [`faults`]. [`log_throttle`] decides
//! when a provider logs a failure that lasts.

pub mod clock;
pub mod code_store;
#[cfg(feature = "contract")]
pub mod contract;
pub mod decorate;
pub mod durability;
pub mod error;
#[cfg(feature = "contract")]
pub mod faults;
pub mod functions;
pub mod instances;
pub mod key_value;
pub mod log_throttle;
pub mod logs;
pub mod metering;
pub mod objects;
pub mod queue;
pub mod runtime;
pub mod volume_mounts;

pub use clock::{Clock, Entropy, Monotonic, Timestamp};
pub use code_store::CodeStore;
pub use durability::{DurabilityPoint, Externalize, Incarnation, Position, Receipt};
pub use error::{Error, ErrorKind, Result};
pub use functions::{Event, Functions, Handler};
pub use instances::Instances;
pub use key_value::{Condition, Item, Key, KeyValue, Read, Update};
pub use log_throttle::LogThrottle;
pub use logs::Logs;
pub use queue::{Queue, QueueAdmin};
pub use runtime::Runtime;
pub use volume_mounts::{VolumeMount, VolumeMounts};
