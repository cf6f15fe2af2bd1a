//! C-3, C3: a refusal has its place in the one order, at any depth below a missing znode.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use coordination::{
    Client, Config, Error, Parts,
    broken::Broken,
    config::LockOptions,
    model::{Lifetime, Output, Request, Zxid},
};
use ports::{
    faults::{Fault, FaultSchedule, FaultyKeyValue, FaultyQueue},
    metering::{Meter, MeteredKeyValue},
};
use simulated::World;
use simulation::{
    faults::FaultProfile,
    scenario::{Scenario, deep},
};

use crate::single_service::{connect, create, following_with, parts, result, set, shown};

/// Nearly as many levels as a path can have.
const LEVELS: usize = 480;

/// How many more calls a refusal may take there than right below the root: two reads for each
/// halving of the levels, and a lock.
const CALLS_MORE: u64 = 2 * 9 + 2;

fn far_below() -> Scenario {
    Scenario {
        mix: deep,
        fault_profile: FaultProfile::Slow,
        machines: 3,
        ..Scenario::default()
    }
}

/// C3, C-3.
#[test]
fn a_refusal_far_below_a_missing_znode_has_its_place() {
    for fault_profile in [
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        let scenario = Scenario {
            fault_profile,
            ..far_below()
        };
        scenario.holds("a_refusal_far_below_a_missing_znode_has_its_place");
    }
}

/// D4: the same while the store loses the locks and the data read for it.
#[test]
fn a_refusal_far_below_a_missing_znode_has_its_place_while_the_store_falls_back() {
    let scenario = Scenario {
        fall_backs: 3,
        requests: 8,
        ..far_below()
    };
    scenario.holds("a_refusal_far_below_a_missing_znode_has_its_place_while_the_store_falls_back");
}

/// Long enough for everything that is not held up.
const SOON: Duration = Duration::from_millis(100);

/// Holds up the next call of one operation until it is released.
#[derive(Debug)]
struct HeldUp {
    operation: &'static str,
    fault: Mutex<Option<Fault>>,
}

impl HeldUp {
    fn new(operation: &'static str) -> Arc<Self> {
        Arc::new(Self {
            operation,
            fault: Mutex::default(),
        })
    }

    fn next_by(&self, fault: Fault) {
        *self
            .fault
            .lock()
            .expect("no thread panics while holding it") = Some(fault);
    }
}

impl FaultSchedule for HeldUp {
    fn next(&self, operation: &'static str) -> Fault {
        if operation != self.operation {
            return Fault::None;
        }
        self.fault
            .lock()
            .expect("no thread panics while holding it")
            .take()
            .unwrap_or_default()
    }
}

/// The zxid of the answer to `request`, and whether it was refused.
async fn answered(client: &mut Client, request: Request) -> (Zxid, bool) {
    match shown(client, request)
        .await
        .and_then(|mut outputs| outputs.pop())
    {
        Some(Output::Reply { zxid, result, .. }) => (zxid, result.is_err()),
        other => panic!("the client ended before {other:?}"),
    }
}

/// Sets a znode that is missing with all its ancestors. The reads for it are stale when they
/// return, and its decision is announced late. Returns the zxids of the refusal and of the later
/// creation.
async fn refused_and_made(broken: Option<Broken>) -> (Zxid, Zxid) {
    let (world, reads, sends) = (
        World::new(1),
        HeldUp::new("key_value.get"),
        HeldUp::new("queue.send"),
    );
    let system = Arc::new(FaultyKeyValue::new(
        world.key_value(),
        reads.clone(),
        world.clock(),
    ));
    let queue = Arc::new(FaultyQueue::new(
        world.queue(),
        sends.clone(),
        world.clock(),
    ));
    let parts = Parts {
        system,
        queue,
        ..parts(&world)
    };
    let service = following_with(
        &world,
        parts,
        Config {
            mutant: broken.into(),
            locks: LockOptions::locking(),
            ..Config::default()
        },
    )
    .await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut client = connect(&gateway).await.expect("a session");
    let mut other = connect(&gateway).await.expect("a session");
    reads.next_by(Fault::DelayAnswer(SOON * 2));
    let refusing = answered(&mut client, set("/a/b/c"));
    let making = async {
        // The read found that `/a` is missing.
        clock.sleep(SOON).await;
        answered(&mut other, create("/a", Lifetime::Persistent)).await;
        sends.next_by(Fault::Delay(SOON * 4));
        // The refusal is decided, and will be pushed.
        clock.sleep(SOON * 2).await;
        answered(&mut other, create("/a/b", Lifetime::Persistent)).await;
        answered(&mut other, create("/a/b/c", Lifetime::Persistent)).await
    };
    let ((refused, is_refused), (made, _)) = tokio::join!(refusing, making);
    assert!(is_refused, "nothing was there when it was looked for");
    (refused, made)
}

/// C-3, C3.
#[test]
fn a_refusal_comes_before_the_change_that_contradicts_it() {
    let (refused, made) = simulated::run(refused_and_made(None));
    assert!(refused < made, "refused at {refused:?}, made at {made:?}");
}

/// C-3, broken.
#[test]
fn locking_ancestors_by_a_stale_read_is_caught() {
    let (refused, made) = simulated::run(refused_and_made(Some(
        Broken::LocksAncestorsByUnlockedReads,
    )));
    assert!(refused > made, "refused at {refused:?}, made at {made:?}");
}

/// The calls to its stores of a `request` that is refused because a znode is missing.
async fn calls(client: &mut Client, meter: &Meter, request: Request) -> u64 {
    let before = meter.usage().calls();
    assert_eq!(result(client, request).await, Err(Error::NoNode));
    meter.usage().calls() - before
}

/// C-3: a request for a missing znode does not make a server lock hundreds of levels.
#[test]
fn a_refusal_costs_about_as_much_at_any_depth() {
    simulated::run(async {
        let (world, meter) = (World::new(1), Arc::new(Meter::default()));
        let items = Arc::new(MeteredKeyValue::new(world.key_value(), meter.clone()));
        let parts = Parts {
            system: items.clone(),
            items,
            ..parts(&world)
        };
        let service = following_with(&world, parts, Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        result(&mut client, create("/there", Lifetime::Persistent))
            .await
            .expect("it is made");
        let requests: [fn(&str) -> Request; 3] = [
            |path| create(path, Lifetime::Persistent),
            |path| Request::Delete {
                path: path.into(),
                version: -1,
            },
            set,
        ];
        for top in ["", "/there"] {
            for request in requests {
                let near = calls(&mut client, &meter, request(&format!("{top}/a/a"))).await;
                let far = calls(
                    &mut client,
                    &meter,
                    request(&format!("{top}{}", "/a".repeat(LEVELS))),
                )
                .await;
                assert!(
                    far <= near + CALLS_MORE,
                    "{far} calls for {LEVELS} levels, {near} for two"
                );
            }
        }
    });
}
