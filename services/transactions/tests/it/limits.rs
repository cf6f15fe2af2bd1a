//! T15: limits return named errors, and nothing is stuck or leaked. T7: abandoned transactions end.

use std::{task::Poll, time::Duration};

use futures_util::{StreamExt as _, poll, stream::FuturesUnordered};
use transactions::{
    Config, Error,
    layout::{self, Buckets},
    model::{Begin, Outcome},
};

use crate::{
    gate::{Gate, Held},
    house::{Node, bytes, finished, id, in_virtual_time, items_at_rest, key},
};

#[test]
fn limits_are_refused_by_name() {
    in_virtual_time(async |world| {
        let config = Config {
            open_max: 3,
            keys_written_max: 2,
            keys_read_max: 2,
            attempt_bytes_max: 2_000,
            value_bytes_max: 1_900,
            node_buffer_bytes_max: 2_500,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let (first, second) = (node.begin().await, node.begin().await);
        let third = node.begin().await;
        for id in [None, Some(id("order"))] {
            let refused = node
                .engine
                .begin(Begin {
                    id,
                    ..Begin::default()
                })
                .await;
            assert_eq!(refused, Err(Error::TooManyOpen));
        }
        let large = "x".repeat(1_500);
        node.put(&first, "a", &large).await;
        let refused = node.engine.put(&first, key("b"), bytes(&large)).await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        node.put(&first, "a", "small").await;
        node.put(&second, "b", &large).await;
        node.put(&first, "c", "").await;
        let refused = node.engine.delete(&first, key("d")).await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        for name in ["x", "y"] {
            assert_eq!(node.get(&third, name).await, None);
        }
        assert!(matches!(
            node.try_get(&third, "z").await,
            Err(Error::TooLarge(_))
        ));
        let refused = node
            .engine
            .put(&third, key("v"), vec![0; 1_901].into())
            .await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        for call in [&first, &second, &third] {
            node.commit(call).await;
        }
        let figures = node.engine.figures();
        assert_eq!(
            (figures.open, figures.buffered_bytes, figures.committed),
            (0, 0, 3)
        );
    });
}

/// T19: a result takes memory and space as a write does.
#[test]
fn a_kept_result_has_the_limits_of_a_write() {
    in_virtual_time(async |world| {
        let config = Config {
            attempt_bytes_max: 2_000,
            node_buffer_bytes_max: 3_000,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let (first, second) = (node.begin_named("first").await, node.begin().await);
        let (large, small) = ("x".repeat(1_500), "x".repeat(400));
        node.put(&first, "a", &large).await;
        let keep = async |result: &str| node.engine.keep_result(&first, bytes(result)).await;
        let refused = keep(&large).await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        assert_eq!(keep(&small).await, Ok(()));
        let refused = node.engine.put(&first, key("b"), bytes(&small)).await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        assert_eq!(keep("x").await, Ok(()), "a shorter one replaces it");
        node.put(&first, "b", &small).await;

        node.put(&second, "c", &"x".repeat(700)).await;
        let third = node.begin_named("third").await;
        let kept = node.engine.keep_result(&third, bytes(&large)).await;
        assert_eq!(kept, Ok(()), "others spill for it");
        for call in [&first, &second, &third] {
            node.commit(call).await;
        }
        assert_eq!(node.engine.figures().buffered_bytes, 0);
    });
}

/// T8: a retry replaces its own earlier attempt, so its own open attempt does not keep a client
/// out.
#[test]
fn a_name_that_is_open_is_begun_anew_at_the_limit_too() {
    in_virtual_time(async |world| {
        let config = Config {
            open_max: 2,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let (earlier, _other) = (node.begin_named("order").await, node.begin().await);
        node.put(&earlier, "k", "earlier").await;
        let later = node.begin_named("order").await;
        assert_eq!(
            node.engine.commit(&earlier).await,
            Err(finished(Outcome::BegunAnew))
        );
        let refused = node
            .engine
            .begin(Begin {
                id: Some(id("another")),
                ..Begin::default()
            })
            .await;
        assert_eq!(refused, Err(Error::TooManyOpen));
        node.commit(&later).await;
        assert_eq!(node.engine.figures().open, 1);
    });
}

/// T15: refusing costs less than accepting, for any number of begins: most are refused without a
/// store read.
#[test]
fn a_full_node_asks_the_store_about_few_of_those_that_it_refuses() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(
            &world,
            gate.clone(),
            Config {
                open_max: 1,
                ..Config::default()
            },
        )
        .await;
        let _open = node.begin().await;
        gate.close(Held::Gets, layout::DECISIONS);
        let begins = (0..100).map(|number| {
            let id = Some(id(&format!("order-{number}")));
            node.engine.begin(Begin {
                id,
                ..Begin::default()
            })
        });
        let mut begins: FuturesUnordered<_> = begins.collect();
        let mut refused = 0;
        while let Poll::Ready(Some(answer)) = poll!(begins.next()) {
            assert_eq!(answer, Err(Error::TooManyOpen));
            refused += 1;
        }
        assert!(
            (90..100).contains(&refused),
            "{refused} without a look at the store"
        );
        gate.open();
        while let Some(answer) = begins.next().await {
            assert_eq!(answer, Err(Error::TooManyOpen));
        }
    });
}

/// T7.
#[test]
fn abandoned_transactions_end_and_leave_nothing() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (idle, named, busy) = (
            node.begin().await,
            node.begin_named("order").await,
            node.begin().await,
        );
        node.put(&idle, "k", "v").await;
        node.put(&named, "k", "v").await;
        for minute in 0..14 {
            assert_eq!(node.get(&busy, "k").await, None, "minute {minute}");
            world.clock().sleep(Duration::from_secs(59)).await;
        }
        for call in [&idle, &named] {
            assert_eq!(
                node.engine.commit(call).await,
                Err(finished(Outcome::Expired))
            );
        }
        assert_eq!(node.get(&busy, "k").await, None);
        world.clock().sleep(Duration::from_secs(59)).await;
        world.clock().sleep(Duration::from_secs(16)).await;
        assert_eq!(
            node.engine.commit(&busy).await,
            Err(finished(Outcome::Expired)),
            "its life is over"
        );
        let figures = node.engine.figures();
        assert_eq!(
            (figures.open, figures.buffered_bytes, figures.expired),
            (0, 0, 3)
        );
        let row = Buckets::default().decision(&id("order"));
        assert_eq!(
            items_at_rest(&*world.key_value(), row.partition().to_vec()).await,
            0
        );
    });
}

/// T7: the outcome is known for a while.
#[test]
fn an_expired_transaction_says_so() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let call = node.begin().await;
        world.clock().sleep(Duration::from_secs(61)).await;
        assert_eq!(
            node.try_get(&call, "k").await,
            Err(finished(Outcome::Expired))
        );
        assert_eq!(node.status(&call).await, Outcome::Expired);
        assert_eq!(node.engine.abort(&call).await, Ok(()));
    });
}

/// T16: nothing runs when idle.
#[test]
fn an_hour_without_transactions_costs_nothing() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        node.write(&[("k", "v")]).await;
        // Until its window is over.
        world.clock().sleep(Duration::from_mins(3)).await;
        let calls = world.port_calls();
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(world.port_calls(), calls);
        assert_eq!(node.now("k").await.as_deref(), Some("v"));
    });
}
