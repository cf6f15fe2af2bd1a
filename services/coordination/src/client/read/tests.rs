//! C3, C4: reads during which data changes, or whose view is behind.

use std::sync::Arc;

use ports::{ErrorKind, Handler as _};
use simulated::Options;

use super::*;
use crate::{
    Client, Config,
    model::{Lifetime, SessionId},
    records::Operation,
    tests::{Call, Fixture, Side, create},
};

async fn fixture() -> Arc<Fixture> {
    Arc::new(Fixture::new(Options::default(), Config::default()).await)
}

/// Has each of `operations` decided and applied separately, without announcing them.
async fn applied(fixture: &Fixture, session: SessionId, operations: Vec<Operation>) {
    let distributor = fixture.distributor(&fixture.store());
    for operation in operations {
        let decided = fixture.decided(session, vec![operation]).await;
        distributor
            .handle(Fixture::messages(decided))
            .await
            .expect("no fault is injected");
    }
}

/// A connection of `session` without identities.
fn asker(session: SessionId) -> Asker<'static> {
    static NONE: Identities = Identities::NONE;
    Asker {
        connection: Connection { session, attach: 1 },
        identities: &NONE,
    }
}

fn delete(path: &str) -> Operation {
    Operation::Delete {
        path: path.into(),
        version: -1,
    }
}

/// C3: between two calls of a read, one child is created and another deleted, so their number stays
/// the same.
#[test]
fn a_list_of_children_matches_the_stat_of_their_parent() {
    simulated::run(async {
        let fixture = fixture().await;
        let session = fixture.open(1).await;
        let made = |path| create(path, Lifetime::Persistent);
        applied(&fixture, session, vec![made("/a"), made("/a/b")]).await;
        let store = fixture.store();
        let tail = fixture.tail(store.clone()).await;
        let since = tail.applied();
        let (others, others_tail) = (fixture.clone(), tail.clone());
        let is_read = |call: &Call<'_>| matches!(call, Call::Get(_) | Call::Scan);
        store.once(Side::After, is_read, async move {
            applied(&others, session, vec![made("/a/c"), delete("/a/b")]).await;
            others.show(&others_tail).await;
            Ok(())
        });
        let request = Request::GetChildren {
            path: "/a".into(),
            watching: Watching::No,
        };
        let asker = asker(session);
        let gathered = &mut Gathered::default();
        let found = run(&tail, asker, &request, gathered).await;
        let mut found = found.expect("no fault is injected");
        assert!(store.is_through());
        let at = found.settle(&tail, since).expect("all of it is kept");
        let Some(Output::Reply {
            result: Ok(Response::Children { children, .. }),
            ..
        }) = found.output(1, at, gathered)
        else {
            panic!("it is there")
        };
        let truth: &[&str] = match at.0 - since.0 {
            0 => &["b"],
            1 => &["b", "c"],
            2 => &["c"],
            other => panic!("{other} were made"),
        };
        assert_eq!(children, truth, "as of {at:?}");
    });
}

/// Collects at least `count` outputs of the client.
async fn shown(client: &mut Client, count: usize) -> Vec<Output> {
    let mut outputs = Vec::new();
    loop {
        client.pump(&mut outputs).await.expect("the session lives");
        if outputs.len() >= count {
            return outputs;
        }
        client.wait().await;
    }
}

/// C3, C4: the result of a read precedes later events, even if they arrive before it may be
/// returned.
#[test]
fn a_read_that_waits_for_the_view_precedes_newer_events() {
    simulated::run(async {
        let fixture = fixture().await;
        let tail = fixture.tail(fixture.store()).await;
        let mut client = fixture.client(&tail, 1).await;
        let exists = |path: &str, watching| Request::Exists {
            path: path.into(),
            watching,
        };
        client.submit(1, exists("/watched", Watching::Yes));
        assert!(matches!(
            shown(&mut client, 1).await[..],
            [Output::Reply {
                result: Err(Error::NoNode),
                ..
            }]
        ));
        let made = |path| create(path, Lifetime::Persistent);
        applied(
            &fixture,
            fixture.open(2).await,
            vec![made("/read"), made("/watched")],
        )
        .await;
        client.submit(2, exists("/read", Watching::No));
        let mut outputs = Vec::new();
        client.pump(&mut outputs).await.expect("the session lives");
        assert!(outputs.is_empty(), "the view is behind: {outputs:?}");
        fixture.show(&tail).await;
        let shown = shown(&mut client, 2).await;
        let [
            Output::Reply {
                zxid: read,
                result: Ok(_),
                ..
            },
            Output::Event {
                zxid: Some(changed),
                ..
            },
        ] = shown[..]
        else {
            panic!("{shown:?}")
        };
        assert!(read < changed, "{read:?}, then {changed:?}");
    });
}

/// Whether a read fails if the store restarts after its first call.
fn fails_across_a_restart(request: &Request, broken: Option<Broken>) -> bool {
    simulated::run(async {
        let config = Config {
            mutant: broken.into(),
            ..Config::default()
        };
        let fixture = Arc::new(Fixture::new(Options::default(), config).await);
        let (session, store) = (fixture.open(1).await, fixture.store());
        let tail = fixture.tail(store.clone()).await;
        let restarted = fixture.clone();
        let is_read = |call: &Call<'_>| matches!(call, Call::Get(_) | Call::Scan);
        store.once(Side::After, is_read, async move {
            restarted.restart().await;
            Ok(())
        });
        let read = run(&tail, asker(session), request, &mut Gathered::default()).await;
        assert!(store.is_through());
        read.is_err_and(|error| error.kind() == ErrorKind::Lost)
    })
}

/// D4, C-5: the first call may have seen changes that are lost.
#[test]
fn a_read_of_several_calls_ends_with_its_store() {
    let (path, watching) = (|| "/missing".to_owned(), Watching::No);
    for request in [
        Request::Exists {
            path: path(),
            watching,
        },
        Request::GetData {
            path: path(),
            watching,
        },
        Request::GetAcl { path: path() },
        Request::GetChildren {
            path: path(),
            watching,
        },
        Request::CountDescendants { path: "/".into() },
        Request::GetEphemerals { prefix: "/".into() },
    ] {
        assert!(fails_across_a_restart(&request, None), "{request:?}");
        let broken = Some(Broken::ReadsAcrossRestarts);
        assert!(
            !fails_across_a_restart(&request, broken),
            "the rule is needed for {request:?}"
        );
    }
}
