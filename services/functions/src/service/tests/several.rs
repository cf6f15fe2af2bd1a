//! A3 where several processes have the same functions over one store: an event is run whoever has sent it, and whoever is gone.

use in_process::{Functions, SystemEntropy};

use super::*;

/// A process that runs functions: what it has, and what it has run.
struct Process {
    service: Service,
    runtime: Arc<Idle>,
    functions: Arc<Functions>,
}

impl Process {
    fn of(world: &World) -> Self {
        let hidden = Duration::from_secs(5);
        let functions = Arc::new(Functions::over_shared_queue(
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

    /// It takes nothing from here on.
    fn dies(&self) {
        self.functions.stop();
    }
}

/// Two processes with the function `one`, of which no event was ever sent.
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
fn an_event_whose_sender_has_died_is_taken_by_another_process_that_sees_it() {
    run(async {
        let world = World::new(1);
        let [one, other] = two(&world).await;
        one.runtime.is_full.send_replace(true);
        let id = one.service.send("one", "{}".into()).await.expect("sent");
        one.dies();
        seconds(&world, 60).await;
        assert_eq!(other.runtime.asked(), 0, "nobody has told it of the queue");
        other.service.look_at_queues().await.expect("it looks");
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
fn what_is_redriven_is_taken_by_the_process_that_was_asked_to() {
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

/// A3: no look at more than a thousand queues, and none is left out for ever; nor is one behind a queue that cannot be asked.
#[test]
fn functions_beyond_those_of_one_look_are_looked_at_in_turn() {
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
        other.service.look_at_queues().await.expect("it looks");
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
            .look_at_queues()
            .await
            .expect_err("the store is away");
        world.faults().calm();
        for _ in 0..2 {
            other.service.look_at_queues().await.expect("it looks");
        }
        let seen = other.service.figures().events_waiting;
        seconds(&world, 60).await;
        assert!(other.runtime.asked() > 0 && seen == 1, "{seen}");
    });
}
