//! C-1: how long a lock lasts if the clocks of its holder and its waiter differ.

use simulated::World;

use super::*;
use crate::{
    model::{Password, SessionId},
    records::{Kind, UpdateId},
};

/// The session that holds the lock, and the one that waits for it.
const HOLDER: i64 = 4;
const WAITER: i64 = 8;

/// Locks with `config` on a machine whose clock is off by `off_by_ms`.
fn locking(world: &World, config: &Config, off_by_ms: i64) -> Locking {
    Locking::new(world.clock_off_by(off_by_ms), world.entropy(), config)
}

fn lock_of(session: i64) -> Lock {
    Lock::of(Holder {
        request: UpdateId {
            session: SessionId(session),
            sequence: 1,
        },
        fence: 1,
    })
}

/// How long a lock that is never released blocks another writer, in true time.
fn taken_over_after(locks: LockOptions, holder_off_by_ms: i64, waiter_off_by_ms: i64) -> Duration {
    let config = Config {
        locks,
        ..Config::default()
    };
    let off_by_ms = (holder_off_by_ms, waiter_off_by_ms);
    taken_over_with(&config, off_by_ms, None)
}

/// Like above. Another writer takes over the holder's session after `fenced_out_after`.
fn taken_over_with(
    config: &Config,
    (holder_off_by_ms, waiter_off_by_ms): (i64, i64),
    fenced_out_after: Option<Duration>,
) -> Duration {
    simulated::run(async {
        let world = World::new(1);
        let (holder, waiter) = (
            locking(&world, config, holder_off_by_ms),
            locking(&world, config, waiter_off_by_ms),
        );
        let store = &mut TrackedStore::new(world.key_value());
        let session = SessionId(HOLDER);
        session::create(store, session, Password([7; 16]), Duration::from_secs(40))
            .await
            .expect("no fault is injected");
        session::acquire(store, session)
            .await
            .expect("no fault is injected");
        let held = holder
            .try_lock(store, "/a", &lock_of(HOLDER))
            .await
            .expect("no fault is injected");
        assert!(held.is_some(), "it is free");
        let (clock, began) = (world.clock(), world.clock().monotonic());
        let successor = async {
            let Some(after) = fenced_out_after else {
                return;
            };
            clock.sleep(after).await;
            session::acquire(&mut TrackedStore::new(world.key_value()), session)
                .await
                .expect("no fault is injected");
        };
        let lock = lock_of(WAITER);
        let (taken, ()) = tokio::join!(waiter.lock(store, "/a", &lock), successor);
        taken.expect("no fault is injected");
        clock.monotonic().since(began)
    })
}

/// C-1: a live holder keeps its lock for the holding time, and a dead holder blocks others for
/// little longer.
#[test]
fn a_lock_lasts_for_its_holding_time_and_the_drift_allowance() {
    let locks = LockOptions::default();
    let (hold, drift) = (locks.hold_max, locks.drift_allowance);
    let longest = locks.wait_max + PATIENCE_MAX;
    for (holder_ms, waiter_ms, ahead_ms) in [
        (0, 0, 0),
        (-2_000, 0, 2_000),
        (0, 2_000, 2_000),
        (-1_000, 1_000, 2_000),
        (2_000, 0, -2_000),
    ] {
        let after = taken_over_after(locks, holder_ms, waiter_ms);
        let due = hold + drift.saturating_sub(Duration::from_millis(ahead_ms.max(0) as u64));
        let due = due + Duration::from_millis((-ahead_ms).max(0) as u64);
        assert!(
            after >= hold,
            "a living holder was shut out after {after:?}"
        );
        assert!(
            after > due && after <= due + longest,
            "taken after {after:?}, {ahead_ms} ms ahead"
        );
    }
}

/// C-1: the purpose of the allowance.
#[test]
fn without_the_drift_allowance_a_holder_with_a_slow_clock_is_fenced_out_too_early() {
    let locks = LockOptions {
        drift_allowance: Duration::ZERO,
        ..LockOptions::default()
    };
    assert!(taken_over_after(locks, -2_000, 0) < locks.hold_max);
    assert!(
        taken_over_after(locks, 0, 0) >= locks.hold_max,
        "it takes two clocks that differ"
    );
}

/// How long a lock blocks another writer, if its holder's session is taken over after `after`.
fn taken_over_after_a_fence(after: Duration, broken: Option<Broken>) -> Duration {
    let config = Config {
        mutant: broken.into(),
        ..Config::default()
    };
    taken_over_with(&config, (0, 0), Some(after))
}

/// C-1: waiters do not wait for the time of a lock whose holder can decide nothing any more.
#[test]
fn a_lock_ends_with_the_right_to_decide_under_it() {
    let locks = LockOptions::default();
    let longest = LOOK_AFTER + locks.wait_max + PATIENCE_MAX;
    for after in [0, 10, 700, 2_000].map(Duration::from_millis) {
        let taken = taken_over_after_a_fence(after, None);
        assert!(
            taken >= after && taken <= after + longest,
            "fenced out after {after:?}, taken after {taken:?}"
        );
        let taken = taken_over_after_a_fence(after, Some(Broken::WaitsForDeadWriters));
        assert!(taken >= locks.hold_max, "the rule is needed");
    }
}

/// C-1: a writer read the lock that it breaks before the holder released it and took it again.
/// Meanwhile another writer created or deleted the znode.
#[test]
fn breaking_a_lock_that_was_taken_again_changes_no_znode() {
    simulated::run(async {
        let world = World::new(1);
        let locking = locking(&world, &Config::default(), 0);
        let store = &mut TrackedStore::new(world.key_value());
        let (broken, other) = (lock_of(HOLDER), lock_of(WAITER));
        let state = NodeState::created(Kind::Persistent, Bytes::new(), other.holder.request);
        for (before, after) in [(None, Some(&state)), (Some(&state), None)] {
            let held = locking.try_lock(store, "/a", &other).await;
            assert_eq!(held.expect("no fault is injected"), Some(before.cloned()));
            let installed = install(store, "/a", &other, after).await;
            installed.expect("no fault is injected");
            let held = locking.try_lock(store, "/a", &broken).await;
            assert_eq!(held.expect("no fault is injected"), Some(after.cloned()));
            let unlocked = unlock(store, "/a", &broken, before).await;
            unlocked.expect("no fault is injected");
            let row = read(store, "/a").await.expect("no fault is injected");
            let left = state_of(row.as_ref()).expect("it decodes");
            assert_eq!(left.as_ref(), after);
            assert!(row.is_some_and(|row| row.bytes(LOCK).is_some()));
            let unlocked = unlock(store, "/a", &broken, after).await;
            unlocked.expect("no fault is injected");
            let row = read(store, "/a").await.expect("no fault is injected");
            assert_eq!(row.is_some(), after.is_some(), "an empty row remains");
        }
    });
}
