//! Dead letters that an earlier release has buried: they have no number.

use bytes::Bytes;
use ports::queue::{Message, QueueOptions};
use redis_provider::Config;

use crate::{
    server::shared,
    world::{block_on, namespace, open},
};

/// Q13: they are numbered at the next start, in their order, and each is found by its name.
#[test]
fn letters_of_an_earlier_release_are_read_on_behind_one_that_is_gone() {
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
        // They do not lie as they were sent.
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
