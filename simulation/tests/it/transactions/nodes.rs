//! T2, T4, T5, T6, T9, T10, T14 with several nodes, which die at any point, are partitioned, and
//! learn of each other late.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::{Chance, World};
use simulation::{
    faults::FaultProfile,
    transactions::{
        client::Habits,
        cluster::{Among, Cluster, Failure},
        crashable::Life,
        ensemble::Ensemble,
        network::{Network, Trouble},
        scenario::{Disaster, Scenario, seeds},
        workload::{Mix, key},
    },
};
use transactions::{
    Error,
    broken::Broken,
    model::{Begin, Begun, Call, TransactionId},
};

use super::SEEDS_UNTIL_CAUGHT;

/// When an acknowledged commit is visible everywhere: without faults, and with a faulty node.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
pub(super) const SEEN_WITHIN_LOSSES: Duration = Duration::from_secs(10);

/// The most seeds of each scenario, unless `NODES_SEEDS` is higher: each takes a quarter of a
/// second, too long for a thousand.
const SEEDS_MAX: u64 = 20;

pub(super) fn holds(scenario: &Scenario, test: &str) {
    let seeds_max = simulated::number("NODES_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    scenario.holds_for(asked.start..asked.end.min(asked.start + seeds_max), test);
}

/// Small transactions on two nodes that both serve, by clients that move between them.
pub(super) fn two(fault_profile: FaultProfile) -> Scenario {
    let habits = Habits {
        one_named_in: 3,
        carries_after: true,
        pause: Duration::from_millis(1_500),
        ..Habits::default()
    };
    let mix = Mix {
        clients: 3,
        transactions: 24,
        keys: 4,
        ..Scenario::default().mix
    };
    Scenario {
        nodes: 2,
        habits,
        mix,
        fault_profile,
        seen_within: Some(SEEN_WITHIN),
        ..Scenario::default()
    }
}

/// T10, T5, T14: without faults.
#[test]
fn any_node_answers() {
    for fault_profile in [FaultProfile::Calm, FaultProfile::Slow] {
        holds(&two(fault_profile), "any_node_answers");
    }
}

/// T10: with any node for each call.
#[test]
fn a_call_finds_the_node_of_its_transaction() {
    for mut scenario in [
        two(FaultProfile::Slow),
        dying(FaultProfile::Slow),
        divided(),
    ] {
        scenario.habits.wanders = true;
        scenario.habits.patience = Duration::ZERO;
        scenario.mix.effects = 2;
        // Calls that change nodes cost more port calls, whose number per run is bounded.
        scenario.mix.transactions = scenario.mix.transactions.min(24);
        holds(&scenario, "a_call_finds_the_node_of_its_transaction");
    }
}

/// Three nodes on a network that loses, duplicates and delays messages.
fn troubled() -> Scenario {
    let network = Trouble {
        one_lost_in: 8,
        one_doubled_in: 8,
        one_late_in: 12,
    };
    Scenario {
        nodes: 3,
        network,
        seen_within: Some(SEEN_WITHIN_LOSSES),
        ..two(FaultProfile::Slow)
    }
}

/// T2, T5, T6.
#[test]
fn lost_announcements_hide_nothing() {
    holds(&troubled(), "lost_announcements_hide_nothing");
}

/// 10.2, broken: the slots before an announced one are not requested.
#[test]
fn passing_over_gaps_is_caught() {
    forgetful()
        .without(Broken::AdvancesOverGaps)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// T5, T14, broken: prefetched announcements count as applied.
#[test]
fn counting_prefetched_announcements_as_applied_is_caught() {
    two(FaultProfile::Slow)
        .without(Broken::HearsBeforeMerging)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// Nodes that keep so few of their commits in memory that others must read them in the store.
fn forgetful() -> Scenario {
    let mut scenario = troubled();
    scenario.config.recent_bytes_max = 600;
    scenario
}

/// T5.
#[test]
fn commits_that_a_node_has_forgotten_are_read_in_the_store() {
    holds(
        &forgetful(),
        "commits_that_a_node_has_forgotten_are_read_in_the_store",
    );
}

/// Three nodes that die at any point, and others that take their places.
fn dying(fault_profile: FaultProfile) -> Scenario {
    Scenario {
        nodes: 3,
        disasters: vec![Disaster::OneOfMany; 3],
        seen_within: Some(SEEN_WITHIN_LOSSES),
        ..two(fault_profile)
    }
}

/// T2, T4, T5, T6, T9, T10.
#[test]
fn one_of_several_dies() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        holds(&dying(fault_profile), "one_of_several_dies");
    }
}

/// T9, broken: no node searches for the remains of a node that died during a search.
#[test]
fn forgetting_nodes_that_die_during_a_search_is_caught() {
    let mut scenario = dying(FaultProfile::Stormy);
    scenario.disasters = vec![Disaster::OneOfMany; 6];
    scenario.habits.chooses_all_names = true;
    // Otherwise the retention buckets of ids are listed more often, and housekeeping with them.
    scenario.config.random_window = scenario.config.named_window;
    scenario
        .without(Broken::ForgetsWhoEndsMeanwhile)
        .is_caught("leftover", 5 * SEEDS_UNTIL_CAUGHT);
}

/// T-2, broken.
#[test]
fn following_the_clock_is_caught() {
    forgetful()
        .without(Broken::FollowsClockNotSlots)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// Clients that time out and ask another node, while nodes are partitioned.
fn divided() -> Scenario {
    let mut scenario = two(FaultProfile::Slow);
    scenario.disasters = vec![Disaster::Partition; 4];
    scenario.seen_within = Some(SEEN_WITHIN_LOSSES);
    scenario.habits.patience = Duration::from_millis(15);
    scenario.habits.pause = Duration::from_millis(800);
    scenario
}

/// T4, T-2.
#[test]
fn outcomes_reported_to_other_nodes_are_final() {
    holds(&divided(), "outcomes_reported_to_other_nodes_are_final");
}

/// Whether a commit takes effect though its client was told by another node that it is aborted. The
/// transaction's node was no longer a member by then, and its commit was in transit to the store
/// for that long.
async fn is_told_otherwise(seed: u64) -> bool {
    let world = World::new(seed);
    let network = Network::new(Rng::with_seed(seed), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(seed));
    let among = Among {
        network: network.clone(),
        ensemble,
        places: 2,
    };
    let cluster = Cluster::among(&world, Scenario::default().config, among);
    for place in 0..2 {
        assert!(cluster.boot_at(place, Life::default(), 0).await);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let [one, other] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    let begun = one.engine.begin(Begin::default()).await;
    let Begun::Open { id, attempt } = begun.expect("a calm world").value else {
        panic!("it is new")
    };
    let call = Call {
        id,
        attempt: Some(attempt),
    };
    one.engine
        .put(&call, key(0), Bytes::from_static(b"late"))
        .await
        .expect("a calm world");

    let ms = Duration::from_millis;
    let always = Chance::per_million(1_000_000);
    world.faults().delay(always, ms(4_800)..=ms(5_600));
    let committing = tokio::spawn({
        let (engine, call) = (one.engine.clone(), call.clone());
        async move { engine.commit(&call).await }
    });
    tokio::time::sleep(ms(1)).await;
    // The node that cleans up after the dead one takes a while, too.
    world.faults().delay(always, ms(20)..=ms(60));
    network.cut(&Among::address(0), &Among::address(1));
    cluster.seat_at(0).expect("a member").cut_off();
    let told = loop {
        match other.engine.commit(&call).await {
            Err(Error::Unavailable(_)) => tokio::time::sleep(ms(1)).await,
            told => break told,
        }
    };
    tokio::time::sleep(Duration::from_secs(20)).await;
    committing.abort();
    let shown = other
        .shown(other.engine.get_now(&key(0)))
        .await
        .expect("it serves");
    let counts = shown.is_some();
    assert!(
        counts || told.is_err(),
        "seed {seed}: what was acknowledged is lost"
    );
    counts && told.is_err()
}

/// T-2.
#[test]
fn the_outcome_of_a_commit_reported_by_another_node_is_final() {
    for seed in 0..40 {
        assert!(!simulated::run(is_told_otherwise(seed)), "seed {seed}");
    }
}

/// Two nodes whose clocks differ by seconds.
fn skewed() -> Scenario {
    Scenario {
        skew: Duration::from_secs(8),
        ..two(FaultProfile::Slow)
    }
}

/// T-1, T5, T14.
#[test]
fn clocks_that_differ_hide_nothing() {
    holds(&skewed(), "clocks_that_differ_hide_nothing");
}

/// T-1, broken.
#[test]
fn stamping_by_the_wall_clock_is_caught() {
    skewed()
        .without(Broken::StampsByWallClock)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// A node that reaches its clients and the store, but no other node.
fn cut_off() -> Scenario {
    let mut scenario = long_readers();
    scenario.disasters = vec![Disaster::CutOff; 2];
    scenario
}

/// T2, T5, T6, T10.
#[test]
fn a_node_that_is_cut_off_answers_no_more() {
    holds(&cut_off(), "a_node_that_is_cut_off_answers_no_more");
}

/// A node's answer long after it was partitioned from the members and the others, while these
/// continued.
async fn read_without_a_lease(broken: Option<Broken>) -> Result<Option<Bytes>, Failure> {
    let world = World::new(1);
    let mut config = Scenario::default().config;
    config.mutant = broken.into();
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let among = Among {
        network: network.clone(),
        ensemble,
        places: 2,
    };
    let cluster = Cluster::among(&world, config, among);
    for place in 0..2 {
        assert!(cluster.boot_at(place, Life::default(), 0).await);
    }
    let [one, other] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    let put = async |value: &'static [u8]| {
        let put = one.engine.put_now(key(0), Some(Bytes::from_static(value)));
        one.call(put).await.expect("a calm world");
    };
    put(b"first").await;
    other
        .shown(other.engine.get_now(&key(0)))
        .await
        .expect("a calm world");
    network.cut(&Among::address(0), &Among::address(1));
    cluster.seat_at(1).expect("a member").cut_off();
    tokio::time::sleep(Duration::from_secs(2)).await;
    put(b"second").await;
    other.shown(other.engine.get_now(&key(0))).await
}

/// T5: a partitioned node does not answer.
#[test]
fn no_node_answers_without_a_lease() {
    let read = simulated::run(read_without_a_lease(None));
    assert!(
        matches!(read, Err(Failure::Refused(Error::Unavailable(_)))),
        "{read:?}"
    );
}

/// 10.1, broken.
#[test]
fn answering_without_a_lease_is_caught() {
    let read = simulated::run(read_without_a_lease(Some(Broken::AnswersWithoutLease)));
    assert_eq!(
        read,
        Ok(Some(Bytes::from_static(b"first"))),
        "values that no other node shows"
    );
}

/// Slow transactions that read and write several of few keys, while others overwrite them at other
/// nodes.
fn long_readers() -> Scenario {
    let mut scenario = two(FaultProfile::Slow);
    scenario.nodes = 3;
    scenario.mix = Mix {
        reads: 2,
        writes: 2,
        keys: 4,
        clients: 4,
        transactions: 28,
        ..scenario.mix
    };
    scenario.habits.thinks = Duration::from_secs(1);
    scenario.habits.pause = Duration::from_millis(100);
    scenario.seen_within = Some(SEEN_WITHIN_LOSSES);
    scenario
}

/// T6, T9: versions are collected once no reader needs them, for reads and writes at any node.
#[test]
fn a_reader_at_another_node_finds_its_versions() {
    holds(
        &long_readers(),
        "a_reader_at_another_node_finds_its_versions",
    );
}

/// Broken: collection without agreement.
#[test]
fn collecting_by_the_local_horizon_is_caught() {
    long_readers()
        .without(Broken::CollectsByOwnHorizon)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// Ids that are kept for two minutes, committed at any node.
fn naming() -> Scenario {
    let mut scenario = two(FaultProfile::Slow);
    scenario.habits.one_named_in = 2;
    scenario.config.named_window = Duration::from_mins(2);
    scenario
}

/// T9.
#[test]
fn ids_of_every_node_expire_after_their_window() {
    holds(&naming(), "ids_of_every_node_expire_after_their_window");
}

/// Broken: the ids of other nodes stay.
#[test]
fn removing_only_own_ids_is_caught() {
    naming()
        .without(Broken::WalksOwnNamesAlone)
        .is_caught("leftover: the name", SEEDS_UNTIL_CAUGHT);
}

/// Nodes join while others collect, and cannot announce it.
fn joining() -> Scenario {
    let mut scenario = long_readers();
    scenario.disasters = vec![Disaster::JoinsApart; 3];
    scenario.mix.transactions = 26;
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

/// T6, T9.
#[test]
fn joining_nodes_are_counted() {
    holds(&joining(), "joining_nodes_are_counted");
}

/// Broken: no node waits for a joining one.
#[test]
fn ignoring_a_joining_node_is_caught() {
    joining()
        .without(Broken::JoinsUncounted)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// Nodes that do not learn of all commits of each other, and read the versions which these
/// supersede.
fn pruning() -> Scenario {
    let mut scenario = long_readers();
    scenario.disasters = vec![Disaster::Partition; 6];
    // A commit then mostly supersedes the previous one in all its keys.
    scenario.mix.keys = 2;
    // Caches would hide that a version is gone.
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

/// T6.
#[test]
fn pruned_announcements_are_not_needed() {
    holds(&pruning(), "pruned_announcements_are_not_needed");
}

/// Reads one key of a pair at a node that does not know the newest pair. It reads the other key
/// after the first version it read was collected. The node before it knows that its own pair was
/// superseded, by a pair that the reader cannot know.
async fn read_across_a_cut(broken: Option<Broken>) -> Result<Option<Bytes>, Failure> {
    let world = World::new(1);
    let mut config = Scenario::default().config;
    (config.mutant, config.data_cache_bytes_max) = (broken.into(), 0);
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let among = Among {
        network: network.clone(),
        ensemble,
        places: 3,
    };
    let cluster = Cluster::among(&world, config, among);
    // The first two announce at the same time, the third half a second later.
    for (place, wait_ms) in [(0, 0), (1, 500), (2, 2_600)] {
        assert!(cluster.boot_at(place, Life::default(), 0).await);
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
    let at = |place| cluster.serving_at(place).expect("no node dies");
    let commit_both = async |place: usize, value: &'static [u8]| {
        let connection = at(place);
        let begun = connection
            .shown(connection.engine.begin(Begin::default()))
            .await;
        let Ok(Begun::Open { id, attempt }) = begun else {
            panic!("a calm world: {begun:?}")
        };
        let call = Call {
            id,
            attempt: Some(attempt),
        };
        for key in [key(0), key(1)] {
            connection
                .engine
                .put(&call, key, Bytes::from_static(value))
                .await
                .expect("a calm world");
        }
        connection
            .call(connection.engine.commit(&call))
            .await
            .expect("a calm world");
    };
    commit_both(0, b"first").await;
    let reader = at(1);
    for key in [key(0), key(1)] {
        reader
            .shown(reader.engine.get_now(&key))
            .await
            .expect("a calm world");
    }
    tokio::time::sleep(Duration::from_millis(1_950)).await;
    network.cut(&Among::address(1), &Among::address(2));
    commit_both(0, b"second").await;
    commit_both(2, b"third").await;
    // Until the first has announced to the second, and nothing more.
    tokio::time::sleep(Duration::from_millis(960)).await;
    let begun = reader.shown(reader.engine.begin(Begin::default())).await;
    let Ok(Begun::Open { id, attempt }) = begun else {
        panic!("a calm world: {begun:?}")
    };
    let call = Call {
        id,
        attempt: Some(attempt),
    };
    reader.shown(reader.engine.get(&call, &key(0))).await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    reader.shown(reader.engine.get(&call, &key(1))).await
}

/// T6: a node that knows a commit but not its successor still finds its versions.
#[test]
fn announcements_include_versions_that_a_receiver_may_need() {
    let read = simulated::run(read_across_a_cut(None));
    assert_eq!(read, Ok(Some(Bytes::from_static(b"second"))));
}

/// Broken: the paper's pruning.
#[test]
fn pruning_by_the_senders_knowledge_is_caught() {
    let read = simulated::run(read_across_a_cut(Some(Broken::PrunesByItself)));
    assert_eq!(
        read,
        Err(Failure::Refused(transactions::Error::NoValidVersion))
    );
}

/// One seed gives one trace, also with several nodes.
#[test]
fn one_seed_of_several_nodes_gives_one_trace() {
    for seed in seeds().take(5) {
        let scenario = joining();
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

/// A transaction is open at one node and begun again at another under the same id. Then the first
/// is asked to write, as the earlier attempt and as the latest one. Returns its answers, and
/// whether the write was committed.
async fn write_after_begun_elsewhere(broken: Option<Broken>) -> [bool; 3] {
    let mut config = Scenario::default().config;
    config.mutant = broken.into();
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let cluster = Cluster::among(
        &World::new(1),
        config,
        Among {
            network,
            ensemble,
            places: 2,
        },
    );
    for place in 0..2 {
        assert!(cluster.boot_at(place, Life::default(), 0).await);
    }
    // Until all nodes know each other.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let [one, other] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    let named = || Begin {
        id: Some(TransactionId::new("order").expect("short")),
        ..Begin::default()
    };
    let mut calls = Vec::new();
    for connection in [&one, &other] {
        match connection
            .shown(connection.engine.begin(named()))
            .await
            .expect("a calm world")
        {
            Begun::Open { id, attempt } => calls.push(Call {
                id,
                attempt: Some(attempt),
            }),
            Begun::Committed { .. } => panic!("nothing is committed"),
        }
    }
    let latest = Call::latest(calls[0].id.clone());
    let earlier = one
        .call(
            one.engine
                .put(&calls[0], key(0), Bytes::from_static(b"earlier")),
        )
        .await;
    let latest = one
        .call(
            one.engine
                .put(&latest, key(1), Bytes::from_static(b"latest")),
        )
        .await;
    other
        .call(other.engine.commit(&calls[1]))
        .await
        .expect("a calm world");
    let written = other
        .shown(other.engine.get_now(&key(1)))
        .await
        .expect("a calm world");
    [earlier.is_ok(), latest.is_ok(), written.is_some()]
}

/// T8, T10: an attempt that was begun again elsewhere accepts nothing more, and calls for the
/// latest attempt reach it.
#[test]
fn a_node_learns_that_its_attempt_was_begun_again_at_another_node() {
    assert_eq!(
        simulated::run(write_after_begun_elsewhere(None)),
        [false, true, true]
    );
}

/// T8, broken: its node is not told, and loses what it acknowledged.
#[test]
fn beginning_again_without_a_notice_is_caught() {
    let shown = simulated::run(write_after_begun_elsewhere(Some(
        Broken::BeginsAnewInSilence,
    )));
    assert_eq!(shown, [true, true, false]);
}
