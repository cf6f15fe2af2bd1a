//! A call that waits for an instance of one revision gets one of the next, even if it has a
//! reserved place (U4, A8).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, future::join_all, poll};
use ports::runtime::{Function, Invocation, Runtime as _};
use sandbox::process::Enforcement;

use crate::{
    processes::{block_on, until, world},
    world::{CODE, World},
};

/// The revisions of the function `deployed`, which has one place.
async fn revisions<const COUNT: usize>(world: &World) -> [Arc<Function>; COUNT] {
    let functions = (1..=COUNT).map(|revision| {
        world.function("deployed", CODE, move |function| {
            function.revision = revision.to_string();
            function.concurrency = 1;
        })
    });
    join_all(functions).await.try_into().expect("so many")
}

fn invocation(payload: &'static str, waits: bool) -> Invocation {
    Invocation::new(
        "an-id".to_owned(),
        Bytes::from_static(payload.as_bytes()),
        waits,
    )
}

#[test]
fn a_call_with_a_retired_place_waits_for_one_of_the_next_revision() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let [first, second, third] = revisions(&world).await;
        let permit = world
            .sandbox
            .permit(&first)
            .await
            .expect("it is not retired");
        world.sandbox.renew(&second);
        let taken = world
            .sandbox
            .permit(&second)
            .await
            .expect("it is not retired");
        let invocation = Invocation {
            permit,
            ..invocation(r#"{"value": "done"}"#, true)
        };
        let run = world.sandbox.run(&second, invocation);
        tokio::pin!(run);
        assert!(
            poll!(&mut run).is_pending(),
            "the only place of the second is taken"
        );
        world.sandbox.renew(&third);
        let free = world
            .sandbox
            .permit(&third)
            .await
            .expect("it is not retired");
        assert!(poll!(&mut run).is_pending(), "and now that of the third");
        drop(free);
        let ran = run.await.expect("it is run");
        assert_eq!(ran.result.expect("it succeeds"), r#""done""#);
        drop(taken);
        world.close().await;
    });
}

/// U4, A8. Until a caller asked for the next revision, all of them waited for an instance of this
/// one, which hung.
#[test]
fn calls_behind_a_hanging_handler_run_once_another_revision_is_current() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let [first, second] = revisions(&world).await;
        world.sandbox.renew(&first);
        let mut hangs = Box::pin(
            world
                .sandbox
                .run(&first, invocation(r#"{"sleep": 1000}"#, true)),
        );
        assert!(poll!(&mut hangs).is_pending(), "it is at work");
        let mut permit = Box::pin(world.sandbox.permit(&first));
        let mut call = Box::pin(
            world
                .sandbox
                .run(&first, invocation(r#"{"value": "called"}"#, false)),
        );
        assert!(
            poll!(&mut permit).is_pending() && poll!(&mut call).is_pending(),
            "its place is the only one"
        );
        world.sandbox.renew(&second);
        let turned_away = permit.now_or_never().expect("at once");
        assert!(
            turned_away.is_none(),
            "an event waits for a permit of the next revision"
        );
        let ran = call.await.expect("it is run").result.expect("it succeeds");
        assert_eq!(ran, r#""called""#);
        // A caller that looked up the first revision before asks for that.
        let late = world
            .sandbox
            .permit(&first)
            .await
            .expect("it is one of the second");
        let mut behind = Box::pin(world.sandbox.permit(&second));
        assert!(poll!(&mut behind).is_pending(), "they share its places");
        drop(late);
        assert!(behind.await.is_some());
        drop(hangs);
        world.close().await;
    });
}

/// A deployment removes the earlier code. A running invocation can still read all of its own code.
#[test]
fn an_instance_has_its_code_until_it_ends() {
    const READS_LATE: &str = "
def handler(event, context):
    if event:
        import late
        return late.SAID
";
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let files = [("app.py", READS_LATE), ("late.py", "SAID = 'late'\n")];
        let function = world
            .function_of("earlier", &files, |function| function.concurrency = 1)
            .await;
        let code = world
            .program
            .with_file_name("functions")
            .join("archives/earlier");
        assert_eq!(world.said(&function, "0").await, "null");
        world
            .sandbox
            .code_store()
            .keep_archives(&[])
            .await
            .expect("removed");
        assert!(code.exists(), "an instance has it");
        assert_eq!(world.said(&function, "1").await, r#""late""#);
        world.sandbox.retire(&function.name);
        until("its code goes with the last instance", || !code.exists());
        world.close().await;
    });
}
