//! T13: effects follow their commit, over seeds of deaths and faults; each rule with the mutant
//! that drops it.

use simulation::transactions::scenario::Disaster;

use super::*;

/// Three effects for each transaction, messages and an invocation, on a node that dies at any
/// point.
fn sending(fault_profile: FaultProfile) -> Scenario {
    let dying = dying(fault_profile);
    let mix = Mix {
        effects: 3,
        transactions: 15,
        ..dying.mix
    };
    Scenario { mix, ..dying }
}

/// The store falls back to its durable state, with or without its node.
fn losing() -> Scenario {
    use Disaster::{Everything, Store};
    Scenario {
        disasters: vec![Store, Everything, Store],
        ..sending(FaultProfile::Slow)
    }
}

/// T13.
#[test]
fn effects_follow_their_commit() {
    for fault_profile in [FaultProfile::Calm, FaultProfile::Slow, FaultProfile::Stormy] {
        sending(fault_profile).holds("effects_follow_their_commit");
    }
    losing().holds("effects_follow_their_commit");
}

/// T13: large effects are stored in parts, and a transaction may consist of effects alone.
#[test]
fn large_effects_follow_their_commit_too() {
    let mut scenario = sending(FaultProfile::Slow);
    scenario.config.effects_inline_bytes_max = 0;
    scenario.mix.writes = 0;
    scenario.holds("large_effects_follow_their_commit_too");
}

/// T13: also effects of a node that is considered dead and runs on beside its successor.
#[test]
fn two_nodes_that_send_the_same_effect_send_it_under_one_id() {
    let replaced = replaced();
    let mix = Mix {
        effects: 3,
        clients: 3,
        transactions: 24,
        ..replaced.mix
    };
    Scenario { mix, ..replaced }.holds("two_nodes_that_send_the_same_effect_send_it_under_one_id");
}

/// T13, broken.
#[test]
fn sending_before_the_commit_is_durable_is_caught() {
    losing()
        .without(Broken::SendsBeforeDurable)
        .is_caught("uncommitted", SEEDS_UNTIL_CAUGHT);
}

/// T13, broken.
#[test]
fn forgetting_unsent_effects_of_a_dead_node_is_caught() {
    sending(FaultProfile::Slow)
        .without(Broken::ForgetsUnsent)
        .is_caught("unsent", SEEDS_UNTIL_CAUGHT);
}

/// T13, broken.
#[test]
fn giving_effects_new_ids_is_caught() {
    sending(FaultProfile::Slow)
        .without(Broken::NamesEffectsAnew)
        .is_caught("miscounted", SEEDS_UNTIL_CAUGHT);
}
