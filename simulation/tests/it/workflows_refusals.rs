//! W2, W4: runs whose writes the far store refuses permanently.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use simulation::{
    transactions::crashable::Life,
    workflows::{
        cluster::{Cluster, Process},
        definitions::{COUNTS, RESTS_ON_SPOILT, SPOILS},
        far::Refused,
    },
};
use workflows::{Options, Status};

/// The time limit of all runs without faults.
const END_MAX: Duration = Duration::from_mins(30);

/// W2, W4: a permanent refusal of the far store fails the run and all runs that read its state;
/// others continue.
#[test]
fn a_permanent_error_ends_the_run_and_its_dependents_and_nothing_else() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        for (workflow, expected) in [
            (SPOILS, Status::Failed),
            (RESTS_ON_SPOILT, Status::Failed),
            (COUNTS, Status::Succeeded),
        ] {
            process.begin(workflow, "run").await.expect("begun");
            let ended = process
                .service
                .wait(workflow, "run", END_MAX)
                .await
                .expect("it is shown");
            assert_eq!(ended.status, expected, "{workflow}: {:?}", ended.error);
        }
        let far = cluster.look_far().await;
        assert_eq!(
            far.steps(SPOILS, "run"),
            ["0"],
            "and nothing behind the one that counts"
        );
        assert_eq!(far.state("rests/run"), None);
        process.end().await;
    });
}

/// The status of a run: read alone, by its cancellation, and in the list.
async fn told(process: &Process, workflow: &str, run: &str) -> [Result<Status, String>; 3] {
    let one = process
        .service
        .wait(workflow, run, END_MAX)
        .await
        .map(|view| view.status);
    let ended = process
        .service
        .cancel(workflow, run)
        .await
        .map(|view| view.status);
    let listed = process
        .service
        .runs(workflow, None, None)
        .await
        .map(|(runs, _)| {
            runs.iter()
                .find(|listed| listed.run == run)
                .expect("it is listed")
                .status
        });
    [one, ended, listed].map(|status| status.map_err(|error| error.to_string()))
}

/// W4: writes that the far store refused until it was repaired are sent by the next start, and then
/// all views of the run agree.
#[test]
fn a_refused_run_that_is_sent_later_has_one_outcome_in_all_views() {
    simulated::run(async {
        for (refused, workflow) in [(Refused::Everything, COUNTS), (Refused::Spoilt, SPOILS)] {
            let mut cluster = Cluster::far(1, Options::default()).await;
            cluster.fails_one_in = 0;
            let mut process = cluster
                .boot(&Life::default())
                .await
                .expect("nothing ends it");
            process.begin(COUNTS, "before").await.expect("begun");
            process
                .service
                .wait(COUNTS, "before", END_MAX)
                .await
                .expect("it ends");
            cluster.far_faults.refuse(refused);
            process.begin(workflow, "run").await.expect("begun near");
            let told_then = process.service.wait(workflow, "run", END_MAX).await;
            match refused {
                // Not even its failure can be written.
                Refused::Everything => assert!(told_then.is_err(), "{told_then:?}"),
                _ => assert_eq!(told_then.expect("it is noted").status, Status::Failed),
            }
            cluster.far_faults.refuse(Refused::Nothing);
            for _ in 0..2 {
                process.end().await;
                process = cluster
                    .boot(&Life::default())
                    .await
                    .expect("nothing ends it");
                let all = told(&process, workflow, "run").await;
                assert_eq!(all, [const { Ok(Status::Succeeded) }; 3], "{refused:?}");
            }
            process.end().await;
        }
    });
}

/// W2, W4: a run that the next start refuses permanently again stays failed, and no other run is
/// reported as failed before that is known.
#[test]
fn a_run_that_is_refused_again_stays_failed_and_others_are_as_they_were() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        for (workflow, expected) in [(COUNTS, Status::Succeeded), (SPOILS, Status::Failed)] {
            process.begin(workflow, "run").await.expect("begun");
            let ended = process
                .service
                .wait(workflow, "run", END_MAX)
                .await
                .expect("it is shown");
            assert_eq!(ended.status, expected, "{workflow}: {:?}", ended.error);
        }
        process.end().await;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        for (workflow, expected) in [(COUNTS, Status::Succeeded), (SPOILS, Status::Failed)] {
            let shown = process
                .service
                .run(workflow, "run")
                .await
                .expect("it is shown");
            assert_eq!(shown.status, expected, "{workflow}: {:?}", shown.error);
        }
        process.end().await;
    });
}

/// W4: with any number of requests.
#[test]
fn requests_for_a_refused_run_block_no_other_request() {
    simulated::run(async {
        let mut cluster = Cluster::far(
            1,
            Options {
                runs_max: 10,
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
        cluster.far_faults.refuse(Refused::Everything);
        process.begin(COUNTS, "run").await.expect("begun near");
        process
            .service
            .wait(COUNTS, "run", END_MAX)
            .await
            .expect_err("not even that it failed is written");
        // More than there are lanes.
        for _ in 0..2_100 {
            process
                .service
                .run(COUNTS, "run")
                .await
                .expect_err("it is not shown");
        }
        process.begin(COUNTS, "after").await.expect("begun near");
        process.end().await;
    });
}
