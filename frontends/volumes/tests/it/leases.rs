//! Leases of clients: they end with their session, and a wait for a recall holds up no other call.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, FutureExt as _, pending};
use parking_lot::Mutex;
use ports::Read;
use transactions::{
    Error, Result,
    serializable::{
        ModelVolume, VolumeStore,
        model::{At, Key, Leased, Recall, SessionId, Verdict},
    },
};

use crate::world::{One, World, key, open, put, settings, soon, until, value};

/// A volume that grants all leases and never recalls one.
#[derive(Debug)]
struct Granting {
    inner: ModelVolume,
    leased: Mutex<BTreeSet<SessionId>>,
    waiting: Mutex<usize>,
}

impl VolumeStore for Granting {
    fn get_leased<'a>(
        &'a self,
        session: SessionId,
        keys: &'a [Key],
    ) -> BoxFuture<'a, Result<Read<Leased>>> {
        self.leased.lock().insert(session);
        let groups = keys.iter().map(|key| key.group().clone()).collect();
        let read = self.inner.get_many(At::Tail, keys);
        let read = read.map(|read| {
            let Read { value, point } = read?;
            let values = value;
            let value = Leased { values, groups };
            Ok(Read { value, point })
        });
        read.boxed()
    }

    fn recalled(&self, _: SessionId, _: u64) -> BoxFuture<'_, Result<Read<Recall>>> {
        *self.waiting.lock() += 1;
        pending().boxed()
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        self.leased.lock().remove(&session);
        self.inner.end_session(session)
    }

    transactions::forward_volume_calls! {
        block_bytes, snapshot, get_many, scan, changed_since, stage, commit, externalize, pin,
        unpin, lock, hold, release, is_held, reserve_numbers, usage
    }
}

async fn world() -> (World, Arc<Granting>) {
    let granting = Arc::new(Granting {
        inner: ModelVolume::new(settings().block_bytes),
        leased: Mutex::default(),
        waiting: Mutex::default(),
    });
    let world = World::around(Arc::new(One(granting.clone()))).await;
    (world, granting)
}

#[tokio::test]
async fn a_wait_for_a_recall_holds_up_no_other_call() {
    let (mut world, granting) = world().await;
    let volumes = world.client().await;
    let volume = open(&volumes).await;
    let waits = {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move { volume.recalled(SessionId(1), 0).await })
    };
    until(async || *granting.waiting.lock() == 1).await;
    let keys = [key("a")];
    let read = soon(volume.get_leased(SessionId(1), &keys)).await;
    let read = read.expect("an answer").value;
    assert_eq!(
        (read.groups, read.values.found),
        (vec!["d".into()], vec![None])
    );
    let verdict = soon(volume.commit_leased(SessionId(1), put(1, "a", b"value"))).await;
    let verdict = verdict.expect("an answer").value;
    assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
    assert_eq!(value(&*volume, "a").await, Some(b"value".to_vec()));
    let began = Instant::now();
    world.stop().await;
    assert!(began.elapsed() < Duration::from_secs(1));
    // The client must give up its leases.
    let ended = soon(waits).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Unavailable(_))), "{ended:?}");
}

#[tokio::test]
async fn leases_end_with_their_session() {
    let (world, granting) = world().await;
    let (first, second) = (world.client().await, world.client().await);
    for client in [&first, &second] {
        let volume = open(client).await;
        let read = volume.get_leased(SessionId(1), &[key("a")]).await;
        read.expect("an answer");
    }
    // Each client numbers its own sessions.
    assert_eq!(granting.leased.lock().len(), 2);
    drop(first);
    until(async || granting.leased.lock().len() == 1).await;
    let volume = open(&second).await;
    volume.end_session(SessionId(1)).await.expect("ended");
    assert!(granting.leased.lock().is_empty());
    let ended = volume.end_session(SessionId(2)).await;
    assert_eq!(ended, Ok(()));
}

#[tokio::test]
async fn a_volume_without_leases_grants_none() {
    let world = World::new().await;
    let volumes = world.client().await;
    let volume = open(&volumes).await;
    let read = volume.get_leased(SessionId(1), &[key("a")]).await;
    assert_eq!(
        read.expect("an answer").value.groups,
        Vec::<bytes::Bytes>::new()
    );
    let refused = volume.recalled(SessionId(1), 0).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}
