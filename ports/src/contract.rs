//! One suite of cases per port, which every provider and every decorator must pass.
//!
//! A case is an async function over a subject: the port as a trait object, a clock to wait on, and
//! further parts that the port's promises need. A provider says only how to open a fresh subject
//! and on which runtime. The port's macro expands to one `#[test]` per case, so a provider cannot
//! skip a case, and each has its own name in the output:
//!
//! ```
//! use ports::contract::{Case, key_value::Subject};
//!
//! fn run(case: Case<Subject>) {
//!     simulated::run(async {
//!         let world = simulated::World::new(1);
//!         case.run(Subject::new(world.key_value(), world.clock())).await;
//!     });
//! }
//!
//! mod key_value {
//!     ports::key_value_contract!(super::run);
//! }
//! # fn main() {}
//! ```
//!
//! A provider with threads of its own gives the subject a [`Spawn`], so that writers run in
//! parallel.
//!
//! [`queue`], [`functions`], [`runtime`], [`code_store`], [`logs`], [`instances`], [`clock`], [`objects`] and [`durability`] work in the
//! same way. Cases read `limits()` and leave out features that a provider does not offer. Each
//! numbered promise has a decorator that breaks it ([`broken`]), and this crate's tests show that a
//! case of that promise catches it.
//!
//! Cases never assume that time is virtual. They use short timeouts and wait on the subject's
//! clock, at most [`PATIENCE`] for any promised effect.

pub mod broken;
pub mod clock;
pub mod code_store;
pub mod durability;
pub mod functions;
pub mod instances;
pub mod key_value;
pub mod logs;
pub mod objects;
pub mod queue;
pub mod runtime;

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use futures_util::future::{BoxFuture, Either, LocalBoxFuture, join_all, poll_fn, select};

use crate::Clock;

/// How long a case waits for a promised effect before it fails.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// How long code runs that is to be stopped before it ends: longer than any case waits.
const FOR_EVER: Duration = Duration::from_mins(10);

/// How many writers the concurrent cases have.
pub const WRITERS: u64 = 64;

/// How long a case waits between two polls.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// One case of a port's suite.
pub struct Case<S> {
    /// The promise it checks: `K2`.
    pub promise: &'static str,
    /// The promise as a sentence: `only_one_of_many_conditional_creates_wins`.
    pub name: &'static str,
    run: fn(S) -> LocalBoxFuture<'static, ()>,
}

impl<S> Case<S> {
    /// A case, as the suites' lists make them.
    pub const fn new(
        promise: &'static str,
        name: &'static str,
        run: fn(S) -> LocalBoxFuture<'static, ()>,
    ) -> Self {
        Self { promise, name, run }
    }

    /// Runs the case on a fresh subject. Panics if the promise does not hold.
    pub fn run(&self, subject: S) -> LocalBoxFuture<'static, ()> {
        (self.run)(subject)
    }
}

impl<S> Clone for Case<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Case<S> {}

impl<S> fmt::Debug for Case<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.promise, self.name)
    }
}

/// The case called `name` among `cases`.
pub fn find<S>(cases: &[Case<S>], name: &str) -> Case<S> {
    *cases
        .iter()
        .find(|case| case.name == name)
        .expect("the macro and the list are one list")
}

/// How a provider runs a task in parallel: starts it at once and returns a future of its end.
pub type Spawn = fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

/// The [`Spawn`] of single-threaded runtimes: the task runs where its future is awaited.
pub fn in_place(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    task
}

/// Runs `tasks` concurrently and returns their results in order.
async fn together<T, F>(spawn: Spawn, tasks: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let running: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let slot = Arc::new(Mutex::new(None));
            let result = Arc::clone(&slot);
            let ended = spawn(Box::pin(async move {
                let value = task.await;
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            }));
            async move {
                ended.await;
                slot.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
                    .expect("the task ended")
            }
        })
        .collect();
    join_all(running).await
}

/// Awaits `future`. Panics with `what` if it takes longer than [`PATIENCE`].
async fn within<T>(clock: &dyn Clock, what: &str, future: impl Future<Output = T>) -> T {
    match select(pin!(future), clock.sleep(PATIENCE)).await {
        Either::Left((value, _)) => value,
        Either::Right(_) => panic!("waited in vain for {what}"),
    }
}

/// Polls `look` until it returns a value. Panics with `what` after [`PATIENCE`].
async fn eventually<T>(
    clock: &dyn Clock,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = clock.monotonic();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            clock.monotonic().since(started) < PATIENCE,
            "waited in vain for {what}"
        );
        clock.sleep(LOOK_AGAIN).await;
    }
}

/// Lets the other tasks of this runtime run once.
async fn pause() {
    let mut paused = false;
    poll_fn(|context| {
        if paused {
            return Poll::Ready(());
        }
        paused = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Expands a suite's one list either to the list of its cases or to one test per case.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_cases {
    ([@list] $port:ident { $($module:ident { $($promise:literal $name:ident,)* })* }) => {
        &[$($($crate::contract::Case::new(
            $promise,
            stringify!($name),
            |subject| Box::pin($module::$name(subject)),
        ),)*)*]
    };
    ([$run:expr] $port:ident { $($module:ident { $($promise:literal $name:ident,)* })* }) => {
        $($(
            #[doc = concat!($promise, ".")]
            #[test]
            fn $name() {
                ($run)($crate::contract::find($crate::contract::$port::CASES, stringify!($name)));
            }
        )*)*
    };
}
