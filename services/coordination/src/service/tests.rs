//! C-3: what a start finds.

use simulated::Options;

use super::*;
use crate::{
    model::Lifetime,
    test_fixture::{Stage, create},
};

/// All of it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one session has left, and nobody can read, keeps no process from starting.
#[test]
fn a_process_starts_beside_an_outbox_that_does_not_decode() {
    simulated::run(async {
        let stage = Stage::new(Options::default(), Config::default()).await;
        // The others are in the same partition, before it and behind it.
        let (before, session, behind) = (
            stage.open(4).await,
            stage.open(8).await,
            stage.open(12).await,
        );
        stage.damage_outbox(session).await;
        for (session, path) in [(before, "/before"), (behind, "/behind")] {
            stage
                .decided(session, vec![create(path, Lifetime::Persistent)])
                .await;
        }
        // The queues are transient: what they had is pushed again.
        stage.restart().await;
        let world = &stage.world;
        let parts = Parts {
            system: world.key_value(),
            regions: vec![Region {
                items: world.key_value(),
                objects: world.objects(),
            }],
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
            () = clock.sleep(PATIENCE) => panic!("what the others had decided is not applied"),
        }
    });
}
