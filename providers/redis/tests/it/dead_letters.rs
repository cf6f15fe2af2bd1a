//! Dead letters of an earlier release, which have no number.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Queue, QueueAdmin,
    queue::{Message, QueueOptions},
};
use redis_provider::Config;

use crate::{
    fixture::{block_on, namespace, open},
    server::{Server, shared},
};

/// Moves the messages `a`, `b` and `c` to the dead letters, and removes their numbers.
async fn bury_without_numbers(
    server: &Server,
    config: &Config,
    queue: &Arc<dyn Queue>,
    admin: &Arc<dyn QueueAdmin>,
) {
    let mut given = Vec::new();
    for body in ["c", "b", "a"] {
        let message = Message {
            group: body.into(),
            deduplication: None,
            body: Bytes::from(body),
        };
        queue
            .send("old", vec![message])
            .await
            .expect("send answers");
        given.extend(queue.receive("old", 1).await.expect("receive answers"));
    }
    // The dead letters lie in another order than the messages were sent.
    for delivery in given.iter().rev() {
        queue
            .give_up("old", &delivery.handle, "on purpose")
            .await
            .expect("give_up answers");
    }
    for letter in admin
        .dead_letters("old", None, 10)
        .await
        .expect("dead_letters answers")
    {
        let messages = format!("{}{{qold}}m", config.namespace);
        let number = format!("d{:016}", letter.sequence.0);
        assert_eq!(
            server.tell::<u64>(&["HDEL", &messages, &number]),
            1,
            "as if it had none"
        );
    }
}

/// Q13: the next start numbers them in their order, and each is found by its id.
#[test]
fn dead_letters_of_an_earlier_release_are_read_on_after_a_removed_one() {
    let server = shared();
    block_on(async {
        let config = Config {
            namespace: namespace(),
            ..Config::single(server.url())
        };
        let store = open(&config).await;
        let (queue, admin) = (store.queue(), store.queue_admin());
        queue
            .create("old", QueueOptions::default())
            .await
            .expect("create answers");
        bury_without_numbers(&server, &config, &queue, &admin).await;
        queue
            .create("old", QueueOptions::default())
            .await
            .expect("create answers");
        let letters = admin
            .dead_letters("old", None, 10)
            .await
            .expect("dead_letters answers");
        assert_eq!(
            letters
                .iter()
                .map(|letter| &letter.body[..])
                .collect::<Vec<_>>(),
            [b"a", b"b", b"c"]
        );
        assert!(
            letters.is_sorted_by(|one, next| one.id < next.id),
            "{letters:?}"
        );
        admin
            .purge("old", &[letters[1].id])
            .await
            .expect("purge answers");
        let behind = admin
            .dead_letters("old", Some(letters[1].id), 10)
            .await
            .expect("dead_letters answers");
        assert_eq!(behind, letters[2..]);
    });
}
