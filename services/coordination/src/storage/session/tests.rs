//! D4: a store that rolled back assigns the numbers of a row again.

use std::{future::Future, pin::Pin};

use simulated::World;

use super::*;
use crate::test_fixture::{PASSWORD, TIMEOUT as GRANTED};

const SESSION: SessionId = SessionId(4);

/// A transition that a function makes of a row that it took over.
type Transition = (
    &'static str,
    fn(Sessions, Row, Basis) -> Pin<Box<dyn Future<Output = Result<Moved>>>>,
);

const TRANSITIONS: [Transition; 9] = [
    ("attach", |sessions, _, mut basis| {
        Box::pin(async move {
            sessions
                .attach(SESSION, PASSWORD, GRANTED, &mut basis)
                .await
        })
    }),
    ("renew", |sessions, row, mut basis| {
        Box::pin(async move { sessions.renew(SESSION, row.attach, &mut basis).await })
    }),
    ("condemn", |sessions, row, mut basis| {
        Box::pin(async move { sessions.condemn(SESSION, row.renewals, &mut basis).await })
    }),
    ("begin_end", |sessions, row, mut basis| {
        Box::pin(async move { sessions.begin_end(SESSION, &row, &mut basis).await })
    }),
    ("begin_planning", |sessions, row, mut basis| {
        Box::pin(async move { sessions.begin_planning(SESSION, &row, &mut basis).await })
    }),
    ("end_planning", |sessions, row, mut basis| {
        Box::pin(async move { sessions.end_planning(SESSION, &row, &mut basis).await })
    }),
    ("take_up", |sessions, _, mut basis| {
        Box::pin(async move { sessions.take_up(SESSION, &mut basis).await })
    }),
    ("doom", |sessions, row, mut basis| {
        Box::pin(async move {
            sessions
                .doom(SESSION, row.sequence + 1, row.fence, &mut basis)
                .await
        })
    }),
    ("decide", |sessions, row, mut basis| {
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
        Box::pin(async move { sessions.decide(decision, &mut basis).await })
    }),
];

/// A session that was taken over in a lost incarnation of its store, and again in the next under
/// the same number. Returns the row and dependency of each.
async fn taken_up_twice(world: &World) -> (Sessions, (Row, Basis), (Row, Basis)) {
    let (store, mut first) = (world.key_value(), Basis::default());
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
    let taken_up = async |mut basis: Basis| match sessions.take_up(SESSION, &mut basis).await {
        Ok(Moved::Done(row)) => (row, basis),
        other => panic!("{other:?}"),
    };
    let lost = taken_up(first).await;
    world.fall_back();
    let standing = taken_up(Basis::default()).await;
    assert_eq!(lost.0.fence, standing.0.fence);
    (sessions, lost, standing)
}

/// D4, C-1.
#[test]
fn no_transition_depends_on_lost_state() {
    for (name, transition) in TRANSITIONS {
        simulated::run(async {
            let (sessions, (row, basis), (standing, _)) = taken_up_twice(&World::new(1)).await;
            let refused = transition(sessions.clone(), row, basis)
                .await
                .expect_err("it is lost");
            assert_eq!(refused.kind(), ErrorKind::Lost, "{name}");
            let now = sessions
                .get(SESSION, &mut Basis::default())
                .await
                .expect("no fault is injected")
                .expect("open");
            assert_eq!(now.item, standing.item, "{name} has changed it");
        });
        simulated::run(async {
            let (sessions, _, (row, basis)) = taken_up_twice(&World::new(1)).await;
            let moved = transition(sessions, row, basis).await;
            assert!(matches!(moved, Ok(Moved::Done(_))), "{name}: {moved:?}");
        });
    }
}

/// C-6: a record of silence belongs to one renewal.
#[test]
fn a_record_of_silence_belongs_to_one_renewal() {
    simulated::run(async {
        let (sessions, mut basis) = (Sessions::new(World::new(1).key_value()), Basis::default());
        let basis = &mut basis;
        assert!(
            sessions
                .create(SESSION, PASSWORD, GRANTED, basis)
                .await
                .expect("no fault is injected")
        );
        let before = Duration::from_secs(3);
        let silent_before = |moved: Result<Moved>| match moved.expect("no fault is injected") {
            Moved::Done(row) => Ok(row.silent_before),
            Moved::Refused(row) => Err(row.expect("it is there").silent_before),
        };
        let said = sessions.say_silent(SESSION, 1, 0, before, basis).await;
        assert_eq!(silent_before(said), Ok(Some(before)));
        assert_eq!(
            silent_before(sessions.renew(SESSION, 1, basis).await),
            Ok(None)
        );
        let late = sessions.say_silent(SESSION, 1, 0, before, basis).await;
        assert_eq!(
            silent_before(late),
            Err(None),
            "the session was renewed since"
        );
        let said = sessions.say_silent(SESSION, 1, 1, before, basis).await;
        assert_eq!(silent_before(said), Ok(Some(before)));
        let attached = sessions.attach(SESSION, PASSWORD, GRANTED, basis).await;
        assert_eq!(silent_before(attached), Ok(None));
        let late = sessions.say_silent(SESSION, 1, 2, before, basis).await;
        assert_eq!(
            silent_before(late),
            Err(None),
            "another connection speaks for it"
        );
    });
}
