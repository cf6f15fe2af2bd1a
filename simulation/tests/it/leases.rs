//! C6, C-6: what a renewal is worth, whose it is, and who may speak for a session.

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
    dependency::Dependency,
    model::{Lifetime, Output, Request, SessionId, Watching},
    storage::session::{Sessions, State, Transition},
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

use crate::alone::{TIMEOUT, connect, create, follow, parts, started, started_with};

/// A store in which a session is renewed once, after it was judged silent and before that has arrived.
#[derive(Debug)]
struct RenewsBehindTheJudge {
    honest: SharedKeyValue,
    /// Whom; none: nobody, or nobody any more.
    renews: Mutex<Option<(SessionId, u64)>>,
}

impl RenewsBehindTheJudge {
    /// As `coordination::storage::session` lays rows out.
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
            let sessions = Sessions::new(Arc::clone(&self.honest));
            let renewed = sessions
                .renew(session, attach, &mut Dependency::default())
                .await?;
            assert!(
                matches!(renewed, Transition::Done(_)),
                "it was open: {renewed:?}"
            );
        }
        self.honest.update(update).await
    }
}

/// Whether a session is open that was renewed when its judge had made up its mind.
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
    let service = started_with(
        &world,
        made_of,
        Config {
            broken,
            ..Config::default()
        },
    )
    .await;
    follow(&service);
    let client = connect(&service.gateway()).await.expect("a calm world");
    let session = client.session();
    drop(client);
    *system.renews.lock().expect("one at a time") = Some((session, 1));
    while system.renews.lock().expect("one at a time").is_some() {
        world.clock().sleep(Duration::from_secs(1)).await;
    }
    world.clock().sleep(TIMEOUT / 2).await;
    let sessions = Sessions::new(world.key_value());
    let row = sessions
        .get(session, &mut Dependency::default())
        .await
        .expect("a calm world");
    let is_open = row.is_some_and(|row| row.state == State::Open);
    world.clock().sleep(TIMEOUT).await;
    let row = sessions
        .get(session, &mut Dependency::default())
        .await
        .expect("a calm world");
    assert!(row.is_none(), "nobody has renewed it again: {row:?}");
    is_open
}

/// C6, C-6: between the look at a session and its sentence its client was heard of.
#[test]
fn a_session_that_is_renewed_while_it_is_judged_lives() {
    assert!(simulated::run(lives_by_a_late_renewal(None)));
}

/// C-6, broken.
#[test]
fn condemning_who_was_renewed_meanwhile_is_caught() {
    assert!(!simulated::run(lives_by_a_late_renewal(Some(
        Broken::ExpiresRenewedSessions
    ))));
}

/// How a connection ends that goes on pinging, after another has taken its session up and died before it told anybody;
/// none: it goes on.
async fn end_of_the_replaced(broken: Option<Broken>) -> Option<Ended> {
    let world = World::new(1);
    let service = started_with(
        &world,
        parts(&world),
        Config {
            broken,
            ..Config::default()
        },
    )
    .await;
    follow(&service);
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    let sessions = Sessions::new(world.key_value());
    let attached = sessions
        .attach(
            client.session(),
            client.password(),
            TIMEOUT,
            &mut Dependency::default(),
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
    let row = sessions
        .get(client.session(), &mut Dependency::default())
        .await
        .expect("a calm world");
    assert!(
        row.is_some(),
        "it is renewed, or was moved less than its timeout ago"
    );
    end
}

/// C6, C-6: whoever was attached last speaks for the session, and nobody else keeps it alive.
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

/// How long a connection may last whose peer says nothing but that it connects, by which it is renewed once; the front end
/// looks after it every second.
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

/// How a connection ends that is looked after every second by its front end, and whose peer says nothing.
async fn end_of_the_silent(
    renews_slowly: bool,
    broken: Option<Broken>,
) -> (Option<Ended>, Duration) {
    let (world, faults) = (World::new(1), Arc::<SlowToUpdate>::default());
    let service = started(
        &world,
        faults.clone(),
        Config {
            broken,
            ..Config::default()
        },
    )
    .await;
    follow(&service);
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

/// C6, C-6: the peer renews, not the process that it is connected to.
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

/// C-6: a process that was not looked after for a whole timeout speaks for nobody, whatever the row says.
#[test]
fn a_connection_that_was_paused_for_its_timeout_falls_silent() {
    let end = simulated::run(async {
        let world = World::new(1);
        let service = started_with(&world, parts(&world), Config::default()).await;
        follow(&service);
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        world.clock().sleep(TIMEOUT).await;
        client.submit(1, Request::Ping);
        client.pump(&mut Vec::new()).await.err()
    });
    assert!(matches!(end, Some(Ended::LeaseLost)), "{end:?}");
}

/// Answers reads after the lease of whoever asks while it is switched on.
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

/// What a connection gives of a read that takes longer than its lease.
async fn given_after_the_lease(broken: Option<Broken>) -> (Vec<Output>, Option<Ended>) {
    let (world, faults) = (World::new(1), Arc::<SlowToRead>::default());
    let service = started(
        &world,
        faults.clone(),
        Config {
            broken,
            ..Config::default()
        },
    )
    .await;
    follow(&service);
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

/// C-6: what was begun under the lease is not shown when that has run out.
#[test]
fn what_takes_longer_than_the_lease_is_not_answered() {
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

/// How a client was heard of for the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parting {
    /// Its process died with what it had heard.
    ProcessDied,
    /// Its connection ended.
    Left,
    /// It is still connected, and says nothing.
    SaysNothing,
}

/// How long a session is open after its client was heard of for the last time, so many fortieths of its timeout after it was
/// taken up; a renewal is due at the tenth, and its connection, if it ends, ends at the ninth.
async fn outlives_its_last_request(
    parting: Parting,
    fortieths: u32,
    broken: Option<Broken>,
) -> Duration {
    let world = World::new(1);
    let service = started_with(
        &world,
        parts(&world),
        Config {
            broken,
            ..Config::default()
        },
    )
    .await;
    follow(&service);
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
        let sessions = Sessions::new(world.key_value());
        while let Ok(Some(_)) = sessions.get(session, &mut Dependency::default()).await {
            world.clock().sleep(Duration::from_millis(100)).await;
        }
        world.clock().monotonic().since(begun)
    };
    join(looked_after, ends).await.1
}

/// How long a session outlives its timeout until a heartbeat sees it, and its end is applied.
const BEATS_MAX: Duration = Duration::from_millis(2_500);

/// C6: its timeout runs from the last request, not from the last renewal, whoever has died since.
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

/// C6: of a client whose process lives it is known that it was not heard any more, and its session ends no later for the doubt.
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

/// C6: whoever takes a session up has its whole timeout from then on.
#[test]
fn taking_a_session_up_renews_it() {
    simulated::run(async {
        let world = World::new(1);
        let service = started_with(&world, parts(&world), Config::default()).await;
        follow(&service);
        let client = connect(&service.gateway()).await.expect("a calm world");
        let (session, password) = (client.session(), client.password());
        drop(client);
        world.clock().sleep(TIMEOUT * 9 / 10).await;
        let sessions = Sessions::new(world.key_value());
        let attached = sessions
            .attach(session, password, TIMEOUT, &mut Dependency::default())
            .await;
        assert!(matches!(attached, Ok(Transition::Done(_))), "{attached:?}");
        world.clock().sleep(TIMEOUT * 9 / 10).await;
        let row = sessions
            .get(session, &mut Dependency::default())
            .await
            .expect("a calm world");
        assert!(
            row.is_some_and(|row| row.state == State::Open),
            "its time is not over"
        );
    });
}

/// C6: a session is its password's, and one whose end has begun is nobody's.
#[test]
fn a_session_is_taken_up_by_its_password_alone_and_not_once_it_is_closing() {
    simulated::run(async {
        let world = World::new(1);
        let service = started_with(&world, parts(&world), Config::default()).await;
        follow(&service);
        let client = connect(&service.gateway()).await.expect("a calm world");
        let (session, password) = (client.session(), client.password());
        let sessions = Sessions::new(world.key_value());
        let attach = async |password| {
            let attached = sessions
                .attach(session, password, TIMEOUT, &mut Dependency::default())
                .await;
            matches!(attached.expect("a calm world"), Transition::Done(_))
        };
        let mut wrong = password;
        wrong.0[15] ^= 1;
        assert!(!attach(wrong).await, "one bit is another");
        assert!(attach(password).await);
        let row = sessions
            .get(session, &mut Dependency::default())
            .await
            .expect("a calm world");
        let renewals = row.expect("it is open").renewals;
        let condemned = sessions
            .expire(session, renewals, &mut Dependency::default())
            .await;
        assert!(
            matches!(condemned, Ok(Transition::Done(_))),
            "{condemned:?}"
        );
        assert!(!attach(password).await, "its end has begun");
    });
}

/// How long it takes until anything is durable, where it takes long.
const SYNC_TAKES: Duration = Duration::from_secs(2);

/// Makes everything durable late while it is switched on.
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

/// C5: with a read behind it an answer comes to its client early; it leaves once it is durable all the same.
#[test]
fn an_answer_that_a_read_waits_behind_leaves_when_it_is_durable() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::<SlowToSync>::default());
        let service = started(&world, faults.clone(), Config::default()).await;
        follow(&service);
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

/// Whether a session is open whose client reads for three timeouts what it was sent, and is asked for nothing.
async fn lives_while_it_reads(takes_answers: bool) -> bool {
    let world = World::new(1);
    let service = started_with(&world, parts(&world), Config::default()).await;
    follow(&service);
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
    let row = Sessions::new(world.key_value())
        .get(client.session(), &mut Dependency::default())
        .await;
    row.expect("a calm world")
        .is_some_and(|row| row.state == State::Open)
}

/// C6: what a client asked for may take longer to read than its timeout; meanwhile nothing else of it is heard.
#[test]
fn who_takes_answers_is_there() {
    assert!(simulated::run(lives_while_it_reads(true)));
    assert!(
        !simulated::run(lives_while_it_reads(false)),
        "the timeout is as long as ever"
    );
}
