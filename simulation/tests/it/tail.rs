//! C5, C-6: clients that connect while their process has no position in the log.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coordination::{Client, Config, ConnectError, Gateway, model::Request};
use ports::faults::Calm;
use simulated::World;

use crate::single_service::{
    NothingDurable, TIMEOUT, connect, follow, following, is_answered, started,
};

/// Far shorter than the session timeout, which would end every wait.
const SOON: Duration = Duration::from_secs(1);

/// The pause before a client tries to connect again.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Connects with retries, as clients do; none if that takes long.
async fn connect_soon(world: &World, gateway: &Gateway) -> Option<Client> {
    let clock = world.clock();
    let attempts = async {
        loop {
            match connect(gateway).await {
                Ok(client) => return client,
                Err(_) => clock.sleep(CONNECT_AGAIN_AFTER).await,
            }
        }
    };
    tokio::select! {
        biased;
        client = attempts => Some(client),
        () = clock.sleep(SOON) => None,
    }
}

/// C-6: its attach may be applied before there is a position again, and would then have no
/// recipient.
#[test]
fn a_client_that_connects_while_the_log_is_not_followed_is_not_left_waiting() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NothingDurable::default()));
        let service = following(&world, faults.clone(), Config::default()).await;
        let gateway = service.gateway();
        let mut client = connect(&gateway).await.expect("a calm world");
        faults.0.store(true, Ordering::Relaxed);
        let refused = Request::Delete {
            path: "/none".into(),
            version: -1,
        };
        assert!(
            !is_answered(&mut client, refused).await,
            "this process does not know what is durable"
        );
        faults.0.store(false, Ordering::Relaxed);
        // Right after the position was lost, and before a new one is found.
        let mut client = connect_soon(&world, &gateway).await.expect("a session");
        assert!(is_answered(&mut client, Request::Ping).await);
    });
}

/// C-6: a session whose opening takes longer than its timeout is kept while its client waits for
/// it.
#[test]
fn a_client_that_waits_for_its_session_keeps_it() {
    simulated::run(async {
        let world = World::new(1);
        let (service, clock) = (
            started(&world, Arc::new(Calm), Config::default()).await,
            world.clock(),
        );
        let gateway = service.gateway();
        let mut connecting = Box::pin(connect(&gateway));
        tokio::select! {
            biased;
            _ = &mut connecting => panic!("no process has handed it its answer"),
            () = clock.sleep(3 * TIMEOUT) => follow(&service),
        }
        let mut client = connecting.await.expect("a session");
        assert!(is_answered(&mut client, Request::Ping).await);
    });
}

/// C-6: waiting requests die with the store; a client that waits for one is told to reconnect.
#[test]
fn a_client_that_connects_while_the_store_restarts_is_not_left_waiting() {
    simulated::run(async {
        let world = World::new(1);
        let (service, clock) = (
            started(&world, Arc::new(Calm), Config::default()).await,
            world.clock(),
        );
        let gateway = service.gateway();
        let mut connecting = Box::pin(connect(&gateway));
        tokio::select! {
            biased;
            _ = &mut connecting => panic!("no process has handed it its answer"),
            () = clock.sleep(SOON) => world.crash(),
        }
        let before = clock.monotonic();
        assert!(matches!(connecting.await, Err(ConnectError::Store(_))));
        assert!(clock.monotonic().since(before) < TIMEOUT);
    });
}

/// C-6: a front end may admit clients before the log is followed.
#[test]
fn a_client_that_connects_before_the_log_is_followed_is_not_left_waiting() {
    simulated::run(async {
        let world = World::new(1);
        let (service, clock) = (
            started(&world, Arc::new(Calm), Config::default()).await,
            world.clock(),
        );
        let gateway = service.gateway();
        let mut connecting = Box::pin(connect_soon(&world, &gateway));
        tokio::select! {
            biased;
            _ = &mut connecting => panic!("no process has handed it its answer"),
            () = clock.sleep(SOON / 2) => follow(&service),
        }
        let mut client = connecting.await.expect("a session");
        assert!(is_answered(&mut client, Request::Ping).await);
    });
}
