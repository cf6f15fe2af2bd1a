//! Meters function memory: invocations by category, and the memory of instances over time.
//!
//! On this machine instances run all the time, so their cost is memory times wall time. A cloud
//! bills each invocation instead. The meter therefore keeps both: the byte-seconds of instances that
//! run, and the invocations with the bytes that each category moved. A price book turns bytes into
//! billed time.
//!
//! From `infinistore.txt`, figure 10: the categories of cost.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;

use crate::{
    Clock, Monotonic, Result,
    instances::{Channel, Death, Instance, Instances, Limits, Region, Spec},
};

/// The reason for an invocation of a function of function memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// Reads, writes, and the moves of chunks that they cause.
    Io,
    /// Calls that keep an instance from being reclaimed.
    WarmUp,
    /// Chunks that are brought back after the death of an instance, and consistency checks.
    Recovery,
}

impl Category {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Io, Self::WarmUp, Self::Recovery];

    /// Its name in the status and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::WarmUp => "warm_up",
            Self::Recovery => "recovery",
        }
    }
}

/// The invocations of a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Invocations {
    /// Invocations that a cloud would bill. Failed ones count.
    pub count: u64,
    /// Bytes that they moved into or out of functions.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    bytes: AtomicU64,
}

/// An amount of bytes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// The bytes now.
    pub bytes: u64,
    /// The most bytes at any time.
    pub bytes_max: u64,
    /// Bytes times seconds until now.
    pub byte_seconds: u128,
}

#[derive(Debug)]
struct Level {
    bytes: u64,
    bytes_max: u64,
    byte_ns: u128,
    changed: Monotonic,
}

impl Level {
    fn change(&mut self, now: Monotonic, bytes: u64) {
        self.byte_ns += u128::from(self.bytes) * now.since(self.changed).as_nanos();
        self.changed = now;
        self.bytes = bytes;
        self.bytes_max = self.bytes_max.max(bytes);
    }
}

/// The meter of function memory. Parts of a service share one.
#[derive(Debug)]
pub struct FunctionMemoryMeter {
    clock: Arc<dyn Clock>,
    invocations: [Counter; Category::ALL.len()],
    instance_bytes: AtomicU64,
    running: Mutex<Level>,
    resident: Mutex<Level>,
    stored: Mutex<Level>,
}

/// The counts of a meter at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FunctionMemoryUsage {
    invocations: [Invocations; Category::ALL.len()],
    /// The memory limit of the latest instance; 0: there was none.
    pub instance_bytes: u64,
    /// The memory of instances that run, by their limits.
    pub running: Amount,
    /// The content that is in function memory, without parity.
    pub resident: Amount,
    /// The durable copies that were written since the start, with parity.
    pub stored: Amount,
}

impl FunctionMemoryUsage {
    /// The invocations of a category.
    pub fn of(&self, category: Category) -> Invocations {
        self.invocations[category as usize]
    }
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
pub struct Counted {
    meter: Arc<FunctionMemoryMeter>,
    level: fn(&FunctionMemoryMeter) -> &Mutex<Level>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let less = |bytes: u64| bytes.saturating_sub(self.bytes);
        self.meter.change((self.level)(&self.meter), less);
    }
}

impl FunctionMemoryMeter {
    /// A meter that reads the time from `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let level = || {
            Mutex::new(Level {
                bytes: 0,
                bytes_max: 0,
                byte_ns: 0,
                changed: clock.monotonic(),
            })
        };
        let (running, resident, stored) = (level(), level(), level());
        Arc::new(Self {
            invocations: Default::default(),
            instance_bytes: AtomicU64::new(0),
            running,
            resident,
            stored,
            clock,
        })
    }

    /// Counts `count` invocations that move `bytes` bytes in all. Call it where they are issued.
    pub fn invoked(&self, category: Category, count: u64, bytes: u64) {
        let counter = &self.invocations[category as usize];
        counter.count.fetch_add(count, Ordering::Relaxed);
        counter.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts content in function memory until the result is dropped.
    pub fn resident(self: &Arc<Self>, bytes: u64) -> Counted {
        self.counted(|meter| &meter.resident, bytes)
    }

    /// Counts a durable copy that was written.
    pub fn stored(&self, bytes: u64) {
        self.change(&self.stored, |stored| stored.saturating_add(bytes));
    }

    /// Counts a durable copy that was deleted, and had been counted when it was written.
    pub fn deleted(&self, bytes: u64) {
        self.change(&self.stored, |stored| stored.saturating_sub(bytes));
    }

    /// The counts so far.
    pub fn usage(&self) -> FunctionMemoryUsage {
        let amount = |level| {
            self.change(level, |bytes| bytes);
            let level = locked(level);
            Amount {
                bytes: level.bytes,
                bytes_max: level.bytes_max,
                byte_seconds: level.byte_ns / 1_000_000_000,
            }
        };
        FunctionMemoryUsage {
            invocations: self.invocations.each_ref().map(|counter| Invocations {
                count: counter.count.load(Ordering::Relaxed),
                bytes: counter.bytes.load(Ordering::Relaxed),
            }),
            instance_bytes: self.instance_bytes.load(Ordering::Relaxed),
            running: amount(&self.running),
            resident: amount(&self.resident),
            stored: amount(&self.stored),
        }
    }

    fn counted(
        self: &Arc<Self>,
        level: fn(&FunctionMemoryMeter) -> &Mutex<Level>,
        bytes: u64,
    ) -> Counted {
        self.change(level(self), |counted| counted.saturating_add(bytes));
        Counted {
            meter: Arc::clone(self),
            level,
            bytes,
        }
    }

    fn change(&self, level: &Mutex<Level>, change: impl FnOnce(u64) -> u64) {
        let mut level = locked(level);
        let bytes = change(level.bytes);
        level.change(self.clock.monotonic(), bytes);
    }
}

fn locked(level: &Mutex<Level>) -> std::sync::MutexGuard<'_, Level> {
    level.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the memory of the instances that run. It counts an instance until its last handle is
/// dropped.
#[derive(Debug)]
pub struct MeteredInstances {
    inner: Arc<dyn Instances>,
    meter: Arc<FunctionMemoryMeter>,
}

impl MeteredInstances {
    /// Counts the instances of `inner` into `meter`.
    pub fn new(inner: Arc<dyn Instances>, meter: Arc<FunctionMemoryMeter>) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl Instances for MeteredInstances {
    async fn start(&self, spec: &Spec) -> Result<Arc<dyn Instance>> {
        let inner = self.inner.start(spec).await?;
        let bytes = spec.memory_bytes;
        self.meter.instance_bytes.store(bytes, Ordering::Relaxed);
        let counted = self.meter.counted(|meter| &meter.running, bytes);
        Ok(Arc::new(MeteredInstance {
            inner,
            _counted: counted,
        }))
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}

#[derive(Debug)]
struct MeteredInstance {
    inner: Arc<dyn Instance>,
    _counted: Counted,
}

#[async_trait]
impl Instance for MeteredInstance {
    async fn channel(&self) -> Result<Arc<dyn Channel>> {
        self.inner.channel().await
    }

    fn memory(&self) -> Option<Arc<dyn Region>> {
        self.inner.memory()
    }

    async fn died(&self) -> Death {
        self.inner.died().await
    }

    fn end(&self) {
        self.inner.end();
    }
}
