//! Functions with room for a limited number of events: N7.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Notes, Subject};
use crate::{
    Clock, Event, Handler,
    functions::{Definition, Failure, FunctionOptions, Permit, QueueTrigger},
    queue::{Message, OnFailure, QueueOptions},
};

/// A timeout shorter than the wait for forbidden effects.
const OPTIONS: FunctionOptions = FunctionOptions {
    timeout: Duration::from_millis(100),
    attempts_max: 1,
    exception_handler: None,
    retry_delay_max: Duration::from_secs(30),
};

/// Has room once it is open, and notes whether it received the room that it reserved.
struct Roomy {
    is_open: Arc<AtomicBool>,
    notes: Notes<bool>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Roomy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Roomy")
    }
}

/// The value by which it reserves room.
struct Kept;

#[async_trait]
impl Handler for Roomy {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.handle_with(Permit::default(), event).await
    }

    async fn permit(&self) -> Permit {
        while !self.is_open.load(Ordering::SeqCst) {
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        Permit::holding(Kept)
    }

    async fn handle_with(&self, permit: Permit, _: Event) -> Result<Bytes, Failure> {
        self.notes.add(permit.into_held::<Kept>().is_some());
        Ok(Bytes::new())
    }
}

/// A function without room, a way to open it, and its notes.
fn roomy(subject: &Subject, name: &'static str) -> (Arc<AtomicBool>, Notes<bool>) {
    let (is_open, notes) = (Arc::<AtomicBool>::default(), Notes::new());
    let handler = Roomy {
        is_open: Arc::clone(&is_open),
        notes: notes.clone(),
        clock: Arc::clone(&subject.clock),
    };
    subject.register.register(Definition {
        name: name.into(),
        options: OPTIONS,
        handler: Arc::new(handler),
    });
    (is_open, notes)
}

/// N7: the event stays in its queue for any consumer.
pub(super) async fn nothing_is_taken_for_a_function_before_it_has_room(subject: Subject) {
    let (is_open, notes) = roomy(&subject, "full");
    let options = QueueOptions {
        attempts_max: 2,
        on_failure: OnFailure::DeadLetter,
        ..QueueOptions::default()
    };
    subject
        .queue
        .create("waiting", options)
        .await
        .expect("create answers");
    let trigger = QueueTrigger {
        queue: "waiting".into(),
        function: "full".into(),
        batch_messages_max: 1,
        groups_max: 1,
    };
    subject
        .functions
        .arm_queue(trigger)
        .await
        .expect("arm_queue answers");
    let message = Message {
        group: "group".into(),
        deduplication: None,
        body: Bytes::new(),
    };
    subject
        .queue
        .send("waiting", vec![message])
        .await
        .expect("send answers");
    subject.a_while().await;
    assert!(notes.all().is_empty(), "it has no room");
    let taken = subject
        .queue
        .receive("waiting", 1)
        .await
        .expect("receive answers");
    assert_eq!(
        taken.first().map(|delivery| delivery.handle.attempt),
        Some(1),
        "no function had it"
    );
    subject
        .queue
        .release("waiting", &taken[0].handle, 0, "given back")
        .await
        .expect("release answers");
    is_open.store(true, Ordering::SeqCst);
    assert_eq!(
        subject.noted("the message, in its room", &notes, 1).await,
        [true]
    );
}

/// N7: nor has it timed out.
pub(super) async fn an_event_that_waits_for_room_has_not_been_tried(subject: Subject) {
    let (is_open, notes) = roomy(&subject, "full of events");
    subject
        .functions
        .send("full of events", None, Bytes::new())
        .await
        .expect("send answers");
    subject.a_while().await;
    assert!(notes.all().is_empty(), "it has no room");
    is_open.store(true, Ordering::SeqCst);
    assert_eq!(
        subject
            .noted("its only attempt, in its room", &notes, 1)
            .await,
        [true]
    );
}
