//! What queues remember goes when its time is over.

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

use super::LIMITS;
use crate::{
    blocks::Damage,
    config::Config,
    engine::Engine,
    record::{RecordKey, Table},
};

const WINDOW: Duration = Duration::from_millis(1);

/// As many ids as one send brings.
const IDS: usize = 256;

fn open(directory: &Path) -> Arc<Engine> {
    let mut queue_limits = LIMITS;
    queue_limits.deduplication_window_ms = WINDOW.as_millis() as u64;
    // Checkpoints come often, so that ids lie in the overlay, in a generation on its way, and below.
    let config = Config {
        queue_limits,
        journal_segment_bytes: 64 << 10,
        checkpoint_bytes: 64 << 10,
        ..Config::new(directory)
    };
    Engine::open(config).expect("the store opens")
}

/// How many ids there are: in memory by id, in memory by time, and recorded.
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

/// Sends messages with new ids, and takes them.
async fn send(engine: &Engine, round: usize) {
    let message = |number| Message {
        group: Bytes::from_static(b"group"),
        deduplication: Some(Bytes::from(format!("{round} {number:0>100}"))),
        body: Bytes::new(),
    };
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

/// Q4: each send forgets what is past its window, over checkpoints and over restarts, from memory and from the store.
#[tokio::test]
async fn deduplication_ids_go_when_their_window_is_over() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = open(directory.path());
    engine
        .create("work", QueueOptions::default())
        .await
        .expect("create answers");
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

/// Q4: an id that is sent again after its window is remembered from then on, also where the first time is yet to be forgotten.
#[tokio::test]
async fn a_later_id_outlives_the_window_of_the_one_before() {
    const HOUR_MS: u64 = 3_600_000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = open(directory.path());
    engine
        .create("work", QueueOptions::default())
        .await
        .expect("create answers");
    let message = |id: String| Message {
        group: Bytes::from_static(b"group"),
        deduplication: Some(Bytes::from(id)),
        body: Bytes::new(),
    };
    let mut state = engine.state();
    let state = &mut *state;
    let mut send = |messages| {
        state
            .queues
            .send(&mut state.store, "work", messages, HOUR_MS)
            .expect("there is room")
    };
    // More than one send forgets.
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
        (times, queue.groups[&b"group"[..]].entries.len())
    };
    assert_eq!(
        send("twice"),
        (2, 1_503 - 1),
        "it is new, and both times are remembered"
    );
    assert_eq!(send("other"), (1, 1_503), "the first time is forgotten");
    assert_eq!(send("twice"), (1, 1_503), "it was sent before");
}

/// Q5: the walk to the oldest letter, which is to go, may fail, and the message is then what it was. It was a letter as well.
#[tokio::test]
async fn a_message_is_no_letter_where_the_oldest_ones_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut queue_limits = LIMITS;
    queue_limits.dead_letters_max = 1;
    let engine = Engine::open(Config {
        queue_limits,
        ..Config::new(directory.path())
    });
    let engine = engine.expect("the store opens");
    engine
        .create("work", QueueOptions::default())
        .await
        .expect("create answers");
    let message = |group| Message {
        group: Bytes::from_static(group),
        deduplication: None,
        body: Bytes::new(),
    };
    engine
        .send("work", vec![message(b"first"), message(b"second")])
        .await
        .expect("send answers");
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
    // As the store remembers which walks have met damage.
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
