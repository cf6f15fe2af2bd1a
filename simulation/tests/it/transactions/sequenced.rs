//! T11, T12, T-3, T-4 with several nodes: one of them orders the commits of all, and dies, is
//! partitioned or replaced at any point.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::World;
use simulation::{
    faults::FaultProfile,
    transactions::{
        client::Habits,
        cluster::{Among, Cluster, Connection},
        crashable::Life,
        ensemble::Ensemble,
        network::{Network, Trouble},
        scenario::{Disaster, Scenario, seeds},
        workload::{Mix, key},
    },
};
use transactions::{
    broken::Broken,
    model::{Begin, Begun, Call, Isolation, Key},
};

use super::SEEDS_UNTIL_CAUGHT;

/// When an acknowledged commit is visible everywhere.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// The most seeds of each scenario, unless `NODES_SEEDS` is higher.
const SEEDS_MAX: u64 = 20;

fn holds(scenario: &Scenario, test: &str) {
    let seeds_max = simulated::number("NODES_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    scenario.holds_for(asked.start..asked.end.min(asked.start + seeds_max), test);
}

/// Three nodes on one sequenced keyspace of few keys: half of the transactions are serializable,
/// some only read.
fn several(fault_profile: FaultProfile) -> Scenario {
    let mix = Mix {
        clients: 5,
        transactions: 20,
        keys: 4,
        one_delete_in: 0,
        ..Scenario::default().mix
    };
    let habits = Habits {
        one_named_in: 3,
        one_serializable_in: 2,
        one_reader_in: 4,
        carries_after: true,
        pause: Duration::from_millis(600),
        ..Habits::default()
    };
    Scenario {
        nodes: 3,
        sequenced: true,
        mix,
        habits,
        fault_profile,
        seen_within: Some(SEEN_WITHIN),
        ..Scenario::default()
    }
}

/// T11: without faults, at any node.
#[test]
fn histories_of_several_nodes_have_no_cycles() {
    for fault_profile in [FaultProfile::Calm, FaultProfile::Slow] {
        holds(
            &several(fault_profile),
            "histories_of_several_nodes_have_no_cycles",
        );
    }
}

/// The sequencer, or another node, dies between any two of its calls.
fn dying(fault_profile: FaultProfile) -> Scenario {
    Scenario {
        disasters: vec![Disaster::OneOfMany; 3],
        ..several(fault_profile)
    }
}

/// T4, T9, T11.
#[test]
fn the_order_continues_whichever_node_dies() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        holds(
            &dying(fault_profile),
            "the_order_continues_whichever_node_dies",
        );
    }
}

/// Messages to the sequencer are lost, late or duplicated.
fn troubled() -> Scenario {
    let network = Trouble {
        one_lost_in: 6,
        one_doubled_in: 4,
        one_late_in: 6,
    };
    Scenario {
        network,
        ..dying(FaultProfile::Slow)
    }
}

/// T4, T11.
#[test]
fn a_repeated_request_is_decided_once() {
    holds(&troubled(), "a_repeated_request_is_decided_once");
}

/// Nodes that are partitioned, and clients that time out and ask another node.
fn divided() -> Scenario {
    let mut scenario = several(FaultProfile::Slow);
    scenario.disasters = vec![Disaster::Partition; 5];
    scenario.habits.patience = Duration::from_millis(15);
    scenario.habits.wanders = true;
    scenario
}

/// T4, T11.
#[test]
fn a_request_at_another_node_gets_the_outcome_in_the_log() {
    holds(
        &divided(),
        "a_request_at_another_node_gets_the_outcome_in_the_log",
    );
}

/// A node that is partitioned from the others and from the members, but not from the store: mostly
/// the sequencer.
fn usurped() -> Scenario {
    let mut scenario = several(FaultProfile::Slow);
    scenario.disasters = vec![Disaster::CutOff; 4];
    scenario.habits.pause = Duration::from_millis(300);
    scenario
}

/// T-4, T11.
#[test]
fn a_replaced_sequencer_decides_nothing() {
    holds(&usurped(), "a_replaced_sequencer_decides_nothing");
}

/// T-4, broken: a snapshot is taken at the node's applied frontier.
#[test]
fn reading_without_following_is_caught() {
    several(FaultProfile::Calm)
        .without(Broken::ReadsAtWhatItHeard)
        .is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T11, broken.
#[test]
fn skipping_validation_is_caught() {
    several(FaultProfile::Calm)
        .without(Broken::SkipsValidation)
        .is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T12.
#[test]
fn readers_of_several_nodes_never_conflict() {
    let scenario = several(FaultProfile::Slow);
    let habits = Habits {
        one_serializable_in: 1,
        one_reader_in: 2,
        ..scenario.habits
    };
    holds(
        &Scenario { habits, ..scenario },
        "readers_of_several_nodes_never_conflict",
    );
}

/// T12, broken.
#[test]
fn validating_readers_is_caught() {
    several(FaultProfile::Slow)
        .without(Broken::ValidatesReaders)
        .is_caught("reader in conflict", SEEDS_UNTIL_CAUGHT);
}

/// T9, T11, with deletions, effects, large values and no cache: every read goes to the store.
#[test]
fn commits_ordered_by_several_nodes_are_collected() {
    let mut scenario = dying(FaultProfile::Slow);
    scenario.mix = Mix {
        one_delete_in: 4,
        effects: 1,
        transactions: 8,
        ..scenario.mix
    };
    // An effect is a write.
    scenario.habits.one_reader_in = 0;
    scenario.config.index_bytes_max = 0;
    scenario.config.data_cache_bytes_max = 0;
    holds(&scenario, "commits_ordered_by_several_nodes_are_collected");
}

/// One seed gives one trace.
#[test]
fn one_seed_of_a_sequencer_gives_one_trace() {
    for seed in seeds().take(3) {
        assert_eq!(
            troubled().run(seed).trace_hash,
            troubled().run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

/// The first serializable client marks the keyspace at some moment, while others commit there with
/// timestamps. The check compares reads only of transactions that commit afterwards.
fn marking() -> Scenario {
    let mut scenario = several(FaultProfile::Slow);
    scenario.sequenced = false;
    scenario.mix = Mix {
        clients: 6,
        transactions: 24,
        keys: 2,
        ..scenario.mix
    };
    scenario.habits.one_serializable_in = 6;
    scenario.habits.pause = Duration::from_millis(200);
    scenario
}

/// T-3, T2, T4, T5, T9: both levels share one order from the mark on, and any node may die
/// meanwhile.
#[test]
fn marking_among_several_loses_nothing() {
    holds(&marking(), "marking_among_several_loses_nothing");
    let disasters = vec![Disaster::OneOfMany; 3];
    holds(
        &Scenario {
            disasters,
            ..marking()
        },
        "marking_among_several_loses_nothing",
    );
}

/// A cluster with this many nodes in a calm world.
async fn cluster(places: usize, broken: Option<Broken>) -> Cluster {
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
            places,
        },
    );
    for place in 0..places {
        assert!(cluster.boot_at(place, Life::default(), 0).await);
    }
    cluster
}

/// Begins a serializable transaction, with retries.
async fn begin(connection: &Connection) -> Call {
    let asked = Begin {
        isolation: Isolation::Serializable,
        ..Begin::default()
    };
    for _ in 0..100 {
        if let Ok(Begun::Open { id, attempt }) = connection
            .shown(connection.engine.begin(asked.clone()))
            .await
        {
            return Call {
                id,
                attempt: Some(attempt),
            };
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no node orders commits");
}

/// The final value of a key after a commit with a slot at one node, and a later write at another.
async fn write_after_a_slot(broken: Option<Broken>) -> Option<Bytes> {
    let cluster = cluster(2, broken).await;
    let [one, other] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    let call = begin(&one).await;
    one.call(one.engine.put(&call, key(0), Bytes::from_static(b"slot")))
        .await
        .expect("a calm world");
    one.call(one.engine.commit(&call))
        .await
        .expect("a calm world");
    let later = other
        .engine
        .put_now(key(0), Some(Bytes::from_static(b"later")));
    other.call(later).await.expect("a calm world");
    tokio::time::sleep(Duration::from_secs(5)).await;
    one.shown(one.engine.get_now(&key(0)))
        .await
        .expect("a calm world")
}

/// T-3: once a keyspace is sequenced no node assigns timestamps there.
#[test]
fn every_node_stops_giving_timestamps() {
    let shown = simulated::run(write_after_a_slot(None));
    assert_eq!(shown, Some(Bytes::from_static(b"later")));
}

/// T-3, broken: the others are not told.
#[test]
fn marking_without_telling_the_others_is_caught() {
    let shown = simulated::run(write_after_a_slot(Some(Broken::MarksWithoutWaiting)));
    assert_eq!(
        shown,
        Some(Bytes::from_static(b"slot")),
        "the later write is lost"
    );
}

/// T11: a commit acknowledged at one node is visible to later transactions at any node, and one of
/// two conflicting transactions fails, at any nodes.
#[test]
fn one_order_for_all_nodes() {
    simulated::run(async {
        let cluster = cluster(3, None).await;
        let at = [0, 1, 2].map(|place| cluster.serving_at(place).expect("no node dies"));
        for round in 0..6 {
            let (one, other) = (&at[round % 3], &at[(round + 1) % 3]);
            let [left, right] = [begin(one).await, begin(other).await];
            let expected = (round > 0).then(|| Bytes::from(format!("{}", round - 1)));
            for (connection, call) in [(one, &left), (other, &right)] {
                let read = connection.shown(connection.engine.get(call, &key(0))).await;
                assert_eq!(read.expect("a calm world"), expected, "round {round}");
                let put = connection
                    .engine
                    .put(call, key(0), Bytes::from(format!("{round}")));
                connection.call(put).await.expect("a calm world");
            }
            one.call(one.engine.commit(&left))
                .await
                .expect("no other transaction conflicts");
            let refused = other.call(other.engine.commit(&right)).await.map(drop);
            assert!(format!("{refused:?}").contains("Conflict"), "{refused:?}");
        }
    });
}

/// T10, T11: after the sequencer is lost permanently, the store continues within five seconds.
#[test]
fn another_takes_over_within_five_seconds() {
    simulated::run(async {
        let cluster = cluster(3, None).await;
        let first = cluster.serving_at(0).expect("no node dies");
        let call = begin(&first).await;
        first
            .call(first.engine.put(&call, key(0), Bytes::from_static(b"v")))
            .await
            .expect("a calm world");
        first
            .call(first.engine.commit(&call))
            .await
            .expect("a calm world");
        let life = cluster.life_at(0).expect("it lives");
        cluster.seat_at(0).expect("a member").die();
        life.ends_after(0, simulation::transactions::crashable::Side::Before);
        cluster.kill_at(0);
        let died = tokio::time::Instant::now();
        let second = cluster.serving_at(1).expect("it lives");
        let call = begin(&second).await;
        let read = second
            .shown(second.engine.get(&call, &key(0)))
            .await
            .expect("a calm world");
        assert_eq!(read, Some(Bytes::from_static(b"v")));
        second
            .call(second.engine.put(&call, key(0), Bytes::from_static(b"w")))
            .await
            .expect("it is open");
        while second.call(second.engine.commit(&call)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(
            died.elapsed() < Duration::from_secs(5),
            "{:?}",
            died.elapsed()
        );
    });
}

/// Whether a write finds a sequencer after the node that marked its keyspace has died. That node
/// had told the writer's node, but not the leader of the election.
async fn write_after_an_interrupted_mark(broken: Option<Broken>) -> bool {
    let cluster = cluster(3, broken).await;
    let among = cluster.surroundings().expect("several places");
    among.network.cut(&Among::address(0), &Among::address(1));
    let marker = cluster.serving_at(1).expect("no node dies");
    let asked = Begin {
        isolation: Isolation::Serializable,
        ..Begin::default()
    };
    let begun = marker.shown(marker.engine.begin(asked)).await;
    assert!(
        begun.is_err(),
        "the leader is unreachable, so nothing is sequenced yet"
    );
    cluster.kill_at(1);
    among.network.mend();
    let writer = cluster.serving_at(2).expect("no node dies");
    for _ in 0..4 {
        let written = writer
            .engine
            .put_now(key(0), Some(Bytes::from_static(b"v")));
        if writer.call(written).await.is_ok() {
            return true;
        }
    }
    false
}

/// T-3: a mark that was begun is finished, even if only one node was told of it.
#[test]
fn an_interrupted_mark_is_finished() {
    assert!(simulated::run(write_after_an_interrupted_mark(None)));
}

/// T-3, broken: only the leader finishes it, which was not told.
#[test]
fn leaving_marks_to_the_leader_is_caught() {
    assert!(!simulated::run(write_after_an_interrupted_mark(Some(
        Broken::LeaderAloneFinishesMarks
    ))));
}

/// Writes `key` in a separate serializable transaction.
async fn write_in_order(connection: &Connection, key: Key) {
    let call = begin(connection).await;
    let put = connection.engine.put(&call, key, Bytes::from_static(b"v"));
    connection.call(put).await.expect("a calm world");
    connection
        .call(connection.engine.commit(&call))
        .await
        .expect("a calm world");
}

/// Whether a transaction commits after two sequencers have died, although another one wrote what it
/// had read. The second sequencer knows that all nodes have applied the slots before that write,
/// and those are more than it leaves untrimmed.
async fn commit_after_two_sequencers(broken: Option<Broken>) -> bool {
    let cluster = cluster(3, broken).await;
    let first = cluster.serving_at(0).expect("no node dies");
    let reader = cluster.serving_at(2).expect("no node dies");
    for _ in 0..56 {
        write_in_order(&first, key(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    for _ in 0..12 {
        write_in_order(&first, key(1)).await;
    }
    let late = begin(&reader).await;
    assert_eq!(
        reader.shown(reader.engine.get(&late, &key(0))).await,
        Ok(None)
    );
    write_in_order(&first, key(0)).await;
    for place in [0, 1] {
        cluster.kill_at(place);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    reader
        .call(
            reader
                .engine
                .put(&late, key(0), Bytes::from_static(b"late")),
        )
        .await
        .expect("it is open");
    reader.call(reader.engine.commit(&late)).await.is_ok()
}

/// T-4, T11: every successor knows the decisions of a log.
#[test]
fn a_conflict_survives_two_successors() {
    assert!(!simulated::run(commit_after_two_sequencers(None)));
}

/// T-4, broken: the first successor moves the start of the log, under its own epoch, to before its
/// own seal.
#[test]
fn trimming_below_a_seal_is_caught() {
    assert!(simulated::run(commit_after_two_sequencers(Some(
        Broken::TrimsBelowOwnSeal
    ))));
}

/// Two nodes on one sequenced keyspace, with the link between the second and the sequencer cut.
pub(super) async fn cut_off_from_the_sequencer(
    broken: Option<Broken>,
) -> (Cluster, [Connection; 2]) {
    let cluster = cluster(2, broken).await;
    let nodes = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    write_in_order(&nodes[0], key(0)).await;
    write_in_order(&nodes[1], key(0)).await;
    let among = cluster.surroundings().expect("several places");
    among.network.cut(&Among::address(0), &Among::address(1));
    (cluster, nodes)
}

/// T9: while one member's horizon is unknown nothing is collected, and the status shows how many
/// are unknown.
#[test]
fn members_that_do_not_reach_each_other_are_counted() {
    simulated::run(async {
        let (cluster, nodes) = cut_off_from_the_sequencer(None).await;
        let unheard = || {
            nodes
                .each_ref()
                .map(|node| node.engine.figures().members_unheard)
        };
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(unheard(), [0, 0], "that may be nothing");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(unheard(), [1, 1]);
        cluster
            .surroundings()
            .expect("several places")
            .network
            .mend();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(unheard(), [0, 0]);
    });
}

/// The final count after six increments at one node. The store had lost slots that another node had
/// applied, and that node notices it only while the first asks for its frontier.
async fn counted_after_a_loss(broken: Option<Broken>) -> (u64, Option<Bytes>) {
    let fsync = Duration::from_millis(500);
    let world = World::with_options(
        1,
        simulated::Options {
            fsync: fsync..=fsync,
            ..Default::default()
        },
    );
    let config = transactions::Config {
        mutant: broken.into(),
        ..Scenario::default().config
    };
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let cluster = Cluster::among(
        &world,
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
    let [one, other] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    for number in 0..12_u64 {
        let call = begin(&one).await;
        one.call(
            one.engine
                .put(&call, key(1), Bytes::from(number.to_string())),
        )
        .await
        .expect("it is open");
        // A caller that waits for it gets no answer before it is durable.
        let committed = tokio::time::timeout(fsync / 10, one.engine.commit(&call)).await;
        assert!(number == 0 || committed.is_err(), "it waits: {committed:?}");
    }
    let heard = other
        .engine
        .begin(Begin {
            isolation: Isolation::Serializable,
            ..Begin::default()
        })
        .await;
    heard.expect("it has read to the tail");
    world.fall_back();
    cluster.seat_at(0).expect("a member").die();
    cluster.kill_at(0);
    assert!(cluster.boot_at(0, Life::default(), 0).await);
    let again = cluster.serving_at(0).expect("no node dies");
    let mut counted = 0_u64;
    while counted < 6 {
        let call = begin(&again).await;
        let Ok(read) = again.shown(again.engine.get(&call, &key(0))).await else {
            continue;
        };
        let before: u64 = read.map_or(0, |value| {
            String::from_utf8_lossy(&value).parse().expect("a number")
        });
        let put = again
            .engine
            .put(&call, key(0), Bytes::from((before + 1).to_string()));
        if again.call(put).await.is_ok() && again.call(again.engine.commit(&call)).await.is_ok() {
            counted += 1;
        }
    }
    (
        counted,
        again
            .shown(again.engine.get_now(&key(0)))
            .await
            .expect("it serves"),
    )
}

/// T11.
#[test]
fn no_node_counts_lost_slots_as_applied() {
    assert_eq!(
        simulated::run(counted_after_a_loss(None)),
        (6, Some(Bytes::from_static(b"6")))
    );
}

/// T11, broken: a node's claim of a lost frontier is believed.
#[test]
fn believing_a_lost_frontier_is_caught() {
    let counted = simulated::run(counted_after_a_loss(Some(Broken::BelievesEarlierLives)));
    assert_ne!(counted, (6, Some(Bytes::from_static(b"6"))));
}
