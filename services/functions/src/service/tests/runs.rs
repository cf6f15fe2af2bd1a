//! U4: in whose code functions run.

use super::*;

/// The revision of `one` that is deployed, which is the one in place.
fn in_place(service: &Service, runtime: &Idle) -> String {
    let revision = service.function("one").expect("it is deployed").revision;
    assert_eq!(runtime.renewed.lock().get("one"), Some(&revision));
    revision
}

/// U4. What waited for an instance of the code before waited on, until somebody asked for one of the new.
#[test]
fn what_is_deployed_is_in_place_though_nobody_asks_for_it() {
    run(async {
        let world = World::new(1);
        let ((one, here), (other, there)) = (service_among(&world, true), service_among(&world, true));
        let _following = tokio::spawn(other.clone().follow_others());
        one.deploy("shop", archive("one")).await.expect("deployed");
        let first = in_place(&one, &here);
        one.deploy("shop", archive("one")).await.expect("deployed");
        let second = in_place(&one, &here);
        assert_ne!(first, second);
        world.clock().sleep(Duration::from_secs(3)).await;
        assert_eq!(in_place(&other, &there), second);
        let (late, started) = service_among(&world, true);
        late.start().await.expect("started");
        assert_eq!(in_place(&late, &started), second);
    });
}
