//! C3, C4: reads of znodes that change during every single read of the store.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    sync::Arc,
    time::Duration,
};

use coordination::{
    Client, Config,
    broken::Broken,
    model::{EventKind, Lifetime, Output, Request, Response, Watching, Zxid},
};
use simulated::World;

use crate::{
    single_service::{connect, create, following, is_answered, set, shown, without},
    watches::SlowReads,
};

/// How long each read of a znode takes.
const LOOK: Duration = Duration::from_millis(100);

/// The time limit; a read without a restart takes far less.
const PATIENCE: Duration = Duration::from_secs(20);

/// The zxid of a refusal.
type Reply = (Zxid, Option<Response>);

/// The changes that others made, in order, and the outputs of the reader: its reply and the
/// following event.
#[derive(Debug)]
struct Amid {
    history: Vec<(Zxid, Request)>,
    reply: Reply,
    event: (Zxid, EventKind),
}

impl Amid {
    /// How many of the changes the reply contains.
    fn seen(&self) -> usize {
        self.history
            .iter()
            .filter(|(zxid, _)| *zxid <= self.reply.0)
            .count()
    }

    /// C4: the event is that of the first change after the reply that fires the watch.
    fn is_first(&self, fires: impl Fn(&Request) -> Option<EventKind>) -> bool {
        let behind = &self.history[self.seen()..];
        let first = behind
            .iter()
            .find_map(|(zxid, request)| Some((*zxid, fires(request)?)));
        first == Some(self.event)
    }
}

/// Sends `request` while others make `changes` repeatedly, one during each read of the store. None:
/// it got no answer, or no event for the change after its reply.
async fn amid(changes: &[Request], request: Request, broken: Option<Broken>) -> Option<Amid> {
    let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
    let service = following(&world, slow.clone(), without(broken)).await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut other = connect(&gateway).await.expect("a session");
    assert!(is_answered(&mut other, create("/a", Lifetime::Persistent)).await);
    let mut client = connect(&gateway).await.expect("a session");
    let (history, told) = (RefCell::new(Vec::new()), Cell::new(None));
    let changing = async {
        for change in changes.iter().cycle() {
            clock.sleep(LOOK / 3).await;
            let shown = shown(&mut other, change.clone()).await;
            let Some(
                [
                    Output::Reply {
                        zxid,
                        result: Ok(_),
                        ..
                    },
                ],
            ) = shown.as_deref()
            else {
                panic!("{change:?}: {shown:?}")
            };
            history.borrow_mut().push((*zxid, change.clone()));
            // The client that made a change may learn of it after the watching client.
            if told.get().is_some_and(|told| told <= *zxid) {
                return;
            }
        }
    };
    let read = async {
        client.submit(1, request);
        let (reply, event) = slow.during(reply_and_event(&mut client)).await?;
        told.set(Some(event.0));
        Some((reply, event))
    };
    let (reply, event) = tokio::select! {
        biased;
        (shown, ()) = async { tokio::join!(read, changing) } => shown?,
        () = clock.sleep(PATIENCE) => return None,
    };
    Some(Amid {
        history: history.into_inner(),
        reply,
        event,
    })
}

/// The reply and the event of the client; none if it ends before.
async fn reply_and_event(client: &mut Client) -> Option<(Reply, (Zxid, EventKind))> {
    let mut outputs = Vec::new();
    loop {
        client.pump(&mut outputs).await.ok()?;
        match &outputs[..] {
            [
                Output::Reply { zxid, result, .. },
                Output::Event {
                    zxid: Some(changed),
                    kind,
                    ..
                },
            ] => {
                return Some(((*zxid, result.clone().ok()), (*changed, *kind)));
            }
            [] | [Output::Reply { .. }] => client.wait().await,
            outputs => panic!("{outputs:?}"),
        }
    }
}

fn delete(path: &str) -> Request {
    Request::Delete {
        path: path.into(),
        version: -1,
    }
}

/// The data of a znode that is set all the time.
fn data(broken: Option<Broken>) -> Option<Amid> {
    let request = Request::GetData {
        path: "/a".into(),
        watching: Watching::Yes,
    };
    simulated::run(amid(&[set("/a")], request, broken))
}

fn is_true_of_data(amid: &Amid) -> bool {
    let (_, Some(Response::Data { stat, .. })) = &amid.reply else {
        return false;
    };
    stat.version as usize == amid.seen() && amid.is_first(|_| Some(EventKind::NodeDataChanged))
}

/// C3, C4.
#[test]
fn data_that_changes_at_every_read_is_read_and_watched_as_of_one_zxid() {
    let amid = data(None).expect("it is answered");
    assert!(is_true_of_data(&amid), "{amid:?}");
}

/// C3, broken.
#[test]
fn restarting_reads_without_bound_is_caught() {
    assert!(data(Some(Broken::RestartsReadsForever)).is_none());
}

/// The children of a znode, which are created and deleted all the time.
fn children(broken: Option<Broken>) -> Option<Amid> {
    let made = |path: &str| create(path, Lifetime::Persistent);
    let changes = [
        made("/a/b"),
        made("/a/c"),
        delete("/a/b"),
        set("/a"),
        made("/a/d"),
        delete("/a/c"),
        delete("/a/d"),
    ];
    let request = Request::GetChildren {
        path: "/a".into(),
        watching: Watching::Yes,
    };
    simulated::run(amid(&changes, request, broken))
}

fn is_true_of_children(amid: &Amid) -> bool {
    let (_, Some(Response::Children { children, stat })) = &amid.reply else {
        return false;
    };
    let mut names = BTreeSet::new();
    for (_, change) in &amid.history[..amid.seen()] {
        match change {
            Request::Create { path, .. } => drop(names.insert(path["/a/".len()..].to_owned())),
            Request::Delete { path, .. } => drop(names.remove(&path["/a/".len()..])),
            _ => {}
        }
    }
    let is_whole = names.into_iter().eq(children.iter().cloned());
    let fires = |change: &Request| {
        let is_set = matches!(change, Request::SetData { .. });
        (!is_set).then_some(EventKind::NodeChildrenChanged)
    };
    is_whole && stat.num_children as usize == children.len() && amid.is_first(fires)
}

/// C3, C4.
#[test]
fn children_that_change_at_every_read_are_listed_and_watched_as_of_one_zxid() {
    let amid = children(None).expect("it is answered");
    assert!(is_true_of_children(&amid), "{amid:?}");
}

/// C3, broken.
#[test]
fn showing_children_as_they_were_seen_is_caught() {
    let amid = children(Some(Broken::ReturnsUncorrectedReads)).expect("it is answered");
    assert!(!is_true_of_children(&amid), "{amid:?}");
}

/// A znode that is created and deleted all the time.
fn existence(broken: Option<Broken>) -> Option<Amid> {
    let changes = [create("/b", Lifetime::Persistent), delete("/b")];
    let request = Request::Exists {
        path: "/b".into(),
        watching: Watching::Yes,
    };
    simulated::run(amid(&changes, request, broken))
}

fn is_true_of_existence(amid: &Amid) -> bool {
    let is_there = matches!(
        amid.history[..amid.seen()].last(),
        Some((_, Request::Create { .. }))
    );
    let fires = |change: &Request| match change {
        Request::Create { .. } => Some(EventKind::NodeCreated),
        _ => Some(EventKind::NodeDeleted),
    };
    amid.reply.1.is_some() == is_there && amid.is_first(fires)
}

/// C3, C4.
#[test]
fn a_znode_that_comes_and_goes_at_every_read_is_shown_as_of_one_zxid() {
    let amid = existence(None).expect("it is answered");
    assert!(is_true_of_existence(&amid), "{amid:?}");
}

/// C3, broken.
#[test]
fn showing_a_znode_as_missing_as_it_was_seen_is_caught() {
    let amid = existence(Some(Broken::ReturnsUncorrectedReads)).expect("it is answered");
    assert!(!is_true_of_existence(&amid), "{amid:?}");
}

/// C4, broken.
#[test]
fn watching_from_now_on_is_caught() {
    let amid = existence(Some(Broken::ArmsWatchesTooLate)).expect("it is answered");
    assert!(!is_true_of_existence(&amid), "{amid:?}");
}

/// How long each read takes in which changes are missed, well within the lease.
const LONG_LOOK: Duration = Duration::from_secs(5);

/// More changes than the log keeps for readers.
const MANY: usize = 1_500;

/// A client's reply about a znode that it found missing. It was created before so many other
/// changes that no process remembers it. Returns also the zxid of its creation.
async fn forgotten_meanwhile() -> (Reply, Zxid) {
    let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LONG_LOOK)));
    let service = following(&world, slow.clone(), Config::default()).await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut other = connect(&gateway).await.expect("a session");
    assert!(is_answered(&mut other, create("/a", Lifetime::Persistent)).await);
    let mut client = connect(&gateway).await.expect("a session");
    let changing = async {
        // After the read of the znode, and before that of the cursor.
        clock.sleep(LONG_LOOK + LOOK).await;
        let shown = shown(&mut other, create("/b", Lifetime::Persistent)).await;
        let Some(
            [
                Output::Reply {
                    zxid,
                    result: Ok(_),
                    ..
                },
            ],
        ) = shown.as_deref()
        else {
            panic!("{shown:?}")
        };
        let created = *zxid;
        let (mut outputs, mut sent) = (Vec::new(), 0);
        while outputs.len() < MANY {
            while sent < MANY && other.has_room() {
                other.submit(1, set("/a"));
                sent += 1;
            }
            other.pump(&mut outputs).await.expect("the session lives");
            if outputs.len() < MANY {
                other.wait().await;
            }
        }
        created
    };
    let read = async {
        client.submit(
            1,
            Request::Exists {
                path: "/b".into(),
                watching: Watching::No,
            },
        );
        let mut outputs = Vec::new();
        while outputs.is_empty() {
            client.pump(&mut outputs).await.expect("the session lives");
            if outputs.is_empty() {
                client.wait().await;
            }
        }
        match outputs.remove(0) {
            Output::Reply { zxid, result, .. } => (zxid, result.ok()),
            event @ Output::Event { .. } => panic!("{event:?}"),
        }
    };
    tokio::join!(slow.during(read), changing)
}

/// C3: a read whose changes no process remembers is repeated.
#[test]
fn a_read_is_true_however_much_changes_meanwhile() {
    let ((zxid, stat), created) = simulated::run(forgotten_meanwhile());
    assert!(
        stat.is_some() || zxid < created,
        "missing as of {zxid:?}, and created at {created:?}"
    );
}
