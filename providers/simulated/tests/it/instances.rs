//! Deaths of instances from the seed.

use ports::instances::{Death, Spec};
use simulated::{Chance, World, instances::obedient, percent, run};

/// How many messages an instance gets before it dies, by the seed.
fn messages_before_death(seed: u64) -> u32 {
    run(async {
        let world = World::new(seed);
        let instances = world.instances(obedient());
        let instance = instances.start(&Spec::default()).await.expect("calm");
        let channel = instance.channel().await.expect("it is alive");
        world.faults().kill_instances(percent(10));
        let mut answered = 0;
        while channel.send("echo on".into()).await.is_ok() {
            match channel.receive().await.expect("well formed") {
                Some(_) => answered += 1,
                None => break,
            }
        }
        assert_eq!(instance.died().await, Death::Killed(9));
        answered
    })
}

#[test]
fn the_seed_decides_when_an_instance_dies() {
    let counts: Vec<_> = (0..20).map(messages_before_death).collect();
    let again: Vec<_> = (0..20).map(messages_before_death).collect();
    assert_eq!(counts, again);
    let first = counts[0];
    assert!(counts.iter().any(|count| *count != first), "{counts:?}");
}

#[test]
fn a_healed_world_kills_no_instance() {
    run(async {
        let world = World::new(1);
        let instances = world.instances(obedient());
        world.faults().kill_instances(Chance::ALWAYS);
        world.faults().calm();
        let instance = instances.start(&Spec::default()).await.expect("calm");
        let channel = instance.channel().await.expect("it is alive");
        for _ in 0..100 {
            channel.send("echo on".into()).await.expect("it is alive");
            assert!(channel.receive().await.expect("well formed").is_some());
        }
    });
}
