//! The workers. Each writes a log, numbered from one, in calls that change other keys, too.
//!
//! An entry names the entries of other workers that its worker had seen. So a check can tell which
//! of them must exist.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ports::{
    Clock, Entropy, Externalize, Item, Key, KeyValue, Update,
    key_value::{Action, Transacted},
};
use synchrony::Lane;

pub(super) const WORKERS: usize = 3;
pub(super) const SHARED: u64 = 3;

/// The number of entries of each worker that exist, or were seen.
pub(super) type Seen = [i64; WORKERS];

pub(super) fn entry(worker: usize, n: i64) -> Key {
    Key::new(format!("log {worker}"), format!("{n:06}"))
}

pub(super) fn shared_key(number: u64) -> Key {
    Key::new("shared", number.to_string())
}

/// Present after odd entries, absent after even ones.
pub(super) fn flickering(worker: usize) -> Key {
    Key::new("flickering", worker.to_string())
}

pub(super) fn counter(worker: usize) -> Key {
    Key::new("count", worker.to_string())
}

/// The state known to the test, independent of the stores.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Entries that were acknowledged near.
    pub(super) acknowledged: Seen,
    /// Entries that a barrier covered.
    pub(super) externalized: Seen,
    /// Versions of shared keys that were acknowledged.
    pub(super) shared: BTreeMap<u64, u64>,
    pub(super) violations: Vec<String>,
    pub(super) writes: usize,
    pub(super) barriers: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<Truth>>);

impl Default for Shared {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Truth::default())))
    }
}

impl Shared {
    pub(super) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn violated(&self, what: String) {
        self.truth().violations.push(what);
    }
}

pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) lane: Lane,
    pub(super) epoch: u64,
    pub(super) known: Seen,
    pub(super) shared: Shared,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) clock: Arc<dyn Clock>,
    /// Another owner has the shard: no barrier that begins now may succeed.
    pub(super) is_deposed: Arc<AtomicBool>,
}

pub(super) fn seen_in(item: &Item) -> Seen {
    let mut seen = Seen::default();
    for (worker, name) in ["s0", "s1", "s2"].into_iter().enumerate() {
        seen[worker] = item.integer(name).unwrap_or(0);
    }
    seen
}

impl Worker {
    /// Works until it is aborted or its instance ends.
    pub(super) async fn work(mut self) {
        loop {
            let alive = match self.entropy.below(8) {
                0 => self.externalize().await,
                1 | 2 => self.read_shared().await,
                3 => self.read_own().await,
                _ => self.write().await,
            };
            // A transient error of the near store is retried; a permanent one ends the worker.
            if !alive {
                self.clock.sleep(Duration::from_millis(5)).await;
            }
            if self.entropy.below(3) == 0 {
                self.clock
                    .sleep(Duration::from_millis(self.entropy.below(8)))
                    .await;
            }
        }
    }

    fn stamp(&self) -> Vec<Action> {
        let mut actions = vec![Action::set_integer("e", self.epoch as i64)];
        for (name, seen) in ["s0", "s1", "s2"].into_iter().zip(self.known) {
            actions.push(Action::set_integer(name, seen));
        }
        actions.push(Action::set_integer("w", self.number as i64));
        actions
    }

    async fn write(&mut self) -> bool {
        let n = self.known[self.number] + 1;
        self.known[self.number] = n;
        let key = self.entropy.below(SHARED);
        let mut stamp = self.stamp();
        stamp.push(Action::set(
            "filler",
            vec![7; self.entropy.below(200) as usize],
        ));
        let flicker = if n % 2 == 1 {
            Update::modify(flickering(self.number), vec![Action::set_integer("n", n)])
        } else {
            Update::delete(flickering(self.number))
        };
        let mut updates = vec![
            Update::modify(entry(self.number, n), stamp.clone()),
            Update::modify(counter(self.number), vec![Action::Add("n".into(), 1)]),
            flicker,
        ];
        let has_shared = self.entropy.below(2) == 0;
        if has_shared {
            updates.push(Update::modify(shared_key(key), stamp));
        }
        match self.lane.transact(updates).await {
            Ok(Transacted::Done { items, .. }) => {
                let mut truth = self.shared.truth();
                truth.writes += 1;
                truth.acknowledged[self.number] = n;
                if let Some(item) = items.get(3).and_then(Option::as_ref) {
                    let version = truth.shared.entry(key).or_default();
                    *version = item.version.0.max(*version);
                }
                true
            }
            Ok(conflict) => {
                self.shared
                    .violated(format!("a write without conditions ended in {conflict:?}"));
                true
            }
            Err(_) => {
                self.known[self.number] = n - 1;
                false
            }
        }
    }

    async fn read_shared(&mut self) -> bool {
        let key = self.entropy.below(SHARED);
        let floor = self.shared.truth().shared.get(&key).copied().unwrap_or(0);
        let Ok(read) = self.lane.get(&shared_key(key)).await else {
            return false;
        };
        let version = read.value.as_ref().map_or(0, |item| item.version.0);
        if version < floor && !self.is_deposed.load(Ordering::SeqCst) {
            self.shared.violated(format!(
                "E5: read version {version} of {key}, {floor} was acknowledged"
            ));
        }
        if let Some(item) = read.value {
            for (known, seen) in self
                .known
                .iter_mut()
                .enumerate()
                .filter(|(of, _)| *of != self.number)
                .map(|(of, known)| (known, seen_in(&item)[of]))
            {
                *known = seen.max(*known);
            }
        }
        true
    }

    async fn read_own(&mut self) -> bool {
        let n = self.known[self.number];
        let Ok(read) = self.lane.get(&flickering(self.number)).await else {
            return false;
        };
        let found = read.value.and_then(|item| item.integer("n"));
        let expected = (n % 2 == 1).then_some(n);
        if found != expected && !self.is_deposed.load(Ordering::SeqCst) {
            self.shared.violated(format!(
                "E5: worker {} reads {found:?} after {n}",
                self.number
            ));
        }
        true
    }

    async fn externalize(&mut self) -> bool {
        let was_deposed = self.is_deposed.load(Ordering::SeqCst);
        let covered = self.known;
        if self.lane.externalize(self.lane.point()).await.is_err() {
            return false;
        }
        if was_deposed {
            self.shared
                .violated("E10: a barrier of a deposed owner returned".into());
        }
        let mut truth = self.shared.truth();
        truth.barriers += 1;
        for (externalized, covered) in truth.externalized.iter_mut().zip(covered) {
            *externalized = covered.max(*externalized);
        }
        true
    }
}
