//! The meter of function memory: known requests cause known counts.

use ports::metering::function_memory::Category;

use super::*;

const DATA: u64 = 4;
const TOTAL: u64 = 6;

fn io(service: &Service) -> u64 {
    service.usage().of(Category::Io).count
}

#[test]
fn a_put_invokes_each_function_and_a_get_those_with_its_chunks() {
    run(async {
        let world = World::new(1);
        let started = started(&world).await;
        let service = &started.service;
        let large = content(1, LARGE);
        put(service, "k", &large).await;
        assert_eq!(io(service), TOTAL);
        get(service, "k").await.expect("it is there");
        assert_eq!(io(service), TOTAL + DATA);
        let opened = service.open("b", "k").await.expect("it is there");
        read(opened, 5..6).await.expect("it is there");
        assert_eq!(io(service), TOTAL + DATA + 1);
        put(service, "inline", &content(2, 100)).await;
        get(service, "inline").await.expect("it is there");
        let usage = service.usage();
        assert_eq!(usage.of(Category::Io).count, TOTAL + DATA + 1);
        assert_eq!(usage.of(Category::Recovery).count, 0);
        // Six chunks in, four out, and one unit; each unit has a checksum of 4 bytes.
        let unit = STRIPE as u64 / 4 + 4;
        assert_eq!(
            usage.of(Category::Io).bytes,
            unit * (20 * (TOTAL + DATA) + 1)
        );
        assert_eq!(usage.resident.bytes, LARGE as u64);
        assert_eq!(usage.stored.bytes, unit * 20 * TOTAL);
        assert_eq!(usage.running.bytes, TOTAL * config().instance_bytes);
    });
}

#[test]
fn a_deleted_object_is_counted_no_longer() {
    run(async {
        let world = World::new(2);
        let started = started(&world).await;
        let service = &started.service;
        for key in ["k", "other"] {
            put(service, key, &content(1, LARGE)).await;
        }
        let both = service.usage();
        let none = Conditions::default();
        service.delete("b", "k", &none).await.expect("deleted");
        until(&world, || async { stored_objects(&world).await == 1 }).await;
        until(&world, || async {
            service.usage().stored.bytes < both.stored.bytes
        })
        .await;
        let usage = service.usage();
        assert_eq!(usage.stored.bytes, both.stored.bytes / 2);
        assert_eq!(usage.resident.bytes, both.resident.bytes / 2);
        assert_eq!(usage.resident.bytes_max, both.resident.bytes);
    });
}

#[test]
fn the_death_of_an_instance_costs_a_recovery_for_each_of_its_chunks() {
    run(async {
        let world = World::new(3);
        let started = started(&world).await;
        let service = &started.service;
        for key in ["a", "b", "c"] {
            put(service, key, &content(1, LARGE)).await;
        }
        instance(service, 1).await.end();
        let recovered = || service.usage().of(Category::Recovery).count;
        until(&world, || async { recovered() == 3 }).await;
        assert_eq!(io(service), 3 * TOTAL);
    });
}

#[test]
fn objects_of_an_earlier_start_are_not_taken_from_the_stored_bytes() {
    run(async {
        let world = World::new(4);
        let earlier = started(&world).await;
        put(&earlier.service, "old", &content(1, LARGE)).await;
        drop(earlier);
        world.clock().sleep(std::time::Duration::from_secs(1)).await;
        let started = start(&world);
        let service = &started.service;
        put(service, "new", &content(2, LARGE)).await;
        let stored = service.usage().stored.bytes;
        let none = Conditions::default();
        service.delete("b", "old", &none).await.expect("deleted");
        until(&world, || async { stored_objects(&world).await == 1 }).await;
        assert_eq!(service.usage().stored.bytes, stored);
    });
}
