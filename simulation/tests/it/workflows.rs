//! W1 to W4: runs whose process dies between any two calls of its store, whose store falls back,
//! and whose steps fail after they have written.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use fastrand::Rng;
use functions::manifest::workflow::Workflow;
use ports::{
    key_value::SharedKeyValue,
    runtime::{FunctionError, Invocation, Ran},
};
use simulated::World;
use simulation::transactions::{
    crashable::{CrashableKeyValue, Life, Side},
    scenario::seeds,
};
use transactions::Parts as TransactionParts;
use workflows::{Broken, FarStores, Options, Parts, Runner, Service, Status};

/// The steps of each run.
const STEPS: usize = 4;
/// The runs of each seed.
const RUNS: usize = 3;
/// The deaths of each seed.
const DEATHS: usize = 4;
/// The most calls of a life before it ends.
const CALLS_MAX: u64 = 120;
const SEEDS_UNTIL_CAUGHT: u64 = 400;
/// The most seeds: many times more than any of the mutants needs.
const SEEDS_MAX: u64 = 200;

/// The code of the steps: each adds one to the count of its run, and some fail afterwards.
#[derive(Debug)]
struct Code {
    service: OnceLock<Service>,
    rng: Mutex<Rng>,
    fails_one_in: usize,
    life: Life,
}

#[async_trait]
impl Runner for Code {
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        (name == "counts").then(|| Arc::new(workflow()))
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        BTreeMap::from([("counts".to_owned(), Arc::new(workflow()))])
    }

    fn retries(&self, _: &str) -> Option<u32> {
        Some(100)
    }

    async fn run(&self, _: &str, invocation: Invocation) -> Result<Ran, String> {
        let answer = tokio::select! {
            biased;
            () = self.life.over() => std::future::pending().await,
            answer = self.add_one(&invocation) => answer,
        };
        let failed = |why: String| FunctionError {
            payload: Bytes::from(format!("{{\"errorMessage\":\"{why}\"}}")),
        };
        Ok(Ran {
            result: answer.map_err(failed),
            log_tail: Bytes::new(),
        })
    }
}

fn workflow() -> Workflow {
    let steps = ["\"add\""; STEPS].join(",");
    serde_json::from_str(&format!("{{\"steps\":[{steps}]}}")).expect("a workflow")
}

impl Code {
    async fn add_one(&self, invocation: &Invocation) -> Result<Bytes, String> {
        let service = self.service.get().expect("it serves");
        let token = invocation.scope.as_deref().expect("a step");
        let run = String::from_utf8(invocation.payload.to_vec())
            .expect("text")
            .trim_matches('"')
            .to_owned();
        let key = Bytes::from(format!("count/{run}"));
        let before = service
            .get(token, &key)
            .await
            .map_err(|error| error.to_string())?;
        let count = number(before.as_ref()) + 1;
        let put = service.put(token, key, Some(Bytes::from(count.to_string())));
        put.await.map_err(|error| error.to_string())?;
        let fails = self.fails_one_in > 0
            && self
                .rng
                .lock()
                .expect("no panic")
                .usize(..self.fails_one_in)
                == 0;
        if fails {
            Err("it fails after it has written".to_owned())
        } else {
            Ok(invocation.payload.clone())
        }
    }
}

fn number(value: Option<&Bytes>) -> u64 {
    value.map_or(0, |value| {
        String::from_utf8_lossy(value).parse().expect("a number")
    })
}

#[derive(Debug)]
struct Nowhere;

#[async_trait]
impl FarStores for Nowhere {
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue> {
        Err(ports::Error::invalid(format!("open {address}")))
    }
}

/// One process.
struct Process {
    service: Service,
    life: Life,
    background: tokio::task::JoinHandle<()>,
}

impl Process {
    /// None: it died before it served.
    async fn boot(world: &World, life: &Life, options: Options, rng: Rng) -> Option<Self> {
        let key_value: SharedKeyValue =
            Arc::new(CrashableKeyValue::new(world.key_value(), life.clone()));
        let (clock, entropy) = (world.clock(), world.entropy());
        let parts = TransactionParts {
            key_value: Arc::clone(&key_value),
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
        };
        let engine = transactions::Service::builder(parts).build(transactions::Config::default());
        let engine = Arc::new(engine);
        let code = Arc::new(Code {
            service: OnceLock::new(),
            rng: Mutex::new(rng),
            fails_one_in: 4,
            life: life.clone(),
        });
        let parts = Parts {
            runner: Arc::clone(&code) as _,
            key_value,
            transactions: engine.engine(),
            far_stores: Arc::new(Nowhere),
            clock,
            entropy,
        };
        let backoff = Duration::from_millis(1);
        let service = Service::new(parts, Options { backoff, ..options });
        code.service.set(service.clone()).expect("once");
        let starting = async {
            while engine.start().await.is_err() || service.start().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            biased;
            () = life.over() => return None,
            () = starting => {}
        }
        let runner = Arc::clone(&engine);
        let background = tokio::spawn(async move { runner.run().await });
        Some(Self {
            service,
            life: life.clone(),
            background,
        })
    }

    /// Ends the process, which loses its memory.
    async fn end(self) {
        self.life.end();
        self.background.abort();
        self.service.stop().await;
    }
}

/// Runs that are begun repeatedly until each was seen to succeed, through deaths. Errors: the
/// violation.
async fn play(seed: u64, broken: Option<Broken>) -> Result<(), String> {
    let world = World::new(seed);
    let mut rng = Rng::with_seed(seed);
    let mut shown: BTreeMap<String, Bytes> = BTreeMap::new();
    let options = Options {
        mutant: broken.into(),
        ..Options::default()
    };
    for death in 0..=DEATHS {
        let life = Life::default();
        let is_last = death == DEATHS;
        if !is_last {
            let side = if rng.bool() {
                Side::Before
            } else {
                Side::After
            };
            life.ends_after(rng.u64(..CALLS_MAX), side);
        }
        let process = Process::boot(&world, &life, options.clone(), rng.fork()).await;
        if let Some(process) = process {
            let looked = tokio::select! {
                biased;
                () = life.over() => Ok(()),
                looked = look(&process.service, &mut shown) => looked,
            };
            process.end().await;
            looked?;
        }
        if rng.bool() {
            world.crash();
        }
    }
    if shown.len() == RUNS {
        Ok(())
    } else {
        Err(format!(
            "unfinished: {} of {RUNS} runs have ended",
            shown.len()
        ))
    }
}

/// Begins all runs, waits for them, and checks their counts.
async fn look(service: &Service, shown: &mut BTreeMap<String, Bytes>) -> Result<(), String> {
    for run in (0..RUNS).map(|run| format!("run-{run}")) {
        let said = |error: workflows::Error| format!("refused: {error}");
        if shown.contains_key(&run) {
            let view = service.run("counts", &run).await;
            let view =
                view.map_err(|error| format!("lost: {run} was seen to succeed, and now: {error}"))?;
            if view.status != Status::Succeeded {
                return Err(format!(
                    "lost: {run} was seen to succeed, and is {:?}",
                    view.status
                ));
            }
        } else {
            let input = Bytes::from(format!("\"{run}\""));
            service
                .begin("counts", Some(&run), input)
                .await
                .map_err(said)?;
            let view = service
                .wait("counts", &run, Duration::from_mins(5))
                .await
                .map_err(said)?;
            if view.status != Status::Succeeded {
                return Err(format!(
                    "unfinished: {run} is {:?}: {:?}",
                    view.status, view.error
                ));
            }
            shown.insert(
                run.clone(),
                Bytes::from(view.output.expect("an output").get().to_owned()),
            );
        }
        let key = Bytes::from(format!("count/{run}"));
        let count = number(service.state("counts", &key).await.map_err(said)?.as_ref());
        if count != STEPS as u64 {
            return Err(format!(
                "counted: {run} has counted {count} steps of {STEPS}"
            ));
        }
    }
    Ok(())
}

fn is_caught(broken: Broken, by: &str) {
    let caught =
        (0..SEEDS_UNTIL_CAUGHT).find_map(|seed| simulated::run(play(seed, Some(broken))).err());
    let caught =
        caught.unwrap_or_else(|| panic!("{broken:?} was not caught by {SEEDS_UNTIL_CAUGHT} seeds"));
    assert!(caught.starts_with(by), "{broken:?}: {caught}");
}

/// W1, W2, W3, W4.
#[test]
fn every_step_takes_effect_once_despite_deaths() {
    let seeds_max = simulated::number("WORKFLOWS_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    for seed in asked.start..asked.end.min(asked.start + seeds_max) {
        let played = simulated::run(play(seed, None));
        assert_eq!(played, Ok(()), "seed {seed}");
    }
}

/// W2, broken.
#[test]
fn writing_through_is_caught() {
    is_caught(Broken::WritesThrough, "counted");
}

/// W2, broken.
#[test]
fn a_result_before_its_writes_is_caught() {
    is_caught(Broken::ResultBeforeWrites, "counted");
}

/// W2, broken.
#[test]
fn steps_without_ids_are_caught() {
    is_caught(Broken::NamesNoStep, "counted");
}

/// W3, broken.
#[test]
fn answering_before_it_is_durable_is_caught() {
    is_caught(Broken::AnswersBeforeDurable, "lost");
}

/// W8.
#[test]
fn old_and_surplus_runs_are_removed() {
    let kept = |options: Options, pause: Duration| {
        simulated::run(async {
            let (world, life) = (World::new(1), Life::default());
            let process = Process::boot(&world, &life, options, Rng::with_seed(1))
                .await
                .expect("it lives");
            for run in ["a", "b", "c"] {
                process
                    .service
                    .begin("counts", Some(run), Bytes::from("\"x\""))
                    .await
                    .expect("begun");
                process
                    .service
                    .wait("counts", run, Duration::from_mins(5))
                    .await
                    .expect("it ends");
                tokio::time::sleep(pause).await;
            }
            let (runs, _) = process
                .service
                .runs("counts", None, None)
                .await
                .expect("listed");
            process.end().await;
            runs.into_iter().map(|run| run.run).collect::<Vec<_>>()
        })
    };
    let (minutes, days) = (Duration::from_mins(2), Duration::from_hours(5 * 24));
    assert_eq!(kept(Options::default(), minutes), ["a", "b", "c"]);
    assert_eq!(
        kept(
            Options {
                finished_max: 1,
                ..Options::default()
            },
            minutes
        ),
        ["c"]
    );
    assert_eq!(kept(Options::default(), days), ["b", "c"]);
}
