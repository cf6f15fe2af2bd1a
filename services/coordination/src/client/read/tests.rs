//! C3, C4: reads that are overtaken at one call, or told of more than they may show.

use std::sync::Arc;

use ports::Handler as _;
use simulated::Options;

use super::*;
use crate::{
    Client, Config,
    model::{Lifetime, SessionId},
    records::Operation,
    test_fixture::{Call, Side, Stage, create},
};

async fn stage() -> Arc<Stage> {
    Arc::new(Stage::new(Options::default(), Config::default()).await)
}

/// Has `operations` of a session decided and applied, each for itself. Nobody is told.
async fn applied(stage: &Stage, session: SessionId, operations: Vec<Operation>) {
    let distributor = stage.distributor(&stage.store());
    for operation in operations {
        let decided = stage.decided(session, vec![operation]).await;
        distributor
            .handle(Stage::messages(decided))
            .await
            .expect("calm");
    }
}

fn delete(path: &str) -> Operation {
    Operation::Delete {
        path: path.into(),
        version: -1,
    }
}

/// C3: one child comes and another goes, so that there are as many as before, between the two calls of a read.
#[test]
fn children_are_listed_before_what_their_parent_says_of_them() {
    simulated::run(async {
        let stage = stage().await;
        let session = stage.open(1).await;
        let made = |path| create(path, Lifetime::Persistent);
        applied(&stage, session, vec![made("/a"), made("/a/b")]).await;
        let store = stage.store();
        let shared = stage.shared(store.clone()).await;
        let since = shared.tail.applied();
        let (others, told) = (stage.clone(), shared.clone());
        let is_read = |call: &Call<'_>| matches!(call, Call::Get(_) | Call::Scan);
        store.once(Side::After, is_read, async move {
            applied(&others, session, vec![made("/a/c"), delete("/a/b")]).await;
            others.show(&told).await;
            Ok(())
        });
        let request = Request::GetChildren {
            path: "/a".into(),
            watching: Watching::No,
        };
        let mut found = look(&shared, &request).await.expect("calm");
        assert!(store.is_through());
        let at = found.settle(&shared, since).expect("all of it is kept");
        let Some(Output::Reply {
            result: Ok(Response::Children { children, .. }),
            ..
        }) = found.output(1, at)
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

/// Everything that the client is shown until it is `count`.
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

/// C3, C4: what a read has found is shown before what happened after it, although that is told by the time it may be shown.
#[test]
fn a_read_that_waits_for_the_view_is_shown_before_what_is_newer() {
    simulated::run(async {
        let stage = stage().await;
        let shared = stage.shared(stage.store()).await;
        let mut client = stage.client(&shared, 1).await;
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
            &stage,
            stage.open(2).await,
            vec![made("/read"), made("/watched")],
        )
        .await;
        client.submit(2, exists("/read", Watching::No));
        let mut outputs = Vec::new();
        client.pump(&mut outputs).await.expect("the session lives");
        assert!(outputs.is_empty(), "the view is behind: {outputs:?}");
        stage.show(&shared).await;
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
