//! D4: what a client waits for that its store has lost.

use std::sync::Arc;

use simulated::{Options, World};

use super::*;
use crate::{
    Config,
    stage::{Stage, TIMEOUT},
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
            assert_eq!(matches!(pumped, Err(Ended::Store(_))), restarts, "{pumped:?}");
        }
    });
}
