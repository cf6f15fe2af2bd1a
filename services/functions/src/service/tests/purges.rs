//! Removals of messages and dead letters whose caller leaves.

use ports::queue::{Message, QueueOptions};

use super::*;

async fn backlog(world: &World, queue: &str) -> Backlog {
    let backlog = world.queue_admin().backlog(queue).await;
    backlog.expect("it is read")
}

/// It held its messages back for a while, and left the others in the queue.
#[test]
fn a_purge_whose_caller_leaves_runs_to_its_end() {
    run(async {
        let world = far_world(1);
        let (service, queue, clock) = (service(&world).0, world.queue(), world.clock());
        let created = queue.create("orders", QueueOptions::default()).await;
        created.expect("it is there");
        for number in 0..2 * queue.limits().batch_messages_max {
            let message = Message {
                group: number.to_string().into(),
                deduplication: None,
                body: "m".into(),
            };
            queue.send("orders", vec![message]).await.expect("sent");
        }
        tokio::select! {
            biased;
            purged = service.purge_queue("orders") => panic!("no caller left: {purged:?}"),
            // It has read the backlog and asks for messages.
            () = clock.sleep(TRAVEL * 3) => {}
        }
        clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(backlog(&world, "orders").await.messages, 0);
    });
}

/// One batch was removed, and the others stayed.
#[test]
fn a_removal_of_dead_letters_whose_caller_leaves_runs_to_its_end() {
    run(async {
        let world = far_world(1);
        let ((service, runtime), clock) = (service(&world), world.clock());
        let archive = String::from_utf8(archive("one").into()).expect("text");
        let archive = Bytes::from(format!("{archive}\nretries = 0"));
        service.deploy("shop", archive).await.expect("deployed");
        let count = 2 * world.queue().limits().batch_messages_max;
        for _ in 0..count {
            service.send("one", "{}".into()).await.expect("sent");
        }
        clock.sleep(Duration::from_hours(1)).await;
        assert_eq!(runtime.asked(), count);
        let queue = service.context.event_queue("one");
        assert_eq!(backlog(&world, &queue).await.dead_letters, count as u64);
        tokio::select! {
            biased;
            purged = service.purge("one", None) => panic!("no caller left: {purged:?}"),
            () = clock.sleep(TRAVEL) => {}
        }
        clock.sleep(Duration::from_mins(1)).await;
        assert_eq!(backlog(&world, &queue).await.dead_letters, 0);
    });
}
