//! A batch that never waits runs in one go, whatever it calls. In virtual time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use in_process::Functions;
use ports::{
    Event, Functions as _, Handler, Queue,
    functions::{Definition, Failure, FunctionOptions, QueueTrigger},
    queue::{Message, QueueOptions},
};
use simulated::World;
use tokio::{sync::Notify, task::coop::consume_budget};

const GROUPS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// More calls than a task's budget allows in one turn.
const CALLS: usize = 1000;

/// Makes many calls that never wait, and notes if another batch began meanwhile.
#[derive(Debug, Default)]
struct Caller {
    is_busy: AtomicBool,
    met_another: AtomicBool,
    done: AtomicUsize,
    all_done: Notify,
}

#[async_trait]
impl Handler for Caller {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            self.met_another.store(true, Ordering::SeqCst);
        }
        for _ in 0..CALLS {
            consume_budget().await;
        }
        self.is_busy.store(false, Ordering::SeqCst);
        if self.done.fetch_add(1, Ordering::SeqCst) + 1 == GROUPS.len() {
            self.all_done.notify_one();
        }
        Ok(Bytes::new())
    }
}

/// A batch interrupted by its task's budget keeps its locks, and the batches of the other groups
/// would wait for these.
#[test]
fn a_batch_that_never_waits_is_not_interrupted_by_another_group() {
    simulated::run(async {
        let queue: Arc<dyn Queue> = World::new(1).queue();
        let created = queue.create("work", QueueOptions::default()).await;
        created.expect("the queue is made");
        let message = |group: &'static str| Message {
            group: group.into(),
            deduplication: None,
            body: Bytes::new(),
        };
        let sent = queue.send("work", GROUPS.map(message).into()).await;
        sent.expect("send answers");
        let caller = Arc::<Caller>::default();
        let functions = Functions::new(queue);
        functions.register(Definition {
            name: "calls".into(),
            options: FunctionOptions::default(),
            handler: caller.clone(),
        });
        let trigger = QueueTrigger {
            queue: "work".into(),
            function: "calls".into(),
            batch_messages_max: 1,
            groups_max: 1,
        };
        let armed = functions.arm_queue(trigger).await;
        armed.expect("the trigger is armed");
        caller.all_done.notified().await;
        functions.stop();
        assert!(!caller.met_another.load(Ordering::SeqCst));
    });
}
