//! W1, W5 to W8 and W10, each with the mutant that drops it.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulation::{
    transactions::crashable::{Life, Side},
    workflows::{
        cluster::{Cluster, Process},
        definitions::{
            COUNTS, LATE, LATE_BY, LEAKS, LINGERS, LONG, NOTHING, SHARES, SLOW, SLOW_FOR, STEPS,
            WHOLE,
        },
    },
};
use transactions::model::Key;
use workflows::{Broken, Options, Status};

/// The time limit of a run.
const END_MAX: Duration = Duration::from_mins(30);

fn broken(rule: Broken) -> Options {
    Options {
        mutant: rule.into(),
        ..Options::default()
    }
}

async fn serve(cluster: &mut Cluster) -> Process {
    cluster.fails_one_in = 0;
    cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it")
}

async fn state(process: &Process, key: &str) -> Option<Bytes> {
    process
        .service
        .state(COUNTS, &Bytes::from(key.to_owned()))
        .await
        .expect("it is read")
}

/// Whether a run exists after its begin is acknowledged, which the store had refused before.
async fn begun_after_a_refusal(options: Options) -> bool {
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    // From here on the workflow is listed.
    process.begin(COUNTS, "first").await.expect("begun");
    process
        .service
        .wait(COUNTS, "first", END_MAX)
        .await
        .expect("it ends");
    cluster.near.fill_disk();
    process
        .begin(COUNTS, "run")
        .await
        .expect_err("there is no room");
    cluster.near.empty_disk();
    while process.begin(COUNTS, "run").await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let is_there = process.service.run(COUNTS, "run").await.is_ok();
    process.end().await;
    is_there
}

/// W1.
#[test]
fn a_run_whose_begin_was_refused_is_not_begun_until_it_is() {
    assert!(simulated::run(begun_after_a_refusal(Options::default())));
    let is_there = simulated::run(begun_after_a_refusal(broken(Broken::TakesDoubtForBegun)));
    assert!(!is_there, "the broken one is caught");
}

/// The visible writes of a failed atomic run, and of one whose process dies repeatedly.
async fn halves(options: Options) -> Vec<String> {
    let mut seen = Vec::new();
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    process.begin(NOTHING, "failed").await.expect("begun");
    let ended = process
        .service
        .wait(NOTHING, "failed", END_MAX)
        .await
        .expect("it ends");
    assert_eq!(ended.status, Status::Failed);
    seen.extend(
        state(&process, "count/failed")
            .await
            .map(|count| format!("failed: {count:?}")),
    );
    process.end().await;
    let mut rng = Rng::with_seed(7);
    let all = Bytes::from(STEPS.to_string());
    loop {
        let life = Life::default();
        life.ends_after(rng.u64(..200), Side::After);
        if let Some(process) = cluster.boot(&life).await {
            let looked = process.ask(async {
                // The state that the last process left, before this one begins anything.
                let count = state(&process, "count/whole")
                    .await
                    .filter(|count| *count != all);
                process.begin(WHOLE, "whole").await.expect("begun");
                (count, process.service.wait(WHOLE, "whole", END_MAX).await)
            });
            let looked = looked.await;
            process.end().await;
            if let Some((half, ended)) = looked {
                seen.extend(half.map(|count| format!("died: {count:?}")));
                assert_eq!(ended.expect("it is shown").status, Status::Succeeded);
                return seen;
            }
        }
        cluster.near.crash();
    }
}

/// W5.
#[test]
fn an_atomic_run_takes_effect_completely_or_not_at_all() {
    assert_eq!(
        simulated::run(halves(Options::default())),
        Vec::<String>::new()
    );
    let seen = simulated::run(halves(broken(Broken::CountsByParts)));
    assert!(!seen.is_empty(), "the broken one is caught");
}

/// The value written by a transaction in a step of an atomic run, after the run has failed.
async fn leaked(options: Options) -> Option<Bytes> {
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    process.begin(LEAKS, "run").await.expect("begun");
    let ended = process
        .service
        .wait(LEAKS, "run", END_MAX)
        .await
        .expect("it ends");
    assert_eq!(ended.status, Status::Failed);
    let leaked = state(&process, "copy/run").await;
    process.end().await;
    leaked
}

/// W5.
#[test]
fn nothing_that_an_atomic_run_has_not_committed_leaks_through_a_transaction() {
    assert_eq!(simulated::run(leaked(Options::default())), None);
    let leaked = simulated::run(leaked(broken(Broken::CountsElsewhereBeforeTheEnd)));
    assert!(leaked.is_some(), "the broken one is caught");
}

/// The total of several concurrent runs that add to one counter.
async fn shared(runs: usize, options: Options) -> Option<Bytes> {
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    let runs: Vec<String> = (0..runs).map(|run| format!("run-{run}")).collect();
    for run in &runs {
        process.begin(SHARES, run).await.expect("begun");
    }
    for run in &runs {
        let ended = process
            .service
            .wait(SHARES, run, END_MAX)
            .await
            .expect("it ends");
        assert_eq!(ended.status, Status::Succeeded, "{:?}", ended.error);
    }
    let shared = state(&process, SHARES).await;
    process.end().await;
    shared
}

/// W10.
#[test]
fn isolated_atomic_runs_are_serializable() {
    assert_eq!(
        simulated::run(shared(12, Options::default())),
        Some(Bytes::from_static(b"12"))
    );
    let shared = simulated::run(shared(12, broken(Broken::IsolatesNoRun)));
    assert_ne!(
        shared,
        Some(Bytes::from_static(b"12")),
        "the broken one is caught"
    );
}

/// W5: the step that receives the error does not fail because of it.
#[test]
fn an_atomic_run_whose_transaction_is_lost_runs_again() {
    let (status, error) = simulated::run(async {
        let mut cluster = Cluster::near(1, Options::default()).await;
        let process = serve(&mut cluster).await;
        process.begin(LINGERS, "run").await.expect("begun");
        let ended = process
            .service
            .wait(LINGERS, "run", 2 * END_MAX)
            .await
            .expect("it ends");
        process.end().await;
        (ended.status, ended.error.expect("it says why").to_string())
    });
    assert_eq!(status, Status::Failed);
    assert!(
        error.contains("its transaction was lost 10 times"),
        "{error}"
    );
}

/// The state of a cancelled run a while later, and after a restart.
async fn after_cancelling(options: Options) -> (Status, Option<Bytes>) {
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    process.begin(SLOW, "run").await.expect("begun");
    tokio::time::sleep(SLOW_FOR / 2).await;
    process
        .service
        .cancel(SLOW, "run")
        .await
        .expect("it is cancelled");
    tokio::time::sleep(2 * SLOW_FOR).await;
    process.end().await;
    let process = serve(&mut cluster).await;
    tokio::time::sleep(2 * SLOW_FOR).await;
    let status = process
        .service
        .run(SLOW, "run")
        .await
        .expect("it is shown")
        .status;
    let count = state(&process, "count/run").await;
    process.end().await;
    (status, count)
}

/// W6.
#[test]
fn a_cancelled_run_does_nothing_more_here_or_after_a_restart() {
    let cancelled = simulated::run(after_cancelling(Options::default()));
    assert_eq!(cancelled, (Status::Cancelled, None));
    let (_, count) = simulated::run(after_cancelling(broken(Broken::GoesOnAfterCancelling)));
    assert!(count.is_some(), "the broken one is caught");
}

/// The count of a run whose server dies late, after the ids of its first steps have expired and
/// others have written.
async fn counted_late(options: Options) -> Option<Bytes> {
    let mut cluster = Cluster::near(1, options).await;
    cluster.transactions.named_window = SLOW_FOR * 3 / 2;
    cluster.transactions.retry_window = SLOW_FOR / 6;
    let process = serve(&mut cluster).await;
    process.begin(LONG, "run").await.expect("begun");
    tokio::time::sleep(SLOW_FOR / 2).await;
    let key = Key::new("count/run").expect("short");
    process
        .engine
        .put_now(key, Some(Bytes::from_static(b"1")))
        .await
        .expect("it is written");
    tokio::time::sleep(SLOW_FOR * 2).await;
    process.end().await;
    let process = serve(&mut cluster).await;
    let ended = process
        .service
        .wait(LONG, "run", END_MAX)
        .await
        .expect("it ends");
    assert_eq!(ended.status, Status::Succeeded);
    let count = state(&process, "count/run").await;
    process.end().await;
    count
}

/// W2: in a run that takes longer than ids are kept.
#[test]
fn a_step_of_a_long_run_takes_effect_once() {
    assert_eq!(
        simulated::run(counted_late(Options::default())),
        Some(Bytes::from_static(b"2"))
    );
    let count = simulated::run(counted_late(broken(Broken::ConfirmsNoStep)));
    assert_eq!(
        count,
        Some(Bytes::from_static(b"3")),
        "the broken one is caught"
    );
}

/// How many requests took effect that attempts of several runs sent after their ends.
async fn late(options: Options) -> usize {
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    let mut late = 0;
    for run in ["a", "b"] {
        process.begin(LATE, run).await.expect("begun");
        process
            .service
            .wait(LATE, run, END_MAX)
            .await
            .expect("it ends");
        tokio::time::sleep(2 * LATE_BY).await;
        late += usize::from(state(&process, &format!("late/{run}")).await.is_some());
        assert_eq!(
            state(&process, &format!("tried/{run}")).await,
            Some(Bytes::from("1"))
        );
    }
    process.end().await;
    late
}

/// W7.
#[test]
fn requests_of_an_attempt_after_its_end_are_refused() {
    assert_eq!(simulated::run(late(Options::default())), 0);
    assert!(
        simulated::run(late(broken(Broken::HearsWhoHasEnded))) > 0,
        "the broken one is caught"
    );
}

/// Which of three runs still exist, with a few days between them.
async fn kept(options: Options) -> Vec<String> {
    let mut cluster = Cluster::near(1, options).await;
    let process = serve(&mut cluster).await;
    for run in ["a", "b", "c"] {
        process.begin(COUNTS, run).await.expect("begun");
        process
            .service
            .wait(COUNTS, run, END_MAX)
            .await
            .expect("it ends");
        tokio::time::sleep(Duration::from_hours(5 * 24)).await;
    }
    let (runs, _) = process
        .service
        .runs(COUNTS, None, None)
        .await
        .expect("listed");
    process.end().await;
    runs.into_iter().map(|run| run.run).collect()
}

/// W8: the other half, too many runs, is in `workflows`.
#[test]
fn runs_are_kept_for_a_week_and_no_longer() {
    assert_eq!(simulated::run(kept(Options::default())), ["b", "c"]);
    assert_eq!(
        simulated::run(kept(broken(Broken::ForgetsNoRun))),
        ["a", "b", "c"]
    );
    assert_eq!(
        simulated::run(kept(broken(Broken::ForgetsRunsAtOnce))),
        ["c"]
    );
}

/// W4: the caller was told that it may begin, and need not return.
#[test]
fn a_run_whose_begin_is_late_continues() {
    for late_by in [0, 2, 5, 9].map(Duration::from_secs) {
        simulated::run(async {
            let mut cluster = Cluster::near(1, Options::default()).await;
            cluster.fails_one_in = 0;
            let process = cluster
                .boot(&Life::default())
                .await
                .expect("nothing ends it");
            cluster.lateness.delay_next(late_by);
            process
                .begin(COUNTS, "run")
                .await
                .expect_err("the function times out");
            tokio::time::sleep(Duration::from_mins(1)).await;
            let shown = process
                .service
                .run(COUNTS, "run")
                .await
                .expect("it has begun");
            assert_eq!(shown.status, Status::Succeeded, "{late_by:?}");
            process.end().await;
        });
    }
}
