//! A trigger that keeps its thread busy has one of its own, until it is calm again.

#![allow(
    clippy::disallowed_methods,
    reason = "this test runs on real threads, in real time"
)]

use std::{
    sync::{LazyLock, Mutex, atomic::AtomicBool},
    thread,
};

use ports::{
    Functions as _, Handler, Queue,
    functions::{Failure, FunctionOptions},
};
use simulated::World;
use tokio::{runtime::Builder, sync::Notify, time::timeout};

use super::*;

const PATIENCE: Duration = Duration::from_mins(2);

/// How long a busy function takes, and how long a calm one is idle.
const TURN: Duration = Duration::from_millis(2);

/// More than the messages that two windows of the load take.
const MESSAGES_MAX: usize = 100;

/// The clock by which the load is measured. Time passes only where the test lets it pass.
static CLOCK: LazyLock<Mutex<Clock>> = LazyLock::new(|| {
    Mutex::new(Clock {
        now: Instant::now(),
        in_turn: false,
    })
});

struct Clock {
    now: Instant,
    /// Whether the trigger is in a turn: it asks for the time when one begins and when one ends.
    in_turn: bool,
}

fn ask_for_time() -> Instant {
    let mut clock = CLOCK.lock().expect("no panic while it is locked");
    clock.in_turn = !clock.in_turn;
    clock.now
}

/// Waits for a turn of the trigger, or for the end of one, and lets `time` pass there.
fn pass(in_turn: bool, time: Duration) {
    loop {
        let mut clock = CLOCK.lock().expect("no panic while it is locked");
        if clock.in_turn == in_turn {
            clock.now += time;
            return;
        }
        drop(clock);
        thread::yield_now();
    }
}

/// Takes a while if it is busy, and tells on which thread it ran.
#[derive(Debug, Default)]
struct Worker {
    is_busy: AtomicBool,
    thread: Mutex<Option<String>>,
    worked: Notify,
}

#[async_trait]
impl Handler for Worker {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        if self.is_busy.load(Ordering::SeqCst) {
            pass(true, TURN);
        }
        let name = thread::current().name().map(str::to_owned);
        *self.thread.lock().expect("no panic while it is locked") = name;
        self.worked.notify_one();
        Ok(Bytes::new())
    }
}

/// Sends one message after the other until the function runs on its own thread or not. A message
/// follows the turn of another one at once if the function is busy, and after a while if it is calm.
async fn send_until(queue: &dyn Queue, worker: &Worker, is_busy: bool) {
    worker.is_busy.store(is_busy, Ordering::SeqCst);
    let is_on_its_own = || {
        let thread = worker.thread.lock().expect("no panic while it is locked");
        thread.as_deref() == Some("functions")
    };
    for _ in 0..MESSAGES_MAX {
        if is_on_its_own() == is_busy {
            return;
        }
        let message = Message {
            group: "one".into(),
            deduplication: None,
            body: Bytes::new(),
        };
        queue.send("work", vec![message]).await.expect("it is sent");
        let worked = timeout(PATIENCE, worker.worked.notified()).await;
        worked.expect("the message arrives");
        // A trigger looks at its load between two turns. A message that comes before this turn has
        // ended would prolong it.
        pass(false, if is_busy { Duration::ZERO } else { TURN });
    }
    panic!("it stays where it is");
}

#[test]
fn a_busy_trigger_has_a_thread_until_it_is_calm() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let queue: Arc<dyn Queue> = World::new(1).queue();
        let created = queue.create("work", QueueOptions::default()).await;
        created.expect("the queue is made");
        let worker = Arc::<Worker>::default();
        let functions = Functions::with(
            queue.clone(),
            Visibility::BeyondTimeout,
            &SystemEntropy::default(),
            Some(BusyThread::new(ask_for_time)),
        );
        functions.register(Definition {
            name: "works".into(),
            options: FunctionOptions::default(),
            handler: worker.clone(),
        });
        let trigger = QueueTrigger {
            queue: "work".into(),
            function: "works".into(),
            batch_messages_max: 1,
            groups_max: 1,
        };
        let armed = functions.arm_queue(trigger).await;
        armed.expect("the trigger is armed");
        for is_busy in [true, false, true] {
            send_until(&*queue, &worker, is_busy).await;
        }
        functions.stop();
    });
}
