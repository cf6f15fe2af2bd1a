//! C6, C-6: what the heartbeat remembers, where, and what that costs.

use std::time::Duration;

use coordination::{
    Client, Config, ConnectError,
    model::{Connect, Password, SessionId, Zxid},
    names,
};
use simulated::{Options, World};
use simulation::house::{House, Instances};

/// Of every session.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Of the heartbeat, as follows from it.
const PERIOD: Duration = Duration::from_secs(3);

async fn house(world: &World, instances: Instances) -> House {
    let config = Config { session_timeout_min: TIMEOUT, ..Config::default() };
    House::start_on(world, config, 1, instances).await
}

async fn connect(house: &House, resume: Option<(SessionId, Password)>) -> Result<Client, ConnectError> {
    let (gateway, _) = house.gateway(0).await;
    gateway.connect(Connect { last_zxid_seen: Zxid(0), timeout: TIMEOUT, resume }).await
}

/// C6: nobody can renew anything while everything is down, and silence from before does not count.
#[test]
fn a_restart_begins_every_timeout_anew() {
    simulated::run(async {
        let world = World::with_options(1, Options { durable_at_once: true, ..Options::default() });
        let house = house(&world, Instances::ColdHeartbeats).await;
        let client = connect(&house, None).await.expect("a new session");
        let resume = Some((client.session(), client.password()));
        drop(client);
        let clock = world.clock();
        clock.sleep(TIMEOUT).await;
        house.crash().await;
        clock.sleep(TIMEOUT).await;
        assert!(connect(&house, resume).await.is_ok(), "no heartbeat has seen it silent for longer");
        clock.sleep(TIMEOUT * 3).await;
        assert!(matches!(connect(&house, resume).await, Err(ConnectError::Expired)));
    });
}

/// C7: a heartbeat that stays warm reads nothing but the sessions, and writes down what it knows now and then.
#[test]
fn a_warm_heartbeat_makes_hardly_a_call_beside_its_scan() {
    simulated::run(async {
        let world = World::new(1);
        let house = house(&world, Instances::Warm).await;
        let mut client = connect(&house, None).await.expect("a new session");
        let (clock, beats) = (world.clock(), 100);
        let kept_alive = async {
            loop {
                client.submit(1, coordination::model::Request::Ping);
                client.pump(&mut Vec::new()).await.expect("it is kept alive");
                clock.sleep(PERIOD).await;
            }
        };
        tokio::select! {
            biased;
            () = kept_alive => unreachable!("it goes on for ever"),
            () = clock.sleep(PERIOD * beats) => {}
        }
        let trace = world.trace();
        let calls = |operation| {
            let by_heartbeat = trace.entries().filter(|entry| entry.caller.starts_with(names::HEARTBEAT));
            by_heartbeat.filter(|entry| entry.operation == operation).count()
        };
        assert!(calls("scan") >= 4 * (beats as usize - 1), "it runs");
        assert_eq!(calls("get"), 1, "its first run looks for what others have left");
        assert!(calls("update") <= beats as usize / 4 + 1, "{} updates", calls("update"));
    });
}
