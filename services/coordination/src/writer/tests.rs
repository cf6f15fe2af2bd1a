//! C-1, C-2, C6: released locks, and how one writer continues another's work.

mod endings;
mod redelivery;

use std::{collections::BTreeSet, sync::Arc};

use ports::{Update, key_value::Action};
use simulated::Options;

use super::*;
use crate::{
    model::Lifetime,
    records::{Holder, UpdateId},
    storage::node::Lock,
    test_fixture::{Call, Interrupted, PASSWORD, Side, Stage, TIMEOUT, create, is_of_row, set},
};

/// The largest item: a session's row holds a few of the requests below.
const ITEM_BYTES_MAX: usize = 8 * 1_024;

async fn stage() -> Arc<Stage> {
    stage_without(None).await
}

/// A fixture in which one rule is dropped.
async fn stage_without(broken: Option<Broken>) -> Arc<Stage> {
    let mut options = Options::default();
    options.key_value.item_bytes_max = ITEM_BYTES_MAX;
    Arc::new(
        Stage::new(
            options,
            Config {
                broken,
                ..Config::default()
            },
        )
        .await,
    )
}

/// Has a writer handle the requests of a session.
async fn written(
    stage: &Stage,
    store: &Arc<Interrupted>,
    session: SessionId,
    asked: Vec<Operation>,
) -> Result<(), Failure> {
    let asked = stage.asked(session, asked).await;
    stage.writer(store).handle_messages(&asked).await
}

fn delete(path: &str) -> Operation {
    Operation::Delete {
        path: path.into(),
        version: -1,
    }
}

/// Whether another session could lock the znode at `path` without waiting.
async fn is_free(stage: &Stage, path: &str) -> bool {
    let request = UpdateId {
        session: SessionId(400),
        sequence: 1,
    };
    let lock = Lock::of(Holder { request, fence: 1 });
    let nodes = stage.nodes(stage.world.key_value());
    nodes
        .try_lock(path, &lock, &mut Basis::default())
        .await
        .expect("no fault is injected")
        .is_some()
}

fn is_lock_of(call: &Call<'_>, path: &str) -> bool {
    matches!(call, Call::Update(Update { key, .. }) if key.partition() == format!("node:{path}").as_bytes())
}

fn is_decision(call: &Call<'_>) -> bool {
    let Call::Update(Update {
        change: ports::key_value::Change::Modify(actions),
        ..
    }) = call
    else {
        return false;
    };
    actions
        .iter()
        .any(|action| matches!(action, Action::Append(..)))
}

fn is_of_index(call: &Call<'_>) -> bool {
    matches!(call, Call::Update(Update { key, .. }) if key.partition().starts_with(b"ephemeral/"))
}

/// C-1: no writer waits for a lock under which nothing will be decided.
#[test]
fn the_locks_of_a_failed_planning_are_released() {
    simulated::run(async {
        let (stage, made) = (stage().await, create("/a", Lifetime::Persistent));
        let (session, store) = (stage.open(1).await, stage.store());
        store.once(Side::Before, |call| is_lock_of(call, "/a"), async {
            Err(ports::Error::unavailable("lock the second znode"))
        });
        written(&stage, &store, session, vec![made])
            .await
            .expect_err("the store fails");
        assert!(store.is_through());
        assert!(is_free(&stage, "/").await);
    });
}

/// C-1, C6: like above, for a decision that the row refuses because another connection attached.
#[test]
fn the_locks_of_a_refused_decision_are_released() {
    simulated::run(async {
        let (stage, made) = (stage().await, create("/a", Lifetime::Persistent));
        let (session, store, sessions) = (stage.open(1).await, stage.store(), stage.sessions());
        store.once(Side::Before, is_decision, async move {
            let attached = sessions
                .attach(session, PASSWORD, TIMEOUT, &mut Basis::default())
                .await?;
            assert!(matches!(attached, Moved::Done(_)));
            Ok(())
        });
        written(&stage, &store, session, vec![made])
            .await
            .expect("it is dropped");
        assert!(store.is_through());
        assert_eq!(stage.row(session).await.sequence, 0);
        assert!(is_free(&stage, "/").await && is_free(&stage, "/a").await);
    });
}

/// Number of decisions for a session's requests, all of which are in its outbox.
async fn decisions(stage: &Stage, session: SessionId) -> usize {
    let decided = stage
        .row(session)
        .await
        .outbox_decoded()
        .expect("it decodes");
    decided
        .iter()
        .map(|decided| decided.locks)
        .collect::<BTreeSet<u64>>()
        .len()
}

/// C-1: the requests decided together take at most part of the largest item.
#[test]
fn large_requests_are_decided_one_by_one() {
    for (bytes, expected) in [(10, 1), (ITEM_BYTES_MAX / BATCH_BYTES_PART, 2)] {
        simulated::run(async {
            let stage = stage().await;
            let (session, store) = (stage.open(1).await, stage.store());
            let sets = vec![set("/", vec![1; bytes]); 2];
            written(&stage, &store, session, sets)
                .await
                .expect("no fault is injected");
            assert_eq!(
                decisions(&stage, session).await,
                expected,
                "of {bytes} bytes"
            );
        });
    }
}

/// C6: ephemerals whose paths are too long for one decision are deleted in several.
#[test]
fn each_part_of_an_end_takes_part_of_the_largest_item() {
    const PATH_BYTES_MAX: usize = ITEM_BYTES_MAX / CLOSE_PATHS_PART;
    simulated::run(async {
        let stage = stage().await;
        let (session, store) = (stage.open(1).await, stage.store());
        let path = |number: usize| format!("/{number}{}", "e".repeat(PATH_BYTES_MAX / 3));
        let made = (0..4)
            .map(|number| create(&path(number), Lifetime::Ephemeral))
            .collect();
        written(&stage, &store, session, made)
            .await
            .expect("no fault is injected");
        written(&stage, &store, session, vec![Operation::Close])
            .await
            .expect("no fault is injected");
        let decided = stage
            .row(session)
            .await
            .outbox_decoded()
            .expect("it decodes");
        let vanished: Vec<&[String]> = decided
            .iter()
            .filter_map(|decided| match &decided.outcome {
                Ok(Effect::Delete { paths } | Effect::Close { paths }) => Some(paths.as_slice()),
                _ => None,
            })
            .collect();
        assert_eq!(
            vanished.iter().map(|paths| paths.len()).collect::<Vec<_>>(),
            [2, 2]
        );
    });
}

/// C6: a request to end a session that is not expired has no effect.
#[test]
fn an_open_session_does_not_expire() {
    simulated::run(async {
        let stage = stage().await;
        let (session, store) = (stage.open(1).await, stage.store());
        written(&stage, &store, session, vec![Operation::Expire])
            .await
            .expect("it is void");
        let row = stage.row(session).await;
        assert_eq!((row.state, row.sequence), (State::Open, 0));
    });
}

/// C-1: a writer that waits for a part of an end continues under its own fencing number or stops.
#[test]
fn a_writer_that_is_fenced_out_while_it_waits_ends_nothing() {
    simulated::run(async {
        let stage = stage().await;
        let (session, store, sessions) = (stage.open(1).await, stage.store(), stage.sessions());
        stage.decided(session, vec![Operation::Attach]).await;
        let condemned = sessions.condemn(session, 0, &mut Basis::default()).await;
        assert!(matches!(condemned, Ok(Moved::Done(_))));
        let is_look =
            move |call: &Call<'_>| matches!(call, Call::Get(_)) && is_of_row(call, session);
        store.once(Side::Before, is_look, async move {
            let taken_up = sessions.take_up(session, &mut Basis::default()).await?;
            assert!(matches!(taken_up, Moved::Done(_)));
            Ok(())
        });
        written(&stage, &store, session, vec![Operation::Expire])
            .await
            .expect_err("another writes for it");
        assert!(store.is_through());
        assert_eq!(stage.row(session).await.sequence, 1);
    });
}

/// C-3: an outbox that does not decode does not block the others, but a store failure is reported.
#[test]
fn an_outbox_that_does_not_decode_is_left_unchanged() {
    simulated::run(async {
        let stage = stage().await;
        let session = stage.open(1).await;
        let damaged = stage.damage_outbox(session).await;
        let store = stage.store();
        let (nodes, queue) = (stage.nodes(store.clone()), stage.world.queue());
        let finished = async |row: &Row| {
            finish_one_of_many(&nodes, &*queue, (session, row), &mut Basis::default()).await
        };
        finished(&damaged).await.expect("it is left");
        assert_eq!(stage.row(session).await.outbox(), damaged.outbox());
        let other = stage.open(2).await;
        stage
            .decided(other, vec![create("/a", Lifetime::Persistent)])
            .await;
        store.once(Side::Before, |call| is_lock_of(call, "/"), async {
            Err(ports::Error::unavailable("install"))
        });
        finished(&stage.row(other).await)
            .await
            .expect_err("the store fails");
        assert!(store.is_through());
    });
}
