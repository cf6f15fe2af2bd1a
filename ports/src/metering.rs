//! Metering: counts what a service requests of its ports, and prices it as a cloud would.
//!
//! Decorators around the ports count calls, items, bytes and billing units into one [`Meter`],
//! without locks. A [`PriceBook`] (data: one dated file per provider and region) turns a [`Usage`]
//! into money. Tests can therefore bound the price of an operation and of an idle hour.
//!
//! Invariants
//! - A decorator changes no answer: it passes the contract of the port it wraps.
//! - A call counts once it was made, whether it succeeded or not. A refused condition is billed as
//!   the write it would have been, as DynamoDB does.
//! - Units are rounded up as clouds round them: per item read or written, per page scanned, per
//!   request sent. Sums of bytes would not show this.
//!
//! Not counted: calls that a provider makes on our behalf, such as a queue trigger's own polling.
//!
//! The model is `faaskeeper.txt`, section 6 (table 4).

mod functions;
mod key_value;
mod objects;
mod prices;
mod queue;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

pub use functions::MeteredFunctions;
pub use key_value::MeteredKeyValue;
pub use objects::MeteredObjects;
pub use prices::{Bill, BookError, Money, Price, PriceBook, StoredBytes};
pub use queue::{MeteredQueue, MeteredQueueAdmin};

/// A call of a port that is counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(
    missing_docs,
    reason = "each is the method of its port that has its name"
)]
pub enum Operation {
    KeyValueGet,
    KeyValueScan,
    KeyValueUpdate,
    KeyValueTransact,
    KeyValueWriteBatch,
    /// Waiting for a durability point, of any port.
    Externalize,
    QueueCreate,
    QueueSend,
    QueueReceive,
    QueueReady,
    QueueAcknowledge,
    QueueRelease,
    QueueExtend,
    QueueDeadLetters,
    QueueRedrive,
    QueuePurge,
    QueueBlocked,
    QueueBacklog,
    FunctionInvoke,
    FunctionSend,
    FunctionArm,
    FunctionDisarm,
    /// One run of a function, for any cause.
    FunctionRun,
    ObjectPut,
    ObjectGet,
    ObjectList,
    ObjectDelete,
    ObjectCopy,
}

impl Operation {
    /// All of them, in order.
    pub const ALL: [Self; 28] = [
        Self::KeyValueGet,
        Self::KeyValueScan,
        Self::KeyValueUpdate,
        Self::KeyValueTransact,
        Self::KeyValueWriteBatch,
        Self::Externalize,
        Self::QueueCreate,
        Self::QueueSend,
        Self::QueueReceive,
        Self::QueueReady,
        Self::QueueAcknowledge,
        Self::QueueRelease,
        Self::QueueExtend,
        Self::QueueDeadLetters,
        Self::QueueRedrive,
        Self::QueuePurge,
        Self::QueueBlocked,
        Self::QueueBacklog,
        Self::FunctionInvoke,
        Self::FunctionSend,
        Self::FunctionArm,
        Self::FunctionDisarm,
        Self::FunctionRun,
        Self::ObjectPut,
        Self::ObjectGet,
        Self::ObjectList,
        Self::ObjectDelete,
        Self::ObjectCopy,
    ];

    /// Its name in metrics: `key_value.get`.
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyValueGet => "key_value.get",
            Self::KeyValueScan => "key_value.scan",
            Self::KeyValueUpdate => "key_value.update",
            Self::KeyValueTransact => "key_value.transact",
            Self::KeyValueWriteBatch => "key_value.write_batch",
            Self::Externalize => "externalize",
            Self::QueueCreate => "queue.create",
            Self::QueueSend => "queue.send",
            Self::QueueReceive => "queue.receive",
            Self::QueueReady => "queue.ready",
            Self::QueueAcknowledge => "queue.acknowledge",
            Self::QueueRelease => "queue.release",
            Self::QueueExtend => "queue.extend",
            Self::QueueDeadLetters => "queue.dead_letters",
            Self::QueueRedrive => "queue.redrive",
            Self::QueuePurge => "queue.purge",
            Self::QueueBlocked => "queue.blocked",
            Self::QueueBacklog => "queue.backlog",
            Self::FunctionInvoke => "functions.invoke",
            Self::FunctionSend => "functions.send",
            Self::FunctionArm => "functions.arm",
            Self::FunctionDisarm => "functions.disarm",
            Self::FunctionRun => "functions.run",
            Self::ObjectPut => "objects.put",
            Self::ObjectGet => "objects.get",
            Self::ObjectList => "objects.list",
            Self::ObjectDelete => "objects.delete",
            Self::ObjectCopy => "objects.copy",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The size of one billing unit. See [`PriceBook::unit_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitBytes {
    /// Bytes of one item that one read unit covers.
    pub read: u64,
    /// Bytes of one item that one write unit covers.
    pub write: u64,
    /// Bytes that one queue request covers.
    pub message: u64,
}

impl Default for UnitBytes {
    /// Those of AWS.
    fn default() -> Self {
        Self {
            read: 4 << 10,
            write: 1 << 10,
            message: 64 << 10,
        }
    }
}

/// The counts of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Calls made.
    pub calls: u64,
    /// Calls that ended in an error.
    pub failures: u64,
    /// Items, messages or objects that they carried.
    pub items: u64,
    /// Bytes that they carried, in either direction.
    pub bytes: u64,
    /// Billing units: whole [`UnitBytes`] per item, requests elsewhere.
    pub units: u64,
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    failures: AtomicU64,
    items: AtomicU64,
    bytes: AtomicU64,
    units: AtomicU64,
}

/// Counts without locks. Decorators share one whose sum matters.
#[derive(Debug, Default)]
pub struct Meter {
    unit_bytes: UnitBytes,
    counters: [Counter; Operation::ALL.len()],
    compute_mb_ms: AtomicU64,
}

impl Meter {
    /// A meter at zero that counts in these units.
    pub fn new(unit_bytes: UnitBytes) -> Self {
        Self {
            unit_bytes,
            ..Self::default()
        }
    }

    /// The counts so far.
    pub fn usage(&self) -> Usage {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            counts: Operation::ALL.map(|operation| {
                let counter = &self.counters[operation as usize];
                Count {
                    calls: load(&counter.calls),
                    failures: load(&counter.failures),
                    items: load(&counter.items),
                    bytes: load(&counter.bytes),
                    units: load(&counter.units),
                }
            }),
            compute_mb_ms: load(&self.compute_mb_ms),
        }
    }

    /// Adds one call's counts, `calls` included.
    fn count(&self, operation: Operation, count: Count) {
        let counter = &self.counters[operation as usize];
        for (counter, amount) in [
            (&counter.calls, count.calls),
            (&counter.failures, count.failures),
            (&counter.items, count.items),
            (&counter.bytes, count.bytes),
            (&counter.units, count.units),
        ] {
            if amount > 0 {
                counter.fetch_add(amount, Ordering::Relaxed);
            }
        }
    }

    /// Counts a call before it is made, so that an abandoned call counts too.
    fn call(&self, operation: Operation) {
        self.count(
            operation,
            Count {
                calls: 1,
                ..Count::default()
            },
        );
    }

    /// Counts the end of one request to queues with `items` messages of `bytes` in all.
    fn ended_request<T>(
        &self,
        operation: Operation,
        result: &crate::Result<T>,
        items: usize,
        bytes: usize,
    ) {
        let unit = self.unit_bytes.message;
        self.ended(operation, result, |_| Carried::request(items, bytes, unit));
    }

    /// Counts the end of a call: its items, bytes and units, or a failure.
    fn ended<T, E>(
        &self,
        operation: Operation,
        result: &Result<T, E>,
        carried: impl FnOnce(&T) -> Carried,
    ) {
        let count = match result {
            Ok(value) => {
                let Carried {
                    items,
                    bytes,
                    units,
                } = carried(value);
                Count {
                    items,
                    bytes,
                    units,
                    ..Count::default()
                }
            }
            Err(_) => Count {
                failures: 1,
                ..Count::default()
            },
        };
        self.count(operation, count);
    }

    fn computed(&self, mb_ms: u64) {
        self.compute_mb_ms.fetch_add(mb_ms, Ordering::Relaxed);
    }
}

/// The content of a successful call.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    items: u64,
    bytes: u64,
    units: u64,
}

impl Carried {
    /// `bytes` of one item, in whole units of `unit_bytes`, at least one.
    fn item(bytes: usize, unit_bytes: u64) -> Self {
        let bytes = bytes as u64;
        Self {
            items: 1,
            bytes,
            units: bytes.div_ceil(unit_bytes.max(1)).max(1),
        }
    }

    /// The same for several.
    fn items(sizes: impl IntoIterator<Item = usize>, unit_bytes: u64) -> Self {
        sizes.into_iter().fold(Self::default(), |sum, bytes| {
            let one = Self::item(bytes, unit_bytes);
            Self {
                items: sum.items + 1,
                bytes: sum.bytes + one.bytes,
                units: sum.units + one.units,
            }
        })
    }

    /// One request of `items` and `bytes` together, in whole units.
    fn request(items: usize, bytes: usize, unit_bytes: u64) -> Self {
        Self {
            items: items as u64,
            ..Self::item(bytes, unit_bytes)
        }
    }
}

/// The counts of a meter at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    counts: [Count; Operation::ALL.len()],
    /// Memory times duration of function runs, in megabyte-milliseconds.
    pub compute_mb_ms: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            counts: [Count::default(); Operation::ALL.len()],
            compute_mb_ms: 0,
        }
    }
}

impl Usage {
    /// The counts of `operation`.
    pub fn of(&self, operation: Operation) -> Count {
        self.counts[operation as usize]
    }

    /// Every operation that was called, with its count.
    pub fn operations(&self) -> impl Iterator<Item = (Operation, Count)> + '_ {
        Operation::ALL
            .into_iter()
            .map(|operation| (operation, self.of(operation)))
            .filter(|(_, count)| count.calls > 0)
    }

    /// Calls of all operations together: zero means idle.
    pub fn calls(&self) -> u64 {
        self.counts.iter().map(|count| count.calls).sum()
    }

    /// The counts between `earlier` and this, both of one meter.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut between = self.clone();
        for (count, earlier) in between.counts.iter_mut().zip(&earlier.counts) {
            count.calls -= earlier.calls;
            count.failures -= earlier.failures;
            count.items -= earlier.items;
            count.bytes -= earlier.bytes;
            count.units -= earlier.units;
        }
        between.compute_mb_ms -= earlier.compute_mb_ms;
        between
    }
}
