//! The instances of one function at one revision: warm ones are taken again, last in first out, so that those which
//! nobody needs cool down.
//!
//! Invariants
//! - An instance is in the hands of one invocation, on its way back, or idle; never two of these.
//! - It is idle only once it has asked for its next invocation: then it does nothing, and may be frozen or ended.
//! - A place among the instances is an invocation's, or kept for an event that is being taken, or free.
//! - Calls and events share the places: one event at a time stands in line for the next, however many wait. So before a call that joins
//!   the line are one event at most and the calls that joined it earlier: the first call in line has its turn once at most two
//!   invocations have ended, the one behind it once three have.
//! - A call is refused at once only where calls have all places, or as many calls as there are places stand in line.
//! - Who finds no idle instance waits for one that is on its way back before it starts another: a caller that invokes again
//!   at once would otherwise find its own instance still on its way.

use std::{
    mem,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    functions::Room,
    runtime::{Function, FunctionError, Invocation, Ran, Refused, START_BOUND_MIN},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

use crate::{
    archives::Archives,
    command::Interpreters,
    exchange::{Answer, Task},
    failure,
    instance::Instance,
    logs::{Logs, Share},
    process::{ExitReason, Launcher},
    receiving::Allowance,
    runtime_api::Api,
    spares::Spares,
    tally::{Failed, Tally},
};

/// How long to wait for an instance on its way back before another is started.
const RETURN_WAIT: Duration = Duration::from_millis(20);
/// How long a call stands in line where events have places. Longer than most invocations take, and shorter than most callers wait for an
/// answer: who is refused after it knows that nothing was run, who has given up does not.
const CALL_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long an instance is idle before it is frozen: freezing costs what a short invocation does.
const FREEZE_AFTER: Duration = Duration::from_millis(50);

/// What all pools share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) interpreters: Interpreters,
    pub(crate) runtime: PathBuf,
    pub(crate) archives: Arc<Archives>,
    pub(crate) logs: Arc<Logs>,
    /// How long an instance is idle before it is ended.
    pub(crate) idle_max: Duration,
    pub(crate) tally: Tally,
    pub(crate) spares: Arc<Spares>,
}

/// The instances of a function.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) function: Arc<Function>,
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    /// The one event that stands in line for a place; the others wait until they are that.
    next_event: Semaphore,
    /// The calls that stand in line, as many as there are places at the most; one more is refused at once.
    calls_in_line: Semaphore,
    /// Every place that a call has counts as one more owner of this.
    of_calls: Arc<()>,
    allowance: Allowance,
    printing: Arc<Share>,
    state: Mutex<State>,
    came_back: Notify,
    retired: AtomicBool,
    idled: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The last one was used last.
    idle: Vec<Idle>,
    /// On their way back.
    returning: usize,
}

#[derive(Debug)]
struct Idle {
    instance: Arc<Instance>,
    /// Which time it became idle, of all times.
    turn: u64,
}

/// A place among the instances.
struct Place {
    /// A call is at work there. It stands before the permit, and so is dropped first: else a call could be refused beside a free place.
    _of_call: Option<Arc<()>>,
    permit: OwnedSemaphorePermit,
}

/// Why an invocation was not run.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// It cannot be.
    Refused(Refused),
    /// The pool was retired before it had an instance, which is no attempt of it.
    Retired(Box<Invocation>),
}

impl From<Refused> for NotRun {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// What an instance did with an invocation, as its caller sees it.
struct Done {
    result: Result<Bytes, (Failed, Bytes)>,
    /// Whether the instance may go on.
    is_fit: bool,
}

impl Pool {
    pub(crate) fn new(function: Arc<Function>, shared: Arc<Shared>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(function.concurrency)),
            next_event: Semaphore::new(1),
            calls_in_line: Semaphore::new(function.concurrency),
            of_calls: Arc::default(),
            allowance: Allowance::default(),
            printing: Arc::new(Share::new(&function.name)),
            function,
            shared,
            state: Mutex::default(),
            came_back: Notify::new(),
            retired: AtomicBool::new(false),
            idled: AtomicU64::new(0),
        }
    }

    /// Ends with a place that is kept for one invocation; none: the pool was retired.
    pub(crate) async fn room(&self) -> Option<Room> {
        self.place_of_event().await.map(Room::keeping)
    }

    async fn place_of_event(&self) -> Option<Place> {
        let _is_next = self.next_event.acquire().await.ok()?;
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        Some(Place {
            _of_call: None,
            permit,
        })
    }

    /// A place for `invocation`; none: it cannot have one now.
    async fn place(&self, invocation: &mut Invocation) -> Option<Place> {
        let kept = mem::take(&mut invocation.room).into_kept::<Place>();
        match kept.filter(|kept| Arc::ptr_eq(kept.permit.semaphore(), &self.permits)) {
            Some(kept) => Some(*kept),
            None if invocation.waits => self.place_of_event().await,
            None => self.place_of_call().await,
        }
    }

    async fn place_of_call(&self) -> Option<Place> {
        let permits = Arc::clone(&self.permits);
        let permit = match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if self.calls_have_all() => return None,
            Err(_) => {
                let _in_line = self.calls_in_line.try_acquire().ok()?;
                tokio::time::timeout(CALL_WAIT_MAX, permits.acquire_owned())
                    .await
                    .ok()?
                    .ok()?
            }
        };
        Some(Place {
            _of_call: Some(Arc::clone(&self.of_calls)),
            permit,
        })
    }

    /// Whether a call is at work in every place. Those of events are not counted: a place may be an event's before that knows of it.
    fn calls_have_all(&self) -> bool {
        Arc::strong_count(&self.of_calls) > self.function.concurrency
    }

    /// Runs one invocation (promises U1 to U3, U5); room is made before another instance is started for it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        mut invocation: Invocation,
        make_room: &(dyn Fn() + Sync),
    ) -> Result<Ran, NotRun> {
        let tally = &self.shared.tally;
        let place = self.place(&mut invocation).await;
        // Also a place that was kept here, or that became free as the pool was retired, is one of the next pool now.
        if self.retired.load(Ordering::Acquire) {
            return Err(NotRun::Retired(Box::new(invocation)));
        }
        let place = place
            .ok_or(Refused::Throttled)
            .inspect_err(|_| tally.throttled())?;
        let busy = tally.busy();
        let asked = Instant::now();
        let (instance, is_new) = self
            .take(make_room)
            .await
            .inspect_err(|_| tally.unavailable())?;
        tally.invoked();
        let id = invocation.id.clone();
        let kills_before = instance.out_of_memory_kills();
        instance.output.begin(&id);
        let started = if is_new {
            self.started(&instance, &id).await
        } else {
            Ok(())
        };
        let start_time = asked.elapsed();
        let begun = Instant::now();
        let timeout = invocation.timeout.map_or(self.function.timeout, |most| {
            most.min(self.function.timeout)
        });
        let deadline = begun + timeout;
        let asked_before = *instance.exchange.asked().borrow();
        let mut done = match started {
            Ok(()) => self.work(&instance, invocation, timeout, deadline).await,
            Err(failed) => Done {
                result: Err(failed),
                is_fit: false,
            },
        };
        // A child's want of memory is the function's own, whatever it has made of that (U2).
        if instance.out_of_memory_kills() > kills_before {
            let payload = failure::ended(&id, ExitReason::OutOfMemory);
            done = Done {
                result: Err((Failed::OutOfMemory, payload)),
                is_fit: false,
            };
        }
        if let Err((how, _)) = &done.result {
            tally.failed(*how);
        }
        let report = self.report(
            &instance,
            &id,
            &done,
            begun.elapsed(),
            is_new.then_some(start_time),
        );
        let log_tail = Bytes::from(instance.output.end(&report));
        // Not before it has done its work: the next cold start may come sooner, but this one would be slower.
        if let Some(kind) = instance.kind.as_ref().filter(|_| is_new) {
            self.shared.spares.provide(kind, self.function.memory_bytes);
        }
        if done.is_fit {
            self.give_back(instance, asked_before, deadline);
        } else {
            instance.kill();
        }
        drop((place, busy));
        Ok(Ran {
            result: done
                .result
                .map_err(|(_, payload)| FunctionError { payload }),
            log_tail,
        })
    }

    /// Waits until a new instance asks for its first invocation. Errors: why it does not.
    async fn started(&self, instance: &Instance, id: &str) -> Result<(), (Failed, Bytes)> {
        let mut asked = instance.exchange.asked();
        let start_bound = START_BOUND_MIN.max(self.function.timeout);
        tokio::select! {
            biased;
            // Who says that it cannot start and asks all the same is taken at its word, as by Lambda.
            Ok(()) = async { asked.wait_for(|asked| *asked > 0).await.map(drop) } => {
                instance.exchange.failed_start().map_or(Ok(()), |said| Err((Failed::NotStarted, said)))
            }
            // It may hang then: nothing is heard of it that would say more.
            () = instance.exchange.has_failed_to_start() => {
                Err((Failed::NotStarted, instance.exchange.failed_start().unwrap_or_default()))
            }
            reason = instance.ended() => Err(match instance.exchange.failed_start() {
                Some(said) => (Failed::NotStarted, said),
                None => (Failed::ExitedAtStart, failure::ended(id, reason)),
            }),
            () = tokio::time::sleep(start_bound) => {
                let said = instance.exchange.failed_start();
                Err((Failed::NotStarted, said.unwrap_or_else(|| failure::start_timed_out(id, start_bound))))
            }
        }
    }

    /// Has `instance` do the work, until `deadline`.
    async fn work(
        &self,
        instance: &Instance,
        invocation: Invocation,
        timeout: Duration,
        deadline: Instant,
    ) -> Done {
        let id = invocation.id.clone();
        let deadline_ms = now_ms() + timeout.as_millis() as u64;
        let answer = instance.exchange.assign(Task {
            invocation,
            deadline_ms,
        });
        tokio::select! {
            biased;
            answer = answer => Self::done(instance, &id, answer),
            () = tokio::time::sleep_until(deadline) => {
                Done { result: Err((Failed::TimedOut, failure::timed_out(&id, timeout))), is_fit: false }
            }
        }
    }

    fn done(
        instance: &Instance,
        id: &str,
        answer: Result<Answer, oneshot::error::RecvError>,
    ) -> Done {
        let (result, is_fit) = match answer {
            Ok(Answer::Response(bytes)) => (Ok(bytes), true),
            Ok(Answer::Error(payload)) => (Err((Failed::ByFunction, payload)), true),
            Ok(Answer::TooLong(bytes)) => (Err((Failed::TooLong, failure::too_long(bytes))), true),
            Err(_) => match instance.has_ended() {
                Some(reason) => (
                    Err((Failed::ended(reason), failure::ended(id, reason))),
                    false,
                ),
                // What it thinks that it has to do is not known: another one's invocation would pay for that.
                None => (Err((Failed::NotAnswered, failure::not_answered(id))), false),
            },
        };
        Done { result, is_fit }
    }

    /// An instance, and whether it is a new one.
    async fn take(&self, make_room: &(dyn Fn() + Sync)) -> Result<(Arc<Instance>, bool), Refused> {
        let wait_until = Instant::now() + RETURN_WAIT;
        loop {
            let came_back = self.came_back.notified();
            {
                let mut state = self.state.lock();
                while let Some(Idle { instance, .. }) = state.idle.pop() {
                    if instance.has_ended().is_none() && instance.thaw() {
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
        make_room();
        self.shared.tally.started();
        let Self {
            shared,
            function,
            allowance,
            printing,
            ..
        } = self;
        let started =
            Instance::start(shared, function, allowance.clone(), Arc::clone(printing)).await;
        started
            .map(|instance| (instance, true))
            .map_err(Refused::Unavailable)
    }

    /// Takes an instance back once it asks for its next invocation; if it does not until `deadline`, it is ended.
    fn give_back(self: &Arc<Self>, instance: Arc<Instance>, asked_before: u64, deadline: Instant) {
        self.state.lock().returning += 1;
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let mut asked = instance.exchange.asked();
            let is_back = tokio::select! {
                biased;
                back = asked.wait_for(|asked| *asked > asked_before) => back.is_ok(),
                _ = instance.ended() => false,
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
                    instance.kill();
                }
            }
            pool.came_back.notify_waiters();
            drop(instance);
            tokio::time::sleep(FREEZE_AFTER).await;
            let Some(instance) = pool.freeze(turn) else {
                return;
            };
            let stands_still = instance.stands_still().await;
            drop(instance);
            // What goes on while nobody has called it is ended.
            if stands_still {
                tokio::time::sleep(pool.shared.idle_max).await;
            }
            pool.state.lock().idle.retain(|idle| idle.turn != turn);
        });
    }

    /// The instance that became idle at `turn`, which is being frozen; none: it is idle no more.
    fn freeze(&self, turn: u64) -> Option<Arc<Instance>> {
        let state = self.state.lock();
        let idle = state.idle.iter().find(|idle| idle.turn == turn)?;
        idle.instance.freeze();
        Some(Arc::clone(&idle.instance))
    }

    /// No instance takes a new invocation; idle ones end now (promise U4).
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.permits.close();
        self.next_event.close();
        self.state.lock().idle.clear();
    }

    /// How many idle instances run, and how many are frozen.
    pub(crate) fn idle(&self) -> (u64, u64) {
        let state = self.state.lock();
        let frozen = state
            .idle
            .iter()
            .filter(|idle| idle.instance.is_frozen())
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

    /// The line about an invocation that Lambda ends its log with.
    fn report(
        &self,
        instance: &Instance,
        id: &str,
        done: &Done,
        took: Duration,
        start: Option<Duration>,
    ) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let memory = self.function.memory_bytes >> 20;
        let billed = ms(took).ceil();
        let took = ms(took);
        let peak = instance
            .memory_peak()
            .map(|peak| format!("\tMax Memory Used: {} MB", peak.div_ceil(1 << 20)));
        let start = start.map(|start| format!("\tInit Duration: {:.2} ms", ms(start)));
        let ran_out = matches!(instance.has_ended(), Some(ExitReason::OutOfMemory));
        let status = match done.result {
            Err((Failed::TimedOut, _)) => "\tStatus: timeout",
            Err((Failed::OutOfMemory, _)) => "\tStatus: error\tError Type: Runtime.OutOfMemory",
            _ if ran_out => "\tStatus: error\tError Type: Runtime.OutOfMemory",
            Err((Failed::Exited | Failed::ExitedAtStart, _)) => {
                "\tStatus: error\tError Type: Runtime.ExitError"
            }
            Err((Failed::NotAnswered, _)) => "\tStatus: error\tError Type: Runtime.NoAnswer",
            // Of what a function itself says of its failure, its answer has all.
            _ => "",
        };
        [
            format!("REPORT RequestId: {id}\tDuration: {took:.2} ms\tBilled Duration: {billed} ms"),
            format!("\tMemory Size: {memory} MB"),
            peak.unwrap_or_default(),
            start.unwrap_or_default(),
            status.to_owned(),
        ]
        .concat()
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
