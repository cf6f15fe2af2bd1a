//! One run in virtual time.

use std::{any::Any, cell::RefCell, panic::resume_unwind, time::Duration};

use tokio::{runtime::RngSeed, sync::oneshot};

/// A run that has not ended after this much virtual time never will: it panics.
pub const VIRTUAL_DAYS_MAX: u64 = 32;

/// What the runtime draws itself is the same in each run; chance comes from the [`World`](crate::World).
const RUNTIME_SEED: &[u8] = b"landfast";

type Panic = Box<dyn Any + Send>;

/// What tasks of a run leave with it.
#[derive(Default)]
struct Run {
    /// Where a panic inside a task is taken to.
    alarm: Option<oneshot::Sender<Panic>>,
    /// What is done when the run has ended.
    endings: Vec<Box<dyn FnOnce()>>,
}

thread_local! {
    /// The run of this thread. It is set and taken away by [`run`].
    static RUN: RefCell<Run> = RefCell::default();
}

/// Runs `future` on one thread with a clock that stands still while anything can run.
///
/// A panic in a function of the world (an assertion of ours that failed) ends the run with that panic. A
/// run in which everybody waits for ever panics after [`VIRTUAL_DAYS_MAX`], which takes no real time.
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
                panic!("the run has not ended after {VIRTUAL_DAYS_MAX} virtual days: everybody waits for somebody")
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

/// Ends the current run with `panic`, or this task alone if there is no run any more.
pub(crate) fn raise(panic: Panic) {
    match RUN.with_borrow_mut(|run| run.alarm.take()) {
        Some(alarm) => drop(alarm.send(panic)),
        None => resume_unwind(panic),
    }
}

/// Has `ending` done once the run of this thread has ended without a panic.
pub(crate) fn at_end(ending: Box<dyn FnOnce()>) {
    RUN.with_borrow_mut(|run| run.endings.push(ending));
}
