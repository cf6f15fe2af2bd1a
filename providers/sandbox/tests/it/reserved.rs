//! Calls and events share the places of a function (U1, A8). An event with a place, or with a
//! reserved one, does not exclude calls; a call with a place does.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, poll, stream::FuturesUnordered};
use ports::runtime::{Function, Invocation, Refused, Runtime as _};
use sandbox::process::Enforcement;

use crate::{
    processes::{block_on, world},
    world::{CODE, World},
};

fn invocation(waits: bool) -> Invocation {
    Invocation::new(
        "an-id".to_owned(),
        Bytes::from_static(br#"{"value": "done"}"#),
        waits,
    )
}

async fn with_one_place(world: &World) -> Arc<Function> {
    world
        .function("kept", CODE, |function| function.concurrency = 1)
        .await
}

#[test]
fn a_call_waits_a_moment_for_a_reserved_place() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = with_one_place(&world).await;
        let permit = world
            .sandbox
            .permit(&function)
            .await
            .expect("it is not retired");
        let call = world.sandbox.run(&function, invocation(false));
        tokio::pin!(call);
        assert!(poll!(&mut call).is_pending(), "the only place is kept");
        drop(permit);
        let ran = call.await.expect("it was kept for nothing");
        assert_eq!(ran.result.expect("it succeeds"), r#""done""#);
        let busy = world.sandbox.run(&function, invocation(false));
        tokio::pin!(busy);
        assert!(poll!(&mut busy).is_pending(), "it is at work");
        let refused = world
            .sandbox
            .run(&function, invocation(false))
            .now_or_never()
            .expect("at once");
        assert_eq!(refused.expect_err("nothing is kept"), Refused::Throttled);
        busy.await.expect("it is run");
        world.close().await;
    });
}

/// U1. It was refused: calls had no place any more, and no event had one yet.
#[test]
fn a_call_waits_for_a_place_that_an_event_is_taking() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = with_one_place(&world).await;
        let taken = world
            .sandbox
            .permit(&function)
            .await
            .expect("it is not retired");
        let mut event = Box::pin(world.sandbox.permit(&function));
        assert!(poll!(&mut event).is_pending(), "the only place is taken");
        drop(taken);
        let mut call = Box::pin(world.sandbox.run(&function, invocation(false)));
        assert!(
            poll!(&mut call).is_pending(),
            "the place is the event's, which does not know yet"
        );
        drop(event.await.expect("it is not retired"));
        assert!(call.await.is_ok(), "it has its turn");
        world.close().await;
    });
}

#[test]
fn a_call_comes_after_one_event_however_many_wait() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = with_one_place(&world).await;
        let mut ended = FuturesUnordered::new();
        for who in ["at work", "next", "behind", "last", "call"] {
            let run = world.sandbox.run(&function, invocation(who != "call"));
            let mut run = Box::pin(async move { run.await.map(|_| who) });
            assert!(poll!(&mut run).is_pending(), "{who}");
            ended.push(run);
        }
        let mut order = Vec::new();
        while order.len() < 3 {
            order.push(
                ended
                    .next()
                    .await
                    .expect("there are more")
                    .expect("it is run"),
            );
        }
        assert_eq!(order, ["at work", "next", "call"]);
        drop(ended);
        world.close().await;
    });
}

#[test]
fn calls_wait_for_as_many_places_as_there_are_and_for_a_while() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = with_one_place(&world).await;
        let permit = world
            .sandbox
            .permit(&function)
            .await
            .expect("it is not retired");
        let mut call = Box::pin(world.sandbox.run(&function, invocation(false)));
        assert!(poll!(&mut call).is_pending(), "it waits for its turn");
        let refused = world
            .sandbox
            .run(&function, invocation(false))
            .now_or_never()
            .expect("at once");
        assert_eq!(refused.expect_err("one waits already"), Refused::Throttled);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(poll!(&mut call).is_pending(), "it goes on waiting");
        assert_eq!(
            call.await.expect_err("the event does not end"),
            Refused::Throttled
        );
        tokio::time::resume();
        drop(permit);
        assert!(
            world
                .sandbox
                .run(&function, invocation(false))
                .await
                .is_ok(),
            "no call waits any more"
        );
        world.close().await;
    });
}
