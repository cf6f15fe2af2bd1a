//! D4, C-3: a slot depends on the decisions that it numbers.

use super::*;

/// The number of slots in a log that had one, if the store loses a decision right before the slot
/// that numbers it is appended. The log itself is durable.
fn slots_after_a_lost_decision(broken: Option<Broken>) -> usize {
    simulated::run(async {
        let fixture = without(broken).await;
        let instance = Instance::warm(&fixture, 1).await;
        let session = fixture.open(2).await;
        let store = fixture.world.key_value();
        let durable = store.externalize(store.point()).await;
        durable.expect("no fault is injected");
        let made = vec![create("/a", Lifetime::Persistent)];
        let made = fixture.decided(session, made).await;
        let world = fixture.world.clone();
        let falls_back = async move {
            world.fall_back();
            Ok(())
        };
        instance.store.once(Side::Before, is_append, falls_back);
        let lost = instance.handle(&made).await;
        lost.expect_err("the store has restarted");
        assert!(instance.store.is_through());
        assert_eq!(fixture.row(session).await.sequence, 0, "it is lost");
        let log = FencedLog::new(store, LOG_PARTITION);
        let read = log.read(Cursor::START, 9).await;
        read.expect("no fault is injected").slots.len()
    })
}

#[test]
fn a_lost_decision_is_not_numbered() {
    assert_eq!(slots_after_a_lost_decision(None), 1);
    let broken = slots_after_a_lost_decision(Some(Broken::NumbersByTheLogAlone));
    assert_eq!(broken, 2, "the dependency is needed");
}
