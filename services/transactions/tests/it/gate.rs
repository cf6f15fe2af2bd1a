//! A key-value port that holds calls back, so that tests can examine the state between two steps of
//! a commit.

use std::{
    future::pending,
    sync::{Arc, Mutex},
};

use ports::{
    DurabilityPoint, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{KeyValueLimits, Page, Read, Scan, Transacted, Updated},
};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Updates,
    Gets,
    Scans,
    /// The answers of updates: the updates themselves are done.
    Answers,
}

#[derive(Debug)]
pub(crate) struct Gate {
    inner: Arc<dyn KeyValue>,
    /// The held calls: of this kind, to partitions with this prefix.
    closed: watch::Sender<Option<(Held, Vec<u8>)>>,
    waiting: watch::Sender<usize>,
    /// The number of calls that are still answered; `None` means all.
    calls_left: Mutex<Option<usize>>,
    /// The next update of a partition with this prefix is refused for lack of space.
    full: Mutex<Option<Vec<u8>>>,
    limits: KeyValueLimits,
    /// Transactions on their way, which arrive when the test says so.
    late: Mutex<Late>,
}

#[derive(Debug, Default)]
struct Late {
    next: Option<Fault>,
    transacted: Vec<Update>,
}

/// The fate of a transaction of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Delayed,
    AnswerLost,
}

impl Gate {
    /// A store without transactions over several partitions: a commit goes step by step.
    pub(crate) fn new(inner: Arc<dyn KeyValue>) -> Arc<Self> {
        let limits = KeyValueLimits {
            transact_across_partitions: false,
            ..*inner.limits()
        };
        Self::with(inner, limits)
    }

    /// A store with such transactions: commits go in groups.
    pub(crate) fn of_groups(inner: Arc<dyn KeyValue>) -> Arc<Self> {
        let limits = *inner.limits();
        Self::with(inner, limits)
    }

    fn with(inner: Arc<dyn KeyValue>, limits: KeyValueLimits) -> Arc<Self> {
        Arc::new(Self {
            inner,
            limits,
            late: Mutex::default(),
            closed: watch::Sender::new(None),
            waiting: watch::Sender::new(0),
            calls_left: Mutex::default(),
            full: Mutex::default(),
        })
    }

    /// Holds calls from now on.
    pub(crate) fn close(&self, held: Held, partition: &[u8]) {
        self.closed.send_replace(Some((held, partition.to_vec())));
    }

    /// Answers `calls` calls, and none after them: to its callers the store is dead.
    pub(crate) fn die_after(&self, calls: usize) {
        *self.calls_left.lock().expect("no panic") = Some(calls);
    }

    /// Refuses the next update there for lack of space.
    pub(crate) fn refuse_one(&self, partition: &[u8]) {
        *self.full.lock().expect("no panic") = Some(partition.to_vec());
    }

    /// Loses the answer of the next transaction, which arrives only when [`Gate::deliver`] is
    /// called.
    pub(crate) fn delay_one(&self) {
        self.late.lock().expect("no panic").next = Some(Fault::Delayed);
    }

    /// Executes the next transaction, and loses its answer.
    pub(crate) fn lose_one(&self) {
        self.late.lock().expect("no panic").next = Some(Fault::AnswerLost);
    }

    /// Delivers the delayed transaction. Returns whether it changed anything.
    pub(crate) async fn deliver(&self) -> bool {
        let updates = std::mem::take(&mut self.late.lock().expect("no panic").transacted);
        assert!(!updates.is_empty(), "something was delayed");
        matches!(
            self.inner.transact(updates).await.expect("calm"),
            Transacted::Done { .. }
        )
    }

    /// Lets all calls pass.
    pub(crate) fn open(&self) {
        self.closed.send_replace(None);
    }

    /// Waits until a call is held.
    pub(crate) async fn holds(&self) {
        self.waiting
            .subscribe()
            .wait_for(|waiting| *waiting > 0)
            .await
            .expect("the gate is there");
    }

    async fn count(&self) {
        let lives = match &mut *self.calls_left.lock().expect("no panic") {
            Some(0) => false,
            Some(calls) => {
                *calls -= 1;
                true
            }
            None => true,
        };
        if !lives {
            self.waiting.send_modify(|waiting| *waiting += 1);
            pending::<()>().await;
        }
    }

    async fn pass(&self, held: Held, partition: &[u8]) {
        self.count().await;
        self.hold(held, partition).await;
    }

    async fn hold(&self, held: Held, partition: &[u8]) {
        let is_held = |closed: &Option<(Held, Vec<u8>)>| {
            closed
                .as_ref()
                .is_some_and(|(kind, prefix)| *kind == held && partition.starts_with(prefix))
        };
        if is_held(&self.closed.borrow()) {
            self.waiting.send_modify(|waiting| *waiting += 1);
            self.closed
                .subscribe()
                .wait_for(|closed| !is_held(closed))
                .await
                .expect("the gate is there");
            self.waiting.send_modify(|waiting| *waiting -= 1);
        }
    }
}

impl Decorator for Gate {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.count().await;
        self.inner.externalize(point).await
    }
}

impl KeyValueDecorator for Gate {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.pass(Held::Gets, key.partition()).await;
        self.inner.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.pass(Held::Scans, &scan.partition).await;
        self.inner.scan(scan).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.pass(Held::Updates, update.key.partition()).await;
        let partition = update.key.partition().to_vec();
        let is_full = |full: &mut Vec<u8>| partition.starts_with(full);
        if self
            .full
            .lock()
            .expect("no panic")
            .take_if(is_full)
            .is_some()
        {
            return Err(Error::new(ErrorKind::NoRoom, "the gate"));
        }
        let updated = self.inner.update(update).await;
        self.hold(Held::Answers, &partition).await;
        updated
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.count().await;
        let fault = self.late.lock().expect("no panic").next.take();
        let unknown = || Err(Error::new(ErrorKind::OutcomeUnknown, "the gate"));
        if fault == Some(Fault::Delayed) {
            self.late.lock().expect("no panic").transacted = updates;
            return unknown();
        }
        let transacted = self.inner.transact(updates).await;
        if fault == Some(Fault::AnswerLost) {
            unknown()
        } else {
            transacted
        }
    }

    fn limits(&self) -> &KeyValueLimits {
        &self.limits
    }
}
