//! D4: a store that rolled back assigns the numbers of a row again.

use std::{future::Future, pin::Pin};

use simulated::World;

use super::*;
use crate::test_fixture::{PASSWORD, TIMEOUT as GRANTED};

const SESSION: SessionId = SessionId(4);

/// A transition that a function makes of a row that it took over.
type TransitionCase = (
    &'static str,
    fn(Sessions, Row, Dependency) -> Pin<Box<dyn Future<Output = Result<Transition>>>>,
);

const TRANSITIONS: [TransitionCase; 9] = [
    ("attach", |sessions, _, mut dependency| {
        Box::pin(async move {
            sessions
                .attach(SESSION, PASSWORD, GRANTED, &mut dependency)
                .await
        })
    }),
    ("renew", |sessions, row, mut dependency| {
        Box::pin(async move { sessions.renew(SESSION, row.attach, &mut dependency).await })
    }),
    ("expire", |sessions, row, mut dependency| {
        Box::pin(async move {
            sessions
                .expire(SESSION, row.renewals, &mut dependency)
                .await
        })
    }),
    ("begin_closing", |sessions, row, mut dependency| {
        Box::pin(async move { sessions.begin_closing(SESSION, &row, &mut dependency).await })
    }),
    ("begin_planning", |sessions, row, mut dependency| {
        Box::pin(async move {
            sessions
                .begin_planning(SESSION, &row, &mut dependency)
                .await
        })
    }),
    ("end_planning", |sessions, row, mut dependency| {
        Box::pin(async move { sessions.end_planning(SESSION, &row, &mut dependency).await })
    }),
    ("acquire", |sessions, _, mut dependency| {
        Box::pin(async move { sessions.acquire(SESSION, &mut dependency).await })
    }),
    ("fence_out", |sessions, row, mut dependency| {
        Box::pin(async move {
            sessions
                .fence_out(SESSION, row.sequence + 1, row.fence, &mut dependency)
                .await
        })
    }),
    ("decide", |sessions, row, mut dependency| {
        let first = UpdateId {
            session: SESSION,
            sequence: row.sequence + 1,
        };
        let Row {
            fence,
            attach,
            state: expected,
            ..
        } = row;
        let outcomes = vec![Bytes::from_static(b"decided")];
        let decision = Decision {
            first,
            fence,
            attach,
            expected,
            request: 1,
            closes: false,
            outcomes,
        };
        Box::pin(async move { sessions.decide(decision, &mut dependency).await })
    }),
];

/// A session that was taken over in a lost incarnation of its store, and again in the next under
/// the same number. Returns the row and dependency of each.
async fn taken_up_twice(world: &World) -> (Sessions, (Row, Dependency), (Row, Dependency)) {
    let (store, mut first) = (world.key_value(), Dependency::default());
    let sessions = Sessions::new(store.clone());
    assert!(
        sessions
            .create(SESSION, PASSWORD, GRANTED, &mut first)
            .await
            .expect("no fault is injected")
    );
    store
        .externalize(store.point())
        .await
        .expect("no fault is injected");
    let taken_up =
        async |mut dependency: Dependency| match sessions.acquire(SESSION, &mut dependency).await {
            Ok(Transition::Done(row)) => (row, dependency),
            other => panic!("{other:?}"),
        };
    let lost = taken_up(first).await;
    world.fall_back();
    let current = taken_up(Dependency::default()).await;
    assert_eq!(lost.0.fence, current.0.fence);
    (sessions, lost, current)
}

/// D4, C-1.
#[test]
fn no_transition_depends_on_lost_state() {
    for (name, transition) in TRANSITIONS {
        simulated::run(async {
            let (sessions, (row, dependency), (current, _)) = taken_up_twice(&World::new(1)).await;
            let refused = transition(sessions.clone(), row, dependency)
                .await
                .expect_err("it is lost");
            assert_eq!(refused.kind(), ErrorKind::Lost, "{name}");
            let now = sessions
                .get(SESSION, &mut Dependency::default())
                .await
                .expect("no fault is injected")
                .expect("open");
            assert_eq!(now.item, current.item, "{name} has changed it");
        });
        simulated::run(async {
            let (sessions, _, (row, dependency)) = taken_up_twice(&World::new(1)).await;
            let moved = transition(sessions, row, dependency).await;
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
        let (sessions, mut dependency) = (
            Sessions::new(World::new(1).key_value()),
            Dependency::default(),
        );
        let dependency = &mut dependency;
        assert!(
            sessions
                .create(SESSION, PASSWORD, GRANTED, dependency)
                .await
                .expect("no fault is injected")
        );
        let before = Duration::from_secs(3);
        let silent_before = |moved: Result<Transition>| match moved.expect("no fault is injected") {
            Transition::Done(row) => Ok(row.silent_before),
            Transition::Refused(row) => Err(row.expect("it is there").silent_before),
        };
        let said = sessions
            .record_silence(SESSION, 1, 0, before, dependency)
            .await;
        assert_eq!(silent_before(said), Ok(Some(before)));
        assert_eq!(
            silent_before(sessions.renew(SESSION, 1, dependency).await),
            Ok(None)
        );
        let late = sessions
            .record_silence(SESSION, 1, 0, before, dependency)
            .await;
        assert_eq!(
            silent_before(late),
            Err(None),
            "the session was renewed since"
        );
        let said = sessions
            .record_silence(SESSION, 1, 1, before, dependency)
            .await;
        assert_eq!(silent_before(said), Ok(Some(before)));
        let attached = sessions
            .attach(SESSION, PASSWORD, GRANTED, dependency)
            .await;
        assert_eq!(silent_before(attached), Ok(None));
        let late = sessions
            .record_silence(SESSION, 1, 2, before, dependency)
            .await;
        assert_eq!(
            silent_before(late),
            Err(None),
            "another connection speaks for it"
        );
    });
}
