//! C9: what a connection may read, change and learn, while the ACL of a znode changes.

use std::{cell::RefCell, sync::Arc, time::Duration};

use coordination::{
    Client, Config, Error,
    broken::Broken,
    model::{Acl, Identity, Lifetime, Output, Request, Watching, Zxid},
};
use simulated::World;

use crate::{
    single_service::{connect, create, following, is_answered, result, set, shown, without},
    watches::SlowReads,
};

/// How long each read of a znode takes.
const LOOK: Duration = Duration::from_millis(100);

/// How often the ACL changes.
const ROUNDS: usize = 40;

fn identity(name: &str) -> Identity {
    Identity {
        scheme: "digest".into(),
        id: format!("{name}:hash"),
    }
}

fn set_acl(path: &str, permissions: i32, scheme: &str, id: &str) -> Request {
    let entry = Acl {
        permissions,
        scheme: scheme.into(),
        id: id.into(),
    };
    Request::SetAcl {
        path: path.into(),
        acl: vec![entry],
        version: -1,
    }
}

/// What a client saw, each with its zxid.
#[derive(Debug, Default)]
struct Seen {
    reads: Vec<(Zxid, bool)>,
    updates: Vec<(Zxid, bool)>,
    events: Vec<Zxid>,
}

impl Seen {
    fn take(&mut self, outputs: Vec<Output>, is_update: bool) {
        for output in outputs {
            match output {
                Output::Event { zxid, .. } => self.events.extend(zxid),
                Output::Reply { zxid, result, .. } => {
                    let is_allowed = result != Err(Error::NotAuthorized);
                    assert!(!is_allowed || result.is_ok(), "{result:?}");
                    let replies = if is_update {
                        &mut self.updates
                    } else {
                        &mut self.reads
                    };
                    replies.push((zxid, is_allowed));
                }
            }
        }
    }
}

/// Reads, watches and sets `/a` as long as another client changes its ACL. Returns what each saw:
/// the zxids from which it was open or not, and the outputs of the other.
async fn amid_changes(broken: Option<Broken>) -> (Vec<(Zxid, bool)>, Seen) {
    let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
    let config = without(broken);
    let service = following(&world, slow.clone(), config).await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut owner = connect(&gateway).await.expect("a session");
    let mut other = connect(&gateway).await.expect("a session");
    assert!(is_answered(&mut owner, create("/a", Lifetime::Persistent)).await);
    let proof = |name| Request::Authenticate(vec![identity(name)]);
    assert!(is_answered(&mut owner, proof("owner")).await);
    assert!(is_answered(&mut other, proof("other")).await);
    let (history, mut seen) = (RefCell::new(vec![(Zxid(0), true)]), Seen::default());
    let changing = async {
        for round in 0..ROUNDS {
            clock.sleep(LOOK * 2 / 3).await;
            let is_open = round % 2 == 1;
            let request = if is_open {
                set_acl("/a", 31, "world", "anyone")
            } else {
                set_acl("/a", 31, "auth", "")
            };
            let zxid = zxid_of(&mut owner, request).await;
            history.borrow_mut().push((zxid, is_open));
            // Meanwhile the ACL is the last change of the znode.
            clock.sleep(LOOK * 2 / 3).await;
            zxid_of(&mut owner, set("/a")).await;
        }
    };
    let asking = async {
        for round in 0.. {
            let get = Request::GetData {
                path: "/a".into(),
                watching: Watching::Yes,
            };
            let outputs = slow.during(shown(&mut other, get)).await;
            seen.take(outputs.expect("a calm world"), false);
            if round % 3 == 0 {
                let outputs = shown(&mut other, set("/a")).await;
                seen.take(outputs.expect("a calm world"), true);
            }
        }
    };
    tokio::select! {
        biased;
        () = changing => {}
        () = asking => {}
    }
    (history.into_inner(), seen)
}

async fn zxid_of(client: &mut Client, request: Request) -> Zxid {
    match shown(client, request).await.as_deref() {
        Some(
            [
                ..,
                Output::Reply {
                    zxid,
                    result: Ok(_),
                    ..
                },
            ],
        ) => *zxid,
        other => panic!("{other:?}"),
    }
}

/// How many outputs contradict the ACL at their zxids.
fn contradictions(history: &[(Zxid, bool)], seen: &Seen) -> usize {
    let is_open = |at: Zxid| {
        let until = history.iter().rev().find(|(zxid, _)| *zxid <= at);
        until.is_some_and(|(_, is_open)| *is_open)
    };
    let replies = seen.reads.iter().chain(&seen.updates);
    let wrong = replies.filter(|(zxid, is_allowed)| is_open(*zxid) != *is_allowed);
    wrong.count() + seen.events.iter().filter(|zxid| !is_open(**zxid)).count()
}

/// C3, C9.
#[test]
fn every_reply_and_event_agrees_with_the_acl_at_its_zxid() {
    let (history, seen) = simulated::run(amid_changes(None));
    assert_eq!(contradictions(&history, &seen), 0, "{history:?} {seen:?}");
    for replies in [&seen.reads, &seen.updates] {
        let allowed = replies.iter().filter(|(_, is_allowed)| *is_allowed).count();
        assert!(allowed > 0 && allowed < replies.len(), "{seen:?}");
    }
    assert!(!seen.events.is_empty());
}

/// C3, C9, broken.
#[test]
fn reading_by_an_acl_that_was_set_later_is_caught() {
    let (history, seen) = simulated::run(amid_changes(Some(Broken::ReadsByLaterAcls)));
    assert!(contradictions(&history, &seen) > 0);
}

/// C9, broken.
#[test]
fn sending_events_to_all_is_caught() {
    let (history, seen) = simulated::run(amid_changes(Some(Broken::SendsEventsToAll)));
    assert!(contradictions(&history, &seen) > 0);
}

/// C2, C9: a proof counts for the requests after it, and not for those before it.
#[test]
fn a_proof_counts_from_its_place_among_the_requests() {
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(ports::faults::Calm), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        let requests = [
            set_acl("/zookeeper", 31, "auth", ""),
            Request::WhoAmI,
            Request::Authenticate(vec![identity("user")]),
            set_acl("/zookeeper", 31, "auth", ""),
            Request::WhoAmI,
        ];
        for (tag, request) in requests.into_iter().enumerate() {
            client.submit(tag as i32, request);
        }
        let mut results = Vec::new();
        while results.len() < 5 {
            let mut outputs = Vec::new();
            client.pump(&mut outputs).await.expect("a calm world");
            results.extend(outputs.into_iter().filter_map(|output| match output {
                Output::Reply { result, .. } => Some(result),
                Output::Event { .. } => None,
            }));
            if results.len() < 5 {
                client.wait().await;
            }
        }
        assert_eq!(results[0], Err(Error::InvalidAcl));
        assert!(format!("{:?}", results[1]).contains("Identities([])"));
        assert!(results[3].is_ok(), "{results:?}");
        assert!(format!("{:?}", results[4]).contains("user"));
        let mut other = connect(&service.gateway()).await.expect("a session");
        assert_eq!(
            result(&mut other, set("/zookeeper")).await,
            Err(Error::NotAuthorized)
        );
        // Its znodes outlive the connection's proof, not its ACL.
        assert!(result(&mut client, set("/zookeeper")).await.is_ok());
    });
}
