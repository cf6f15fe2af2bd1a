//! C6: of two connections that attach to one session, the later one owns it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Config, ConnectError, Parts,
    broken::Broken,
    model::{Connect, Lifetime, Output, Request, Watching, Zxid},
};
use ports::faults::{Calm, Fault, FaultSchedule, FaultyFunctions};
use simulated::World;

use crate::single_service::{
    TIMEOUT, connect, connect_to, create, following, following_with, is_answered, parts, result,
    shown, without,
};

/// How long the first connection is delayed before it registers: shorter than its lease.
const HELD_UP: Duration = Duration::from_secs(5);

/// Delays one arming of the timer, which lies between attaching and registering.
#[derive(Debug, Default)]
struct HoldUpOne(AtomicBool);

impl FaultSchedule for HoldUpOne {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "functions.arm_timer" if self.0.swap(false, Ordering::Relaxed) => Fault::Delay(HELD_UP),
            _ => Fault::None,
        }
    }
}

/// The first connection attaches and is delayed, the second attaches and registers, then the first
/// registers. Returns whether the second is answered after that.
async fn newer_is_answered(broken: Option<Broken>) -> bool {
    let (world, hold_up) = (World::new(1), Arc::<HoldUpOne>::default());
    let functions = Arc::new(FaultyFunctions::new(
        world.functions(),
        hold_up.clone(),
        world.clock(),
    ));
    let made_of = Parts {
        functions,
        ..parts(&world)
    };
    let service = following_with(&world, made_of, without(broken)).await;
    let gateway = service.gateway();
    let first = connect(&gateway).await.expect("a session");
    let resume = Some((first.session(), first.password()));
    drop(first);
    let attach = || connect_to(&gateway, resume, TIMEOUT);
    hold_up.0.store(true, Ordering::Relaxed);
    let older = async {
        let begun = world.clock().monotonic();
        let connected = attach().await;
        assert!(
            world.clock().monotonic().since(begun) >= HELD_UP,
            "it registered in time"
        );
        assert!(
            connected.is_err(),
            "it speaks for a session that another has taken up"
        );
    };
    let newer = async {
        let mut client = attach().await.expect("the latest to attach");
        world.clock().sleep(2 * HELD_UP).await;
        is_answered(&mut client, create("/made", Lifetime::Persistent)).await
    };
    let clock = world.clock();
    tokio::select! {
        biased;
        ((), is_answered) = async { tokio::join!(older, newer) } => is_answered,
        () = clock.sleep(4 * HELD_UP) => false,
    }
}

/// C6: the connection that registers late is told so, and the other continues.
#[test]
fn an_older_attach_that_registers_late_replaces_no_connection() {
    assert!(simulated::run(newer_is_answered(None)));
}

/// C6, broken.
#[test]
fn letting_the_last_to_register_speak_is_caught() {
    assert!(!simulated::run(newer_is_answered(Some(
        Broken::LastToRegisterWins
    ))));
}

/// Watches belong to a connection: a client that takes over a live session receives none of their
/// events.
#[test]
fn watches_do_not_outlive_the_connection_that_left_them() {
    simulated::run(async {
        let world = World::new(1);
        let service = following_with(&world, parts(&world), Config::default()).await;
        let gateway = service.gateway();
        let mut older = connect(&gateway).await.expect("a session");
        let watch = Request::Exists {
            path: "/made".into(),
            watching: Watching::Yes,
        };
        result(&mut older, watch)
            .await
            .expect_err("it is not there");
        let resume = Some((older.session(), older.password()));
        let attach = Connect {
            last_zxid_seen: Zxid(0),
            timeout: TIMEOUT,
            resume,
        };
        let mut newer = gateway.connect(attach).await.expect("it is taken up");
        let mut outputs = shown(&mut newer, create("/made", Lifetime::Persistent))
            .await
            .expect("it is made");
        outputs.extend(
            shown(&mut newer, Request::Sync { path: None })
                .await
                .expect("it is answered"),
        );
        let events = outputs
            .iter()
            .filter(|output| matches!(output, Output::Event { .. }));
        assert_eq!(events.count(), 0, "{outputs:?}");
        assert_eq!(gateway.counts().1, 0, "armed without a session");
    });
}

/// C3: a client is never shown a state older than it has seen. A client that has seen everything is
/// admitted.
#[test]
fn a_client_that_has_seen_more_than_there_is_is_not_let_in() {
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let gateway = service.gateway();
        let mut client = connect(&gateway).await.expect("a calm world");
        let made = shown(&mut client, create("/a", Lifetime::Persistent))
            .await
            .expect("a calm world");
        let Some(Output::Reply { zxid: all, .. }) = made.last() else {
            panic!("answered {made:?}")
        };
        let all = *all;
        let attach = async |last_zxid_seen| {
            gateway
                .connect(Connect {
                    last_zxid_seen,
                    timeout: TIMEOUT,
                    resume: None,
                })
                .await
        };
        attach(all).await.expect("it has seen all there is");
        let ahead = Zxid(all.0 + 1_000);
        match attach(ahead).await {
            Err(ConnectError::ClientAhead { client, server }) => {
                assert_eq!(client, ahead.0);
                assert!(server >= all.0);
            }
            other => panic!("let in by {other:?}"),
        }
    });
}
