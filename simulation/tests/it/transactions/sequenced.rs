//! T11, T12, T-3, T-4 among several nodes: one of them orders the commits of all, and dies, is cut off or usurped anywhere.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::World;
use simulation::{
    faults::Weather,
    transactions::{
        client::Habits,
        ensemble::Ensemble,
        house::{Among, Connection, Failure, House},
        mortal::Life,
        network::{Network, Trouble},
        scenario::{Disaster, Scenario, seeds},
        workload::{Mix, key},
    },
};
use transactions::{
    Error,
    broken::Broken,
    model::{Begin, Begun, Call, Isolation, Key, Outcome, TransactionId},
};

use super::SEEDS_UNTIL_CAUGHT;

/// What was acknowledged is seen everywhere by then.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Seeds of each scenario at most, unless `NODES_SEEDS` says more.
const SEEDS_MAX: u64 = 20;

fn holds(scenario: &Scenario, test: &str) {
    let seeds_max = simulated::number("NODES_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    scenario.holds_for(asked.start..asked.end.min(asked.start + seeds_max), test);
}

/// Three nodes on one sequenced keyspace of few keys: half of the transactions are serializable, some only read.
fn several(weather: Weather) -> Scenario {
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
        weather,
        seen_within: Some(SEEN_WITHIN),
        ..Scenario::default()
    }
}

/// T11: when nothing fails, at whichever node.
#[test]
fn histories_of_several_nodes_have_no_cycles() {
    for weather in [Weather::Calm, Weather::Slow] {
        holds(
            &several(weather),
            "histories_of_several_nodes_have_no_cycles",
        );
    }
}

/// The sequencer, or another, dies between any two of its calls.
fn dying(weather: Weather) -> Scenario {
    Scenario {
        disasters: vec![Disaster::OneOfMany; 3],
        ..several(weather)
    }
}

/// T4, T9, T11.
#[test]
fn whoever_dies_the_order_goes_on() {
    for weather in [Weather::Slow, Weather::Stormy] {
        holds(&dying(weather), "whoever_dies_the_order_goes_on");
    }
}

/// Messages to the sequencer are lost, late or doubled.
fn troubled() -> Scenario {
    let network = Trouble {
        one_lost_in: 6,
        one_doubled_in: 4,
        one_late_in: 6,
    };
    Scenario {
        network,
        ..dying(Weather::Slow)
    }
}

/// T4, T11.
#[test]
fn what_is_asked_twice_is_decided_once() {
    holds(&troubled(), "what_is_asked_twice_is_decided_once");
}

/// Nodes that do not reach each other, and clients that lose patience and ask elsewhere.
fn divided() -> Scenario {
    let mut scenario = several(Weather::Slow);
    scenario.disasters = vec![Disaster::Partition; 5];
    scenario.habits.patience = Duration::from_millis(15);
    scenario.habits.wanders = true;
    scenario
}

/// T4, T11.
#[test]
fn who_asks_elsewhere_hears_what_the_log_says() {
    holds(&divided(), "who_asks_elsewhere_hears_what_the_log_says");
}

/// A node that is cut off from the others and from the members, and not from the store: mostly it was the sequencer.
fn usurped() -> Scenario {
    let mut scenario = several(Weather::Slow);
    scenario.disasters = vec![Disaster::CutOff; 4];
    scenario.habits.pause = Duration::from_millis(300);
    scenario
}

/// T-4, T11.
#[test]
fn a_usurped_sequencer_decides_nothing() {
    holds(&usurped(), "a_usurped_sequencer_decides_nothing");
}

/// T-4, broken: a snapshot is taken at what its node has heard.
#[test]
fn reading_without_following_is_caught() {
    several(Weather::Calm)
        .without(Broken::ReadsAtWhatItHeard)
        .is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T11, broken.
#[test]
fn skipping_validation_is_caught() {
    several(Weather::Calm)
        .without(Broken::SkipsValidation)
        .is_caught("cycle", SEEDS_UNTIL_CAUGHT);
}

/// T12.
#[test]
fn readers_of_several_nodes_never_conflict() {
    let scenario = several(Weather::Slow);
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
    several(Weather::Slow)
        .without(Broken::ValidatesReaders)
        .is_caught("reader in conflict", SEEDS_UNTIL_CAUGHT);
}

/// T9, T11, with deletions, effects, large values and nothing kept in memory: every read is a load.
#[test]
fn what_several_nodes_order_is_collected() {
    let mut scenario = dying(Weather::Slow);
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
    holds(&scenario, "what_several_nodes_order_is_collected");
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

/// A keyspace that is marked at some moment by whoever is first, while others commit there with timestamps: of those that read
/// anything only what is committed after is compared.
fn marking() -> Scenario {
    let mut scenario = several(Weather::Slow);
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

/// T-3, T2, T4, T5, T9: levels share one order from the mark on, whoever dies meanwhile.
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

/// A house of so many nodes in a calm world.
async fn house(places: usize, broken: Option<Broken>) -> House {
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
            places,
        },
    );
    for place in 0..places {
        assert!(house.boot_at(place, Life::default(), 0).await);
    }
    house
}

/// Begins a serializable transaction, as often as it takes.
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
    panic!("nobody orders commits");
}

/// What stands in a key after a commit with a slot at one node, and a later write at another.
async fn write_after_a_slot(broken: Option<Broken>) -> Option<Bytes> {
    let house = house(2, broken).await;
    let [one, other] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
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

/// T-3: once a keyspace is sequenced nobody gives timestamps there.
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

/// T11: what was acknowledged at one node is read by whoever begins at another, and of two that cannot follow each other one
/// conflicts, wherever they are.
#[test]
fn one_order_for_all_nodes() {
    simulated::run(async {
        let house = house(3, None).await;
        let at = [0, 1, 2].map(|place| house.serving_at(place).expect("nobody dies"));
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
                .expect("nobody was faster");
            let refused = other.call(other.engine.commit(&right)).await.map(drop);
            assert!(format!("{refused:?}").contains("Conflict"), "{refused:?}");
        }
    });
}

/// T10, T11: with its sequencer gone for good a store goes on within five seconds.
#[test]
fn another_takes_over_within_five_seconds() {
    simulated::run(async {
        let house = house(3, None).await;
        let first = house.serving_at(0).expect("nobody dies");
        let call = begin(&first).await;
        first
            .call(first.engine.put(&call, key(0), Bytes::from_static(b"v")))
            .await
            .expect("a calm world");
        first
            .call(first.engine.commit(&call))
            .await
            .expect("a calm world");
        let life = house.life_at(0).expect("it lives");
        house.seat_at(0).expect("a member").die();
        life.ends_after(0, simulation::transactions::mortal::Side::Before);
        house.kill_at(0);
        let died = tokio::time::Instant::now();
        let second = house.serving_at(1).expect("it lives");
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

/// Whether a write finds a sequencer after who marked its keyspace has died: it had told the writer, and never the leader of the
/// office.
async fn write_after_a_broken_mark(broken: Option<Broken>) -> bool {
    let house = house(3, broken).await;
    let among = house.surroundings().expect("several places");
    among.network.cut(&Among::address(0), &Among::address(1));
    let marker = house.serving_at(1).expect("nobody dies");
    let asked = Begin {
        isolation: Isolation::Serializable,
        ..Begin::default()
    };
    let begun = marker.shown(marker.engine.begin(asked)).await;
    assert!(
        begun.is_err(),
        "the leader cannot be told, so nothing is sequenced yet"
    );
    house.kill_at(1);
    among.network.mend();
    let writer = house.serving_at(2).expect("nobody dies");
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

/// T-3: what was begun to be marked is finished, whoever was told of it.
#[test]
fn a_broken_mark_is_finished() {
    assert!(simulated::run(write_after_a_broken_mark(None)));
}

/// T-3, broken: only the leader finishes it, which has not heard of it.
#[test]
fn leaving_marks_to_the_leader_is_caught() {
    assert!(!simulated::run(write_after_a_broken_mark(Some(
        Broken::OfficeAloneFinishesMarks
    ))));
}

/// Writes `key` in a serializable transaction of its own.
async fn write_in_order(connection: &Connection, key: Key) {
    let call = begin(connection).await;
    let put = connection.engine.put(&call, key, Bytes::from_static(b"v"));
    connection.call(put).await.expect("a calm world");
    connection
        .call(connection.engine.commit(&call))
        .await
        .expect("a calm world");
}

/// Whether a transaction commits after two sequencers have died, although what it read was written since. The second of them
/// has heard that everybody knows what stands before that write, and more than it leaves untrimmed.
async fn commit_after_two_sequencers(broken: Option<Broken>) -> bool {
    let house = house(3, broken).await;
    let first = house.serving_at(0).expect("nobody dies");
    let reader = house.serving_at(2).expect("nobody dies");
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
        house.kill_at(place);
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

/// T-4, T11: what a log decided is known to every successor.
#[test]
fn two_successors_later_a_conflict_is_one() {
    assert!(!simulated::run(commit_after_two_sequencers(None)));
}

/// T-4, broken: the first successor moves the start of the log, under its own epoch, to before its own seal.
#[test]
fn trimming_below_a_seal_is_caught() {
    assert!(simulated::run(commit_after_two_sequencers(Some(
        Broken::TrimsBelowOwnSeal
    ))));
}

/// Two nodes on one sequenced keyspace, of which the second does not reach the sequencer, nor that the second.
async fn cut_off_from_the_sequencer(broken: Option<Broken>) -> (House, [Connection; 2]) {
    let house = house(2, broken).await;
    let nodes = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
    write_in_order(&nodes[0], key(0)).await;
    write_in_order(&nodes[1], key(0)).await;
    let among = house.surroundings().expect("several places");
    among.network.cut(&Among::address(0), &Among::address(1));
    (house, nodes)
}

/// T9: while one member's horizon is not heard nothing is collected; how many are not is said.
#[test]
fn members_that_do_not_reach_each_other_are_counted() {
    simulated::run(async {
        let (house, nodes) = cut_off_from_the_sequencer(None).await;
        let unheard = || {
            nodes
                .each_ref()
                .map(|node| node.engine.figures().members_unheard)
        };
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(unheard(), [0, 0], "that may be nothing");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(unheard(), [1, 1]);
        house.surroundings().expect("several places").network.mend();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(unheard(), [0, 0]);
    });
}

fn unknown<T>() -> Result<T, Failure> {
    Err(Failure::Refused(Error::OutcomeUnknown))
}

/// What stands in a key that was written at a node cut off from the sequencer, which is answered *unknown*; then twice where the
/// sequencer is, acknowledged; and then the way is open again, `later`.
async fn written_over_an_unknown(later: Duration, broken: Option<Broken>) -> [Option<Bytes>; 2] {
    let (house, [sequencer, cut_off]) = cut_off_from_the_sequencer(broken).await;
    let write = async |node: &Connection, value: &'static [u8]| {
        node.call(node.engine.put_now(key(0), Some(Bytes::from_static(value))))
            .await
            .map(drop)
    };
    let asked = tokio::time::Instant::now();
    assert_eq!(write(&cut_off, b"one").await, unknown());
    assert!(
        asked.elapsed() <= Duration::from_millis(5_500),
        "{:?}",
        asked.elapsed()
    );
    write(&sequencer, b"one")
        .await
        .expect("it orders commits itself");
    write(&sequencer, b"two")
        .await
        .expect("it orders commits itself");
    tokio::time::sleep(later).await;
    house.surroundings().expect("several places").network.mend();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let mut shown = [None, None];
    for (shown, node) in shown.iter_mut().zip([&sequencer, &cut_off]) {
        *shown = node
            .shown(node.engine.get_now(&key(0)))
            .await
            .expect("a calm world");
    }
    shown
}

/// T4, T5: a write whose client was told that its outcome is unknown does not come back over what was acknowledged since.
#[test]
fn a_write_that_was_answered_unknown_comes_over_nothing_newer() {
    for later in [3, 20, 65].map(Duration::from_secs) {
        let shown = simulated::run(written_over_an_unknown(later, None));
        assert_eq!(
            shown,
            [(); 2].map(|()| Some(Bytes::from_static(b"two"))),
            "{later:?} later"
        );
    }
}

/// T4, T5, broken.
#[test]
fn committing_after_unknown_is_caught() {
    let broken = Some(Broken::CommitsAfterUnknown);
    let shown = simulated::run(written_over_an_unknown(Duration::from_secs(20), broken));
    assert_eq!(
        shown,
        [(); 2].map(|()| Some(Bytes::from_static(b"one"))),
        "the unknown write took effect"
    );
}

/// T4: of a generated id a commit that was answered unknown is aborted once the sequencer is reached; that of a chosen id goes on.
#[test]
fn a_commit_that_was_answered_unknown_ends() {
    for (name, expected) in [(None, Err(Outcome::Aborted)), (Some("order"), Ok(()))] {
        simulated::run(async {
            let (house, [_, cut_off]) = cut_off_from_the_sequencer(None).await;
            let id = name.map(|name| TransactionId::new(name).expect("a name"));
            let begun = cut_off
                .shown(cut_off.engine.begin(Begin {
                    id,
                    ..Begin::default()
                }))
                .await;
            let Ok(Begun::Open { id, attempt }) = begun else {
                panic!("it reaches the store: {begun:?}")
            };
            let call = Call {
                id,
                attempt: Some(attempt),
            };
            let put = cut_off.engine.put(&call, key(0), Bytes::from_static(b"v"));
            cut_off.call(put).await.expect("it is open");
            let commit = async || cut_off.call(cut_off.engine.commit(&call)).await.map(drop);
            assert_eq!(commit().await, unknown());
            house.surroundings().expect("several places").network.mend();
            let ended = commit().await;
            let refused = |outcome| Failure::Refused(Error::TransactionFinished(outcome));
            assert_eq!(ended, expected.map_err(refused), "{name:?}");
        });
    }
}

/// T4, T10: where the sequencer is, such a commit is answered for good, and nothing of it comes over what its client writes then.
#[test]
fn a_commit_that_was_answered_unknown_is_asked_elsewhere() {
    simulated::run(async {
        let (house, [sequencer, cut_off]) = cut_off_from_the_sequencer(None).await;
        let open = async |node: &Connection, value: &'static [u8]| {
            let id = Some(TransactionId::new("order").expect("a name"));
            let begun = node
                .shown(node.engine.begin(Begin {
                    id,
                    ..Begin::default()
                }))
                .await;
            let Ok(Begun::Open { id, attempt }) = begun else {
                panic!("it reaches the store: {begun:?}")
            };
            let call = Call {
                id,
                attempt: Some(attempt),
            };
            let put = node.engine.put(&call, key(0), Bytes::from_static(value));
            node.call(put).await.expect("it is open");
            call
        };
        let commit = async |node: &Connection, call: &Call| {
            node.call(node.engine.commit(call)).await.map(drop)
        };
        let first = open(&cut_off, b"first").await;
        assert_eq!(commit(&cut_off, &first).await, unknown());
        let aborted = Error::TransactionFinished(Outcome::Aborted);
        assert_eq!(
            commit(&sequencer, &first).await,
            Err(Failure::Refused(aborted))
        );
        let second = open(&sequencer, b"second").await;
        commit(&sequencer, &second)
            .await
            .expect("it orders commits itself");
        house.surroundings().expect("several places").network.mend();
        tokio::time::sleep(Duration::from_secs(10)).await;
        for node in [&sequencer, &cut_off] {
            let shown = node
                .shown(node.engine.get_now(&key(0)))
                .await
                .expect("a calm world");
            assert_eq!(shown, Some(Bytes::from_static(b"second")));
            commit(node, &second).await.expect("it has committed");
        }
    });
}

/// What has been counted, in six commits at one node, after the store has lost slots that another one had heard, which has yet to
/// notice that as the first asks what it has heard.
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
        broken,
        ..Scenario::default().config
    };
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let house = House::among(
        &world,
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
    let [one, other] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
    for number in 0..12_u64 {
        let call = begin(&one).await;
        one.call(
            one.engine
                .put(&call, key(1), Bytes::from(number.to_string())),
        )
        .await
        .expect("it is open");
        // Who waits for it hears nothing before it is durable.
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
    house.seat_at(0).expect("a member").die();
    house.kill_at(0);
    assert!(house.boot_at(0, Life::default(), 0).await);
    let again = house.serving_at(0).expect("nobody dies");
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
fn what_the_store_has_lost_counts_for_nobody_as_heard() {
    assert_eq!(
        simulated::run(counted_after_a_loss(None)),
        (6, Some(Bytes::from_static(b"6")))
    );
}

/// T11, broken: who has heard it is believed.
#[test]
fn believing_who_has_heard_what_is_lost_is_caught() {
    let counted = simulated::run(counted_after_a_loss(Some(Broken::BelievesEarlierLives)));
    assert_ne!(counted, (6, Some(Bytes::from_static(b"6"))));
}
