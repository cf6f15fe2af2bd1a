//! A crash during a checkpoint in parts.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use ports::{Externalize as _, Key, KeyValue as _, Update, key_value::Action};

use super::*;
use crate::{
    config::Config,
    key_value::Items,
    storage::{
        DiskStorage,
        intercepted::{Intercepted, Operation},
    },
    store::UseReserve,
};

fn key(name: &str) -> Key {
    Key::new("test", name)
}

fn items(engine: &Arc<Engine>) -> Items {
    Items {
        engine: Arc::clone(engine),
        reserve: UseReserve::No,
    }
}

/// Sets `name` to a value of `bytes` bytes, durably.
async fn set(engine: &Arc<Engine>, name: &str, bytes: usize) {
    let data = Action::set("data", Bytes::from(vec![1; bytes]));
    items(engine)
        .update(Update::modify(key(name), vec![data]))
        .await
        .expect("there is room");
    engine
        .externalize(engine.point())
        .await
        .expect("it becomes durable");
}

async fn bytes(engine: &Arc<Engine>, name: &str) -> Option<usize> {
    let item = items(engine)
        .get(&key(name))
        .await
        .expect("it is read")
        .value?;
    item.bytes("data").map(Bytes::len)
}

/// Everything that is durable and that no checkpoint covers yet.
fn job(engine: &Engine) -> Job {
    let journal = engine.parts.usage.whole();
    let mut state = engine.state();
    let store = &mut state.store;
    Job::new(store.overlay.freeze(), store.point(), journal)
}

/// Makes a checkpoint of a shrunk item and a new one. The process dies before sync number `dies_in`
/// of the checkpoint store. Returns whether the checkpoint was complete before that.
async fn fold_and_die(directory: &Path, dies_in: usize) -> bool {
    let (syncs, is_counted) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (counted, counts) = (Arc::clone(&syncs), Arc::clone(&is_counted));
    let storage = Intercepted::new(DiskStorage, move |operation, path| {
        let is_of_store = path
            .extension()
            .is_some_and(|extension| extension == "redb");
        if !is_of_store || !counts.load(Ordering::SeqCst) {
            return Ok(());
        }
        let is_sync = operation == Operation::SyncData;
        let before = counted.fetch_add(usize::from(is_sync), Ordering::SeqCst);
        let is_dead = before + usize::from(is_sync) >= dies_in;
        if is_dead {
            Err(io::Error::from_raw_os_error(libc::EIO))
        } else {
            Ok(())
        }
    });
    let config = Config {
        storage: Arc::new(storage),
        journal_segment_bytes: 256 << 10,
        ..Config::new(directory)
    };
    let engine = Engine::open(config).expect("the store opens");
    set(&engine, "shrinks", 3_000).await;
    super::super::fold(&engine, &job(&engine)).expect("there is room");
    set(&engine, "shrinks", 10).await;
    set(&engine, "new", 2_000).await;
    let job = job(&engine);
    is_counted.store(true, Ordering::SeqCst);
    let folded = fold(&engine, &job);
    drop(job);
    engine.shut_down(false);
    folded.is_ok()
}

/// D1, P6: until the last transaction, a recovery reads the journal from the end of the checkpoint
/// before.
#[tokio::test]
async fn a_crash_during_a_checkpoint_in_parts_loses_nothing() {
    for dies_in in 1.. {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let is_made = fold_and_die(directory.path(), dies_in).await;
        let config = Config {
            journal_segment_bytes: 256 << 10,
            ..Config::new(directory.path())
        };
        let engine = Engine::open(config).expect("the store opens");
        let found = (bytes(&engine, "shrinks").await, bytes(&engine, "new").await);
        assert_eq!(found, (Some(10), Some(2_000)), "died in sync {dies_in}");
        engine.shut_down(false);
        if is_made {
            assert!(
                dies_in > 3,
                "three transactions are more than {dies_in} syncs"
            );
            return;
        }
    }
}
