//! C6: the index of a session's ephemerals names what there is, and nothing that is gone.

use std::sync::Arc;

use coordination::{
    Config,
    basis::Basis,
    ephemerals::Ephemerals,
    model::{Lifetime, Request},
};
use ports::faults::Calm;
use simulated::World;

use crate::alone::{connect, create, follow, result, started};

/// C6: a session may live for years and make ephemerals all the time.
#[test]
fn an_ephemeral_leaves_the_index_with_its_znode_whoever_deletes_it() {
    simulated::run(async {
        let world = World::new(1);
        let service = started(&world, Arc::new(Calm), Config::default()).await;
        follow(&service);
        let mut owner = connect(&service.gateway()).await.expect("a calm world");
        let mut other = connect(&service.gateway()).await.expect("a calm world");
        let (index, session) = (Ephemerals::new(world.key_value()), owner.session());
        let indexed = async || index.all(session, &mut Basis::default()).await.expect("a calm world");
        for path in ["/a", "/b", "/c"] {
            result(&mut owner, create(path, Lifetime::Ephemeral)).await.expect("it is made");
        }
        assert_eq!(indexed().await, ["/a", "/b", "/c"]);
        let delete = |path: &str| Request::Delete { path: path.into(), version: -1 };
        result(&mut owner, delete("/a")).await.expect("it is deleted");
        assert_eq!(indexed().await, ["/b", "/c"]);
        result(&mut other, delete("/b")).await.expect("it is deleted");
        assert_eq!(indexed().await, ["/c"]);
        result(&mut owner, Request::Close).await.expect("it is closed");
        assert!(indexed().await.is_empty(), "the session has ended");
    });
}
