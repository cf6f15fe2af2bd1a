//! T1 to T7, T9, P6: values so large that they lie in chunks, and buffers so small that what is left leaves them early, on
//! nodes that die anywhere; each with the variant that drops the rule.

use simulation::{
    faults::Weather,
    transactions::{
        scenario::{Disaster, Scenario},
        workload::Mix,
    },
};
use transactions::broken::Broken;

use super::{SEEDS_UNTIL_CAUGHT, replaced, small};

/// Transactions whose values go into two chunks or into their items, by the length of their names, and leave memory once
/// there is more than one of them. Keys are written again within a transaction.
fn large(weather: Weather) -> Scenario {
    let mut scenario = small(weather);
    scenario.mix.functions = 3;
    scenario.mix.keys = 3;
    scenario.mix.transactions = 18;
    with_small_limits(scenario)
}

pub(super) fn with_small_limits(mut scenario: Scenario) -> Scenario {
    scenario.config.inline_bytes_max = 50;
    scenario.config.chunk_bytes_max = 40;
    scenario.config.attempt_buffer_bytes_max = 60;
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

fn dying(weather: Weather) -> Scenario {
    use Disaster::{Everything, Node, Store};
    Scenario {
        disasters: vec![Node, Everything, Node, Store],
        ..large(weather)
    }
}

/// T1 to T5: however they are interleaved.
#[test]
fn large_values_keep_the_promises() {
    for weather in [
        Weather::Calm,
        Weather::Slow,
        Weather::Stormy,
        Weather::Paused,
    ] {
        large(weather).holds("large_values_keep_the_promises");
    }
}

/// T4, T5, T7, T9: wherever the node dies, or its store with it.
#[test]
fn large_values_come_whole_or_not_at_all_on_nodes_that_die() {
    for weather in [Weather::Slow, Weather::Stormy] {
        dying(weather).holds("large_values_come_whole_or_not_at_all_on_nodes_that_die");
    }
}

/// T4, T9: whoever was taken for dead goes on writing ahead for a while.
#[test]
fn what_a_node_taken_for_dead_writes_ahead_goes() {
    let mut scenario = with_small_limits(replaced());
    scenario.mix.transactions /= 2;
    scenario.holds("what_a_node_taken_for_dead_writes_ahead_goes");
}

/// T6, T9: with windows that pass while transactions run.
#[test]
fn chunks_are_collected_while_others_read() {
    let mut scenario = dying(Weather::Slow);
    scenario.config.retry_window = std::time::Duration::from_secs(1);
    scenario.holds("chunks_are_collected_while_others_read");
}

/// T4, T7, T9: nodes that are told to stop, in the middle of everything, and are not searched for if they could.
#[test]
fn nodes_that_leave_in_order_leave_nothing_unnamed() {
    departing().holds("nodes_that_leave_in_order_leave_nothing_unnamed");
}

fn departing() -> Scenario {
    let scenario = large(Weather::Slow);
    let mix = Mix {
        clients: 6,
        transactions: 18,
        ..scenario.mix
    };
    Scenario {
        mix,
        disasters: vec![Disaster::Departure; 3],
        ..scenario
    }
}

/// T9, broken.
#[test]
fn leaving_before_all_is_done_is_caught() {
    departing()
        .without(Broken::LeavesAtOnce)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}

/// P6, broken.
#[test]
fn writing_the_record_before_the_chunks_is_caught() {
    large(Weather::Slow)
        .without(Broken::RecordBeforeChunks)
        .is_caught("record", SEEDS_UNTIL_CAUGHT);
}

/// T7, broken.
#[test]
fn writing_ahead_without_a_log_is_caught() {
    dying(Weather::Slow)
        .without(Broken::SpillsUnlogged)
        .is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn a_collector_that_forgets_chunks_is_caught() {
    large(Weather::Slow)
        .without(Broken::ForgetsChunks)
        .is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn keeping_replaced_chunks_is_caught() {
    let scenario = large(Weather::Slow).without(Broken::KeepsReplacedChunks);
    scenario.is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}
