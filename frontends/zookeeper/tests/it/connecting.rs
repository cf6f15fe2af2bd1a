//! Connections before they have a session, over TCP in real time.

// A peer outside of the simulated world waits in real time.
#![allow(clippy::disallowed_methods)]

use std::{future::pending, io::Result, sync::Arc, time::Duration};

use coordination::{Parts, Service, dependency::TrackedStore, storage::session};
use ports::{
    Clock,
    faults::{Fault, FaultSchedule, FaultyKeyValue},
};
use simulated::World;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use zookeeper_frontend::{Config, bind};

use crate::fixture::{Fixture, PATIENCE, connect_request};

/// A store that never answers a read.
#[derive(Debug)]
struct Silent;

impl FaultSchedule for Silent {
    fn next(&self, operation: &'static str) -> Fault {
        if operation == "key_value.get" {
            Fault::Hang
        } else {
            Fault::None
        }
    }
}

fn service() -> Service {
    let world = World::new(1);
    let clock: Arc<dyn Clock> = world.clock();
    let silent = Arc::new(FaultyKeyValue::new(
        world.key_value(),
        Arc::new(Silent),
        clock.clone(),
    ));
    let parts = Parts {
        system: silent.clone(),
        items: silent,
        objects: world.objects(),
        queue: world.queue(),
        functions: world.functions(),
        clock,
        entropy: world.entropy(),
    };
    Service::new(parts, coordination::Config::default())
}

/// ZooKeeper closes connections that have no session for too long. So does this server when its
/// stores do not respond.
#[tokio::test]
async fn a_connection_whose_session_cannot_be_opened_in_time_is_closed() -> Result<()> {
    let config = Config {
        connect_timeout: Duration::from_millis(50),
        ..Config::new(([127, 0, 0, 1], 0).into())
    };
    let server = bind(config, Arc::new(service().gateway())).await?;
    let (address, statistics) = (server.local_address(), server.statistics());
    let serving = tokio::spawn(server.run(pending()));
    let mut peer = TcpStream::connect(address).await?;
    peer.write_all(&connect_request(10_000)).await?;
    let mut answer = Vec::new();
    timeout(PATIENCE, peer.read_to_end(&mut answer))
        .await
        .expect("the connection closes")?;
    assert_eq!(
        answer, b"",
        "the server does not report a session in an unknown state"
    );
    assert_eq!(statistics.sessions_refused.get(), 1);
    serving.abort();
    Ok(())
}

/// A ping as kazoo sends it.
const PING: &[u8] = b"\0\0\0\x08\xff\xff\xff\xfe\0\0\0\x0b";

/// C6: a peer's last message counts even if it sends nothing more.
#[tokio::test]
async fn a_peer_that_disconnects_leaves_its_session_renewed() -> Result<()> {
    let fixture = Fixture::with_defaults().await?;
    let mut client = fixture.client(10_000).await?;
    let sessions = TrackedStore::new(fixture.world.key_value());
    let renewals = async || {
        let row = session::get(&mut sessions.clone(), client.session)
            .await
            .expect("no fault is injected");
        row.expect("it is open").renewals
    };
    let before = renewals().await;
    client.peer.replies(PING, -2..=-2).await?;
    assert_eq!(renewals().await, before, "none is due yet");
    drop(client.peer);
    fixture.all_gone().await;
    assert_eq!(renewals().await, before + 1);
    Ok(())
}
