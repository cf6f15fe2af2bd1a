//! The instances of one function at one revision. The most recently used one is reused first, so
//! that surplus instances cool down.
//!
//! Invariants
//! - An instance runs one invocation, or is returning, or is idle; never two of these.
//! - It is idle only once it has requested its next invocation. It then does nothing, and may be
//!   frozen or ended.
//! - A call that finds no idle instance waits briefly for a returning one before it starts another.
//!   A caller that invokes again at once would otherwise miss its own instance.

mod places;
mod report;
mod transaction;

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    functions::Permit,
    instances::Death,
    runtime::{Function, FunctionError, Invocation, Ran, Refused, START_BOUND_MIN},
};
use tokio::{sync::Notify, time::Instant};

use self::{
    places::{Place, Places},
    report::Report,
    transaction::{Begun, copy_of},
};
use crate::{
    figures::Failed,
    function::{
        failure,
        hint::hint,
        instance::{Instance, Shared},
        invocation_channel::{Answer, Task},
        request_body::Allowance,
    },
    machine::now_ms,
};

/// How long to wait for a returning instance before another is started.
const RETURN_WAIT: Duration = Duration::from_millis(20);
/// How long an instance is idle before it is frozen. Freezing costs as much as a short invocation.
const FREEZE_AFTER: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) function: Arc<Function>,
    shared: Arc<Shared>,
    places: Places,
    allowance: Allowance,
    state: Mutex<State>,
    came_back: Notify,
    retired: AtomicBool,
    idled: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The most recently used one comes last.
    idle: Vec<Idle>,
    returning: usize,
}

#[derive(Debug)]
struct Idle {
    instance: Arc<Instance>,
    /// The number of this idle period among all of the pool.
    turn: u64,
}

#[derive(Debug)]
pub(crate) enum NotRun {
    Refused(Refused),
    /// The pool was retired before the invocation had an instance. This is not an attempt.
    Retired(Box<Invocation>),
}

impl From<Refused> for NotRun {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Counts of an instance before an invocation.
#[derive(Clone, Copy)]
struct Before {
    requests: u64,
    kills: u64,
}

/// The result of an invocation in an instance, or how it failed, and the payload for that.
type Outcome = Result<Bytes, (Failed, Bytes)>;

impl Pool {
    pub(crate) fn new(function: Arc<Function>, shared: Arc<Shared>) -> Self {
        Self {
            places: Places::new(function.concurrency),
            allowance: Allowance::default(),
            function,
            shared,
            state: Mutex::default(),
            came_back: Notify::new(),
            retired: AtomicBool::new(false),
            idled: AtomicU64::new(0),
        }
    }

    /// Waits for a place and reserves it for one invocation; none: the pool was retired.
    pub(crate) async fn permit(&self) -> Option<Permit> {
        self.places.for_event().await.map(Permit::holding)
    }

    /// A place for `invocation`; none: it cannot have one now.
    async fn place(&self, invocation: &mut Invocation) -> Option<Place> {
        let reserved = mem::take(&mut invocation.permit).into_held::<Place>();
        match reserved.filter(|place| self.places.has(place)) {
            Some(place) => Some(*place),
            None if invocation.waits => self.places.for_event().await,
            None => self.places.for_call().await,
        }
    }

    /// Runs one invocation (promises U1 to U3, U5). `free_memory` is called before an instance is
    /// started for it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        mut invocation: Invocation,
        free_memory: &(dyn Fn() + Sync),
    ) -> Result<Ran, NotRun> {
        let place = self.place(&mut invocation).await;
        // A place that was reserved here, or became free by the retirement, does not count any
        // more: the invocation needs one of the next pool.
        if self.retired.load(Ordering::Acquire) {
            return Err(NotRun::Retired(Box::new(invocation)));
        }
        let place = place
            .ok_or(Refused::Throttled)
            .inspect_err(|_| self.shared.counters.count(|figures| figures.throttled += 1))?;
        let busy = self.shared.counters.busy();
        let asked = Instant::now();
        let counters = &self.shared.counters;
        let taken = self.take(free_memory).await;
        let (instance, is_new) =
            taken.inspect_err(|_| counters.count(|figures| figures.unavailable += 1))?;
        counters.count(|figures| figures.invocations += 1);
        let ran = self.run_in(&instance, is_new, asked, invocation).await;
        drop((place, busy));
        Ok(ran)
    }

    async fn run_in(
        self: &Arc<Self>,
        instance: &Arc<Instance>,
        is_new: bool,
        asked: Instant,
        invocation: Invocation,
    ) -> Ran {
        let id = invocation.id.clone();
        let group = &instance.running.control.group;
        let kills_before = group.out_of_memory_kills();
        instance.output.begin(&id);
        let started = if is_new {
            self.started(instance, &id).await
        } else {
            Ok(())
        };
        let (start_time, begun, own) = (asked.elapsed(), Instant::now(), self.function.timeout);
        let timeout = invocation.timeout.map_or(own, |most| most.min(own));
        let deadline = begun + timeout;
        let before = Before {
            requests: *instance.channel.requests().borrow(),
            kills: kills_before,
        };
        let (outcome, requests_before) = match started {
            Ok(()) => {
                let times = (timeout, deadline);
                self.outcome(instance, before, invocation, times).await
            }
            Err(failed) => (Err(failed), before.requests),
        };
        let failed = outcome.as_ref().err().map(|(how, _)| *how);
        failed.inspect(|how| self.shared.counters.failed(*how));
        let report = Report {
            id: &id,
            failed,
            death: instance.running.death(),
            took: begun.elapsed(),
            start: is_new.then_some(start_time),
            memory_bytes: self.function.memory_bytes,
            memory_peak: group.memory_peak(),
        };
        let error = outcome.as_ref().map_or_else(|(_, error)| &**error, |_| &[]);
        let hint = |tail: &[u8]| hint(&self.function, tail, error);
        let log_tail = Bytes::from(instance.output.end(hint, &report.line()));
        // Not before the work is done: the next cold start might come sooner, but this invocation
        // would be slower.
        if let Some(kind) = instance.kind.as_ref().filter(|_| is_new) {
            let prewarmed = &self.shared.prewarmed;
            prewarmed.provide(kind, self.function.memory_bytes);
        }
        if failed.is_none_or(Failed::leaves_it_fit) {
            self.give_back(Arc::clone(instance), requests_before, deadline);
        } else {
            instance.running.control.kill();
        }
        Ran {
            result: outcome.map_err(|(_, payload)| FunctionError { payload }),
            log_tail,
        }
    }

    /// Runs the invocation, in a transaction if the function has a volume. Also returns how often
    /// the instance had asked for an invocation before that.
    async fn outcome(
        &self,
        instance: &Instance,
        before: Before,
        invocation: Invocation,
        (timeout, deadline): (Duration, Instant),
    ) -> (Outcome, u64) {
        let work = async |invocation| {
            let outcome = self.work(instance, invocation, timeout, deadline).await;
            // A child that the kernel ended for lack of memory fails the function, whatever the
            // function made of it (U2).
            if instance.running.control.group.out_of_memory_kills() > before.kills {
                return Err((Failed::OutOfMemory, Bytes::new()));
            }
            outcome
        };
        let id = invocation.id.clone();
        let (outcome, requests) = match &instance.volume {
            None => (work(invocation).await, before.requests),
            Some(volume) => {
                let mut begun = Begun::new(&**volume, &instance.channel, &id, deadline);
                let outcome = begun.run(|| work(copy_of(&invocation))).await;
                (outcome, begun.requests_before())
            }
        };
        let outcome = outcome.map_err(|(failed, payload)| match failed {
            Failed::OutOfMemory => (failed, failure::ended(&id, Death::OutOfMemory)),
            _ => (failed, payload),
        });
        (outcome, requests)
    }

    /// Waits until a new instance requests its first invocation. Errors: why it does not.
    async fn started(&self, instance: &Instance, id: &str) -> Result<(), (Failed, Bytes)> {
        let channel = &instance.channel;
        let mut requests = channel.requests();
        let start_bound = START_BOUND_MIN.max(self.function.timeout);
        let otherwise = tokio::select! {
            biased;
            Ok(()) = async { requests.wait_for(|requests| *requests > 0).await.map(drop) } => None,
            // It may hang after this report.
            () = channel.has_failed_to_start() => None,
            death = instance.running.died() => Some((Failed::ExitedAtStart, failure::ended(id, death))),
            () = tokio::time::sleep(start_bound) => {
                Some((Failed::NotStarted, failure::start_timed_out(id, start_bound)))
            }
        };
        // An instance that reports a failed start and requests an invocation nevertheless has
        // failed, as on Lambda.
        let reported = channel.failed_start();
        let failed = reported.map(|error| (Failed::NotStarted, error));
        failed.or(otherwise).map_or(Ok(()), Err)
    }

    async fn work(
        &self,
        instance: &Instance,
        invocation: Invocation,
        timeout: Duration,
        deadline: Instant,
    ) -> Outcome {
        let id = invocation.id.clone();
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ms = now_ms() + left.as_millis() as u64;
        let answer = instance.channel.assign(Task {
            invocation,
            deadline_ms,
        });
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = tokio::time::sleep_until(deadline) => {
                return Err((Failed::TimedOut, failure::timed_out(&id, timeout)));
            }
        };
        match answer {
            Ok(Answer::Response(bytes)) => Ok(bytes),
            Ok(Answer::Error(payload)) => Err((Failed::ByFunction, payload)),
            Ok(Answer::TooLong(bytes)) => Err((Failed::TooLong, failure::too_long(bytes))),
            Err(_) => Err(match instance.running.death() {
                Some(death) => (Failed::died(death), failure::ended(&id, death)),
                None => (Failed::NotAnswered, failure::not_answered(&id)),
            }),
        }
    }

    /// An instance, and whether it is new.
    async fn take(
        &self,
        free_memory: &(dyn Fn() + Sync),
    ) -> Result<(Arc<Instance>, bool), Refused> {
        let wait_until = Instant::now() + RETURN_WAIT;
        loop {
            let came_back = self.came_back.notified();
            {
                let mut state = self.state.lock();
                while let Some(Idle { instance, .. }) = state.idle.pop() {
                    if instance.running.death().is_none() && instance.running.thaw() {
                        return Ok((instance, false));
                    }
                }
                if state.returning == 0 {
                    break;
                }
            }
            if tokio::time::timeout_at(wait_until, came_back)
                .await
                .is_err()
            {
                break;
            }
        }
        free_memory();
        self.shared
            .counters
            .count(|figures| figures.cold_starts += 1);
        let started = Instance::start(&self.shared, &self.function, self.allowance.clone());
        let instance = started.await.map_err(Refused::Unavailable)?;
        if instance.is_adopted {
            self.shared.counters.count(|figures| figures.adopted += 1);
        }
        Ok((instance, true))
    }

    /// Takes an instance back once it requests its next invocation. If it does not until
    /// `deadline`, it is ended.
    fn give_back(
        self: &Arc<Self>,
        instance: Arc<Instance>,
        requests_before: u64,
        deadline: Instant,
    ) {
        self.state.lock().returning += 1;
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let mut requests = instance.channel.requests();
            let is_back = tokio::select! {
                biased;
                back = requests.wait_for(|requests| *requests > requests_before) => back.is_ok(),
                _ = instance.running.died() => false,
                () = tokio::time::sleep_until(deadline) => false,
            };
            let turn = pool.idled.fetch_add(1, Ordering::Relaxed);
            {
                let mut state = pool.state.lock();
                state.returning -= 1;
                if is_back && !pool.retired.load(Ordering::Acquire) {
                    state.idle.push(Idle {
                        instance: Arc::clone(&instance),
                        turn,
                    });
                } else {
                    instance.running.control.kill();
                }
            }
            pool.came_back.notify_waiters();
            drop(instance);
            pool.cool_down(turn).await;
        });
    }

    /// Freezes the instance that became idle at `turn` after a while, and ends it after its idle
    /// time.
    async fn cool_down(&self, turn: u64) {
        tokio::time::sleep(FREEZE_AFTER).await;
        let Some(instance) = self.freeze(turn) else {
            return;
        };
        let is_still = instance.running.is_still().await;
        drop(instance);
        // An instance that keeps running without an invocation is ended now.
        if is_still {
            tokio::time::sleep(self.shared.idle_max).await;
        }
        self.state.lock().idle.retain(|idle| idle.turn != turn);
    }

    /// Begins to freeze the instance that became idle at `turn`; none: it is no longer idle.
    fn freeze(&self, turn: u64) -> Option<Arc<Instance>> {
        let state = self.state.lock();
        let idle = state.idle.iter().find(|idle| idle.turn == turn)?;
        idle.instance.running.freeze();
        Some(Arc::clone(&idle.instance))
    }

    /// Takes no new invocation, and ends the idle instances (promise U4).
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.places.close();
        self.state.lock().idle.clear();
    }

    /// The numbers of idle instances that run, and that are frozen.
    pub(crate) fn idle(&self) -> (u64, u64) {
        let state = self.state.lock();
        let frozen = state
            .idle
            .iter()
            .filter(|idle| idle.instance.running.is_frozen())
            .count();
        ((state.idle.len() - frozen) as u64, frozen as u64)
    }

    /// Ends the instance that has been idle for longest. Whether there was one.
    pub(crate) fn end_coldest(&self) -> bool {
        let mut state = self.state.lock();
        if state.idle.is_empty() {
            return false;
        }
        state.idle.remove(0);
        true
    }
}
