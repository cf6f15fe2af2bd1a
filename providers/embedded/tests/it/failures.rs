//! Failures of messages are counted from the journal and from a checkpoint (rule P1).

use ports::queue::{Delivery, OnFailure, QueueOptions};

use crate::world::{block_on, directory, message, open, settle};

async fn next(store: &embedded::Embedded) -> Delivery {
    store
        .queue()
        .receive("work", 1)
        .await
        .expect("receive answers")
        .remove(0)
}

/// Q3, Q5: a message that fails once in each start of the store fails permanently after its last
/// attempt.
#[test]
fn failures_add_up_across_restarts() {
    let directory = directory();
    block_on(async {
        let options = QueueOptions {
            attempts_max: 4,
            on_failure: OnFailure::DeadLetter,
            ..QueueOptions::default()
        };
        let store = open(directory.path()).await;
        store
            .queue()
            .create("work", options)
            .await
            .expect("create answers");
        store
            .queue()
            .send("work", vec![message("group", "poison")])
            .await
            .expect("send answers");
        store.close().await;
        for start in 1..=4 {
            let store = open(directory.path()).await;
            let delivery = next(&store).await;
            assert_eq!(
                delivery.handle.attempt, start,
                "deliveries before it have failed"
            );
            let reason = format!("failure {start}");
            store
                .queue()
                .release("work", &delivery.handle, 0, &reason)
                .await
                .expect("release answers");
            settle(&store.key_value()).await;
            if start % 2 == 0 {
                // An orderly close makes a checkpoint. Otherwise the journal alone has the failure.
                store.close().await;
            }
        }
        let store = open(directory.path()).await;
        assert!(
            store
                .queue()
                .receive("work", 1)
                .await
                .expect("receive answers")
                .is_empty()
        );
        let letters = store
            .queue_admin()
            .dead_letters("work", None, 10)
            .await
            .expect("it answers");
        let reported: Vec<_> = letters
            .iter()
            .map(|letter| (letter.attempts, letter.reason.as_str()))
            .collect();
        assert_eq!(reported, [(4, "failure 4")]);
    });
}

/// Q5: a blocked group stays blocked across a restart.
#[test]
fn a_blocked_group_stays_blocked_across_a_restart() {
    let directory = directory();
    block_on(async {
        let options = QueueOptions {
            attempts_max: 1,
            on_failure: OnFailure::Block,
            ..QueueOptions::default()
        };
        let store = open(directory.path()).await;
        store
            .queue()
            .create("work", options)
            .await
            .expect("create answers");
        store
            .queue()
            .send("work", vec![message("group", "poison")])
            .await
            .expect("send answers");
        let delivery = next(&store).await;
        store
            .queue()
            .release("work", &delivery.handle, 0, "it fails")
            .await
            .expect("release answers");
        settle(&store.key_value()).await;
        drop(store);
        let store = open(directory.path()).await;
        let blocked = store
            .queue_admin()
            .blocked("work")
            .await
            .expect("it answers");
        let reported: Vec<_> = blocked
            .iter()
            .map(|letter| (letter.attempts, letter.reason.as_str()))
            .collect();
        assert_eq!(reported, [(1, "it fails")]);
        let delivery = next(&store).await;
        store
            .queue()
            .acknowledge("work", &[delivery.handle])
            .await
            .expect("acknowledge answers");
        settle(&store.key_value()).await;
        drop(store);
        let store = open(directory.path()).await;
        assert!(
            store
                .queue_admin()
                .blocked("work")
                .await
                .expect("it answers")
                .is_empty(),
            "it goes with its message"
        );
    });
}
