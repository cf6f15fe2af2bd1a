//! Expired deduplication ids are removed, and dead letters replace messages atomically.

use std::{
    hint,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ports::{
    Externalize as _, Queue as _, QueueAdmin as _,
    queue::{Message, QueueOptions},
};

use crate::{
    checkpoint_store::Damage,
    config::{Config, QUEUE_LIMITS},
    engine::Engine,
    records::{RecordKey, Table},
};

const WINDOW: Duration = Duration::from_millis(1);

/// The ids of one send.
const IDS: usize = 256;

async fn created(engine: Arc<Engine>) -> Arc<Engine> {
    engine
        .create("work", QueueOptions::default())
        .await
        .expect("create answers");
    engine
}

fn message(group: &'static [u8], id: Option<String>) -> Message {
    Message {
        group: Bytes::from_static(group),
        deduplication: id.map(Bytes::from),
        body: Bytes::new(),
    }
}

fn open(directory: &Path) -> Arc<Engine> {
    let mut queue_limits = QUEUE_LIMITS;
    queue_limits.deduplication_window_ms = WINDOW.as_millis() as u64;
    // Frequent checkpoints put ids in the overlay, in a frozen generation and in the checkpoint
    // store.
    let config = Config {
        queue_limits,
        journal_segment_bytes: 64 << 10,
        checkpoint_bytes: 64 << 10,
        ..Config::new(directory)
    };
    Engine::open(config).expect("the store opens")
}

/// The number of ids: in memory by id, in memory by expiry, and in records.
fn remembered(engine: &Engine) -> [usize; 3] {
    let mut state = engine.state();
    let (from, until) = (Table::Deduplication, Table::DeadLetter);
    let mut recorded = 0;
    let first = |table| RecordKey::new(table, Bytes::new());
    let counted = state.store.range(&first(from), &first(until), |_, _| {
        recorded += 1;
        Ok(true)
    });
    counted.expect("it is read");
    let queue = &state.queues.by_name["work"];
    [queue.deduplication.len(), queue.expiring.len(), recorded]
}

fn window_passes() {
    let begun = Instant::now();
    while begun.elapsed() <= 2 * WINDOW {
        hint::spin_loop();
    }
}

/// Sends messages with new ids, and acknowledges them.
async fn send(engine: &Engine, round: usize) {
    let message = |number| message(b"group", Some(format!("{round} {number:0>100}")));
    let sent = engine
        .send("work", (0..IDS).map(message).collect())
        .await
        .expect("send answers");
    let taken = engine.receive("work", IDS).await.expect("receive answers");
    let handles: Vec<_> = taken.into_iter().map(|delivery| delivery.handle).collect();
    engine
        .acknowledge("work", &handles)
        .await
        .expect("acknowledge answers");
    engine
        .externalize(sent.point)
        .await
        .expect("it becomes durable");
}

/// Q4: each send removes expired ids from memory and from the store, across checkpoints and
/// restarts.
#[tokio::test]
async fn deduplication_ids_are_removed_after_their_window() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = created(open(directory.path())).await;
    for round in 0..20 {
        send(&engine, round).await;
        window_passes();
        assert!(
            remembered(&engine).iter().all(|count| *count <= 2 * IDS),
            "{:?}",
            remembered(&engine)
        );
    }
    let left = remembered(&engine);
    engine.shut_down(true);
    drop(engine);
    let engine = open(directory.path());
    assert_eq!(remembered(&engine), left, "they are there after a restart");
    window_passes();
    send(&engine, 20).await;
    assert_eq!(
        remembered(&engine),
        [IDS; 3],
        "those of before the restart are gone"
    );
    engine.shut_down(true);
}

/// Q4: an id sent again after its window has a new window, even if its first expiry entry still
/// exists.
#[tokio::test]
async fn an_id_sent_again_outlives_its_first_window() {
    const HOUR_MS: u64 = 3_600_000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = created(open(directory.path())).await;
    let message = |id: String| message(b"group", Some(id));
    let mut state = engine.state();
    let state = &mut *state;
    let mut send = |messages| {
        state
            .queues
            .send(&mut state.store, "work", messages, HOUR_MS)
            .expect("there is room");
    };
    // More ids than one send removes.
    let mut first: Vec<_> = (0..1_500)
        .map(|number| message(number.to_string()))
        .collect();
    first.push(message("twice".to_owned()));
    send(first);
    let queue = state.queues.by_name.get_mut("work").expect("it was made");
    queue
        .deduplication
        .values_mut()
        .for_each(|expires| *expires = 1);
    queue
        .expiring
        .iter_mut()
        .for_each(|(expires, _)| *expires = 1);
    let mut send = |id: &str| {
        state
            .queues
            .send(
                &mut state.store,
                "work",
                vec![message(id.to_owned())],
                HOUR_MS,
            )
            .expect("there is room");
        let queue = &state.queues.by_name["work"];
        let times = queue
            .expiring
            .iter()
            .filter(|(_, id)| *id == "twice")
            .count();
        (times, queue.groups.message_count())
    };
    assert_eq!(
        send("twice"),
        (2, 1_503 - 1),
        "it is new, and both times are remembered"
    );
    assert_eq!(send("other"), (1, 1_503), "the first time is forgotten");
    assert_eq!(send("twice"), (1, 1_503), "it was sent before");
}

/// Q5: if the oldest dead letters cannot be read, the message stays and does not become a dead
/// letter as well.
#[tokio::test]
async fn a_message_stays_if_the_oldest_dead_letters_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut queue_limits = QUEUE_LIMITS;
    queue_limits.dead_letters_max = 1;
    let engine = Engine::open(Config {
        queue_limits,
        ..Config::new(directory.path())
    });
    let engine = created(engine.expect("the store opens")).await;
    let messages = vec![message(b"first", None), message(b"second", None)];
    engine.send("work", messages).await.expect("send answers");
    let take = async || {
        engine
            .receive("work", 1)
            .await
            .expect("receive answers")
            .remove(0)
            .handle
    };
    let letters = async || {
        let letters = engine
            .dead_letters("work", None, 2)
            .await
            .expect("they are listed");
        letters
            .into_iter()
            .map(|letter| letter.id)
            .collect::<Vec<_>>()
    };
    engine
        .give_up("work", &take().await, "failed")
        .await
        .expect("there is room for one");
    let (kept, second) = (letters().await, take().await);
    // The key under which the store remembers a damaged walk.
    let mut walk = vec![u8::MAX];
    let queue = engine.state().queues.by_name["work"].id;
    RecordKey::new(
        Table::DeadLetter,
        Bytes::copy_from_slice(&queue.to_be_bytes()),
    )
    .write(&mut walk);
    let damage = Damage {
        file: directory.path().to_owned(),
        offset: 0,
    };
    engine.state().store.damaged.insert(walk, damage);
    engine
        .give_up("work", &second, "failed")
        .await
        .expect_err("the oldest letter cannot be read");
    engine.state().store.damaged.clear();
    let backlog = engine.backlog("work").await.expect("backlog answers");
    assert_eq!(
        (letters().await, backlog.dead_letters, backlog.messages),
        (kept, 1, 1)
    );
    engine.shut_down(true);
}
