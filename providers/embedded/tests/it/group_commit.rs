//! One sync serves many callers, and changes that undo each other need none unless a caller waits.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use embedded::{Config, Embedded};
use futures_util::poll;
use ports::{
    ErrorKind, Update,
    key_value::{Action, Condition},
    queue::Handle,
};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{
        block_on, config, directory, done, durably, eventually, found, key, message, open, patient,
        put, settle, value,
    },
};

/// D1: all callers that arrive during a sync share the next one, at any speed of the disk.
#[test]
fn concurrent_writers_share_a_sync() {
    const WRITERS: usize = 64;
    let directory = directory();
    block_on(async {
        let faults = Arc::new(Faults::default());
        let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
        let store = Embedded::open(Config {
            storage,
            ..config(directory.path())
        })
        .await
        .expect("it opens");
        settle(&store.key_value()).await;
        faults.hold_syncs(true);
        let before = store.status().fsyncs;
        let written = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (kv, written) = (store.key_value(), Arc::clone(&written));
                tokio::spawn(async move {
                    let receipt = done(&kv, put(&format!("writer-{writer}"), 1)).await;
                    written.fetch_add(1, Ordering::SeqCst);
                    kv.externalize(receipt.point)
                        .await
                        .expect("it becomes durable");
                })
            })
            .collect();
        eventually("all have written", || {
            written.load(Ordering::SeqCst) == WRITERS
        })
        .await;
        faults.hold_syncs(false);
        for writer in writers {
            writer.await.expect("a writer ends well");
        }
        let syncs = store.status().fsyncs - before;
        assert!(
            (1..=2).contains(&syncs),
            "{syncs} syncs: the first to come, and all others together"
        );
    });
}

/// A record created and deleted within a group never reaches the journal.
#[test]
fn a_lock_taken_and_released_leaves_the_journal_as_it_was() {
    const ROUNDS: u64 = 2000;
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        let kv = store.key_value();
        durably(&kv, put("neighbour", 1)).await;
        let before = store.status().journal_bytes;
        for _ in 0..ROUNDS {
            let lock = Update::put(
                key("lock"),
                vec![("holder".into(), ports::key_value::Value::Integer(1))],
            );
            done(&kv, lock.when(Condition::Absent)).await;
            done(&kv, Update::delete(key("lock")).when(Condition::Exists)).await;
        }
        settle(&kv).await;
        let grown = store.status().journal_bytes - before;
        // The journal thread may take a group in between. It then sees one round halfway, but not
        // all.
        assert!(grown < ROUNDS, "{grown} bytes for {ROUNDS} rounds");
    });
}

/// D3: a record without entries states the end of a group that left nothing to write.
#[test]
fn the_point_of_an_undone_change_survives_a_kill_if_a_caller_waited_for_it() {
    let directory = directory();
    block_on(async {
        let faults = Arc::new(Faults::default());
        let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
        let store = Embedded::open(Config {
            storage,
            ..config(directory.path())
        })
        .await
        .expect("it opens");
        let kv = store.key_value();
        faults.hold_syncs(true);
        let neighbour = done(&kv, put("neighbour", 1)).await;
        let mut before = kv.externalize(neighbour.point);
        assert!(
            poll!(&mut before).is_pending(),
            "its sync takes until it may end"
        );
        eventually("the group before is taken", || faults.waiting_syncs() == 1).await;
        done(&kv, put("lock", 1)).await;
        let released = done(&kv, Update::delete(key("lock"))).await;
        let mut waiting = kv.externalize(released.point);
        assert!(
            poll!(&mut waiting).is_pending(),
            "nothing is written beside a sync"
        );
        assert!(!kv.is_durable(released.point));
        faults.hold_syncs(false);
        before.await.expect("it becomes durable");
        waiting.await.expect("it becomes durable");
        assert!(kv.is_durable(released.point));
        drop((store, kv));
        let store = open(directory.path()).await;
        let kv = store.key_value();
        kv.externalize(released.point)
            .await
            .expect("an acknowledged point is not lost");
        done(&kv, put("lock", 2).depends_on(released.point)).await;
    });
}

/// D3.
#[test]
fn a_store_closed_in_order_keeps_the_points_of_undone_changes() {
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        let kv = store.key_value();
        settle(&kv).await;
        done(&kv, put("lock", 1)).await;
        let released = done(&kv, Update::delete(key("lock"))).await;
        store.close().await;
        assert!(kv.is_durable(released.point));
        drop((store, kv));
        let store = open(directory.path()).await;
        store
            .key_value()
            .externalize(released.point)
            .await
            .expect("the point was left behind");
    });
}

/// Q7.
#[test]
fn a_message_sent_and_acknowledged_leaves_the_journal_as_it_was() {
    const ROUNDS: u64 = 2000;
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        let queue = store.queue();
        queue
            .create("work", patient())
            .await
            .expect("create answers");
        settle(&store.key_value()).await;
        let before = store.status().journal_bytes;
        for _ in 0..ROUNDS {
            queue
                .send("work", vec![message("group", vec![7; 100])])
                .await
                .expect("send answers");
            let taken = queue.receive("work", 1).await.expect("receive answers");
            let handles: Vec<Handle> = taken.into_iter().map(|delivery| delivery.handle).collect();
            queue
                .acknowledge("work", &handles)
                .await
                .expect("acknowledge answers");
        }
        settle(&store.key_value()).await;
        let grown = store.status().journal_bytes - before;
        assert!(
            grown < 10 * ROUNDS,
            "{grown} bytes for {ROUNDS} messages of 100"
        );
    });
}

/// Changes to one item within a group are written once.
#[test]
fn an_item_changed_often_within_a_group_is_written_once() {
    const ROUNDS: i64 = 2000;
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        let kv = store.key_value();
        settle(&kv).await;
        let before = store.status().journal_bytes;
        for number in 0..ROUNDS {
            let actions = vec![
                Action::set("data", vec![7; 100]),
                Action::set_integer("value", number),
            ];
            done(&kv, Update::modify(key("hot"), actions)).await;
        }
        settle(&kv).await;
        let grown = store.status().journal_bytes - before;
        assert!(
            grown < 10 * ROUNDS as u64,
            "{grown} bytes for {ROUNDS} changes of 100"
        );
    });
}

/// D1.
#[test]
fn a_change_without_a_waiter_becomes_durable_by_itself() {
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        let receipt = done(&store.key_value(), put("lonely", 1)).await;
        let kv = store.key_value();
        eventually("a lonely write becomes durable", || {
            kv.is_durable(receipt.point)
        })
        .await;
    });
}

/// D1: closing the store writes the remaining changes.
#[test]
fn a_store_closed_in_order_has_made_everything_durable() {
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        let kv = store.key_value();
        let receipt = done(&kv, put("last", 1)).await;
        store.close().await;
        assert!(kv.is_durable(receipt.point));
        let refused = kv.get(&key("last")).await.expect_err("the store is closed");
        assert!(matches!(refused.kind(), ErrorKind::Unavailable { .. }));
        let store = open(directory.path()).await;
        assert_eq!(value(&store.key_value(), "last").await, Some(1));
        store
            .key_value()
            .externalize(receipt.point)
            .await
            .expect("the point was left behind");
    });
}

/// Checkpoints run beside writers, and the state stays the same over many of them.
#[test]
fn checkpoints_cover_the_journal_while_writers_go_on() {
    const ITEMS: usize = 60;
    let directory = directory();
    let config = Config {
        checkpoint_bytes: 64 << 10,
        journal_segment_bytes: 64 << 10,
        ..config(directory.path())
    };
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        let mut model = vec![None; ITEMS];
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..3000i64 {
            let chosen = random.usize(..ITEMS);
            let name = format!("item-{chosen:02}");
            if random.u8(..4) == 0 {
                done(&kv, Update::delete(key(&name))).await;
                model[chosen] = None;
            } else {
                let actions = vec![
                    Action::set_integer("value", round),
                    Action::set("data", vec![7; 300]),
                ];
                done(&kv, Update::modify(key(&name), actions)).await;
                model[chosen] = Some(round);
            }
            if round % 7 == 0 {
                settle(&kv).await;
            }
            if round % 50 == 0 {
                check(&kv, &model).await;
            }
        }
        settle(&kv).await;
        // A later commit makes a checkpoint that fell due while another one ran.
        found("checkpoints fold the journal in", async || {
            durably(&kv, put("item-00", 3000)).await;
            (store.status().checkpoints > 2 && store.status().segments < 8).then_some(())
        })
        .await;
        model[0] = Some(3000);
        assert_eq!(store.status().checkpoint_error, None);
        check(&kv, &model).await;
        drop((store, kv));
        let store = Embedded::open(config).await.expect("the store opens");
        check(&store.key_value(), &model).await;
    });
}

/// Asserts that scans and gets of the whole partition match the model.
async fn check(kv: &Arc<dyn ports::KeyValue>, model: &[Option<i64>]) {
    let page = kv
        .scan(&ports::key_value::Scan::partition("test", 1000))
        .await
        .expect("scan answers")
        .value;
    let scanned: Vec<(String, i64)> = page
        .items
        .iter()
        .map(|(sort, item)| {
            (
                String::from_utf8_lossy(sort).into_owned(),
                item.integer("value").expect("it has one"),
            )
        })
        .collect();
    let expected: Vec<(String, i64)> = model
        .iter()
        .enumerate()
        .filter_map(|(index, value)| value.map(|value| (format!("item-{index:02}"), value)))
        .collect();
    assert_eq!(scanned, expected);
    for (index, expected) in model.iter().enumerate() {
        assert_eq!(value(kv, &format!("item-{index:02}")).await, *expected);
    }
}
