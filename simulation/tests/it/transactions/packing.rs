//! T1 to T7, T9, P6: values in packs on an object store, compacted while others read and collect,
//! on nodes that die at any point; each rule with the mutant that drops it.

use std::time::Duration;

use simulated::World;
use simulation::{
    faults::FaultProfile,
    transactions::{
        client::{Record, transact},
        cluster::Cluster,
        crashable::{Life, Side},
        effects::Receipts,
        scenario::{Disaster, Outcome, Scenario, seeds},
        workload::{Mix, Planned, Script, Work, key},
    },
};
use transactions::{broken::Broken, model::Isolation};

use super::{SEEDS_UNTIL_CAUGHT, replaced, small};

/// Transactions whose values go into packs of two or three, or into their items, by the length of
/// their ids. They are soon overwritten, so a pack is mostly dead a moment after its put, and any
/// two others are merged. Some values are spilled.
fn packed(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = small(fault_profile);
    scenario.mix = Mix {
        functions: 3,
        keys: 4,
        transactions: 15,
        ..scenario.mix
    };
    with_small_packs(scenario)
}

pub(super) fn with_small_packs(mut scenario: Scenario) -> Scenario {
    scenario.packs = true;
    scenario.config.pack_bytes_min = 50;
    scenario.config.pack_bytes_max = 256;
    scenario.config.packs_merged = 2;
    scenario.config.pack_wait = Duration::from_millis(30);
    scenario.config.attempt_buffer_bytes_max = 130;
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

/// Slow readers, so that the values that they need move while they read.
fn reading(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = packed(fault_profile);
    scenario.mix.reads = 3;
    scenario.habits.thinks = Duration::from_millis(100);
    scenario.config.retry_window = Duration::from_secs(1);
    scenario
}

fn dying(fault_profile: FaultProfile) -> Scenario {
    use Disaster::{Everything, Node, Store};
    Scenario {
        disasters: vec![Node, Everything, Node, Store],
        ..packed(fault_profile)
    }
}

/// T1 to T6, T9: with any interleaving of reads, compaction and collection.
#[test]
fn packed_values_keep_the_promises() {
    for fault_profile in [
        FaultProfile::Calm,
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        packed(fault_profile).holds("packed_values_keep_the_promises");
        reading(fault_profile).holds("packed_values_keep_the_promises");
    }
}

/// T4, T5, T7, T9: with any death of the node, or of its store with it; its objects remain.
#[test]
fn packed_values_come_whole_or_not_at_all_on_nodes_that_die() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        dying(fault_profile).holds("packed_values_come_whole_or_not_at_all_on_nodes_that_die");
    }
}

/// T2, T9, T11: in a sequenced keyspace.
#[test]
fn packed_values_are_serializable() {
    let mut scenario = dying(FaultProfile::Slow);
    scenario.habits.one_serializable_in = 2;
    scenario.mix.transactions = 10;
    scenario.holds("packed_values_are_serializable");
}

/// T4, T9: a node that is considered dead keeps putting packs for a while.
#[test]
fn packs_of_a_replaced_node_are_removed() {
    let mut scenario = with_small_packs(replaced());
    scenario.mix.transactions /= 2;
    scenario.holds("packs_of_a_replaced_node_are_removed");
}

/// T9: a node that shuts down in order has rows for all its packs.
#[test]
fn nodes_that_leave_in_order_leave_no_pack_unnamed() {
    Scenario {
        disasters: vec![Disaster::Departure; 3],
        ..packed(FaultProfile::Slow)
    }
    .holds("nodes_that_leave_in_order_leave_no_pack_unnamed");
}

/// T9, broken: nodes ignore what a dead one knew of its packs, or had not recorded yet.
#[test]
fn counting_no_packs_after_a_death_is_caught() {
    dying(FaultProfile::Slow)
        .without(Broken::SweepsNothing)
        .is_caught("leftover: PackId", SEEDS_UNTIL_CAUGHT);
}

/// P6, broken.
#[test]
fn writing_the_record_before_the_pack_is_caught() {
    packed(FaultProfile::Slow)
        .without(Broken::RecordBeforePack)
        .is_caught("record", SEEDS_UNTIL_CAUGHT);
}

/// T5, T6, broken.
#[test]
fn deleting_a_pack_before_moving_is_caught() {
    let scenario = reading(FaultProfile::Slow).without(Broken::DeletesPackBeforeMoving);
    scenario.is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// Packs of many concurrent transactions, on a store whose answers are sometimes lost: an item is
/// written long after others of its pack have died.
fn held() -> Scenario {
    let mut scenario = packed(FaultProfile::Stormy);
    scenario.mix = Mix {
        clients: 8,
        transactions: 40,
        keys: 3,
        ..scenario.mix
    };
    scenario.config.pack_bytes_max = 10_000;
    scenario.config.pack_wait = Duration::from_millis(1);
    scenario
}

/// T5: compaction waits for the writers of a pack.
#[test]
fn packs_are_not_compacted_under_their_writers() {
    let mut scenario = held();
    // Notes on packs cost port calls, whose number per run is bounded.
    scenario.mix.transactions = scenario.mix.transactions * 4 / 5;
    scenario.holds("packs_are_not_compacted_under_their_writers");
}

/// Writes these keys.
fn script(ranks: std::ops::Range<usize>) -> Script {
    let write = |rank| {
        Work::Write(Planned {
            key: key(rank),
            deletes: false,
        })
    };
    Script {
        work: ranks.map(write).collect(),
    }
}

/// Compacts one pack of three values, two of which are overwritten. The compacting node dies at one
/// of its calls, from zero, alone or with the store. Returns also whether it died, and how many
/// packs were compacted.
async fn compact_once(at: u64, side: Side, with_store: bool) -> (Outcome, bool, u64) {
    let mut scenario = packed(FaultProfile::Calm);
    scenario.config.pack_bytes_min = 0;
    scenario.config.pack_bytes_max = 10_000;
    scenario.config.packs_merged = 10;
    let (world, record, life) = (World::new(1), Record::default(), Life::default());
    let cluster = Cluster::new(&world, scenario.config.clone()).packing();
    cluster.boot(life.clone(), 0).await;
    let run = async |script: Script| {
        transact(
            cluster.clone(),
            &script,
            Isolation::ReadAtomic,
            None,
            0,
            record.clone(),
        )
        .await;
    };
    run(script(0..3)).await;
    world.clock().sleep(Duration::from_secs(1)).await;
    run(script(0..2)).await;
    life.ends_after(at, side);
    let clock = world.clock();
    tokio::select! {
        biased;
        () = life.over() => {}
        () = clock.sleep(Duration::from_secs(5)) => {}
    }
    let has_died = life.is_over();
    life.goes_on();
    let compacted = cluster
        .serving()
        .map_or(0, |serving| serving.engine.figures().compacted);
    if has_died {
        cluster.kill();
        if with_store {
            world.crash();
        }
        cluster.boot(Life::default(), 0).await;
    }
    (
        scenario
            .judge(&cluster, &record.take(), &Receipts::default())
            .await,
        has_died,
        compacted,
    )
}

/// T5, T9: the compacting node dies between any two of its calls, alone or with all data that is
/// not durable.
#[test]
fn a_death_in_any_gap_of_a_compaction_loses_nothing_and_leaves_nothing() {
    for (side, with_store) in [Side::Before, Side::After]
        .into_iter()
        .flat_map(|side| [(side, false), (side, true)])
    {
        let mut gaps = 0;
        for at in 0.. {
            let (outcome, has_died, compacted) = simulated::run(compact_once(at, side, with_store));
            assert_eq!(
                outcome.violations, [""; 0],
                "call {at}, {side:?}, with the store: {with_store}"
            );
            assert_eq!(outcome.committed, 2);
            if !has_died {
                assert_eq!(compacted, 1);
                break;
            }
            gaps += 1;
        }
        // Two versions are removed. The pack is read in four steps, and three items. Then follow a
        // put and its row, the move, the wait, and the deletions of object and row.
        assert!(gaps >= 15, "{gaps} gaps");
    }
}

/// One seed gives one trace, also if several wait for one pack.
#[test]
fn one_seed_of_packed_values_gives_one_trace() {
    for seed in seeds().take(5) {
        let scenario = packed(FaultProfile::Slow);
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}
