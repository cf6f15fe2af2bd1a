//! The server goes away under its clients, and comes back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::poll;
use tokio::time::{Instant, timeout};
use transactions::{
    Error,
    serializable::{
        ModelVolume,
        model::{At, LockMode, SessionId, Verdict, Wait, Write, Writes, number_in},
    },
};

use crate::world::{
    GRACE, One, World, connected, demo, key, lock, open, put, settings, soon, takes, until, value,
};

async fn one() -> (World, Arc<ModelVolume>) {
    let volume = Arc::new(ModelVolume::new(settings().block_bytes));
    let world = World::around(Arc::new(One(volume.clone()))).await;
    (world, volume)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_proposal_commits_once_while_the_server_is_killed() {
    const KILLS: usize = 8;
    let mut world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    let (is_over, all) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let writers = (0..4).map(|writer| {
        let (volume, is_over, all) = (volume.clone(), is_over.clone(), all.clone());
        tokio::spawn(async move {
            let mut committed = 0;
            while !is_over.load(Ordering::Relaxed) {
                let mut proposal = put(writer << 32 | committed, "n", b"");
                proposal.writes = Writes::Inline(vec![Write::Add {
                    key: key("n"),
                    delta: 1,
                }]);
                let decided = volume.commit(proposal).await.expect("a verdict");
                assert!(matches!(decided.value, Verdict::Committed { .. }));
                committed += 1;
                all.fetch_add(1, Ordering::Relaxed);
            }
            committed
        })
    });
    let writers: Vec<_> = writers.collect();
    for _ in 0..KILLS {
        let before = all.load(Ordering::Relaxed);
        until(async || all.load(Ordering::Relaxed) > before + 8).await;
        world.kill().await;
        world.start();
    }
    is_over.store(true, Ordering::Relaxed);
    let mut committed = 0;
    for writer in writers {
        committed += soon(writer).await.expect("no verdict is lost");
    }
    let sum = value(&*volume, "n").await.map(Into::into);
    assert_eq!(number_in(sum.as_ref()), Some(committed));
}

#[tokio::test]
async fn a_server_that_lost_its_memory_learns_of_holds_and_locks() {
    let (mut world, model) = one().await;
    // The model counts its starts from zero, which is the start of `DurabilityPoint::DURABLE`.
    model.crash();
    let (one, two) = (world.client().await, world.client().await);
    let (first, second) = (open(&one).await, open(&two).await);
    let exclusive = |wait| lock("a", LockMode::Exclusive, wait);
    first.hold(SessionId(1), key("b")).await.expect("held");
    first.hold(SessionId(1), key("c")).await.expect("held");
    first
        .release(SessionId(1), &key("c"))
        .await
        .expect("released");
    assert!(takes(&*first, 1, exclusive(Wait::Never)).await);
    assert!(takes(&*first, 1, lock("b", LockMode::Shared, Wait::Never)).await);
    assert!(takes(&*first, 1, lock("b", LockMode::Unlocked, Wait::Never)).await);
    let before = first.snapshot().await.expect("a state").point;
    world.kill().await;
    model.crash();
    world.start();
    let restarted = Instant::now();
    // The second client comes first, and is not granted the lock of the first.
    let taken = takes(&*second, 1, exclusive(Wait::Never)).await;
    assert!(!taken && restarted.elapsed() >= GRACE, "{taken}");
    let state = connected(&one, |state| state.is_connected && state.restarts == 1).await;
    assert_eq!(state.locks_lost, 0);
    assert_eq!(second.is_held(&key("b")).await, Ok(true));
    assert_eq!(
        second.is_held(&key("c")).await,
        Ok(false),
        "it was released"
    );
    assert!(takes(&*second, 1, lock("b", LockMode::Exclusive, Wait::Never)).await);
    let after = first.snapshot().await.expect("a state").point;
    assert!(after.incarnation > before.incarnation);
    let lost = first.externalize(before).await;
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");
    assert!(takes(&*first, 1, lock("a", LockMode::Unlocked, Wait::Never)).await);
    assert!(takes(&*second, 1, exclusive(Wait::Never)).await);
}

#[tokio::test]
async fn a_store_that_starts_again_within_the_server_is_as_a_restart() {
    let (world, model) = one().await;
    // The model counts its starts from zero, which is the start of `DurabilityPoint::DURABLE`.
    model.crash();
    let (one, two) = (world.client().await, world.client().await);
    let (first, second) = (open(&one).await, open(&two).await);
    let exclusive = |wait| lock("a", LockMode::Exclusive, wait);
    first.hold(SessionId(1), key("b")).await.expect("held");
    assert!(takes(&*first, 1, exclusive(Wait::Never)).await);
    assert_eq!(value(&*first, "a").await, None);
    model.crash();
    // It is granted in the new memory, but not answered.
    assert!(!takes(&*second, 1, exclusive(Wait::Never)).await);
    for client in [&one, &two] {
        let state = connected(client, |state| state.is_connected && state.restarts == 1).await;
        assert_eq!(state.locks_lost, 0);
    }
    assert_eq!(second.is_held(&key("b")).await, Ok(true));
}

#[tokio::test]
async fn a_lock_that_another_client_may_have_had_is_lost() {
    let (mut world, model) = one().await;
    let client = world.client().await;
    let volume = open(&client).await;
    assert!(takes(&*volume, 1, lock("a", LockMode::Exclusive, Wait::Never)).await);
    world.kill().await;
    model.crash();
    // As if the client had come after the time to reclaim.
    std::fs::remove_file(world.path()).expect("a socket");
    world.start();
    let state = connected(&client, |state| state.locks_lost == 1).await;
    assert_eq!(state.restarts, 1);
    assert!(takes(&*volume, 2, lock("a", LockMode::Exclusive, Wait::Never)).await);
}

#[tokio::test]
async fn a_lock_that_waits_is_granted_after_a_restart() {
    let (mut world, model) = one().await;
    let (one, two) = (world.client().await, world.client().await);
    let (first, second) = (open(&one).await, open(&two).await);
    assert!(takes(&*first, 1, lock("a", LockMode::Exclusive, Wait::Never)).await);
    let exclusive = lock("a", LockMode::Exclusive, Wait::UntilGranted);
    let mut waits = Box::pin(takes(&*second, 1, exclusive));
    assert!(poll!(&mut waits).is_pending());
    // An answer to a later request: the lock waits.
    assert_eq!(second.is_held(&key("a")).await, Ok(false));
    world.kill().await;
    model.crash();
    world.start();
    let early = timeout(GRACE * 2, &mut waits).await;
    assert!(early.is_err(), "the first client has reclaimed it");
    assert!(takes(&*first, 1, lock("a", LockMode::Unlocked, Wait::Never)).await);
    assert!(waits.await, "granted");
}

#[tokio::test]
async fn a_server_that_stops_in_order_keeps_its_socket_for_locks_alone() {
    let mut world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    world.stop().await;
    assert!(!world.path().exists());
    world.start();
    assert!(takes(&*volume, 1, lock("a", LockMode::Exclusive, Wait::Never)).await);
    world.stop().await;
    assert!(world.path().exists());
    world.start();
    let state = connected(&client, |state| state.is_connected && state.restarts == 2).await;
    assert_eq!(state.locks_lost, 0);
}

#[tokio::test]
async fn calls_without_a_server_end_in_time_with_the_reason() {
    let mut world = World::new().await;
    let wait_max = Duration::from_millis(300);
    let client = world.client_that_waits(wait_max).await;
    let volume = open(&client).await;
    world.kill().await;
    let began = Instant::now();
    let read = volume.get_many(At::Tail, &[key("a")]).await;
    let Err(Error::Unavailable(why)) = &read else {
        panic!("{read:?}");
    };
    assert!(why.contains("volumes.sock: cannot reach a server"), "{why}");
    assert!((wait_max..wait_max * 10).contains(&began.elapsed()));
    world.start();
    assert_eq!(value(&*volume, "a").await, None);
}

#[tokio::test]
async fn a_deleted_volume_fails_its_calls_after_a_restart_too() {
    let mut world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    world.kill().await;
    world.volumes.delete(&demo()).await.expect("deleted");
    world.start();
    assert_eq!(volume.snapshot().await, Err(Error::NoSuchVolume));
}
