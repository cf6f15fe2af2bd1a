//! One storage round trip each, as FaaSKeeper's section 2.2 asks of them.

use bytes::Bytes;
use ports::{
    Key,
    key_value::{Operation, OperationId, Version},
};
use primitives::{AtomicCounter, Cursor, FencedLog};
use simulated::{World, run};

/// Runs `step`, which must make one call of the store, and returns its result.
async fn one_call<T>(world: &World, name: &str, step: impl Future<Output = ports::Result<T>>) -> T {
    let before = world.port_calls();
    let given = step.await.expect("calm");
    assert_eq!(world.port_calls() - before, 1, "{name}");
    given
}

#[test]
fn each_step_of_a_counter_is_one_call() {
    run(async {
        let world = World::new(1);
        let operation = |id| Operation {
            id: OperationId(id),
            known: Version(0),
        };
        let counter = AtomicCounter::new(world.key_value(), Key::new("counters", "a"));
        one_call(&world, "add", counter.add(1)).await;
        one_call(&world, "add_once", counter.add_once(1, operation(1))).await;
        one_call(&world, "read", counter.read()).await;
    });
}

#[test]
fn an_append_to_a_log_is_one_call() {
    run(async {
        let world = World::new(1);
        let log = FencedLog::new(world.key_value(), "log");
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        for _ in 0..3 {
            one_call(
                &world,
                "append",
                writer.append(Bytes::from_static(b"record")),
            )
            .await;
        }
        one_call(
            &world,
            "read",
            log.read(
                Cursor {
                    next: writer.next(),
                    epoch: writer.epoch(),
                },
                10,
            ),
        )
        .await;
    });
}
