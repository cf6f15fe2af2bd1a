//! T-5: one id, many begins.

use std::time::Duration;

use simulated::{World, percent};
use transactions::{
    Config, Error,
    broken::Broken,
    model::{Begin, Begun, Outcome},
};

use crate::house::{
    Node, bytes, finished, id, in_virtual_time, key, on_every_provider, open, parts,
};

/// T8.
#[test]
fn an_earlier_attempt_is_refused() {
    on_every_provider(async |node: Node| {
        let first = node.begin_named("order").await;
        node.put(&first, "k", "first").await;
        let second = node.begin_named("order").await;
        assert_ne!(first.attempt, second.attempt);
        let begun_anew = Err(finished(Outcome::BegunAnew));
        assert_eq!(
            node.engine.put(&first, key("k"), bytes("late")).await,
            begun_anew
        );
        assert_eq!(node.engine.commit(&first).await.map(drop), begun_anew);
        assert_eq!(node.engine.abort(&first).await, begun_anew);
        assert_eq!(node.get(&second, "k").await, None, "its writes are gone");
        node.put(&second, "l", "second").await;
        node.commit(&second).await;
        assert_eq!(
            (node.now("k").await, node.now("l").await.as_deref()),
            (None, Some("second"))
        );
        assert_eq!(
            node.engine.commit(&first).await.map(drop),
            begun_anew,
            "also afterwards"
        );
    });
}

/// A function stalls, is retried under its id, wakes up and writes; then the retry commits.
async fn stalls(world: &World, variant: Option<Broken>) -> (Option<String>, Result<(), Error>) {
    let config = Config {
        mutant: variant.into(),
        ..Config::default()
    };
    let node = Node::on(world, world.key_value(), config).await;
    let first = node.begin_named("order").await;
    node.put(&first, "k", "first").await;
    let second = node.begin_named("order").await;
    node.put(&second, "l", "second").await;
    node.commit(&second).await;
    let late = node.engine.commit(&first).await.map(drop);
    (node.now("k").await, late)
}

/// T4, T8.
#[test]
fn a_stalled_function_adds_nothing_to_its_retry() {
    let refused = Err(finished(Outcome::BegunAnew));
    in_virtual_time(async |world| assert_eq!(stalls(&world, None).await, (None, refused.clone())));
    in_virtual_time(async |world| {
        let (mixed, _) = stalls(&world, Some(Broken::KeepsEarlierBuffer)).await;
        assert_eq!(mixed.as_deref(), Some("first"), "the test would notice");
    });
    in_virtual_time(async |world| {
        let (doubled, late) = stalls(&world, Some(Broken::CommitsAnyAttempt)).await;
        assert_eq!(
            (doubled.as_deref(), late),
            (Some("first"), Ok(())),
            "the test would notice"
        );
    });
}

/// T4: T-2, T-5: a repeat gets the same answer, after a restart too, by client id and by generated
/// id.
#[test]
fn a_commit_repeated_after_a_restart_is_answered_alike() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = open(directory.path()).await;
        let node = Node::start(parts(&store), Config::default()).await;
        let mut answers = Vec::new();
        for call in [node.begin_named("order").await, node.begin().await] {
            node.put(&call, "k", "v").await;
            answers.push((call.clone(), node.commit(&call).await));
        }
        let aborted = node.begin().await;
        node.put(&aborted, "k", "lost").await;
        drop(node);
        // Not shut down in order: acknowledged commits are there; the others were never
        // acknowledged.
        drop(store);
        let store = open(directory.path()).await;
        let node = Node::start(parts(&store), Config::default()).await;
        for (call, committed) in answers {
            assert_eq!(node.engine.commit(&call).await, Ok(committed));
            assert_eq!(node.status(&call).await, Outcome::Committed);
            assert_eq!(
                node.engine.abort(&call).await,
                Err(finished(Outcome::Committed))
            );
        }
        let again = node
            .engine
            .begin(Begin {
                id: Some(id("order")),
                ..Begin::default()
            })
            .await;
        assert!(matches!(
            again.expect("answered").value,
            Begun::Committed { after: Some(_), .. }
        ));
        assert_eq!(
            node.engine.commit(&aborted).await,
            Err(finished(Outcome::Aborted))
        );
        assert_eq!(node.now("k").await.as_deref(), Some("v"));
        store.close().await;
    });
}

/// T-5: of any number of concurrent begins of an id, the last one has it.
#[test]
fn of_many_begins_at_once_one_is_open() {
    for seed in 0..20 {
        simulated::run(begins_at_once(World::new(seed)));
    }
}

async fn begins_at_once(world: World) {
    let node = Node::on(&world, world.key_value(), Config::default()).await;
    world.faults().delay(
        percent(50),
        Duration::from_micros(1)..=Duration::from_millis(5),
    );
    let begins = (0..8).map(|_| async { node.begin_named("order").await });
    let calls = futures_util::future::join_all(begins).await;
    let mut committed = 0;
    for (place, call) in calls.iter().enumerate() {
        let answer = match node
            .engine
            .put(call, key("k"), bytes(&place.to_string()))
            .await
        {
            Ok(()) => node.engine.commit(call).await.map(drop),
            refused => refused,
        };
        match answer {
            Ok(()) => committed += 1,
            Err(error) => assert_eq!(error, finished(Outcome::BegunAnew)),
        }
    }
    assert_eq!(committed, 1);
}

/// T4: an aborted client id can be begun again; a committed one cannot.
#[test]
fn an_aborted_name_is_free_again() {
    on_every_provider(async |node: Node| {
        let first = node.begin_named("order").await;
        assert_eq!(node.engine.abort(&first).await, Ok(()));
        let second = node.begin_named("order").await;
        node.put(&second, "k", "v").await;
        node.commit(&second).await;
        let third = node
            .engine
            .begin(Begin {
                id: Some(id("order")),
                ..Begin::default()
            })
            .await;
        assert!(matches!(
            third.expect("answered").value,
            Begun::Committed { after: Some(_), .. }
        ));
    });
}
