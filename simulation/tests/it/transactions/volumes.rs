//! V1 to V7 over seeds of deaths, losses and repeats; each rule with the mutant that drops it.

use std::time::Duration;

use simulation::{
    faults::FaultProfile,
    transactions::{
        scenario::Disaster,
        volumes::{client::Habits, scenario::Scenario},
    },
};
use transactions::{Config, broken::Broken};

use super::SEEDS_UNTIL_CAUGHT;

fn calm() -> Scenario {
    Scenario::default()
}

/// A node that dies at any point.
fn dying() -> Scenario {
    use Disaster::{Departure, Node};
    Scenario {
        disasters: vec![Node, Departure, Node],
        ..calm()
    }
}

/// A store that loses what is not durable, with or without a death of the node.
fn losing() -> Scenario {
    use Disaster::{Everything, Store};
    Scenario {
        disasters: vec![Everything, Store, Everything],
        ..calm()
    }
}

/// A node that is replaced while it runs.
fn replaced() -> Scenario {
    Scenario {
        disasters: vec![Disaster::Replacement; 3],
        ..calm()
    }
}

/// Pauses in which versions are collected.
fn slow() -> Scenario {
    let calm = calm();
    Scenario {
        habits: Habits {
            one_long_pause_in: 4,
            one_old_in: 3,
            pins: true,
            ..calm.habits
        },
        disasters: vec![Disaster::Node],
        ..calm
    }
}

/// Several nodes, of which one that dies, or is cut off from the others and from the members.
fn several(disaster: Disaster) -> Scenario {
    Scenario {
        nodes: 3,
        disasters: vec![disaster; 4],
        ..calm()
    }
}

/// V1 to V6: of several nodes one serves, and another after it.
#[test]
fn volumes_of_several_nodes_are_served_by_one() {
    for disaster in [Disaster::OneOfMany, Disaster::CutOff] {
        several(disaster).holds("volumes_of_several_nodes_are_served_by_one");
    }
}

/// V1, broken: a node that has led answers from its memory while its successor writes.
#[test]
fn serving_volumes_without_a_lease_is_caught() {
    let scenario = several(Disaster::CutOff).without(Broken::AnswersWithoutLease);
    // The window is short: about one seed of 500 meets it.
    scenario.is_caught("V", 10 * SEEDS_UNTIL_CAUGHT);
}

/// All values are put into objects.
fn bulk(scenario: Scenario) -> Scenario {
    let config = Config {
        volume_value_bytes_min: 1,
        volume_object_bytes_min: 1,
        ..scenario.config
    };
    Scenario { config, ..scenario }
}

/// V1 to V6, with values in objects.
#[test]
fn volumes_keep_values_in_objects() {
    let name = "volumes_keep_values_in_objects";
    bulk(slow()).holds(name);
    bulk(dying()).holds(name);
    bulk(losing()).holds(name);
    bulk(replaced()).holds(name);
}

/// V2, broken: objects with versions are deleted.
#[test]
fn deleting_objects_with_versions_is_caught() {
    let scenario = bulk(slow()).without(Broken::DeletesReferencedObjects);
    scenario.is_caught("V2", SEEDS_UNTIL_CAUGHT);
}

/// Clients that read under leases.
fn leased() -> Scenario {
    let calm = calm();
    Scenario {
        habits: Habits {
            leases: true,
            ..calm.habits
        },
        // Leases are granted, and given up, between two disasters.
        apart: Duration::from_secs(10),
        ..calm
    }
}

/// V1 to V5.
#[test]
fn volumes_are_strictly_serializable() {
    calm().holds("volumes_are_strictly_serializable");
}

/// V1 to V6: any death of the node.
#[test]
fn volumes_survive_deaths_of_their_node() {
    let name = "volumes_survive_deaths_of_their_node";
    dying().holds(name);
    Scenario {
        fault_profile: FaultProfile::Stormy,
        ..dying()
    }
    .holds(name);
}

/// V1 to V6: what was not durable is lost, and nothing else.
#[test]
fn volumes_survive_losses_of_their_store() {
    losing().holds("volumes_survive_losses_of_their_store");
}

/// V1 to V6: a replaced node decides nothing.
#[test]
fn volumes_survive_a_replaced_node() {
    replaced().holds("volumes_survive_a_replaced_node");
}

/// V2: snapshots stay while versions are collected.
#[test]
fn snapshots_of_volumes_outlive_collection() {
    slow().holds("snapshots_of_volumes_outlive_collection");
}

/// V1 to V7: reads from leased memory are strictly serializable, whatever happens to the node.
#[test]
fn leased_reads_are_strictly_serializable() {
    let name = "leased_reads_are_strictly_serializable";
    leased().holds(name);
    for faults in [dying(), replaced(), losing()] {
        Scenario {
            disasters: faults.disasters,
            ..leased()
        }
        .holds(name);
    }
}

/// V7, broken: a commit is ordered before the recall of leases has ended.
#[test]
fn ordering_before_a_recall_has_ended_is_caught() {
    let scenario = leased().without(Broken::AnswersBeforeRecall);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// V7, broken: leases are granted while a commit is under way.
#[test]
fn granting_leases_during_a_recall_is_caught() {
    let scenario = leased().without(Broken::GrantsDuringRecall);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// V7, broken: a successor does not wait for the leases of its predecessor.
#[test]
fn forgetting_leases_of_a_predecessor_is_caught() {
    let scenario = Scenario {
        disasters: replaced().disasters,
        ..leased()
    };
    let scenario = scenario.without(Broken::ForgetsLeasesOfPredecessor);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// The same seed gives the same run.
#[test]
fn runs_of_volumes_replay() {
    let scenario = losing();
    for seed in 0..5 {
        let (one, other) = (scenario.run(seed), scenario.run(seed));
        assert_eq!(one.trace_hash, other.trace_hash, "seed {seed}");
    }
}

/// V3, broken.
#[test]
fn forgetting_proposal_ids_is_caught() {
    let scenario = calm().without(Broken::ForgetsProposalIds);
    scenario.is_caught("V3", SEEDS_UNTIL_CAUGHT);
}

/// V1, broken: ranges are not validated.
#[test]
fn forgetting_ranges_is_caught() {
    let scenario = calm().without(Broken::ForgetsRanges);
    scenario.is_caught("V1", SEEDS_UNTIL_CAUGHT);
}

/// V1, broken: numbers are compared as of the snapshot.
#[test]
fn comparing_numbers_at_the_snapshot_is_caught() {
    let scenario = calm().without(Broken::ComparesNumbersAtSnapshot);
    scenario.is_caught("V1", SEEDS_UNTIL_CAUGHT);
}

/// V6, broken: the log is trimmed before its slots are installed.
#[test]
fn trimming_before_installing_is_caught() {
    let scenario = dying().without(Broken::TrimsBeforeInstalling);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// V1, broken: reads are not validated.
#[test]
fn not_validating_reads_of_volumes_is_caught() {
    let scenario = calm().without(Broken::SkipsValidation);
    scenario.is_caught("V1", SEEDS_UNTIL_CAUGHT);
}

/// V4, broken: readers are validated.
#[test]
fn validating_readers_of_volumes_is_caught() {
    let scenario = calm().without(Broken::ValidatesReaders);
    scenario.is_caught("V4", SEEDS_UNTIL_CAUGHT);
}

/// V5, broken: writes are validated like reads.
#[test]
fn validating_writes_of_volumes_is_caught() {
    let scenario = calm().without(Broken::ValidatesWrites);
    scenario.is_caught("V5", SEEDS_UNTIL_CAUGHT);
}

/// V1, broken: the log of a volume is taken over without a seal.
#[test]
fn a_volume_that_does_not_seal_is_caught() {
    let scenario = replaced().without(Broken::VolumeDoesNotSeal);
    scenario.is_caught("", SEEDS_UNTIL_CAUGHT);
}

/// V6, broken: a replaced node still writes the installed state.
#[test]
fn installing_behind_a_successor_is_caught() {
    let scenario = replaced().without(Broken::InstallsBehindSuccessor);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// V1, broken: old proposals are decided without the change rows.
#[test]
fn deciding_old_proposals_without_change_rows_is_caught() {
    let scenario = dying().without(Broken::SkipsChangeRows);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// V2, broken: slots that the store has lost are still snapshots.
#[test]
fn reading_at_lost_slots_is_caught() {
    let scenario = losing().without(Broken::ForgetsLostSlots);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}

/// V6, broken: externalizing does not wait.
#[test]
fn externalizing_nothing_of_volumes_is_caught() {
    let scenario = losing().without(Broken::AnswersBeforeDurable);
    scenario.is_caught("V6", SEEDS_UNTIL_CAUGHT);
}

/// V2, broken: versions of snapshots are collected.
#[test]
fn collecting_snapshots_of_volumes_is_caught() {
    let scenario = slow().without(Broken::CollectsAboveHorizon);
    scenario.is_caught("V2", SEEDS_UNTIL_CAUGHT);
}

/// V2, broken: versions that a pin reads are collected.
#[test]
fn collecting_pinned_versions_of_volumes_is_caught() {
    let scenario = slow().without(Broken::CollectsPinned);
    scenario.is_caught("V", SEEDS_UNTIL_CAUGHT);
}
