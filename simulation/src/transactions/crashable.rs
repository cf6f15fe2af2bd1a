//! The ports of one process that can crash between any two of its calls.
//!
//! A crash does not fail the calls of its process: the process makes no further step, while the
//! store and all others continue. A call during or after the crash therefore never returns. The
//! simulated provider crashes functions; a node is not a function.
//!
//! Invariants
//! - Once a [`Life`] is over, no call of its ports returns, and no call that had not reached the
//!   store reaches it.
//! - A death ordered with [`Life::ends_after`] strikes once, at the ordered call, or never.

use std::{
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ports::{
    DurabilityPoint, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Page, Read, Scan, SharedKeyValue, Transacted, Updated},
};
use tokio::{sync::Notify, time::Instant};

/// The moment of a process's death, relative to the call at which it strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The call never reaches the store.
    Before,
    /// The store performs it; the answer is lost.
    After,
}

/// The life of one process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Life(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    calls: u64,
    ordered: Option<(u64, Side)>,
    /// The number of the call at which it falls asleep, and for how long.
    sleeps: Option<(u64, Duration)>,
    sleeps_until: Option<Instant>,
    /// How many orders were cancelled.
    pardons: u64,
    is_over: bool,
}

impl Life {
    /// Orders a death at the call after the next `calls` ones.
    pub fn ends_after(&self, calls: u64, side: Side) {
        let mut state = self.state();
        state.ordered = Some((state.calls + calls, side));
    }

    /// Suspends the process at the call after the next `calls` ones, as if its machine slept: it
    /// makes no call before it wakes, and then continues.
    pub fn sleeps_after(&self, calls: u64, sleep: Duration) {
        let mut state = self.state();
        state.sleeps = Some((state.calls + calls, sleep));
    }

    /// Whether it was suspended, even if it has woken since.
    pub fn has_slept(&self) -> bool {
        self.state().sleeps_until.is_some()
    }

    /// Cancels an order that has not struck, also one for the end of a call in progress.
    pub fn goes_on(&self) {
        let mut state = self.state();
        (state.ordered, state.sleeps) = (None, None);
        state.pardons += 1;
    }

    /// Ends it now.
    pub fn end(&self) {
        self.state().is_over = true;
        self.0.ended.notify_waiters();
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// The number of calls.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Returns once it has ended.
    pub async fn over(&self) {
        loop {
            let ended = self.0.ended.notified();
            if self.is_over() {
                return;
            }
            ended.await;
        }
    }

    /// Performs one call of this process, and returns its result if the process survives it.
    pub(crate) async fn live_through<T>(&self, call: impl Future<Output = T>) -> T {
        let (side, pardons) = self.arrive();
        if side == Some(Side::Before) {
            self.end();
        }
        let awake = async {
            self.awake().await;
            let answer = call.await;
            self.awake().await;
            answer
        };
        let answer = tokio::select! {
            biased;
            () = self.over() => pending().await,
            answer = awake => answer,
        };
        if side == Some(Side::After) && self.state().pardons == pardons {
            self.end();
        }
        if self.is_over() {
            return pending().await;
        }
        answer
    }

    /// Returns once it is awake.
    async fn awake(&self) {
        let until = self.state().sleeps_until;
        if let Some(until) = until.filter(|until| *until > Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Counts a call. Returns the death that was ordered for it, and how many orders were cancelled
    /// before.
    fn arrive(&self) -> (Option<Side>, u64) {
        let mut state = self.state();
        let call = state.calls;
        state.calls += 1;
        if let Some((_, sleep)) = state.sleeps.take_if(|(from, _)| *from == call) {
            state.sleeps_until = Some(Instant::now() + sleep);
        }
        let side = state
            .ordered
            .filter(|(ordered, _)| *ordered == call)
            .map(|(_, side)| side);
        if side.is_some() {
            state.ordered = None;
        }
        (side, state.pardons)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key-value store as one process reaches it.
#[derive(Debug)]
pub struct CrashableKeyValue {
    inner: SharedKeyValue,
    life: Life,
}

impl CrashableKeyValue {
    /// Passes calls to `inner` during `life`.
    pub fn new(inner: SharedKeyValue, life: Life) -> Self {
        Self { inner, life }
    }
}

impl Decorator for CrashableKeyValue {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.life.live_through(self.inner.externalize(point)).await
    }
}

impl KeyValueDecorator for CrashableKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.life.live_through(self.inner.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.life.live_through(self.inner.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.life.live_through(self.inner.update(update)).await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.life.live_through(self.inner.transact(updates)).await
    }
}

#[cfg(test)]
mod tests {
    use simulated::World;

    use super::*;

    /// How many of `calls` puts were answered, and how many are stored, with a death at call `at`.
    async fn dies(at: u64, side: Side, calls: usize) -> (usize, usize) {
        let (world, life) = (World::new(1), Life::default());
        let crashable: SharedKeyValue =
            Arc::new(CrashableKeyValue::new(world.key_value(), life.clone()));
        life.ends_after(at, side);
        let mut answered = 0;
        let work = async {
            for call in 0..calls {
                let update = Update::put(Key::new("p", [call as u8]), Vec::new());
                crashable.update(update).await.expect("a calm world");
                answered += 1;
            }
        };
        tokio::select! {
            biased;
            () = work => {}
            () = life.over() => {}
        }
        let page = world
            .key_value()
            .scan(&Scan::partition("p", 100))
            .await
            .expect("a calm world");
        (answered, page.value.items.len())
    }

    #[test]
    fn nothing_returns_after_the_end() {
        simulated::run(async {
            assert_eq!(dies(2, Side::Before, 5).await, (2, 2));
            assert_eq!(dies(2, Side::After, 5).await, (2, 3));
            assert_eq!(dies(5, Side::Before, 5).await, (5, 5));
            assert_eq!(dies(0, Side::Before, 5).await, (0, 0));
        });
    }

    #[test]
    fn an_order_is_taken_back_also_while_its_call_is_under_way() {
        simulated::run(async {
            let (world, life) = (World::new(1), Life::default());
            let clock = world.clock();
            let second = std::time::Duration::from_secs(1);
            world
                .faults()
                .delay(simulated::Chance::ALWAYS, second..=second);
            let crashable: SharedKeyValue =
                Arc::new(CrashableKeyValue::new(world.key_value(), life.clone()));
            let key = Key::new("p", "k");
            life.ends_after(0, Side::After);
            let pardon = async {
                clock.sleep(second / 2).await;
                life.goes_on();
            };
            let (got, ()) = futures_util::join!(crashable.get(&key), pardon);
            assert!(got.is_ok() && !life.is_over());
        });
    }

    #[test]
    fn a_call_under_way_does_not_return() {
        simulated::run(async {
            let (world, life) = (World::new(1), Life::default());
            let clock = world.clock();
            let second = std::time::Duration::from_secs(1);
            world
                .faults()
                .delay(simulated::Chance::ALWAYS, second..=second);
            let crashable: SharedKeyValue =
                Arc::new(CrashableKeyValue::new(world.key_value(), life.clone()));
            let key = Key::new("p", "k");
            let returned = tokio::select! {
                biased;
                _ = crashable.get(&key) => true,
                () = async { clock.sleep(second / 2).await; life.end(); clock.sleep(4 * second).await } => false,
            };
            assert!(!returned && life.calls() == 1);
        });
    }
}
