//! W4 to W6: several processes on one store with near workflows. One process at a time drives a
//! run.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use ports::{Key, Update, key_value::Value};
use simulated::Chance;
use simulation::{
    transactions::crashable::{Life, Side},
    workflows::{
        cluster::{Cluster, Process},
        definitions::{COUNTS, DAWDLES, DAWDLES_FOR, HASTENS, LONG, SLOW_FOR, STEPS, TELLS_LATE},
    },
};
use workflows::{Broken, Options, Status};

/// The time limit of a run.
const END_MAX: Duration = Duration::from_mins(10);
/// The time limit to take over the runs of a dead process.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// The latency of a slow store in each direction.
const CROSSING: Duration = Duration::from_millis(250);
/// Just before a step of [`DAWDLES`] ends.
const ALMOST_DAWDLES_FOR: Duration = Duration::from_millis(2_990);
/// The pause before a request is repeated.
const AGAIN: Duration = Duration::from_millis(50);

async fn shared(seed: u64, options: Options) -> Cluster {
    let mut cluster = Cluster::shared(seed, options).await;
    cluster.fails_one_in = 0;
    cluster
}

async fn boot(cluster: &mut Cluster) -> Process {
    cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it")
}

async fn count(process: &Process, run: &str) -> Option<Bytes> {
    process
        .service
        .state(COUNTS, &Bytes::from(format!("count/{run}")))
        .await
        .expect("it is read")
}

async fn wait_until(what: &str, most: Duration, mut holds: impl FnMut() -> bool) {
    let until = tokio::time::Instant::now() + most;
    while !holds() {
        assert!(tokio::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Other processes are asked to begin an atomic run as well, and start. Errors: the violation.
async fn beside_others(options: Options) -> Result<(), String> {
    let mut cluster = shared(1, options).await;
    let first = boot(&mut cluster).await;
    let second = boot(&mut cluster).await;
    first.begin(DAWDLES, "run").await.expect("begun");
    tokio::time::sleep(DAWDLES_FOR / 2).await;
    second.begin(DAWDLES, "run").await.expect("it is found");
    let third = boot(&mut cluster).await;
    tokio::time::sleep(DAWDLES_FOR).await;
    let at_it = [&first, &second, &third].map(|process| process.service.active());
    let ended = second
        .service
        .wait(DAWDLES, "run", END_MAX)
        .await
        .expect("it ends");
    let counted = count(&second, "run").await;
    for process in [first, second, third] {
        process.end().await;
    }
    let is_right = ended.status == Status::Succeeded && counted == Some(Bytes::from_static(b"2"));
    if at_it == [1, 0, 0] && is_right {
        return Ok(());
    }
    Err(format!(
        "{at_it:?} were at it, it is {:?} and has counted {counted:?}",
        ended.status
    ))
}

/// W4, W5.
#[test]
fn a_run_is_left_to_the_process_that_drives_it() {
    simulated::run(beside_others(Options::default())).expect("no other process drives it");
    let broken = Options {
        mutant: Broken::TakesFromTheLiving.into(),
        ..Options::default()
    };
    simulated::run(beside_others(broken)).expect_err("taking it over is caught");
}

/// Cancels a run at another process than the one that drives it. Errors: the violation.
async fn cancelled_elsewhere(options: Options) -> Result<(), String> {
    let mut cluster = shared(2, options).await;
    let first = boot(&mut cluster).await;
    let second = boot(&mut cluster).await;
    first.begin(LONG, "run").await.expect("begun");
    tokio::time::sleep(SLOW_FOR + SLOW_FOR / 2).await;
    let ended = second
        .service
        .cancel(LONG, "run")
        .await
        .map_err(|error| error.to_string())?;
    let steps = second
        .service
        .steps(LONG, "run")
        .await
        .expect("they are read")
        .len();
    tokio::time::sleep(4 * SLOW_FOR).await;
    let later = second
        .service
        .steps(LONG, "run")
        .await
        .expect("they are read")
        .len();
    let counted = count(&second, "run").await;
    let at_it = first.service.active();
    first.end().await;
    second.end().await;
    let is_right = ended.status == Status::Cancelled && counted == Some(Bytes::from_static(b"1"));
    if is_right && (steps, later, at_it) == (2, 2, 0) {
        return Ok(());
    }
    let status = ended.status;
    Err(format!(
        "{status:?}, {steps} steps and then {later}, counted {counted:?}, and {at_it} are at it"
    ))
}

/// W6.
#[test]
fn a_run_that_is_cancelled_at_another_process_does_nothing_more() {
    simulated::run(cancelled_elsewhere(Options::default())).expect("it has ended");
    let broken = Options {
        mutant: Broken::GoesOnAfterCancelling.into(),
        ..Options::default()
    };
    simulated::run(cancelled_elsewhere(broken)).expect_err("continuing it is caught");
}

/// W6: a cancellation does not wait for a dead process.
#[test]
fn a_run_is_ended_whose_process_has_died() {
    simulated::run(async {
        let mut cluster = shared(3, Options::default()).await;
        let first = boot(&mut cluster).await;
        let second = boot(&mut cluster).await;
        first.begin(LONG, "run").await.expect("begun");
        tokio::time::sleep(SLOW_FOR / 2).await;
        first.end().await;
        // The answer does not matter, because it takes longer than answers may.
        drop(second.service.cancel(LONG, "run").await);
        tokio::time::sleep(4 * SLOW_FOR).await;
        let ended = second.service.run(LONG, "run").await.expect("it is shown");
        assert_eq!(ended.status, Status::Cancelled);
        assert_eq!(count(&second, "run").await, Some(Bytes::from_static(b"1")));
        assert_eq!(second.service.active(), 0);
        second.end().await;
    });
}

/// W4: no process has to start or be asked for that.
#[test]
fn the_runs_of_a_process_that_dies_are_taken_up_by_another() {
    simulated::run(async {
        let mut cluster = shared(4, Options::default()).await;
        let first = boot(&mut cluster).await;
        let second = boot(&mut cluster).await;
        second.begin(LONG, "long").await.expect("begun");
        second.begin(DAWDLES, "atomic").await.expect("begun");
        tokio::time::sleep(DAWDLES_FOR / 2).await;
        second.end().await;
        wait_until("no process takes them over", TAKEN_WITHIN, || {
            first.service.active() == 2
        })
        .await;
        for (workflow, run) in [(LONG, "long"), (DAWDLES, "atomic")] {
            let ended = first
                .service
                .wait(workflow, run, END_MAX)
                .await
                .expect("it has it");
            assert_eq!(ended.status, Status::Succeeded, "{:?}", ended.error);
            assert_eq!(count(&first, run).await, Some(Bytes::from_static(b"2")));
        }
        first.end().await;
    });
}

/// W2, W4: the process that takes over has a lower number, and the other died at any point.
#[test]
fn steps_take_effect_once_when_their_process_dies_beside_another() {
    for calls in (0..120).step_by(3) {
        simulated::run(async {
            let mut cluster = shared(5, Options::default()).await;
            let first = boot(&mut cluster).await;
            let life = Life::default();
            let second = cluster.boot(&life).await.expect("nothing ends it yet");
            let side = if calls % 2 == 0 {
                Side::After
            } else {
                Side::Before
            };
            life.ends_after(calls, side);
            let begun = second.ask(second.begin(COUNTS, "run")).await;
            if begun.is_some() {
                second
                    .ask(second.service.wait(COUNTS, "run", END_MAX))
                    .await;
            }
            second.end().await;
            tokio::time::sleep(TAKEN_WITHIN).await;
            // It may have died before that.
            first.begin(COUNTS, "run").await.expect("begun");
            let ended = first
                .service
                .wait(COUNTS, "run", END_MAX)
                .await
                .expect("it ends");
            assert_eq!(
                ended.status,
                Status::Succeeded,
                "after {calls} calls: {:?}",
                ended.error
            );
            let counted = count(&first, "run").await;
            assert_eq!(
                counted,
                Some(Bytes::from(STEPS.to_string())),
                "after {calls} calls"
            );
            first.end().await;
        });
    }
}

/// W2, W4: a process that was considered dead, and rejoins as another node.
#[test]
fn a_process_considered_dead_changes_nothing_in_a_run_taken_over() {
    for beside in [true, false] {
        simulated::run(async {
            let mut cluster = shared(6, Options::default()).await;
            let first = boot(&mut cluster).await;
            let second = if beside {
                Some(boot(&mut cluster).await)
            } else {
                None
            };
            first.begin(LONG, "long").await.expect("begun");
            first.begin(DAWDLES, "atomic").await.expect("begun");
            first.begin(TELLS_LATE, "tells").await.expect("begun");
            tokio::time::sleep(DAWDLES_FOR / 2).await;
            let seat = first.seat.as_ref().expect("there are several");
            seat.cut_off();
            tokio::time::sleep(TAKEN_WITHIN).await;
            assert_eq!(
                second.as_ref().map_or(0, |second| second.service.active()),
                if beside { 3 } else { 0 }
            );
            seat.reconnect();
            let asked = second.as_ref().unwrap_or(&first);
            for (workflow, run) in [(LONG, "long"), (DAWDLES, "atomic")] {
                let ended = asked
                    .service
                    .wait(workflow, run, END_MAX)
                    .await
                    .expect("a process drives it");
                assert_eq!(ended.status, Status::Succeeded, "{:?}", ended.error);
                assert_eq!(count(asked, run).await, Some(Bytes::from_static(b"2")));
            }
            let ended = asked
                .service
                .wait(TELLS_LATE, "tells", END_MAX)
                .await
                .expect("a process drives it");
            assert_eq!(ended.status, Status::Succeeded, "{:?}", ended.error);
            wait_until("the first goes on", TAKEN_WITHIN, || {
                first.service.active() == 0
            })
            .await;
            first.end().await;
            if let Some(second) = second {
                second.end().await;
            }
        });
    }
}

/// W6, W7: a process that was considered dead, and continues a run that was ended meanwhile.
#[test]
fn a_process_considered_dead_changes_nothing_in_an_ended_run() {
    simulated::run(async {
        let mut cluster = shared(7, Options::default()).await;
        let first = boot(&mut cluster).await;
        let second = boot(&mut cluster).await;
        for workflow in [LONG, TELLS_LATE] {
            first.begin(workflow, "run").await.expect("begun");
        }
        tokio::time::sleep(SLOW_FOR / 3).await;
        let seat = first.seat.as_ref().expect("there are several");
        seat.cut_off();
        wait_until("no process takes them over", TAKEN_WITHIN, || {
            second.service.active() == 2
        })
        .await;
        for workflow in [LONG, TELLS_LATE] {
            let ended = second
                .service
                .cancel(workflow, "run")
                .await
                .expect("it is its own");
            assert_eq!(ended.status, Status::Cancelled);
        }
        seat.reconnect();
        tokio::time::sleep(4 * SLOW_FOR).await;
        let told = second
            .service
            .state(COUNTS, &Bytes::from_static(b"told/run"))
            .await;
        assert_eq!(told.expect("it is read"), None, "published");
        assert_eq!(
            second
                .service
                .steps(LONG, "run")
                .await
                .expect("they are read")
                .len(),
            1
        );
        assert_eq!(first.service.active(), 0);
        first.end().await;
        second.end().await;
    });
}

/// W6: the asked process may die as well, and so may its successor.
#[test]
fn a_cancelled_run_ends_though_both_the_asking_and_the_asked_process_die() {
    for (workflow, counted) in [(LONG, Some(Bytes::from_static(b"1"))), (DAWDLES, None)] {
        for calls in (0..100).step_by(4) {
            simulated::run(async {
                let mut cluster = shared(8, Options::default()).await;
                let first = boot(&mut cluster).await;
                let second = boot(&mut cluster).await;
                first.begin(workflow, "run").await.expect("begun");
                tokio::time::sleep(DAWDLES_FOR / 2).await;
                first.end().await;
                // No process knows yet that it is dead.
                tokio::time::timeout(DAWDLES_FOR / 6, second.service.cancel(workflow, "run"))
                    .await
                    .expect_err("it waits");
                second.end().await;
                let life = Life::default();
                life.ends_after(calls, Side::After);
                let third = cluster.boot(&life).await;
                tokio::time::sleep(TAKEN_WITHIN).await;
                if let Some(third) = third {
                    third.end().await;
                }
                let fourth = boot(&mut cluster).await;
                let ended = fourth
                    .service
                    .wait(workflow, "run", END_MAX)
                    .await
                    .expect("it is shown");
                assert_eq!(
                    ended.status,
                    Status::Cancelled,
                    "{workflow} after {calls} calls"
                );
                assert_eq!(
                    count(&fourth, "run").await,
                    counted,
                    "{workflow} after {calls} calls"
                );
                fourth.end().await;
            });
        }
    }
}

/// W4: it continues the run that it lost, as another node, while an earlier step still lasts.
#[test]
fn a_process_considered_dead_takes_its_run_back_while_its_earlier_step_lasts() {
    simulated::run(async {
        let mut cluster = shared(9, Options::default()).await;
        let first = boot(&mut cluster).await;
        let second = boot(&mut cluster).await;
        first.begin(LONG, "run").await.expect("begun");
        tokio::time::sleep(SLOW_FOR / 6).await;
        let seat = first.seat.as_ref().expect("there are several");
        seat.cut_off();
        wait_until("no process takes it over", TAKEN_WITHIN, || {
            second.service.active() == 1
        })
        .await;
        seat.reconnect();
        tokio::time::sleep(TAKEN_WITHIN).await;
        assert_eq!(first.service.active(), 0, "it is still at it");
        second.end().await;
        wait_until("it is not taken back", TAKEN_WITHIN, || {
            first.service.active() == 1
        })
        .await;
        let ended = first
            .service
            .wait(LONG, "run", END_MAX)
            .await
            .expect("it ends");
        assert_eq!(ended.status, Status::Succeeded, "{:?}", ended.error);
        assert_eq!(count(&first, "run").await, Some(Bytes::from_static(b"2")));
        first.end().await;
    });
}

/// W5: the process is considered dead at any moment of its commit, after its time limit.
#[test]
fn a_committed_atomic_run_is_not_reported_as_failed() {
    for missed_after in (0..40).map(|step| DAWDLES_FOR + Duration::from_millis(50 * step)) {
        simulated::run(async {
            let mut cluster = shared(10, Options::default()).await;
            let process = boot(&mut cluster).await;
            let began = tokio::time::Instant::now();
            process.begin(HASTENS, "run").await.expect("begun");
            tokio::time::sleep_until(began + ALMOST_DAWDLES_FOR).await;
            cluster
                .near
                .faults()
                .delay(Chance::ALWAYS, CROSSING..=CROSSING);
            tokio::time::sleep_until(began + missed_after).await;
            let seat = process.seat.as_ref().expect("there are several");
            seat.cut_off();
            tokio::time::sleep(TAKEN_WITHIN).await;
            cluster.near.faults().calm();
            seat.reconnect();
            let ended = process
                .service
                .wait(HASTENS, "run", END_MAX)
                .await
                .expect("it has it");
            let key = Bytes::from_static(b"count/run");
            let counted = loop {
                // The node may just be starting over.
                match process.service.state(HASTENS, &key).await {
                    Ok(counted) => break counted.is_some(),
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            };
            assert_eq!(
                counted,
                ended.status == Status::Succeeded,
                "{missed_after:?}: {:?}",
                ended.error
            );
            process.end().await;
        });
    }
}

/// W6: the first request does not block the others.
#[test]
fn a_run_that_cannot_be_read_keeps_no_other_from_being_ended() {
    simulated::run(async {
        let mut cluster = shared(11, Options::default()).await;
        let first = boot(&mut cluster).await;
        let second = boot(&mut cluster).await;
        first.begin(LONG, "run").await.expect("begun");
        let node = first.engine.node().expect("it is one").0.to_be_bytes();
        let asked = Key::new("c", [&node, LONG.as_bytes(), &[0], b"damaged"].concat());
        let damaged = Key::new(format!("w/{LONG}"), "rdamaged");
        for key in [asked, damaged] {
            let put = Update::put(key, vec![("began".into(), Value::Integer(1))]);
            cluster
                .near
                .key_value()
                .update(put)
                .await
                .expect("it is calm");
        }
        let ended = second
            .service
            .cancel(LONG, "run")
            .await
            .expect("it is ended");
        assert_eq!(ended.status, Status::Cancelled);
        first.end().await;
        second.end().await;
    });
}
