//! C-4: a distributor that lost the log numbers nothing more.

use super::*;

/// The zxids of two updates of different znodes. One instance numbers the first of them while
/// another one takes over the log and numbers the second, right before the append of this number of
/// the latter. None: the second one is never numbered.
fn numbered_during_a_takeover(append: usize, broken: Option<Broken>) -> Option<[Zxid; 2]> {
    simulated::run(async {
        let fixture = without(broken).await;
        let predecessor = Instance::on(&fixture);
        let session = fixture.open(1).await;
        let made = ["/a", "/b"].map(|path| create(path, Lifetime::Persistent));
        let made = fixture.decided(session, made.into()).await;
        predecessor.handles(&made).await;
        let (one, other) = (fixture.open(2).await, fixture.open(3).await);
        let first = fixture.decided(one, vec![set("/a", "1")]).await;
        let second = fixture.decided(other, vec![set("/b", "2")]).await;
        let successor = Instance::on(&fixture);
        for _ in 0..append {
            successor
                .store
                .once(Side::Before, is_append, async { Ok(()) });
        }
        successor.overtaken(Side::Before, is_append, (&predecessor, first));
        if successor.handle(&second).await.is_err() {
            // It was overtaken, and the queue delivers the message again.
            successor.handle(&second).await.ok()?;
        }
        assert!(successor.store.is_through());
        let region = fixture.region(fixture.world.key_value());
        let zxid_of = async |path| {
            let node = region.get(path).await.expect("no fault is injected");
            node.expect("it was made").stat.mzxid
        };
        Some([zxid_of("/a").await, zxid_of("/b").await])
    })
}

/// C-4: whether the predecessor appends before the seal or tries to after it.
#[test]
fn no_zxid_is_assigned_twice_during_a_takeover() {
    for append in 0..2 {
        let [first, second] = numbered_during_a_takeover(append, None).expect("both are numbered");
        assert!(first < second, "{append}: {first:?}, {second:?}");
    }
    let broken = numbered_during_a_takeover(0, Some(Broken::TakesOverWithoutSeal));
    assert_eq!(broken, Some([Zxid(3); 2]), "the seal is needed");
}
