//! The way to a far store: calls are slow, come twice, are answered late or never, are refused for a while, and some for good.

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
    key_value::{Batch, Batched, Page, Read, Scan, SharedKeyValue, Transacted, Updated},
};
use simulated::World;

/// Whoever writes a key with this in its name is refused for good.
pub const SPOILT: &str = "spoilt";

/// Until a call that is not made is told so.
const REFUSAL: Duration = Duration::from_millis(20);

/// What happens on the way. Clones share it.
#[derive(Clone)]
pub struct Weather(Arc<State>);

struct State {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    is_stormy: AtomicBool,
    is_away: AtomicBool,
    refused: Mutex<Refused>,
}

/// What is refused for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Keys with [`SPOILT`] in their names.
    Spoilt,
    /// Whatever is written together, which is all that runs write.
    Everything,
    /// What is written alone: claims, and signs of life.
    Renewals,
    /// What is read.
    Looks,
    /// Nothing any more.
    Nothing,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    Refuse(ErrorKind),
    LoseAnswer,
    /// It is made this much later.
    Delay(u64),
    /// It is answered this much later.
    AnswerLate(u64),
    /// It is made, and once more this much later, whoever may have died meanwhile.
    Twice(u64),
}

impl fmt::Debug for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Weather")
    }
}

impl Weather {
    /// A calm one over the far store of `world`.
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

    /// Calls go wrong now and then.
    pub fn blow(&self) {
        self.0.is_stormy.store(true, Ordering::Relaxed);
    }

    /// Nothing is refused but what is for good.
    pub fn calm(&self) {
        self.0.is_stormy.store(false, Ordering::Relaxed);
        self.0.is_away.store(false, Ordering::Relaxed);
    }

    /// What is refused for good from now on.
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

    /// The store is not reached until it is back, or calm.
    pub fn leave(&self) {
        self.0.is_away.store(true, Ordering::Relaxed);
    }

    /// It is reached again.
    pub fn come_back(&self) {
        self.0.is_away.store(false, Ordering::Relaxed);
    }

    /// Whether a call beside the store fails too: it is refused, or made and not answered.
    pub(crate) fn strikes(&self) -> Option<ErrorKind> {
        match self.fate(&[]) {
            Fate::Refuse(kind) => Some(kind),
            Fate::LoseAnswer => Some(ErrorKind::OutcomeUnknown),
            _ => None,
        }
    }

    fn fate(&self, updates: &[Update]) -> Fate {
        let State {
            entropy,
            is_stormy,
            is_away,
            ..
        } = &*self.0;
        if is_away.load(Ordering::Relaxed) {
            return Fate::Refuse(ErrorKind::Unavailable {
                retry_after_ms: None,
            });
        }
        if self.is_refused(updates) {
            return Fate::Refuse(ErrorKind::Invalid);
        }
        if !is_stormy.load(Ordering::Relaxed) {
            return Fate::Pass;
        }
        match entropy.below(100) {
            0..10 => Fate::Refuse(ErrorKind::Unavailable {
                retry_after_ms: None,
            }),
            10..20 => Fate::LoseAnswer,
            20..35 => Fate::Delay(entropy.below(60)),
            35..45 => Fate::AnswerLate(entropy.below(300)),
            45..60 => Fate::Twice(entropy.below(500)),
            _ => Fate::Pass,
        }
    }
}

/// A far store in some [`Weather`].
#[derive(Debug)]
pub struct FarStore {
    inner: SharedKeyValue,
    weather: Weather,
    /// One process alone does not reach it any more.
    is_cut: Arc<AtomicBool>,
}

impl FarStore {
    /// The far store of `world` as one process reaches it, until it is cut off.
    pub fn of(world: &World, weather: &Weather, is_cut: &Arc<AtomicBool>) -> Self {
        Self {
            inner: world.key_value(),
            weather: weather.clone(),
            is_cut: Arc::clone(is_cut),
        }
    }

    fn fate(&self, updates: &[Update]) -> Fate {
        if self.is_cut.load(Ordering::Relaxed) {
            return Fate::Refuse(ErrorKind::Unavailable {
                retry_after_ms: None,
            });
        }
        self.weather.fate(updates)
    }

    async fn travel<T>(&self, fate: Fate, made: impl Future<Output = Result<T>>) -> Result<T> {
        let sleep = |ms| self.weather.0.clock.sleep(Duration::from_millis(ms));
        match fate {
            Fate::Pass | Fate::Twice(_) => made.await,
            Fate::Delay(ms) => {
                sleep(ms).await;
                made.await
            }
            Fate::AnswerLate(ms) => {
                let answer = made.await;
                sleep(ms).await;
                answer
            }
            Fate::Refuse(kind) => {
                self.weather.0.clock.sleep(REFUSAL).await;
                Err(Error::new(kind, "reach the far store"))
            }
            Fate::LoseAnswer => {
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
        self.travel(self.fate(&[]), self.inner.externalize(point))
            .await
    }
}

impl KeyValueDecorator for FarStore {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.travel(self.fate(&[]), self.inner.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.travel(self.fate(&[]), self.inner.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.travel(
            self.fate(std::slice::from_ref(&update)),
            self.inner.update(update),
        )
        .await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let fate = self.fate(&updates);
        if let Fate::Twice(ms) = fate {
            let (inner, clock) = (Arc::clone(&self.inner), Arc::clone(&self.weather.0.clock));
            let again = updates.clone();
            tokio::spawn(async move {
                clock.sleep(Duration::from_millis(ms)).await;
                // Nobody hears what becomes of it.
                drop(inner.transact(again).await);
            });
        }
        self.travel(fate, self.inner.transact(updates)).await
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.travel(self.fate(&[]), self.inner.write_batch(batch))
            .await
    }
}
