//! P6: a full store refuses only requests that add to it.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use coordination::{
    Client, Config, ConnectError, Ended, Error, Gateway,
    config::DataPlacement,
    model::{Lifetime, Output, Request, Response, Watching},
    storage::user_store::put_object,
};
use futures_util::{
    StreamExt as _,
    future::{Either, select},
};
use ports::{
    ErrorKind,
    faults::{Fault, FaultSchedule},
    objects::{ObjectPath, ObjectStore as _},
};
use simulated::{Options, World};

use crate::single_service::{self, TIMEOUT, connect, connect_to, following, result};

/// A store with a settable amount of free space.
#[derive(Debug, Default)]
struct Disk {
    is_full: AtomicBool,
}

impl Disk {
    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }
}

impl FaultSchedule for Disk {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }

    fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }
}

fn create(path: &str) -> Request {
    single_service::create(path, Lifetime::Persistent)
}

fn set(path: &str) -> Request {
    Request::SetData {
        path: path.to_owned(),
        data: Some("new".into()),
        version: -1,
    }
}

fn delete(path: &str) -> Request {
    Request::Delete {
        path: path.to_owned(),
        version: -1,
    }
}

fn exists(path: &str) -> Request {
    Request::Exists {
        path: path.to_owned(),
        watching: Watching::No,
    }
}

/// How `client` ends when it closes its session.
async fn end(client: &mut Client) -> Ended {
    client.submit(1, Request::Close);
    loop {
        if let Err(ended) = client.pump(&mut Vec::new()).await {
            return ended;
        }
        client.wait().await;
    }
}

async fn resume(gateway: &Gateway, client: Client) -> Result<Client, ConnectError> {
    let session = (client.session(), client.password());
    drop(client);
    connect_to(gateway, Some(session), TIMEOUT).await
}

fn is_refused_for_space(connected: Result<Client, ConnectError>) -> bool {
    matches!(connected, Err(ConnectError::Store(error)) if error.kind() == ErrorKind::NoRoom)
}

/// The result of `answering`, if it comes well before a session would expire.
async fn in_time<T>(world: &World, answering: impl Future<Output = T>) -> T {
    match select(pin!(answering), world.clock().sleep(TIMEOUT * 2)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => panic!("it is not answered"),
    }
}

/// P6, C6, C8.
#[test]
fn a_full_store_refuses_additions_and_keeps_sessions_and_reads() {
    simulated::run(async {
        let world = World::new(1);
        let disk = Arc::new(Disk::default());
        let service = following(&world, disk.clone(), Config::default()).await;
        let gateway = service.gateway();
        let mut client = connect(&gateway).await.expect("a session");
        result(&mut client, create("/kept"))
            .await
            .expect("there is room");

        disk.fill(true);
        let applied = gateway.applied();
        assert_eq!(
            result(&mut client, create("/more")).await,
            Err(Error::NoRoom)
        );
        assert_eq!(result(&mut client, set("/kept")).await, Err(Error::NoRoom));
        assert_eq!(gateway.applied(), applied, "refusing takes no room itself");
        assert!(result(&mut client, exists("/kept")).await.is_ok());
        let client = resume(&gateway, client).await.expect("it is resumed");
        let mut newcomer = connect(&gateway).await.expect("a new session");
        assert_eq!(
            result(&mut newcomer, exists("/more")).await,
            Err(Error::NoNode)
        );
        assert_eq!(
            result(&mut newcomer, delete("/kept")).await,
            Ok(Response::Deleted)
        );

        let mut client = resume(&gateway, client).await.expect("it is resumed");
        for _ in 0..20 {
            world.clock().sleep(TIMEOUT / 5).await;
            result(&mut client, Request::Ping)
                .await
                .expect("a client that pings is alive");
        }
        let _ = resume(&gateway, newcomer)
            .await
            .expect_err("a silent client has expired");
        assert!(matches!(end(&mut client).await, Ended::Closed));

        disk.fill(false);
        let mut client = connect(&gateway).await.expect("a session");
        result(&mut client, create("/more"))
            .await
            .expect("there is room again");
    });
}

/// P6, C8.
#[test]
fn at_the_end_of_the_reserve_no_session_begins_or_expires_and_connected_clients_read() {
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(Disk::default()), Config::default()).await;
        let gateway = service.gateway();
        let mut client = connect(&gateway).await.expect("a session");
        result(&mut client, create("/kept"))
            .await
            .expect("there is room");
        let absent = connect(&gateway).await.expect("a session");
        let resumed = (absent.session(), absent.password());
        drop(absent);

        world.fill_disk();
        let before = (gateway.applied(), world.key_value().point());
        for _ in 0..100 {
            assert!(is_refused_for_space(connect(&gateway).await));
            assert!(is_refused_for_space(
                connect_to(&gateway, Some(resumed), TIMEOUT).await
            ));
        }
        assert_eq!(
            (gateway.applied(), world.key_value().point()),
            before,
            "nothing was written"
        );
        for _ in 0..20 {
            world.clock().sleep(TIMEOUT / 5).await;
            assert!(
                result(&mut client, exists("/kept")).await.is_ok(),
                "a client that pings is alive"
            );
        }
        world.empty_disk();
        connect_to(&gateway, Some(resumed), TIMEOUT)
            .await
            .expect("it could not be resumed, and so was not ended");
        assert!(matches!(end(&mut client).await, Ended::Closed));
    });
}

/// P6, C6: a store that cannot report its free space refuses at the write.
#[test]
fn a_session_that_a_full_store_cannot_condemn_gets_a_new_timeout() {
    simulated::run(async {
        let mut options = Options::default();
        options.key_value.tells_room = false;
        let world = World::with_options(1, options);
        let service = following(&world, Arc::new(Disk::default()), Config::default()).await;
        let gateway = service.gateway();
        let client = connect(&gateway).await.expect("a session");
        let resumed = (client.session(), client.password());
        drop(client);
        // Its process may have known of it for one more renewal period, and would condemn it while
        // the disk is full.
        world.clock().sleep(TIMEOUT * 6 / 5).await;
        world.fill_disk();
        world.clock().sleep(Duration::from_secs(6)).await;
        assert!(
            is_refused_for_space(connect_to(&gateway, Some(resumed), TIMEOUT).await),
            "its client tries"
        );
        world.empty_disk();
        world.clock().sleep(TIMEOUT / 2).await;
        let client = connect_to(&gateway, Some(resumed), TIMEOUT)
            .await
            .expect("its silence did not count");
        drop(client);
        world.clock().sleep(TIMEOUT * 2).await;
        let ended = connect_to(&gateway, Some(resumed), TIMEOUT).await;
        assert!(
            matches!(ended, Err(ConnectError::Expired)),
            "there is room to end it: {ended:?}"
        );
    });
}

/// The part of the user store that lies in objects.
const IN_OBJECTS_BYTES: usize = 1_000;

/// P6, C8: a decision is applied wherever there is space for it.
#[test]
fn data_without_space_for_its_object_stays_in_its_item() {
    simulated::run(async {
        let world = World::new(1);
        let placement = DataPlacement::Hybrid {
            inline_bytes_max: IN_OBJECTS_BYTES - 1,
        };
        let config = Config {
            placement,
            ..Config::default()
        };
        let service = following(&world, Arc::new(Disk::default()), config).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        result(&mut client, create("/item"))
            .await
            .expect("there is room");
        let objects = async || {
            let listed = world
                .objects()
                .list(Some(&ObjectPath::from("znodes")))
                .collect::<Vec<_>>()
                .await;
            listed.len()
        };
        for (is_full, expected) in [(true, 0), (false, 1)] {
            if is_full {
                world.fill_disk_of_objects();
            } else {
                world.empty_disk_of_objects();
            }
            let data = Bytes::from(vec![u8::from(is_full); IN_OBJECTS_BYTES]);
            let set = Request::SetData {
                path: "/item".to_owned(),
                data: Some(data.clone()),
                version: -1,
            };
            in_time(&world, result(&mut client, set))
                .await
                .expect("it is applied");
            let get = Request::GetData {
                path: "/item".to_owned(),
                watching: Watching::No,
            };
            match result(&mut client, get).await {
                Ok(Response::Data { data: found, .. }) => assert_eq!(found, Some(data)),
                other => panic!("{other:?}"),
            }
            assert_eq!(objects().await, expected);
        }
    });
}

/// P6, C8.
#[test]
fn data_too_large_for_a_message_is_refused_without_space_for_its_object() {
    simulated::run(async {
        let world = World::new(1);
        let config = Config {
            message_payload_bytes_max: 100,
            ..Config::default()
        };
        let service = following(&world, Arc::new(Disk::default()), config).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        result(&mut client, create("/item"))
            .await
            .expect("there is room");
        let set = || Request::SetData {
            path: "/item".to_owned(),
            data: Some(vec![1; 101].into()),
            version: -1,
        };
        world.fill_disk_of_objects();
        assert_eq!(
            in_time(&world, result(&mut client, set())).await,
            Err(Error::NoRoom)
        );
        world.empty_disk_of_objects();
        assert!(in_time(&world, result(&mut client, set())).await.is_ok());
    });
}

/// P6.
#[test]
fn an_object_that_is_there_is_found_on_a_full_disk() {
    simulated::run(async {
        let world = World::new(1);
        let put =
            async |name| put_object(&*world.objects(), name, Bytes::from_static(b"data")).await;
        put("there").await.expect("there is room");
        world.fill_disk_of_objects();
        put("there").await.expect("it is there");
        assert_eq!(
            put("not there").await.expect_err("there is no room").kind(),
            ErrorKind::NoRoom
        );
    });
}

/// P6, C1, C8: a request that was sent while there was space is refused too, once there is none.
#[test]
fn a_request_that_was_sent_before_the_store_was_full_is_refused_in_its_place() {
    simulated::run(async {
        let world = World::new(1);
        let disk = Arc::new(Disk::default());
        let service = following(&world, disk.clone(), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        client.submit(1, create("/sent"));
        client.submit(2, exists("/sent"));
        disk.fill(true);
        let mut outputs = Vec::new();
        let begun = world.clock().monotonic();
        while outputs.len() < 2 {
            client
                .pump(&mut outputs)
                .await
                .expect("the client lives on");
            if outputs.len() < 2 {
                client.wait().await;
            }
        }
        let results: Vec<_> = outputs
            .into_iter()
            .map(|output| match output {
                Output::Reply { tag, result, .. } => (tag, result.err()),
                event @ Output::Event { .. } => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(
            results,
            [(1, Some(Error::NoRoom)), (2, Some(Error::NoNode))]
        );
        assert!(
            world.clock().monotonic().since(begun) < Duration::from_secs(1),
            "in virtual time, at once"
        );
    });
}
