//! T4, T9: how long outcomes are kept: those of client ids for days, those of random ids for
//! minutes.

use std::time::Duration;

use transactions::{Config, Error, layout, model::transaction_id::RANDOM_PREFIX};

use crate::{
    collection::{MOMENT, WINDOWS, row_of, rows_at_rest},
    house::{Node, in_virtual_time, items_at_rest},
};

/// T4: a client id is kept for its window, and its row is dropped with it; beyond the maximum the
/// oldest go first.
#[test]
fn names_are_kept_for_days() {
    in_virtual_time(async |world| {
        let config = Config {
            names_max: 20,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config.clone()).await;
        let mut calls = Vec::new();
        for number in 0..30 {
            let call = node.begin_named(&format!("order-{number}")).await;
            node.put(&call, "k", "v").await;
            node.commit(&call).await;
            calls.push(call);
            world.clock().sleep(Duration::from_mins(3)).await;
        }
        let store = world.key_value();
        let has_row = async |number: usize| row_of(&*store, &calls[number]).await;
        assert!(
            !has_row(8).await && has_row(10).await && has_row(29).await,
            "the oldest beyond twenty went"
        );
        drop(node);
        let node = Node::on(&world, world.key_value(), config).await;
        world.clock().sleep(Duration::from_hours(24 * 6)).await;
        assert!(
            node.engine.commit(&calls[20]).await.is_ok(),
            "answered as it was"
        );
        assert_eq!(node.engine.figures().kept_names, 20);
        world.clock().sleep(Duration::from_hours(24 * 3)).await;
        assert!(
            !has_row(20).await && has_row(29).await,
            "the last one's version is still the newest"
        );
        assert_eq!(
            (
                rows_at_rest(&*store).await,
                node.engine.figures().kept_names
            ),
            (1, 0)
        );
        assert_eq!(items_at_rest(&*store, layout::PERIODS.to_vec()).await, 0);
        node.write(&[("k", "w")]).await;
        world.clock().sleep(MOMENT).await;
        assert!(!has_row(29).await);
        node.begin_named("order-29").await;
    });
}

/// T4: a random id is kept for minutes, and makes way for client ids.
#[test]
fn random_names_are_kept_for_minutes() {
    in_virtual_time(async |world| {
        let store = world.key_value();
        let config = Config {
            names_max: 3,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let random = |number: usize| format!("{RANDOM_PREFIX}{number:032x}");
        let mut calls = Vec::new();
        for name in ["order-1".to_owned()].into_iter().chain((1..6).map(random)) {
            let call = node.begin_named(&name).await;
            node.put(&call, "k", "v").await;
            node.commit(&call).await;
            calls.push(call);
        }
        let has_row = async |number: usize| row_of(&*store, &calls[number]).await;
        world.clock().sleep(WINDOWS).await;
        assert_eq!(node.engine.figures().kept_names, 3);
        assert!(
            has_row(0).await,
            "it is the oldest, and goes last, as it was chosen"
        );
        assert!(
            !has_row(1).await && has_row(5).await,
            "the oldest of the random ones went"
        );
        world.clock().sleep(WINDOWS * 2).await;
        assert_eq!(node.engine.figures().kept_names, 1);
        assert_eq!(items_at_rest(&*store, layout::PERIODS.to_vec()).await, 1);
        assert!(
            node.engine.commit(&calls[0]).await.is_ok(),
            "answered as it was"
        );
        node.write(&[("k", "w")]).await;
        world.clock().sleep(MOMENT).await;
        assert!(!has_row(5).await, "its version is not the newest any more");
        assert_eq!(
            node.engine.commit(&calls[5]).await,
            Err(Error::Expired),
            "its work is not done again"
        );
        node.begin_named(&random(5)).await;
    });
}
