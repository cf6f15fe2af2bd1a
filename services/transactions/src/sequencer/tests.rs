use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::poll;
use ports::faults::{Fault, FaultSchedule, FaultyKeyValue};
use simulated::World;

use crate::{Config, Parts, Service, model::KeyspaceId, sequencer::proposal::Request};

use super::*;

/// While it is set, answers to changes of the store are delayed.
#[derive(Debug, Default)]
struct LateAnswers(AtomicBool);

impl FaultSchedule for LateAnswers {
    fn next(&self, operation: &'static str) -> Fault {
        let is_late = operation == "key_value.update" && self.0.load(Ordering::Relaxed);
        if is_late {
            Fault::DelayAnswer(std::time::Duration::from_secs(1))
        } else {
            Fault::None
        }
    }
}

fn commit(node: NodeId, sequence: u64) -> Proposal {
    let id = TransactionId::new(format!("t{sequence}")).expect("a name");
    let request = Request {
        observed: None,
        set: WriteSet::Inline(Vec::new()),
        effects: 0,
    };
    Proposal::to_commit(&id, Attempt { node, sequence }, request)
}

/// T11: no writer takes the slot of a dropped writer for its own. It would report a commit while
/// the log holds another transaction.
#[test]
fn what_a_dropped_writer_left_is_nobody_elses_slot() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::<LateAnswers>::default());
        let key_value = FaultyKeyValue::new(world.key_value(), faults.clone(), world.clock());
        let parts = Parts {
            key_value: Arc::new(key_value),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let service = Service::new(parts, Config::default());
        service.start().await.expect("a calm world");
        let core = &service.engine().calls;
        let node = core.serving.node().expect("it has started");
        core.sequencing
            .sequence_keyspace(&node, KeyspaceId::default())
            .await
            .expect("a calm world");
        let sequencer = node.sequencer().expect("it is alone");
        let order = |sequence| {
            let (proposal, seen) = (commit(node.id, sequence), sequencer.generation());
            Box::pin(
                core.sequencing
                    .order(&node, sequencer, proposal, Vec::new(), seen),
            )
        };
        faults.0.store(true, Ordering::Relaxed);
        let mut dropped = order(1);
        assert!(poll!(&mut dropped).is_pending(), "the answer comes later");
        drop(dropped);
        faults.0.store(false, Ordering::Relaxed);
        let answer = order(2).await;
        assert!(
            matches!(answer, Some(Err(Error::Unavailable(_)))),
            "{answer:?}"
        );
        assert!(node.store.is_fenced(), "it starts over");
    });
}
