//! P6: a full store refuses what adds to it, and nothing else.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use coordination::{
    Client, Config, ConnectError, Ended, Error, Gateway,
    model::{Acl, Connect, Lifetime, Naming, Output, Request, Response, Watching, Zxid},
};
use ports::{
    faults::{Fault, FaultSchedule},
    key_value::Room,
};
use simulated::World;

use crate::alone::{TIMEOUT, connect, follow, shown, started};

/// A store that has the room it was given last.
#[derive(Debug, Default)]
struct Disk(Mutex<Room>);

impl Disk {
    fn leave(&self, room: Room) {
        *self.0.lock().expect("nobody panics while holding it") = room;
    }
}

impl FaultSchedule for Disk {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }

    fn room(&self) -> Room {
        *self.0.lock().expect("nobody panics while holding it")
    }
}

fn create(path: &str) -> Request {
    let acl = vec![Acl { permissions: 31, scheme: "world".to_owned(), id: "anyone".to_owned() }];
    let (lifetime, naming) = (Lifetime::Persistent, Naming::Given);
    Request::Create { path: path.to_owned(), data: None, acl, lifetime, naming }
}

fn set(path: &str) -> Request {
    Request::SetData { path: path.to_owned(), data: Some("new".into()), version: -1 }
}

fn delete(path: &str) -> Request {
    Request::Delete { path: path.to_owned(), version: -1 }
}

fn exists(path: &str) -> Request {
    Request::Exists { path: path.to_owned(), watching: Watching::No }
}

/// What `request` is answered with.
async fn answer(client: &mut Client, request: Request) -> Result<Response, Error> {
    let outputs = shown(client, request).await.expect("the client lives on");
    match outputs.into_iter().next_back() {
        Some(Output::Reply { result, .. }) => result,
        other => panic!("{other:?} is no reply"),
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
    let resume = Some((client.session(), client.password()));
    drop(client);
    gateway.connect(Connect { last_zxid_seen: Zxid(0), timeout: TIMEOUT, resume }).await
}

/// P6, C6, C8.
#[test]
fn a_full_store_refuses_what_adds_to_it_and_keeps_sessions_and_reads() {
    simulated::run(async {
        let world = World::new(1);
        let disk = Arc::new(Disk::default());
        let service = started(&world, disk.clone(), Config::default()).await;
        follow(&service);
        let gateway = service.gateway();
        let mut client = connect(&gateway).await.expect("a session");
        answer(&mut client, create("/kept")).await.expect("there is room");

        disk.leave(Room::Scarce);
        let applied = gateway.applied();
        assert_eq!(answer(&mut client, create("/more")).await, Err(Error::NoRoom));
        assert_eq!(answer(&mut client, set("/kept")).await, Err(Error::NoRoom));
        assert_eq!(gateway.applied(), applied, "refusing takes no room itself");
        assert!(answer(&mut client, exists("/kept")).await.is_ok());
        let mut client = resume(&gateway, client).await.expect("it is resumed");
        let mut newcomer = connect(&gateway).await.expect("a new session");
        assert_eq!(answer(&mut newcomer, exists("/more")).await, Err(Error::NoNode));
        assert_eq!(answer(&mut newcomer, delete("/kept")).await, Ok(Response::Deleted));

        disk.leave(Room::Critical);
        assert_eq!(answer(&mut newcomer, delete("/gone")).await, Err(Error::NoRoom));
        for _ in 0..20 {
            world.clock().sleep(TIMEOUT / 5).await;
            answer(&mut client, Request::Ping).await.expect("who pings lives");
        }
        let _ = resume(&gateway, newcomer).await.expect_err("who was silent for long does not");
        assert!(matches!(end(&mut client).await, Ended::Closed));

        disk.leave(Room::Free);
        let mut client = connect(&gateway).await.expect("a session");
        answer(&mut client, create("/more")).await.expect("there is room again");
    });
}

/// P6, C1, C8: what was sent while there was room is refused too, once it turns out that there is none.
#[test]
fn a_request_that_was_sent_before_the_store_was_full_is_refused_in_its_place() {
    simulated::run(async {
        let world = World::new(1);
        let disk = Arc::new(Disk::default());
        let service = started(&world, disk.clone(), Config::default()).await;
        follow(&service);
        let mut client = connect(&service.gateway()).await.expect("a session");
        client.submit(1, create("/sent"));
        client.submit(2, exists("/sent"));
        disk.leave(Room::Scarce);
        let mut outputs = Vec::new();
        let begun = world.clock().monotonic();
        while outputs.len() < 2 {
            client.pump(&mut outputs).await.expect("the client lives on");
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
        assert_eq!(results, [(1, Some(Error::NoRoom)), (2, Some(Error::NoNode))]);
        assert!(world.clock().monotonic().since(begun) < Duration::from_secs(1), "in virtual time, at once");
    });
}
