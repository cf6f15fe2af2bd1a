//! The ids of messages, from the journal and from a checkpoint, and gone with their messages.

use bytes::Bytes;
use embedded::Embedded;
use ports::queue::{Message, QueueOptions};

use crate::world::{block_on, directory, message, open, settle};

fn named(group: &str, id: &'static str) -> Message {
    Message { deduplication: Some(Bytes::from_static(id.as_bytes())), ..message(group, id) }
}

/// Takes all messages of the next group.
async fn next(store: &Embedded) -> (Vec<ports::queue::Handle>, Vec<(Option<Bytes>, Bytes)>) {
    let taken = store.queue().receive("work", 10).await.expect("receive answers");
    taken.into_iter().map(|delivery| (delivery.handle, (delivery.deduplication, delivery.body))).unzip()
}

/// Q8, over restarts.
#[test]
fn messages_keep_their_ids_over_restarts_and_take_them_along_when_they_go() {
    let directory = directory();
    block_on(async {
        let options = QueueOptions { attempts_max: 1, ..QueueOptions::default() };
        let store = open(directory.path()).await;
        store.queue().create("work", options).await.expect("create answers");
        store.queue().send("work", vec![named("group", "checkpointed")]).await.expect("send answers");
        store.close().await;
        drop(store);
        let store = open(directory.path()).await;
        let messages =
            vec![message("group", "nameless"), named("group", "journaled"), named("other", "failing")];
        store.queue().send("work", messages).await.expect("send answers");
        settle(&store.key_value()).await;
        drop(store);

        let store = open(directory.path()).await;
        let (handles, taken) = next(&store).await;
        let named = |id: &'static str| (Some(Bytes::from(id)), Bytes::from(id));
        assert_eq!(taken, [named("checkpointed"), (None, Bytes::from("nameless")), named("journaled")]);
        store.queue().acknowledge("work", &handles).await.expect("acknowledge answers");
        let (failing, taken) = next(&store).await;
        assert_eq!(taken, [named("failing")]);
        store.queue().release("work", &failing[0], 0, "it fails").await.expect("release answers");
        settle(&store.key_value()).await;
        drop(store);

        // An id without its message would not open.
        let store = open(directory.path()).await;
        assert!(next(&store).await.0.is_empty());
        assert_eq!(store.queue().dead_letters("work", 10).await.expect("it answers").len(), 1);
    });
}
