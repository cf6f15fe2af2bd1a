//! Group commits: commits in one step of the store with their slot, and their outcome where that
//! step is refused or unknown.

use std::sync::Arc;

use ports::{
    Condition, KeyValue, Update,
    key_value::Action,
    metering::{Meter, MeteredKeyValue},
};
use simulated::World;
use transactions::{
    Config, Error,
    layout::{self, Buckets},
    model::{Call, Outcome},
};

use crate::{
    gate::Gate,
    house::{Node, finished, in_virtual_time, items_at_rest, versions_at_rest},
};

/// The number of slots in the logs of the first nodes, including seals.
async fn slots(store: &dyn KeyValue) -> usize {
    let mut slots = 0;
    for node in 1..4_u32 {
        let log = [layout::LOGS, &node.to_be_bytes()].concat();
        slots += items_at_rest(store, log).await;
    }
    slots
}

/// The number of updates and of transactions of `store` for a commit of two keys.
async fn changes_of_a_commit(
    world: &World,
    store: Arc<dyn KeyValue>,
    config: Config,
) -> (u64, u64) {
    let meter = Arc::new(Meter::default());
    let metered = Arc::new(MeteredKeyValue::new(store, Arc::clone(&meter)));
    let node = Node::on(world, metered, config).await;
    let call = node.begin().await;
    node.put(&call, "k", "1").await;
    node.put(&call, "l", "1").await;
    let calls = |name| {
        let usage = meter.usage();
        usage
            .operations()
            .filter(|(operation, _)| operation.name() == name)
            .map(|(_, count)| count.calls)
            .sum()
    };
    let before: (u64, u64) = (calls("key_value.update"), calls("key_value.transact"));
    node.commit(&call).await;
    (
        calls("key_value.update") - before.0,
        calls("key_value.transact") - before.1,
    )
}

/// Slot, versions and row.
#[test]
fn a_commit_is_one_change_of_the_store() {
    in_virtual_time(async |world| {
        assert_eq!(
            changes_of_a_commit(&world, world.key_value(), Config::default()).await,
            (0, 1)
        );
    });
}

/// Waits until all of them have committed concurrently; the answers are in their order.
async fn commit_together(node: &Node, calls: &[Call]) -> Vec<Result<(), Error>> {
    let committing = calls
        .iter()
        .map(|call| async { node.engine.commit(call).await.map(drop) });
    futures_util::future::join_all(committing).await
}

/// T4, T5: the group's answer is lost, and the group arrives after its commits have gone step by
/// step.
#[test]
fn a_group_that_arrives_late_changes_nothing() {
    in_virtual_time(async |world| {
        let gate = Gate::of_groups(world.key_value());
        let node = Node::on(&world, gate.clone(), Config::default()).await;
        let call = node.begin().await;
        node.put(&call, "k", "1").await;
        gate.delay_one();
        node.commit(&call).await;
        let before = slots(&*gate).await;
        assert!(!gate.deliver().await, "its slot is taken");
        assert_eq!(slots(&*gate).await, before);
        assert_eq!(node.now("k").await.as_deref(), Some("1"));
        assert_eq!(node.status(&call).await, Outcome::Committed);
        drop(node);
        let next = Node::on(&world, world.key_value(), Config::default()).await;
        assert_eq!(next.now("k").await.as_deref(), Some("1"));
        assert_eq!(versions_at_rest(&*world.key_value(), "k").await, 1);
    });
}

/// T4: the group was executed, and only its answer is lost: each commit finds its row.
#[test]
fn a_group_whose_answer_is_lost_has_committed() {
    in_virtual_time(async |world| {
        let gate = Gate::of_groups(world.key_value());
        let node = Node::on(&world, gate.clone(), Config::default()).await;
        let calls = [node.begin().await, node.begin().await];
        for (call, name) in calls.iter().zip(["k", "l"]) {
            node.put(call, name, "1").await;
        }
        gate.lose_one();
        assert_eq!(commit_together(&node, &calls).await, [Ok(()), Ok(())]);
        for name in ["k", "l"] {
            assert_eq!(node.now(name).await.as_deref(), Some("1"));
            assert_eq!(versions_at_rest(&*gate, name).await, 1);
        }
    });
}

/// T4, T-2: the row of one commit in a group was closed. That commit is refused, the others commit,
/// and nothing of it is left.
#[test]
fn one_that_is_refused_holds_up_no_others() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let mut calls = Vec::new();
        for name in ["a", "b", "c", "d"] {
            let call = node.begin().await;
            node.put(&call, name, "1").await;
            calls.push(call);
        }
        close(&world, &calls[2]).await;
        let answers = commit_together(&node, &calls).await;
        let refused = Err(finished(Outcome::Aborted));
        assert_eq!(answers, [Ok(()), Ok(()), refused, Ok(())]);
        for (name, value) in [
            ("a", Some("1")),
            ("b", Some("1")),
            ("c", None),
            ("d", Some("1")),
        ] {
            assert_eq!(node.now(name).await.as_deref(), value, "{name}");
        }
        simulated_pause(&world).await;
        assert_eq!(versions_at_rest(&*world.key_value(), "c").await, 0);
    });
}

/// Closes an undecided row, as another node does that is asked for its outcome.
async fn close(world: &World, call: &Call) {
    let attempt = call.attempt.expect("it was begun").to_bytes().to_vec();
    let actions = vec![
        Action::set("attempt", attempt),
        Action::set_integer("state", 2),
    ];
    let row = Buckets::default().decision(&call.id);
    let update = Update::modify(row, actions).when(Condition::Absent);
    world.key_value().update(update).await.expect("calm");
}

/// Background clean-up has finished after this.
async fn simulated_pause(world: &World) {
    world.clock().sleep(std::time::Duration::from_secs(1)).await;
}

/// A store that changes one partition at a time commits step by step, and so does a node that is
/// configured to.
#[test]
fn without_transactions_of_the_store_a_commit_goes_step_by_step() {
    // The slot, two versions, and the row.
    in_virtual_time(async |world| {
        let single = Gate::new(world.key_value());
        assert_eq!(
            changes_of_a_commit(&world, single, Config::default()).await,
            (4, 0)
        );
    });
    in_virtual_time(async |world| {
        let never = Config {
            group_items_max: 0,
            ..Config::default()
        };
        assert_eq!(
            changes_of_a_commit(&world, world.key_value(), never).await,
            (4, 0)
        );
    });
}

/// Commits that exceed one transaction of the store go in several, each atomic.
#[test]
fn groups_are_as_large_as_the_store_takes() {
    in_virtual_time(async |world| {
        let config = Config {
            group_items_max: 7,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let mut calls = Vec::new();
        for number in 0..20 {
            let call = node.begin().await;
            for part in 0..=number % 8 {
                node.put(&call, &format!("{number}-{part}"), "1").await;
            }
            calls.push(call);
        }
        assert!(
            commit_together(&node, &calls)
                .await
                .iter()
                .all(Result::is_ok)
        );
        for number in 0..20 {
            for part in 0..=number % 8 {
                assert_eq!(
                    node.now(&format!("{number}-{part}")).await.as_deref(),
                    Some("1")
                );
            }
        }
    });
}
