//! The membership of the processes of one world: a coordination service without its protocol.
//!
//! A live process that is not partitioned has an always fresh lease. A process that dies or is
//! partitioned stays a member until its lease has expired and a little longer. Each process learns
//! of a change after its own delay, so views differ for a moment.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use fastrand::Rng;
use ports::{Clock, Monotonic};
use tokio::sync::watch;
use transactions::{
    Error, Result,
    membership::{Address, Election, Members, Membership},
    model::NodeId,
};

use super::crashable::Life;

/// The duration of a lease of two seconds that is renewed every half a second, just before the next
/// renewal.
const LEASE_LEFT: Duration = Duration::from_millis(1_500);
/// When a process that no longer renews stops being a member: after its lease has expired.
const GONE_AFTER: Duration = Duration::from_millis(2_500);
/// The longest delay of a change.
const HEARD_AFTER_MS_MAX: u64 = 200;

/// All members. Clones share it.
#[derive(Debug, Clone)]
pub struct Ensemble(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Rng,
    members: BTreeMap<NodeId, Address>,
    /// In the order in which they joined: the first one leads.
    line: Vec<NodeId>,
    seats: Vec<Arc<Seat>>,
}

impl Ensemble {
    /// An ensemble without members that draws its delays from `rng`.
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng,
            members: BTreeMap::new(),
            line: Vec::new(),
            seats: Vec::new(),
        })))
    }

    /// The membership of a new process at `address`.
    pub fn seat(&self, address: &Address, life: Life, clock: Arc<dyn Clock>) -> Arc<Seat> {
        let seat = Arc::new(Seat {
            ensemble: self.clone(),
            address: address.clone(),
            life,
            clock,
            inner: Arc::new(Mutex::new(Inner {
                node: None,
                lease: None,
                cut_off: None,
            })),
            members: watch::Sender::new(Members::default()),
            first: Mutex::default(),
        });
        self.state().seats.push(Arc::clone(&seat));
        seat
    }

    /// Ends a membership.
    fn end(&self, node: NodeId) {
        if self.state().remove(node) {
            self.tell();
        }
    }

    /// Notifies all members of a change, each after a delay.
    fn tell(&self) {
        let seats: Vec<(Arc<Seat>, u64)> = {
            let mut state = self.state();
            state.seats.retain(|seat| !seat.life.is_over());
            let seats = state.seats.clone();
            seats
                .into_iter()
                .map(|seat| (seat, state.rng.u64(..=HEARD_AFTER_MS_MAX)))
                .collect()
        };
        for (seat, after_ms) in seats {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                if !seat.is_cut_off() {
                    seat.look();
                }
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One process's membership.
#[derive(Debug)]
pub struct Seat {
    ensemble: Ensemble,
    address: Address,
    life: Life,
    clock: Arc<dyn Clock>,
    inner: Arc<Mutex<Inner>>,
    members: watch::Sender<Members>,
    /// The last leader that it knew.
    first: Mutex<Option<NodeId>>,
}

impl State {
    /// Returns false if it was not a member.
    fn remove(&mut self, node: NodeId) -> bool {
        self.line.retain(|other| *other != node);
        self.members.remove(&node).is_some()
    }
}

#[derive(Debug)]
struct Inner {
    node: Option<NodeId>,
    /// When it was last renewed; none: it is renewed continuously.
    lease: Option<Monotonic>,
    cut_off: Option<Monotonic>,
}

impl Seat {
    /// From now on it neither renews nor receives changes.
    pub fn cut_off(&self) {
        let now = self.clock.monotonic();
        let node = {
            let mut inner = self.inner();
            inner.cut_off = Some(now);
            inner.lease = Some(now);
            inner.node
        };
        self.ends_later(node);
    }

    /// Reconnects it, as a member if it still is one.
    pub fn reconnect(&self) {
        let mut inner = self.inner();
        inner.cut_off = None;
        let is_member = inner
            .node
            .is_some_and(|node| self.ensemble.state().members.contains_key(&node));
        if is_member {
            inner.lease = None;
        }
        drop(inner);
        self.look();
    }

    /// Its process has died.
    pub fn die(&self) {
        self.inner().cut_off.get_or_insert(self.clock.monotonic());
        let node = self.inner().node;
        self.ends_later(node);
    }

    fn ends_later(&self, node: Option<NodeId>) {
        let Some(node) = node else { return };
        let ensemble = self.ensemble.clone();
        let (life, inner) = (self.life.clone(), Arc::clone(&self.inner));
        tokio::spawn(async move {
            tokio::time::sleep(GONE_AFTER).await;
            // It may have reconnected.
            if life.is_over() || lock(&inner).cut_off.is_some() {
                ensemble.end(node);
            }
        });
    }

    fn is_cut_off(&self) -> bool {
        self.inner().cut_off.is_some()
    }

    /// Updates its view of the members.
    fn look(&self) {
        let (nodes, first) = {
            let state = self.ensemble.state();
            (state.members.clone(), state.line.first().copied())
        };
        *lock(&self.first) = first;
        self.members.send_if_modified(|members| {
            let is_news = members.nodes != nodes || members.sequencer != first;
            if is_news {
                *members = Members {
                    view: members.view + 1,
                    nodes,
                    sequencer: first,
                };
            }
            is_news
        });
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

/// Locks `mutex`. A panic elsewhere ends the test.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Membership for Seat {
    async fn join(&self, node: NodeId) -> Result<()> {
        if self.life.is_over() {
            return std::future::pending().await;
        }
        if self.is_cut_off() {
            return Err(Error::Unavailable("the members are not reached".into()));
        }
        {
            let mut state = self.ensemble.state();
            let mut inner = self.inner();
            if let Some(before) = inner.node.replace(node) {
                state.remove(before);
            }
            inner.lease = None;
            state.members.insert(node, self.address.clone());
            state.line.push(node);
        }
        self.look();
        self.ensemble.tell();
        Ok(())
    }

    async fn leave(&self) {
        let node = self.inner().node.take();
        if let Some(node) = node {
            self.ensemble.end(node);
        }
    }

    fn members(&self) -> Members {
        self.members.borrow().clone()
    }

    async fn changed(&self, view: u64) -> Members {
        let mut members = self.members.subscribe();
        let changed = members.wait_for(|members| members.view > view).await;
        changed.expect("the sender lives as long as `self`").clone()
    }

    fn may_answer_until(&self) -> Option<Monotonic> {
        let inner = self.inner();
        Some(match (inner.node, inner.lease) {
            (None, _) => Monotonic::default(),
            (Some(_), Some(renewed)) => renewed + LEASE_LEFT,
            (Some(_), None) => self.clock.monotonic() + LEASE_LEFT,
        })
    }

    fn leads(&self, _: Election) -> bool {
        let node = self.inner().node;
        let may_answer = self
            .may_answer_until()
            .is_none_or(|until| self.clock.monotonic() < until);
        may_answer && node.is_some() && *lock(&self.first) == node
    }
}
