//! C-1, C-2, C6: released locks, and how one writer continues another's work.

mod endings;
mod expiring;
mod multis;
mod one_transaction;
mod redelivery;

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ports::{Update, key_value::Action};
use simulated::Options;
use tokio::sync::Notify;

use super::{end::CLOSE_PATHS_PART, *};
use crate::{
    config::{Config, LockOptions},
    model::Lifetime,
    records::{Effect, Holder, UpdateId},
    storage::{
        ephemerals,
        node::{self, Lock},
    },
    tests::{Call, Fixture, Interrupted, PASSWORD, Side, TIMEOUT, create, is_of_row, makes, set},
};

/// The largest item: a session's row holds a few of the requests below.
const ITEM_BYTES_MAX: usize = 8 * 1_024;

async fn fixture() -> Arc<Fixture> {
    fixture_without(None).await
}

/// A fixture in which one rule is dropped. Its writers always take locks.
async fn fixture_without(broken: Option<Broken>) -> Arc<Fixture> {
    let mut options = Options::default();
    options.key_value.item_bytes_max = ITEM_BYTES_MAX;
    let config = Config {
        locks: LockOptions::locking(),
        mutant: broken.into(),
        ..Config::default()
    };
    Arc::new(Fixture::new(options, config).await)
}

/// Has a writer handle the requests of a session.
async fn written(
    fixture: &Fixture,
    store: &Arc<Interrupted>,
    session: SessionId,
    asked: Vec<Operation>,
) -> Result<(), Failure> {
    let asked = fixture.asked(session, asked).await;
    fixture.writer(store).handle_messages(&asked).await
}

/// Has a writer on `store` handle `asked` until it dies at a matching call. Returns false if it
/// finishes without such a call.
async fn dies_at(
    writer: &Writer,
    store: &Interrupted,
    (side, is_meant): (Side, impl Fn(&Call<'_>) -> bool + Send + 'static),
    asked: &[Delivery],
) -> bool {
    let death = Arc::new(Notify::new());
    let dies = death.clone();
    store.once(side, is_meant, async move {
        dies.notify_one();
        pending().await
    });
    tokio::select! {
        biased;
        () = death.notified() => true,
        done = writer.handle_messages(asked) => {
            done.expect("no fault is injected");
            false
        }
    }
}

/// Matches call `number` of a store.
fn is_call(number: usize) -> impl Fn(&Call<'_>) -> bool + Send + 'static {
    let calls = AtomicUsize::new(0);
    move |_| calls.fetch_add(1, Ordering::SeqCst) == number
}

fn delete(path: &str) -> Operation {
    Operation::Delete {
        path: path.into(),
        version: -1,
    }
}

/// Whether another session could lock the znode at `path` without waiting.
async fn is_free(fixture: &Fixture, path: &str) -> bool {
    let request = UpdateId {
        session: SessionId(400),
        sequence: 1,
    };
    let lock = Lock::of(Holder { request, fence: 1 });
    fixture
        .locking()
        .try_lock(&mut fixture.system(), path, &lock)
        .await
        .expect("no fault is injected")
        .is_some()
}

fn is_lock_of(call: &Call<'_>, path: &str) -> bool {
    matches!(call, Call::Update(Update { key, .. }) if key.partition() == format!("node:{path}").as_bytes())
}

fn is_decision(call: &Call<'_>) -> bool {
    makes(call, |action| matches!(action, Action::Append(..)))
}

fn is_of_index(call: &Call<'_>) -> bool {
    matches!(call, Call::Update(Update { key, .. }) if key.partition().starts_with(b"ephemeral/"))
}

/// C-1: no writer waits for a lock under which nothing will be decided.
#[test]
fn the_locks_of_a_failed_planning_are_released() {
    simulated::run(async {
        let (fixture, made) = (fixture().await, create("/a", Lifetime::Persistent));
        let (session, store) = (fixture.open(1).await, fixture.store());
        store.once(Side::Before, |call| is_lock_of(call, "/a"), async {
            Err(ports::Error::unavailable("lock the second znode"))
        });
        written(&fixture, &store, session, vec![made])
            .await
            .expect_err("the store fails");
        assert!(store.is_through());
        assert!(is_free(&fixture, "/").await);
    });
}

/// C-1, C6: like above, for a decision that the row refuses because another connection attached.
#[test]
fn the_locks_of_a_refused_decision_are_released() {
    simulated::run(async {
        let (fixture, made) = (fixture().await, create("/a", Lifetime::Persistent));
        let (session, store, mut sessions) =
            (fixture.open(1).await, fixture.store(), fixture.system());
        store.once(Side::Before, is_decision, async move {
            let attached = session::attach(&mut sessions, session, PASSWORD, TIMEOUT).await?;
            assert!(matches!(attached, Transition::Done(_)));
            Ok(())
        });
        written(&fixture, &store, session, vec![made])
            .await
            .expect("it is dropped");
        assert!(store.is_through());
        assert_eq!(fixture.row(session).await.sequence, 0);
        assert!(is_free(&fixture, "/").await && is_free(&fixture, "/a").await);
    });
}

/// Number of decisions for a session's requests, all of which are in its outbox.
async fn decisions(fixture: &Fixture, session: SessionId) -> usize {
    let decided = fixture.undelivered(session).await;
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
            let fixture = fixture().await;
            let (session, store) = (fixture.open(1).await, fixture.store());
            let sets = vec![set("/", vec![1; bytes]); 2];
            written(&fixture, &store, session, sets)
                .await
                .expect("no fault is injected");
            assert_eq!(
                decisions(&fixture, session).await,
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
        let fixture = fixture().await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        let path = |number: usize| format!("/{number}{}", "e".repeat(PATH_BYTES_MAX / 3));
        let made = (0..4)
            .map(|number| create(&path(number), Lifetime::Ephemeral))
            .collect();
        written(&fixture, &store, session, made)
            .await
            .expect("no fault is injected");
        written(&fixture, &store, session, vec![Operation::Close])
            .await
            .expect("no fault is injected");
        let decided = fixture.undelivered(session).await;
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
        let fixture = fixture().await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        written(&fixture, &store, session, vec![Operation::Expire])
            .await
            .expect("it is void");
        let row = fixture.row(session).await;
        assert_eq!((row.state, row.sequence), (State::Open, 0));
    });
}

/// C-1: a writer that waits for a part of an end continues under its own fencing number or stops.
#[test]
fn a_writer_that_is_fenced_out_while_it_waits_ends_nothing() {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, store, mut sessions) =
            (fixture.open(1).await, fixture.store(), fixture.system());
        fixture.decided(session, vec![Operation::Attach]).await;
        let condemned = session::expire(&mut sessions, session, 0).await;
        assert!(matches!(condemned, Ok(Transition::Done(_))));
        let is_look =
            move |call: &Call<'_>| matches!(call, Call::Get(_)) && is_of_row(call, session);
        store.once(Side::Before, is_look, async move {
            let taken_up = session::acquire(&mut sessions, session).await?;
            assert!(matches!(taken_up, Transition::Done(_)));
            Ok(())
        });
        written(&fixture, &store, session, vec![Operation::Expire])
            .await
            .expect_err("another writes for it");
        assert!(store.is_through());
        assert_eq!(fixture.row(session).await.sequence, 1);
    });
}

/// C-3: an outbox that does not decode does not block the others, but a store failure is reported.
#[test]
fn an_outbox_that_does_not_decode_is_left_unchanged() {
    simulated::run(async {
        let fixture = fixture().await;
        let session = fixture.open(1).await;
        let damaged = fixture.damage_outbox(session).await;
        let store = fixture.store();
        let queue = fixture.world.queue();
        let finished = async |row: &Row| {
            let mut system = TrackedStore::new(store.clone());
            finish_or_skip(&mut system, &*queue, row).await
        };
        finished(&damaged).await.expect("it is left");
        assert_eq!(fixture.row(session).await.outbox(), damaged.outbox());
        let other = fixture.open(2).await;
        fixture
            .decided(other, vec![create("/a", Lifetime::Persistent)])
            .await;
        store.once(Side::Before, |call| is_lock_of(call, "/"), async {
            Err(ports::Error::unavailable("install"))
        });
        finished(&fixture.row(other).await)
            .await
            .expect_err("the store fails");
        assert!(store.is_through());
    });
}
