//! C-6, D4: clients whose answers the store has lost, and clients without activity.

use std::sync::Arc;

use simulated::{Options, World};

use super::*;
use crate::{
    Config,
    environment::Environment,
    storage::session::RENEWALS_PER_TIMEOUT,
    tests::{Fixture, TIMEOUT},
};

/// C-6, D4: the client's requests were lost with the queues' store, which is separate from the
/// other stores.
#[test]
fn a_client_whose_queue_has_restarted_must_reconnect() {
    simulated::run(async {
        let fixture = Fixture::new(Options::default(), Config::default()).await;
        let queues = World::new(2);
        let env = fixture.env(fixture.store());
        let Environment { mut parts, config } = Arc::into_inner(env).expect("the only reference");
        parts.queue = queues.queue();
        let tail = Fixture::tail_of(Arc::new(Environment { parts, config })).await;
        let mut client = fixture.client(&tail, 1).await;
        for restarts in [false, true] {
            if restarts {
                queues.fall_back();
            }
            client.note_activity();
            fixture
                .world
                .clock()
                .sleep(TIMEOUT / RENEWALS_PER_TIMEOUT)
                .await;
            let pumped = client.pump(&mut Vec::new()).await;
            assert_eq!(
                matches!(pumped, Err(Ended::Store(_))),
                restarts,
                "{pumped:?}"
            );
        }
    });
}

/// C-6: the row says how long the client was silent before its last renewal, and the failure
/// detector relies on that.
#[test]
fn the_lease_of_a_silent_client_lasts_one_timeout_from_its_last_message() {
    simulated::run(async {
        let fixture = Fixture::new(Options::default(), Config::default()).await;
        let (tail, clock) = (fixture.tail(fixture.store()).await, fixture.world.clock());
        let mut client = fixture.client(&tail, 1).await;
        let (began, eighth) = (clock.monotonic(), TIMEOUT / (2 * RENEWALS_PER_TIMEOUT));
        clock.sleep(eighth).await;
        client.note_activity();
        // Active after an eighth, renewed after two, recorded as silent after six.
        for eighths in [1, 2, 6, 8] {
            let due = began + eighth * eighths;
            clock.sleep(due.since(clock.monotonic())).await;
            client.pump(&mut Vec::new()).await.expect("its lease holds");
        }
        assert_eq!(
            fixture.row(client.session()).await.silent_before,
            Some(eighth)
        );
        clock.sleep(eighth).await;
        let pumped = client.pump(&mut Vec::new()).await;
        assert!(matches!(pumped, Err(Ended::LeaseLost)), "{pumped:?}");
    });
}
