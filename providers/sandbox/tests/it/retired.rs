//! Who waits for an instance of one revision gets one of the next, whatever was kept for him (U4, A8).

use bytes::Bytes;
use ports::runtime::{Invocation, Runtime as _};
use sandbox::process::Enforcement;

use crate::{
    processes::{block_on, until, world},
    world::CODE,
};

#[test]
fn what_has_a_place_among_the_retired_waits_for_one_of_the_next() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let mut revisions = Vec::new();
        for revision in ["1", "2", "3"] {
            let function = world.function("deployed", CODE, |function| {
                function.revision = revision.to_owned();
                function.concurrency = 1;
            });
            revisions.push(function.await);
        }
        let [first, second, third] = &revisions[..] else { unreachable!() };
        let room = world.sandbox.room(first).await.expect("it is not retired");
        let taken = world.sandbox.room(second).await.expect("it is not retired");
        let payload = Bytes::from_static(br#"{"value": "done"}"#);
        let invocation = Invocation { room, ..Invocation::new("an-id".to_owned(), payload, true) };
        let run = world.sandbox.run(second, invocation);
        tokio::pin!(run);
        assert!(futures_util::poll!(&mut run).is_pending(), "the only place of the second is taken");
        let free = world.sandbox.room(third).await.expect("it is not retired");
        assert!(futures_util::poll!(&mut run).is_pending(), "and now that of the third");
        drop(free);
        let ran = run.await.expect("it is run");
        assert_eq!(ran.result.expect("it succeeds"), r#""done""#);
        drop(taken);
        world.close().await;
    });
}

/// A deployment removes the code of the one before: who is at work finishes with what he began with, also with what he has not read yet.
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
        let function = world.function_of("earlier", &files, |function| function.concurrency = 1).await;
        let code = world.program.with_file_name("functions").join("archives/earlier");
        assert_eq!(world.said(&function, "0").await, "null");
        world.sandbox.keep_archives(&[]).await.expect("removed");
        assert!(code.exists(), "an instance has it");
        assert_eq!(world.said(&function, "1").await, r#""late""#);
        world.sandbox.retire(&function.name);
        until("its code goes with the last instance", || !code.exists());
        world.close().await;
    });
}
