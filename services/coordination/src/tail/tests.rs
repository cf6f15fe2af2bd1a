//! C4, C-5, C-6: deliveries, kept changes, and the end of connections.

use ports::{Incarnation, Position};
use primitives::Appended;
use simulated::Options;

use super::*;
use crate::{
    Config,
    model::SessionId,
    records::{Change, UpdateId, encode},
    storage::user_store::Step,
    tests::{Call, Fixture, Side},
};

const SESSION: SessionId = SessionId(4);
const STRANGER: SessionId = SessionId(8);

async fn fixture() -> Fixture {
    Fixture::new(Options::default(), Config::default()).await
}

/// A tail with a position that follows nothing: the test makes its deliveries.
async fn positioned(fixture: &Fixture) -> Tail {
    let tail = Tail::new(fixture.env(fixture.world.key_value()));
    tail.start().await.expect("no fault is injected");
    tail
}

/// An update of `session` under `attach` that changes the data of `paths`.
fn update((session, attach): (SessionId, u64), paths: &[&str]) -> LogEntry {
    let events = paths
        .iter()
        .map(|path| Change {
            kind: EventKind::NodeDataChanged,
            path: (*path).to_owned(),
            acl: Bytes::new(),
        })
        .collect();
    let id = UpdateId {
        session,
        sequence: 1,
    };
    LogEntry {
        id,
        attach,
        request: 1,
        answer: Ok(UpdateAnswer::Deleted),
        events,
    }
}

/// Delivers `entries` as the next slot.
fn deliver(tail: &Tail, entries: Vec<LogEntry>) {
    let slot = Slot {
        first: Zxid(tail.applied().0 + 1),
        entries,
        statistics: Vec::new(),
    };
    let point = DurabilityPoint {
        incarnation: Incarnation(1),
        position: Position(1),
    };
    tail.deliver(slot, point);
}

/// Slot `index`, which has one update, and its announcement.
fn handed_over(index: u64, incarnation: Incarnation) -> (Slot, Wake) {
    let slot = Slot {
        first: Zxid(index as i64),
        entries: vec![update((STRANGER, 1), &["/changed"])],
        statistics: Vec::new(),
    };
    let wake = Wake {
        previous: index - 1,
        index,
        epoch: 1,
        slot: encode(&slot),
        point: DurabilityPoint {
            incarnation,
            position: Position(index),
        },
    };
    (slot, wake)
}

/// The paths that changed after `since` and up to `until`.
fn changed(tail: &Tail, since: i64, until: i64) -> Option<Vec<String>> {
    tail.changes(Zxid(since), Zxid(until), |change| Some(change.path.clone()))
}

/// C-5: a result at a zxid does not include later changes.
#[test]
fn changes_are_those_between_two_zxids() {
    simulated::run(async {
        let tail = positioned(&fixture().await).await;
        let of = |path| update((STRANGER, 1), &[path]);
        deliver(&tail, vec![of("/1"), of("/2")]);
        deliver(&tail, vec![of("/3"), of("/4")]);
        assert_eq!(changed(&tail, 1, 3), Some(vec!["/2".into(), "/3".into()]));
        assert_eq!(changed(&tail, 3, 3), Some(vec![]));
        assert_eq!(changed(&tail, 0, 4).map(|all| all.len()), Some(4));
    });
}

/// C-5: once changes are dropped, their absence does not mean that nothing changed.
#[test]
fn dropped_changes_are_not_reported_as_none() {
    const MANY: usize = 1_500;
    simulated::run(async {
        let tail = positioned(&fixture().await).await;
        deliver(&tail, vec![update((STRANGER, 1), &["/seen"])]);
        for _ in 0..MANY {
            deliver(&tail, vec![update((STRANGER, 1), &["/other"])]);
        }
        let last = tail.applied();
        assert_eq!(changed(&tail, 0, last.0), None);
        assert_eq!(
            changed(&tail, last.0 - 1, last.0),
            Some(vec!["/other".into()])
        );
    });
}

/// D4: the zxids of a lost position may belong to other updates in the next.
#[test]
fn changes_of_a_lost_position_are_dropped() {
    simulated::run(async {
        let fixture = fixture().await;
        let tail = positioned(&fixture).await;
        deliver(&tail, vec![update((STRANGER, 1), &["/lost"])]);
        tail.disconnect_all();
        tail.start().await.expect("no fault is injected");
        deliver(&tail, vec![update((STRANGER, 1), &["/kept"])]);
        assert_eq!(changed(&tail, 0, 1), Some(vec!["/kept".into()]));
        tail.disconnect_all();
        let step = Step {
            previous: 0,
            slot: 1,
            epoch: 1,
            last: Zxid(5),
        };
        let applied = tail
            .region
            .apply(
                &mut fixture.system(),
                step,
                &[],
                &[],
                crate::storage::user_store::Growth::default(),
            )
            .await;
        assert!(applied.expect("no fault is injected"));
        tail.start().await.expect("no fault is injected");
        assert_eq!(changed(&tail, 3, 5), None, "they are not delivered here");
        assert_eq!(changed(&tail, 5, 5), Some(vec![]));
    });
}

/// C-4, D4: a slot that is handed over is delivered at once if it is the next one of this position.
#[test]
fn a_slot_that_is_handed_over_is_delivered_in_its_turn() {
    simulated::run(async {
        let tail = positioned(&fixture().await).await;
        let incarnation = tail.last().expect("it has a position").incarnation;
        let hand_over = |index, incarnation| {
            let (slot, wake) = handed_over(index, incarnation);
            tail.deliver_now(slot, wake);
            tail.applied().0
        };
        assert_eq!(hand_over(2, incarnation), 0, "its predecessor is missing");
        assert_eq!(hand_over(1, incarnation), 1);
        tokio::select! {
            biased;
            failure = tail.follow() => panic!("{failure}"),
            () = tail.reached(Zxid(2)) => {}
        }
        assert_eq!(hand_over(3, incarnation), 3);
        let next = Incarnation(incarnation.0 + 1);
        assert_eq!(hand_over(4, next), 3, "the store may have lost slot 3");
        tail.follow().await;
        tail.disconnect_all();
        assert_eq!(hand_over(4, incarnation), 3, "there is no position");
    });
}

/// C-5: a slot that is delivered while the tail reads it from the log is delivered once.
#[test]
fn a_slot_that_is_handed_over_during_a_read_of_the_log_is_delivered_once() {
    simulated::run(async {
        let fixture = fixture().await;
        let store = fixture.store();
        let tail = Arc::new(Tail::new(fixture.env(store.clone())));
        tail.start().await.expect("no fault is injected");
        let incarnation = tail.last().expect("it has a position").incarnation;
        let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
        let taken = log.take_over(primitives::Cursor::START).await;
        let (mut writer, _) = taken.expect("no fault is injected");
        let (first, mut wake) = handed_over(1, incarnation);
        let (_, mut next) = handed_over(2, incarnation);
        for wake in [&mut wake, &mut next] {
            let appended = writer.append(wake.slot.clone()).await;
            let Ok(Appended::At(index, _)) = appended else {
                panic!("{appended:?}")
            };
            (wake.index, wake.previous) = (index.0, index.0 - 1);
        }
        wake.previous = 0;
        let hands_over = tail.clone();
        store.once(Side::After, |call| matches!(call, Call::Scan), async move {
            hands_over.deliver_now(first, wake);
            Ok(())
        });
        tail.announce(next);
        tokio::select! {
            biased;
            failure = tail.follow() => panic!("{failure}"),
            () = tail.reached(Zxid(2)) => {}
        }
        assert!(store.is_through(), "it read the log");
        let all = changed(&tail, 0, 2).expect("they are kept");
        assert_eq!(all.len(), 2, "each once");
    });
}

/// The events in a queue.
fn events(event_queue: &EventQueue) -> Vec<ClientEvent> {
    std::iter::from_fn(|| event_queue.take(Zxid(i64::MAX))).collect()
}

/// C4, C6: the watch of a connection that was replaced during its read is neither armed nor fired
/// for its replacement.
#[test]
fn a_replaced_connection_leaves_no_watch() {
    simulated::run(async {
        let tail = positioned(&fixture().await).await;
        let (older, newer) = (
            Connection {
                session: SESSION,
                attach: 1,
            },
            Connection {
                session: SESSION,
                attach: 2,
            },
        );
        let (event_queue, of_newer) = (Arc::<EventQueue>::default(), Arc::<EventQueue>::default());
        tail.register(older, event_queue);
        tail.register(newer, of_newer.clone());
        let target = ReadTarget {
            path: "/watched".into(),
            watch: Some(Aspect::Data),
        };
        assert!(tail.arm_watch(&target, Zxid(0), older));
        assert_eq!(tail.counts().1, 0, "it would be armed");
        deliver(&tail, vec![update((STRANGER, 1), &["/watched"])]);
        assert!(tail.arm_watch(&target, Zxid(0), older));
        assert!(events(&of_newer).is_empty(), "it would be fired");
        // The active connection's watches are armed and fired.
        assert!(tail.arm_watch(&target, Zxid(0), newer));
        assert!(matches!(events(&of_newer)[..], [ClientEvent::Event { .. }]));
        assert!(tail.arm_watch(&target, Zxid(1), newer));
        assert_eq!(tail.counts().1, 1);
    });
}

/// C6: a connection that was replaced through another process learns this from the log, and
/// receives nothing of its replacement.
#[test]
fn an_update_of_a_later_attach_ends_the_earlier_connection() {
    simulated::run(async {
        let tail = positioned(&fixture().await).await;
        let event_queue = Arc::<EventQueue>::default();
        tail.register(
            Connection {
                session: SESSION,
                attach: 1,
            },
            event_queue.clone(),
        );
        deliver(&tail, vec![update((SESSION, 1), &["/own"])]);
        assert!(matches!(
            events(&event_queue)[..],
            [ClientEvent::Answer { .. }]
        ));
        deliver(&tail, vec![update((SESSION, 2), &["/others"])]);
        assert!(matches!(events(&event_queue)[..], [ClientEvent::Moved]));
        assert_eq!(tail.counts().0, 0);
        tokio::select! {
            biased;
            () = event_queue.arrived() => {}
            () = std::future::ready(()) => panic!("it is not woken"),
        }
    });
}

/// C9: the ACL that travels with a change decides who learns of it. As in ZooKeeper, the watch of
/// another is gone.
#[test]
fn an_event_reaches_only_connections_that_may_read_the_znode() {
    simulated::run(async {
        let tail = positioned(&fixture().await).await;
        let (client, event_queue) = (
            Connection {
                session: SESSION,
                attach: 1,
            },
            Arc::<EventQueue>::default(),
        );
        tail.register(client, event_queue.clone());
        let user = Identity {
            scheme: "digest".into(),
            id: "user:hash".into(),
        };
        let target = ReadTarget {
            path: "/watched".into(),
            watch: Some(Aspect::Data),
        };
        let mut private = update((STRANGER, 1), &["/watched"]);
        private.events[0].acl = access::encode(&[crate::model::Acl {
            permissions: access::READ,
            scheme: user.scheme.clone(),
            id: user.id.clone(),
        }]);
        for (identities, expected) in [(vec![], 0), (vec![user], 1)] {
            tail.identify(client, identities);
            // The watch is armed before the change, and after it as of before.
            let at = tail.applied();
            for _ in 0..2 {
                assert!(tail.arm_watch(&target, at, client));
                if tail.applied() == at {
                    deliver(&tail, vec![private.clone()]);
                }
                assert_eq!(events(&event_queue).len(), expected);
                assert_eq!(tail.counts().1, 0, "it has fired");
            }
        }
    });
}
