//! S6 to S8: counting and listing beside each other, with answers lost.

use std::collections::BTreeSet;

use bytes::Bytes;
use ports::{
    Entropy, ErrorKind, Key,
    key_value::{Operation, OperationId, Version},
};
use primitives::{AtomicCounter, AtomicList, Backoff, retry_repeatable};
use simulated::{World, percent, run};

use crate::seeds;

fn counter(world: &World) -> AtomicCounter {
    AtomicCounter::new(world.key_value(), Key::new("counters", "a"))
}

fn list(world: &World, elements_max: usize) -> AtomicList {
    AtomicList::new(world.key_value(), Key::new("lists", "a"), elements_max)
}

fn operation(chance: &dyn Entropy) -> Operation {
    Operation {
        id: OperationId(u128::from(chance.next_u64())),
        known: Version(0),
    }
}

fn element(number: usize) -> Bytes {
    Bytes::from(format!("{number:03}"))
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

/// S8.
#[test]
fn every_append_is_in_the_list_once_and_in_the_order_of_its_writer() {
    for seed in seeds() {
        run(async {
            let world = World::new(seed);
            world.faults().lose_answer(percent(30));
            let writers: Vec<_> = (0..8)
                .map(|writer| tokio::spawn(append(world.clone(), writer)))
                .collect();
            for writer in writers {
                writer.await.expect("it does not panic");
            }
            world.faults().calm();
            let elements = list(&world, 1_000).read().await.expect("calm").elements;
            assert_eq!(elements.len(), 40, "seed {seed}");
            for writer in 0..8 {
                let of_writer =
                    |element: &&Bytes| element.ends_with(format!(" {writer}").as_bytes());
                let own: Vec<_> = elements.iter().filter(of_writer).collect();
                assert!(own.is_sorted() && own.len() == 5, "seed {seed}: {own:?}");
            }
        });
    }
}

async fn append(world: World, writer: usize) {
    let (list, chance, clock) = (list(&world, 1_000), world.entropy(), world.clock());
    let patient = Backoff {
        attempts_max: 100,
        ..Backoff::default()
    };
    for number in 0..5 {
        let (operation, element) = (
            operation(&*chance),
            Bytes::from(format!("{number} {writer}")),
        );
        let append = || list.append(vec![element.clone()], Some(operation));
        retry_repeatable(patient, &*clock, &*chance, append)
            .await
            .expect("in the end");
    }
}

/// S8.
#[test]
fn a_list_takes_what_fits_and_gives_back_from_its_front() {
    run(async {
        let list = list(&World::new(1), 4);
        let three = (0..3).map(element).collect();
        assert!(list.append(three, None).await.expect("calm").fits);
        let refused = list
            .append(vec![element(3), element(4)], None)
            .await
            .expect("calm");
        assert!(!refused.fits && refused.elements.len() == 3, "all or none");
        assert!(
            list.append(vec![element(3)], None)
                .await
                .expect("calm")
                .fits
        );
        let error = list
            .append((0..5).map(element).collect(), None)
            .await
            .expect_err("it never fits");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            list.remove_first(2, None).await.expect("calm").elements,
            [element(2), element(3)]
        );
        assert_eq!(
            list.remove(vec![element(2), element(9)])
                .await
                .expect("calm")
                .elements,
            [element(3)]
        );
        assert_eq!(
            list.remove_first(5, None).await.expect("calm").elements,
            Vec::<Bytes>::new()
        );
        assert_eq!(
            list.read().await.expect("calm").elements,
            Vec::<Bytes>::new()
        );
    });
}

/// S8.
#[test]
fn what_is_removed_under_an_operation_is_removed_once() {
    run(async {
        let world = World::new(1);
        let (list, operation) = (list(&world, 4), operation(&*world.entropy()));
        list.append((0..4).map(element).collect(), None)
            .await
            .expect("calm");
        for _ in 0..2 {
            list.remove_first(1, Some(operation)).await.expect("calm");
        }
        assert_eq!(
            list.read().await.expect("calm").elements,
            [element(1), element(2), element(3)]
        );
    });
}

/// D6: a read depends on all earlier additions.
#[test]
fn what_is_read_is_durable_with_what_it_says() {
    run(async {
        let world = World::new(1);
        let added = counter(&world).add(1).await.expect("calm").receipt.point;
        assert!(counter(&world).read().await.expect("calm").receipt.point >= added);
        let appended = list(&world, 5)
            .append(vec![element(1)], None)
            .await
            .expect("calm")
            .receipt
            .point;
        assert!(list(&world, 5).read().await.expect("calm").receipt.point >= appended);
    });
}
