//! T19: the result that is kept with a commit, for callers that begin its id again.

use simulated::World;
use transactions::{
    Config, Error,
    model::{Begin, Begun, Call, Isolation, RESULT_BYTES_MAX},
};

use crate::house::{Node, bytes, id, on_every_provider};

const RESULT: &str = "{\"order\":17}";

/// The result that a begin of the committed id returns.
async fn begun_again(node: &Node, name: &str) -> Option<String> {
    let begin = Begin {
        id: Some(id(name)),
        ..Begin::default()
    };
    let begun = node.engine.begin(begin).await.expect("it is answered");
    node.engine.externalize(begun.point).await.expect("durable");
    let Begun::Committed { result, .. } = begun.value else {
        panic!("{name} is open: {:?}", begun.value);
    };
    result.map(|result| String::from_utf8(result.to_vec()).expect("text"))
}

async fn keep(node: &Node, call: &Call, result: &str) {
    let kept = node.engine.keep_result(call, bytes(result)).await;
    kept.expect("it is kept");
}

async fn begin(node: &Node, name: &str, isolation: Isolation) -> Call {
    let id = Some(id(name));
    node.begin_as(Begin {
        id,
        isolation,
        ..Begin::default()
    })
    .await
}

/// However it commits: alone or in a group, step by step, in the sequencer's order, or without any
/// write.
#[test]
fn a_begin_of_a_committed_id_returns_its_result() {
    on_every_provider(async |node: Node| {
        let large = "v".repeat(2 << 20);
        for (name, isolation, value) in [
            ("grouped", Isolation::ReadAtomic, Some("v")),
            ("in steps", Isolation::ReadAtomic, Some(&*large)),
            ("reader", Isolation::ReadAtomic, None),
            ("sequenced", Isolation::Serializable, Some("v")),
            ("sequenced reader", Isolation::Serializable, None),
        ] {
            let call = begin(&node, name, isolation).await;
            if let Some(value) = value {
                node.put(&call, name, value).await;
            }
            keep(&node, &call, "replaced").await;
            keep(&node, &call, RESULT).await;
            node.commit(&call).await;
            assert_eq!(
                begun_again(&node, name).await.as_deref(),
                Some(RESULT),
                "{name}"
            );
            let late = node.engine.keep_result(&call, bytes("late")).await;
            assert!(
                matches!(late, Err(Error::TransactionFinished(_))),
                "{late:?}"
            );
            node.commit(&call).await;
            assert_eq!(
                begun_again(&node, name).await.as_deref(),
                Some(RESULT),
                "{name}"
            );
            let kept = node
                .engine
                .kept_result(&id(name))
                .await
                .expect("it is read");
            assert_eq!(kept.value, Some(bytes(RESULT)));
        }
        let none = node.begin_named("without").await;
        node.put(&none, "k", "v").await;
        node.commit(&none).await;
        assert_eq!(begun_again(&node, "without").await, None);
    });
}

#[test]
fn a_result_is_still_there_after_a_restart() {
    simulated::run(async {
        let world = World::new(7);
        for isolation in [Isolation::ReadAtomic, Isolation::Serializable] {
            let name = format!("{isolation:?}");
            let node = Node::on(&world, world.key_value(), Config::default()).await;
            let call = begin(&node, &name, isolation).await;
            node.put(&call, "k", "v").await;
            keep(&node, &call, RESULT).await;
            node.commit(&call).await;
            drop(node);
            let node = Node::on(&world, world.key_value(), Config::default()).await;
            assert_eq!(
                begun_again(&node, &name).await.as_deref(),
                Some(RESULT),
                "{name}"
            );
        }
    });
}

/// T-5: a result belongs to one attempt.
#[test]
fn the_result_of_an_attempt_that_did_not_commit_is_never_returned() {
    on_every_provider(async |node: Node| {
        for isolation in [Isolation::ReadAtomic, Isolation::Serializable] {
            let name = format!("{isolation:?}");
            let earlier = begin(&node, &name, isolation).await;
            keep(&node, &earlier, "the earlier one").await;
            let aborted = begin(&node, &name, isolation).await;
            keep(&node, &aborted, "the aborted one").await;
            node.engine.abort(&aborted).await.expect("it is aborted");
            let last = begin(&node, &name, isolation).await;
            node.put(&last, "k", "v").await;
            node.commit(&last).await;
            assert_eq!(begun_again(&node, &name).await, None, "{name}");
        }
        // A conflict is found after the row has its result.
        let first = begin(&node, "conflict", Isolation::Serializable).await;
        node.get(&first, "k").await;
        node.put(&first, "l", "v").await;
        keep(&node, &first, "the conflicting one").await;
        let other = begin(&node, "other", Isolation::Serializable).await;
        node.put(&other, "k", "w").await;
        node.commit(&other).await;
        assert_eq!(node.engine.commit(&first).await, Err(Error::Conflict));
        let again = begin(&node, "conflict", Isolation::Serializable).await;
        node.put(&again, "l", "w").await;
        node.commit(&again).await;
        assert_eq!(begun_again(&node, "conflict").await, None);
    });
}

/// T15.
#[test]
fn a_result_has_a_bound_and_is_freed_with_its_attempt() {
    on_every_provider(async |node: Node| {
        let call = node.begin_named("long").await;
        let longest = "r".repeat(RESULT_BYTES_MAX);
        let refused = node
            .engine
            .keep_result(&call, bytes(&format!("{longest}r")))
            .await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        keep(&node, &call, &longest).await;
        assert_eq!(
            node.engine.figures().buffered_bytes,
            RESULT_BYTES_MAX as u64
        );
        node.commit(&call).await;
        assert_eq!(node.engine.figures().buffered_bytes, 0);
        assert_eq!(begun_again(&node, "long").await, Some(longest));
        let generated = node.begin().await;
        keep(&node, &generated, RESULT).await;
        assert_eq!(
            node.engine.figures().buffered_bytes,
            0,
            "no repeat asks for it"
        );
        node.commit(&generated).await;
    });
}
