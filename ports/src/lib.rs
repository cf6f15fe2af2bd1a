//! What Landfast needs from a cloud, as traits.
//!
//! A port is a small trait whose documentation numbers what it promises. A provider implements it, a
//! service knows nothing else, and one contract suite per port ([`contract`]) holds every provider to the
//! numbers. Nothing in this crate does I/O, reads a clock or starts a task.
//!
//! Reading order: [`durability`] (what "done" means), [`key_value`], [`queue`], [`functions`], [`runtime`], [`code_store`], [`logs`], [`instances`],
//! [`clock`], [`objects`]; then the decorators that work around any port: [`metering`] and [`faults`]; and what providers say in the log
//! of what goes wrong for long: [`outage`].

pub mod clock;
pub mod code_store;
pub mod contract;
pub mod durability;
pub mod error;
pub mod faults;
pub mod functions;
pub mod instances;
pub mod key_value;
pub mod logs;
pub mod metering;
pub mod objects;
pub mod outage;
pub mod queue;
pub mod runtime;

pub use clock::{Clock, Entropy, Monotonic, Timestamp};
pub use code_store::CodeStore;
pub use durability::{Cost, DurabilityPoint, Externalize, Incarnation, Position, Receipt};
pub use error::{Error, ErrorKind, Result};
pub use functions::{Event, Functions, Handler};
pub use instances::Instances;
pub use key_value::{Condition, Item, Key, KeyValue, Update};
pub use logs::Logs;
pub use outage::Outage;
pub use queue::Queue;
pub use runtime::Runtime;
