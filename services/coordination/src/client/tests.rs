//! D4: what a client waits for that its store has lost.

use std::sync::Arc;

use simulated::{Options, World};

use super::*;
use crate::{
    Config,
    storage::session::RENEWALS_PER_TIMEOUT,
    test_fixture::{Stage, TIMEOUT},
};

/// D4, C-6: its requests were lost with the store of the queues, which is none of the others.
#[test]
fn a_client_whose_queue_has_restarted_is_told_to_come_again() {
    simulated::run(async {
        let stage = Stage::new(Options::default(), Config::default()).await;
        let (queues, shared) = (World::new(2), stage.shared(stage.store()).await);
        let mut shared = Arc::into_inner(shared).expect("nobody else has it");
        shared.queue = queues.queue();
        let shared = Arc::new(shared);
        let mut client = stage.client(&shared, 1).await;
        for restarts in [false, true] {
            if restarts {
                queues.fall_back();
            }
            client.is_here();
            shared.clock.sleep(TIMEOUT / RENEWALS_PER_TIMEOUT).await;
            let pumped = client.pump(&mut Vec::new()).await;
            assert_eq!(
                matches!(pumped, Err(Ended::Store(_))),
                restarts,
                "{pumped:?}"
            );
        }
    });
}

/// C-6: the row says how long it was silent before its last renewal, and whoever judges it believes that.
#[test]
fn a_silent_client_speaks_until_its_timeout_is_over_from_its_last_word() {
    simulated::run(async {
        let stage = Stage::new(Options::default(), Config::default()).await;
        let shared = stage.shared(stage.store()).await;
        let mut client = stage.client(&shared, 1).await;
        let (began, eighth) = (
            shared.clock.monotonic(),
            TIMEOUT / (2 * RENEWALS_PER_TIMEOUT),
        );
        client.shared.clock.sleep(eighth).await;
        client.is_here();
        // Heard after an eighth, renewed after two, said to be silent after six.
        for eighths in [1, 2, 6, 8] {
            let due = began + eighth * eighths;
            shared
                .clock
                .sleep(due.since(shared.clock.monotonic()))
                .await;
            client.pump(&mut Vec::new()).await.expect("its lease holds");
        }
        assert_eq!(
            stage.row(client.session()).await.silent_before,
            Some(eighth)
        );
        shared.clock.sleep(eighth).await;
        let pumped = client.pump(&mut Vec::new()).await;
        assert!(matches!(pumped, Err(Ended::LeaseLost)), "{pumped:?}");
    });
}
