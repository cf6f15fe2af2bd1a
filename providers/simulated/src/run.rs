//! One run in virtual time.

use std::{
    any::Any,
    cell::RefCell,
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::RngSeed, sync::oneshot};

/// The virtual time after which a run that has not ended panics: it never would.
pub const VIRTUAL_DAYS_MAX: u64 = 32;

/// A fixed seed of the runtime's own draws; other randomness comes from the
/// [`World`](crate::World).
const RUNTIME_SEED: &[u8] = b"landfast";

type Panic = Box<dyn Any + Send>;

/// The state that tasks leave with their run.
#[derive(Default)]
struct Run {
    /// Receives a panic inside a task.
    alarm: Option<oneshot::Sender<Panic>>,
    /// Actions after the end of the run.
    endings: Vec<Box<dyn FnOnce()>>,
}

thread_local! {
    /// The run of this thread; [`run`] sets and removes it.
    static RUN: RefCell<Run> = RefCell::default();
}

/// Runs `future` on one thread, with a clock that stands still while any task can run.
///
/// A panic in a function of the world (a failed assertion) ends the run with that panic. A run in
/// which all tasks wait forever panics after [`VIRTUAL_DAYS_MAX`], which takes no real time.
pub fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(RUNTIME_SEED))
        .build()
        .expect("a current-thread runtime needs nothing that can be missing");
    let (sender, alarm) = oneshot::channel();
    let outer = RUN.replace(Run {
        alarm: Some(sender),
        endings: Vec::new(),
    });
    let output = runtime.block_on(async {
        tokio::select! {
            biased;
            Ok(panic) = alarm => resume_unwind(panic),
            output = future => output,
            () = tokio::time::sleep(Duration::from_secs(VIRTUAL_DAYS_MAX * 24 * 60 * 60)) => {
                panic!("the run has not ended after {VIRTUAL_DAYS_MAX} virtual days: all tasks wait forever")
            }
        }
    });
    drop(runtime);
    RUN.replace(outer)
        .endings
        .into_iter()
        .for_each(|ending| ending());
    output
}

/// Ends the current run with `panic`, or only this task if there is no run any more.
pub(crate) fn raise(panic: Panic) {
    match RUN.with_borrow_mut(|run| run.alarm.take()) {
        Some(alarm) => drop(alarm.send(panic)),
        None => resume_unwind(panic),
    }
}

/// Registers `ending` to be called once this thread's run has ended without a panic.
pub(crate) fn at_end(ending: Box<dyn FnOnce()>) {
    RUN.with_borrow_mut(|run| run.endings.push(ending));
}

/// Locks `mutex`. A panic has already ended the run, so poisoning does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
