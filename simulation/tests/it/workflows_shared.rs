//! W4, W-3: several processes over one near store whose workflows have a far store. One of them has it at a time.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use simulation::{
    transactions::mortal::Life,
    workflows::{
        code::{COUNTS, SLOW, SLOW_FOR},
        far::Refused,
        house::{House, Process},
    },
};
use workflows::{Options, Status};

/// What a run has to end in.
const END_MAX: Duration = Duration::from_mins(5);
/// Longer than whoever may be alive is waited for.
const LEASE: Duration = Duration::from_secs(12);
/// Less than how long who waits for another looks again whether that is over.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

async fn shared(options: Options) -> House {
    let mut house = House::far(
        1,
        Options {
            among_others: true,
            ..options
        },
    )
    .await;
    house.fails_one_in = 0;
    house
}

async fn boot(house: &mut House) -> Process {
    house.boot(&Life::default()).await.expect("nothing ends it")
}

/// A whole run, or why it was none.
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

/// What is wrong where one process is asked all the time, and another is started again and again.
async fn beside_starts(among_others: bool, workflow: &str, runs: usize) -> Result<(), String> {
    let mut house = House::far(
        1,
        Options {
            among_others,
            ..Options::default()
        },
    )
    .await;
    house.fails_one_in = 0;
    let process = boot(&mut house).await;
    let asked = async {
        for number in 0..runs {
            run(&process, workflow, &format!("run-{number}")).await?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    };
    let started = async {
        for number in 0_u64.. {
            let other = boot(&mut house).await;
            // From less than it takes to open to more than a lease.
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

/// W-3: neither a call nor a run notices.
#[test]
fn a_process_that_starts_takes_nothing_from_one_that_is_at_work() {
    // What the far store holds of them is looked at in one page.
    for (workflow, runs) in [(COUNTS, 12), (SLOW, 3)] {
        simulated::run(beside_starts(true, workflow, runs)).expect("nobody notices");
        simulated::run(beside_starts(false, workflow, runs))
            .expect_err("who takes all for its own past is caught");
    }
}

/// W-3: also at its start, when it looks whether there is something to take up.
#[test]
fn who_has_nothing_to_do_in_a_far_store_gives_it_back() {
    simulated::run(async {
        let mut house = shared(Options::default()).await;
        let first = boot(&mut house).await;
        run(&first, COUNTS, "first").await.expect("it is alone");
        let second = boot(&mut house).await;
        for number in 0..5 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            for (process, name) in [(&first, "first"), (&second, "second")] {
                let began = tokio::time::Instant::now();
                run(process, COUNTS, &format!("{name}-{number}"))
                    .await
                    .expect("nobody is at work there");
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

/// W-3: in the moment in which it is given back, too.
#[test]
fn who_gives_a_far_store_back_and_is_asked_just_then_has_it_at_once() {
    simulated::run(async {
        let mut house = shared(Options::default()).await;
        let process = boot(&mut house).await;
        run(&process, COUNTS, "first").await.expect("it is alone");
        // It is opened anew each time, and given back two seconds later: some of these come while that goes on.
        for number in 0..40 {
            let began = tokio::time::Instant::now();
            process
                .begin(COUNTS, &format!("run-{number}"))
                .await
                .expect("nobody else is there");
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

/// W-3: one that could not be given back, as the far store was away for a moment, is still this process's own.
#[test]
fn who_could_not_give_a_far_store_back_does_not_wait_for_itself() {
    simulated::run(async {
        let mut house = shared(Options::default()).await;
        let process = boot(&mut house).await;
        run(&process, COUNTS, "before").await.expect("it is alone");
        // It notes that its messages have left.
        tokio::time::sleep(Duration::from_millis(500)).await;
        house.weather.leave();
        tokio::time::sleep(Duration::from_secs(4)).await;
        house.weather.come_back();
        let began = tokio::time::Instant::now();
        run(&process, COUNTS, "after")
            .await
            .expect("nobody else is there");
        assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
        process.end().await;
    });
}

/// W-3: nor that another server is at work there, when it is the far store that does not answer.
#[test]
fn who_waited_for_another_and_failed_is_told_what_is_waited_for_now() {
    simulated::run(async {
        let mut house = shared(Options::default()).await;
        let first = boot(&mut house).await;
        first.begin(SLOW, "slow").await.expect("it is alone");
        let second = boot(&mut house).await;
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
        house.weather.refuse(Refused::Looks);
        tokio::time::sleep(Duration::from_secs(1)).await;
        house.weather.refuse(Refused::Nothing);
        house.weather.leave();
        let refused = second.begin(COUNTS, "run").await.expect_err("it is away");
        assert!(
            refused.to_string().contains("it does not answer"),
            "{refused}"
        );
        first.end().await;
        second.end().await;
    });
}

/// W-3: who asks elsewhere meanwhile is told so, and is served once that is over.
#[test]
fn who_asks_beside_one_that_is_at_work_is_told_so() {
    simulated::run(async {
        let mut house = shared(Options::default()).await;
        let first = boot(&mut house).await;
        first.begin(SLOW, "slow").await.expect("it is alone");
        let second = boot(&mut house).await;
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
            .expect("nobody is at work there");
        first.end().await;
        second.end().await;
    });
}

/// W4: by one that waits for that, and nobody has to ask it.
#[test]
fn the_runs_of_a_process_that_dies_are_taken_up_by_one_that_has_started_beside_it() {
    simulated::run(async {
        let mut house = shared(Options::default()).await;
        let first = boot(&mut house).await;
        first.begin(SLOW, "slow").await.expect("it is alone");
        let second = boot(&mut house).await;
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

/// W1, W4: whichever of them has noted that there are some.
#[test]
fn runs_are_found_by_a_process_that_started_before_them_and_has_another_far_store_deployed() {
    simulated::run(async {
        let mut house = House::shared_and_far(1, Options::default()).await;
        house.fails_one_in = 0;
        house.is_far = false;
        let near = boot(&mut house).await;
        house.is_far = true;
        let far = boot(&mut house).await;
        run(&near, COUNTS, "near")
            .await
            .expect("nobody else has it");
        for _ in 0..2 {
            let shown = far.service.run(COUNTS, "near").await.expect("it is found");
            assert_eq!(shown.status, Status::Succeeded);
            far.begin(COUNTS, "near").await.expect("it is that one");
        }
        assert_eq!(
            house.look_far().await.steps(COUNTS, "near"),
            Vec::<String>::new(),
            "begun twice"
        );
        run(&far, COUNTS, "far").await.expect("nobody else has it");
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

/// W1: also where it is the first that this process hears of that workflow.
#[test]
fn a_run_is_not_begun_again_by_a_process_that_does_not_know_yet_where_it_lies() {
    for is_far in [false, true] {
        simulated::run(async {
            let mut house = House::shared_and_far(1, Options::default()).await;
            house.fails_one_in = 0;
            house.is_far = is_far;
            let first = boot(&mut house).await;
            house.is_far = !is_far;
            let second = boot(&mut house).await;
            run(&first, COUNTS, "run")
                .await
                .expect("nobody else has it");
            tokio::time::sleep(LEASE).await;
            second.begin(COUNTS, "run").await.expect("it is that one");
            tokio::time::sleep(LEASE).await;
            let messages = house
                .outside
                .noted()
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
