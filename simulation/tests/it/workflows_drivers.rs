//! W4 to W6: several processes over one store whose workflows lie near. One of them is at a run at a time.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use ports::{Key, Update, key_value::Value};
use simulated::Chance;
use simulation::{
    transactions::mortal::{Life, Side},
    workflows::{
        code::{COUNTS, DAWDLES, DAWDLES_FOR, HASTENS, LONG, SLOW_FOR, STEPS, TELLS_LATE},
        house::{House, Process},
    },
};
use workflows::{Broken, Options, Status};

/// What a run has to end in.
const END_MAX: Duration = Duration::from_mins(10);
/// How soon the runs of who has gone are taken up.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// What a call of a slow store takes each way.
const CROSSING: Duration = Duration::from_millis(250);
/// Just before a step of [`DAWDLES`] ends.
const ALMOST_DAWDLES_FOR: Duration = Duration::from_millis(2_990);
/// The wait before something is asked again.
const AGAIN: Duration = Duration::from_millis(50);

async fn shared(seed: u64, options: Options) -> House {
    let mut house = House::shared(seed, options).await;
    house.fails_one_in = 0;
    house
}

async fn boot(house: &mut House) -> Process {
    house.boot(&Life::default()).await.expect("nothing ends it")
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

/// What others do to an atomic run: they are asked to begin it too, and start.
async fn beside_others(options: Options) -> Result<(), String> {
    let mut house = shared(1, options).await;
    let first = boot(&mut house).await;
    let second = boot(&mut house).await;
    first.begin(DAWDLES, "run").await.expect("begun");
    tokio::time::sleep(DAWDLES_FOR / 2).await;
    second.begin(DAWDLES, "run").await.expect("it is found");
    let third = boot(&mut house).await;
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
fn a_run_is_left_to_the_process_that_is_at_it() {
    simulated::run(beside_others(Options::default())).expect("nobody else is at it");
    let broken = Options {
        broken: Some(Broken::TakesFromTheLiving),
        ..Options::default()
    };
    simulated::run(beside_others(broken)).expect_err("who takes it is caught");
}

/// What is wrong with a run that was ended at another process than the one that is at it.
async fn cancelled_elsewhere(options: Options) -> Result<(), String> {
    let mut house = shared(2, options).await;
    let first = boot(&mut house).await;
    let second = boot(&mut house).await;
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
        broken: Some(Broken::GoesOnAfterCancelling),
        ..Options::default()
    };
    simulated::run(cancelled_elsewhere(broken)).expect_err("who goes on is caught");
}

/// W6: it is not waited for who cannot answer any more.
#[test]
fn a_run_is_ended_whose_process_has_died() {
    simulated::run(async {
        let mut house = shared(3, Options::default()).await;
        let first = boot(&mut house).await;
        let second = boot(&mut house).await;
        first.begin(LONG, "run").await.expect("begun");
        tokio::time::sleep(SLOW_FOR / 2).await;
        first.end().await;
        // Whatever is answered, as it takes longer than answers may.
        drop(second.service.cancel(LONG, "run").await);
        tokio::time::sleep(4 * SLOW_FOR).await;
        let ended = second.service.run(LONG, "run").await.expect("it is shown");
        assert_eq!(ended.status, Status::Cancelled);
        assert_eq!(count(&second, "run").await, Some(Bytes::from_static(b"1")));
        assert_eq!(second.service.active(), 0);
        second.end().await;
    });
}

/// W4: nobody has to start for that, nor to ask.
#[test]
fn the_runs_of_a_process_that_dies_are_taken_up_by_another() {
    simulated::run(async {
        let mut house = shared(4, Options::default()).await;
        let first = boot(&mut house).await;
        let second = boot(&mut house).await;
        second.begin(LONG, "long").await.expect("begun");
        second.begin(DAWDLES, "atomic").await.expect("begun");
        tokio::time::sleep(DAWDLES_FOR / 2).await;
        second.end().await;
        wait_until("nobody takes them up", TAKEN_WITHIN, || {
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

/// W2, W4: by one with a lower number, wherever the other was.
#[test]
fn steps_count_once_whose_process_dies_at_any_call_beside_another() {
    for calls in (0..120).step_by(3) {
        simulated::run(async {
            let mut house = shared(5, Options::default()).await;
            let first = boot(&mut house).await;
            let life = Life::default();
            let second = house.boot(&life).await.expect("nothing ends it yet");
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

/// W2, W4: one that was taken for dead, and comes back as another node.
#[test]
fn a_process_that_was_missed_counts_nothing_of_a_run_that_another_has_taken() {
    for beside in [true, false] {
        simulated::run(async {
            let mut house = shared(6, Options::default()).await;
            let first = boot(&mut house).await;
            let second = if beside {
                Some(boot(&mut house).await)
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
                    .expect("somebody has it");
                assert_eq!(ended.status, Status::Succeeded, "{:?}", ended.error);
                assert_eq!(count(asked, run).await, Some(Bytes::from_static(b"2")));
            }
            let ended = asked
                .service
                .wait(TELLS_LATE, "tells", END_MAX)
                .await
                .expect("somebody has it");
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

/// W6, W7: one that was taken for dead, and goes on with what was ended meanwhile.
#[test]
fn a_process_that_was_missed_counts_nothing_of_a_run_that_another_has_ended() {
    simulated::run(async {
        let mut house = shared(7, Options::default()).await;
        let first = boot(&mut house).await;
        let second = boot(&mut house).await;
        for workflow in [LONG, TELLS_LATE] {
            first.begin(workflow, "run").await.expect("begun");
        }
        tokio::time::sleep(SLOW_FOR / 3).await;
        let seat = first.seat.as_ref().expect("there are several");
        seat.cut_off();
        wait_until("nobody takes them up", TAKEN_WITHIN, || {
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

/// W6: whoever is asked may die as well, and so may who takes the run up in their place.
#[test]
fn a_run_that_is_to_be_ended_ends_though_both_who_was_asked_and_who_asked_die() {
    for (workflow, counted) in [(LONG, Some(Bytes::from_static(b"1"))), (DAWDLES, None)] {
        for calls in (0..100).step_by(4) {
            simulated::run(async {
                let mut house = shared(8, Options::default()).await;
                let first = boot(&mut house).await;
                let second = boot(&mut house).await;
                first.begin(workflow, "run").await.expect("begun");
                tokio::time::sleep(DAWDLES_FOR / 2).await;
                first.end().await;
                // Nobody can say yet that it is gone.
                tokio::time::timeout(DAWDLES_FOR / 6, second.service.cancel(workflow, "run"))
                    .await
                    .expect_err("it waits");
                second.end().await;
                let life = Life::default();
                life.ends_after(calls, Side::After);
                let third = house.boot(&life).await;
                tokio::time::sleep(TAKEN_WITHIN).await;
                if let Some(third) = third {
                    third.end().await;
                }
                let fourth = boot(&mut house).await;
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

/// W4: it goes on with what it lost as another node, though a step that it had begun before lasts.
#[test]
fn a_process_that_was_missed_takes_its_run_back_while_its_earlier_step_lasts() {
    simulated::run(async {
        let mut house = shared(9, Options::default()).await;
        let first = boot(&mut house).await;
        let second = boot(&mut house).await;
        first.begin(LONG, "run").await.expect("begun");
        tokio::time::sleep(SLOW_FOR / 6).await;
        let seat = first.seat.as_ref().expect("there are several");
        seat.cut_off();
        wait_until("nobody takes it up", TAKEN_WITHIN, || {
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

/// W5: whichever moment of its commit it is in which its process is missed, and its time is over.
#[test]
fn an_atomic_run_is_not_told_as_failed_that_has_committed() {
    for missed_after in (0..40).map(|step| DAWDLES_FOR + Duration::from_millis(50 * step)) {
        simulated::run(async {
            let mut house = shared(10, Options::default()).await;
            let process = boot(&mut house).await;
            let began = tokio::time::Instant::now();
            process.begin(HASTENS, "run").await.expect("begun");
            tokio::time::sleep_until(began + ALMOST_DAWDLES_FOR).await;
            house
                .near
                .faults()
                .delay(Chance::ALWAYS, CROSSING..=CROSSING);
            tokio::time::sleep_until(began + missed_after).await;
            let seat = process.seat.as_ref().expect("there are several");
            seat.cut_off();
            tokio::time::sleep(TAKEN_WITHIN).await;
            house.near.faults().calm();
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

/// W6: what is asked first is in the way of nothing.
#[test]
fn a_run_that_cannot_be_read_keeps_no_other_from_being_ended() {
    simulated::run(async {
        let mut house = shared(11, Options::default()).await;
        let first = boot(&mut house).await;
        let second = boot(&mut house).await;
        first.begin(LONG, "run").await.expect("begun");
        let node = first.engine.node().expect("it is one").0.to_be_bytes();
        let asked = Key::new("c", [&node, LONG.as_bytes(), &[0], b"damaged"].concat());
        let damaged = Key::new(format!("w/{LONG}"), "rdamaged");
        for key in [asked, damaged] {
            let put = Update::put(key, vec![("began".into(), Value::Integer(1))]);
            house
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
