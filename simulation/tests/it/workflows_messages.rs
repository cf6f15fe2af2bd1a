//! W2, W3 with a far store: what steps send, whatever keeps it from leaving or from being noted as sent.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use simulation::{
    transactions::mortal::Life,
    workflows::{
        code::{COUNTS, SENDS, SPOILS, STEPS, TURNS, TURNS_TAKEN},
        far::Refused,
        house::{House, Process},
        outside::STUCK,
    },
};
use workflows::{Broken, Options, Status};

/// What calm weather has all runs end in.
const END_MAX: Duration = Duration::from_mins(30);

/// W2: of each run in its order, and no run waits for another's.
#[test]
fn a_message_that_cannot_leave_holds_up_its_own_run_alone() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        for run in [STUCK, "free"] {
            process.begin(COUNTS, run).await.expect("begun");
            process
                .service
                .wait(COUNTS, run, END_MAX)
                .await
                .expect("it ends");
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
        let received = |run: &str| {
            house
                .outside
                .noted()
                .received(&format!("{COUNTS} {run} "))
                .len()
        };
        let all = STEPS as usize * SENDS.len();
        assert_eq!((received(STUCK), received("free")), (0, all));
        house.outside.takes_all();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let each =
            (0..STEPS).flat_map(|path| SENDS.map(|more| format!("{COUNTS} {STUCK} {path} {more}")));
        assert_eq!(
            house
                .outside
                .noted()
                .received(&format!("{COUNTS} {STUCK} ")),
            each.collect::<Vec<_>>()
        );
        assert_eq!(house.look_far().await.unsent(), 0);
        process.end().await;
    });
}

/// How many messages of a run arrive that were sent before.
fn received(house: &House, run: &str) -> usize {
    house
        .outside
        .noted()
        .received(&format!("{COUNTS} {run} "))
        .len()
}

/// A server whose run has ended, and has sent what is not taken.
async fn with_unsent(options: Options) -> (House, Process) {
    let mut house = House::far(1, options).await;
    house.fails_one_in = 0;
    let process = house.boot(&Life::default()).await.expect("nothing ends it");
    process.begin(COUNTS, STUCK).await.expect("begun");
    process
        .service
        .wait(COUNTS, STUCK, END_MAX)
        .await
        .expect("it ends");
    (house, process)
}

/// W3, W-3: the far store takes writes and no sign of life, for whatever reason: another may have taken the range.
#[test]
fn nothing_is_sent_while_nobody_knows_whose_the_range_is() {
    simulated::run(async {
        let (house, process) = with_unsent(Options::default()).await;
        house.weather.refuse(Refused::Renewals);
        // Until its lease is over.
        tokio::time::sleep(Duration::from_secs(11)).await;
        house.outside.takes_all();
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(received(&house, STUCK), 0);
        house.weather.refuse(Refused::Nothing);
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(received(&house, STUCK), STEPS as usize * SENDS.len());
        process.end().await;
    });
}

/// W2: what an earlier start has written, and is refused again, keeps no message of others from leaving, nor from being noted as sent.
#[test]
fn what_is_refused_for_good_is_nothing_to_messages_that_do_not_rest_on_it() {
    simulated::run(async {
        let (mut house, process) = with_unsent(Options::default()).await;
        process.begin(SPOILS, "run").await.expect("begun");
        process
            .service
            .wait(SPOILS, "run", END_MAX)
            .await
            .expect("it is shown");
        process.end().await;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        // By then it is refused again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        process.begin(COUNTS, "later").await.expect("begun");
        process
            .service
            .wait(COUNTS, "later", END_MAX)
            .await
            .expect("it ends");
        house.outside.takes_all();
        tokio::time::sleep(Duration::from_mins(2)).await;
        let all = STEPS as usize * SENDS.len();
        assert_eq!(
            (received(&house, STUCK), received(&house, "later")),
            (all, all)
        );
        assert_eq!(
            house.look_far().await.unsent(),
            0,
            "it would be sent again by the next start"
        );
        process.end().await;
    });
}

/// How many messages arrive whose run has ended before its near store restarted, and nobody asks for anything.
async fn sent_without_being_asked(broken: Option<Broken>) -> usize {
    let (house, process) = with_unsent(Options {
        broken,
        ..Options::default()
    })
    .await;
    house.near.crash();
    // By then somebody has noticed.
    tokio::time::sleep(Duration::from_mins(1)).await;
    house.outside.takes_all();
    tokio::time::sleep(Duration::from_mins(2)).await;
    process.end().await;
    received(&house, STUCK)
}

/// W2.
#[test]
fn what_is_unsent_leaves_once_its_near_store_is_back_and_nobody_has_to_ask() {
    assert_eq!(
        simulated::run(sent_without_being_asked(None)),
        STEPS as usize * SENDS.len()
    );
    let waiting = Some(Broken::WaitsForACaller);
    assert_eq!(
        simulated::run(sent_without_being_asked(waiting)),
        0,
        "the broken one is caught"
    );
}

/// W2: what an attempt has count ahead of its step is no repeat of what another attempt sends in its place.
#[test]
fn an_attempt_that_sends_something_else_than_the_one_before_is_not_taken_for_a_repeat() {
    simulated::run(async {
        let mut house = House::far(1, Options::default()).await;
        house.fails_one_in = 0;
        let process = house.boot(&Life::default()).await.expect("nothing ends it");
        process.begin(TURNS, "run").await.expect("begun");
        let ended = process
            .service
            .wait(TURNS, "run", END_MAX)
            .await
            .expect("it ends");
        assert_eq!(ended.status, Status::Succeeded);
        tokio::time::sleep(Duration::from_mins(1)).await;
        let far = house.look_far().await;
        assert_eq!(house.outside.noted().check(&far), Vec::<String>::new());
        let each: Vec<String> = (0..=TURNS_TAKEN)
            .map(|turn| format!("{TURNS} run/{turn}"))
            .collect();
        assert_eq!(house.outside.noted().received(TURNS), each);
        process.end().await;
    });
}
