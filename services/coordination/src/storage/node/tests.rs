//! C-1: how long a lock lasts if the clocks of its holder and its waiter differ.

use simulated::World;

use super::*;
use crate::{model::SessionId, records::UpdateId};

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
    simulated::run(async {
        let (world, config) = (
            World::new(1),
            Config {
                locks,
                ..Config::default()
            },
        );
        let (holder, waiter) = (
            locking(&world, &config, holder_off_by_ms),
            locking(&world, &config, waiter_off_by_ms),
        );
        let store = &mut TrackedStore::new(world.key_value());
        let held = holder
            .try_lock(store, "/a", &lock_of(4))
            .await
            .expect("no fault is injected");
        assert!(held.is_some(), "it is free");
        let (clock, began) = (world.clock(), world.clock().monotonic());
        waiter
            .lock(store, "/a", &lock_of(8))
            .await
            .expect("no fault is injected");
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
