//! D4: a store that rolled back assigns the numbers of a row again.

use std::{future::Future, pin::Pin};

use ports::ErrorKind;
use simulated::World;

use super::*;
use crate::tests::{PASSWORD, TIMEOUT as GRANTED};

const SESSION: SessionId = SessionId(4);

/// A transition that a function makes of a row that it took over.
type TransitionCase = (
    &'static str,
    fn(TrackedStore, Row) -> Pin<Box<dyn Future<Output = Result<Transition>>>>,
);

const TRANSITIONS: [TransitionCase; 9] = [
    ("attach", |mut store, _| {
        Box::pin(async move { attach(&mut store, SESSION, PASSWORD, GRANTED).await })
    }),
    ("renew", |mut store, row| {
        Box::pin(async move { renew(&mut store, SESSION, row.attach).await })
    }),
    ("expire", |mut store, row| {
        Box::pin(async move { expire(&mut store, SESSION, row.renewals).await })
    }),
    ("begin_closing", |mut store, row| {
        Box::pin(async move { begin_closing(&mut store, &row).await })
    }),
    ("begin_planning", |mut store, row| {
        Box::pin(async move { begin_planning(&mut store, &row).await })
    }),
    ("end_planning", |mut store, row| {
        Box::pin(async move { end_planning(&mut store, &row).await })
    }),
    ("acquire", |mut store, _| {
        Box::pin(async move { acquire(&mut store, SESSION).await })
    }),
    ("fence_out", |mut store, row| {
        let request = UpdateId {
            session: SESSION,
            sequence: row.sequence + 1,
        };
        let holder = Holder {
            request,
            fence: row.fence,
        };
        Box::pin(async move { fence_out(&mut store, holder).await })
    }),
    ("decide", |mut store, row| {
        let decision = Decision {
            request: 1,
            closes: false,
            outcomes: vec![Bytes::from_static(b"decided")],
        };
        Box::pin(async move { decide(&mut store, &row, decision).await })
    }),
];

/// A session that was taken over in a lost incarnation of its store, and again in the next under
/// the same number. Returns the row and the store as each observed them.
async fn taken_up_twice(world: &World) -> ((Row, TrackedStore), (Row, TrackedStore)) {
    let store = world.key_value();
    let mut first = TrackedStore::new(store.clone());
    assert!(
        create(&mut first, SESSION, PASSWORD, GRANTED)
            .await
            .expect("no fault is injected")
    );
    store
        .externalize(store.point())
        .await
        .expect("no fault is injected");
    let taken_up = async |mut store: TrackedStore| match acquire(&mut store, SESSION).await {
        Ok(Transition::Done(row)) => (row, store),
        other => panic!("{other:?}"),
    };
    let lost = taken_up(first).await;
    world.fall_back();
    let current = taken_up(TrackedStore::new(store)).await;
    assert_eq!(lost.0.fence, current.0.fence);
    (lost, current)
}

/// D4, C-1.
#[test]
fn no_transition_depends_on_lost_state() {
    for (name, transition) in TRANSITIONS {
        simulated::run(async {
            let world = World::new(1);
            let ((row, store), (current, _)) = taken_up_twice(&world).await;
            let refused = transition(store, row).await.expect_err("it is lost");
            assert_eq!(refused.kind(), ErrorKind::Lost, "{name}");
            let now = get(&mut TrackedStore::new(world.key_value()), SESSION)
                .await
                .expect("no fault is injected")
                .expect("open");
            assert_eq!(now.item, current.item, "{name} has changed it");
        });
        simulated::run(async {
            let (_, (row, store)) = taken_up_twice(&World::new(1)).await;
            let moved = transition(store, row).await;
            assert!(
                matches!(moved, Ok(Transition::Done(_))),
                "{name}: {moved:?}"
            );
        });
    }
}

/// C-6: a record of silence belongs to one renewal.
#[test]
fn a_record_of_silence_belongs_to_one_renewal() {
    simulated::run(async {
        let store = &mut TrackedStore::new(World::new(1).key_value());
        assert!(
            create(store, SESSION, PASSWORD, GRANTED)
                .await
                .expect("no fault is injected")
        );
        let before = Duration::from_secs(3);
        let silent_before = |moved: Result<Transition>| match moved.expect("no fault is injected") {
            Transition::Done(row) => Ok(row.silent_before),
            Transition::Refused(row) => Err(row.expect("it is there").silent_before),
        };
        let said = record_silence(store, SESSION, 1, 0, before).await;
        assert_eq!(silent_before(said), Ok(Some(before)));
        assert_eq!(silent_before(renew(store, SESSION, 1).await), Ok(None));
        let late = record_silence(store, SESSION, 1, 0, before).await;
        assert_eq!(
            silent_before(late),
            Err(None),
            "the session was renewed since"
        );
        let said = record_silence(store, SESSION, 1, 1, before).await;
        assert_eq!(silent_before(said), Ok(Some(before)));
        let attached = attach(store, SESSION, PASSWORD, GRANTED).await;
        assert_eq!(silent_before(attached), Ok(None));
        let late = record_silence(store, SESSION, 1, 2, before).await;
        assert_eq!(
            silent_before(late),
            Err(None),
            "another connection speaks for it"
        );
    });
}
