//! Checkpoints: folding a frozen generation into the checkpoint store, and dropping the journal it covers.
//!
//! The journal thread freezes the overlay at the end of a group, and hands it over once that group is
//! durable. One transaction takes it all in together with its place in the journal. Only then does the
//! overlay let it go, and only then are whole segments removed, oldest first.
//!
//! Failure at each step: a crash before the transaction's commit leaves the earlier checkpoint and the whole
//! journal; after it, segments that are no longer needed, which the next open removes. A failed transaction
//! changes nothing: what it was made of goes back to the active generation, and is tried again later, without what was
//! deleted meanwhile. One that meets a full disk is first tried in parts ([`parts`]).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use ports::{LogThrottle, Monotonic, key_value::Room};

use crate::{
    base::{self, BaseError, Expiring, Place},
    engine::Engine,
    journal::Folded,
    overlay::Generation,
    store::{Growth, now_ms, refresh_cache},
};

mod parts;

/// How long a failed checkpoint waits before it is tried again; then the next commit does.
const RETRY: Duration = Duration::from_secs(1);

/// How many times `checkpoint_bytes` the journal, and the memory that it fills, may grow to while checkpoints fail.
const JOURNAL_WITHOUT_CHECKPOINTS: u64 = 4;

/// A frozen generation and where it ends.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) generation: Arc<Generation>,
    pub(crate) place: Place,
    /// The journal up to that place.
    pub(crate) journal: Folded,
}

/// The checkpoint thread's desk: one job at most waits, beside the one that runs. The journal thread hands in the
/// next one as soon as the overlay let the last one go, which is before that one is over.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// The job that waits.
    job: Option<Job>,
    /// It failed then, and waits to be tried again.
    failed: Option<Instant>,
    running: bool,
    stop: bool,
    count: u64,
    /// That they fail.
    outage: LogThrottle,
}

impl Checkpoints {
    pub(crate) fn submit(&self, job: Job) {
        let mut inner = self.inner.lock();
        inner.job = Some(job);
        inner.failed = None;
        self.changed.notify_all();
    }

    /// Whether a failed one may be tried again; it then is for the caller to see that it is.
    pub(crate) fn is_due_again(&self) -> bool {
        let mut inner = self.inner.lock();
        let is_due = inner.failed.is_some_and(|failed| failed.elapsed() >= RETRY);
        if is_due {
            inner.failed = None;
        }
        is_due
    }

    /// Waits for a running checkpoint and forgets a waiting one.
    pub(crate) fn quiesce(&self) {
        let mut inner = self.inner.lock();
        while inner.running {
            self.changed.wait(&mut inner);
        }
        inner.job = None;
        inner.failed = None;
    }

    pub(crate) fn stop(&self) {
        self.inner.lock().stop = true;
        self.changed.notify_all();
    }

    /// How many were made, and why the last one failed if it did.
    pub(crate) fn report(&self) -> (u64, Option<String>) {
        let inner = self.inner.lock();
        (inner.count, inner.outage.reason().map(str::to_owned))
    }

    fn next(&self) -> Option<Job> {
        let mut inner = self.inner.lock();
        loop {
            if inner.stop {
                return None;
            }
            if let Some(job) = inner.job.take() {
                inner.running = true;
                return Some(job);
            }
            self.changed.wait(&mut inner);
        }
    }

    fn succeeded(&self, now: Monotonic) {
        let mut inner = self.inner.lock();
        inner.running = false;
        if let Some(lasted) = inner.outage.ended(now) {
            tracing::info!(?lasted, "checkpoints are made again");
        }
        inner.count += 1;
        self.changed.notify_all();
    }

    fn failed(&self, error: &str, now: Monotonic) {
        let mut inner = self.inner.lock();
        inner.running = false;
        if let Some(lasts) = inner.outage.failed(now, error) {
            tracing::warn!(
                error,
                ?lasts,
                "checkpoints fail; everything is kept, and they are tried again"
            );
        }
        inner.failed = Some(Instant::now());
        self.changed.notify_all();
    }
}

/// Runs until told to stop.
pub(crate) fn run(engine: &Arc<Engine>) {
    while let Some(job) = engine.checkpoints.next() {
        match fold(engine, &job) {
            Ok(()) => {
                drop(job);
                engine.checkpoints.succeeded(Monotonic(engine.now()));
            }
            Err(error) => {
                recover_store(engine);
                give_up(engine, job, &error);
                engine
                    .checkpoints
                    .failed(&error.to_string(), Monotonic(engine.now()));
            }
        }
    }
}

/// The last checkpoint, with both threads gone: the next open then has no journal to read.
pub(crate) fn finish(engine: &Engine) {
    let waiting = engine.checkpoints.inner.lock().job.take();
    if let Some(job) = waiting
        && let Err(error) = fold(engine, &job)
    {
        tracing::warn!(%error, "no checkpoint at close; the journal has it all");
        return;
    }
    let job = {
        let mut state = engine.state();
        let (position, incarnation) = (state.store.position, state.store.incarnation);
        if state.health != crate::status::Health::Serving
            || engine.durability.durable() != state.store.point()
            || state.store.overlay.frozen().is_some()
        {
            return;
        }
        let journal = engine.facts.whole();
        let place = Place {
            position,
            sequence: journal.sequence,
            incarnation,
        };
        Job {
            generation: state.store.overlay.freeze(),
            place,
            journal,
        }
    };
    if let Err(error) = fold(engine, &job) {
        tracing::warn!(%error, "no checkpoint at close; the journal has it all");
    }
}

fn fold(engine: &Engine, job: &Job) -> Result<(), BaseError> {
    match engine
        .base
        .write(job.generation.in_order(), job.place, Expiring::by(now_ms()))
    {
        Err(error) if base::is_full(&error) => {
            recover_store(engine);
            parts::fold(engine, job)?;
        }
        folded => folded?,
    }
    let view = engine.base.view()?;
    let cache = Arc::clone(&engine.state().store.cache);
    refresh_cache(&cache, &job.generation);
    let (earlier_view, thawed) = {
        let mut state = engine.state();
        state.store.is_view_lost = false;
        (
            std::mem::replace(&mut state.store.view, view),
            state.store.overlay.thaw(),
        )
    };
    drop((earlier_view, thawed));
    let spare = engine.spare();
    if let Err(error) = engine
        .facts
        .remove_until(job.journal, spare, &*engine.config.storage)
    {
        tracing::warn!(%error, "a journal segment could not be removed; the next checkpoint tries again");
    }
    engine.ballast.refill();
    spare.grow(0);
    make_way(engine);
    Ok(())
}

/// After a checkpoint: says whether there is room for the next one, and has the journal leave a segment that is full, or nearly
/// so on a disk that gives no whole one, and that nothing but the checkpoint store's state is in, as only then it can be given back.
fn make_way(engine: &Engine) {
    let growth = if has_room_for_the_next(engine) {
        Growth::Taken
    } else {
        Growth::NoRoom
    };
    let spare = engine.spare();
    let wanted = 2 * spare.reserve_bytes();
    let (is_refusing, is_running_out) = {
        let mut state = engine.state();
        state.store.set_growth(growth);
        state.store.spare_room = spare.room();
        if state.store.checkpoint_wanted {
            // By who turned a segment while this one was made; no change need come after that.
            engine.durability.force();
        }
        let is_worth_it = spare.is_short() && engine.facts.current_room() >= 2 * wanted;
        (
            state.store.room != Room::Free,
            is_worth_it && state.store.tail_room < wanted,
        )
    };
    if !is_refusing && !is_running_out {
        return;
    }
    if spare.grow_to_go_on(wanted) < wanted && is_refusing && engine.ballast.let_go().is_ok() {
        spare.grow_anyway(wanted);
        engine.ballast.take();
    }
    let mut state = engine.state();
    state.store.spare_room = spare.room();
    // A segment that has as much room itself is left when it is full.
    if state.store.spare_room >= wanted && state.store.tail_room < wanted {
        state.store.rotation_wanted = true;
        engine.durability.force();
    }
}

/// Whether deletions could be taken in by the next checkpoint, whatever is on the disk then. Only a disk without room for the
/// whole ballast makes the checkpoint store be searched for room of its own.
fn has_room_for_the_next(engine: &Engine) -> bool {
    let (whole, held) = (engine.ballast.whole_bytes(), engine.ballast.bytes());
    held == whole
        || engine
            .base
            .room()
            .is_ok_and(|room| held + room >= whole / 2)
}

/// A failed one is made again of what there is then: what was deleted meanwhile needs no room.
fn give_up(engine: &Engine, job: Job, error: &redb::Error) {
    drop(job);
    let is_too_much =
        engine.facts.bytes() >= JOURNAL_WITHOUT_CHECKPOINTS * engine.config.checkpoint_bytes.max(1);
    let mut state = engine.state();
    state.store.overlay.melt();
    if base::is_full(error) {
        state.store.set_growth(Growth::NoRoom);
    } else if is_too_much {
        state.store.set_growth(Growth::NoCheckpoints);
    }
}

/// Opens the checkpoint store again: after a failure it refuses everything, reads too.
fn recover_store(engine: &Engine) {
    let mut state = engine.state();
    state.store.view = None;
    match engine.base.reopen().and_then(|()| engine.base.view()) {
        Ok(view) => {
            state.store.view = view;
            state.store.is_view_lost = false;
        }
        // Without its view the store would say of everything in it that it is not there.
        Err(error) => engine.fail_from(state, &format!("open the checkpoint store: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicBool, Ordering},
    };

    use tracing::{
        Event, Metadata, Subscriber,
        span::{Attributes, Id, Record},
    };

    use super::*;
    use crate::{
        config::Config,
        storage::{DiskStorage, Intercepted, Operation},
    };

    /// Does something at the first thing that is logged.
    struct AtFirstEvent(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Subscriber for AtFirstEvent {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            let act = self.0.lock().take();
            if let Some(act) = act {
                act();
            }
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// P6: without its view the store has nothing to say about what is in its checkpoint, least of all that it is not
    /// there.
    #[test]
    fn a_store_that_has_lost_its_view_serves_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let is_closing = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&is_closing);
        let storage = Arc::new(Intercepted::new(DiskStorage, move |operation, _| {
            let is_refused = operation == Operation::Open && is_closed.load(Ordering::Relaxed);
            if is_refused {
                Err(io::ErrorKind::Other.into())
            } else {
                Ok(())
            }
        }));
        let config = Config {
            storage,
            journal_segment_bytes: 256 << 10,
            ..Config::new(directory.path())
        };
        let engine = Engine::open(config).expect("the store opens");
        let is_served = Arc::new(Mutex::new(None));
        let look = {
            let (engine, is_served) = (Arc::clone(&engine), Arc::clone(&is_served));
            move || *is_served.lock() = Some(engine.serving().is_ok())
        };
        is_closing.store(true, Ordering::Relaxed);
        let watching = AtFirstEvent(Mutex::new(Some(Box::new(look))));
        tracing::subscriber::with_default(watching, || recover_store(&engine));
        assert_eq!(
            *is_served.lock(),
            Some(false),
            "served before the failure was told"
        );
        is_closing.store(false, Ordering::Relaxed);
        engine.shut_down(false);
    }

    fn job(sequence: u64) -> Job {
        let place = Place {
            position: 0,
            sequence,
            incarnation: 1,
        };
        Job {
            generation: Arc::new(Generation::new()),
            place,
            journal: Folded::default(),
        }
    }

    /// The number of the job that waits, if one does.
    fn waiting(desk: &Checkpoints) -> Option<u64> {
        desk.inner.lock().job.as_ref().map(|job| job.place.sequence)
    }

    /// A lost one would be the last: its generation stays frozen, and no other is frozen beside it.
    #[test]
    fn a_checkpoint_handed_in_while_another_ends_is_made_next() {
        let desk = Checkpoints::default();
        desk.submit(job(1));
        let running = desk.next().expect("nobody stopped it");
        assert_eq!((running.place.sequence, waiting(&desk)), (1, None));
        desk.submit(job(2));
        desk.succeeded(Monotonic::default());
        assert_eq!(waiting(&desk), Some(2));
    }

    #[test]
    fn a_failed_checkpoint_waits_to_be_made_again_and_a_return_to_the_durable_state_forgets_it() {
        let desk = Checkpoints::default();
        desk.submit(job(1));
        let running = desk.next().expect("nobody stopped it");
        drop(running);
        desk.failed("the disk is full", Monotonic::default());
        assert_eq!(desk.report(), (0, Some("the disk is full".to_owned())));
        assert!(!desk.is_due_again(), "it waits");
        desk.inner.lock().failed = Instant::now().checked_sub(RETRY);
        assert!(desk.is_due_again());
        assert!(!desk.is_due_again(), "it is tried once");
        desk.submit(job(2));
        desk.quiesce();
        assert_eq!(waiting(&desk), None);
    }
}
