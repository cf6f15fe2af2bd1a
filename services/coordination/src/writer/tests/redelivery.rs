//! C-1, C-2: redelivered messages, whose first writer died, was fenced out by a wrong clock, or had
//! finished them.

use super::*;
use crate::queue_names;

/// The same messages on their second delivery.
pub(super) fn again(mut asked: Vec<Delivery>) -> Vec<Delivery> {
    for delivery in &mut asked {
        delivery.handle.attempt += 1;
    }
    asked
}

/// Number of a session's decided updates that are not refusals.
async fn successes(fixture: &Fixture, session: SessionId) -> usize {
    let decided = fixture.undelivered(session).await;
    decided
        .iter()
        .filter(|decided| decided.outcome.is_ok())
        .count()
}

async fn is_there(fixture: &Fixture, path: &str) -> bool {
    node::is_there(&mut fixture.system(), path)
        .await
        .expect("no fault is injected")
}

/// How often a request is decided that is redelivered after it was finished.
fn decided_of_one_that_came_twice(broken: Option<Broken>) -> u64 {
    simulated::run(async {
        let fixture = fixture_without(broken).await;
        let session = fixture.open(1).await;
        let asked = fixture.asked(session, vec![set("/", "once")]).await;
        fixture.writes(&asked).await;
        fixture.writes(&again(asked)).await;
        fixture.row(session).await.sequence
    })
}

/// C-2.
#[test]
fn a_request_that_is_delivered_twice_is_decided_once() {
    assert_eq!(decided_of_one_that_came_twice(None), 1);
    assert_eq!(
        decided_of_one_that_came_twice(Some(Broken::ForgetsRequestNumbers)),
        2,
        "the rule is needed"
    );
}

/// The state that a dead writer left.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    /// Nothing that affects others.
    Nothing,
    /// A lock without a decision.
    Lock,
    /// A decision that is not installed or not pushed.
    Decision,
}

/// A writer dies at call `number`, and another receives its message and finishes the work. Returns
/// the state that the first one left, or `None` if it makes no such call.
fn left_by_one_that_dies_at(side: Side, number: usize) -> Option<Left> {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, store, queue) = (
            fixture.open(1).await,
            fixture.store(),
            fixture.world.queue(),
        );
        let asked = fixture
            .asked(session, vec![create("/a", Lifetime::Persistent)])
            .await;
        let writer = fixture.writer(&store);
        if !dies_at(&writer, &store, (side, is_call(number)), &asked).await {
            return None;
        }
        let is_locked = !is_free(&fixture, "/").await;
        let left = match (fixture.row(session).await.sequence, is_locked) {
            (1, _) => Left::Decision,
            (_, true) => Left::Lock,
            (_, false) => Left::Nothing,
        };
        fixture.writes(&again(asked)).await;
        assert_eq!(
            (
                fixture.row(session).await.sequence,
                successes(&fixture, session).await
            ),
            (1, 1)
        );
        assert!(is_there(&fixture, "/a").await, "it is installed");
        assert!(is_free(&fixture, "/a").await, "no lock remains");
        let pushed = queue
            .receive(queue_names::DISTRIBUTOR_QUEUE, 10)
            .await
            .expect("no fault is injected");
        assert!(!pushed.is_empty(), "it must be pushed");
        Some(left)
    })
}

/// C-1, C-2: after every death, the second delivery alone finishes the work.
#[test]
fn redelivery_finishes_the_work_of_a_dead_writer() {
    for side in [Side::Before, Side::After] {
        let left: BTreeSet<Left> = (0..)
            .map_while(|number| left_by_one_that_dies_at(side, number))
            .collect();
        assert!(
            left.contains(&Left::Lock) && left.contains(&Left::Decision),
            "{side:?}: {left:?}"
        );
    }
}

/// How often a znode is created by two writers, one of which breaks the other's lock right before
/// its decision because its clock is far ahead.
fn made_by_a_clock_that_is_ahead(broken: Option<Broken>) -> usize {
    const AHEAD_MS: i64 = 60 * 60 * 1000;
    simulated::run(async {
        let fixture = fixture_without(broken).await;
        let (slow, hasty, store) = (
            fixture.open(1).await,
            fixture.open(2).await,
            fixture.store(),
        );
        let made = || vec![create("/a", Lifetime::Persistent)];
        let (asked, asked_hastily) = (
            fixture.asked(slow, made()).await,
            fixture.asked(hasty, made()).await,
        );
        let (writer, clock) = (
            fixture.writer_by(&fixture.store(), fixture.world.clock_off_by(AHEAD_MS)),
            fixture.world.clock(),
        );
        store.once(Side::Before, is_decision, async move {
            let began = clock.monotonic();
            writer
                .handle_messages(&asked_hastily)
                .await
                .expect("no fault is injected");
            let waited = clock.monotonic().since(began);
            assert!(
                waited < Duration::from_secs(1),
                "its clock says that the lock has expired: {waited:?}"
            );
            Ok(())
        });
        if fixture
            .writer(&store)
            .handle_messages(&asked)
            .await
            .is_err()
        {
            fixture.writes(&again(asked)).await;
        }
        assert!(store.is_through());
        successes(&fixture, slow).await + successes(&fixture, hasty).await
    })
}

/// C-1: decisions do not depend on clocks.
#[test]
fn breaking_a_lock_too_early_fences_its_holder_out() {
    assert_eq!(made_by_a_clock_that_is_ahead(None), 1);
    assert_eq!(
        made_by_a_clock_that_is_ahead(Some(Broken::BreaksLocksUnasked)),
        2,
        "the rule is needed"
    );
}

/// A writer dies with locks, its client moves to another connection, and the message that is
/// delivered again is not decided. Returns how long another session then takes to set a znode that
/// is still locked, and the number of updates that the znode has seen.
fn set_after_a_death(is_victim: fn(&Call<'_>) -> bool, broken: Option<Broken>) -> (Duration, i32) {
    simulated::run(async {
        let fixture = fixture_without(broken).await;
        let (dead, other, store) = (
            fixture.open(1).await,
            fixture.open(2).await,
            fixture.store(),
        );
        let asked = fixture.asked(dead, vec![set("/", "first")]).await;
        let writer = fixture.writer(&store);
        assert!(dies_at(&writer, &store, (Side::After, is_victim), &asked).await);
        let attached = session::attach(&mut fixture.system(), dead, PASSWORD, TIMEOUT).await;
        assert!(matches!(attached, Ok(Transition::Done(_))));
        // A process of the successor that dies once it has the session.
        session::acquire(&mut fixture.system(), dead)
            .await
            .expect("no fault is injected");
        let clock = fixture.world.clock();
        let began = clock.monotonic();
        fixture.decided(other, vec![set("/", "second")]).await;
        let taken = clock.monotonic().since(began);
        let decided = fixture.row(other).await.outbox_decoded();
        let decided = decided.expect("it decodes");
        let state = decided[0].touched[0].becomes.as_ref();
        (taken, state.expect("the root stays").version)
    })
}

/// C-1: a dead writer's lock delays no other session once its own session is taken over, and a
/// decision under it counts.
#[test]
fn the_locks_of_a_dead_writer_end_with_its_fencing_number() {
    let soon = Duration::from_millis(500);
    let locked: fn(&Call<'_>) -> bool = |call| is_lock_of(call, "/");
    for (is_victim, version) in [(locked, 1), (is_decision, 2)] {
        let (taken, seen) = set_after_a_death(is_victim, None);
        assert!(taken < soon && seen == version, "after {taken:?}: {seen}");
        let (taken, _) = set_after_a_death(is_victim, Some(Broken::WaitsForDeadWriters));
        assert!(taken > soon, "the rule is needed");
    }
    let (_, seen) = set_after_a_death(is_decision, Some(Broken::BreaksLocksUnasked));
    assert_eq!(seen, 1, "the rule is needed");
}

/// C6: an index entry may be written late, for a create that another writer has decided since. It
/// must not replace the entry of the next create at its path. Otherwise, applying the deletion of
/// the first would remove the entry of the second.
#[test]
fn a_late_index_entry_removes_no_later_ephemeral() {
    simulated::run(async {
        let fixture = fixture().await;
        let (owner, other, late) = (
            fixture.open(1).await,
            fixture.open(2).await,
            fixture.store(),
        );
        let made = || vec![create("/e", Lifetime::Ephemeral)];
        let asked = fixture.asked(owner, made()).await;
        let (on_fixture, asked_again) = (fixture.clone(), again(asked.clone()));
        late.once(Side::Before, is_of_index, async move {
            on_fixture.writes(&asked_again).await;
            on_fixture.decided(other, vec![delete("/e")]).await;
            on_fixture.decided(owner, made()).await;
            Ok(())
        });
        fixture
            .writer(&late)
            .handle_messages(&asked)
            .await
            .expect_err("another writes for it");
        assert!(late.is_through());
        assert_eq!(successes(&fixture, owner).await, 2);
        assert!(is_there(&fixture, "/e").await, "it was made again");
        fixture
            .distributor(&fixture.store())
            .handle(Fixture::messages(fixture.outbox(owner).await))
            .await
            .expect("no fault is injected");
        fixture.decided(owner, vec![Operation::Close]).await;
        assert!(!is_there(&fixture, "/e").await, "it outlived its session");
    });
}
