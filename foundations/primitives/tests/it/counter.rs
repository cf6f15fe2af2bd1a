//! S6, S7: counting beside each other, with answers lost.

use std::collections::BTreeSet;

use ports::{
    Entropy, ErrorKind, Key,
    key_value::{Operation, OperationId, Version},
};
use primitives::{AtomicCounter, Backoff, retry_repeatable};
use simulated::{World, percent, run};

use crate::seeds;

fn counter(world: &World) -> AtomicCounter {
    AtomicCounter::new(world.key_value(), Key::new("counters", "a"))
}

fn operation(chance: &dyn Entropy) -> Operation {
    Operation {
        id: OperationId(u128::from(chance.next_u64())),
        known: Version(0),
    }
}

/// S6.
#[test]
fn no_two_additions_are_given_the_same_value() {
    for seed in seeds() {
        run(async {
            let world = World::new(seed);
            world.faults().delay(
                percent(50),
                std::time::Duration::ZERO..=std::time::Duration::from_millis(3),
            );
            let adding: Vec<_> = (0..64)
                .map(|_| {
                    let counter = counter(&world);
                    tokio::spawn(
                        async move { counter.add(1).await.expect("no fault refuses").value },
                    )
                })
                .collect();
            let mut values = BTreeSet::new();
            for add in adding {
                values.insert(add.await.expect("it does not panic"));
            }
            assert_eq!(values, (1..=64).collect(), "seed {seed}");
        });
    }
}

/// S7.
#[test]
fn an_addition_repeated_through_lost_answers_counts_once() {
    for seed in seeds() {
        run(async {
            let world = World::new(seed);
            let (counter, clock, chance) = (counter(&world), world.clock(), world.entropy());
            let patient = Backoff {
                attempts_max: 100,
                ..Backoff::default()
            };
            world.faults().lose_answer(percent(40));
            world.faults().refuse(percent(20));
            for sum in 1..=20 {
                let operation = operation(&*chance);
                let add = || counter.add_once(1, operation);
                let counted = retry_repeatable(patient, &*clock, &*chance, add)
                    .await
                    .expect("in the end");
                assert_eq!(counted.value, sum, "seed {seed}");
            }
            world.faults().calm();
            assert_eq!(counter.read().await.expect("calm").value, 20, "seed {seed}");
        });
    }
}

/// S6.
#[test]
fn a_counter_that_nobody_has_added_to_is_zero() {
    run(async {
        assert_eq!(counter(&World::new(1)).read().await.expect("calm").value, 0);
    });
}

/// S6.
#[test]
fn a_counter_that_would_overflow_says_so_and_keeps_its_value() {
    run(async {
        let counter = counter(&World::new(1));
        counter.add(i64::MAX).await.expect("it fits");
        let error = counter.add(1).await.expect_err("it does not fit");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(counter.read().await.expect("calm").value, i64::MAX);
    });
}

/// D6: a read depends on all earlier additions.
#[test]
fn what_is_read_is_durable_with_what_it_says() {
    run(async {
        let world = World::new(1);
        let added = counter(&world).add(1).await.expect("calm").receipt.point;
        assert!(counter(&world).read().await.expect("calm").receipt.point >= added);
    });
}
