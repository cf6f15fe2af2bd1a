//! Each fault has its documented effect, and no other.

use std::{sync::Arc, time::Duration};

use ports::{
    ErrorKind, Update,
    key_value::{Action, OperationId, Scan, Version},
    objects::{ObjectPath, ObjectStoreExt},
    queue::QueueOptions,
};
use simulated::{Chance, Options, World, percent, run};

use crate::{integer, key, message};

fn count_up() -> Update {
    Update::modify(key("a"), vec![Action::Add("n".into(), 1)])
}

/// K3.
#[test]
fn a_refused_call_changes_nothing_and_one_without_an_answer_may() {
    run(async {
        let world = World::new(1);
        let key_value = world.key_value();
        world.faults().refuse(Chance::ALWAYS);
        let error = key_value
            .update(count_up())
            .await
            .expect_err("it was refused");
        assert!(matches!(error.kind(), ErrorKind::Unavailable { .. }));
        world.faults().calm();
        assert_eq!(integer(&*key_value, &key("a"), "n").await, 0);
        world.faults().lose_answer(Chance::ALWAYS);
        let error = key_value
            .update(count_up())
            .await
            .expect_err("the answer was lost");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        let error = key_value
            .get(&key("a"))
            .await
            .expect_err("the answer was lost");
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable { .. }),
            "a read changes nothing"
        );
        world.faults().calm();
        assert_eq!(integer(&*key_value, &key("a"), "n").await, 1);
    });
}

/// K8.
#[test]
fn an_operation_repeated_under_faults_applies_once() {
    for seed in 0..20 {
        run(async {
            let world = World::new(seed);
            let (key_value, chance) = (world.key_value(), world.entropy());
            world.faults().lose_answer(percent(40));
            world.faults().refuse(percent(20));
            for _ in 0..10 {
                let id = OperationId(u128::from(chance.next_u64()));
                let update = count_up().as_operation(id, Version(0));
                while key_value.update(update.clone()).await.is_err() {}
            }
            world.faults().calm();
            assert_eq!(
                integer(&*key_value, &key("a"), "n").await,
                10,
                "seed {seed}"
            );
        });
    }
}

/// Q1, Q3.
#[test]
fn second_deliveries_keep_the_order_of_their_group() {
    let mut doubled = 0;
    for seed in 0..20 {
        run(async {
            let world = World::new(seed);
            let queue = world.queue();
            queue
                .create("q", QueueOptions::default())
                .await
                .expect("calm");
            for body in ["1", "2", "3", "4", "5", "6"] {
                queue
                    .send("q", vec![message("g", body)])
                    .await
                    .expect("calm");
            }
            world.faults().deliver_twice(percent(50));
            let mut seen = Vec::new();
            loop {
                let taken = queue.receive("q", 2).await.expect("no fault refuses");
                if taken.is_empty() {
                    break;
                }
                let handles: Vec<_> = taken
                    .iter()
                    .map(|delivery| delivery.handle.clone())
                    .collect();
                seen.extend(taken.into_iter().map(|delivery| delivery.body[0] - b'0'));
                queue
                    .acknowledge("q", &handles)
                    .await
                    .expect("no fault refuses");
            }
            doubled += seen.len() - 6;
            let mut applied = 0;
            for body in seen {
                assert!(
                    body <= applied + 1,
                    "seed {seed}: {body} overtook {}",
                    applied + 1
                );
                applied = applied.max(body);
            }
            assert_eq!(applied, 6, "seed {seed}");
        });
    }
    assert!(doubled > 20, "messages were delivered twice: {doubled}");
}

/// K6.
#[test]
fn pages_that_are_no_snapshots_show_half_a_transaction() {
    let torn = (0..50)
        .filter(|seed| shows_half_a_transaction(*seed, false))
        .count();
    assert!(torn > 0, "the simulation can show it");
    let torn = (0..50)
        .filter(|seed| shows_half_a_transaction(*seed, true))
        .count();
    assert_eq!(torn, 0, "snapshot pages never show it");
}

fn shows_half_a_transaction(seed: u64, page_is_snapshot: bool) -> bool {
    run(async {
        let mut options = Options {
            latency: Some(Duration::ZERO..=Duration::from_millis(3)),
            ..Options::default()
        };
        options.key_value.page_is_snapshot = page_is_snapshot;
        let world = World::with_options(seed, options);
        let key_value = world.key_value();
        let write = |n| {
            ["a", "z"]
                .map(|sort| Update::modify(key(sort), vec![Action::set_integer("n", n)]))
                .to_vec()
        };
        key_value.transact(write(1)).await.expect("calm");
        let writer = {
            let (key_value, second) = (Arc::clone(&key_value), write(2));
            tokio::spawn(async move { key_value.transact(second).await })
        };
        let page = key_value
            .scan(&Scan::partition("test", 2))
            .await
            .expect("calm")
            .value;
        writer.await.expect("it does not panic").expect("calm");
        page.items[0].1.integer("n") != page.items[1].1.integer("n")
    })
}

/// O2.
#[test]
fn objects_pass_through_the_same_faults() {
    run(async {
        let world = World::new(1);
        let (objects, path) = (world.objects(), ObjectPath::from("a/b"));
        world.faults().lose_answer(Chance::ALWAYS);
        objects
            .put(&path, "one".into())
            .await
            .expect_err("the answer was lost");
        world.faults().calm();
        let found = objects
            .get(&path)
            .await
            .expect("it was performed")
            .bytes()
            .await
            .expect("in memory");
        assert_eq!(&found[..], b"one");
        objects.delete(&path).await.expect("calm");
        objects.get(&path).await.expect_err("it is gone");
        assert_eq!(world.port_calls(), 4);
    });
}

#[test]
fn a_calm_world_takes_no_time() {
    run(async {
        let world = World::new(1);
        let (key_value, clock) = (world.key_value(), world.clock());
        let before = clock.monotonic();
        for _ in 0..100 {
            key_value.update(count_up()).await.expect("calm");
        }
        assert_eq!(clock.monotonic(), before);
        key_value
            .externalize(key_value.point())
            .await
            .expect("it is there");
        assert!(clock.monotonic() > before, "an fsync takes its time");
        assert_eq!(world.port_calls(), 101);
    });
}
