//! T2, T4, T5, T6, T9, T10, T14 among several nodes: which die anywhere, are cut off, and hear of each other late.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::{Chance, World};
use simulation::{
    faults::Weather,
    transactions::{
        client::Habits,
        ensemble::Ensemble,
        house::{Among, Failure, House},
        mortal::Life,
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

/// What was acknowledged is seen everywhere by then if nothing fails, and if a node does.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
pub(super) const SEEN_WITHIN_LOSSES: Duration = Duration::from_secs(10);

/// Seeds of each scenario at most, unless `NODES_SEEDS` says more: a quarter of a second each is too long for a thousand.
const SEEDS_MAX: u64 = 20;

pub(super) fn holds(scenario: &Scenario, test: &str) {
    let seeds_max = simulated::number("NODES_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    scenario.holds_for(asked.start..asked.end.min(asked.start + seeds_max), test);
}

/// Small transactions on two nodes that are both asked, by clients that move from one to the other.
pub(super) fn two(weather: Weather) -> Scenario {
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
        weather,
        seen_within: Some(SEEN_WITHIN),
        ..Scenario::default()
    }
}

/// T10, T5, T14: when nothing fails.
#[test]
fn any_node_answers() {
    for weather in [Weather::Calm, Weather::Slow] {
        holds(&two(weather), "any_node_answers");
    }
}

/// T10: whichever node a call goes to.
#[test]
fn a_call_finds_the_node_of_its_transaction() {
    for mut scenario in [two(Weather::Slow), dying(Weather::Slow), divided()] {
        scenario.habits.wanders = true;
        scenario.habits.patience = Duration::ZERO;
        scenario.mix.effects = 2;
        // Calls that wander cost more of the store's, of which a run has a bounded number.
        scenario.mix.transactions = scenario.mix.transactions.min(24);
        holds(&scenario, "a_call_finds_the_node_of_its_transaction");
    }
}

/// Three nodes on a network that loses, doubles and delays.
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
        ..two(Weather::Slow)
    }
}

/// T2, T5, T6.
#[test]
fn lost_announcements_hide_nothing() {
    holds(&troubled(), "lost_announcements_hide_nothing");
}

/// 10.2, broken: the slots before what is announced are not asked for.
#[test]
fn passing_over_gaps_is_caught() {
    forgetful()
        .without(Broken::AdvancesOverGaps)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// T5, T14, broken: what is gathered counts as heard.
#[test]
fn hearing_before_merging_is_caught() {
    two(Weather::Slow)
        .without(Broken::HearsBeforeMerging)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// Nodes that remember so few of their commits that others have to read them in the store.
fn forgetful() -> Scenario {
    let mut scenario = troubled();
    scenario.config.recent_bytes_max = 600;
    scenario
}

/// T5.
#[test]
fn what_a_node_has_forgotten_is_read_in_the_store() {
    holds(
        &forgetful(),
        "what_a_node_has_forgotten_is_read_in_the_store",
    );
}

/// Three nodes that die anywhere, and others that take their places.
fn dying(weather: Weather) -> Scenario {
    Scenario {
        nodes: 3,
        disasters: vec![Disaster::OneOfMany; 3],
        seen_within: Some(SEEN_WITHIN_LOSSES),
        ..two(weather)
    }
}

/// T2, T4, T5, T6, T9, T10.
#[test]
fn one_of_several_dies() {
    for weather in [Weather::Slow, Weather::Stormy] {
        holds(&dying(weather), "one_of_several_dies");
    }
}

/// T9, broken: nobody searches for who died during a search.
#[test]
fn forgetting_who_ends_during_a_search_is_caught() {
    let mut scenario = dying(Weather::Stormy);
    scenario.disasters = vec![Disaster::OneOfMany; 6];
    scenario.habits.chooses_all_names = true;
    // Else the periods of names are listed more often, and housekeeping with it.
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

/// Clients that lose patience and ask elsewhere, while nodes do not reach each other.
fn divided() -> Scenario {
    let mut scenario = two(Weather::Slow);
    scenario.disasters = vec![Disaster::Partition; 4];
    scenario.seen_within = Some(SEEN_WITHIN_LOSSES);
    scenario.habits.patience = Duration::from_millis(15);
    scenario.habits.pause = Duration::from_millis(800);
    scenario
}

/// T4, T-2.
#[test]
fn what_another_node_is_told_stays_true() {
    holds(&divided(), "what_another_node_is_told_stays_true");
}

/// Whether a commit counts though its client was told that it is aborted: by another node, when the transaction's was no member any
/// more, and the commit was on its way to the store for that long.
async fn is_told_otherwise(seed: u64) -> bool {
    let world = World::new(seed);
    let network = Network::new(Rng::with_seed(seed), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(seed));
    let among = Among {
        network: network.clone(),
        ensemble,
        places: 2,
    };
    let house = House::among(&world, Scenario::default().config, among);
    for place in 0..2 {
        assert!(house.boot_at(place, Life::default(), 0).await);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let [one, other] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
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
    // Whoever sees to what the node leaves takes a while, too.
    world.faults().delay(always, ms(20)..=ms(60));
    network.cut(&Among::address(0), &Among::address(1));
    house.seat_at(0).expect("a member").cut_off();
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
fn what_another_node_has_said_of_a_commit_stays_true() {
    for seed in 0..40 {
        assert!(!simulated::run(is_told_otherwise(seed)), "seed {seed}");
    }
}

/// Two nodes whose clocks differ by seconds.
fn skewed() -> Scenario {
    Scenario {
        skew: Duration::from_secs(8),
        ..two(Weather::Slow)
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

/// A node that reaches its clients and the store, and nobody else.
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

/// What a node shows long after it was cut off from the members and the others, while these went on.
async fn read_without_a_lease(broken: Option<Broken>) -> Result<Option<Bytes>, Failure> {
    let world = World::new(1);
    let mut config = Scenario::default().config;
    config.broken = broken;
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let among = Among {
        network: network.clone(),
        ensemble,
        places: 2,
    };
    let house = House::among(&world, config, among);
    for place in 0..2 {
        assert!(house.boot_at(place, Life::default(), 0).await);
    }
    let [one, other] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
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
    house.seat_at(1).expect("a member").cut_off();
    tokio::time::sleep(Duration::from_secs(2)).await;
    put(b"second").await;
    other.shown(other.engine.get_now(&key(0))).await
}

/// T5: whoever is cut off answers no more.
#[test]
fn nobody_answers_without_a_lease() {
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
        "what nobody else shows any more"
    );
}

/// Transactions that read and write several of few keys, and take their time, while others overwrite them elsewhere.
fn long_readers() -> Scenario {
    let mut scenario = two(Weather::Slow);
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

/// T6, T9: versions go once nobody needs them, wherever they are read and written.
#[test]
fn a_reader_elsewhere_finds_its_versions() {
    holds(&long_readers(), "a_reader_elsewhere_finds_its_versions");
}

/// Collection without agreement.
#[test]
fn collecting_by_ones_own_horizon_is_caught() {
    long_readers()
        .without(Broken::CollectsByOwnHorizon)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// Names that are kept for two minutes, by whichever node they were committed at.
fn naming() -> Scenario {
    let mut scenario = two(Weather::Slow);
    scenario.habits.one_named_in = 2;
    scenario.config.named_window = Duration::from_mins(2);
    scenario
}

/// T9.
#[test]
fn names_of_every_node_go_once_their_window_is_over() {
    holds(
        &naming(),
        "names_of_every_node_go_once_their_window_is_over",
    );
}

/// Names that another node has kept stay.
#[test]
fn walking_own_names_alone_is_caught() {
    naming()
        .without(Broken::WalksOwnNamesAlone)
        .is_caught("leftover: the name", SEEDS_UNTIL_CAUGHT);
}

/// Nodes join while others collect, and cannot say so.
fn joining() -> Scenario {
    let mut scenario = long_readers();
    scenario.disasters = vec![Disaster::JoinsApart; 3];
    scenario.mix.transactions = 26;
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

/// T6, T9.
#[test]
fn whoever_joins_is_counted() {
    holds(&joining(), "whoever_joins_is_counted");
}

/// A join that nobody waits for.
#[test]
fn not_counting_who_joins_is_caught() {
    joining()
        .without(Broken::JoinsUncounted)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// Nodes that do not always hear of each other's commits, and read what these supersede.
fn pruning() -> Scenario {
    let mut scenario = long_readers();
    scenario.disasters = vec![Disaster::Partition; 6];
    // So that a commit mostly supersedes the one before in all its keys.
    scenario.mix.keys = 2;
    // What is kept would hide that a version is gone.
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

/// T6.
#[test]
fn what_is_left_out_is_not_missed() {
    holds(&pruning(), "what_is_left_out_is_not_missed");
}

/// Reads one key of a pair at a node that has not heard of the newest pair, and the other once what it read of the first is
/// collected. The node before it knows that its own pair was superseded, by one that the reader cannot have heard of.
async fn read_across_a_cut(broken: Option<Broken>) -> Result<Option<Bytes>, Failure> {
    let world = World::new(1);
    let mut config = Scenario::default().config;
    (config.broken, config.data_cache_bytes_max) = (broken, 0);
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let among = Among {
        network: network.clone(),
        ensemble,
        places: 3,
    };
    let house = House::among(&world, config, among);
    // The first two tell at the same time, the third half a second later.
    for (place, wait_ms) in [(0, 0), (1, 500), (2, 2_600)] {
        assert!(house.boot_at(place, Life::default(), 0).await);
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
    let at = |place| house.serving_at(place).expect("nobody dies");
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
    // Until the first has told the second, and nothing more.
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

/// T6: who was told of a commit, and not of what supersedes it, still finds its versions.
#[test]
fn what_a_receiver_cannot_know_to_be_superseded_is_not_left_out() {
    let read = simulated::run(read_across_a_cut(None));
    assert_eq!(read, Ok(Some(Bytes::from_static(b"second"))));
}

/// The paper's pruning.
#[test]
fn pruning_by_what_the_sender_knows_is_caught() {
    let read = simulated::run(read_across_a_cut(Some(Broken::PrunesByItself)));
    assert_eq!(
        read,
        Err(Failure::Refused(transactions::Error::NoValidVersion))
    );
}

/// One seed gives one trace, with several nodes, too.
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

/// A name is open at one node and begun anew at another; then the first is asked to write: as the earlier attempt, and as whichever
/// is the latest. What it said, and what was committed.
async fn write_after_begun_elsewhere(broken: Option<Broken>) -> [bool; 3] {
    let mut config = Scenario::default().config;
    config.broken = broken;
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let house = House::among(
        &World::new(1),
        config,
        Among {
            network,
            ensemble,
            places: 2,
        },
    );
    for place in 0..2 {
        assert!(house.boot_at(place, Life::default(), 0).await);
    }
    // Until all know of each other.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let [one, other] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
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
    let whichever = one
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
    [earlier.is_ok(), whichever.is_ok(), written.is_some()]
}

/// T8, T10: an attempt that was begun anew elsewhere takes nothing more, and who means the latest one reaches it.
#[test]
fn a_node_hears_that_its_attempt_was_begun_anew_elsewhere() {
    assert_eq!(
        simulated::run(write_after_begun_elsewhere(None)),
        [false, true, true]
    );
}

/// T8, broken: its node is not told, and loses what it acknowledged.
#[test]
fn beginning_anew_in_silence_is_caught() {
    let shown = simulated::run(write_after_begun_elsewhere(Some(
        Broken::BeginsAnewInSilence,
    )));
    assert_eq!(shown, [true, true, false]);
}
