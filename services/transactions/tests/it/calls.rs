//! Each call, on every provider.

use transactions::{
    Error,
    model::{Begin, Begun, Call, Outcome},
};

use crate::house::{
    Node, bytes, finished, id, in_virtual_time, key, on_every_provider, versions_at_rest,
};

/// T3.
#[test]
fn own_writes_are_read_and_reads_repeat() {
    on_every_provider(async |node: Node| {
        node.write(&[("k", "old"), ("l", "old")]).await;
        let call = node.begin().await;
        assert_eq!(node.get(&call, "k").await.as_deref(), Some("old"));
        node.write(&[("k", "new")]).await;
        assert_eq!(
            node.get(&call, "k").await.as_deref(),
            Some("old"),
            "reads repeat"
        );
        node.put(&call, "k", "own").await;
        assert_eq!(node.get(&call, "k").await.as_deref(), Some("own"));
        node.engine.delete(&call, key("k")).await.expect("taken");
        assert_eq!(node.get(&call, "k").await, None);
        assert_eq!(node.get(&call, "absent").await, None);
        node.write(&[("absent", "there")]).await;
        assert_eq!(node.get(&call, "absent").await, None, "absence repeats");
        node.commit(&call).await;
        assert_eq!(node.now("k").await, None, "the deletion came last");
        assert_eq!(node.now("absent").await.as_deref(), Some("there"));
    });
}

/// T1, T4: every later transaction sees a commit, and repeats get the same answer.
#[test]
fn a_commit_is_seen_and_repeats_alike() {
    on_every_provider(async |node: Node| {
        let call = node.begin().await;
        node.put(&call, "k", "v").await;
        assert_eq!(node.now("k").await, None);
        assert_eq!(node.status(&call).await, Outcome::Open);
        let committed = node.commit(&call).await;
        assert_eq!(node.commit(&call).await, committed);
        assert_eq!(
            node.engine.commit(&Call::latest(call.id.clone())).await,
            Ok(committed)
        );
        assert_eq!(node.status(&call).await, Outcome::Committed);
        assert_eq!(node.now("k").await.as_deref(), Some("v"));
        let later = node
            .begin_as(Begin {
                after: committed.after,
                ..Begin::default()
            })
            .await;
        assert_eq!(node.get(&later, "k").await.as_deref(), Some("v"));
        for refused in [
            node.engine.put(&call, key("k"), bytes("w")).await,
            node.try_get(&call, "k").await.map(drop),
            node.engine.abort(&call).await,
        ] {
            assert_eq!(refused, Err(finished(Outcome::Committed)));
        }
    });
}

/// T1, T7.
#[test]
fn an_aborted_transaction_is_never_seen() {
    on_every_provider(async |node: Node| {
        for call in [node.begin().await, node.begin_named("order").await] {
            node.put(&call, "k", "v").await;
            assert_eq!(node.engine.abort(&call).await, Ok(()));
            assert_eq!(node.engine.abort(&call).await, Ok(()));
            assert_eq!(
                node.engine.commit(&call).await,
                Err(finished(Outcome::Aborted))
            );
            assert_eq!(node.now("k").await, None);
        }
        assert_eq!(node.engine.figures().buffered_bytes, 0);
    });
}

#[test]
fn a_transaction_that_wrote_nothing_commits() {
    on_every_provider(async |node: Node| {
        let call = node.begin().await;
        assert_eq!(node.get(&call, "k").await, None);
        assert_eq!(node.commit(&call).await.after, None);
        let call = node.begin_named("look").await;
        assert_eq!(node.commit(&call).await.after, None);
        let again = node
            .engine
            .begin(Begin {
                id: Some(id("look")),
                ..Begin::default()
            })
            .await;
        let expected = Begun::Committed {
            id: id("look"),
            after: None,
            result: None,
        };
        assert_eq!(again.expect("answered").value, expected);
    });
}

#[test]
fn plain_state_is_a_transaction_of_one_write() {
    on_every_provider(async |node: Node| {
        node.engine
            .put_now(key("k"), Some(bytes("1")))
            .await
            .expect("committed");
        assert_eq!(node.now("k").await.as_deref(), Some("1"));
        let call = node.begin().await;
        assert_eq!(node.get(&call, "k").await.as_deref(), Some("1"));
        let after = node
            .engine
            .put_now(key("k"), None)
            .await
            .expect("committed")
            .after;
        assert_eq!((node.now("k").await, after.is_some()), (None, true));
        assert_eq!(node.get(&call, "k").await.as_deref(), Some("1"));
    });
}

#[test]
fn what_was_never_begun_is_not_there() {
    on_every_provider(async |node: Node| {
        let stranger = Call::latest(id("stranger"));
        let generated = node.begin().await;
        let foreign = id("7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
        for call in [stranger, Call::latest(foreign)] {
            assert_eq!(
                node.engine.commit(&call).await,
                Err(Error::NoSuchTransaction)
            );
            assert_eq!(
                node.engine.abort(&call).await,
                Err(Error::NoSuchTransaction)
            );
            assert_eq!(
                node.try_get(&call, "k").await,
                Err(Error::NoSuchTransaction)
            );
            assert_eq!(
                node.engine.put(&call, key("k"), bytes("v")).await,
                Err(Error::NoSuchTransaction)
            );
        }
        assert_eq!(node.status(&generated).await, Outcome::Open);
        let forged = Begin {
            after: Some("ffffffffffffffff-1-1-1".parse().expect("a token")),
            ..Begin::default()
        };
        assert!(matches!(
            node.engine.begin(forged).await,
            Err(Error::Invalid(_))
        ));
    });
}

/// Each write of a key is a version of its own until it is collected; the cache evicts it, the
/// store does not.
#[test]
fn what_the_caches_forget_is_loaded() {
    in_virtual_time(async |world| {
        let small = transactions::Config {
            index_bytes_max: 1,
            data_cache_bytes_max: 1,
            ..Default::default()
        };
        let node = Node::on(&world, world.key_value(), small).await;
        for value in ["1", "2", "3"] {
            node.write(&[("k", value), ("l", value)]).await;
        }
        let call = node.begin().await;
        assert_eq!(node.get(&call, "k").await.as_deref(), Some("3"));
        assert_eq!(node.get(&call, "l").await.as_deref(), Some("3"));
        assert_eq!(versions_at_rest(&*world.key_value(), "k").await, 3);
        let figures = node.engine.figures();
        assert!(
            figures.loads >= 2 && figures.index_bytes <= 1,
            "{figures:?}"
        );
    });
}

/// T2, on real threads: every writer writes one value to both keys, and every reader reads one
/// value from both.
#[test]
fn many_tasks_on_the_same_keys_read_nothing_fractured() {
    on_every_provider(async |node: Node| {
        node.write(&[("k", "0"), ("l", "0")]).await;
        let engine = node.engine.clone();
        let work = (0..8).map(|task| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for round in 0..40 {
                    let begun = engine
                        .begin(Begin::default())
                        .await
                        .expect("answered")
                        .value;
                    let Begun::Open { id, attempt } = begun else {
                        panic!("generated ids are new")
                    };
                    let call = Call {
                        id,
                        attempt: Some(attempt),
                    };
                    let k = engine
                        .get(&call, &key("k"))
                        .await
                        .expect("there is a version")
                        .value;
                    let l = engine
                        .get(&call, &key("l"))
                        .await
                        .expect("there is a version")
                        .value;
                    assert_eq!(k, l, "fractured");
                    let value = bytes(&format!("{task}/{round}"));
                    engine
                        .put(&call, key("k"), value.clone())
                        .await
                        .expect("taken");
                    engine.put(&call, key("l"), value).await.expect("taken");
                    engine.commit(&call).await.expect("committed");
                }
            })
        });
        for task in work.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        let figures = node.engine.figures();
        assert_eq!(
            (figures.committed, figures.open, figures.buffered_bytes),
            (321, 0, 0)
        );
        assert!(figures.slots <= 321, "{figures:?}");
    });
}
