//! One storage round trip each, as FaaSKeeper's section 2.2 asks of them.

use bytes::Bytes;
use ports::{
    Key,
    key_value::{Action, Operation, OperationId, Version},
};
use primitives::{Acquired, AtomicCounter, AtomicList, Cursor, FencedLog, TimedLock};
use simulated::{World, run};

/// Runs `step`, which must make one call of the store, and returns its result.
async fn one_call<T>(world: &World, name: &str, step: impl Future<Output = ports::Result<T>>) -> T {
    let before = world.port_calls();
    let given = step.await.expect("calm");
    assert_eq!(world.port_calls() - before, 1, "{name}");
    given
}

#[test]
fn each_step_of_a_lock_is_one_call() {
    run(async {
        let world = World::new(1);
        let (lock, key, now) = (
            TimedLock::new(world.key_value(), 5_000),
            Key::new("locks", "a"),
            world.clock().now(),
        );
        let (me, other) = (Bytes::from_static(b"me"), Bytes::from_static(b"other"));
        let Acquired::Held(held) = one_call(&world, "acquire", lock.acquire(&key, &me, now)).await
        else {
            panic!("it is free")
        };
        let busy = one_call(
            &world,
            "acquire what is held",
            lock.acquire(&key, &other, now),
        )
        .await;
        let Acquired::Busy(..) = busy else {
            panic!("it is held")
        };
        let write = || vec![Action::set_integer("n", 1)];
        one_call(&world, "update", lock.update(&held, write(), None)).await;
        one_call(&world, "release", lock.release(&held, write())).await;
        one_call(&world, "release again", lock.release(&held, write())).await;
        one_call(
            &world,
            "acquire what was released",
            lock.acquire(&key, &other, now),
        )
        .await;
        one_call(
            &world,
            "update without the lock",
            lock.update(&held, write(), None),
        )
        .await;
    });
}

#[test]
fn each_step_of_a_counter_and_of_a_list_is_one_call() {
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
        let list = AtomicList::new(world.key_value(), Key::new("lists", "a"), 3);
        let element = || vec![Bytes::from_static(b"e")];
        one_call(&world, "append", list.append(element(), None)).await;
        one_call(
            &world,
            "append once",
            list.append(element(), Some(operation(2))),
        )
        .await;
        one_call(
            &world,
            "append what does not fit",
            list.append([element(), element()].concat(), None),
        )
        .await;
        one_call(&world, "remove", list.remove(element())).await;
        one_call(
            &world,
            "remove_first",
            list.remove_first(1, Some(operation(3))),
        )
        .await;
        one_call(&world, "read a list", list.read()).await;
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
