//! T11, T12, and rules T-3 and T-4, over seeds of deaths and faults; each rule with the mutant that
//! drops it.

use simulation::{
    faults::FaultProfile,
    transactions::{
        client::Habits,
        scenario::{Disaster, Scenario},
        workload::Mix,
    },
};
use transactions::broken::Broken;

use super::{SEEDS_UNTIL_CAUGHT, values::with_small_limits};

/// Half of the transactions are serializable, on few keys, so that they conflict; some only read.
fn mixed(fault_profile: FaultProfile) -> Scenario {
    let small = super::small(fault_profile);
    let mix = Mix {
        keys: 4,
        one_delete_in: 0,
        clients: 4,
        transactions: 28,
        ..small.mix
    };
    let habits = Habits {
        one_serializable_in: 2,
        one_reader_in: 4,
        ..small.habits
    };
    Scenario {
        mix,
        habits,
        ..small
    }
}

/// The same on a node that dies at any point.
fn dying(fault_profile: FaultProfile) -> Scenario {
    use Disaster::{Everything, Node};
    Scenario {
        disasters: vec![Node, Everything, Node],
        ..mixed(fault_profile)
    }
}

/// A node is considered dead while it writes, and a new one takes over.
fn replaced() -> Scenario {
    let mixed = mixed(FaultProfile::Slow);
    let mix = Mix {
        clients: 6,
        transactions: 24,
        ..mixed.mix
    };
    Scenario {
        mix,
        disasters: vec![Disaster::Replacement; 3],
        ..mixed
    }
}

/// T11: with both levels, and any death of the node.
#[test]
fn serializable_histories_have_no_cycles() {
    let name = "serializable_histories_have_no_cycles";
    for fault_profile in [FaultProfile::Calm, FaultProfile::Slow] {
        mixed(fault_profile).holds(name);
    }
    for fault_profile in [
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        dying(fault_profile).holds(name);
    }
}

/// T11: if the store falls back to its durable state, with or without a death of its node.
#[test]
fn serializable_histories_have_no_cycles_when_the_store_falls_back() {
    let disasters = vec![Disaster::Store, Disaster::Everything, Disaster::Store];
    let scenario = Scenario {
        disasters,
        ..mixed(FaultProfile::Slow)
    };
    scenario.holds("serializable_histories_have_no_cycles_when_the_store_falls_back");
}

/// T-4: a replaced node decides nothing, and shows no false state.
#[test]
fn serializable_histories_have_no_cycles_when_a_node_is_replaced() {
    replaced().holds("serializable_histories_have_no_cycles_when_a_node_is_replaced");
}

/// T11, with deletions, effects, and no cache: every read goes to the store.
#[test]
fn serializable_reads_from_the_store_are_as_good() {
    let mut scenario = dying(FaultProfile::Slow);
    scenario.mix = Mix {
        one_delete_in: 4,
        effects: 1,
        transactions: 14,
        ..scenario.mix
    };
    scenario.habits.one_reader_in = 0;
    scenario.config.index_bytes_max = 0;
    scenario.config.data_cache_bytes_max = 0;
    scenario.holds("serializable_reads_from_the_store_are_as_good");
}

/// The same with values in chunks, or spilled before their commit.
fn large(fault_profile: FaultProfile) -> Scenario {
    let mixed = mixed(fault_profile);
    let mix = Mix {
        functions: 3,
        keys: 3,
        one_delete_in: 6,
        transactions: 12,
        ..mixed.mix
    };
    with_small_limits(Scenario { mix, ..mixed })
}

/// T1 to T5, T7, T9, T11: large values are atomic with the sequencer's slot, as with a row.
#[test]
fn large_values_are_serializable() {
    use Disaster::{Everything, Node, Store};
    let name = "large_values_are_serializable";
    for fault_profile in [FaultProfile::Calm, FaultProfile::Slow] {
        large(fault_profile).holds(name);
    }
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        Scenario {
            disasters: vec![Node, Everything, Node, Store],
            ..large(fault_profile)
        }
        .holds(name);
    }
}

/// T4, T9, T-4: a replaced node keeps spilling values for a while.
#[test]
fn values_spilled_by_a_replaced_sequencer_are_removed() {
    let replaced = replaced();
    let mix = Mix {
        functions: 2,
        keys: 3,
        transactions: 10,
        ..replaced.mix
    };
    let disasters = vec![Disaster::Replacement; 2];
    with_small_limits(Scenario {
        mix,
        disasters,
        ..replaced
    })
    .holds("values_spilled_by_a_replaced_sequencer_are_removed");
}

/// T4, T7, T9: a node that shuts down leaves sequenced commits whole, and nothing unnamed.
#[test]
fn a_sequencer_that_leaves_in_order_leaves_nothing_unnamed() {
    let mut scenario = Scenario {
        disasters: vec![Disaster::Departure; 2],
        ..large(FaultProfile::Slow)
    };
    scenario.mix.transactions = 10;
    scenario.holds("a_sequencer_that_leaves_in_order_leaves_nothing_unnamed");
}

/// T9: chunks of a sequenced keyspace are collected, with windows that pass while transactions run.
#[test]
fn sequenced_chunks_are_collected_while_others_read() {
    let mut scenario = Scenario {
        disasters: vec![Disaster::Node],
        ..large(FaultProfile::Slow)
    };
    scenario.mix.transactions = 10;
    scenario.config.retry_window = std::time::Duration::from_secs(1);
    scenario.holds("sequenced_chunks_are_collected_while_others_read");
}

/// P6, broken: the slot is written before the chunks.
#[test]
fn a_slot_before_its_chunks_is_caught() {
    large(FaultProfile::Slow)
        .without(Broken::RecordBeforeChunks)
        .is_caught("record", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken, in a sequenced keyspace.
#[test]
fn keeping_replaced_chunks_of_sequenced_commits_is_caught() {
    let scenario = large(FaultProfile::Slow).without(Broken::KeepsReplacedChunks);
    scenario.is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken, in a sequenced keyspace.
#[test]
fn a_collector_that_forgets_sequenced_chunks_is_caught() {
    large(FaultProfile::Slow)
        .without(Broken::ForgetsChunks)
        .is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}

/// T12.
#[test]
fn readers_never_conflict() {
    let scenario = mixed(FaultProfile::Slow);
    let habits = Habits {
        one_serializable_in: 1,
        one_reader_in: 2,
        ..scenario.habits
    };
    Scenario { habits, ..scenario }.holds("readers_never_conflict");
}

/// T12, broken.
#[test]
fn validating_readers_is_caught() {
    mixed(FaultProfile::Slow)
        .without(Broken::ValidatesReaders)
        .is_caught("reader in conflict", SEEDS_UNTIL_CAUGHT);
}

/// T11, broken.
#[test]
fn skipping_validation_is_caught() {
    mixed(FaultProfile::Calm)
        .without(Broken::SkipsValidation)
        .is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T11, broken: absences are not validated.
#[test]
fn forgetting_that_a_key_was_absent_is_caught() {
    let mut scenario = mixed(FaultProfile::Calm).without(Broken::ForgetsAbsence);
    // Every key is new to most of its readers.
    scenario.mix = Mix {
        keys: 12,
        zipf: 0.0,
        ..scenario.mix
    };
    scenario.is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T-3, broken.
#[test]
fn timestamps_in_a_sequenced_keyspace_are_caught() {
    mixed(FaultProfile::Calm)
        .without(Broken::ReadAtomicKeepsItsTimestamps)
        .is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T-3, broken.
#[test]
fn marking_without_waiting_is_caught() {
    let mut scenario = mixed(FaultProfile::Slow).without(Broken::MarksWithoutWaiting);
    // The first serializable transaction begins while others write.
    scenario.mix = Mix {
        clients: 8,
        transactions: 24,
        keys: 2,
        ..scenario.mix
    };
    scenario.is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T-4, broken: late decisions of the predecessor are neither known nor prevented.
#[test]
fn a_sequencer_that_does_not_seal_is_caught() {
    replaced()
        .without(Broken::SequencerDoesNotSeal)
        .is_caught("", SEEDS_UNTIL_CAUGHT);
}

/// T4, broken: a row that was handed over is closed without the sequencer.
#[test]
fn closing_a_row_that_was_handed_over_is_caught() {
    let mixed = mixed(FaultProfile::Slow);
    let habits = Habits {
        one_named_in: 1,
        one_stall_in: 2,
        one_serializable_in: 2,
        ..mixed.habits
    };
    Scenario { habits, ..mixed }
        .without(Broken::ClosesPreparedRows)
        .is_caught("", SEEDS_UNTIL_CAUGHT);
}
