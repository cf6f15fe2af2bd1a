//! The objects' contract, on the items of a real store.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on real threads, in real time"
)]

use std::{pin::pin, sync::Arc};

use async_trait::async_trait;
use embedded::{Config, Embedded};
use futures_util::poll;
use in_process::SystemClock;
use item_objects::ItemObjects;
use ports::{
    Clock,
    contract::{self, Case, Spawn},
    key_value::SharedKeyValue,
    objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload},
    queue::SharedQueue,
};
use simulated::World;
use tempfile::TempDir;

const SPAWN: Spawn = |task| {
    let task = tokio::spawn(task);
    Box::pin(async move { task.await.expect("the task ends well") })
};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(future)
}

async fn open(directory: &TempDir) -> Embedded {
    Embedded::open(Config::new(directory.path()))
        .await
        .expect("the store opens")
}

fn objects(case: Case<contract::objects::Subject>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    block_on(async {
        let store = open(&directory).await;
        let objects = Arc::new(ItemObjects::new(store.key_value()));
        let limits = objects.limits();
        case.run(contract::objects::Subject::new(objects, limits).spawning(SPAWN))
            .await;
        store.close().await;
    });
}

mod objects {
    ports::objects_contract!(super::objects);
}

/// A store that crashes by being dropped, which loses changes that are not durable.
#[derive(Debug)]
struct Crashing {
    store: Embedded,
    directory: TempDir,
}

#[async_trait]
impl contract::durability::Crashable for Crashing {
    fn key_value(&self) -> SharedKeyValue {
        self.store.key_value()
    }

    fn queue(&self) -> Option<SharedQueue> {
        None
    }

    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        Some(Arc::new(ItemObjects::new(self.store.key_value())))
    }

    fn takes_parts(&self) -> bool {
        true
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    async fn crash_and_reopen(self: Box<Self>) -> contract::durability::Subject {
        let Self { store, directory } = *self;
        drop(store);
        let store = open(&directory).await;
        Box::new(Self { store, directory })
    }
}

fn durability(case: Case<contract::durability::Subject>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    block_on(async {
        let store = open(&directory).await;
        case.run(Box::new(Crashing { store, directory })).await;
    });
}

mod durability {
    ports::durability_contract!(super::durability);
}

#[test]
fn a_list_with_delimiter_separates_folders_and_objects() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    block_on(async {
        let store = open(&directory).await;
        let objects = ItemObjects::new(store.key_value());
        for name in ["a/1", "a/b/2", "a/b/3", "c"] {
            objects
                .put(&ObjectPath::from(name), name.into())
                .await
                .expect("put answers");
        }
        let listed = objects
            .list_with_delimiter(Some(&ObjectPath::from("a")))
            .await
            .expect("a list");
        assert_eq!(listed.common_prefixes, [ObjectPath::from("a/b")]);
        assert_eq!(listed.objects.len(), 1);
        assert_eq!(listed.objects[0].location, ObjectPath::from("a/1"));
        store.close().await;
    });
}

/// O2, P6: an object that a create found survives a crash, although its writer died before it was
/// durable.
#[test]
fn an_object_that_a_create_found_is_durable() {
    simulated::run(async {
        let world = World::new(1);
        let (objects, path) = (ItemObjects::new(world.key_value()), ObjectPath::from("o/1"));
        let put = || objects.put_opts(&path, PutPayload::from_static(b"x"), PutMode::Create.into());
        {
            let mut first = pin!(put());
            assert!(
                poll!(&mut first).is_pending(),
                "it waits for the disk, and is dropped"
            );
        }
        let again = put().await;
        assert!(
            matches!(again, Err(ObjectError::AlreadyExists { .. })),
            "{again:?}"
        );
        world.crash();
        objects.get(&path).await.expect("a create found it");
    });
}

/// O2, O5: two uploads of one name never mix, and a deletion removes what a crash left of one.
#[test]
fn of_two_uploads_of_a_name_one_is_refused_until_its_pieces_are_deleted() {
    simulated::run(async {
        let world = World::new(1);
        let (objects, path) = (ItemObjects::new(world.key_value()), ObjectPath::from("o/1"));
        let mut left = objects.put_multipart(&path).await.expect("begun");
        left.put_part("left".into()).await.expect("put");
        std::mem::forget(left);
        let mut second = objects.put_multipart(&path).await.expect("begun");
        let refused = second.put_part("second".into()).await;
        assert!(
            matches!(refused, Err(ObjectError::AlreadyExists { .. })),
            "{refused:?}"
        );
        second.abort().await.expect("aborted");
        objects.delete(&path).await.expect("deleted");
        let mut third = objects.put_multipart(&path).await.expect("begun");
        third.put_part("third".into()).await.expect("put");
        third.complete().await.expect("completed");
        let found = objects.get(&path).await.expect("it is there");
        assert_eq!(found.bytes().await.expect("read"), "third");
        objects.delete(&path).await.expect("deleted");
        assert!(objects.get(&path).await.is_err());
        let mut fourth = objects.put_multipart(&path).await.expect("begun");
        fourth
            .put_part("fourth".into())
            .await
            .expect("no piece was left");
    });
}

#[test]
fn a_full_store_refuses_for_lack_of_room() {
    simulated::run(async {
        let world = World::new(1);
        let (objects, path) = (ItemObjects::new(world.key_value()), ObjectPath::from("o/1"));
        world.fill_disk();
        let refused = objects
            .put(&path, "x".into())
            .await
            .expect_err("it is full");
        assert_eq!(
            ports::objects::failed("put".to_owned(), refused).kind(),
            ports::ErrorKind::NoRoom
        );
    });
}
