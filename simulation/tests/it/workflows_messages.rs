//! W2, W3 with a far store: messages of steps, with any obstacle to sending them or to recording
//! them as sent.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use simulation::{
    transactions::crashable::Life,
    workflows::{
        cluster::{Cluster, Process},
        definitions::{COUNTS, SENDS, SPOILS, STEPS, TURNS, TURNS_TAKEN},
        far::Refused,
        receivers::STUCK,
    },
};
use workflows::{Broken, Options, Status};

/// The time limit of all runs without faults.
const END_MAX: Duration = Duration::from_mins(30);

/// W2: messages of a run are in order, and no run waits for another one's.
#[test]
fn a_message_that_cannot_be_sent_delays_only_its_own_run() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
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
            cluster
                .receivers
                .received_messages()
                .received(&format!("{COUNTS} {run} "))
                .len()
        };
        let all = STEPS as usize * SENDS.len();
        assert_eq!((received(STUCK), received("free")), (0, all));
        cluster.receivers.takes_all();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let each =
            (0..STEPS).flat_map(|path| SENDS.map(|more| format!("{COUNTS} {STUCK} {path} {more}")));
        assert_eq!(
            cluster
                .receivers
                .received_messages()
                .received(&format!("{COUNTS} {STUCK} ")),
            each.collect::<Vec<_>>()
        );
        assert_eq!(cluster.look_far().await.unsent(), 0);
        process.end().await;
    });
}

/// The number of earlier messages of a run that arrive.
fn received(cluster: &Cluster, run: &str) -> usize {
    cluster
        .receivers
        .received_messages()
        .received(&format!("{COUNTS} {run} "))
        .len()
}

/// A server with a finished run whose messages are refused.
async fn with_unsent(options: Options) -> (Cluster, Process) {
    let mut cluster = Cluster::far(1, options).await;
    cluster.fails_one_in = 0;
    let process = cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it");
    process.begin(COUNTS, STUCK).await.expect("begun");
    process
        .service
        .wait(COUNTS, STUCK, END_MAX)
        .await
        .expect("it ends");
    (cluster, process)
}

/// W3, W-3: the far store accepts writes but no heartbeat, so another process may have taken the
/// range.
#[test]
fn nothing_is_sent_while_the_owner_of_the_range_is_unknown() {
    simulated::run(async {
        let (cluster, process) = with_unsent(Options::default()).await;
        cluster.far_faults.refuse(Refused::Renewals);
        // Until its lease has expired.
        tokio::time::sleep(Duration::from_secs(11)).await;
        cluster.receivers.takes_all();
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(received(&cluster, STUCK), 0);
        cluster.far_faults.refuse(Refused::Nothing);
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(received(&cluster, STUCK), STEPS as usize * SENDS.len());
        process.end().await;
    });
}

/// W2: writes of an earlier start that are refused again delay no message of others, neither its
/// sending nor its record.
#[test]
fn a_permanent_refusal_delays_no_independent_messages() {
    simulated::run(async {
        let (mut cluster, process) = with_unsent(Options::default()).await;
        process.begin(SPOILS, "run").await.expect("begun");
        process
            .service
            .wait(SPOILS, "run", END_MAX)
            .await
            .expect("it is shown");
        process.end().await;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        // By then it is refused again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        process.begin(COUNTS, "later").await.expect("begun");
        process
            .service
            .wait(COUNTS, "later", END_MAX)
            .await
            .expect("it ends");
        cluster.receivers.takes_all();
        tokio::time::sleep(Duration::from_mins(2)).await;
        let all = STEPS as usize * SENDS.len();
        assert_eq!(
            (received(&cluster, STUCK), received(&cluster, "later")),
            (all, all)
        );
        assert_eq!(
            cluster.look_far().await.unsent(),
            0,
            "it would be sent again by the next start"
        );
        process.end().await;
    });
}

/// The number of messages that arrive without any request, of a run that ended before its near
/// store restarted.
async fn sent_without_being_asked(broken: Option<Broken>) -> usize {
    let (cluster, process) = with_unsent(Options {
        mutant: broken.into(),
        ..Options::default()
    })
    .await;
    cluster.near.crash();
    // By then a process has noticed.
    tokio::time::sleep(Duration::from_mins(1)).await;
    cluster.receivers.takes_all();
    tokio::time::sleep(Duration::from_mins(2)).await;
    process.end().await;
    received(&cluster, STUCK)
}

/// W2.
#[test]
fn unsent_messages_are_sent_once_the_near_store_is_back_without_a_request() {
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

/// W2: a message that an attempt externalizes ahead of its step is no duplicate of another
/// attempt's message.
#[test]
fn an_attempt_that_sends_something_else_than_the_one_before_is_not_taken_for_a_repeat() {
    simulated::run(async {
        let mut cluster = Cluster::far(1, Options::default()).await;
        cluster.fails_one_in = 0;
        let process = cluster
            .boot(&Life::default())
            .await
            .expect("nothing ends it");
        process.begin(TURNS, "run").await.expect("begun");
        let ended = process
            .service
            .wait(TURNS, "run", END_MAX)
            .await
            .expect("it ends");
        assert_eq!(ended.status, Status::Succeeded);
        tokio::time::sleep(Duration::from_mins(1)).await;
        let far = cluster.look_far().await;
        assert_eq!(
            cluster.receivers.received_messages().check(&far),
            Vec::<String>::new()
        );
        let each: Vec<String> = (0..=TURNS_TAKEN)
            .map(|turn| format!("{TURNS} run/{turn}"))
            .collect();
        assert_eq!(cluster.receivers.received_messages().received(TURNS), each);
        process.end().await;
    });
}
