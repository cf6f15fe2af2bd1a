//! C4, C-5, C-6: what is handed out, kept, and left behind.

use ports::Position;
use simulated::Options;

use super::*;
use crate::{
    distributor::LOG_PARTITION, records::UpdateId, storage::user_store::Step, test_fixture::Stage,
};

const SESSION: SessionId = SessionId(4);
const STRANGER: SessionId = SessionId(8);

async fn stage() -> Stage {
    Stage::new(Options::default(), Config::default()).await
}

/// A tail that has its place, and follows nothing: what is handed out says the test.
async fn placed(stage: &Stage) -> Tail {
    let (store, clock) = (stage.world.key_value(), stage.world.clock());
    let log = FencedLog::new(store.clone(), LOG_PARTITION);
    let tail = Tail::new(stage.region(store), log, clock, &Config::default());
    tail.start().await.expect("calm");
    tail
}

/// An update of `session` under `attach`, which changes the data of `paths`.
fn update((session, attach): (SessionId, u64), paths: &[&str]) -> Entry {
    let events = paths
        .iter()
        .map(|path| (EventKind::NodeDataChanged, (*path).to_owned()))
        .collect();
    let id = UpdateId {
        session,
        sequence: 1,
    };
    Entry {
        id,
        attach,
        request: 1,
        answer: Ok(Answer::Deleted),
        events,
    }
}

/// Hands `entries` out as the slot behind the view.
fn hand_out(tail: &Tail, entries: Vec<Entry>) {
    let slot = Slot {
        first: Zxid(tail.applied().0 + 1),
        entries,
    };
    let point = DurabilityPoint {
        incarnation: Incarnation(1),
        position: Position(1),
    };
    tail.hand_out(&Told {
        index: 1,
        epoch: 1,
        slot,
        point,
    });
}

/// The paths of what changed after `since`, up to `until`.
fn changed(tail: &Tail, since: i64, until: i64) -> Option<Vec<String>> {
    tail.changes(Zxid(since), Zxid(until), |change| Some(change.path.clone()))
}

/// C-5: what is shown as of a zxid says nothing of later ones.
#[test]
fn changes_are_those_between_two_zxids() {
    simulated::run(async {
        let tail = placed(&stage().await).await;
        let of = |path| update((STRANGER, 1), &[path]);
        hand_out(&tail, vec![of("/1"), of("/2")]);
        hand_out(&tail, vec![of("/3"), of("/4")]);
        assert_eq!(changed(&tail, 1, 3), Some(vec!["/2".into(), "/3".into()]));
        assert_eq!(changed(&tail, 3, 3), Some(vec![]));
        assert_eq!(changed(&tail, 0, 4).map(|all| all.len()), Some(4));
    });
}

/// C-5: of what is kept no more nobody says that nothing has changed.
#[test]
fn changes_that_are_forgotten_are_not_said_to_be_none() {
    const MANY: usize = 1_500;
    simulated::run(async {
        let tail = placed(&stage().await).await;
        hand_out(&tail, vec![update((STRANGER, 1), &["/seen"])]);
        for _ in 0..MANY {
            hand_out(&tail, vec![update((STRANGER, 1), &["/other"])]);
        }
        let last = tail.applied();
        assert_eq!(changed(&tail, 0, last.0), None);
        assert_eq!(
            changed(&tail, last.0 - 1, last.0),
            Some(vec!["/other".into()])
        );
    });
}

/// D4: the zxids of a place that is lost are others' in the next.
#[test]
fn changes_of_a_place_that_is_lost_are_forgotten() {
    simulated::run(async {
        let stage = stage().await;
        let tail = placed(&stage).await;
        hand_out(&tail, vec![update((STRANGER, 1), &["/lost"])]);
        tail.disconnect_all();
        tail.start().await.expect("calm");
        hand_out(&tail, vec![update((STRANGER, 1), &["/kept"])]);
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
            .apply(step, &[], &[], &mut crate::dependency::Basis::default())
            .await;
        assert!(applied.expect("calm"));
        tail.start().await.expect("calm");
        assert_eq!(
            changed(&tail, 3, 5),
            None,
            "nobody has handed them out here"
        );
        assert_eq!(changed(&tail, 5, 5), Some(vec![]));
    });
}

/// The letters that lie in a mailbox.
fn letters(mailbox: &Mailbox) -> Vec<Letter> {
    std::iter::from_fn(|| mailbox.take(Zxid(i64::MAX))).collect()
}

/// C4, C6: the watch of a connection that was replaced while it looked is not the other's, armed or fired.
#[test]
fn who_was_replaced_leaves_no_watch() {
    simulated::run(async {
        let tail = placed(&stage().await).await;
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
        let (mailbox, of_newer) = (Arc::<Mailbox>::default(), Arc::<Mailbox>::default());
        tail.register(older, mailbox);
        tail.register(newer, of_newer.clone());
        let look = Look {
            path: "/watched".into(),
            watch: Some(Aspect::Data),
        };
        assert!(tail.watch(&look, Zxid(0), older));
        assert_eq!(tail.counts().1, 0, "it would be armed");
        hand_out(&tail, vec![update((STRANGER, 1), &["/watched"])]);
        assert!(tail.watch(&look, Zxid(0), older));
        assert!(letters(&of_newer).is_empty(), "it would be fired");
        // Those of the one that speaks are.
        assert!(tail.watch(&look, Zxid(0), newer));
        assert!(matches!(letters(&of_newer)[..], [Letter::Event { .. }]));
        assert!(tail.watch(&look, Zxid(1), newer));
        assert_eq!(tail.counts().1, 1);
    });
}

/// C6: a connection that was replaced through another process hears so from the log, and nothing of what is another's.
#[test]
fn an_update_of_a_later_attach_ends_the_connection_of_the_earlier() {
    simulated::run(async {
        let tail = placed(&stage().await).await;
        let mailbox = Arc::<Mailbox>::default();
        tail.register(
            Connection {
                session: SESSION,
                attach: 1,
            },
            mailbox.clone(),
        );
        hand_out(&tail, vec![update((SESSION, 1), &["/own"])]);
        assert!(matches!(letters(&mailbox)[..], [Letter::Answer { .. }]));
        hand_out(&tail, vec![update((SESSION, 2), &["/others"])]);
        assert!(matches!(letters(&mailbox)[..], [Letter::Moved]));
        assert_eq!(tail.counts().0, 0);
        tokio::select! {
            biased;
            () = mailbox.arrived() => {}
            () = std::future::ready(()) => panic!("it is not woken"),
        }
    });
}
