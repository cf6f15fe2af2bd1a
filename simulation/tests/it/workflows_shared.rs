//! W4, W-3: several processes on one near store whose workflows have a far store. One process at a
//! time owns the far store.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use simulation::{
    transactions::crashable::Life,
    workflows::{
        cluster::{Cluster, Process},
        definitions::{COUNTS, SLOW, SLOW_FOR},
        far::Refused,
    },
};
use workflows::{Options, Status};

/// The time limit of a run.
const END_MAX: Duration = Duration::from_mins(5);
/// Longer than the wait for a process that may be alive.
const LEASE: Duration = Duration::from_secs(12);
/// Shorter than the poll interval of a process that waits for another.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

async fn shared(options: Options) -> Cluster {
    let mut cluster = Cluster::far(
        1,
        Options {
            among_others: true,
            ..options
        },
    )
    .await;
    cluster.fails_one_in = 0;
    cluster
}

async fn boot(cluster: &mut Cluster) -> Process {
    cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it")
}

/// A whole run. Errors: why it did not complete.
async fn run(process: &Process, workflow: &str, run: &str) -> Result<(), String> {
    process
        .begin(workflow, run)
        .await
        .map_err(|error| format!("begin {run}: {error}"))?;
    let ended = process.service.wait(workflow, run, END_MAX).await;
    match ended
        .map_err(|error| format!("wait for {run}: {error}"))?
        .status
    {
        Status::Succeeded => Ok(()),
        status => Err(format!("{run} is {status:?}")),
    }
}

/// One process gets requests all the time, and another is restarted repeatedly. Errors: the
/// violation.
async fn beside_starts(among_others: bool, workflow: &str, runs: usize) -> Result<(), String> {
    let mut cluster = Cluster::far(
        1,
        Options {
            among_others,
            ..Options::default()
        },
    )
    .await;
    cluster.fails_one_in = 0;
    let process = boot(&mut cluster).await;
    let asked = async {
        for number in 0..runs {
            run(&process, workflow, &format!("run-{number}")).await?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    };
    let started = async {
        for number in 0_u64.. {
            let other = boot(&mut cluster).await;
            // From less than the time to open to more than a lease.
            tokio::time::sleep(Duration::from_millis(7 << (number % 12))).await;
            if number % 2 == 0 {
                other.service.stop().await;
            }
            other.end().await;
        }
    };
    let done = tokio::select! {
        biased;
        done = asked => done,
        () = started => unreachable!("it goes on"),
    };
    process.end().await;
    done
}

/// W-3: neither a call nor a run is affected.
#[test]
fn a_process_that_starts_takes_nothing_from_one_that_is_at_work() {
    // One page must show everything that the far store holds of them.
    for (workflow, runs) in [(COUNTS, 12), (SLOW, 3)] {
        simulated::run(beside_starts(true, workflow, runs)).expect("no call is affected");
        simulated::run(beside_starts(false, workflow, runs))
            .expect_err("mistaking all for its own past is caught");
    }
}

/// W-3: also at its start, when it checks for runs to take over.
#[test]
fn an_idle_process_releases_the_far_store() {
    simulated::run(async {
        let mut cluster = shared(Options::default()).await;
        let first = boot(&mut cluster).await;
        run(&first, COUNTS, "first").await.expect("it is alone");
        let second = boot(&mut cluster).await;
        for number in 0..5 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            for (process, name) in [(&first, "first"), (&second, "second")] {
                let began = tokio::time::Instant::now();
                run(process, COUNTS, &format!("{name}-{number}"))
                    .await
                    .expect("no process owns it");
                assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
            }
        }
        let stores = first.service.far_stores();
        assert!(
            stores.values().all(|store| store.answered.is_some()),
            "it is still told of: {stores:?}"
        );
        first.end().await;
        second.end().await;
    });
}

/// W-3: also in the moment in which it is released.
#[test]
fn a_request_during_the_release_of_a_far_store_is_served_at_once() {
    simulated::run(async {
        let mut cluster = shared(Options::default()).await;
        let process = boot(&mut cluster).await;
        run(&process, COUNTS, "first").await.expect("it is alone");
        // It is opened each time, and released two seconds later: some of the requests fall into
        // the release.
        for number in 0..40 {
            let began = tokio::time::Instant::now();
            process
                .begin(COUNTS, &format!("run-{number}"))
                .await
                .expect("no other process is there");
            assert!(
                began.elapsed() < LOOK_AGAIN,
                "{number}: {:?}",
                began.elapsed()
            );
            tokio::time::sleep_until(began + Duration::from_millis(2_000 + 5 * number)).await;
        }
        process.end().await;
    });
}

/// W-3: a far store that could not be released during a short outage still belongs to this process.
#[test]
fn a_process_that_could_not_release_a_far_store_does_not_wait_for_itself() {
    simulated::run(async {
        let mut cluster = shared(Options::default()).await;
        let process = boot(&mut cluster).await;
        run(&process, COUNTS, "before").await.expect("it is alone");
        // It records that its messages are sent.
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.far_faults.leave();
        tokio::time::sleep(Duration::from_secs(4)).await;
        cluster.far_faults.come_back();
        let began = tokio::time::Instant::now();
        run(&process, COUNTS, "after")
            .await
            .expect("no other process is there");
        assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
        process.end().await;
    });
}

/// W-3: the error does not claim that another server owns it if the far store itself does not
/// answer.
#[test]
fn a_failed_wait_reports_its_present_cause() {
    simulated::run(async {
        let mut cluster = shared(Options::default()).await;
        let first = boot(&mut cluster).await;
        first.begin(SLOW, "slow").await.expect("it is alone");
        let second = boot(&mut cluster).await;
        let refused = second
            .begin(COUNTS, "run")
            .await
            .expect_err("it belongs to another");
        assert!(
            refused
                .to_string()
                .contains("another server is at work there"),
            "{refused}"
        );
        cluster.far_faults.refuse(Refused::Looks);
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.far_faults.refuse(Refused::Nothing);
        cluster.far_faults.leave();
        let refused = second.begin(COUNTS, "run").await.expect_err("it is away");
        assert!(
            refused.to_string().contains("it does not answer"),
            "{refused}"
        );
        first.end().await;
        second.end().await;
    });
}

/// W-3: a request at another process meanwhile gets an error that says so, and is served
/// afterwards.
#[test]
fn a_request_beside_the_owner_of_the_far_store_gets_an_error_that_says_so() {
    simulated::run(async {
        let mut cluster = shared(Options::default()).await;
        let first = boot(&mut cluster).await;
        first.begin(SLOW, "slow").await.expect("it is alone");
        let second = boot(&mut cluster).await;
        for _ in 0..3 {
            let refused = second
                .begin(COUNTS, "run")
                .await
                .expect_err("it belongs to another");
            assert!(
                refused
                    .to_string()
                    .contains("another server is at work there"),
                "{refused}"
            );
            tokio::time::sleep(SLOW_FOR / 6).await;
        }
        let ended = first
            .service
            .wait(SLOW, "slow", END_MAX)
            .await
            .expect("it has it");
        assert_eq!(ended.status, Status::Succeeded);
        tokio::time::sleep(LEASE).await;
        run(&second, COUNTS, "run")
            .await
            .expect("no process owns it");
        first.end().await;
        second.end().await;
    });
}

/// W4: a waiting process does, without a request.
#[test]
fn the_runs_of_a_process_that_dies_are_taken_up_by_one_that_has_started_beside_it() {
    simulated::run(async {
        let mut cluster = shared(Options::default()).await;
        let first = boot(&mut cluster).await;
        first.begin(SLOW, "slow").await.expect("it is alone");
        let second = boot(&mut cluster).await;
        tokio::time::sleep(SLOW_FOR / 2).await;
        assert_eq!(second.service.active(), 0, "it is the other's");
        first.end().await;
        tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
        assert_eq!(second.service.active(), 1);
        let ended = second
            .service
            .wait(SLOW, "slow", END_MAX)
            .await
            .expect("it has it");
        assert_eq!(ended.status, Status::Succeeded);
        second.end().await;
    });
}

/// W1, W4: any of them may have recorded that there are some.
#[test]
fn runs_are_found_by_a_process_that_started_before_them_and_has_another_far_store_deployed() {
    simulated::run(async {
        let mut cluster = Cluster::shared_and_far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        cluster.is_far = false;
        let near = boot(&mut cluster).await;
        cluster.is_far = true;
        let far = boot(&mut cluster).await;
        run(&near, COUNTS, "near")
            .await
            .expect("no other process has it");
        for _ in 0..2 {
            let shown = far.service.run(COUNTS, "near").await.expect("it is found");
            assert_eq!(shown.status, Status::Succeeded);
            far.begin(COUNTS, "near").await.expect("it is that one");
        }
        assert_eq!(
            cluster.look_far().await.steps(COUNTS, "near"),
            Vec::<String>::new(),
            "begun twice"
        );
        run(&far, COUNTS, "far")
            .await
            .expect("no other process has it");
        tokio::time::sleep(LEASE).await;
        near.begin(COUNTS, "far").await.expect("it is that one");
        for process in [&near, &far] {
            let (listed, _) = process
                .service
                .runs(COUNTS, None, None)
                .await
                .expect("listed");
            assert_eq!(
                listed.iter().map(|view| &view.run[..]).collect::<Vec<_>>(),
                ["far", "near"]
            );
            tokio::time::sleep(LEASE).await;
        }
        let counted = near
            .service
            .state(COUNTS, &"count/far".into())
            .await
            .expect("it is read");
        assert_eq!(counted, None, "begun twice");
        near.end().await;
        far.end().await;
    });
}

/// W1: also if this process knows nothing of that workflow yet.
#[test]
fn a_run_is_not_begun_again_by_a_process_that_does_not_know_yet_where_it_lies() {
    for is_far in [false, true] {
        simulated::run(async {
            let mut cluster = Cluster::shared_and_far(1, Options::default()).await;
            cluster.fails_one_in = 0;
            cluster.is_far = is_far;
            let first = boot(&mut cluster).await;
            cluster.is_far = !is_far;
            let second = boot(&mut cluster).await;
            run(&first, COUNTS, "run")
                .await
                .expect("no other process has it");
            tokio::time::sleep(LEASE).await;
            second.begin(COUNTS, "run").await.expect("it is that one");
            tokio::time::sleep(LEASE).await;
            let messages = cluster
                .receivers
                .received_messages()
                .received(&format!("{COUNTS} run "))
                .len();
            assert_eq!(
                (second.service.active(), second.service.figures().begun),
                (0, 0)
            );
            assert!(messages > 0, "it has sent some");
            first.end().await;
            second.end().await;
        });
    }
}
