//! Checkpoints: a frozen generation goes to the checkpoint store, and the journal that it covers is
//! removed.
//!
//! The journal thread freezes the overlay at the end of a group, and hands it over once that group
//! is durable. One transaction writes the generation and its end in the journal. Only then does the
//! overlay drop it, and only then do whole segments leave the journal, oldest first.
//!
//! Failure at each step:
//! - A crash before the transaction's commit leaves the earlier checkpoint and the whole journal.
//! - A crash after it leaves segments that are no longer needed, which the next open removes.
//! - A failed transaction changes nothing. Its generation is merged back into the active one, and a
//!   later checkpoint writes it without the records deleted meanwhile.
//! - A transaction that meets a full disk is first repeated in [`parts`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use ports::{DurabilityPoint, LogThrottle, Monotonic};

use super::Engine;
use crate::{
    checkpoint_store::{self, CheckpointEnd, Expiring, StoreError},
    journal::usage::Folded,
    records::overlay::Generation,
    store::{now_ms, refresh_cache},
};

mod parts;

/// How long a failed checkpoint waits. The next commit after that repeats it.
const RETRY: Duration = Duration::from_secs(1);

/// How often the checkpoint thread looks whether the store is at rest.
const REST: Duration = Duration::from_secs(1);

/// The number of looks after the last commit of a store with many records.
const LOOKS: u32 = 16;

/// A store is at rest if its changes in this time are at most this part of its records. The
/// checkpoint then costs less than the changes before it did.
const REST_PART: u64 = 16;

/// While checkpoints fail, the journal may grow to this many times `checkpoint_bytes`, and memory
/// with it.
const JOURNAL_WITHOUT_CHECKPOINTS: u64 = 4;

/// Why growth is refused if the last checkpoint found no room, or used the space that the next one
/// needs to apply deletions.
const NO_ROOM: &str = "no checkpoint would have room for them";

/// A frozen generation and its end.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) generation: Arc<Generation>,
    pub(crate) checkpoint_end: CheckpointEnd,
    /// How far it covers the journal.
    pub(crate) journal: Folded,
}

/// The hand-over to the checkpoint thread. At most one job waits beside the running one. The
/// journal thread submits the next job as soon as the overlay dropped the last generation, which is
/// before the running job ends.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// The waiting job.
    job: Option<Job>,
    /// When the last checkpoint failed, until it is due again.
    failed: Option<Instant>,
    running: bool,
    stop: bool,
    /// How often the thread still looks whether the store is at rest. An idle store never wakes.
    looks: u32,
    count: u64,
    /// Consecutive failures.
    outage: LogThrottle,
}

/// What the checkpoint thread does next.
#[derive(Debug)]
enum Next {
    Job(Job),
    Look,
}

impl Job {
    /// A checkpoint of a frozen generation that ends at `end`, all of which the journal holds
    /// durably. `journal` is its whole length.
    pub(crate) fn new(generation: Arc<Generation>, end: DurabilityPoint, journal: Folded) -> Self {
        Self {
            generation,
            checkpoint_end: CheckpointEnd {
                position: end.position.0,
                sequence: journal.sequence,
                incarnation: end.incarnation.0,
            },
            journal,
        }
    }
}

impl Checkpoints {
    pub(crate) fn submit(&self, job: Job) {
        let mut inner = self.inner.lock();
        inner.job = Some(job);
        inner.failed = None;
        self.changed.notify_all();
    }

    /// Whether a failed checkpoint is due again. If so, the caller must start it.
    pub(crate) fn is_due_again(&self) -> bool {
        let mut inner = self.inner.lock();
        let is_due = inner.failed.is_some_and(|failed| failed.elapsed() >= RETRY);
        if is_due {
            inner.failed = None;
        }
        is_due
    }

    /// Lets the thread look for a while whether a store with many records is at rest.
    pub(crate) fn watch_rest(&self) {
        let mut inner = self.inner.lock();
        if std::mem::replace(&mut inner.looks, LOOKS) == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for a running checkpoint and drops a waiting one.
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

    /// The number of checkpoints made, and why the last one failed if it did.
    pub(crate) fn report(&self) -> (u64, Option<String>) {
        let inner = self.inner.lock();
        (inner.count, inner.outage.reason().map(str::to_owned))
    }

    /// The next job, or a look whether the store is at rest if none comes. None once told to stop.
    fn next(&self) -> Option<Next> {
        let mut inner = self.inner.lock();
        loop {
            if inner.stop {
                return None;
            }
            if let Some(job) = inner.job.take() {
                inner.running = true;
                return Some(Next::Job(job));
            }
            if inner.looks == 0 {
                self.changed.wait(&mut inner);
            } else if self.changed.wait_for(&mut inner, REST).timed_out() {
                inner.looks -= 1;
                return Some(Next::Look);
            }
        }
    }

    fn succeeded(&self, now: Monotonic) {
        let mut inner = self.inner.lock();
        inner.running = false;
        if let Some(lasted) = inner.outage.ended(now) {
            tracing::info!(?lasted, "checkpoints succeed again");
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
                "checkpoints fail and are retried; no data is lost"
            );
        }
        inner.failed = Some(Instant::now());
        self.changed.notify_all();
    }
}

/// Runs until told to stop.
pub(crate) fn run(engine: &Arc<Engine>) {
    let mut position = 0;
    while let Some(next) = engine.checkpoints.next() {
        let Next::Job(job) = next else {
            position = checkpoint_at_rest(engine, position);
            continue;
        };
        match fold(engine, &job) {
            Ok(()) => {
                drop(job);
                engine.checkpoints.succeeded(Monotonic(engine.now()));
            }
            Err(error) => {
                reopen_store(engine);
                merge_back(engine, job, &error);
                engine
                    .checkpoints
                    .failed(&error.to_string(), Monotonic(engine.now()));
            }
        }
    }
}

/// Asks for a checkpoint if the store is at rest. Returns the position, for the next call.
fn checkpoint_at_rest(engine: &Engine, before: u64) -> u64 {
    let mut state = engine.state();
    let store = &mut state.store;
    let changes = store.position.abs_diff(before);
    let records = store.overlay.journaled_len();
    if store.overlay.frozen().is_none()
        && records >= engine.parts.config.records_at_rest_max
        && changes <= records as u64 / REST_PART
    {
        (store.checkpoint_wanted, store.is_at_rest) = (true, true);
        engine.parts.durability.force();
    }
    let position = store.position;
    drop(state);
    return_memory();
    position
}

/// Sizes of blocks that the checkpoint thread rarely needs, each of another size class, in bytes.
const RARE_SIZES: [usize; 5] = [20 << 10, 40 << 10, 80 << 10, 160 << 10, 320 << 10];

/// Lets the allocator return memory that was freed a while ago. It does so when a thread frees a
/// large block, and a store at rest frees none. It also keeps the last empty page of each size
/// class until the thread has asked a few times for sizes of which it has none.
fn return_memory() {
    for bytes in RARE_SIZES.into_iter().chain([8 << 20]) {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(bytes)));
    }
}

/// Writes the last checkpoint, after both threads have ended. The next open then has no journal to
/// read.
pub(crate) fn finish(engine: &Engine) {
    let waiting = engine.checkpoints.inner.lock().job.take();
    if let Some(job) = waiting
        && let Err(error) = fold(engine, &job)
    {
        tracing::warn!(%error, "no checkpoint was made at close; the journal holds everything");
        return;
    }
    let job = {
        let mut state = engine.state();
        if state.health != crate::status::Health::Serving
            || engine.parts.durability.durable() != state.store.point()
            || state.store.overlay.frozen().is_some()
        {
            return;
        }
        let (generation, end) = (state.store.overlay.freeze(), state.store.point());
        Job::new(generation, end, engine.parts.usage.whole())
    };
    if let Err(error) = fold(engine, &job) {
        tracing::warn!(%error, "no checkpoint was made at close; the journal holds everything");
    }
}

fn fold(engine: &Engine, job: &Job) -> Result<(), StoreError> {
    match engine.parts.checkpoint_store.write(
        job.generation.in_order(),
        job.checkpoint_end,
        Expiring::by(now_ms()),
    ) {
        Err(error) if checkpoint_store::is_full(&error) => {
            reopen_store(engine);
            engine.parts.spare.release_kept();
            parts::fold(engine, job)?;
        }
        folded => folded?,
    }
    engine.parts.checkpoint_store.end_parts();
    let view = engine.parts.checkpoint_store.view()?;
    let (cache, is_at_rest) = {
        let store = &mut engine.state().store;
        (
            Arc::clone(&store.cache),
            std::mem::take(&mut store.is_at_rest),
        )
    };
    refresh_cache(&cache, &job.generation, is_at_rest);
    let (earlier_view, dropped) = {
        let mut state = engine.state();
        state.store.is_view_lost = false;
        (
            std::mem::replace(&mut state.store.view, view),
            state.store.overlay.drop_frozen(),
        )
    };
    drop((earlier_view, dropped));
    engine.parts.usage.note_folded(job.journal);
    engine.parts.remove_folded();
    engine.parts.ballast.refill();
    engine.parts.spare.grow(0);
    make_room_for_the_next(engine);
    Ok(())
}

/// After a checkpoint, notes whether there is room for the next one. If necessary, it also makes
/// the journal leave its current segment, because only a segment that is no longer written can be
/// removed. That applies to a full segment whose content the checkpoint store holds, or to one
/// nearly full if the disk has no room for a whole one.
fn make_room_for_the_next(engine: &Engine) {
    let refused = (!has_room_for_the_next(engine)).then_some(NO_ROOM);
    let spare = &engine.parts.spare;
    let wanted = 2 * spare.reserve_bytes();
    let (is_refusing, is_running_out) = {
        let mut state = engine.state();
        state.store.refuse_growth(refused);
        state.store.spare_room = spare.room();
        if state.store.checkpoint_wanted {
            // A rotation during this checkpoint asked for another one, and no later change may
            // come.
            engine.parts.durability.force();
        }
        let is_worth_it = spare.is_short() && engine.parts.usage.current_room() >= 2 * wanted;
        (
            !spare.has_room(),
            is_worth_it && state.store.tail_room < wanted,
        )
    };
    if !is_refusing && !is_running_out {
        return;
    }
    if spare.grow_to_go_on(wanted) < wanted && is_refusing && engine.parts.ballast.release().is_ok()
    {
        spare.grow_anyway(wanted);
        engine.parts.ballast.acquire();
    }
    let mut state = engine.state();
    state.store.spare_room = spare.room();
    // A segment that itself has this much room is left when it is full.
    if state.store.spare_room >= wanted && state.store.tail_room < wanted {
        state.store.rotation_wanted = true;
        engine.parts.durability.force();
    }
}

/// Whether the next checkpoint can apply deletions even if the disk is full by then. Only if the
/// disk has no room for the whole ballast is the checkpoint store searched for free space.
fn has_room_for_the_next(engine: &Engine) -> bool {
    let (whole, held) = (
        engine.parts.ballast.whole_bytes(),
        engine.parts.ballast.bytes(),
    );
    held == whole
        || engine
            .parts
            .checkpoint_store
            .room()
            .is_ok_and(|room| held + room >= whole / 2)
}

/// Merges the generation of a failed checkpoint back. A later one is made from the state at that
/// time, in which deleted records need no room.
fn merge_back(engine: &Engine, job: Job, error: &redb::Error) {
    drop(job);
    let is_too_much = engine.parts.usage.bytes()
        >= JOURNAL_WITHOUT_CHECKPOINTS * engine.parts.config.checkpoint_bytes.max(1);
    let mut state = engine.state();
    state.store.overlay.merge_frozen_back();
    if checkpoint_store::is_full(error) {
        state.store.refuse_growth(Some(NO_ROOM));
    } else if is_too_much {
        state.store.refuse_growth(Some("checkpoints fail"));
    }
}

/// Opens the checkpoint store again, because after a failure it refuses everything, including
/// reads.
fn reopen_store(engine: &Engine) {
    let mut state = engine.state();
    if let Err(error) = state.store.open_below() {
        // Without its view, the store would report every item of the checkpoint as absent.
        engine.fail_from(state, &format!("open the checkpoint store: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicBool, Ordering},
    };

    use bytes::Bytes;
    use ports::{
        Externalize, Key, KeyValue, Update,
        key_value::{Name, Value},
    };
    use tracing::{
        Event, Metadata, Subscriber,
        span::{Attributes, Id, Record},
    };

    use super::*;
    use crate::{
        config::Config,
        key_value::Items,
        records::{self as stored, RecordKey, StoredItem, Table},
        storage::{
            DiskStorage,
            intercepted::{Intercepted, Operation},
        },
        store::UseReserve,
    };

    /// The longest wait for a checkpoint.
    const LONGEST: Duration = Duration::from_secs(30);

    /// Runs a closure at the first log event.
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

    /// P6: without its view the store cannot serve the items of the checkpoint, and must not report
    /// them as absent.
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
        tracing::subscriber::with_default(watching, || reopen_store(&engine));
        assert_eq!(
            *is_served.lock(),
            Some(false),
            "served before the failure was told"
        );
        is_closing.store(false, Ordering::Relaxed);
        engine.shut_down(false);
    }

    #[test]
    fn a_store_at_rest_frees_the_memory_of_its_records_and_a_busy_one_waits() {
        const RECORDS: u64 = 16;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = Config {
            journal_segment_bytes: 256 << 10,
            records_at_rest_max: RECORDS as usize,
            ..Config::new(directory.path())
        };
        let engine = Engine::open(config).expect("the store opens");
        let key = |number: u64| {
            RecordKey::new(Table::Item, Bytes::copy_from_slice(&number.to_be_bytes()))
        };
        let position = {
            let mut state = engine.state();
            let store = &mut state.store;
            for number in 0..RECORDS {
                let reserved = store.reserve(200, UseReserve::Whole);
                reserved.expect("there is room");
                let kept = StoredItem {
                    expires_ms: u64::MAX,
                    ..StoredItem::default()
                };
                let record = stored::Record::Item(kept);
                store.overlay.set(key(number), Some(record), false);
                store.order();
            }
            store.position
        };
        checkpoint_at_rest(&engine, position - RECORDS);
        assert!(!engine.state().store.checkpoint_wanted, "it is busy");
        checkpoint_at_rest(&engine, position - RECORDS / REST_PART);
        wait_for_a_checkpoint(&engine);
        let mut state = engine.state();
        assert_eq!((state.store.overlay.len(), state.store.cache.len()), (0, 0));
        assert!(matches!(state.store.record(&key(3)), Ok(Some(_))));
        drop(state);
        engine.shut_down(false);
    }

    fn wait_for_a_checkpoint(engine: &Engine) {
        let mut inner = engine.checkpoints.inner.lock();
        while inner.count == 0 {
            let waited = engine.checkpoints.changed.wait_for(&mut inner, LONGEST);
            assert!(!waited.timed_out(), "no checkpoint was made");
        }
    }

    /// D5: a checkpoint of renewals would repeat for as long as leases are renewed.
    #[tokio::test]
    async fn renewals_alone_lead_to_no_further_checkpoint() {
        const RECORDS: u64 = 5000;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let engine = Engine::open(Config::new(directory.path())).expect("the store opens");
        let items = Items {
            engine: Arc::clone(&engine),
            reserve: UseReserve::No,
        };
        let lease = |number: u64, until| {
            let until = (Name::from("until"), Value::Integer(until));
            Update::put(Key::new("leases", number.to_be_bytes()), vec![until])
        };
        for number in 0..RECORDS {
            items.update(lease(number, 0)).await.expect("it is made");
        }
        checkpoint_at_rest(&engine, engine.point().position.0);
        wait_for_a_checkpoint(&engine);
        engine.checkpoints.inner.lock().looks = 1;
        for until in 1..=5 {
            for number in 0..RECORDS {
                let renewal = lease(number, until).transient();
                items.update(renewal).await.expect("it is renewed");
            }
            checkpoint_at_rest(&engine, engine.point().position.0);
            // Once the second group is durable, all that follows the first is done.
            for _ in 0..2 {
                let made = items.update(lease(0, until)).await.expect("it is changed");
                let durable = items.externalize(made.receipt.point).await;
                durable.expect("it is durable");
            }
            let overlay = &engine.state().store.overlay;
            assert!(overlay.frozen().is_none(), "a checkpoint of renewals");
            assert_eq!(overlay.len() as u64, RECORDS, "a checkpoint of renewals");
            let inner = engine.checkpoints.inner.lock();
            assert_eq!(inner.count, 1);
            assert!(inner.looks <= 1, "the store looks for rest again");
        }
        engine.shut_down(false);
    }

    fn job(sequence: u64) -> Job {
        let checkpoint_end = CheckpointEnd {
            position: 0,
            sequence,
            incarnation: 1,
        };
        Job {
            generation: Arc::new(Generation::default()),
            checkpoint_end,
            journal: Folded::default(),
        }
    }

    /// The number of the waiting job, if there is one.
    fn waiting(checkpoints: &Checkpoints) -> Option<u64> {
        checkpoints
            .inner
            .lock()
            .job
            .as_ref()
            .map(|job| job.checkpoint_end.sequence)
    }

    /// A lost job would be the last one: its generation stays frozen, and only one may be frozen at
    /// a time.
    #[test]
    fn a_checkpoint_submitted_while_another_ends_is_made_next() {
        let checkpoints = Checkpoints::default();
        checkpoints.submit(job(1));
        let Some(Next::Job(running)) = checkpoints.next() else {
            panic!("a job waits")
        };
        assert_eq!(
            (running.checkpoint_end.sequence, waiting(&checkpoints)),
            (1, None)
        );
        checkpoints.submit(job(2));
        checkpoints.succeeded(Monotonic::default());
        assert_eq!(waiting(&checkpoints), Some(2));
    }

    #[test]
    fn a_failed_checkpoint_is_retried_unless_the_store_returned_to_its_durable_state() {
        let checkpoints = Checkpoints::default();
        checkpoints.submit(job(1));
        let Some(Next::Job(running)) = checkpoints.next() else {
            panic!("a job waits")
        };
        drop(running);
        checkpoints.failed("the disk is full", Monotonic::default());
        assert_eq!(
            checkpoints.report(),
            (0, Some("the disk is full".to_owned()))
        );
        assert!(!checkpoints.is_due_again(), "it waits");
        checkpoints.inner.lock().failed = Instant::now().checked_sub(RETRY);
        assert!(checkpoints.is_due_again());
        assert!(!checkpoints.is_due_again(), "it is tried once");
        checkpoints.submit(job(2));
        checkpoints.quiesce();
        assert_eq!(waiting(&checkpoints), None);
    }
}
