//! C-3: the state that a starting process finds, and the triggers that it arms.

use std::sync::Mutex;

use ports::{Functions, decorate::FunctionsDecorator};
use simulated::Options;

use super::*;
use crate::{
    model::Lifetime,
    tests::{Fixture, create},
};

/// A generous bound; the work takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Functions that note the armed triggers.
#[derive(Debug)]
struct Triggers(Arc<dyn Functions>, Mutex<Vec<QueueTrigger>>);

impl FunctionsDecorator for Triggers {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        let mut armed = self.1.lock().expect("no panic while it is locked");
        armed.push(trigger);
        Ok(())
    }
}

/// A message holds many requests, and an invocation of the writer has to end in time.
#[test]
fn one_invocation_receives_a_bounded_number_of_requests() {
    simulated::run(async {
        let fixture = Fixture::new(Options::default(), Config::default()).await;
        let env = fixture.env(fixture.store());
        let functions = Arc::new(Triggers(env.parts.functions.clone(), Mutex::default()));
        let parts = Parts {
            functions: functions.clone(),
            ..env.parts.clone()
        };
        let service = Service::new(parts, Config::default());
        service.start().await.expect("it starts");
        let armed = functions.1.lock().expect("no panic while it is locked");
        let writer = armed.iter().find(|one| one.function == queue_names::WRITER);
        let most = writer.expect("it is armed").batch_messages_max;
        assert_eq!(most * queue_names::MESSAGE_RECORDS_MAX, 256);
    });
}

/// An outbox that does not decode does not prevent a process from starting.
#[test]
fn a_process_starts_despite_an_outbox_that_does_not_decode() {
    simulated::run(async {
        let fixture = Fixture::new(Options::default(), Config::default()).await;
        // The other sessions are in the same partition, before and after it.
        let (before, session, behind) = (
            fixture.open(4).await,
            fixture.open(8).await,
            fixture.open(12).await,
        );
        fixture.damage_outbox(session).await;
        for (session, path) in [(before, "/before"), (behind, "/behind")] {
            fixture
                .decided(session, vec![create(path, Lifetime::Persistent)])
                .await;
        }
        // The queues are transient, so their messages are pushed again.
        fixture.restart().await;
        let world = &fixture.world;
        let parts = Parts {
            system: world.key_value(),
            items: world.key_value(),
            objects: world.objects(),
            queue: world.queue(),
            functions: world.functions(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let service = Arc::new(Service::new(parts, Config::default()));
        for definition in service.functions() {
            world.functions().register(definition);
        }
        service.start().await.expect("it starts");
        let (follower, clock) = (service.clone(), world.clock());
        tokio::spawn(async move { follower.run().await });
        tokio::select! {
            biased;
            () = service.tail.reached(Zxid(2)) => {}
            () = clock.sleep(PATIENCE) => panic!("the other sessions' decisions are not applied"),
        }
    });
}
