//! C-6: the time from which a lease counts.

use std::time::Duration;

use simulated::Options;

use super::*;
use crate::{
    Config,
    tests::{Call, Fixture, Side, TIMEOUT},
};

const SLOW: Duration = Duration::from_secs(5);

/// C-6: the row grants the timeout from the time of the write, however late its answer arrives.
#[test]
fn a_lease_counts_from_before_its_session_was_opened_or_resumed() {
    simulated::run(async {
        let (fixture, mut resume) = (
            Fixture::new(Options::default(), Config::default()).await,
            None,
        );
        let store = fixture.store();
        let gateway = Gateway::new(fixture.tail(store.clone()).await);
        for attach in [1, 2] {
            let clock = fixture.world.clock();
            let begun = clock.monotonic();
            store.once(
                Side::After,
                |call| matches!(call, Call::Update(_)),
                async move {
                    clock.sleep(SLOW).await;
                    Ok(())
                },
            );
            let Ok(attached) = gateway.attach(TIMEOUT, resume, SessionId::of_client).await else {
                panic!("attach {attach}: no fault is injected")
            };
            assert!(store.is_through());
            let connection = attached.connection;
            assert_eq!((connection.attach, attached.asked_at), (attach, begun));
            resume = Some((connection.session, attached.password));
        }
    });
}
