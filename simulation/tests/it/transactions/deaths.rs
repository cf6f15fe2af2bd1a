//! Deaths in every gap between two calls of one transaction, and of the start that finds its
//! remains.

use std::time::Duration;

use fastrand::Rng;
use simulated::{Options, World};
use simulation::transactions::{
    client::{Record, transact},
    cluster::Cluster,
    crashable::{Life, Side},
    effects,
    scenario::{Outcome, Scenario},
    workload::{Planned, Script, Work, key},
};
use transactions::model::{Isolation, TransactionId};

/// In a calm world all effects of a transaction are sent within this time.
const UNTIL_SENT: Duration = Duration::from_secs(1);

/// What dies with the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum With {
    Nothing,
    TheStore,
}

/// A death at one call, from zero.
#[derive(Debug, Clone, Copy)]
struct Death {
    at: u64,
    side: Side,
}

fn write(rank: usize) -> Work {
    Work::Write(Planned {
        key: key(rank),
        deletes: false,
    })
}

/// Three keys for the others to find.
fn earlier() -> Script {
    Script {
        work: vec![write(0), write(1), write(2)],
    }
}

/// Reads, overwrites, creates and deletes.
fn transaction() -> Script {
    let reads = Work::Read(vec![key(0), key(3)]);
    let deletes = Work::Write(Planned {
        key: key(2),
        deletes: true,
    });
    Script {
        work: vec![reads, write(0), write(3), deletes],
    }
}

/// The parameters of the transaction, and its effects.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    name: Option<&'a str>,
    isolation: Isolation,
    effects: u32,
    /// Whether the store commits in groups.
    in_groups: bool,
}

impl<'a> Asked<'a> {
    fn read_atomic(name: Option<&'a str>, effects: u32) -> Self {
        Self {
            name,
            isolation: Isolation::ReadAtomic,
            effects,
            in_groups: false,
        }
    }

    /// The first transaction of its keyspace, which is sequenced for it.
    fn serializable(name: Option<&'a str>, effects: u32) -> Self {
        Self {
            name,
            isolation: Isolation::Serializable,
            effects,
            in_groups: false,
        }
    }
}

/// Whether the deaths of a run struck.
struct Struck {
    transaction: bool,
    start: bool,
}

/// Runs the transaction on a node that dies at one of its calls. The next start dies as well if
/// requested, the one after survives, and the client retries until it knows the outcome.
async fn run(
    asked: Asked<'_>,
    death: Death,
    start: Option<Death>,
    with: With,
) -> (Outcome, Struck) {
    let mut cloud = Options::default();
    cloud.key_value.transact_across_partitions = asked.in_groups;
    let world = World::with_options(1, cloud);
    let receipts = effects::receive(&world, Rng::with_seed(1)).await;
    receipts.calm();
    let (cluster, record, life) = (
        Cluster::new(&world, Scenario::default().config),
        Record::default(),
        Life::default(),
    );
    cluster.boot(life.clone(), 0).await;
    transact(
        cluster.clone(),
        &earlier(),
        Isolation::ReadAtomic,
        None,
        0,
        record.clone(),
    )
    .await;
    life.ends_after(death.at, death.side);
    let next = Life::default();
    let recovering = async {
        life.over().await;
        cluster.kill();
        if with == With::TheStore {
            world.crash();
        }
        if let Some(Death { at, side }) = start {
            next.ends_after(at, side);
        }
        if !cluster.boot(next.clone(), 0).await {
            cluster.boot(Life::default(), 0).await;
        }
        next.goes_on();
        std::future::pending::<()>().await;
    };
    let struck = tokio::select! {
        biased;
        () = recovering => unreachable!("it goes on"),
        () = transact_and_send(&cluster, asked, &record) => {
            Struck { transaction: life.is_over(), start: next.is_over() }
        }
    };
    life.goes_on();
    if cluster.serving().is_none() {
        cluster.kill();
        cluster.boot(Life::default(), 0).await;
    }
    let executions = record.take();
    (
        Scenario::default()
            .judge(&cluster, &executions, &receipts)
            .await,
        struck,
    )
}

/// Runs the transaction, then waits until its effects are sent, if it has any.
async fn transact_and_send(cluster: &Cluster, asked: Asked<'_>, record: &Record) {
    let Asked {
        name,
        isolation,
        effects,
        ..
    } = asked;
    let name = name.map(|name| TransactionId::new(name.to_owned()).expect("a name"));
    transact(
        cluster.clone(),
        &transaction(),
        isolation,
        name.as_ref(),
        effects,
        record.clone(),
    )
    .await;
    if effects > 0 {
        cluster.world().clock().sleep(UNTIL_SENT).await;
    }
}

/// T4, T5, T7: the committing node dies between any two of its calls, alone or with all data that
/// is not durable.
#[test]
fn a_death_in_any_gap_of_a_commit_leaves_all_or_nothing() {
    // At least the entry, three versions, the row, and the wait for them.
    dies_in_every_gap(|name| Asked::read_atomic(name, 0), 6);
}

/// T4, T5, T7: the same if entry, data and row are one change.
#[test]
fn a_death_in_any_gap_of_a_commit_in_a_group_leaves_all_or_nothing() {
    dies_in_every_gap(
        |name| Asked {
            in_groups: true,
            ..Asked::read_atomic(name, 0)
        },
        2,
    );
}

/// T13: the same with effects, until the last of them is sent.
#[test]
fn a_death_in_any_gap_of_the_outbox_leaves_effects_to_the_next() {
    // Also the outbox row; each effect, the wait for a message, its progress mark; the deletion.
    dies_in_every_gap(|name| Asked::read_atomic(name, 3), 14);
}

/// T4, T11, T-3: the same while a keyspace is marked and the sequencer decides.
#[test]
fn a_death_in_any_gap_of_a_sequenced_commit_leaves_all_or_nothing() {
    // The mark, the check that it takes effect, the seal, the mark again, the tail; then the slot.
    dies_in_every_gap(|name| Asked::serializable(name, 0), 14);
    dies_in_every_gap(|name| Asked::serializable(name, 2), 20);
}

fn dies_in_every_gap(asked: fn(Option<&'static str>) -> Asked<'static>, gaps_min: u64) {
    for (name, with) in [
        (None, With::Nothing),
        (None, With::TheStore),
        (Some("t"), With::Nothing),
        (Some("t"), With::TheStore),
    ] {
        let asked = asked(name);
        for side in [Side::Before, Side::After] {
            let mut gaps = 0;
            for at in 0.. {
                let death = Death { at, side };
                let (outcome, struck) = simulated::run(run(asked, death, None, with));
                assert_eq!(
                    outcome.violations, [""; 0],
                    "{asked:?} {death:?} with {with:?}"
                );
                assert_eq!(outcome.committed, 2, "{asked:?} {death:?} with {with:?}");
                if !struck.transaction {
                    break;
                }
                gaps += 1;
            }
            assert!(gaps >= gaps_min, "{gaps} gaps");
        }
    }
}

/// T4, T7: the start that resolves the remains of such a death dies as well, between any two of its
/// calls.
#[test]
fn a_death_in_any_gap_of_a_resolve_leaves_it_to_the_next() {
    dies_twice(|name| Asked::read_atomic(name, 0));
}

/// T13: the same for the start that sends the remaining effects.
#[test]
fn a_death_in_any_gap_of_a_hand_over_leaves_effects_to_the_next_start() {
    dies_twice(|name| Asked::read_atomic(name, 2));
}

/// T4, T-4: the same for the start that takes the sequencer's log over.
#[test]
fn a_death_in_any_gap_of_a_take_over_leaves_it_to_the_next() {
    dies_twice(|name| Asked::serializable(name, 0));
}

fn dies_twice(asked: fn(Option<&'static str>) -> Asked<'static>) {
    for asked in [None, Some("t")].map(asked) {
        let mut at = 0;
        loop {
            let death = Death {
                at,
                side: Side::After,
            };
            let mut gaps = 0;
            let mut struck = Struck {
                transaction: true,
                start: true,
            };
            while struck.transaction && struck.start {
                let start = Death {
                    at: gaps,
                    side: [Side::Before, Side::After][gaps as usize % 2],
                };
                let outcome;
                (outcome, struck) = simulated::run(run(asked, death, Some(start), With::Nothing));
                assert_eq!(
                    outcome.violations, [""; 0],
                    "{asked:?} {death:?}, start {start:?}"
                );
                assert_eq!(outcome.committed, 2, "{asked:?} {death:?}, start {start:?}");
                gaps += 1;
            }
            if !struck.transaction {
                break;
            }
            assert!(gaps > 8, "{gaps} gaps");
            at += 1;
        }
    }
}
