//! The path to a far store: calls are slow, repeated, answered late or never, refused for a while,
//! or refused permanently.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ports::{
    Clock, DurabilityPoint, Entropy, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Page, Read, Scan, SharedKeyValue, Transacted, Updated},
};
use simulated::World;

/// A key with this in its name is refused permanently.
pub const SPOILT: &str = "spoilt";

/// The delay of an error for a call that is not performed.
const REFUSAL: Duration = Duration::from_millis(20);

/// The faults on the path. Clones share them.
#[derive(Clone)]
pub struct FarFaults(Arc<State>);

struct State {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    is_stormy: AtomicBool,
    is_away: AtomicBool,
    refused: Mutex<Refused>,
}

/// Calls that are refused permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Writes to keys with [`SPOILT`] in their names.
    Spoilt,
    /// Writes of several items together; runs write in no other way.
    Everything,
    /// Writes of single items: claims and heartbeats.
    Renewals,
    /// Reads.
    Looks,
    /// None any more.
    Nothing,
}

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallFault {
    Pass,
    Refuse(ErrorKind),
    LoseAnswer,
    /// It is performed this much later.
    Delay(u64),
    /// It is answered this much later.
    AnswerLate(u64),
    /// It is performed, and once more this much later, even if its caller has died meanwhile.
    Twice(u64),
}

impl fmt::Debug for FarFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FarFaults")
    }
}

impl FarFaults {
    /// No faults yet, over the far store of `world`.
    pub fn over(world: &World) -> Self {
        let (clock, entropy) = (world.clock(), world.entropy());
        Self(Arc::new(State {
            clock,
            entropy,
            is_stormy: false.into(),
            is_away: false.into(),
            refused: Refused::Spoilt.into(),
        }))
    }

    /// Enables occasional faults.
    pub fn blow(&self) {
        self.0.is_stormy.store(true, Ordering::Relaxed);
    }

    /// Disables all faults except permanent refusals.
    pub fn calm(&self) {
        self.0.is_stormy.store(false, Ordering::Relaxed);
        self.0.is_away.store(false, Ordering::Relaxed);
    }

    /// Sets the permanent refusals from now on.
    pub fn refuse(&self, refused: Refused) {
        *self
            .0
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = refused;
    }

    fn is_refused(&self, updates: &[Update]) -> bool {
        let is_spoilt = |update: &Update| {
            update
                .key
                .sort()
                .windows(SPOILT.len())
                .any(|part| part == SPOILT.as_bytes())
        };
        match *self
            .0
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Refused::Spoilt => updates.iter().any(is_spoilt),
            Refused::Everything => updates.len() > 1,
            Refused::Renewals => updates.len() == 1,
            Refused::Looks => updates.is_empty(),
            Refused::Nothing => false,
        }
    }

    /// Makes the store unreachable until `come_back` or `calm`.
    pub fn leave(&self) {
        self.0.is_away.store(true, Ordering::Relaxed);
    }

    /// Makes it reachable again.
    pub fn come_back(&self) {
        self.0.is_away.store(false, Ordering::Relaxed);
    }

    /// Whether a call receivers the store fails too: it is refused, or performed without an answer.
    pub(crate) fn strikes(&self) -> Option<ErrorKind> {
        match self.fault(&[]) {
            CallFault::Refuse(kind) => Some(kind),
            CallFault::LoseAnswer => Some(ErrorKind::OutcomeUnknown),
            _ => None,
        }
    }

    fn fault(&self, updates: &[Update]) -> CallFault {
        let State {
            entropy,
            is_stormy,
            is_away,
            ..
        } = &*self.0;
        if is_away.load(Ordering::Relaxed) {
            return CallFault::Refuse(ErrorKind::Unavailable {
                retry_after_ms: None,
            });
        }
        if self.is_refused(updates) {
            return CallFault::Refuse(ErrorKind::Invalid);
        }
        if !is_stormy.load(Ordering::Relaxed) {
            return CallFault::Pass;
        }
        match entropy.below(100) {
            0..10 => CallFault::Refuse(ErrorKind::Unavailable {
                retry_after_ms: None,
            }),
            10..20 => CallFault::LoseAnswer,
            20..35 => CallFault::Delay(entropy.below(60)),
            35..45 => CallFault::AnswerLate(entropy.below(300)),
            45..60 => CallFault::Twice(entropy.below(500)),
            _ => CallFault::Pass,
        }
    }
}

/// A far store with faults on its path.
#[derive(Debug)]
pub struct FarStore {
    inner: SharedKeyValue,
    far_faults: FarFaults,
    /// One process is partitioned from it.
    is_cut: Arc<AtomicBool>,
}

impl FarStore {
    /// The far store of `world` as one process reaches it, until it is cut off.
    pub fn of(world: &World, far_faults: &FarFaults, is_cut: &Arc<AtomicBool>) -> Self {
        Self {
            inner: world.key_value(),
            far_faults: far_faults.clone(),
            is_cut: Arc::clone(is_cut),
        }
    }

    fn fault(&self, updates: &[Update]) -> CallFault {
        if self.is_cut.load(Ordering::Relaxed) {
            return CallFault::Refuse(ErrorKind::Unavailable {
                retry_after_ms: None,
            });
        }
        self.far_faults.fault(updates)
    }

    async fn travel<T>(
        &self,
        fault: CallFault,
        made: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let sleep = |ms| self.far_faults.0.clock.sleep(Duration::from_millis(ms));
        match fault {
            CallFault::Pass | CallFault::Twice(_) => made.await,
            CallFault::Delay(ms) => {
                sleep(ms).await;
                made.await
            }
            CallFault::AnswerLate(ms) => {
                let answer = made.await;
                sleep(ms).await;
                answer
            }
            CallFault::Refuse(kind) => {
                self.far_faults.0.clock.sleep(REFUSAL).await;
                Err(Error::new(kind, "reach the far store"))
            }
            CallFault::LoseAnswer => {
                drop(made.await);
                Err(Error::new(
                    ErrorKind::OutcomeUnknown,
                    "hear from the far store",
                ))
            }
        }
    }
}

impl Decorator for FarStore {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.travel(self.fault(&[]), self.inner.externalize(point))
            .await
    }
}

impl KeyValueDecorator for FarStore {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.travel(self.fault(&[]), self.inner.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.travel(self.fault(&[]), self.inner.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.travel(
            self.fault(std::slice::from_ref(&update)),
            self.inner.update(update),
        )
        .await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let fault = self.fault(&updates);
        if let CallFault::Twice(ms) = fault {
            let (inner, clock) = (
                Arc::clone(&self.inner),
                Arc::clone(&self.far_faults.0.clock),
            );
            let again = updates.clone();
            tokio::spawn(async move {
                clock.sleep(Duration::from_millis(ms)).await;
                // The result is discarded.
                drop(inner.transact(again).await);
            });
        }
        self.travel(fault, self.inner.transact(updates)).await
    }
}
