//! W1 to W4 and W9 with a far store, and rules P5, W-2 and W-3: processes that die at any call of either store, a near store that is lost,
//! a server that is cut off while another takes over, and a far store that is slow, away, late or hears twice.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use simulation::{
    transactions::{
        mortal::{Life, Side},
        scenario::seeds,
    },
    workflows::{
        checks::Claim,
        code::{
            ASKS, BEFORE, COPIES, COUNTS, FAILS, FIRST, HURRIES, MINDS, OVERFLOWS, PEEKS,
            RESTS_ON_SPOILT, SECOND, SENDS, SPOILS, STEPS,
        },
        far::Refused,
        house::{House, Process},
        outside::Outside,
    },
};
use transactions::model::Key;
use workflows::{Broken, Options, Status};

/// Deaths of each seed.
const DEATHS: usize = 4;
/// Calls of a life, at the most, before it ends.
const CALLS_MAX: u64 = 1_500;
/// Seeds at most: each is several servers.
const SEEDS_MAX: u64 = 60;
const SEEDS_UNTIL_CAUGHT: u64 = 400;
/// What calm weather has all runs end in.
const END_MAX: Duration = Duration::from_mins(30);
/// The wait before something is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// What each run was seen to come to.
type Shown = BTreeMap<(&'static str, String), String>;

fn names(runs: usize) -> Vec<String> {
    (0..runs).map(|run| format!("run-{run}")).collect()
}

/// Begins all runs, waits for their ends, and looks whether they stay what they were.
async fn look(
    process: &Process,
    outside: &Outside,
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
        outside.noted().claim(claim);
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

async fn check(house: &House, runs: &[String]) -> Result<(), String> {
    let far = house.look_far().await;
    let mut wrong = house.outside.noted().check(&far);
    wrong.extend(far.check(runs));
    wrong.into_iter().next().map_or(Ok(()), Err)
}

/// All that was sent has arrived, in order, once everything has ended.
async fn all_arrived(house: &House, runs: &[String]) -> Result<(), String> {
    for run in runs {
        let each =
            (0..STEPS).flat_map(|path| SENDS.map(|more| format!("{COUNTS} {run} {path} {more}")));
        let expected: Vec<String> = each.collect();
        let noted = house.outside.noted();
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
    match house.look_far().await.unsent() {
        0 => Ok(()),
        left => Err(format!("unsent: {left} rows are left")),
    }
}

/// The last server, in calm weather, with whom everything comes to its end.
async fn finish(house: &mut House, runs: &[String], shown: &mut Shown) -> Result<(), String> {
    house.weather.calm();
    let process = house.boot(&Life::default()).await.expect("nothing ends it");
    let looked = tokio::time::timeout(END_MAX, look(&process, &house.outside, runs, shown)).await;
    looked.map_err(|_| "unfinished: not everything has ended".to_owned())??;
    let mut arrived = Err("unsent".to_owned());
    for _ in 0..600 {
        arrived = all_arrived(house, runs).await;
        if arrived.is_ok() {
            break;
        }
        tokio::time::sleep(AGAIN).await;
    }
    process.end().await;
    check(house, runs).await?;
    arrived
}

/// A server that is cut off from the far store, and goes on beside whoever takes over.
async fn overtaken(
    house: &mut House,
    rng: &mut Rng,
    runs: &[String],
    shown: &mut Shown,
) -> Result<(), String> {
    let some = |rng: &mut Rng| Duration::from_millis(rng.u64(..3_000));
    let Some(old) = house.boot(&Life::default()).await else {
        return Ok(());
    };
    let looked = tokio::time::timeout(some(rng), look(&old, &house.outside, runs, shown)).await;
    looked.unwrap_or(Ok(()))?;
    old.cut();
    house.lose_near();
    let new = house.boot(&Life::default()).await.expect("nothing ends it");
    let looked = tokio::time::timeout(
        some(rng) + some(rng),
        look(&new, &house.outside, runs, shown),
    )
    .await;
    old.mend();
    tokio::time::sleep(Duration::from_secs(1)).await;
    old.end().await;
    new.end().await;
    looked.unwrap_or(Ok(()))
}

/// Runs through deaths. What went wrong.
async fn play(seed: u64, broken: Option<Broken>) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut house = House::far(
        seed,
        Options {
            broken,
            ..Options::default()
        },
    )
    .await;
    house.synchrony = ["serial", "sync"]
        .get(rng.usize(..8))
        .copied()
        .unwrap_or("external");
    let (runs, mut shown) = (names(2), Shown::new());
    for _ in 0..DEATHS {
        house.weather.blow();
        if rng.usize(..4) == 0 {
            overtaken(&mut house, &mut rng, &runs, &mut shown).await?;
            check(&house, &runs).await?;
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
        let weather = house.weather.clone();
        let passing = tokio::spawn(async move {
            let Some((from, during)) = away else { return };
            tokio::time::sleep(Duration::from_millis(from)).await;
            weather.leave();
            tokio::time::sleep(Duration::from_millis(during)).await;
            weather.come_back();
        });
        if let Some(process) = house.boot(&life).await {
            let looked = process
                .ask(look(&process, &house.outside, &runs, &mut shown))
                .await;
            process.end().await;
            looked.unwrap_or(Ok(()))?;
        }
        passing.abort();
        house.weather.come_back();
        match rng.usize(..3) {
            0 => house.lose_near(),
            1 => house.near.crash(),
            _ => {}
        }
        check(&house, &runs).await?;
    }
    finish(&mut house, &runs, &mut shown).await
}

fn is_caught(broken: Broken, by: &str) {
    let caught =
        (0..SEEDS_UNTIL_CAUGHT).find_map(|seed| simulated::run(play(seed, Some(broken))).err());
    let caught =
        caught.unwrap_or_else(|| panic!("{broken:?} was not caught by {SEEDS_UNTIL_CAUGHT} seeds"));
    assert!(caught.starts_with(by), "{broken:?}: {caught}");
}

/// W1, W2, W3, W4: nothing is shown or sent whose state is lost, each run ends once, the far store has a causal prefix, and what one
/// workflow externalized half way is there for the other that rests on it.
#[test]
fn runs_with_a_far_store_survive_whatever_dies_and_fails() {
    let seeds_max = simulated::number("WORKFLOWS_SEEDS").unwrap_or(SEEDS_MAX);
    let asked = seeds();
    for seed in asked.start..asked.end.min(asked.start + seeds_max) {
        let played = simulated::run(play(seed, None));
        assert_eq!(played, Ok(()), "seed {seed}");
    }
}

/// W2, W3, W4: the same where the server dies before each call that it makes in turn, with its disk kept or lost.
#[test]
fn a_run_survives_the_death_of_its_server_before_each_of_its_calls() {
    let dies = async |calls: u64, is_lost: bool| {
        let mut house = House::far(calls, Options::default()).await;
        house.fails_one_in = 0;
        let (runs, mut shown, life) = (names(1), Shown::new(), Life::default());
        life.ends_after(calls, Side::Before);
        let mut has_died = true;
        if let Some(process) = house.boot(&life).await {
            let looked = process
                .ask(look(&process, &house.outside, &runs, &mut shown))
                .await;
            has_died = looked.is_none();
            process.end().await;
            looked.unwrap_or(Ok(()))?;
        }
        if is_lost {
            house.lose_near();
        } else {
            house.near.crash();
        }
        check(&house, &runs).await?;
        finish(&mut house, &runs, &mut shown)
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

/// W3, broken: also where the far store is what makes it durable.
#[test]
fn answering_before_it_is_far_is_caught() {
    is_caught(Broken::AnswersBeforeDurable, "lost");
}

/// W2, broken.
#[test]
fn forgetting_what_is_unsent_is_caught() {
    is_caught(Broken::ForgetsUnsent, "unsent");
}

/// W2, broken.
#[test]
fn naming_what_is_sent_anew_is_caught() {
    is_caught(Broken::NamesSendsAnew, "named anew");
}

/// What a step's transaction shows while the far store is away, and once it is back.
async fn copied(broken: Option<Broken>) -> (Option<Bytes>, Option<Bytes>) {
    let mut house = House::far(
        1,
        Options {
            broken,
            ..Options::default()
        },
    )
    .await;
    house.fails_one_in = 0;
    let process = house.boot(&Life::default()).await.expect("nothing ends it");
    process.begin(COUNTS, "before").await.expect("begun");
    process
        .service
        .wait(COUNTS, "before", END_MAX)
        .await
        .expect("it ends");
    house.weather.leave();
    process.begin(COPIES, "run").await.expect("begun");
    tokio::time::sleep(Duration::from_mins(2)).await;
    let key = Key::new("copy/run").expect("a key");
    let hidden = process
        .engine
        .get_now(&key)
        .await
        .expect("it is near")
        .value;
    house.weather.calm();
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

/// W3: a transaction is another store than the run's, so it is an edge (P5).
#[test]
fn a_transaction_in_a_step_waits_until_what_the_run_rests_on_is_far() {
    let one = Some(Bytes::from("1"));
    assert_eq!(simulated::run(copied(None)), (None, one.clone()));
    assert_eq!(
        simulated::run(copied(Some(Broken::CountsElsewhereBeforeFar))),
        (one.clone(), one)
    );
}

/// W2, W4: what the far store refuses for good fails the run, and whoever has read it; others go on.
#[test]
fn a_permanent_error_ends_the_run_and_whatever_rests_on_it_and_nothing_else() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
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
        let far = house.look_far().await;
        assert_eq!(
            far.steps(SPOILS, "run"),
            ["0"],
            "and nothing behind the one that counts"
        );
        assert_eq!(far.state("rests/run"), None);
        process.end().await;
    });
}

/// What is told of a run: by itself, by whoever ends it, and in the list.
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

/// W4: what the far store refused until it was put right is sent by the next start, and then the run is everywhere as it ended.
#[test]
fn a_run_that_was_refused_and_is_sent_after_all_is_told_in_one_way() {
    simulated::run(async {
        for (refused, workflow) in [(Refused::Everything, COUNTS), (Refused::Spoilt, SPOILS)] {
            let mut house = House::far(1, Options::default()).await;
            house.fails_one_in = 0;
            let mut process = house.boot(&Life::default()).await.expect("nothing ends it");
            process.begin(COUNTS, "before").await.expect("begun");
            process
                .service
                .wait(COUNTS, "before", END_MAX)
                .await
                .expect("it ends");
            house.weather.refuse(refused);
            process.begin(workflow, "run").await.expect("begun near");
            let told_then = process.service.wait(workflow, "run", END_MAX).await;
            match refused {
                // Not even that it failed can be written.
                Refused::Everything => assert!(told_then.is_err(), "{told_then:?}"),
                _ => assert_eq!(told_then.expect("it is noted").status, Status::Failed),
            }
            house.weather.refuse(Refused::Nothing);
            for _ in 0..2 {
                process.end().await;
                process = house.boot(&Life::default()).await.expect("nothing ends it");
                let all = told(&process, workflow, "run").await;
                assert_eq!(all, [const { Ok(Status::Succeeded) }; 3], "{refused:?}");
            }
            process.end().await;
        }
    });
}

/// W2, W4: what is refused for good also by the next start stays failed, and nobody else is told so who comes before that is known.
#[test]
fn a_run_that_is_refused_again_stays_failed_and_others_are_as_they_were() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
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
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
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

/// W4: however often it is asked for.
#[test]
fn asking_for_a_refused_run_keeps_nobody_from_being_served() {
    simulated::run(async {
        let mut house = House::far(
            1,
            Options {
                runs_max: 10,
                ..Options::default()
            },
        )
        .await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        process.begin(COUNTS, "before").await.expect("begun");
        process
            .service
            .wait(COUNTS, "before", END_MAX)
            .await
            .expect("it ends");
        house.weather.refuse(Refused::Everything);
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

/// W3: a failure is output too.
#[test]
fn what_a_run_failed_with_is_shown_once_what_it_rests_on_is_far() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        process.begin(COUNTS, "before").await.expect("begun");
        process
            .service
            .wait(COUNTS, "before", END_MAX)
            .await
            .expect("it ends");
        house.weather.leave();
        process.begin(FAILS, "run").await.expect("begun near");
        tokio::time::sleep(Duration::from_mins(2)).await;
        let hidden = process.service.run(FAILS, "run").await;
        assert!(hidden.is_err(), "{hidden:?}");
        assert_eq!(house.look_far().await.status(FAILS, "run"), None);
        house.weather.calm();
        let shown = process
            .service
            .wait(FAILS, "run", END_MAX)
            .await
            .expect("it is shown");
        assert_eq!(shown.status, Status::Failed);
        assert_eq!(house.look_far().await.steps(FAILS, "run"), ["0"]);
        process.end().await;
    });
}

/// W3, W-3: a server that stops in order leaves nothing behind, and nobody waits for its lease.
#[test]
fn a_server_that_stops_gives_the_far_store_back_with_all_that_it_wrote() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        process.begin(COUNTS, "run").await.expect("begun");
        tokio::time::sleep(Duration::from_millis(200)).await;
        process.service.stop().await;
        let stopped = house.look_far().await;
        process.end().await;
        house.lose_near();
        let clock = house.near.clock();
        let began = clock.monotonic();
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
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

/// W2: whatever its code makes of an `externalize` that failed.
#[test]
fn a_step_does_not_count_without_what_it_could_not_externalize() {
    let ended = async |broken: Option<Broken>| {
        let mut house = House::far(
            1,
            Options {
                broken,
                ..Options::default()
            },
        )
        .await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
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

/// What a run has come to a while after its near store went back under it, as it was about to try a step again.
async fn gone_on(options: Options) -> Status {
    let mut house = House::far(1, options).await;
    house.fails_one_in = 0;
    let process = house.boot(&Life::default()).await.expect("nothing ends it");
    process.begin(SECOND, "run").await.expect("begun");
    // It finds nothing to hear.
    tokio::time::sleep(Duration::from_secs(1)).await;
    house.near.fall_back();
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

/// W4: in one process, whatever its steps fail with.
#[test]
fn a_run_goes_on_whose_near_store_has_gone_back_between_two_tries() {
    assert_eq!(
        simulated::run(gone_on(Options::default())),
        Status::Succeeded
    );
    let came_to = simulated::run(gone_on(Options {
        broken: Some(Broken::StaysInALostRange),
        ..Options::default()
    }));
    assert_eq!(came_to, Status::Running, "the broken one is caught");
}

/// How a run of `workflow` ends, whose far store is away for a while, and what it has seen there; it has no retries.
async fn through_an_outage(workflow: &str, broken: Option<Broken>) -> (Status, Option<String>) {
    let mut house = House::far(
        1,
        Options {
            broken,
            ..Options::default()
        },
    )
    .await;
    house.fails_one_in = 0;
    let process = house.boot(&Life::default()).await.expect("nothing ends it");
    process.begin(COUNTS, BEFORE).await.expect("begun");
    process
        .service
        .wait(COUNTS, BEFORE, END_MAX)
        .await
        .expect("it ends");
    process.end().await;
    if workflow != HURRIES {
        // Whoever is next has to ask the far store for what is there; near, nothing would be refused.
        house.lose_near();
    }
    let process = house.boot(&Life::default()).await.expect("nothing ends it");
    while process.begin(workflow, "run").await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    // Its first attempt is under way, and for long.
    tokio::time::sleep(AGAIN).await;
    house.weather.leave();
    tokio::time::sleep(Duration::from_mins(5)).await;
    house.weather.calm();
    let ended = process
        .service
        .wait(workflow, "run", END_MAX)
        .await
        .expect("it ends");
    process.end().await;
    (ended.status, house.look_far().await.state("seen/run"))
}

/// W9: whether what it asks is refused, or takes too long, or is asked by a step within, or by another function.
#[test]
fn an_attempt_that_ends_since_its_far_store_is_away_uses_up_no_retry() {
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

/// W9: what fails while the far store is away, and has asked nothing of it, has failed.
#[test]
fn what_fails_by_itself_during_an_outage_has_failed() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        process.begin(COUNTS, BEFORE).await.expect("begun");
        process
            .service
            .wait(COUNTS, BEFORE, END_MAX)
            .await
            .expect("it ends");
        house.weather.leave();
        process.begin(FAILS, "run").await.expect("begun near");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(process.service.active(), 0, "its end is written near");
        house.weather.calm();
        let ended = process
            .service
            .wait(FAILS, "run", END_MAX)
            .await
            .expect("it is shown");
        assert_eq!(ended.status, Status::Failed);
        process.end().await;
    });
}
