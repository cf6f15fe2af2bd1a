//! A place that is kept for an event that is not there refuses no call; one that is taken does (U1, A8).

use bytes::Bytes;
use ports::runtime::{Invocation, Refused, Runtime as _};
use sandbox::process::Enforcement;

use crate::{
    processes::{block_on, world},
    world::CODE,
};

#[test]
fn a_call_waits_a_moment_for_a_place_that_is_kept() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("kept", CODE, |function| function.concurrency = 1).await;
        let invocation = || {
            let payload = Bytes::from_static(br#"{"value": "done"}"#);
            Invocation::new("an-id".to_owned(), payload, false)
        };
        let room = world.sandbox.room(&function).await.expect("it is not retired");
        let call = world.sandbox.run(&function, invocation());
        tokio::pin!(call);
        assert!(futures_util::poll!(&mut call).is_pending(), "the only place is kept");
        drop(room);
        let ran = call.await.expect("it was kept for nothing");
        assert_eq!(ran.result.expect("it succeeds"), r#""done""#);
        let busy = world.sandbox.run(&function, invocation());
        tokio::pin!(busy);
        assert!(futures_util::poll!(&mut busy).is_pending(), "it is at work");
        let refused = world.sandbox.run(&function, invocation()).await.expect_err("nothing is kept");
        assert_eq!(refused, Refused::Throttled);
        busy.await.expect("it is run");
        world.close().await;
    });
}
