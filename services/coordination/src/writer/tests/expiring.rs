//! C6: the index of the znodes that may end by themselves has every one of them, wherever a writer
//! dies.

use super::*;
use crate::storage::expiring;

/// Whether `/c` is indexed if the writer that deletes its last child dies after its decision.
fn is_indexed(broken: Option<Broken>) -> bool {
    simulated::run(async {
        let fixture = fixture_without(broken).await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        let made = vec![
            create("/c", Lifetime::Container),
            create("/c/a", Lifetime::Persistent),
        ];
        fixture.decided(session, made).await;
        store.once(Side::After, is_decision, async {
            Err(ports::Error::unavailable("go on"))
        });
        written(&fixture, &store, session, vec![delete("/c/a")])
            .await
            .expect_err("it dies");
        assert!(store.is_through());
        // The next writer finishes the decision.
        fixture.decided(session, vec![set("/", "x")]).await;
        expiring::any(&mut fixture.system())
            .await
            .expect("no fault is injected")
    })
}

#[test]
fn a_candidate_is_indexed_before_the_decision() {
    assert!(is_indexed(None));
    let broken = Some(Broken::IndexesWhenDecided);
    assert!(!is_indexed(broken), "the rule is needed");
}

/// A writer that was asked to remove a znode finds it in use again, and drops the entry, but not
/// the entry that a later request has written meanwhile.
#[test]
fn only_the_entry_that_was_read_is_dropped() {
    simulated::run(async {
        let (fixture, session) = (fixture().await, SessionId::SYSTEM);
        let mut system = fixture.system();
        let created = session::create(&mut system, session, PASSWORD, TIMEOUT).await;
        assert!(created.expect("no fault is injected"));
        let owner = fixture.open(1).await;
        let made = vec![
            create("/c", Lifetime::Container),
            create("/c/a", Lifetime::Persistent),
        ];
        fixture.decided(owner, made).await;
        for path in ["/c", "/missing"] {
            let add = expiring::add(&mut system, path, 0).await;
            add.expect("no fault is injected");
            let entry = async |store: &mut TrackedStore| {
                let entry = expiring::version(store, path).await;
                entry.expect("no fault is injected")
            };
            let old = entry(&mut system).await.expect("it was added");
            let add = expiring::add(&mut system, path, 0).await;
            add.expect("no fault is injected");
            let new = entry(&mut system).await.expect("it was added");
            let remove = |entry| Operation::RemoveExpired {
                path: path.into(),
                entry,
            };
            assert!(fixture.decided(session, vec![remove(old)]).await.is_empty());
            assert_eq!(entry(&mut system).await, Some(new), "{path}");
            assert!(fixture.decided(session, vec![remove(new)]).await.is_empty());
            assert_eq!(entry(&mut system).await, None, "{path}");
            assert!(is_free(&fixture, path).await && is_free(&fixture, "/").await);
        }
    });
}
