//! S1 to S5: the lock under clocks that disagree, pauses, and lost answers.

use std::time::Duration;

use bytes::Bytes;
use ports::{
    ErrorKind, Key, Timestamp, Update,
    key_value::{Action, Operation, OperationId, Version},
};
use primitives::{Acquired, DRIFT_MS_MAX, Guarded, Held, Holder, TimedLock, Token};
use simulated::{Chance, World, percent, run};

use crate::{BROKEN_SEEDS, PORT_CALLS_MAX, seeds};

const HOLD_MS: u64 = 5_000;

fn key() -> Key {
    Key::new("locks", "a")
}

fn owner(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn held(acquired: Acquired) -> Held {
    match acquired {
        Acquired::Held(held) => held,
        Acquired::Busy(holder, _) => panic!("it is held by {holder:?}"),
    }
}

/// How a holder writes.
#[derive(Clone, Copy, PartialEq)]
enum Writes {
    Guarded,
    /// The broken variant: a holder believes that it still holds the lock.
    Trusting,
}

/// Workers read a number, are paused for a while, sometimes for longer than they may hold the lock,
/// and write the next number. Returns how many writes were answered as done, and the number in the
/// end.
fn increments(seed: u64, writes: Writes) -> (i64, i64) {
    run(async {
        let world = World::new(seed);
        world
            .faults()
            .delay(percent(30), Duration::ZERO..=Duration::from_millis(50));
        let workers: Vec<_> = (0..4)
            .map(|number| tokio::spawn(increment(world.clone(), number, writes)))
            .collect();
        let mut done = 0;
        for worker in workers {
            done += worker.await.expect("workers do not panic");
        }
        world.faults().calm();
        assert!(
            world.port_calls() <= PORT_CALLS_MAX,
            "seed {seed}: {} calls",
            world.port_calls()
        );
        let item = world.key_value().get(&key()).await.expect("calm").value;
        (done, item.and_then(|item| item.integer("n")).unwrap_or(0))
    })
}

async fn increment(world: World, number: u64, writes: Writes) -> i64 {
    let (clock, chance) = (world.skewed_clock(), world.entropy());
    let lock = TimedLock::new(world.key_value(), HOLD_MS);
    let mut done = 0;
    for _ in 0..6 {
        let acquired = lock
            .acquire(&key(), &owner(&number.to_string()), clock.now())
            .await
            .expect("no fault refuses");
        let Acquired::Held(held) = acquired else {
            clock
                .sleep(Duration::from_millis(chance.below(4_000)))
                .await;
            continue;
        };
        let read = held.item.integer("n").unwrap_or(0);
        let pause = if chance.below(3) == 0 { 20_000 } else { 500 };
        clock
            .sleep(Duration::from_millis(chance.below(pause)))
            .await;
        let write = vec![Action::set_integer("n", read + 1)];
        done += i64::from(match writes {
            Writes::Guarded => {
                matches!(
                    lock.release(&held, write).await.expect("no fault"),
                    Guarded::Done { .. }
                )
            }
            Writes::Trusting => {
                let actions = write.into_iter().chain(Held::unlocking()).collect();
                world
                    .key_value()
                    .update(Update::modify(key(), actions))
                    .await
                    .is_ok()
            }
        });
    }
    done
}

/// S3.
#[test]
fn a_paused_holder_cannot_write_after_its_successor() {
    for seed in seeds() {
        let (done, number) = increments(seed, Writes::Guarded);
        assert_eq!(
            done, number,
            "seed {seed}: a write was overwritten by one that did not know it"
        );
    }
}

/// S3: the reason for the token.
#[test]
fn without_the_token_a_paused_holder_overwrites_its_successor() {
    let caught = BROKEN_SEEDS.filter(|seed| {
        let (done, number) = increments(*seed, Writes::Trusting);
        done != number
    });
    assert!(caught.count() > 0, "the scenario catches it");
}

/// The time at which a second process gets the lock that a first one took at moment zero before it
/// died. Their clocks are wrong by a second each, in opposite directions.
fn taken_again_after_ms(hold_ms_max: u64) -> u64 {
    run(async {
        let world = World::new(1);
        let (slow, fast) = (world.clock_off_by(-1_000), world.clock_off_by(1_000));
        let lock = TimedLock::new(world.key_value(), hold_ms_max);
        held(
            lock.acquire(&key(), &owner("slow"), slow.now())
                .await
                .expect("calm"),
        );
        let start = fast.monotonic();
        loop {
            let acquired = lock
                .acquire(&key(), &owner("fast"), fast.now())
                .await
                .expect("calm");
            if matches!(acquired, Acquired::Held(_)) {
                return fast.monotonic().since(start).as_millis() as u64;
            }
            fast.sleep(Duration::from_millis(100)).await;
        }
    })
}

/// S1, S4.
#[test]
fn clocks_two_seconds_apart_take_nothing_too_early_and_nothing_for_ever() {
    let after_ms = taken_again_after_ms(HOLD_MS);
    assert!(after_ms >= HOLD_MS, "taken after {after_ms} ms");
    assert!(
        after_ms <= HOLD_MS + 2 * DRIFT_MS_MAX,
        "taken after {after_ms} ms"
    );
}

/// S1, S4: also for a caller that checks for expiry, to decide first about the holder.
#[test]
fn a_lock_is_not_said_to_have_expired_before_clocks_that_are_apart_agree() {
    let lock = TimedLock::new(World::new(1).key_value(), HOLD_MS);
    let taken = Holder {
        owner: owner("slow"),
        token: Token(1),
        since: Timestamp(100_000),
    };
    let after_ms = |ms| Timestamp(taken.since.0 + ms);
    assert!(
        !lock.is_expired(&taken, after_ms(HOLD_MS + DRIFT_MS_MAX)),
        "two seconds ahead, it may be held still"
    );
    assert!(lock.is_expired(&taken, after_ms(HOLD_MS + DRIFT_MS_MAX + 1)));
}

/// S1: the reason for the allowance.
#[test]
fn without_the_drift_allowance_a_lock_is_taken_from_a_live_holder() {
    assert!(taken_again_after_ms(HOLD_MS - DRIFT_MS_MAX) < HOLD_MS);
}

/// S2.
#[test]
fn each_holder_has_a_higher_token_whatever_its_clock_says() {
    for seed in seeds() {
        run(async {
            let world = World::new(seed);
            let lock = TimedLock::new(world.key_value(), HOLD_MS);
            let mut last = Token(0);
            for number in 0..10 {
                let clock = world.skewed_clock();
                let held = held(
                    lock.acquire(&key(), &owner(&number.to_string()), clock.now())
                        .await
                        .expect("calm"),
                );
                assert!(held.token > last, "seed {seed}");
                last = held.token;
                if number % 2 == 0 {
                    lock.release(&held, Vec::new()).await.expect("calm");
                } else {
                    clock
                        .sleep(Duration::from_millis(HOLD_MS + 3 * DRIFT_MS_MAX))
                        .await;
                }
            }
        });
    }
}

/// S5.
#[test]
fn an_owner_that_heard_no_answer_asks_again_and_holds_the_lock() {
    run(async {
        let world = World::new(1);
        let (lock, now) = (
            TimedLock::new(world.key_value(), HOLD_MS),
            world.clock().now(),
        );
        world.faults().lose_answer(Chance::ALWAYS);
        lock.acquire(&key(), &owner("a"), now)
            .await
            .expect_err("the answer was lost");
        world.faults().calm();
        let Acquired::Busy(holder, _) = lock.acquire(&key(), &owner("b"), now).await.expect("calm")
        else {
            panic!("a holds it");
        };
        assert_eq!(holder.owner, owner("a"));
        let held = held(lock.acquire(&key(), &owner("a"), now).await.expect("calm"));
        assert!(
            held.token > holder.token,
            "the unheard token writes no more"
        );
    });
}

/// S3.
#[test]
fn nothing_is_written_under_a_lock_that_was_given_back() {
    run(async {
        let world = World::new(1);
        let (lock, now) = (
            TimedLock::new(world.key_value(), HOLD_MS),
            world.clock().now(),
        );
        let held = held(lock.acquire(&key(), &owner("a"), now).await.expect("calm"));
        let write = |n| vec![Action::set_integer("n", n)];
        let operation = Operation {
            id: OperationId(1),
            known: Version(0),
        };
        lock.update(&held, write(0), Some(operation))
            .await
            .expect("calm");
        world.faults().lose_answer(Chance::ALWAYS);
        lock.release(&held, write(1))
            .await
            .expect_err("the answer was lost");
        world.faults().calm();
        let again = lock.release(&held, write(1)).await.expect("calm");
        assert!(
            matches!(again, Guarded::Done { .. }),
            "a repeat is recognised"
        );
        let again = lock
            .update(&held, write(0), Some(operation))
            .await
            .expect("calm");
        assert!(
            matches!(again, Guarded::Done { .. }),
            "a repeat is recognised"
        );
        let late = lock
            .update(&held, vec![Action::set_integer("n", 2)], None)
            .await
            .expect("calm");
        let Guarded::LostLock(Some(item), _) = late else {
            panic!("the lock was given back")
        };
        assert_eq!(item.integer("n"), Some(1));
    });
}

/// S2, S3, D4: a store that has lost a lock gives its token to the next holder; the first one
/// changes nothing.
#[test]
fn a_holder_outlives_the_loss_of_its_lock_and_changes_nothing() {
    run(async {
        let world = World::new(1);
        let (lock, now) = (
            TimedLock::new(world.key_value(), HOLD_MS),
            world.clock().now(),
        );
        let lost = held(lock.acquire(&key(), &owner("a"), now).await.expect("calm"));
        world.crash();
        let next = held(lock.acquire(&key(), &owner("b"), now).await.expect("calm"));
        assert_eq!(lost.token, next.token, "nothing remembers the first");
        let update = lock
            .update(&lost, vec![Action::set_integer("x", 1)], None)
            .await;
        assert_eq!(
            update.expect_err("its lock is lost").kind(),
            ErrorKind::Lost
        );
        let release = lock.release(&lost, Vec::new()).await;
        assert_eq!(
            release.expect_err("its lock is lost").kind(),
            ErrorKind::Lost
        );
        let update = lock
            .update(&next, vec![Action::set_integer("x", 2)], None)
            .await
            .expect("calm");
        assert!(matches!(update, Guarded::Done { .. }));
    });
}

/// S1: checking for expiry and taking the lock use the same allowance.
#[test]
fn a_lock_has_expired_once_its_time_and_the_drift_have_passed() {
    run(async {
        let world = World::new(1);
        let (lock, since) = (
            TimedLock::new(world.key_value(), HOLD_MS),
            world.clock().now(),
        );
        let first = held(
            lock.acquire(&key(), &owner("a"), since)
                .await
                .expect("calm"),
        );
        let holder = Holder::of(&first.item).expect("it is held");
        let last = Timestamp(since.0 + HOLD_MS + DRIFT_MS_MAX);
        assert!(!lock.is_expired(&holder, last));
        let refused = lock.acquire(&key(), &owner("b"), last).await.expect("calm");
        assert!(matches!(refused, Acquired::Busy(..)));
        let after = Timestamp(last.0 + 1);
        assert!(lock.is_expired(&holder, after));
        held(
            lock.acquire(&key(), &owner("b"), after)
                .await
                .expect("calm"),
        );
    });
}

/// S3: the lock's own attributes are no caller's to change, nor where it is given back.
#[test]
fn an_update_under_a_lock_that_touches_it_is_our_own_mistake() {
    for attribute in ["lock_since", "lock_owner", "lock_token"] {
        for gives_back in [false, true] {
            let touching = || {
                run(async {
                    let world = World::new(1);
                    let lock = TimedLock::new(world.key_value(), HOLD_MS);
                    let held = held(
                        lock.acquire(&key(), &owner("a"), world.clock().now())
                            .await
                            .expect("calm"),
                    );
                    let actions = vec![Action::unset(attribute)];
                    drop(if gives_back {
                        lock.release(&held, actions).await
                    } else {
                        lock.update(&held, actions, None).await
                    });
                });
            };
            let said = std::panic::catch_unwind(touching).expect_err(attribute);
            let said = said.downcast_ref::<&str>().copied().unwrap_or_default();
            assert_eq!(
                said, "a guarded update leaves the lock itself alone",
                "{attribute}"
            );
        }
    }
}
