//! A crash of the store: which data it loses, and which it keeps.

use ports::{
    DurabilityPoint, ErrorKind, Incarnation, Position, Update, key_value::Action,
    queue::QueueOptions,
};
use simulated::{Options, World, run};

use crate::{integer, key, message};

fn count_up(sort: &str) -> Update {
    Update::modify(key(sort), vec![Action::Add("n".into(), 1)])
}

/// D1, D2.
#[test]
fn a_crash_loses_exactly_what_was_not_externalized() {
    for durable in 0..=20 {
        run(async {
            let world = World::new(durable);
            let key_value = world.key_value();
            for written in 1..=20 {
                let updated = key_value
                    .update(count_up("a"))
                    .await
                    .expect("the world is calm");
                if written == durable {
                    key_value
                        .externalize(updated.receipt.point)
                        .await
                        .expect("it is there");
                }
            }
            world.crash();
            assert_eq!(integer(&*key_value, &key("a"), "n").await, durable as i64);
        });
    }
}

/// D2.
#[test]
fn a_crash_that_keeps_more_keeps_a_prefix() {
    let mut kept = std::collections::BTreeSet::new();
    for seed in 0..30 {
        run(async {
            let world = World::new(seed);
            let key_value = world.key_value();
            for written in 0..10 {
                let updated = key_value
                    .update(count_up(&format!("{written}")))
                    .await
                    .expect("calm");
                if written == 4 {
                    key_value
                        .externalize(updated.receipt.point)
                        .await
                        .expect("it is there");
                }
            }
            world.crash_keeping_some();
            let mut there = Vec::new();
            for written in 0..10 {
                there.push(integer(&*key_value, &key(&format!("{written}")), "n").await == 1);
            }
            let length = there.iter().filter(|is_there| **is_there).count();
            assert!(length >= 5, "externalized updates survive");
            assert!(
                there[..length].iter().all(|is_there| *is_there),
                "{there:?} is no prefix"
            );
            kept.insert(length);
        });
    }
    assert!(kept.len() > 3, "crashes keep different amounts: {kept:?}");
}

/// D3, rule P3.
#[test]
fn a_point_of_an_earlier_start_is_lost_though_new_positions_passed_it() {
    run(async {
        let world = World::new(1);
        let key_value = world.key_value();
        let safe = key_value
            .update(count_up("a"))
            .await
            .expect("calm")
            .receipt
            .point;
        key_value.externalize(safe).await.expect("it is there");
        let lost = key_value
            .update(count_up("a"))
            .await
            .expect("calm")
            .receipt
            .point;
        assert!(!key_value.is_durable(lost));
        world.crash();
        for _ in 0..5 {
            let point = key_value
                .update(count_up("b"))
                .await
                .expect("calm")
                .receipt
                .point;
            assert_eq!(point.incarnation, Incarnation(lost.incarnation.0 + 1));
            key_value.externalize(point).await.expect("it is there");
        }
        assert!(key_value.point().position > lost.position);
        key_value.externalize(safe).await.expect("it survived");
        key_value
            .externalize(DurabilityPoint::DURABLE)
            .await
            .expect("always");
        let error = key_value.externalize(lost).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::Lost);
        let unheard = DurabilityPoint {
            position: Position(1_000),
            ..key_value.point()
        };
        let error = key_value
            .externalize(unheard)
            .await
            .expect_err("no caller received it");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

/// D3.
#[test]
fn a_wait_for_an_fsync_that_a_crash_overtakes_ends_as_lost() {
    run(async {
        let world = World::new(1);
        let key_value = world.key_value();
        let point = key_value
            .update(count_up("a"))
            .await
            .expect("calm")
            .receipt
            .point;
        let waiter = {
            let key_value = world.key_value();
            tokio::spawn(async move { key_value.externalize(point).await })
        };
        tokio::task::yield_now().await;
        world.crash();
        let error = waiter
            .await
            .expect("it does not panic")
            .expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::Lost);
    });
}

/// Q3, Q6, Q7.
#[test]
fn a_crash_undoes_messages_and_acknowledgements_and_keeps_their_order() {
    run(async {
        let world = World::new(1);
        let queue = world.queue();
        queue
            .create("q", QueueOptions::default())
            .await
            .expect("calm");
        let sent = queue
            .send("q", vec![message("g", "1"), message("g", "2")])
            .await
            .expect("calm");
        queue.externalize(sent.point).await.expect("it is there");
        let taken = queue.receive("q", 10).await.expect("calm");
        let handles: Vec<_> = taken
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        queue.acknowledge("q", &handles).await.expect("calm");
        queue
            .send("q", vec![message("g", "3")])
            .await
            .expect("calm");
        world.crash();
        queue
            .send("q", vec![message("g", "4")])
            .await
            .expect("calm");
        let again = queue.receive("q", 10).await.expect("calm");
        let bodies: Vec<_> = again.iter().map(|delivery| &delivery.body[..]).collect();
        assert_eq!(bodies, [b"1", b"2", b"4"]);
        queue
            .acknowledge("q", &handles)
            .await
            .expect("a stale handle is no error");
        let handles: Vec<_> = again
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        queue
            .release("q", &handles[0], 0, "later")
            .await
            .expect("calm");
        assert_eq!(
            queue.receive("q", 10).await.expect("calm").len(),
            3,
            "the stale handles removed nothing"
        );
    });
}

/// D1.
#[test]
fn a_store_that_is_durable_at_once_loses_nothing() {
    run(async {
        let world = World::with_options(
            1,
            Options {
                durable_at_once: true,
                ..Options::default()
            },
        );
        let key_value = world.key_value();
        let point = key_value
            .update(count_up("a"))
            .await
            .expect("calm")
            .receipt
            .point;
        assert!(key_value.is_durable(point));
        world.crash();
        assert_eq!(integer(&*key_value, &key("a"), "n").await, 1);
    });
}
