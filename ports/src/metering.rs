//! Metering: counts what a service requests of its ports.
//!
//! Decorators around the ports count calls, failures, items and bytes into one [`Meter`], without
//! locks.
//!
//! Invariants
//! - A decorator changes no answer: it passes the contract of the port it wraps.
//! - A call counts once it was made, whether it succeeded or not, also if its caller gave it up.
//!
//! Not counted: calls that a provider makes on our behalf, such as a queue trigger's own polling.

pub mod function_memory;
mod functions;
mod key_value;
mod objects;
mod queue;
#[cfg(test)]
mod tests;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    DurabilityPoint, Externalize, Functions, KeyValue, Queue, Result as PortResult,
    decorate::Decorator, objects::ObjectStore,
};

macro_rules! operations {
    ($($(#[$doc:meta])* $operation:ident $name:literal,)*) => {
        /// A call of a port that is counted separately.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(
            missing_docs,
            reason = "each is the method of its port that has its name"
        )]
        pub enum Operation {
            $($(#[$doc])* $operation,)*
        }

        impl Operation {
            /// All of them, in order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$operation),*];

            /// Its name in metrics: `key_value.get`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$operation => $name,)*
                }
            }
        }
    };
}

operations! {
    KeyValueGet "key_value.get",
    KeyValueScan "key_value.scan",
    KeyValueUpdate "key_value.update",
    KeyValueTransact "key_value.transact",
    /// Waiting for a durability point, of any port.
    Externalize "externalize",
    QueueCreate "queue.create",
    QueueSend "queue.send",
    QueueReceive "queue.receive",
    QueueReady "queue.ready",
    QueueAcknowledge "queue.acknowledge",
    QueueRelease "queue.release",
    QueueExtend "queue.extend",
    FunctionInvoke "functions.invoke",
    FunctionSend "functions.send",
    FunctionArm "functions.arm",
    FunctionDisarm "functions.disarm",
    /// One run of a function, for any cause.
    FunctionRun "functions.run",
    ObjectPut "objects.put",
    ObjectGet "objects.get",
    ObjectList "objects.list",
    ObjectDelete "objects.delete",
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
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    failures: AtomicU64,
    items: AtomicU64,
    bytes: AtomicU64,
}

/// Counts without locks. Decorators share one whose sum matters.
#[derive(Debug, Default)]
pub struct Meter([Counter; Operation::ALL.len()]);

/// The items and bytes that a successful call carried.
type Carried = (usize, usize);

impl Meter {
    /// The counts so far.
    pub fn usage(&self) -> Usage {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage(self.0.each_ref().map(|counter| Count {
            calls: load(&counter.calls),
            failures: load(&counter.failures),
            items: load(&counter.items),
            bytes: load(&counter.bytes),
        }))
    }

    /// Makes `call` and counts it. The call itself is counted first, so that an abandoned one
    /// counts too.
    async fn measure<T, E>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, E>>,
        carried: impl FnOnce(&T) -> Carried,
    ) -> Result<T, E> {
        self.begun(operation);
        let result = call.await;
        self.ended(operation, &result, carried);
        result
    }

    /// As [`Meter::measure`], for a call that carries nothing.
    async fn count<T, E>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.measure(operation, call, |_| (0, 0)).await
    }

    fn begun(&self, operation: Operation) {
        self.0[operation as usize]
            .calls
            .fetch_add(1, Ordering::Relaxed);
    }

    fn ended<T, E>(
        &self,
        operation: Operation,
        result: &Result<T, E>,
        carried: impl FnOnce(&T) -> Carried,
    ) {
        let counter = &self.0[operation as usize];
        match result {
            Ok(value) => {
                let (items, bytes) = carried(value);
                counter.items.fetch_add(items as u64, Ordering::Relaxed);
                counter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(_) => _ = counter.failures.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// The counts of a meter at some moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage([Count; Operation::ALL.len()]);

impl Usage {
    /// The counts of `operation`.
    pub fn of(&self, operation: Operation) -> Count {
        self.0[operation as usize]
    }

    /// Every operation that was called, with its count.
    pub fn operations(&self) -> impl Iterator<Item = (Operation, Count)> + '_ {
        Operation::ALL
            .into_iter()
            .map(|operation| (operation, self.of(operation)))
            .filter(|(_, count)| count.calls > 0)
    }

    /// The counts of both meters together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (count, more) in sum.0.iter_mut().zip(other.0) {
            count.calls += more.calls;
            count.failures += more.failures;
            count.items += more.items;
            count.bytes += more.bytes;
        }
        sum
    }

    /// Calls of all operations together: zero means idle.
    pub fn calls(&self) -> u64 {
        self.0.iter().map(|count| count.calls).sum()
    }
}

/// Counts the calls of the port it wraps, with the items and bytes that they carry.
#[derive(Debug)]
pub struct Metered<P: ?Sized> {
    inner: Arc<P>,
    meter: Arc<Meter>,
}

/// A store whose calls are counted.
pub type MeteredKeyValue = Metered<dyn KeyValue>;
/// Queues whose calls are counted.
pub type MeteredQueue = Metered<dyn Queue>;
/// Functions whose calls are counted.
pub type MeteredFunctions = Metered<dyn Functions>;
/// An object store whose calls are counted, with their objects and bytes.
pub type MeteredObjects = Metered<dyn ObjectStore>;

impl<P: ?Sized> Metered<P> {
    /// Counts the calls of `inner` into `meter`.
    pub fn new(inner: Arc<P>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

impl<P: Externalize + ?Sized> Decorator for Metered<P> {
    type Port = P;

    fn inner(&self) -> &P {
        &self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> PortResult<()> {
        let call = self.inner.externalize(point);
        self.meter.count(Operation::Externalize, call).await
    }
}
