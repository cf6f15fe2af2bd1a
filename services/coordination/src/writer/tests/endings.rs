//! C-3, C6: a session's end follows other sessions' deletions of its ephemerals, whether these are
//! decided or applied.

use super::*;
use crate::storage::user_store::Node;

/// The znode at `path` once the end of its session is applied, if the end's message arrives before
/// the messages of all requests that `others` decided meanwhile.
async fn left_by_an_end(fixture: &Fixture, path: &str, others: Vec<Operation>) -> Option<Node> {
    let (owner, other) = (fixture.open(1).await, fixture.open(2).await);
    let distributor = fixture.distributor(&fixture.store());
    let made = ["/p", "/p/q"].map(|path| create(path, Lifetime::Persistent));
    let parents = fixture.decided(other, made.into()).await;
    distributor
        .handle(Fixture::messages(parents))
        .await
        .expect("no fault is injected");
    let made = fixture
        .decided(owner, vec![create(path, Lifetime::Ephemeral)])
        .await;
    distributor
        .handle(Fixture::messages(made))
        .await
        .expect("no fault is injected");
    fixture.decided(other, others).await;
    let end = fixture.decided(owner, vec![Operation::Close]).await;
    distributor
        .handle(Fixture::messages(end))
        .await
        .expect("no fault is injected");
    fixture
        .region(fixture.world.key_value())
        .get(path)
        .await
        .expect("no fault is injected")
}

/// Whether an ephemeral that another session deleted outlives its session.
fn outlives(broken: Option<Broken>) -> bool {
    simulated::run(async {
        let fixture = fixture_without(broken).await;
        left_by_an_end(&fixture, "/p/q/e", vec![delete("/p/q/e")])
            .await
            .is_some()
    })
}

/// C-3, C6: its deletion is decided and not applied.
#[test]
fn an_end_follows_the_deletion_of_an_ephemeral() {
    assert!(!outlives(None));
    assert!(
        outlives(Some(Broken::EndsBeforeForeignDeletions)),
        "the rule is needed"
    );
    assert!(
        outlives(Some(Broken::DropsIndexEntriesWhenDecided)),
        "the rule is needed"
    );
}

/// C-3, C6: the ephemeral's parent is deleted too, so the end must follow a higher ancestor.
#[test]
fn an_end_follows_the_deletion_of_an_ephemeral_and_its_parent() {
    simulated::run(async {
        let fixture = fixture().await;
        let deleted = ["/p/q/e", "/p/q", "/p"].map(delete).into();
        assert_eq!(left_by_an_end(&fixture, "/p/q/e", deleted).await, None);
    });
}

/// C-3, C6: the znode at its path belongs to another session.
#[test]
fn an_end_follows_the_replacement_of_an_ephemeral() {
    for lifetime in [Lifetime::Persistent, Lifetime::Ephemeral] {
        simulated::run(async {
            let fixture = fixture().await;
            let others = vec![delete("/p/q/e"), create("/p/q/e", lifetime)];
            let node = left_by_an_end(&fixture, "/p/q/e", others)
                .await
                .expect("it is the other's");
            assert_ne!(node.stat.ephemeral_owner, 1);
        });
    }
}

/// C-1, C-3: if another writer holds the nearest existing ancestor, the end waits for it without
/// holding a lock.
#[test]
fn an_end_waits_for_the_ancestor_that_it_must_follow() {
    simulated::run(async {
        let fixture = fixture().await;
        let (owner, other) = (fixture.open(1).await, fixture.open(2).await);
        fixture
            .decided(
                other,
                ["/p", "/p/q"]
                    .map(|path| create(path, Lifetime::Persistent))
                    .into(),
            )
            .await;
        fixture
            .decided(owner, vec![create("/p/q/e", Lifetime::Ephemeral)])
            .await;
        fixture
            .decided(other, ["/p/q/e", "/p/q", "/p"].map(delete).into())
            .await;
        let (store, on_fixture) = (fixture.store(), fixture.clone());
        store.once(Side::After, |call| is_lock_of(call, "/p/q/e"), async move {
            assert!(is_free(&on_fixture, "/").await, "another locks it now");
            Ok(())
        });
        store.once(Side::Before, |call| is_lock_of(call, "/"), async { Ok(()) });
        let on_fixture = fixture.clone();
        store.once(Side::Before, |call| is_lock_of(call, "/"), async move {
            for path in ["/p/q", "/p/q/e"] {
                assert!(
                    node::is_vacant(&mut on_fixture.system(), path).await?,
                    "{path} is locked meanwhile"
                );
            }
            Ok(())
        });
        written(&fixture, &store, owner, vec![Operation::Close])
            .await
            .expect("no fault is injected");
        assert!(store.is_through());
        let end = fixture
            .undelivered(owner)
            .await
            .pop()
            .expect("it has ended");
        let touched: Vec<&str> = end
            .touched
            .iter()
            .map(|touched| touched.path.as_str())
            .collect();
        assert_eq!(touched, ["/"]);
        assert!(
            is_free(&fixture, "/p/q").await
                && is_free(&fixture, "/p/q/e").await
                && is_free(&fixture, "/").await
        );
    });
}

/// C6: an ephemeral that another session deleted leaves the index once the deletion is applied, and
/// not before.
#[test]
fn a_foreign_deletion_leaves_the_index_once_it_is_applied() {
    simulated::run(async {
        let fixture = fixture().await;
        let (owner, other) = (fixture.open(1).await, fixture.open(2).await);
        let indexed = async || {
            ephemerals::first(&mut fixture.system(), owner, usize::MAX)
                .await
                .expect("no fault is injected")
        };
        let made = ["/a", "/b"].map(|path| create(path, Lifetime::Ephemeral));
        fixture.decided(owner, made.into()).await;
        let gone = fixture.decided(other, vec![delete("/a")]).await;
        assert_eq!(indexed().await, ["/a", "/b"]);
        fixture
            .distributor(&fixture.store())
            .handle(Fixture::messages(gone))
            .await
            .expect("no fault is injected");
        assert_eq!(indexed().await, ["/b"]);
        fixture.decided(owner, vec![delete("/b")]).await;
        assert!(indexed().await.is_empty(), "its own leave with it");
    });
}

/// C-6: an end that has begun is final: the session decides nothing else.
#[test]
fn a_closing_session_decides_only_its_end() {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        fixture.decided(session, vec![Operation::Attach]).await;
        let condemned = session::expire(&mut fixture.system(), session, 0).await;
        assert!(matches!(condemned, Ok(Transition::Done(_))));
        for operation in [
            create("/a", Lifetime::Persistent),
            delete("/a"),
            set("/", "data"),
        ] {
            written(&fixture, &store, session, vec![operation])
                .await
                .expect("it is dropped");
            assert_eq!(fixture.row(session).await.sequence, 1);
        }
        written(&fixture, &store, session, vec![Operation::Expire])
            .await
            .expect("no fault is injected");
        assert_eq!(fixture.row(session).await.sequence, 2);
    });
}

/// C-6: like above, if the row was removed while a request was planned.
#[test]
fn a_removed_session_decides_nothing() {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, store, on_fixture) =
            (fixture.open(1).await, fixture.store(), fixture.clone());
        store.once(Side::Before, is_decision, async move {
            let end = on_fixture.decided(session, vec![Operation::Close]).await;
            on_fixture
                .distributor(&on_fixture.store())
                .handle(Fixture::messages(end))
                .await
                .expect("no fault is injected");
            Ok(())
        });
        let sets = vec![set("/", "one"), set("/", "two")];
        written(&fixture, &store, session, sets)
            .await
            .expect("they are dropped");
        assert!(store.is_through());
        assert!(is_free(&fixture, "/").await);
        let row = session::get(&mut fixture.system(), session)
            .await
            .expect("no fault is injected");
        assert!(row.is_none(), "it is there again");
    });
}

/// A decision contains each path, and its parent's, at most three times, so the longest path fits
/// into a message.
#[test]
fn a_foreign_deletion_contains_its_path_three_times() {
    simulated::run(async {
        let fixture = fixture().await;
        let (owner, other) = (fixture.open(1).await, fixture.open(2).await);
        let parent = format!("/{}", "p".repeat(1_000));
        let path = format!("{parent}/e");
        fixture
            .decided(other, vec![create(&parent, Lifetime::Persistent)])
            .await;
        fixture
            .decided(owner, vec![create(&path, Lifetime::Ephemeral)])
            .await;
        fixture.decided(other, vec![delete(&path)]).await;
        let row = fixture.row(other).await;
        let (deleted, encoded) = (row.outbox_decoded().expect("it decodes"), row.outbox());
        let (foreign, encoded) = (
            deleted.last().expect("decided").foreign_ephemerals(),
            encoded.last().expect("decided"),
        );
        assert_eq!(
            foreign
                .iter()
                .map(|(create, path)| (create.session, *path))
                .collect::<Vec<_>>(),
            [(owner, path.as_str())]
        );
        assert!(
            encoded.len() < 3 * path.len() + 200,
            "{} bytes",
            encoded.len()
        );
    });
}

/// Whether the index still has an ephemeral if the store loses another session's deletion of it
/// right after that was applied.
fn indexed_after_a_loss(broken: Option<Broken>) -> bool {
    simulated::run(async {
        let fixture = fixture_without(broken).await;
        let (owner, other) = (fixture.open(1).await, fixture.open(2).await);
        fixture
            .decided(owner, vec![create("/a", Lifetime::Ephemeral)])
            .await;
        let gone = fixture.decided(other, vec![delete("/a")]).await;
        let kept = fixture.world.key_value();
        kept.externalize(kept.point())
            .await
            .expect("no fault is injected");
        let (store, on_fixture) = (fixture.store(), fixture.clone());
        store.once(Side::Before, is_of_index, async move {
            on_fixture.world.fall_back();
            Ok(())
        });
        let _ = fixture
            .distributor(&store)
            .handle(Fixture::messages(gone))
            .await;
        assert!(store.is_through());
        let region = fixture.region(fixture.world.key_value());
        assert_eq!(
            region
                .cursor()
                .await
                .expect("no fault is injected")
                .value
                .0
                .slot,
            0,
            "nothing of it is applied"
        );
        !ephemerals::first(&mut fixture.system(), owner, usize::MAX)
            .await
            .expect("no fault is injected")
            .is_empty()
    })
}

/// C6, D4: the session's end must still find the entry.
#[test]
fn a_lost_deletion_keeps_its_ephemeral_in_the_index() {
    assert!(indexed_after_a_loss(None));
    assert!(
        !indexed_after_a_loss(Some(Broken::DropsIndexEntriesOfLostDeletions)),
        "the rule is needed"
    );
}
