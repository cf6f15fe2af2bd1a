//! C6, C-6: the effect of a renewal, its owner, and the ownership of a session.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Config, Ended, Parts,
    broken::Broken,
    dependency::TrackedStore,
    model::{Lifetime, Output, Request, SessionId, Watching},
    storage::session::{self, State, Transition},
};
use futures_util::future::join;
use ports::{
    KeyValue, Result, Update,
    decorate::KeyValueDecorator,
    decorates,
    faults::{Fault, FaultSchedule},
    key_value::{Action, Change, SharedKeyValue, Updated},
};
use simulated::World;

use crate::single_service::{TIMEOUT, connect, create, following, following_with, parts, without};

/// A store in which a session is renewed once, between the decision that it is silent and that
/// decision's update.
#[derive(Debug)]
struct RenewsBehindTheJudge {
    honest: SharedKeyValue,
    /// The session to renew; none: none is left.
    renews: Mutex<Option<(SessionId, u64)>>,
}

impl RenewsBehindTheJudge {
    /// In the layout of `coordination::storage::session`.
    fn condemns(update: &Update) -> bool {
        let closing = Action::set_integer("state", 1);
        matches!(&update.change, Change::Modify(actions) if actions.contains(&closing))
    }
}

decorates!(RenewsBehindTheJudge, dyn KeyValue, honest);

impl KeyValueDecorator for RenewsBehindTheJudge {
    async fn update(&self, update: Update) -> Result<Updated> {
        let due = if Self::condemns(&update) {
            self.renews.lock().expect("one at a time").take()
        } else {
            None
        };
        if let Some((session, attach)) = due {
            let sessions = TrackedStore::new(Arc::clone(&self.honest));
            let renewed = session::renew(&mut sessions.clone(), session, attach).await?;
            assert!(
                matches!(renewed, Transition::Done(_)),
                "it was open: {renewed:?}"
            );
        }
        self.honest.update(update).await
    }
}

/// Whether a session survives that was renewed after the heartbeat had condemned it.
async fn lives_by_a_late_renewal(broken: Option<Broken>) -> bool {
    let world = World::new(1);
    let system = Arc::new(RenewsBehindTheJudge {
        honest: world.key_value(),
        renews: Mutex::default(),
    });
    let made_of = Parts {
        system: Arc::clone(&system) as Arc<_>,
        ..parts(&world)
    };
    let service = following_with(&world, made_of, without(broken)).await;
    let client = connect(&service.gateway()).await.expect("a calm world");
    let session = client.session();
    drop(client);
    *system.renews.lock().expect("one at a time") = Some((session, 1));
    while system.renews.lock().expect("one at a time").is_some() {
        world.clock().sleep(Duration::from_secs(1)).await;
    }
    world.clock().sleep(TIMEOUT / 2).await;
    let sessions = TrackedStore::new(world.key_value());
    let row = session::get(&mut sessions.clone(), session)
        .await
        .expect("a calm world");
    let is_open = row.is_some_and(|row| row.state == State::Open);
    world.clock().sleep(TIMEOUT).await;
    let row = session::get(&mut sessions.clone(), session)
        .await
        .expect("a calm world");
    assert!(row.is_none(), "no process has renewed it again: {row:?}");
    is_open
}

/// C6, C-6: the client sent a request between the read of its session and the condemning update.
#[test]
fn a_session_that_is_renewed_while_it_is_judged_lives() {
    assert!(simulated::run(lives_by_a_late_renewal(None)));
}

/// C-6, broken.
#[test]
fn condemning_a_session_renewed_meanwhile_is_caught() {
    assert!(!simulated::run(lives_by_a_late_renewal(Some(
        Broken::ExpiresRenewedSessions
    ))));
}

/// How a connection ends that keeps pinging after another one took its session over and died before
/// it told any process; none: it continues.
async fn end_of_the_replaced(broken: Option<Broken>) -> Option<Ended> {
    let world = World::new(1);
    let service = following_with(&world, parts(&world), without(broken)).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    let sessions = TrackedStore::new(world.key_value());
    let attached = session::attach(
        &mut sessions.clone(),
        client.session(),
        client.password(),
        TIMEOUT,
    )
    .await;
    assert!(
        matches!(attached, Ok(Transition::Done(_))),
        "it is open: {attached:?}"
    );
    let until = world.clock().monotonic() + TIMEOUT * 3;
    let mut end = None;
    while end.is_none() && world.clock().monotonic() < until {
        client.submit(1, Request::Ping);
        end = client.pump(&mut Vec::new()).await.err();
        world.clock().sleep(Duration::from_secs(1)).await;
    }
    let row = session::get(&mut sessions.clone(), client.session())
        .await
        .expect("a calm world");
    assert!(
        row.is_some(),
        "it is renewed, or was moved less than its timeout ago"
    );
    end
}

/// C6, C-6: the last attached connection owns the session, and no other one keeps it alive.
#[test]
fn a_connection_that_was_replaced_renews_nothing() {
    let end = simulated::run(end_of_the_replaced(None));
    assert!(matches!(end, Some(Ended::Moved)), "{end:?}");
}

/// C-6, broken.
#[test]
fn renewing_for_another_connection_is_caught() {
    let end = simulated::run(end_of_the_replaced(Some(Broken::RenewsForItsReplacement)));
    assert!(end.is_none(), "{end:?}");
}

/// How long a connection may last whose peer only connects, which renews it once. The front end
/// checks it every second.
const SILENCE_MAX: Duration = Duration::from_millis(TIMEOUT.as_millis() as u64 * 5 / 4)
    .saturating_add(Duration::from_secs(1));

/// Answers updates late while it is switched on.
#[derive(Debug, Default)]
struct SlowToUpdate(AtomicBool);

impl FaultSchedule for SlowToUpdate {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.update" if self.0.load(Ordering::Relaxed) => Fault::Delay(TIMEOUT / 2),
            _ => Fault::None,
        }
    }
}

/// How a connection ends whose peer is silent, and which its front end checks every second.
async fn end_of_the_silent(
    renews_slowly: bool,
    broken: Option<Broken>,
) -> (Option<Ended>, Duration) {
    let (world, faults) = (World::new(1), Arc::<SlowToUpdate>::default());
    let service = following(&world, faults.clone(), without(broken)).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    faults.0.store(renews_slowly, Ordering::Relaxed);
    let begun = world.clock().monotonic();
    loop {
        let end = client.pump(&mut Vec::new()).await.err();
        let passed = world.clock().monotonic().since(begun);
        if end.is_some() || passed > TIMEOUT * 3 {
            return (end, passed);
        }
        world.clock().sleep(Duration::from_secs(1)).await;
    }
}

/// C6, C-6: the peer renews a session, not the process that it is connected to.
#[test]
fn a_connection_whose_peer_is_silent_ends_with_its_lease() {
    for renews_slowly in [false, true] {
        let (end, passed) = simulated::run(end_of_the_silent(renews_slowly, None));
        assert!(
            matches!(end, Some(Ended::LeaseLost | Ended::Expired)),
            "{end:?}"
        );
        assert!(passed <= SILENCE_MAX, "{passed:?}");
    }
}

/// C-6, broken.
#[test]
fn counting_a_lease_from_the_answer_is_caught() {
    let broken = Some(Broken::CountsLeasesFromTheirAnswer);
    let (_, passed) = simulated::run(end_of_the_silent(true, broken));
    assert!(passed > SILENCE_MAX, "{passed:?}");
}

/// C-6: a process that was paused for a whole timeout owns no session, regardless of the row.
#[test]
fn a_connection_that_was_paused_for_its_timeout_falls_silent() {
    let end = simulated::run(async {
        let world = World::new(1);
        let service = following_with(&world, parts(&world), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        world.clock().sleep(TIMEOUT).await;
        client.submit(1, Request::Ping);
        client.pump(&mut Vec::new()).await.err()
    });
    assert!(matches!(end, Some(Ended::LeaseLost)), "{end:?}");
}

/// Answers reads after the caller's lease has expired, while it is switched on.
#[derive(Debug, Default)]
struct SlowToRead(AtomicBool);

impl FaultSchedule for SlowToRead {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.get" if self.0.load(Ordering::Relaxed) => Fault::Delay(TIMEOUT),
            _ => Fault::None,
        }
    }
}

/// The outputs of a connection for a read that takes longer than its lease.
async fn given_after_the_lease(broken: Option<Broken>) -> (Vec<Output>, Option<Ended>) {
    let (world, faults) = (World::new(1), Arc::<SlowToRead>::default());
    let service = following(&world, faults.clone(), without(broken)).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    client.submit(
        1,
        Request::Exists {
            path: "/".into(),
            watching: Watching::No,
        },
    );
    faults.0.store(true, Ordering::Relaxed);
    let mut outputs = Vec::new();
    let end = client.pump(&mut outputs).await.err();
    (outputs, end)
}

/// C-6: a result is not shown after the lease under which it was computed has expired.
#[test]
fn a_read_that_takes_longer_than_the_lease_is_not_answered() {
    let (outputs, end) = simulated::run(given_after_the_lease(None));
    assert_eq!(outputs, []);
    assert!(
        matches!(end, Some(Ended::LeaseLost | Ended::Expired)),
        "{end:?}"
    );
}

/// C-6, broken.
#[test]
fn answering_after_the_lease_is_caught() {
    let (outputs, _) = simulated::run(given_after_the_lease(Some(Broken::AnswersAfterItsLease)));
    assert!(
        matches!(outputs[..], [Output::Reply { tag: 1, .. }]),
        "{outputs:?}"
    );
}

/// The last sign of life of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parting {
    /// Its process died with its unsaved renewals.
    ProcessDied,
    /// Its connection ended.
    Left,
    /// It is still connected but silent.
    SaysNothing,
}

/// How long a session stays open after its client's last request. That request is sent a number of
/// fortieths of the timeout after the attach. A renewal is due at the tenth; the connection, if it
/// ends, ends at the ninth.
async fn outlives_its_last_request(
    parting: Parting,
    fortieths: u32,
    broken: Option<Broken>,
) -> Duration {
    let world = World::new(1);
    let service = following_with(&world, parts(&world), without(broken)).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    world.clock().sleep(TIMEOUT * fortieths / 40).await;
    client.submit(1, Request::Ping);
    client.pump(&mut Vec::new()).await.expect("its lease runs");
    let (session, begun) = (client.session(), world.clock().monotonic());
    let leaves_after = world.clock();
    let looked_after = async move {
        if parting == Parting::SaysNothing {
            while client.pump(&mut Vec::new()).await.is_ok() {
                client.wait().await;
            }
        } else if parting == Parting::Left {
            leaves_after.sleep(TIMEOUT * (9 - fortieths) / 40).await;
            client.disconnect().await;
        }
    };
    let ends = async {
        let sessions = TrackedStore::new(world.key_value());
        while let Ok(Some(_)) = session::get(&mut sessions.clone(), session).await {
            world.clock().sleep(Duration::from_millis(100)).await;
        }
        world.clock().monotonic().since(begun)
    };
    join(looked_after, ends).await.1
}

/// By how much a session outlives its timeout until a heartbeat sees it and its end is applied.
const BEATS_MAX: Duration = Duration::from_millis(2_500);

/// C6: its timeout runs from the last request, not from the last renewal, even if processes have
/// died since.
#[test]
fn a_session_has_its_whole_timeout_from_its_last_request() {
    for parting in [Parting::ProcessDied, Parting::Left, Parting::SaysNothing] {
        for fortieths in [1, 5, 9] {
            let lived = simulated::run(outlives_its_last_request(parting, fortieths, None));
            assert!(lived >= TIMEOUT, "{parting:?} after {fortieths}: {lived:?}");
        }
    }
}

/// C6, broken.
#[test]
fn taking_rows_for_exact_is_caught() {
    let broken = Some(Broken::TreatsRowsAsExact);
    let lived = simulated::run(outlives_its_last_request(Parting::ProcessDied, 9, broken));
    assert!(lived < TIMEOUT, "{lived:?}");
}

/// C6: a live process knows that its client is silent, so the session gets no additional time.
#[test]
fn only_a_session_whose_process_has_died_gets_more_than_its_timeout() {
    let lived =
        |parting, fortieths| simulated::run(outlives_its_last_request(parting, fortieths, None));
    for parting in [Parting::Left, Parting::SaysNothing] {
        for fortieths in [1, 5, 9] {
            let lived = lived(parting, fortieths);
            assert!(
                lived <= TIMEOUT + BEATS_MAX,
                "{parting:?} after {fortieths}: {lived:?}"
            );
        }
    }
    assert!(lived(Parting::ProcessDied, 9) > TIMEOUT + BEATS_MAX);
}

/// C6: a client that takes a session over gets its whole timeout from then on.
#[test]
fn taking_a_session_up_renews_it() {
    simulated::run(async {
        let world = World::new(1);
        let service = following_with(&world, parts(&world), Config::default()).await;
        let client = connect(&service.gateway()).await.expect("a calm world");
        let (session, password) = (client.session(), client.password());
        drop(client);
        world.clock().sleep(TIMEOUT * 9 / 10).await;
        let sessions = TrackedStore::new(world.key_value());
        let attached = session::attach(&mut sessions.clone(), session, password, TIMEOUT).await;
        assert!(matches!(attached, Ok(Transition::Done(_))), "{attached:?}");
        world.clock().sleep(TIMEOUT * 9 / 10).await;
        let row = session::get(&mut sessions.clone(), session)
            .await
            .expect("a calm world");
        assert!(
            row.is_some_and(|row| row.state == State::Open),
            "its time is not over"
        );
    });
}

/// C6: only the password opens a session, and no client opens one whose end has begun.
#[test]
fn a_session_is_taken_up_by_its_password_alone_and_not_once_it_is_closing() {
    simulated::run(async {
        let world = World::new(1);
        let service = following_with(&world, parts(&world), Config::default()).await;
        let client = connect(&service.gateway()).await.expect("a calm world");
        let (session, password) = (client.session(), client.password());
        let sessions = TrackedStore::new(world.key_value());
        let attach = async |password| {
            let attached = session::attach(&mut sessions.clone(), session, password, TIMEOUT).await;
            matches!(attached.expect("a calm world"), Transition::Done(_))
        };
        let mut wrong = password;
        wrong.0[15] ^= 1;
        assert!(!attach(wrong).await, "one bit is another");
        assert!(attach(password).await);
        let row = session::get(&mut sessions.clone(), session)
            .await
            .expect("a calm world");
        let renewals = row.expect("it is open").renewals;
        let condemned = session::expire(&mut sessions.clone(), session, renewals).await;
        assert!(
            matches!(condemned, Ok(Transition::Done(_))),
            "{condemned:?}"
        );
        assert!(!attach(password).await, "its end has begun");
    });
}

/// The duration of a slow fsync.
const SYNC_TAKES: Duration = Duration::from_secs(2);

/// Delays durability while it is switched on.
#[derive(Debug, Default)]
struct SlowToSync(AtomicBool);

impl FaultSchedule for SlowToSync {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.externalize" if self.0.load(Ordering::Relaxed) => Fault::Delay(SYNC_TAKES),
            _ => Fault::None,
        }
    }
}

/// C5: a following read makes the answer available to its client early; it is still sent only once
/// it is durable.
#[test]
fn an_answer_before_a_waiting_read_is_sent_once_it_is_durable() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::<SlowToSync>::default());
        let service = following(&world, faults.clone(), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        faults.0.store(true, Ordering::Relaxed);
        client.submit(1, create("/made", Lifetime::Persistent));
        client.submit(
            2,
            Request::Exists {
                path: "/made".into(),
                watching: Watching::No,
            },
        );
        let mut outputs = Vec::new();
        let until = world.clock().monotonic() + SYNC_TAKES / 2;
        while world.clock().monotonic() < until {
            client.pump(&mut outputs).await.expect("it is looked after");
            assert_eq!(outputs, [], "nothing is durable");
            world.clock().sleep(Duration::from_millis(100)).await;
        }
        faults.0.store(false, Ordering::Relaxed);
        while outputs.len() < 2 {
            client.pump(&mut outputs).await.expect("it is looked after");
            world.clock().sleep(Duration::from_millis(100)).await;
        }
    });
}

/// Whether a session survives whose client reads earlier answers for three timeouts and sends
/// nothing.
async fn lives_while_it_reads(takes_answers: bool) -> bool {
    let world = World::new(1);
    let service = following_with(&world, parts(&world), Config::default()).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    let until = world.clock().monotonic() + TIMEOUT * 3;
    while world.clock().monotonic() < until {
        if takes_answers {
            client
                .keep_alive()
                .await
                .expect("its lease is renewed in time");
        }
        world.clock().sleep(Duration::from_secs(1)).await;
    }
    let row = session::get(&mut TrackedStore::new(world.key_value()), client.session()).await;
    row.expect("a calm world")
        .is_some_and(|row| row.state == State::Open)
}

/// C6: a client may need longer than its timeout to read an answer, and sends nothing else
/// meanwhile.
#[test]
fn a_client_that_reads_its_answers_is_alive() {
    assert!(simulated::run(lives_while_it_reads(true)));
    assert!(
        !simulated::run(lives_while_it_reads(false)),
        "the timeout is as long as ever"
    );
}
