//! C-3: the state that a starting process finds.

use simulated::Options;

use super::*;
use crate::{
    model::Lifetime,
    tests::{Fixture, create},
};

/// A generous bound; the work takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

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
