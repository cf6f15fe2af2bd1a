//! W1 to W4 and W9 with a far store, and rules P5, W-2 and W-3. Processes die at any call of either
//! store, a near store is lost, a server is partitioned while another takes over, and a far store
//! is slow, unavailable, late or gets calls twice.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use simulation::{
    transactions::{
        crashable::{Life, Side},
        scenario::seeds,
    },
    workflows::{
        checks::Claim,
        cluster::{Cluster, Process},
        definitions::{
            ASKS, BEFORE, COPIES, COUNTS, FAILS, FIRST, HURRIES, MINDS, OVERFLOWS, PEEKS, SECOND,
            SENDS, STEPS,
        },
        receivers::Receivers,
    },
};
use transactions::model::Key;
use workflows::{Broken, Options, Status};

/// The deaths of each seed.
const DEATHS: usize = 4;
/// The most calls of a life before it ends.
const CALLS_MAX: u64 = 1_500;
/// The most seeds: each runs several servers.
const SEEDS_MAX: u64 = 60;
const SEEDS_UNTIL_CAUGHT: u64 = 400;
/// The time limit of all runs without faults.
const END_MAX: Duration = Duration::from_mins(30);
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(100);

/// The observed outcome of each run.
type Shown = BTreeMap<(&'static str, String), String>;

fn names(runs: usize) -> Vec<String> {
    (0..runs).map(|run| format!("run-{run}")).collect()
}

/// Begins all runs, waits for their ends, and checks that their outcomes do not change.
async fn look(
    process: &Process,
    receivers: &Receivers,
    runs: &[String],
    shown: &mut Shown,
) -> Result<(), String> {
    for run in runs {
        for workflow in [COUNTS, SECOND, FIRST] {
            while process.begin(workflow, run).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    for (workflow, run) in runs
        .iter()
        .flat_map(|run| [COUNTS, FIRST, SECOND].map(|of| (of, run)))
    {
        let view = loop {
            match process
                .service
                .wait(workflow, run, Duration::from_mins(5))
                .await
            {
                Ok(view) if view.status != Status::Running => break view,
                _ => tokio::time::sleep(AGAIN).await,
            }
        };
        if view.status != Status::Succeeded {
            return Err(format!(
                "unfinished: {workflow} {run} is {:?}: {:?}",
                view.status, view.error
            ));
        }
        let claim = Claim::Succeeded {
            workflow: workflow.to_owned(),
            run: run.clone(),
        };
        receivers.received_messages().claim(claim);
        let came_to = format!("{:?} at {:?}", view.output, view.ended_ms);
        let before = shown
            .entry((workflow, run.clone()))
            .or_insert_with(|| came_to.clone());
        if *before != came_to {
            return Err(format!(
                "ended twice: {workflow} {run} came to {before}, and to {came_to}"
            ));
        }
    }
    Ok(())
}

async fn check(cluster: &Cluster, runs: &[String]) -> Result<(), String> {
    let far = cluster.look_far().await;
    let mut wrong = cluster.receivers.received_messages().check(&far);
    wrong.extend(far.check(runs));
    wrong.into_iter().next().map_or(Ok(()), Err)
}

/// Checks that all messages have arrived in order, once everything has ended.
async fn all_arrived(cluster: &Cluster, runs: &[String]) -> Result<(), String> {
    for run in runs {
        let each =
            (0..STEPS).flat_map(|path| SENDS.map(|more| format!("{COUNTS} {run} {path} {more}")));
        let expected: Vec<String> = each.collect();
        let noted = cluster.receivers.received_messages();
        let received = noted.received(&format!("{COUNTS} {run} "));
        if received != expected {
            return Err(format!("unsent: of {run} came {received:?}"));
        }
        for workflow in [FIRST, SECOND] {
            if noted.received(&format!("{workflow} {run} ")).len() != 1 {
                return Err(format!("unsent: {workflow} {run} has sent nothing"));
            }
        }
    }
    match cluster.look_far().await.unsent() {
        0 => Ok(()),
        left => Err(format!("unsent: {left} rows are left")),
    }
}

/// The last server, without faults, which completes everything.
async fn finish(cluster: &mut Cluster, runs: &[String], shown: &mut Shown) -> Result<(), String> {
    cluster.far_faults.calm();
    let process = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    let looked =
        tokio::time::timeout(END_MAX, look(&process, &cluster.receivers, runs, shown)).await;
    looked.map_err(|_| "unfinished: not everything has ended".to_owned())??;
    let mut arrived = Err("unsent".to_owned());
    for _ in 0..600 {
        arrived = all_arrived(cluster, runs).await;
        if arrived.is_ok() {
            break;
        }
        tokio::time::sleep(AGAIN).await;
    }
    process.end().await;
    check(cluster, runs).await?;
    arrived
}

/// A server that is partitioned from the far store, and runs on beside its successor.
async fn overtaken(
    cluster: &mut Cluster,
    rng: &mut Rng,
    runs: &[String],
    shown: &mut Shown,
) -> Result<(), String> {
    let some = |rng: &mut Rng| Duration::from_millis(rng.u64(..3_000));
    let Some(old) = cluster.boot(&Life::default()).await else {
        return Ok(());
    };
    let looked = tokio::time::timeout(some(rng), look(&old, &cluster.receivers, runs, shown)).await;
    looked.unwrap_or(Ok(()))?;
    old.cut();
    cluster.lose_near();
    let new = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    let looked = tokio::time::timeout(
        some(rng) + some(rng),
        look(&new, &cluster.receivers, runs, shown),
    )
    .await;
    old.mend();
    tokio::time::sleep(Duration::from_secs(1)).await;
    old.end().await;
    new.end().await;
    looked.unwrap_or(Ok(()))
}

/// Runs through deaths. Errors: the violation.
async fn play(seed: u64, broken: Option<Broken>) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut cluster = Cluster::far(
        seed,
        Options {
            mutant: broken.into(),
            ..Options::default()
        },
    )
    .await;
    cluster.synchrony = ["serial", "sync"]
        .get(rng.usize(..8))
        .copied()
        .unwrap_or("external");
    let (runs, mut shown) = (names(2), Shown::new());
    for _ in 0..DEATHS {
        cluster.far_faults.blow();
        if rng.usize(..4) == 0 {
            overtaken(&mut cluster, &mut rng, &runs, &mut shown).await?;
            check(&cluster, &runs).await?;
            continue;
        }
        let (life, side) = (
            Life::default(),
            if rng.bool() {
                Side::Before
            } else {
                Side::After
            },
        );
        life.ends_after(rng.u64(..CALLS_MAX), side);
        let away = (rng.usize(..3) == 0).then(|| (rng.u64(..2_000), rng.u64(..20_000)));
        let far_faults = cluster.far_faults.clone();
        let passing = tokio::spawn(async move {
            let Some((from, during)) = away else { return };
            tokio::time::sleep(Duration::from_millis(from)).await;
            far_faults.leave();
            tokio::time::sleep(Duration::from_millis(during)).await;
            far_faults.come_back();
        });
        if let Some(process) = cluster.boot(&life).await {
            let looked = process
                .ask(look(&process, &cluster.receivers, &runs, &mut shown))
                .await;
            process.end().await;
            looked.unwrap_or(Ok(()))?;
        }
        passing.abort();
        cluster.far_faults.come_back();
        match rng.usize(..3) {
            0 => cluster.lose_near(),
            1 => cluster.near.crash(),
            _ => {}
        }
        check(&cluster, &runs).await?;
    }
    finish(&mut cluster, &runs, &mut shown).await
}

fn is_caught(broken: Broken, by: &str) {
    let caught =
        (0..SEEDS_UNTIL_CAUGHT).find_map(|seed| simulated::run(play(seed, Some(broken))).err());
    let caught =
        caught.unwrap_or_else(|| panic!("{broken:?} was not caught by {SEEDS_UNTIL_CAUGHT} seeds"));
    assert!(caught.starts_with(by), "{broken:?}: {caught}");
}

/// W1, W2, W3, W4: no output depends on lost state, each run ends once, and the far store has a
/// causal prefix. A message that one workflow externalized half way is there for the other that
/// depends on it.
#[test]
fn runs_with_a_far_store_survive_all_deaths_and_failures() {
    let seeds_max = simulated::number("WORKFLOWS_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    for seed in asked.start..asked.end.min(asked.start + seeds_max) {
        let played = simulated::run(play(seed, None));
        assert_eq!(played, Ok(()), "seed {seed}");
    }
}

/// W2, W3, W4: the same if the server dies before each of its calls in turn, with its disk kept or
/// lost.
#[test]
fn a_run_survives_the_death_of_its_server_before_each_of_its_calls() {
    let dies = async |calls: u64, is_lost: bool| {
        let mut cluster = Cluster::far(calls, Options::default()).await;
        cluster.fails_one_in = 0;
        let (runs, mut shown, life) = (names(1), Shown::new(), Life::default());
        life.ends_after(calls, Side::Before);
        let mut has_died = true;
        if let Some(process) = cluster.boot(&life).await {
            let looked = process
                .ask(look(&process, &cluster.receivers, &runs, &mut shown))
                .await;
            has_died = looked.is_none();
            process.end().await;
            looked.unwrap_or(Ok(()))?;
        }
        if is_lost {
            cluster.lose_near();
        } else {
            cluster.near.crash();
        }
        check(&cluster, &runs).await?;
        finish(&mut cluster, &runs, &mut shown)
            .await
            .map(|()| has_died)
    };
    for is_lost in [false, true] {
        let mut calls = 0;
        loop {
            let died = simulated::run(dies(calls, is_lost));
            let died =
                died.unwrap_or_else(|wrong| panic!("call {calls}, lost: {is_lost}: {wrong}"));
            calls += 1;
            if !died {
                break;
            }
        }
        assert!(calls > 50, "{calls} calls are too few to prove anything");
    }
}

/// W3, broken.
#[test]
fn sending_before_it_is_far_is_caught() {
    is_caught(Broken::SendsBeforeFar, "early");
}

/// W3, broken: also if the far store provides durability.
#[test]
fn answering_before_it_is_far_is_caught() {
    is_caught(Broken::AnswersBeforeDurable, "lost");
}

/// W2, broken.
#[test]
fn forgetting_unsent_messages_is_caught() {
    is_caught(Broken::ForgetsUnsent, "unsent");
}

/// W2, broken.
#[test]
fn giving_messages_new_ids_is_caught() {
    is_caught(Broken::NamesSendsAnew, "new id");
}

/// The reads of a step's transaction while the far store is away, and after its return.
async fn copied(broken: Option<Broken>) -> (Option<Bytes>, Option<Bytes>) {
    let mut cluster = Cluster::far(
        1,
        Options {
            mutant: broken.into(),
            ..Options::default()
        },
    )
    .await;
    cluster.fails_one_in = 0;
    let process = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    process.begin(COUNTS, "before").await.expect("begun");
    process
        .service
        .wait(COUNTS, "before", END_MAX)
        .await
        .expect("it ends");
    cluster.far_faults.leave();
    process.begin(COPIES, "run").await.expect("begun");
    tokio::time::sleep(Duration::from_mins(2)).await;
    let key = Key::new("copy/run").expect("a key");
    let hidden = process
        .engine
        .get_now(&key)
        .await
        .expect("it is near")
        .value;
    cluster.far_faults.calm();
    let ended = process
        .service
        .wait(COPIES, "run", END_MAX)
        .await
        .expect("it ends");
    assert_eq!(ended.status, Status::Succeeded);
    let shown = process
        .engine
        .get_now(&key)
        .await
        .expect("it is near")
        .value;
    process.end().await;
    (hidden, shown)
}

/// W3: a transaction is in another store than the run, so it is an output (P5).
#[test]
fn a_transaction_in_a_step_waits_until_the_dependencies_of_its_run_are_far() {
    let one = Some(Bytes::from("1"));
    assert_eq!(simulated::run(copied(None)), (None, one.clone()));
    assert_eq!(
        simulated::run(copied(Some(Broken::CountsElsewhereBeforeFar))),
        (one.clone(), one)
    );
}

/// W3: a failure is output too.
#[test]
fn the_failure_of_a_run_is_shown_once_its_dependencies_are_far() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        process.begin(COUNTS, "before").await.expect("begun");
        process
            .service
            .wait(COUNTS, "before", END_MAX)
            .await
            .expect("it ends");
        cluster.far_faults.leave();
        process.begin(FAILS, "run").await.expect("begun near");
        tokio::time::sleep(Duration::from_mins(2)).await;
        let hidden = process.service.run(FAILS, "run").await;
        assert!(hidden.is_err(), "{hidden:?}");
        assert_eq!(cluster.look_far().await.status(FAILS, "run"), None);
        cluster.far_faults.calm();
        let shown = process
            .service
            .wait(FAILS, "run", END_MAX)
            .await
            .expect("it is shown");
        assert_eq!(shown.status, Status::Failed);
        assert_eq!(cluster.look_far().await.steps(FAILS, "run"), ["0"]);
        process.end().await;
    });
}

/// W3, W-3: a server that shuts down leaves nothing behind, and its successor does not wait for its
/// lease.
#[test]
fn a_server_that_stops_releases_the_far_store_with_all_its_writes() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        process.begin(COUNTS, "run").await.expect("begun");
        tokio::time::sleep(Duration::from_millis(200)).await;
        process.service.stop().await;
        let stopped = cluster.look_far().await;
        process.end().await;
        cluster.lose_near();
        let clock = cluster.near.clock();
        let began = clock.monotonic();
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        process.begin(COUNTS, "another").await.expect("begun");
        assert!(
            clock.monotonic().since(began) < Duration::from_secs(1),
            "it waited for a lease"
        );
        let left = stopped.steps(COUNTS, "run").len() as u64;
        assert!(left > 0, "it had begun");
        let ended = process
            .service
            .wait(COUNTS, "run", END_MAX)
            .await
            .expect("it goes on");
        assert_eq!(ended.status, Status::Succeeded);
        let steps = process.service.steps(COUNTS, "run").await.expect("listed");
        assert_eq!(steps.len() as u64, STEPS);
        process.end().await;
    });
}

/// W2: regardless of how its code handles a failed `externalize`.
#[test]
fn a_step_with_a_failed_externalize_does_not_take_effect() {
    let ended = async |broken: Option<Broken>| {
        let mut cluster = Cluster::far(
            1,
            Options {
                mutant: broken.into(),
                ..Options::default()
            },
        )
        .await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        process.begin(OVERFLOWS, "run").await.expect("begun");
        let ended = process
            .service
            .wait(OVERFLOWS, "run", END_MAX)
            .await
            .expect("it ends");
        process.end().await;
        ended.status
    };
    assert_eq!(simulated::run(ended(None)), Status::Failed);
    assert_eq!(
        simulated::run(ended(Some(Broken::CountsWithoutWhatIsMissing))),
        Status::Succeeded
    );
}

/// The status of a run a while after its near store fell back, just before a retry of a step.
async fn continued(options: Options) -> Status {
    let mut cluster = Cluster::far(1, options).await;
    cluster.fails_one_in = 0;
    let process = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    process.begin(SECOND, "run").await.expect("begun");
    // It receives no message.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.near.fall_back();
    while process.begin(FIRST, "run").await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    let ended = process
        .service
        .wait(SECOND, "run", END_MAX)
        .await
        .expect("it is shown");
    process.end().await;
    ended.status
}

/// W4: in one process, with any failure of its steps.
#[test]
fn a_run_continues_after_its_near_store_fell_back_between_two_attempts() {
    assert_eq!(
        simulated::run(continued(Options::default())),
        Status::Succeeded
    );
    let came_to = simulated::run(continued(Options {
        mutant: Broken::StaysInALostRange.into(),
        ..Options::default()
    }));
    assert_eq!(came_to, Status::Running, "the broken one is caught");
}

/// The end of a run of `workflow` whose far store is away for a while, and what it read there; it
/// has no retries.
async fn through_an_outage(workflow: &str, broken: Option<Broken>) -> (Status, Option<String>) {
    let mut cluster = Cluster::far(
        1,
        Options {
            mutant: broken.into(),
            ..Options::default()
        },
    )
    .await;
    cluster.fails_one_in = 0;
    let process = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    process.begin(COUNTS, BEFORE).await.expect("begun");
    process
        .service
        .wait(COUNTS, BEFORE, END_MAX)
        .await
        .expect("it ends");
    process.end().await;
    if workflow != HURRIES {
        // The next process must ask the far store; with near data no call would be refused.
        cluster.lose_near();
    }
    let process = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    while process.begin(workflow, "run").await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    // Its first attempt is in progress, for long.
    tokio::time::sleep(AGAIN).await;
    cluster.far_faults.leave();
    tokio::time::sleep(Duration::from_mins(5)).await;
    cluster.far_faults.calm();
    let ended = process
        .service
        .wait(workflow, "run", END_MAX)
        .await
        .expect("it ends");
    process.end().await;
    (ended.status, cluster.look_far().await.state("seen/run"))
}

/// W9: the request is refused or times out, or comes from a nested step or from another function.
#[test]
fn an_attempt_that_an_outage_of_the_far_store_ends_uses_no_retry() {
    for workflow in [PEEKS, HURRIES, MINDS, ASKS] {
        let ended = simulated::run(through_an_outage(workflow, None));
        assert_eq!(
            ended,
            (Status::Succeeded, Some("all".to_owned())),
            "{workflow}"
        );
    }
}

/// W9, broken.
#[test]
fn counting_an_outage_as_a_failure_is_caught() {
    let broken = Some(Broken::CountsOutages);
    for workflow in [PEEKS, HURRIES, ASKS] {
        assert_eq!(
            simulated::run(through_an_outage(workflow, broken)).0,
            Status::Failed,
            "{workflow}"
        );
    }
    let told = simulated::run(through_an_outage(MINDS, broken));
    assert_eq!(told, (Status::Succeeded, Some("nothing".to_owned())));
}

/// W9: an attempt that fails during an outage, without a request to the far store, has failed.
#[test]
fn an_attempt_that_fails_by_itself_during_an_outage_has_failed() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        process.begin(COUNTS, BEFORE).await.expect("begun");
        process
            .service
            .wait(COUNTS, BEFORE, END_MAX)
            .await
            .expect("it ends");
        cluster.far_faults.leave();
        process.begin(FAILS, "run").await.expect("begun near");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(process.service.active(), 0, "its end is written near");
        cluster.far_faults.calm();
        let ended = process
            .service
            .wait(FAILS, "run", END_MAX)
            .await
            .expect("it is shown");
        assert_eq!(ended.status, Status::Failed);
        process.end().await;
    });
}
