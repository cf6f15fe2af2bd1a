//! Read atomicity: which writes a transaction sees, and that the tests would catch a violation.

use simulated::World;
use transactions::{
    Config, Error,
    broken::Broken,
    layout::{self, Buckets},
    model::Outcome,
};

use crate::{
    gate::{Gate, Held},
    house::{Node, in_virtual_time, key},
};

fn broken(broken: Option<Broken>) -> Config {
    Config {
        mutant: broken.into(),
        ..Config::default()
    }
}

/// Whether another transaction sees a write whose decision row is not written yet.
async fn sees_uncommitted(world: &World, variant: Option<Broken>) -> bool {
    let gate = Gate::new(world.key_value());
    let node = Node::on(world, gate.clone(), broken(variant)).await;
    node.write(&[("k", "old")]).await;
    assert_eq!(node.now("k").await.as_deref(), Some("old"));
    let call = node.begin().await;
    node.put(&call, "k", "new").await;
    gate.close(Held::Updates, layout::DECISIONS);
    let engine = node.engine.clone();
    let committing = tokio::spawn(async move { engine.commit(&call).await });
    gate.holds().await;
    let reader = node.begin().await;
    let seen = node.get(&reader, "k").await;
    gate.open();
    committing.await.expect("no panic").expect("committed");
    assert_eq!(node.now("k").await.as_deref(), Some("new"));
    seen.as_deref() == Some("new")
}

/// T1.
#[test]
fn nobody_reads_what_was_not_committed() {
    in_virtual_time(async |world| assert!(!sees_uncommitted(&world, None).await));
    in_virtual_time(async |world| {
        assert!(
            sees_uncommitted(&world, Some(Broken::VisibleBeforeRecord)).await,
            "the test would notice"
        );
    });
}

/// The paper's example: l is read, then a transaction writes k and l, then k is read. Returns the
/// value of k.
async fn reads_around_a_commit(world: &World, variant: Option<Broken>) -> Option<String> {
    let node = Node::on(world, world.key_value(), broken(variant)).await;
    node.write(&[("k", "0"), ("l", "0")]).await;
    node.write(&[("l", "1")]).await;
    let reader = node.begin().await;
    assert_eq!(node.get(&reader, "l").await.as_deref(), Some("1"));
    node.write(&[("k", "2"), ("l", "2")]).await;
    node.get(&reader, "k").await
}

/// T2.
#[test]
fn what_was_written_together_is_read_together() {
    in_virtual_time(async |world| {
        assert_eq!(
            reads_around_a_commit(&world, None).await.as_deref(),
            Some("0")
        );
    });
    in_virtual_time(async |world| {
        let fractured =
            reads_around_a_commit(&world, Some(Broken::SkipsCowrittenOfCandidate)).await;
        assert_eq!(fractured.as_deref(), Some("2"), "the test would notice");
    });
}

/// T2, the other way round: after a read of the new transaction's k, l must be as new.
#[test]
fn what_is_read_after_something_newer_is_as_new() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        node.write(&[("k", "1"), ("l", "1")]).await;
        node.write(&[("k", "2"), ("l", "2")]).await;
        let reader = node.begin().await;
        assert_eq!(node.get(&reader, "k").await.as_deref(), Some("2"));
        node.write(&[("l", "3")]).await;
        assert_eq!(
            node.get(&reader, "l").await.as_deref(),
            Some("3"),
            "newer than that is fine"
        );
    });
}

/// A key is read as absent and then created together with another one, which is read next.
async fn reads_around_a_creation(
    world: &World,
    variant: Option<Broken>,
) -> Result<Option<String>, Error> {
    let node = Node::on(world, world.key_value(), broken(variant)).await;
    let reader = node.begin().await;
    assert_eq!(node.get(&reader, "l").await, None);
    node.write(&[("k", "1"), ("l", "1")]).await;
    node.try_get(&reader, "k").await
}

/// T2, T6: an absence is part of the read set, and a missing valid version is an error.
#[test]
fn what_was_created_with_an_absent_key_is_not_read() {
    in_virtual_time(async |world| {
        assert_eq!(
            reads_around_a_creation(&world, None).await,
            Err(Error::NoValidVersion)
        );
    });
    in_virtual_time(async |world| {
        let fractured = reads_around_a_creation(&world, Some(Broken::ForgetsAbsence)).await;
        assert_eq!(fractured, Ok(Some("1".into())), "the test would notice");
    });
}

/// Two concurrent reads of one attempt, with a commit of both keys between the first's choice and
/// its value.
async fn reads_in_parallel(
    world: &World,
    variant: Option<Broken>,
) -> (Option<String>, Option<String>) {
    let gate = Gate::new(world.key_value());
    let config = Config {
        data_cache_bytes_max: 1,
        ..broken(variant)
    };
    let node = Node::on(world, gate.clone(), config).await;
    node.write(&[("k", "1"), ("l", "1")]).await;
    assert_eq!(
        (
            node.now("k").await.as_deref(),
            node.now("l").await.as_deref()
        ),
        (Some("1"), Some("1"))
    );
    let reader = node.begin().await;
    gate.close(
        Held::Gets,
        &Buckets::default().versions(&key("l"), 1).partition,
    );
    let (engine, call) = (node.engine.clone(), reader.clone());
    let first = tokio::spawn(async move { engine.get(&call, &key("l")).await });
    gate.holds().await;
    node.write(&[("k", "2"), ("l", "2")]).await;
    let second = node.get(&reader, "k").await;
    gate.open();
    let first = first.await.expect("no panic").expect("answered").value;
    (
        first.map(|value| String::from_utf8(value.to_vec()).expect("text")),
        second,
    )
}

/// T2, under parallel reads.
#[test]
fn parallel_reads_of_one_transaction_see_each_other() {
    in_virtual_time(async |world| {
        let (l, k) = reads_in_parallel(&world, None).await;
        assert_eq!((l.as_deref(), k.as_deref()), (Some("1"), Some("1")));
    });
    in_virtual_time(async |world| {
        let (l, k) = reads_in_parallel(&world, Some(Broken::ChoosesBeforeRecording)).await;
        assert_eq!(
            (l.as_deref(), k.as_deref()),
            (Some("1"), Some("2")),
            "the test would notice"
        );
    });
}

/// T2: a load that finds half of a commit's writes finds its record, and the other half is visible
/// too.
#[test]
fn a_load_beside_a_commit_is_whole() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(
            &world,
            gate.clone(),
            Config {
                recent_bytes_max: 0,
                ..Config::default()
            },
        )
        .await;
        gate.close(Held::Gets, layout::DECISIONS);
        node.write(&[("k", "1"), ("l", "1")]).await;
        let (engine, call) = (node.engine.clone(), node.begin().await);
        let read = {
            let call = call.clone();
            tokio::spawn(async move { engine.get(&call, &key("k")).await })
        };
        gate.holds().await;
        // The load has scanned already; this commit is announced meanwhile.
        node.write(&[("k", "2"), ("l", "2")]).await;
        gate.open();
        let read = read.await.expect("no panic").expect("answered").value;
        assert_eq!(read.as_deref(), Some(&b"2"[..]));
        assert_eq!(node.get(&call, "l").await.as_deref(), Some("2"));
    });
}

/// 7.4: a commit under way wins over an abort.
#[test]
fn an_abort_waits_for_a_commit_under_way() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(&world, gate.clone(), Config::default()).await;
        let call = node.begin().await;
        node.put(&call, "k", "v").await;
        gate.close(Held::Updates, layout::DECISIONS);
        let (engine, committed) = (node.engine.clone(), call.clone());
        let committing = tokio::spawn(async move { engine.commit(&committed).await });
        gate.holds().await;
        assert_eq!(node.status(&call).await, Outcome::Committing);
        let written = node.try_get(&call, "k").await;
        assert_eq!(
            written,
            Err(Error::TransactionFinished(Outcome::Committing))
        );
        assert_eq!(
            node.engine.abort(&call).await,
            Err(Error::OutcomeUnknown),
            "after five seconds"
        );
        gate.open();
        assert_eq!(
            node.engine.abort(&call).await,
            Err(Error::TransactionFinished(Outcome::Committed))
        );
        // Its client had given up, too.
        assert!(matches!(
            committing.await.expect("no panic"),
            Ok(_) | Err(Error::OutcomeUnknown)
        ));
        assert!(node.engine.commit(&call).await.is_ok());
    });
}
