//! Rule P1: a request is given up only for failures of its own planning.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use coordination::{
    Config, Error, Parts,
    broken::Broken,
    config::LockOptions,
    model::{Lifetime, Request, Response},
};
use ports::{
    Update,
    faults::{Fault, FaultSchedule, FaultyKeyValue, FaultyQueue},
    key_value::{Action, Change},
};
use simulated::{Options, World};

use crate::{
    faulty_updates::{FaultyUpdates, UpdateFault},
    poison::answers,
    single_service::{connect, create, following_with, parts},
};

/// The largest item: a session's row has room for a few of the requests below.
const ITEM_BYTES_MAX: usize = 8 * 1_024;

/// The data of each request: more than the part of a row that is decided together, so each is
/// decided alone.
const DATA_BYTES: usize = 1_200;

/// The number of waiting requests.
const REQUESTS: usize = 12;

/// How long a component is away: eight deliveries fail, and the ninth comes while the session
/// lives.
const AWAY_FOR: Duration = Duration::from_secs(25);

/// The component that is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// The user store of a region: decisions are not applied, and the row of their session fills
    /// up.
    Items,
    /// The store, only where requests are decided.
    Decisions,
    /// The queue to the distributor: decisions are not pushed, and their messages are not
    /// processed.
    DistributorQueue,
}

/// Refuses calls of one operation while it is switched on, except the first of them.
#[derive(Debug)]
struct Away {
    operation: &'static str,
    spared: AtomicUsize,
    is_on: Arc<AtomicBool>,
}

impl Away {
    fn new(operation: &'static str, spared: usize, is_on: &Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self {
            operation,
            spared: AtomicUsize::new(spared),
            is_on: is_on.clone(),
        })
    }
}

impl FaultSchedule for Away {
    fn next(&self, operation: &'static str) -> Fault {
        if operation != self.operation || !self.is_on.load(Ordering::Relaxed) {
            return Fault::None;
        }
        let spare = |left: usize| left.checked_sub(1);
        match self
            .spared
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spare)
        {
            Ok(_) => Fault::None,
            Err(_) => Fault::RefuseBefore,
        }
    }
}

fn is_decision(update: &Update) -> bool {
    let Change::Modify(actions) = &update.change else {
        return false;
    };
    actions
        .iter()
        .any(|action| matches!(action, Action::Append(name, _) if name.as_str() == "outbox"))
}

/// The parts of `world`; `what` is away while `is_away`.
fn parts_of(world: &World, what: What, is_away: &Arc<AtomicBool>) -> Parts {
    let parts = parts(world);
    match what {
        What::Items => {
            let away = Away::new("key_value.transact", 0, is_away);
            let items = Arc::new(FaultyKeyValue::new(world.key_value(), away, world.clock()));
            Parts {
                items,
                objects: world.objects(),

                ..parts
            }
        }
        What::Decisions => {
            let is_away = is_away.clone();
            let system = FaultyUpdates::new(world.key_value(), move |update| {
                let strikes = is_away.load(Ordering::Relaxed) && is_decision(update);
                if strikes {
                    UpdateFault::Refused
                } else {
                    UpdateFault::Made
                }
            });
            Parts { system, ..parts }
        }
        What::DistributorQueue => {
            // The client's messages are on their way.
            let away = Away::new(
                "queue.send",
                REQUESTS.div_ceil(world.queue().limits().batch_messages_max),
                is_away,
            );
            Parts {
                queue: Arc::new(FaultyQueue::new(world.queue(), away, world.clock())),
                ..parts
            }
        }
    }
}

/// A session sets a znode many times while a component is away. Returns all results.
async fn held_up(what: What, broken: Option<Broken>) -> Vec<Result<Response, Error>> {
    let mut options = Options::default();
    options.key_value.item_bytes_max = ITEM_BYTES_MAX;
    let (world, is_away) = (
        World::with_options(1, options),
        Arc::new(AtomicBool::new(false)),
    );
    let config = Config {
        mutant: broken.into(),
        locks: LockOptions {
            // The fault is in the single write that decides under locks.
            is_optimistic: what != What::Decisions,
            ..LockOptions::default()
        },
        ..Config::default()
    };
    let service = following_with(&world, parts_of(&world, what, &is_away), config).await;
    let mut client = connect(&service.gateway()).await.expect("a session");
    let made = answers(&mut client, vec![create("/a", Lifetime::Persistent)]).await;
    assert!(made[0].1.is_ok(), "{made:?}");
    let set = |_| Request::SetData {
        path: "/a".into(),
        data: Some(vec![1; DATA_BYTES].into()),
        version: -1,
    };
    let clock = world.clock();
    is_away.store(true, Ordering::Relaxed);
    let back = async {
        clock.sleep(AWAY_FOR).await;
        is_away.store(false, Ordering::Relaxed);
    };
    let (answers, ()) = tokio::join!(answers(&mut client, (0..REQUESTS).map(set).collect()), back);
    answers.into_iter().map(|(_, result)| result).collect()
}

/// The requests that were given up.
fn given_up(what: What, broken: Option<Broken>) -> Vec<usize> {
    let results = simulated::run(held_up(what, broken));
    (0..REQUESTS)
        .filter(|request| results[*request].is_err())
        .collect()
}

/// P1: a region, store or queue that returns is no reason to fail a request.
#[test]
fn a_request_that_is_held_up_by_others_is_not_given_up() {
    for what in [What::Items, What::Decisions, What::DistributorQueue] {
        assert_eq!(given_up(what, None), Vec::<usize>::new(), "{what:?}");
    }
}

/// P1, broken.
#[test]
fn counting_planned_requests_as_failures_is_caught() {
    for what in [What::Items, What::Decisions] {
        assert_eq!(
            given_up(what, Some(Broken::CountsSuccessfulPlannings)).len(),
            1,
            "{what:?}"
        );
    }
}
