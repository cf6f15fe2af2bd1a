//! The state that the ports of one world share: the store, the faults, the trace, randomness, and
//! the running invocations.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use fastrand::Rng;
use ports::{DurabilityPoint, Error, ErrorKind, Result};
use tokio::{sync::Notify, time::Instant};

use crate::{
    armed::Armed,
    config::Options,
    faults::{Faults, draw_within},
    invocation::Invocation,
    run::lock,
    store::{Durability, Store},
    trace::{Entry, Trace},
};

/// One cloud. Handles to its ports share it.
#[derive(Debug)]
pub(crate) struct Cloud {
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    pub(crate) armed: Mutex<Armed>,
    /// Notified when a queue may have messages.
    pub(crate) changed: Notify,
    /// Notified when an fsync ended or the store crashed.
    durable: Notify,
    /// Set at the first use of a clock, because virtual time exists only inside the run.
    origin: OnceLock<Instant>,
    random: Mutex<Rng>,
    store: Mutex<Store>,
    trace: Mutex<Trace>,
    running: Mutex<BTreeMap<u64, Arc<Invocation>>>,
}

impl Cloud {
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        Self {
            store: Mutex::new(Store::new(&options)),
            options,
            faults: Faults::default(),
            armed: Mutex::default(),
            changed: Notify::new(),
            durable: Notify::new(),
            origin: OnceLock::new(),
            random: Mutex::new(Rng::with_seed(seed)),
            trace: Mutex::default(),
            running: Mutex::default(),
        }
    }

    /// The time since the world began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.origin().elapsed()
    }

    pub(crate) async fn sleep_until(&self, moment: Duration) {
        tokio::time::sleep_until(*self.origin() + moment).await;
    }

    fn origin(&self) -> &Instant {
        self.origin.get_or_init(Instant::now)
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, Rng> {
        lock(&self.random)
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    pub(crate) fn trace(&self) -> MutexGuard<'_, Trace> {
        lock(&self.trace)
    }

    /// Records a call, or a step of the cloud itself.
    pub(crate) fn record(
        &self,
        operation: &'static str,
        subject: impl Into<String>,
        outcome: impl Into<Cow<'static, str>>,
    ) {
        let caller = Invocation::current()
            .map(|invocation| invocation.to_string())
            .unwrap_or_default();
        let (at, subject, outcome) = (self.elapsed(), subject.into(), outcome.into());
        self.trace().record(Entry {
            at,
            caller,
            operation,
            subject,
            outcome,
        });
    }

    pub(crate) fn started(&self, invocation: &Arc<Invocation>) {
        lock(&self.running).insert(invocation.number, Arc::clone(invocation));
    }

    pub(crate) fn ended(&self, invocation: &Invocation) {
        lock(&self.running).remove(&invocation.number);
    }

    /// The store's process dies and starts again at once; `kept` selects how much survives.
    pub(crate) fn crash(&self, kept: Kept) {
        self.lose("crash", kept);
        for invocation in lock(&self.running).values() {
            invocation.end();
        }
        if !self.options.arming_survives_crash {
            lock(&self.armed).disarm_all();
        }
        self.notify();
    }

    /// The store fails to make everything durable and returns to what it keeps. All processes live
    /// on.
    pub(crate) fn fall_back(&self, kept: Kept) {
        self.lose("fall back", kept);
        self.notify();
    }

    fn lose(&self, how: &'static str, kept: Kept) {
        let kept = {
            let store = self.store();
            let (durable, now) = (store.durable(), store.point().position.0);
            match kept {
                Kept::Durable => durable,
                Kept::SomeMore => self.random().u64(durable..=now),
            }
        };
        self.store().crash(kept);
        self.record(how, "store", format!("kept up to {kept}"));
    }

    fn notify(&self) {
        self.durable.notify_waiters();
        self.changed.notify_waiters();
    }

    /// Waits until everything up to `point` is durable. All waiting callers share one fsync.
    pub(crate) async fn wait_durable(self: &Arc<Self>, point: DurabilityPoint) -> Result<()> {
        loop {
            let woken = self.durable.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let durability = self.store().durability(point);
            match durability {
                Durability::Durable => return Ok(()),
                Durability::Lost => {
                    return Err(Error::new(
                        ErrorKind::Lost,
                        format!("externalize {point:?}"),
                    ));
                }
                Durability::Unknown => {
                    return Err(Error::invalid(format!("externalize {point:?}")));
                }
                Durability::Pending => self.flush(),
            }
            woken.await;
        }
    }

    /// Starts an fsync of all ordered mutations, unless one is running.
    fn flush(self: &Arc<Self>) {
        let Some(target) = self.store().begin_flush() else {
            return;
        };
        let duration = draw_within(&self.options.fsync, &mut self.random());
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            cloud.store().end_flush(target);
            cloud.durable.notify_waiters();
        });
    }
}

/// How many of the ordered mutations a crash keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The durable ones.
    Durable,
    /// The durable ones, and a random number of those after them.
    SomeMore,
}
