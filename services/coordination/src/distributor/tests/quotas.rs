//! The statistics of quotas count every change once, whichever distributor applies it.

use super::*;

const STATISTICS: &str = "/zookeeper/quota/q/zookeeper_stats";

/// A fixture with the subtree `/q`, which has a quota and a znode `/q/a` without data. Slots are
/// applied one znode at a time.
async fn with_quota(broken: Option<Broken>) -> (Fixture, SessionId) {
    let mut options = Options::default();
    options.key_value.transact_items_max = 2;
    let config = Config {
        mutant: broken.into(),
        ..Config::default()
    };
    let fixture = Fixture::new(options, config).await;
    let session = fixture.open(1).await;
    let paths = [
        "/q",
        "/q/a",
        "/zookeeper",
        "/zookeeper/quota",
        "/zookeeper/quota/q",
        "/zookeeper/quota/q/zookeeper_limits",
        STATISTICS,
    ];
    let made = paths.map(|path| create(path, Lifetime::Persistent)).into();
    let made = fixture.decided(session, made).await;
    let distributor = Instance::on(&fixture);
    distributor.handles(&made).await;
    (fixture, session)
}

async fn statistics(fixture: &Fixture) -> String {
    let region = fixture.region(fixture.world.key_value());
    let node = region.get(STATISTICS).await;
    let node = node.expect("no fault is injected").expect("it was made");
    assert_eq!(node.stat.mzxid, node.stat.czxid, "the Stat hides changes");
    match node.data {
        Payload::Inline(text) => String::from_utf8(text.to_vec()).expect("a text"),
        other => panic!("{other:?}"),
    }
}

/// The statistics if a distributor dies after `parts` of a slot that sets the data of a znode, and
/// another one finishes it.
fn after_death(parts: usize, broken: Option<Broken>) -> String {
    simulated::run(async {
        let (fixture, session) = with_quota(broken).await;
        assert_eq!(statistics(&fixture).await, "count=2,bytes=0");
        let updates = vec![set("/q/a", "12345"), create("/q/b", Lifetime::Persistent)];
        let updates = fixture.decided(session, updates).await;
        let dying = Instance::on(&fixture);
        let is_part = |call: &Call<'_>| matches!(call, Call::Transact);
        for _ in 1..parts {
            dying.store.once(Side::After, is_part, async { Ok(()) });
        }
        dying.dies(Side::After, is_part);
        dying.handle(&updates).await.expect_err("it dies");
        assert!(dying.store.is_through());
        let next = Instance::on(&fixture);
        next.handles(&updates).await;
        statistics(&fixture).await
    })
}

#[test]
fn a_partly_applied_slot_is_counted_once() {
    for parts in 1..=4 {
        assert_eq!(after_death(parts, None), "count=3,bytes=5", "{parts} parts");
    }
    let broken = Some(Broken::CountsAgain);
    assert_ne!(
        after_death(2, broken),
        "count=3,bytes=5",
        "the rule is needed"
    );
}

/// A quota of another process is found by the next distributor, and malformed texts stop none.
#[test]
fn malformed_texts_count_nothing_and_stop_nothing() {
    simulated::run(async {
        let (fixture, session) = with_quota(None).await;
        let limits = "/zookeeper/quota/q/zookeeper_limits";
        let updates = vec![set(limits, "no limits"), set("/q/a", "12345")];
        let updates = fixture.decided(session, updates).await;
        let distributor = Instance::on(&fixture);
        distributor.handle(&updates).await.expect("it goes on");
        assert_eq!(statistics(&fixture).await, "count=2,bytes=5");
        let updates = vec![set(STATISTICS, "count=no number"), set("/q/a", "1")];
        let updates = fixture.decided(session, updates).await;
        let distributor = Instance::on(&fixture);
        distributor.handle(&updates).await.expect("it goes on");
        let region = fixture.region(fixture.world.key_value());
        let a = region.get("/q/a").await.expect("no fault is injected");
        assert_eq!(a.expect("it is there").stat.data_length, 1);
    });
}
