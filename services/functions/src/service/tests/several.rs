//! A3 among several processes with the same functions over one store: an event runs whichever
//! process sent it, even if that process is gone.

use in_process::{Functions, SystemEntropy};

use super::*;

/// A process that runs functions.
struct Process {
    service: Service,
    runtime: Arc<Idle>,
    functions: Arc<Functions>,
}

impl Process {
    fn of(world: &World) -> Self {
        let hidden = Duration::from_secs(5);
        let functions = Arc::new(Functions::beside_others(
            world.queue(),
            hidden,
            &SystemEntropy::default(),
        ));
        let (service, runtime) = service_over(world, true, Arc::clone(&functions) as Arc<_>);
        Self {
            service,
            runtime,
            functions,
        }
    }

    /// It takes no more events.
    fn dies(&self) {
        self.functions.stop();
    }
}

/// Two processes with the function `one`, to which no event was ever sent.
async fn two(world: &World) -> [Process; 2] {
    let [one, other] = [Process::of(world), Process::of(world)];
    one.service
        .deploy("shop", archive("one"))
        .await
        .expect("deployed");
    other.service.start().await.expect("started");
    seconds(world, 10).await;
    [one, other]
}

async fn seconds(world: &World, seconds: u64) {
    world.clock().sleep(Duration::from_secs(seconds)).await;
}

/// A3.
#[test]
fn an_event_of_a_dead_sender_is_taken_by_a_process_that_polls() {
    run(async {
        let world = World::new(1);
        let [one, other] = two(&world).await;
        one.runtime.is_full.send_replace(true);
        let id = one.service.send("one", "{}".into()).await.expect("sent");
        one.dies();
        seconds(&world, 60).await;
        assert_eq!(other.runtime.asked(), 0, "it does not know of the queue");
        other.service.poll_queues().await.expect("it looks");
        seconds(&world, 60).await;
        assert!(
            other
                .runtime
                .asked_of("one")
                .iter()
                .any(|asked| asked.id == id)
        );
        assert_eq!(one.runtime.asked(), 0);
    });
}

/// A3.
#[test]
fn a_redriven_event_is_taken_by_the_process_that_redrives_it() {
    run(async {
        let world = World::new(1);
        let [one, other] = two(&world).await;
        let id = one.service.send("one", "{}".into()).await.expect("sent");
        seconds(&world, 3600).await;
        one.dies();
        let before = other.runtime.asked();
        *other.runtime.is_fit.lock() = |_| true;
        assert_eq!(
            other.service.redrive("one", None).await.expect("redriven"),
            1
        );
        seconds(&world, 60).await;
        assert_eq!(before, 0, "it has taken none of it so far");
        let again = other.runtime.asked_of("one");
        assert!(again.len() == 1 && again[0].id == id, "{again:?}");
    });
}

/// A3: a poll reads at most a thousand queues. No queue is left out forever, and one that cannot be
/// read does not block those after it.
#[test]
fn queues_beyond_one_poll_are_polled_in_turn() {
    run(async {
        let world = World::new(1);
        let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"";
        let many: Vec<_> = (0..1000)
            .map(|number| format!("[functions.f{number:03}]\n{table}\n"))
            .collect();
        let [one, other] = [Process::of(&world), Process::of(&world)];
        one.service
            .deploy("many", many.concat().into())
            .await
            .expect("deployed");
        one.service
            .deploy("shop", archive("last"))
            .await
            .expect("deployed");
        other.service.start().await.expect("started");
        seconds(&world, 10).await;
        one.runtime.is_full.send_replace(true);
        one.service.send("last", "{}".into()).await.expect("sent");
        one.dies();
        other.service.poll_queues().await.expect("it looks");
        seconds(&world, 60).await;
        assert_eq!(
            (
                other.runtime.asked(),
                other.service.figures().events_waiting
            ),
            (0, 0)
        );
        world.faults().refuse(percent(100));
        other
            .service
            .poll_queues()
            .await
            .expect_err("the store is away");
        world.faults().calm();
        for _ in 0..2 {
            other.service.poll_queues().await.expect("it looks");
        }
        let seen = other.service.figures().events_waiting;
        seconds(&world, 60).await;
        assert!(other.runtime.asked() > 0 && seen == 1, "{seen}");
    });
}
