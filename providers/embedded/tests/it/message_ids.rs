//! The ids of messages are read from the journal and from a checkpoint, and are removed with their
//! messages.

use std::{
    hint,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use embedded::Embedded;
use ports::queue::{Message, QueueOptions};

use crate::world::{block_on, config, directory, message, open, settle};

fn named(group: &str, id: &'static str) -> Message {
    Message {
        deduplication: Some(Bytes::from_static(id.as_bytes())),
        ..message(group, id)
    }
}

/// Receives all messages of the next group.
async fn next(store: &Embedded) -> (Vec<ports::queue::Handle>, Vec<(Option<Bytes>, Bytes)>) {
    let taken = store
        .queue()
        .receive("work", 10)
        .await
        .expect("receive answers");
    taken
        .into_iter()
        .map(|delivery| (delivery.handle, (delivery.deduplication, delivery.body)))
        .unzip()
}

/// Leaves a message in a checkpoint, and three in the journal, in two groups.
async fn leave_messages(directory: &Path) {
    let options = QueueOptions {
        attempts_max: 1,
        ..QueueOptions::default()
    };
    let store = open(directory).await;
    store
        .queue()
        .create("work", options)
        .await
        .expect("create answers");
    store
        .queue()
        .send("work", vec![named("group", "checkpointed")])
        .await
        .expect("send answers");
    store.close().await;
    drop(store);
    let store = open(directory).await;
    let messages = vec![
        message("group", "nameless"),
        named("group", "journaled"),
        named("other", "failing"),
    ];
    store
        .queue()
        .send("work", messages)
        .await
        .expect("send answers");
    settle(&store.key_value()).await;
    drop(store);
}

/// Q8, across restarts.
#[test]
fn messages_keep_their_ids_across_restarts_and_ids_are_removed_with_them() {
    let directory = directory();
    block_on(async {
        leave_messages(directory.path()).await;
        let store = open(directory.path()).await;
        let (handles, taken) = next(&store).await;
        let named = |id: &'static str| (Some(Bytes::from(id)), Bytes::from(id));
        assert_eq!(
            taken,
            [
                named("checkpointed"),
                (None, Bytes::from("nameless")),
                named("journaled")
            ]
        );
        store
            .queue()
            .acknowledge("work", &handles)
            .await
            .expect("acknowledge answers");
        let (failing, taken) = next(&store).await;
        assert_eq!(taken, [named("failing")]);
        store
            .queue()
            .release("work", &failing[0], 0, "it fails")
            .await
            .expect("release answers");
        settle(&store.key_value()).await;
        drop(store);

        // The store would not open with an id without a message.
        let store = open(directory.path()).await;
        assert!(next(&store).await.0.is_empty());
        assert_eq!(
            store
                .queue_admin()
                .dead_letters("work", None, 10)
                .await
                .expect("it answers")
                .len(),
            1
        );
    });
}

/// P6: a send needs room for its removals as for its additions.
#[test]
fn a_send_reserves_room_for_the_ids_that_it_removes() {
    let directory = directory();
    block_on(async {
        let mut config = config(directory.path());
        config.queue_limits.deduplication_window_ms = 1;
        let store = Embedded::open(config).await.expect("it opens");
        store
            .queue()
            .create("work", QueueOptions::default())
            .await
            .expect("create answers");
        let long = |number: usize| Message {
            deduplication: Some(Bytes::from(format!("{number:0>160}"))),
            ..message("group", "body")
        };
        let sent = store
            .queue()
            .send("work", (0..256).map(long).collect())
            .await
            .expect("send answers");
        store
            .queue()
            .externalize(sent.point)
            .await
            .expect("it is durable");
        let window = Instant::now();
        while window.elapsed() < Duration::from_millis(2) {
            hint::spin_loop();
        }
        let more = store
            .queue()
            .send("work", vec![long(256)])
            .await
            .expect("send answers");
        store
            .queue()
            .externalize(more.point)
            .await
            .expect("the journal goes on");
    });
}
