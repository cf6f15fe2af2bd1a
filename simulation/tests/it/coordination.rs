//! Rules C-1 to C-6, and what the paper's appendix A asks for, over seeds of faults.

use std::time::Duration;

use coordination::{broken::Broken, config::DataPlacement};
use simulation::{
    faults::Weather,
    house::Instances,
    scenario::{
        Scenario, configuration, contended, ephemerals, everything, patient, seeds, watched,
    },
};

/// How many seeds a broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 400;

fn everything_in(weather: Weather) -> Scenario {
    Scenario {
        weather,
        mix: everything,
        ..Scenario::default()
    }
}

/// C1, C2, C3, C4: appendix A holds when nothing fails.
#[test]
fn clients_see_one_order_in_calm_weather() {
    everything_in(Weather::Calm).holds("clients_see_one_order_in_calm_weather");
}

/// C1, C2, C3, C4: however calls interleave.
#[test]
fn clients_see_one_order_when_calls_interleave() {
    everything_in(Weather::Slow).holds("clients_see_one_order_when_calls_interleave");
}

/// C1, C2, C3, C4: functions die between any two steps.
#[test]
fn clients_see_one_order_when_functions_die() {
    everything_in(Weather::Stormy).holds("clients_see_one_order_when_functions_die");
}

/// C5: everything dies at once; what was acknowledged is there.
#[test]
fn what_was_acknowledged_survives_the_death_of_everything() {
    let scenario = Scenario {
        crashes: 2,
        one_break_in: 6,
        ..everything_in(Weather::Slow)
    };
    scenario.holds("what_was_acknowledged_survives_the_death_of_everything");
}

fn contention() -> Scenario {
    Scenario {
        weather: Weather::Paused,
        mix: contended,
        requests: 6,
        machines: 3,
        ..Scenario::default()
    }
}

/// C-1.
#[test]
fn a_writer_that_stalls_beyond_its_lock_changes_nothing_twice() {
    contention().holds("a_writer_that_stalls_beyond_its_lock_changes_nothing_twice");
}

/// C-1, broken.
#[test]
fn breaking_locks_unasked_is_caught() {
    contention()
        .without(Broken::BreaksLocksUnasked)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn redelivery() -> Scenario {
    Scenario {
        weather: Weather::Stormy,
        mix: contended,
        ..Scenario::default()
    }
}

/// C-2.
#[test]
fn a_redelivered_request_is_decided_once() {
    redelivery().holds("a_redelivered_request_is_decided_once");
}

/// C-2, broken.
#[test]
fn forgetting_request_numbers_is_caught() {
    redelivery()
        .without(Broken::ForgetsRequestNumbers)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-3, broken; the rule itself is held by every scenario above.
#[test]
fn numbering_updates_as_they_arrive_is_caught() {
    redelivery()
        .without(Broken::IgnoresPredecessors)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-3, C3, broken: a refusal is as much a part of the one order as what it was refused for.
#[test]
fn numbering_refusals_before_what_refused_them_is_caught() {
    everything_in(Weather::Slow)
        .without(Broken::ForgetsCausesOfRefusals)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-4, broken: what was numbered by a distributor that died is applied by nobody.
#[test]
fn taking_the_log_for_applied_is_caught() {
    everything_in(Weather::Stormy)
        .without(Broken::AssumesTheLogIsApplied)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-4, broken.
#[test]
fn answering_before_applying_is_caught() {
    everything_in(Weather::Slow)
        .without(Broken::AnswersBeforeApplying)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn notifications() -> Scenario {
    Scenario {
        weather: Weather::Slow,
        mix: configuration,
        ..Scenario::default()
    }
}

/// C-5: nothing newer is seen before the notification.
#[test]
fn a_notification_comes_before_anything_newer() {
    notifications().holds("a_notification_comes_before_anything_newer");
}

/// C-5, broken.
#[test]
fn reading_ahead_of_the_view_is_caught() {
    notifications()
        .without(Broken::ReadsAheadOfTheView)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn setting_watches_again() -> Scenario {
    Scenario {
        clients: 4,
        requests: 24,
        one_break_in: 2,
        mix: watched,
        weather: Weather::Slow,
        ..Scenario::default()
    }
}

/// C4: watches that are set again after a reconnect fire once, for what was missed or for what comes next,
/// however many they are and whatever changes meanwhile.
#[test]
fn a_watch_that_is_set_again_fires_once() {
    setting_watches_again().holds("a_watch_that_is_set_again_fires_once");
}

/// C4, broken.
#[test]
fn looking_again_at_watches_that_are_set_is_caught() {
    setting_watches_again()
        .without(Broken::ForgetsRestoredWatches)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn reconnecting() -> Scenario {
    Scenario {
        weather: Weather::Stormy,
        one_break_in: 2,
        window_max: 4,
        ..Scenario::default()
    }
}

/// C-6: what an old connection left in the queue is refused once the new one is attached.
#[test]
fn an_old_connection_writes_nothing_after_the_new_one_is_attached() {
    reconnecting().holds("an_old_connection_writes_nothing_after_the_new_one_is_attached");
}

/// C-6, broken.
#[test]
fn accepting_requests_of_old_connections_is_caught() {
    let broken = reconnecting().without(Broken::AcceptsOldAttaches);
    broken.is_caught_by("updates are answered in order", SEEDS_UNTIL_CAUGHT);
}

/// A failing seed reproduces exactly.
#[test]
fn one_seed_gives_one_trace() {
    let scenario = Scenario {
        crashes: 1,
        ..everything_in(Weather::Stormy)
    };
    for seed in seeds().take(10) {
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

fn kept_alive() -> Scenario {
    Scenario {
        weather: Weather::Slow,
        mix: patient,
        requests: 24,
        window_max: 1,
        ..Scenario::default()
    }
}

/// C6, C-6: judged silent only after a whole timeout of silence.
#[test]
fn a_session_that_is_used_does_not_expire() {
    kept_alive()
        .expiring_nobody()
        .holds("a_session_that_is_used_does_not_expire");
}

/// C-6, broken.
#[test]
fn ending_sessions_at_their_first_silence_is_caught() {
    kept_alive()
        .expiring_nobody()
        .without(Broken::ExpiresAtFirstSilence)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn cold() -> Scenario {
    let instances = Instances::ColdHeartbeats;
    Scenario {
        mix: ephemerals,
        requests: 8,
        one_break_in: 4,
        instances,
        ..Scenario::default()
    }
}

/// C6, C-6: also where each run of the heartbeat is the first of its instance, and on any machine.
#[test]
fn silent_sessions_end_where_no_heartbeat_stays_warm() {
    for weather in [Weather::Slow, Weather::Stormy] {
        Scenario { weather, ..cold() }.holds("silent_sessions_end_where_no_heartbeat_stays_warm");
    }
}

/// C6, C-6: and those that are used do not.
#[test]
fn a_session_that_is_used_does_not_expire_where_no_heartbeat_stays_warm() {
    let scenario = Scenario {
        machines: 3,
        instances: Instances::ColdHeartbeats,
        ..kept_alive()
    };
    scenario
        .expiring_nobody()
        .holds("a_session_that_is_used_does_not_expire_where_no_heartbeat_stays_warm");
}

/// C-6, broken.
#[test]
fn remembering_silence_in_an_instance_is_caught() {
    cold()
        .without(Broken::KeepsSilenceInTheInstance)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C6: what a silent session owned is gone, in one zxid; `checks` finds what has outlived its session.
#[test]
fn a_silent_session_ends_with_its_ephemerals() {
    let weather = Weather::Stormy;
    let scenario = Scenario {
        mix: ephemerals,
        weather,
        requests: 8,
        one_break_in: 4,
        ..Scenario::default()
    };
    scenario.holds("a_silent_session_ends_with_its_ephemerals");
}

/// C6, C-1: also where a writer stalls until others have broken its locks and made the znode again.
#[test]
fn a_writer_that_stalls_forgets_nobodys_ephemerals() {
    let scenario = Scenario {
        mix: ephemerals,
        weather: Weather::Paused,
        one_break_in: 4,
        machines: 3,
        ..Scenario::default()
    };
    scenario.holds("a_writer_that_stalls_forgets_nobodys_ephemerals");
}

/// Data that is kept, and travels, in objects: nothing is read that is not there, nothing is mixed up. Fewer requests than
/// elsewhere, since objects take port calls of their own.
fn in_objects(placement: DataPlacement, weather: Weather) -> Scenario {
    let mut scenario = Scenario {
        crashes: 1,
        requests: 5,
        ..everything_in(weather)
    };
    scenario.config.placement = placement;
    scenario.config.message_payload_bytes_max = 2;
    scenario.config.temporary_sweep_period = Duration::ZERO;
    scenario
}

/// C1, C3: the user store in objects.
#[test]
fn data_in_objects_is_as_good_as_data_in_items() {
    for weather in [Weather::Slow, Weather::Stormy] {
        in_objects(DataPlacement::Objects, weather)
            .holds("data_in_objects_is_as_good_as_data_in_items");
    }
}

/// C1, C3: the user store in items or objects by size; the clients' data is three or four bytes long.
#[test]
fn data_in_items_and_objects_by_size_is_as_good() {
    let placement = DataPlacement::Hybrid {
        inline_bytes_max: 3,
    };
    in_objects(placement, Weather::Stormy).holds("data_in_items_and_objects_by_size_is_as_good");
}

fn travelling_in_objects() -> Scenario {
    Scenario {
        one_break_in: 2,
        window_max: 4,
        ..in_objects(DataPlacement::KeyValue, Weather::Stormy)
    }
}

/// P5: what a connection that was replaced has left behind is removed, but nothing that is still to be applied.
#[test]
fn temporary_objects_are_removed_once_nobody_can_need_them() {
    travelling_in_objects().holds("temporary_objects_are_removed_once_nobody_can_need_them");
}

/// P5, broken.
#[test]
fn removing_temporary_objects_that_are_not_applied_is_caught() {
    travelling_in_objects()
        .without(Broken::SweepsUnappliedObjects)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C7: with no session open, an hour passes without one call to any port.
#[test]
fn an_hour_without_sessions_costs_nothing() {
    for seed in seeds().take(20) {
        let outcome = everything_in(Weather::Slow).run(seed);
        assert_eq!(outcome.idle_port_calls, 0, "seed {seed}");
    }
}
