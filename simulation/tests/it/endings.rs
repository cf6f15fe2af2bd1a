//! C6, C-6: a session whose ephemerals do not fit into one decision ends in parts, and yet whole.

use std::time::Duration;

use coordination::{
    Client, Config, ConnectError, Gateway,
    broken::Broken,
    model::{Acl, Connect, Lifetime, Naming, Output, Password, Request, Response, SessionId, Watching, Zxid},
};
use fastrand::Rng;
use simulated::{Options, World};
use simulation::{faults::Weather, house::House, scenario::seeds};

/// How many ephemerals the session has; their paths take several decisions.
const EPHEMERALS: usize = 24;

/// How many seeds the broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 100;

/// How long after its end was asked for another connection asks for the session, at most: before it has begun, or
/// while it goes on.
const AGAIN_WITHIN_MS: [u64; 2] = [1, 600];

const TIMEOUT: Duration = Duration::from_secs(12);

fn create(path: &str) -> Request {
    let acl = vec![Acl { permissions: 31, scheme: "world".into(), id: "anyone".into() }];
    let (lifetime, naming) = (Lifetime::Ephemeral, Naming::Given);
    Request::Create { path: path.into(), data: None, acl, lifetime, naming }
}

async fn connect(gateway: &Gateway, resume: Option<(SessionId, Password)>) -> Result<Client, ConnectError> {
    gateway.connect(Connect { last_zxid_seen: Zxid(0), timeout: TIMEOUT, resume }).await
}

/// The answer to `request`.
async fn answer(client: &mut Client, request: Request) -> Response {
    client.submit(1, request);
    loop {
        let mut outputs = Vec::new();
        client.pump(&mut outputs).await.expect("the session lives");
        if let Some(Output::Reply { result, .. }) = outputs.pop() {
            return result.expect("it is not refused");
        }
        client.wait().await;
    }
}

/// How many of the session's znodes are there.
async fn count(client: &mut Client) -> usize {
    let request = Request::GetChildren { path: "/".into(), watching: Watching::No };
    let Response::Children { children, .. } = answer(client, request).await else {
        panic!("children were asked for")
    };
    children.iter().filter(|name| name.starts_with("mine")).count()
}

/// A client asks for the end of its session and is gone; another connection asks for the session soon after. How
/// many ephemerals there are then, and whether the session lives.
async fn ends(seed: u64, broken: Option<Broken>) -> (usize, bool) {
    let mut cloud = Options::default();
    cloud.key_value.item_bytes_max = 4 * 1_024;
    let world = World::with_options(seed, cloud);
    let house = House::start(&world, Config { broken, ..Config::default() }, 2).await;
    let mut rng = Rng::with_seed(seed);
    let (gateway, _) = house.gateway(0).await;
    let mut client = connect(&gateway, None).await.expect("a new session");
    for number in 0..EPHEMERALS {
        answer(&mut client, create(&format!("/mine-with-quite-a-long-name-{number:04}"))).await;
    }
    Weather::Slow.strike(&world);
    let resume = Some((client.session(), client.password()));
    client.submit(1, Request::Close);
    client.pump(&mut Vec::new()).await.expect("it is sent");
    drop(client);
    let (gateway, _) = house.gateway(1).await;
    let within_ms = AGAIN_WITHIN_MS[rng.usize(..2)];
    world.clock().sleep(Duration::from_millis(rng.u64(..within_ms))).await;
    match connect(&gateway, resume).await {
        Ok(mut resumed) => (count(&mut resumed).await, true),
        Err(ConnectError::Expired) => {
            // What has begun comes to its end by itself.
            world.clock().sleep(3 * TIMEOUT).await;
            let mut other = connect(&gateway, None).await.expect("a new session");
            (count(&mut other).await, false)
        }
        Err(error) => panic!("the world is slow and nothing else: {error}"),
    }
}

/// C6: a session that lives has all its ephemerals, and one that has ended none.
#[test]
fn a_session_that_ends_in_parts_ends_whole_or_not_at_all() {
    let mut outcomes = [0, 0];
    for seed in seeds() {
        let (count, lives) = simulated::run(ends(seed, None));
        assert_eq!(count, if lives { EPHEMERALS } else { 0 }, "seed {seed}, the session lives: {lives}");
        outcomes[usize::from(lives)] += 1;
    }
    assert!(seeds().count() < 20 || outcomes.iter().all(|count| *count > 0), "ended, lived: {outcomes:?}");
}

/// C6, broken.
#[test]
fn ending_open_sessions_in_parts_is_caught() {
    let is_caught = |seed| {
        let (count, lives) = simulated::run(ends(seed, Some(Broken::EndsOpenSessions)));
        lives && count < EPHEMERALS
    };
    assert!((0..SEEDS_UNTIL_CAUGHT).any(is_caught));
}
