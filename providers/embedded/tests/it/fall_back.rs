//! After a failed write or sync, the store returns to its durable state and reports which points
//! were lost (rules P3, P6).

use std::{path::Path, sync::Arc};

use embedded::{Config, Embedded, Health};
use ports::{ErrorKind, KeyValue};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{
        block_on, config, directory, done, durably, eventually, key, message, patient, put,
        put_pair, settle, value,
    },
};

fn faulty(path: &Path) -> (Arc<Faults>, Config) {
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    (
        faults,
        Config {
            storage,
            ..config(path)
        },
    )
}

/// P3, P6.
#[test]
fn after_a_failed_sync_the_durable_state_is_served_and_lost_points_are_lost() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        let kept = durably(&kv, put("kept", 1)).await;
        Faults::set(&faults.fail_journal_sync, true);
        let lost = put_pair(&kv, "left", "right", 2).await;
        let waiter = tokio::spawn({
            let kv = Arc::clone(&kv);
            async move { kv.externalize(lost.point).await }
        });
        eventually("the store notices", || {
            matches!(store.status().health, Health::FallingBack(_))
        })
        .await;
        let refused = kv
            .get(&key("kept"))
            .await
            .expect_err("nothing is served meanwhile");
        assert!(
            matches!(refused.kind(), ErrorKind::Unavailable { .. }),
            "{refused}"
        );
        Faults::set(&faults.fail_journal_sync, false);
        let reported = waiter
            .await
            .expect("the waiter ends")
            .expect_err("its point is lost");
        assert_eq!(reported.kind(), ErrorKind::Lost, "{reported}");
        assert_eq!(store.status().health, Health::Serving);
        assert_eq!(value(&kv, "kept").await, Some(1));
        let pair = (value(&kv, "left").await, value(&kv, "right").await);
        assert_eq!(pair, (None, None));
        kv.externalize(kept.point)
            .await
            .expect("a durable point stays durable");
        let later = durably(&kv, put("later", 3)).await;
        assert!(later.point.incarnation > kept.point.incarnation);
        let still = kv
            .externalize(lost.point)
            .await
            .expect_err("later positions do not bring it back");
        assert_eq!(still.kind(), ErrorKind::Lost);
        drop((store, kv));
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        let kept = (value(&kv, "kept").await, value(&kv, "later").await);
        assert_eq!(kept, (Some(1), Some(3)));
        let pair = (value(&kv, "left").await, value(&kv, "right").await);
        assert_eq!(pair, (None, None));
        let still = kv.externalize(lost.point).await.expect_err("it stays lost");
        assert_eq!(still.kind(), ErrorKind::Lost);
    });
}

/// P6.
#[test]
fn a_write_torn_by_an_error_is_void_and_the_journal_continues_in_another_segment() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        for round in 0..5 {
            durably(&kv, put("kept", round)).await;
            Faults::set(&faults.fail_journal_write, true);
            let lost = done(&kv, put("kept", 1000 + round)).await;
            let waiter = tokio::spawn({
                let kv = Arc::clone(&kv);
                async move { kv.externalize(lost.point).await }
            });
            eventually("the store notices", || {
                store.status().health != Health::Serving
            })
            .await;
            Faults::set(&faults.fail_journal_write, false);
            assert_eq!(
                waiter
                    .await
                    .expect("it ends")
                    .expect_err("it is lost")
                    .kind(),
                ErrorKind::Lost
            );
            assert_eq!(value(&kv, "kept").await, Some(round));
        }
        drop((store, kv));
        let store = Embedded::open(config).await.expect("the store opens");
        assert_eq!(value(&store.key_value(), "kept").await, Some(4));
        assert_eq!(store.status().recovery.cut, None);
    });
}

/// Q6: the return undid the delivery, so its acknowledgement must have no effect.
#[test]
fn a_handle_from_before_the_return_acknowledges_nothing() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let (kv, queue) = (store.key_value(), store.queue());
        queue
            .create("work", patient())
            .await
            .expect("create answers");
        queue
            .send("work", vec![message("group", "job")])
            .await
            .expect("send answers");
        settle(&kv).await;
        let before = queue.receive("work", 1).await.expect("receive answers");
        Faults::set(&faults.fail_journal_sync, true);
        done(&kv, put("result", 1)).await;
        returns(&faults, &store).await;
        queue_serves(&*kv, &store).await;
        let after = queue.receive("work", 1).await.expect("receive answers");
        assert_eq!(after.len(), 1, "the message is given again");
        assert_ne!(after[0].handle, before[0].handle);
        queue
            .acknowledge("work", &[before[0].handle.clone()])
            .await
            .expect("acknowledge answers");
        queue
            .release("work", &after[0].handle, 0, "again")
            .await
            .expect("release answers");
        let again = queue.receive("work", 1).await.expect("receive answers");
        assert_eq!(again.len(), 1, "the stale handle acknowledged nothing");
        queue
            .acknowledge("work", &[again[0].handle.clone()])
            .await
            .expect("acknowledge answers");
        assert!(
            queue
                .receive("work", 1)
                .await
                .expect("receive answers")
                .is_empty()
        );
    });
}

/// Q3, Q6: a message whose acknowledgement was undone is delivered as if it had never been
/// delivered before. An earlier handle has no effect on it.
#[test]
fn attempts_are_counted_from_one_after_the_return() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let (kv, queue) = (store.key_value(), store.queue());
        queue
            .create("work", patient())
            .await
            .expect("create answers");
        queue
            .send("work", vec![message("group", "job")])
            .await
            .expect("send answers");
        settle(&kv).await;
        let before = queue.receive("work", 1).await.expect("receive answers");
        Faults::set(&faults.fail_journal_sync, true);
        queue
            .acknowledge("work", &[before[0].handle.clone()])
            .await
            .expect("acknowledge answers");
        done(&kv, put("result", 1)).await;
        returns(&faults, &store).await;
        queue_serves(&*kv, &store).await;
        let after = queue.receive("work", 1).await.expect("receive answers");
        assert_eq!(
            (before[0].handle.attempt, after[0].handle.attempt),
            (1, 1),
            "{after:?}"
        );
        queue
            .acknowledge("work", &[before[0].handle.clone()])
            .await
            .expect("acknowledge answers");
        queue
            .send("work", vec![message("other", "new")])
            .await
            .expect("send answers");
        let new = queue.receive("work", 1).await.expect("receive answers");
        assert_eq!(
            (new[0].body.as_ref(), new[0].handle.attempt),
            (b"new".as_slice(), 1)
        );
        queue
            .release("work", &after[0].handle, 0, "again")
            .await
            .expect("release answers");
        assert_eq!(
            queue
                .receive("work", 1)
                .await
                .expect("receive answers")
                .len(),
            1,
            "it is still there"
        );
    });
}

/// Waits until the store has met the failed sync, and lets later syncs succeed.
async fn returns(faults: &Faults, store: &Embedded) {
    eventually("the store notices", || {
        store.status().health != Health::Serving
    })
    .await;
    Faults::set(&faults.fail_journal_sync, false);
}

async fn serves(store: &Embedded) {
    eventually("the store serves again", || {
        store.status().health == Health::Serving
    })
    .await;
}

async fn queue_serves(kv: &dyn KeyValue, store: &Embedded) {
    serves(store).await;
    assert_eq!(kv.get(&key("result")).await.expect("it serves").value, None);
}

/// A waiting consumer is not forgotten by the return.
#[test]
fn a_waiting_consumer_receives_messages_sent_after_the_return() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Arc::new(Embedded::open(config).await.expect("the store opens"));
        let queue = store.queue();
        queue
            .create("work", patient())
            .await
            .expect("create answers");
        settle(&store.key_value()).await;
        let waiter = tokio::spawn({
            let (queue, store) = (Arc::clone(&queue), Arc::clone(&store));
            async move {
                loop {
                    if queue.ready("work").await.is_err() {
                        serves(&store).await;
                        continue;
                    }
                    let taken = queue.receive("work", 1).await.unwrap_or_default();
                    if let Some(delivery) = taken.into_iter().next() {
                        return delivery.body;
                    }
                }
            }
        });
        Faults::set(&faults.fail_journal_sync, true);
        done(&store.key_value(), put("lost", 1)).await;
        returns(&faults, &store).await;
        serves(&store).await;
        queue
            .send("work", vec![message("group", "job")])
            .await
            .expect("send answers");
        assert_eq!(waiter.await.expect("the waiter ends"), "job");
    });
}
