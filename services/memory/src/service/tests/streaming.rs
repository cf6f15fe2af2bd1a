//! Content that is read piece by piece, with units that are sent one by one.

use super::*;

const UNIT: usize = 64 << 10;

/// M7: the rest of a stripe is decoded, and comes from the store once too many units are lost.
#[test]
fn a_read_goes_on_where_instances_die_in_the_middle_of_a_stripe() {
    run(async {
        let world = World::new(1);
        let config = Config {
            unit_bytes: UNIT as u32,
            ..config()
        };
        let started = start_with(&world, world.clock(), &config);
        let service = &started.service;
        service.create_bucket("b").await.expect("made");
        let whole = content(1, 9 * UNIT - 10);
        put(service, "k", &whole).await;
        // One group dies step by step: none, within the parity, and beyond it.
        for dead in [None, Some(2), Some(1), Some(3)] {
            let opened = service.open("b", "k").await.expect("it is there");
            let mut reading = opened.read(5..whole.len() as u64 - 5);
            let first = reading.next().await.expect("some").expect("it is read");
            assert!(first.len() <= UNIT, "it is a unit");
            if let Some(index) = dead {
                let dead = instance(service, index).await;
                dead.end();
                dead.died().await;
            }
            let rest: Vec<Bytes> = reading.try_collect().await.expect("it is read");
            let read = [vec![first], rest].concat().concat();
            assert!(read == whole[5..whole.len() - 5], "{dead:?}");
        }
    });
}

/// The bytes of a read that has ended keep their place in memory.
#[test]
fn bytes_of_a_deleted_object_stay_as_they_are_until_they_are_dropped() {
    run(async {
        let world = World::new(1);
        let config = Config {
            unit_bytes: UNIT as u32,
            ..config()
        };
        let started = start_with(&world, world.clock(), &config);
        let service = &started.service;
        service.create_bucket("b").await.expect("made");
        let whole = content(1, 4 * UNIT);
        put(service, "k", &whole).await;
        let opened = service.open("b", "k").await.expect("it is there");
        let read: Vec<Bytes> = opened
            .read(0..4 * UNIT as u64)
            .try_collect()
            .await
            .expect("read");
        let none = Conditions::default();
        service.delete("b", "k", &none).await.expect("deleted");
        until(&world, || async { service.figures().fragments == 0 }).await;
        let holder = instance(service, 0).await;
        put(service, "other", &content(2, 4 * UNIT)).await;
        assert!(holder.used_bytes() > UNIT as u64 + 4096 * 2, "two chunks");
        assert!(read.concat() == whole);
        drop(read);
        put(service, "third", &content(2, 4 * UNIT)).await;
        until(&world, || async { holder.used_bytes() < 3 * UNIT as u64 }).await;
    });
}
