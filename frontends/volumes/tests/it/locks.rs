//! Locks and holds of two clients, and the end of their sessions.

use std::time::Duration;

use tokio::time::timeout;
use transactions::serializable::model::{LockMode, SessionId, Wait};

use crate::world::{World, key, lock, open, owner, soon, takes, until};

#[tokio::test]
async fn two_clients_exclude_each_other_though_they_number_their_sessions_alike() {
    let world = World::new().await;
    let (one, two) = (world.client().await, world.client().await);
    let (first, second) = (open(&one).await, open(&two).await);
    let exclusive = |wait| lock("a", LockMode::Exclusive, wait);
    assert!(takes(&*first, 1, exclusive(Wait::Never)).await);
    assert!(!takes(&*second, 1, exclusive(Wait::Never)).await);
    assert!(!takes(&*second, 1, exclusive(Wait::Test)).await);
    let waits = takes(&*second, 1, exclusive(Wait::UntilGranted));
    let frees = takes(&*first, 1, lock("a", LockMode::Unlocked, Wait::Never));
    assert_eq!(tokio::join!(waits, frees), (true, true));
    assert!(!takes(&*first, 1, exclusive(Wait::Never)).await);
}

#[tokio::test]
async fn a_call_that_is_dropped_ends_its_wait() {
    let world = World::new().await;
    let (one, two) = (world.client().await, world.client().await);
    let (first, second) = (open(&one).await, open(&two).await);
    let exclusive = |wait| lock("a", LockMode::Exclusive, wait);
    assert!(takes(&*first, 1, exclusive(Wait::Never)).await);
    let waits = second.lock(owner(1), exclusive(Wait::UntilGranted));
    assert!(timeout(Duration::from_millis(20), waits).await.is_err());
    // The request to end the wait precedes this call on the connection.
    assert_eq!(soon(second.is_held(&key("a"))).await, Ok(false));
    assert!(takes(&*first, 1, lock("a", LockMode::Unlocked, Wait::Never)).await);
    assert!(
        takes(&*first, 2, exclusive(Wait::Never)).await,
        "the wait went on"
    );
}

#[tokio::test]
async fn many_locks_that_wait_do_not_keep_an_unlock_out() {
    let world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    let exclusive = |wait| lock("a", LockMode::Exclusive, wait);
    assert!(takes(&*volume, 0, exclusive(Wait::Never)).await);
    let waits = (1..3_000).map(|id| {
        let volume = volume.clone();
        async move {
            assert!(takes(&*volume, id, exclusive(Wait::UntilGranted)).await);
            takes(&*volume, id, lock("a", LockMode::Unlocked, Wait::Never)).await
        }
    });
    let waits = futures_util::future::join_all(waits);
    let frees = takes(&*volume, 0, lock("a", LockMode::Unlocked, Wait::Never));
    let (waited, is_free) = tokio::join!(waits, frees);
    assert!(is_free && waited.iter().all(|is_granted| *is_granted));
}

#[tokio::test]
async fn a_client_that_goes_frees_its_locks_and_holds_at_once() {
    let world = World::new().await;
    let (one, two) = (world.client().await, world.client().await);
    let (first, second) = (open(&one).await, open(&two).await);
    let exclusive = || lock("a", LockMode::Exclusive, Wait::Never);
    assert!(takes(&*first, 1, exclusive()).await);
    first.hold(SessionId(1), key("b")).await.expect("held");
    assert_eq!(second.is_held(&key("b")).await, Ok(true));
    drop(first);
    drop(one);
    until(async || takes(&*second, 1, exclusive()).await).await;
    until(async || second.is_held(&key("b")).await == Ok(false)).await;
}

#[tokio::test]
async fn a_session_of_a_client_can_end_before_its_connection() {
    let world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    let exclusive = || lock("a", LockMode::Exclusive, Wait::Never);
    assert!(takes(&*volume, 1, exclusive()).await);
    volume.hold(SessionId(1), key("b")).await.expect("held");
    volume.hold(SessionId(2), key("b")).await.expect("held");
    volume.end_session(SessionId(1)).await.expect("ended");
    assert!(takes(&*volume, 2, exclusive()).await);
    assert_eq!(volume.is_held(&key("b")).await, Ok(true));
    volume
        .release(SessionId(2), &key("b"))
        .await
        .expect("released");
    assert_eq!(volume.is_held(&key("b")).await, Ok(false));
}
