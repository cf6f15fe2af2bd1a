//! Every gap between two calls of one transaction, and of the start that finds what it left.

use std::time::Duration;

use fastrand::Rng;
use simulated::World;
use simulation::transactions::{
    client::{Record, transact},
    effects,
    house::House,
    mortal::{Life, Side},
    scenario::{Outcome, Scenario},
    workload::{Planned, Script, Work, key},
};
use transactions::model::TransactionId;

/// After this long in a calm world, all effects of a transaction are sent.
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
    Work::Write(Planned { key: key(rank), deletes: false })
}

/// Three keys, for others to find.
fn earlier() -> Script {
    Script { work: vec![write(0), write(1), write(2)] }
}

/// Reads, writes anew, creates and deletes.
fn transaction() -> Script {
    let reads = Work::Read(vec![key(0), key(3)]);
    let deletes = Work::Write(Planned { key: key(2), deletes: true });
    Script { work: vec![reads, write(0), write(3), deletes] }
}

/// Whether the deaths of a run struck.
struct Struck {
    transaction: bool,
    start: bool,
}

/// Runs the transaction on a node that dies at one of its calls; the next start dies as well if it is said so, the
/// one after goes through, and the client goes on until it knows.
async fn run(
    name: Option<&str>,
    effects: u32,
    death: Death,
    start: Option<Death>,
    with: With,
) -> (Outcome, Struck) {
    let world = World::new(1);
    let receipts = effects::receive(&world, Rng::with_seed(1)).await;
    receipts.calm();
    let (house, record, life) =
        (House::new(&world, Scenario::default().config), Record::default(), Life::default());
    house.boot(life.clone(), 0).await;
    transact(house.clone(), &earlier(), None, 0, record.clone()).await;
    life.ends_after(death.at, death.side);
    let next = Life::default();
    let recovering = async {
        life.over().await;
        house.kill();
        if with == With::TheStore {
            world.crash();
        }
        if let Some(Death { at, side }) = start {
            next.ends_after(at, side);
        }
        if !house.boot(next.clone(), 0).await {
            house.boot(Life::default(), 0).await;
        }
        next.goes_on();
        std::future::pending::<()>().await;
    };
    let name = name.map(|name| TransactionId::new(name.to_owned()).expect("a name"));
    let script = transaction();
    let struck = tokio::select! {
        biased;
        () = recovering => unreachable!("it goes on"),
        () = transact_and_send(&house, &script, name.as_ref(), effects, &record) => {
            Struck { transaction: life.is_over(), start: next.is_over() }
        }
    };
    life.goes_on();
    if house.serving().is_none() {
        house.kill();
        house.boot(Life::default(), 0).await;
    }
    let executions = record.take();
    (Scenario::default().judge(&house, &executions, &receipts).await, struck)
}

/// Runs the transaction, then waits until its effects have left, if they do.
async fn transact_and_send(
    house: &House,
    script: &Script,
    name: Option<&TransactionId>,
    effects: u32,
    record: &Record,
) {
    transact(house.clone(), script, name, effects, record.clone()).await;
    if effects > 0 {
        house.world().clock().sleep(UNTIL_SENT).await;
    }
}

/// T4, T5, T7: whoever commits dies between any two of its calls, alone or with all that is not durable.
#[test]
fn a_death_in_any_gap_of_a_commit_leaves_all_or_nothing() {
    // The entry, three versions, the row, and the wait for them, at the least.
    dies_in_every_gap(0, 6);
}

/// T13: the same with effects, until the last of them has left.
#[test]
fn a_death_in_any_gap_of_the_outbox_leaves_effects_to_the_next() {
    // The outbox row as well; each effect, the wait for a message, the mark behind it; the deletion.
    dies_in_every_gap(3, 14);
}

fn dies_in_every_gap(effects: u32, gaps_min: u64) {
    for (name, with) in [
        (None, With::Nothing),
        (None, With::TheStore),
        (Some("t"), With::Nothing),
        (Some("t"), With::TheStore),
    ] {
        for side in [Side::Before, Side::After] {
            let mut gaps = 0;
            for at in 0.. {
                let death = Death { at, side };
                let (outcome, struck) = simulated::run(run(name, effects, death, None, with));
                assert_eq!(outcome.violations, [""; 0], "{name:?} {death:?} with {with:?}");
                assert_eq!(outcome.committed, 2, "{name:?} {death:?} with {with:?}");
                if !struck.transaction {
                    break;
                }
                gaps += 1;
            }
            assert!(gaps >= gaps_min, "{gaps} gaps");
        }
    }
}

/// T4, T7: the start that resolves what such a death left dies as well, between any two of its calls.
#[test]
fn a_death_in_any_gap_of_a_resolve_leaves_it_to_the_next() {
    dies_twice(0);
}

/// T13: the same for the start that sends what such a death left.
#[test]
fn a_death_in_any_gap_of_a_hand_over_leaves_effects_to_the_next() {
    dies_twice(2);
}

fn dies_twice(effects: u32) {
    for name in [None, Some("t")] {
        let mut at = 0;
        loop {
            let death = Death { at, side: Side::After };
            let mut gaps = 0;
            let mut struck = Struck { transaction: true, start: true };
            while struck.transaction && struck.start {
                let start = Death { at: gaps, side: [Side::Before, Side::After][gaps as usize % 2] };
                let outcome;
                (outcome, struck) = simulated::run(run(name, effects, death, Some(start), With::Nothing));
                assert_eq!(outcome.violations, [""; 0], "{name:?} {death:?}, start {start:?}");
                assert_eq!(outcome.committed, 2, "{name:?} {death:?}, start {start:?}");
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
