//! Many faults at once: lost answers, refusals, delays, crashes of the store and of nodes, for many
//! seeds.
//!
//! Each writer writes one number to all its keys in one transaction, again and again, under client
//! ids. Readers must see one number in all of them. In the end each writer's keys hold the last
//! acknowledged number, or a later one.

use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use simulated::{World, percent};
use transactions::{
    Config, Error, Parts, Service,
    broken::Broken,
    model::{Begin, Begun, Call, Outcome},
};

use crate::house::{bytes, id, key};

const SEEDS: u64 = 150;
const WRITERS: usize = 3;
const ROUNDS: usize = 12;
const KEYS: [&str; 3] = ["a", "b", "c"];

async fn start(world: &World, config: &Config) -> Service {
    loop {
        let (key_value, clock) = (world.key_value(), world.skewed_clock());
        let parts = Parts {
            key_value,
            clock,
            entropy: world.entropy(),
        };
        let service = Service::new(parts, config.clone());
        if service.start().await.is_ok() {
            return service;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes `number` under its id until that is committed; false if the node is gone.
async fn write(service: &Service, writer: usize, number: usize) -> Result<(), Error> {
    let engine = service.engine();
    let name = id(&format!("{writer}/{number}"));
    let call = match engine
        .begin(Begin {
            id: Some(name),
            ..Begin::default()
        })
        .await?
        .value
    {
        Begun::Committed { .. } => return Ok(()),
        Begun::Open { id, attempt } => Call {
            id,
            attempt: Some(attempt),
        },
    };
    for part in KEYS {
        engine
            .put(
                &call,
                key(&format!("{writer}{part}")),
                bytes(&number.to_string()),
            )
            .await?;
    }
    engine.commit(&call).await.map(drop)
}

/// The numbers that one transaction reads of a writer's keys.
async fn read(service: &Service, writer: usize) -> Result<Vec<usize>, Error> {
    let engine = service.engine();
    let begun = engine.begin(Begin::default()).await?.value;
    let Begun::Open { id, attempt } = begun else {
        panic!("generated ids are new")
    };
    let call = Call {
        id,
        attempt: Some(attempt),
    };
    let mut numbers = Vec::new();
    for part in KEYS {
        let shown = engine.get(&call, &key(&format!("{writer}{part}"))).await?;
        engine.externalize(shown.point).await?;
        let text = shown
            .value
            .map(|value| String::from_utf8(value.to_vec()).expect("text"));
        numbers.push(text.map_or(0, |text| text.parse().expect("a number")));
    }
    engine.abort(&call).await?;
    Ok(numbers)
}

/// The violations that a storm found.
#[derive(Debug, PartialEq, Eq)]
enum Violation {
    Fractured(Vec<usize>),
    Lost {
        acknowledged: usize,
        found: Vec<usize>,
    },
    Refused(Error),
}

fn whole(numbers: Vec<usize>) -> Result<Vec<usize>, Violation> {
    let is_whole = numbers.iter().all(|number| *number == numbers[0]);
    if is_whole {
        Ok(numbers)
    } else {
        Err(Violation::Fractured(numbers))
    }
}

/// Each writer writes and each reader reads once; `None` if a node crashed, or its store was reset.
async fn round(
    service: &Service,
    number: usize,
    dies_after: Option<Duration>,
) -> Option<(Vec<Result<(), Error>>, Vec<Result<Vec<usize>, Error>>)> {
    let all = async {
        let writes = (0..WRITERS).map(|writer| write(service, writer, number));
        let reads = (0..WRITERS).map(|writer| read(service, writer));
        futures_util::join!(join_all(writes), join_all(reads))
    };
    tokio::select! {
        biased;
        done = all => Some(done),
        () = service.run() => None,
        () = tokio::time::sleep(dies_after.unwrap_or_default()), if dies_after.is_some() => None,
    }
}

fn judge_write(result: Result<(), Error>) -> Result<bool, Violation> {
    match result {
        Ok(()) => Ok(true),
        Err(
            Error::Unavailable(_)
            | Error::OutcomeUnknown
            | Error::TransactionFinished(Outcome::Aborted),
        ) => Ok(false),
        Err(error) => Err(Violation::Refused(error)),
    }
}

async fn storm(seed: u64, broken: Option<Broken>) -> Result<(), Violation> {
    let world = World::new(seed);
    let config = Config {
        mutant: broken.into(),
        ..Config::default()
    };
    let mut random = Rng::with_seed(seed);
    let faults = world.faults();
    faults.delay(
        percent(30),
        Duration::from_micros(1)..=Duration::from_millis(20),
    );
    faults.refuse(percent(random.u32(0..6)));
    faults.lose_answer(percent(random.u32(0..6)));
    let mut acknowledged = [0; WRITERS];
    let mut service = start(&world, &config).await;
    for number in 1..=ROUNDS {
        let dies_after = (random.u8(..3) == 0).then(|| Duration::from_millis(random.u64(1..80)));
        if let Some((writes, reads)) = round(&service, number, dies_after).await {
            for (writer, result) in writes.into_iter().enumerate() {
                if judge_write(result)? {
                    acknowledged[writer] = number;
                }
            }
            for numbers in reads.into_iter().flatten() {
                whole(numbers)?;
            }
        } else {
            if random.bool() {
                world.crash_keeping_some();
            }
            drop(service);
            service = start(&world, &config).await;
        }
    }
    drop(service);
    world.crash();
    world.faults().calm();
    let service = start(&world, &config).await;
    for (writer, acknowledged) in acknowledged.into_iter().enumerate() {
        let found = whole(read(&service, writer).await.map_err(Violation::Refused)?)?;
        if found[0] < acknowledged {
            return Err(Violation::Lost {
                acknowledged,
                found,
            });
        }
    }
    Ok(())
}

/// T1, T2, T4, T5.
#[test]
fn acknowledged_commits_survive_whole() {
    for seed in 0..SEEDS {
        assert_eq!(simulated::run(storm(seed, None)), Ok(()), "seed {seed}");
    }
}

/// The test above would notice.
#[test]
fn a_storm_catches_what_is_dropped() {
    for broken in [
        Broken::RecordBeforeData,
        Broken::AnswersBeforeDurable,
        Broken::SkipsCowrittenOfCandidate,
        Broken::ForgetsAbsence,
    ] {
        let caught = (0..SEEDS).find_map(|seed| simulated::run(storm(seed, Some(broken))).err());
        assert!(caught.is_some(), "{broken:?}");
    }
}
