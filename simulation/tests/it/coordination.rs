//! Rules C-1 to C-6, and the guarantees of the paper's appendix A, over seeds of faults.

use std::time::Duration;

use coordination::{broken::Broken, config::DataPlacement};
use simulation::{
    cluster::Instances,
    faults::FaultProfile,
    scenario::{
        Scenario, configuration, contended, ephemerals, everything, multis, patient, seeds,
        watched, watched_for_long,
    },
};

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 400;

fn everything_in(fault_profile: FaultProfile) -> Scenario {
    Scenario {
        fault_profile,
        mix: everything,
        ..Scenario::default()
    }
}

/// C1, C2, C3, C4: appendix A holds without faults.
#[test]
fn clients_see_one_order_without_faults() {
    everything_in(FaultProfile::Calm).holds("clients_see_one_order_without_faults");
}

/// C1, C2, C3, C4: with any interleaving of calls.
#[test]
fn clients_see_one_order_when_calls_interleave() {
    everything_in(FaultProfile::Slow).holds("clients_see_one_order_when_calls_interleave");
}

/// C1, C2, C3, C4: functions die between any two steps.
#[test]
fn clients_see_one_order_when_functions_die() {
    everything_in(FaultProfile::Stormy).holds("clients_see_one_order_when_functions_die");
}

fn crashing() -> Scenario {
    Scenario {
        crashes: 2,
        one_break_in: 6,
        ..everything_in(FaultProfile::Slow)
    }
}

/// C5: after a crash of everything, acknowledged updates are present.
#[test]
fn acknowledged_updates_survive_a_crash_of_everything() {
    crashing().holds("acknowledged_updates_survive_a_crash_of_everything");
}

/// C5, broken, whether or not a request is applied with its decision.
#[test]
fn answering_before_durable_is_caught() {
    for is_direct in [false, true] {
        let mut scenario = crashing().without(Broken::AnswersBeforeDurable);
        scenario.config.locks.is_optimistic = is_direct;
        scenario.config.applies_directly = is_direct;
        scenario.is_caught(SEEDS_UNTIL_CAUGHT);
    }
}

fn multis_in(fault_profile: FaultProfile) -> Scenario {
    Scenario {
        fault_profile,
        mix: multis,
        machines: 2,
        ..Scenario::default()
    }
}

/// C1, C2, C3, C4: multis are whole, with any interleaving of calls and when functions die.
#[test]
fn multis_are_whole_at_one_zxid() {
    multis_in(FaultProfile::Slow).holds("multis_are_whole_at_one_zxid");
    multis_in(FaultProfile::Stormy).holds("multis_are_whole_at_one_zxid");
}

/// C-1, broken.
#[test]
fn installing_half_of_a_multi_is_caught() {
    multis_in(FaultProfile::Calm)
        .without(Broken::InstallsHalfOfADecision)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn contention() -> Scenario {
    Scenario {
        fault_profile: FaultProfile::Paused,
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
        fault_profile: FaultProfile::Stormy,
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

/// C-3, C3, broken: a refusal has its place in the one order, after the change that it is based on.
#[test]
fn numbering_refusals_before_their_cause_is_caught() {
    everything_in(FaultProfile::Slow)
        .without(Broken::ForgetsCausesOfRefusals)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-4, broken: an entry numbered by a distributor that died is never applied.
#[test]
fn taking_the_log_for_applied_is_caught() {
    everything_in(FaultProfile::Stormy)
        .without(Broken::AssumesTheLogIsApplied)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-4, broken: an entry that was applied with its decision is never announced.
#[test]
fn announcing_direct_slots_once_is_caught() {
    let mut scenario = everything_in(FaultProfile::Stormy).without(Broken::AnnouncesOnce);
    (
        scenario.config.locks.is_optimistic,
        scenario.config.applies_directly,
    ) = (true, true);
    scenario.is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-1, broken, without locks.
#[test]
fn deciding_on_outdated_states_is_caught() {
    let mut scenario = everything_in(FaultProfile::Slow).without(Broken::DecidesOnOutdatedStates);
    scenario.config.locks.is_optimistic = true;
    scenario.is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-4, broken.
#[test]
fn answering_before_applying_is_caught() {
    everything_in(FaultProfile::Slow)
        .without(Broken::AnswersBeforeApplying)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn notifications() -> Scenario {
    Scenario {
        fault_profile: FaultProfile::Slow,
        mix: configuration,
        ..Scenario::default()
    }
}

/// C-5: no newer state is visible before the notification.
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
        fault_profile: FaultProfile::Slow,
        ..Scenario::default()
    }
}

/// C4: watches that are set again after a reconnect fire once, for a missed change or for the next
/// one, with any number of watches and changes.
#[test]
fn a_watch_that_is_set_again_fires_once() {
    setting_watches_again().holds("a_watch_that_is_set_again_fires_once");
}

/// C4, broken.
#[test]
fn rereading_watches_that_are_set_is_caught() {
    setting_watches_again()
        .without(Broken::ForgetsRestoredWatches)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

fn watching_for_long() -> Scenario {
    Scenario {
        clients: 4,
        requests: 24,
        one_break_in: 4,
        mix: watched_for_long,
        fault_profile: FaultProfile::Slow,
        ..Scenario::default()
    }
}

/// C4: persistent and recursive watches report each change once, before anything newer, and stay
/// over reconnects.
#[test]
fn a_persistent_watch_reports_every_change() {
    watching_for_long().holds("a_persistent_watch_reports_every_change");
}

/// C4, broken.
#[test]
fn persistent_watches_that_miss_changes_are_caught() {
    for rule in [
        Broken::FiresPersistentWatchesOnce,
        Broken::MissesNewDescendants,
        Broken::ForgetsPersistentWatches,
    ] {
        watching_for_long()
            .without(rule)
            .is_caught(SEEDS_UNTIL_CAUGHT);
    }
}

fn reconnecting() -> Scenario {
    Scenario {
        fault_profile: FaultProfile::Stormy,
        one_break_in: 2,
        window_max: 4,
        ..Scenario::default()
    }
}

/// C-6: requests that an old connection left in the queue are refused once the new one is attached.
#[test]
fn an_old_connection_writes_nothing_after_the_new_one_is_attached() {
    reconnecting().holds("an_old_connection_writes_nothing_after_the_new_one_is_attached");
}

/// C-6, broken.
#[test]
fn accepting_requests_of_old_connections_is_caught() {
    let broken = reconnecting().without(Broken::AcceptsOldAttaches);
    broken.is_caught_by("updates are answered, in order", SEEDS_UNTIL_CAUGHT);
}

/// A failing seed reproduces exactly.
#[test]
fn one_seed_gives_one_trace() {
    let scenario = Scenario {
        crashes: 1,
        ..everything_in(FaultProfile::Stormy)
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
        fault_profile: FaultProfile::Slow,
        mix: patient,
        requests: 24,
        window_max: 1,
        ..Scenario::default()
    }
}

/// C6, C-6: a session is condemned only after a whole timeout without a heartbeat.
#[test]
fn a_session_that_is_used_does_not_expire() {
    kept_alive()
        .without_expiry()
        .holds("a_session_that_is_used_does_not_expire");
}

/// C-6, broken.
#[test]
fn ending_sessions_at_their_first_silence_is_caught() {
    kept_alive()
        .without_expiry()
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

/// C6, C-6: the same if each run of the heartbeat has a new instance, on any machine.
#[test]
fn silent_sessions_end_where_no_heartbeat_stays_warm() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        Scenario {
            fault_profile,
            ..cold()
        }
        .holds("silent_sessions_end_where_no_heartbeat_stays_warm");
    }
}

/// C6, C-6: and sessions in use stay alive.
#[test]
fn a_session_that_is_used_does_not_expire_where_no_heartbeat_stays_warm() {
    let scenario = Scenario {
        machines: 3,
        instances: Instances::ColdHeartbeats,
        ..kept_alive()
    };
    scenario
        .without_expiry()
        .holds("a_session_that_is_used_does_not_expire_where_no_heartbeat_stays_warm");
}

/// C-6, broken.
#[test]
fn remembering_silence_in_an_instance_is_caught() {
    cold()
        .without(Broken::KeepsSilenceInTheInstance)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C6: the ephemerals of an expired session are deleted at one zxid; `checks` finds those that
/// outlive their session.
#[test]
fn a_silent_session_ends_with_its_ephemerals() {
    let fault_profile = FaultProfile::Stormy;
    let scenario = Scenario {
        mix: ephemerals,
        fault_profile,
        requests: 8,
        one_break_in: 4,
        ..Scenario::default()
    };
    scenario.holds("a_silent_session_ends_with_its_ephemerals");
}

/// C6, C-1: the same if a writer stalls until others have broken its locks and created the znode
/// again.
#[test]
fn a_stalled_writer_forgets_no_ephemerals() {
    let scenario = Scenario {
        mix: ephemerals,
        fault_profile: FaultProfile::Paused,
        one_break_in: 4,
        machines: 3,
        ..Scenario::default()
    };
    scenario.holds("a_stalled_writer_forgets_no_ephemerals");
}

/// Data stored and sent in objects: every read finds its data. There are fewer requests than
/// elsewhere, because objects cost port calls of their own.
fn in_objects(placement: DataPlacement, fault_profile: FaultProfile) -> Scenario {
    let mut scenario = Scenario {
        crashes: 1,
        requests: 5,
        ..everything_in(fault_profile)
    };
    scenario.config.placement = placement;
    scenario.config.message_payload_bytes_max = 2;
    scenario.config.temporary_sweep_period = Duration::ZERO;
    scenario
}

/// C1, C3: the user store in objects.
#[test]
fn data_in_objects_is_as_good_as_data_in_items() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        in_objects(DataPlacement::Objects, fault_profile)
            .holds("data_in_objects_is_as_good_as_data_in_items");
    }
}

/// C1, C3: the user store in items or objects by size; the clients' data is three or four bytes
/// long.
#[test]
fn data_in_items_and_objects_by_size_is_as_good() {
    let placement = DataPlacement::Hybrid {
        inline_bytes_max: 3,
    };
    in_objects(placement, FaultProfile::Stormy)
        .holds("data_in_items_and_objects_by_size_is_as_good");
}

fn travelling_in_objects() -> Scenario {
    Scenario {
        one_break_in: 2,
        window_max: 4,
        ..in_objects(DataPlacement::KeyValue, FaultProfile::Stormy)
    }
}

/// P5: objects that a replaced connection left are removed, but none that is still to be applied.
#[test]
fn temporary_objects_are_removed_once_no_request_needs_them() {
    travelling_in_objects().holds("temporary_objects_are_removed_once_no_request_needs_them");
}

/// P5, broken.
#[test]
fn removing_temporary_objects_that_are_not_applied_is_caught() {
    travelling_in_objects()
        .without(Broken::SweepsUnappliedObjects)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C7: with no session open, an hour passes without a call to any port.
#[test]
fn an_hour_without_sessions_costs_nothing() {
    for seed in seeds().take(20) {
        let outcome = everything_in(FaultProfile::Slow).run(seed);
        assert_eq!(outcome.idle_port_calls, 0, "seed {seed}");
    }
}
