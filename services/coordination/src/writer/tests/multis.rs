//! C-1: a multi is one decision, whatever the locks of its parts and whenever its writer dies.

use super::*;
use crate::records::{Decided, Effect, Kind, NodeState};

fn multi(parts: Vec<Operation>) -> Operation {
    Operation::Multi(parts)
}

fn made(path: &str) -> Operation {
    create(path, Lifetime::Persistent)
}

fn numbered(path: &str) -> Operation {
    let Operation::Create {
        path,
        data,
        acl,
        lifetime,
        ..
    } = made(path)
    else {
        unreachable!("it is a create")
    };
    Operation::Create {
        path,
        data,
        acl,
        lifetime,
        naming: crate::model::Naming::Sequential,
    }
}

fn check(path: &str, version: i32) -> Operation {
    Operation::Check {
        path: path.into(),
        version,
    }
}

async fn state(fixture: &Fixture, path: &str) -> Option<NodeState> {
    let request = UpdateId {
        session: SessionId(500),
        sequence: 1,
    };
    let lock = Lock::of(Holder { request, fence: 1 });
    let (mut store, locking) = (fixture.system(), fixture.locking());
    let state = locking
        .try_lock(&mut store, path, &lock)
        .await
        .expect("no fault is injected")
        .expect("it is free");
    node::unlock(&mut store, path, &lock, state.as_ref())
        .await
        .expect("no fault is injected");
    state
}

async fn last_decided(fixture: &Fixture, session: SessionId) -> Decided {
    let row = fixture.row(session).await;
    let decided = row.outbox_decoded().expect("it decodes");
    decided.last().expect("one was decided").clone()
}

/// Notes, point 30: later parts see the changes of earlier ones.
#[test]
fn the_parts_of_a_multi_see_those_before_them() {
    simulated::run(async {
        let fixture = fixture().await;
        let session = fixture.open(1).await;
        let parts = vec![
            made("/a"),
            set("/a", "x"),
            check("/a", 1),
            made("/a/b"),
            delete("/a/b"),
            numbered("/a/n-"),
            numbered("/a/n-"),
        ];
        fixture.decided(session, vec![multi(parts)]).await;
        let decided = last_decided(&fixture, session).await;
        assert!(matches!(decided.outcome, Ok(Effect::Multi(parts)) if parts.len() == 7));
        let a = state(&fixture, "/a").await.expect("it was made");
        assert_eq!((a.version, a.creates, a.children), (1, 3, 2));
        assert_eq!(state(&fixture, "/a/b").await, None);
        for number in [1, 2] {
            let path = format!("/a/n-{number:010}");
            assert!(state(&fixture, &path).await.is_some(), "{path}");
        }
        let paths: Vec<&str> = decided
            .touched
            .iter()
            .map(|touched| touched.path.as_str())
            .collect();
        assert!(paths.is_sorted() && paths.len() == 5, "{paths:?}");
    });
}

/// Notes, point 31: nothing is changed, and the failed part is known.
#[test]
fn a_failed_part_fails_the_whole_multi() {
    simulated::run(async {
        let fixture = fixture().await;
        let session = fixture.open(1).await;
        let parts = vec![made("/a"), check("/a", 7), made("/b")];
        fixture.decided(session, vec![multi(parts)]).await;
        let decided = last_decided(&fixture, session).await;
        let expected = Effect::MultiFailed {
            failed: 1,
            parts: 3,
            error: Error::BadVersion,
        };
        assert_eq!(decided.outcome, Ok(expected));
        let root = decided
            .touched
            .iter()
            .find(|touched| touched.path == "/")
            .expect("the refusal follows the root's last update");
        assert_eq!(root.becomes.as_ref().map(|state| state.creates), Some(0));
        for path in ["/a", "/b"] {
            assert_eq!(state(&fixture, path).await, None, "{path}");
        }
        // An ephemeral of a failed multi leaves nothing that the session's end would delete.
        let parts = vec![create("/e", Lifetime::Ephemeral), delete("/no")];
        fixture.decided(session, vec![multi(parts)]).await;
        fixture.decided(session, vec![Operation::Close]).await;
        let decided = last_decided(&fixture, session).await;
        assert!(matches!(decided.outcome, Ok(Effect::Close { paths }) if paths.is_empty()));
    });
}

/// C-1: the writer dies between any two of its calls. The multi is whole or absent, and its second
/// delivery finishes it.
#[test]
fn a_multi_whose_writer_dies_is_whole_or_absent() {
    simulated::run(async {
        for calls in 0.. {
            let fixture = fixture().await;
            let (session, store) = (fixture.open(1).await, fixture.store());
            let parts = vec![made("/a"), made("/a/b"), create("/e", Lifetime::Ephemeral)];
            let asked = fixture.asked(session, vec![multi(parts)]).await;
            let (writer, call) = (fixture.writer(&store), (Side::Before, is_call(calls)));
            if !dies_at(&writer, &store, call, &asked).await {
                assert!(calls > 8, "a multi takes many calls");
                return;
            }
            fixture.writes(&redelivery::again(asked)).await;
            let row = fixture.row(session).await;
            assert_eq!(row.sequence, 1, "decided once, call {calls}");
            for path in ["/a", "/a/b", "/e"] {
                let state = state(&fixture, path).await;
                assert!(state.is_some(), "{path}, call {calls}");
                let owner = state.and_then(|state| state.owner());
                assert_eq!(owner.is_some(), path == "/e");
            }
        }
    });
}

/// A sequential part whose znode another writer has locked is waited for in path order.
#[test]
fn a_multi_waits_for_locks_in_path_order() {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, other) = (fixture.open(1).await, fixture.open(2).await);
        // A writer of the other session locked the znode and died.
        let held = Lock::of(Holder {
            request: UpdateId {
                session: other,
                sequence: 1,
            },
            fence: fixture.row(other).await.fence,
        });
        let mut store = fixture.system();
        fixture
            .locking()
            .try_lock(&mut store, "/n-0000000000", &held)
            .await
            .expect("no fault is injected")
            .expect("it is free");
        let parts = vec![numbered("/n-"), made("/z")];
        fixture.decided(session, vec![multi(parts)]).await;
        assert!(state(&fixture, "/n-0000000000").await.is_some());
        let z = state(&fixture, "/z").await.expect("it was made");
        assert_eq!(z.kind, Kind::Persistent);
    });
}

/// A decision that no item could hold would be refused at every attempt.
#[test]
fn a_multi_that_no_item_could_hold_is_refused_alone() {
    simulated::run(async {
        let fixture = fixture().await;
        let session = fixture.open(1).await;
        let path = format!("/{}", "p".repeat(400));
        let parts = vec![set(&path, "x"); ITEM_BYTES_MAX / 400];
        fixture
            .decided(session, vec![made(&path), multi(parts), set(&path, "y")])
            .await;
        let row = fixture.row(session).await;
        let decided = row.outbox_decoded().expect("it decodes");
        let outcomes: Vec<bool> = decided.iter().map(|one| one.outcome.is_ok()).collect();
        assert_eq!(outcomes, [true, false, true]);
        assert_eq!(decided[1].outcome, Err(Error::System));
        assert!(decided[1].touched.is_empty(), "its size is its cause");
        let node = state(&fixture, &path).await.expect("it was made");
        assert_eq!(node.version, 1);
        // So is a refusal that would touch too much.
        let mut parts = vec![set(&path, "x"); ITEM_BYTES_MAX / 100];
        parts.push(delete("/none"));
        fixture.decided(session, vec![multi(parts)]).await;
        let decided = last_decided(&fixture, session).await;
        assert!(matches!(
            decided.outcome,
            Ok(Effect::MultiFailed { .. }) | Err(Error::System)
        ));
    });
}

/// C-6: an end whose znodes have long ACLs takes several decisions.
#[test]
fn an_end_of_ephemerals_with_long_acls_is_decided_in_parts() {
    simulated::run(async {
        let fixture = fixture().await;
        let session = fixture.open(1).await;
        let acl: Vec<crate::model::Acl> = (0..8)
            .map(|number| crate::model::Acl {
                permissions: 31,
                scheme: "digest".into(),
                id: format!("user-{number}:{}", "h".repeat(20)),
            })
            .collect();
        let parts = (0..12).map(|number| {
            let mut ephemeral = create(&format!("/e{number}"), Lifetime::Ephemeral);
            if let Operation::Create { acl: of_it, .. } = &mut ephemeral {
                of_it.clone_from(&acl);
            }
            ephemeral
        });
        for ephemeral in parts {
            let decided = fixture.decided(session, vec![ephemeral]).await;
            fixture
                .distributor(&fixture.store())
                .handle(Fixture::messages(decided))
                .await
                .expect("no fault is injected");
        }
        fixture.decided(session, vec![Operation::Close]).await;
        let row = fixture.row(session).await;
        let decided = row.outbox_decoded().expect("it decodes");
        assert!(decided.len() > 1, "{} decisions", decided.len());
        for number in 0..12 {
            assert_eq!(state(&fixture, &format!("/e{number}")).await, None);
        }
    });
}
