//! The cases of [`Queue`](crate::Queue), one module per promise or few.
//!
//! One of them, `a_deduplication_id_is_forgotten_when_its_window_is_over`, waits for the
//! deduplication window on the subject's clock. A provider in real time opens its subject with a
//! short window for it.

mod failures;
mod groups;
mod letters;
mod redelivery;
mod sending;

use std::sync::Arc;

use bytes::Bytes;

use super::{Case, LOOK_AGAIN, PATIENCE, Spawn, eventually, in_place, together, within};
use crate::{
    Clock,
    key_value::SharedKeyValue,
    queue::{
        DeadLetter, Delivery, Handle, Message, OnFailure, QueueOptions, SharedQueue,
        SharedQueueAdmin,
    },
};

/// Fresh queues, and further parts that the cases need.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The queues under test.
    pub queue: SharedQueue,
    /// Their administration.
    pub admin: SharedQueueAdmin,
    /// The key-value store of the same provider, if they share a journal (Q7).
    pub key_value: Option<SharedKeyValue>,
    /// The clock that the cases wait on.
    pub clock: Arc<dyn Clock>,
    /// How they run consumers concurrently.
    pub spawn: Spawn,
}

/// A visibility timeout that no case waits for.
const LONG_MS: u64 = 60_000;

/// A visibility timeout that cases do wait for.
const SHORT_MS: u64 = 150;

/// A visibility timeout within which cases act, and for which they wait.
const USED_MS: u64 = 2_000;

/// The tolerance when a case measures how long a message was hidden.
const GRAIN_MS: u64 = 5;

impl Subject {
    /// A subject whose concurrent consumers run on one thread.
    pub fn new(queue: SharedQueue, admin: SharedQueueAdmin, clock: Arc<dyn Clock>) -> Self {
        Self {
            queue,
            admin,
            key_value: None,
            clock,
            spawn: in_place,
        }
    }

    /// The same with concurrent consumers run by `spawn`.
    pub fn spawning(mut self, spawn: Spawn) -> Self {
        self.spawn = spawn;
        self
    }

    /// The same with the provider's key-value store.
    pub fn beside(mut self, key_value: SharedKeyValue) -> Self {
        self.key_value = Some(key_value);
        self
    }

    async fn create(&self, queue: &'static str, options: QueueOptions) -> Line<'_> {
        self.queue
            .create(queue, options)
            .await
            .expect("create answers");
        Line {
            subject: self,
            queue,
        }
    }

    /// A queue that hides deliveries for `visibility_timeout_ms` and in which messages never fail
    /// permanently.
    async fn patient(&self, queue: &'static str, visibility_timeout_ms: u64) -> Line<'_> {
        let options = QueueOptions {
            visibility_timeout_ms,
            attempts_max: 1_000,
            on_failure: OnFailure::Block,
            ..QueueOptions::default()
        };
        self.create(queue, options).await
    }

    async fn together<T, F>(&self, tasks: impl IntoIterator<Item = F>) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        together(self.spawn, tasks).await
    }
}

/// One queue of a subject.
#[derive(Debug, Clone, Copy)]
struct Line<'subject> {
    subject: &'subject Subject,
    queue: &'static str,
}

impl Line<'_> {
    async fn send(&self, group: &str, bodies: &[&str]) {
        let messages = bodies.iter().map(|body| message(group, body)).collect();
        self.subject
            .queue
            .send(self.queue, messages)
            .await
            .expect("send answers");
    }

    async fn receive(&self, messages_max: usize) -> Vec<Delivery> {
        self.subject
            .queue
            .receive(self.queue, messages_max)
            .await
            .expect("receive answers")
    }

    /// The next messages. Waits as consumers do, by [`Queue::ready`](crate::Queue::ready).
    async fn next(&self, messages_max: usize) -> Vec<Delivery> {
        let wait = async {
            loop {
                let deliveries = self.receive(messages_max).await;
                if !deliveries.is_empty() {
                    return deliveries;
                }
                self.subject
                    .queue
                    .ready(self.queue)
                    .await
                    .expect("ready answers");
                self.subject.clock.sleep(LOOK_AGAIN / 2).await;
            }
        };
        within(
            &*self.subject.clock,
            &format!("a message of {:?}", self.queue),
            wait,
        )
        .await
    }

    /// The next message alone.
    async fn one(&self) -> Delivery {
        self.next(1).await.pop().expect("next waits for one")
    }

    async fn nothing(&self, why: &str) {
        let deliveries = self.receive(10).await;
        assert!(deliveries.is_empty(), "{why}: {deliveries:?}");
    }

    async fn acknowledge(&self, deliveries: &[Delivery]) {
        let handles: Vec<Handle> = deliveries
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        self.subject
            .queue
            .acknowledge(self.queue, &handles)
            .await
            .expect("acknowledge answers");
    }

    async fn release(&self, delivery: &Delivery, delay_ms: u64, reason: &str) {
        let handle = &delivery.handle;
        self.subject
            .queue
            .release(self.queue, handle, delay_ms, reason)
            .await
            .expect("release answers");
    }

    async fn give_up(&self, delivery: &Delivery, reason: &str) {
        let handle = &delivery.handle;
        self.subject
            .queue
            .give_up(self.queue, handle, reason)
            .await
            .expect("give_up answers");
    }

    async fn extend(&self, delivery: &Delivery, timeout_ms: u64) {
        self.subject
            .queue
            .extend(self.queue, &delivery.handle, timeout_ms)
            .await
            .expect("extend answers");
    }

    /// The dead letters once there are `count` of them.
    async fn dead_letters(&self, count: usize) -> Vec<DeadLetter> {
        eventually(&*self.subject.clock, "a dead letter", async || {
            let letters = self.subject.admin.dead_letters(self.queue, None, 100).await;
            let letters = letters.expect("dead_letters answers");
            (letters.len() >= count).then_some(letters)
        })
        .await
    }

    async fn waiting(&self, messages_max: usize) -> Vec<DeadLetter> {
        let waiting = self.subject.admin.waiting(self.queue, messages_max);
        waiting.await.expect("waiting answers")
    }

    async fn blocked(&self) -> Vec<DeadLetter> {
        self.subject
            .admin
            .blocked(self.queue)
            .await
            .expect("blocked answers")
    }
}

fn message(group: &str, body: &str) -> Message {
    Message {
        group: Bytes::copy_from_slice(group.as_bytes()),
        deduplication: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).expect("the cases send text")
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries
        .iter()
        .map(|delivery| text(&delivery.body))
        .collect()
}

fn attempts(deliveries: &[Delivery]) -> Vec<u32> {
    deliveries
        .iter()
        .map(|delivery| delivery.handle.attempt)
        .collect()
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::queue_contract!(@list);

/// One test per case of the queue contract; `run` takes a
/// [`Case<contract::queue::Subject>`](crate::contract::Case) and runs it on fresh queues.
#[macro_export]
macro_rules! queue_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] queue {
            groups {
                "Q1" a_group_is_delivered_in_the_order_it_was_sent,
                "Q1" a_batch_holds_messages_of_one_group,
                "Q1" a_group_with_a_consumer_is_given_to_no_other,
                "Q1" a_stale_release_does_not_set_the_group_free,
                "Q1" consumers_that_fail_now_and_then_keep_every_groups_order,
                "Q2" groups_do_not_wait_for_each_other,
                "Q2" groups_are_served_in_turn,
            }
            redelivery {
                "Q1" order_survives_a_redelivery_of_all_but_the_middle,
                "Q3" a_message_not_acknowledged_in_time_is_delivered_again,
                "Q3" a_released_message_is_delivered_again_with_all_after_it,
                "Q3" a_release_with_a_delay_hides_the_group_for_so_long,
                "Q3" an_extended_delivery_stays_hidden_with_its_batch,
                "Q3" a_consumer_may_hide_its_batch_for_a_time_of_its_own,
                "Q3" an_acknowledged_message_never_comes_back,
                "Q3" ready_wakes_for_a_send_a_release_and_a_timeout,
                "Q6" a_stale_handle_acknowledges_nothing,
            }
            sending {
                "Q3" a_send_beyond_the_limits_is_refused_and_nothing_of_it_sent,
                "Q3" a_queue_made_again_keeps_its_messages_and_takes_the_new_options,
                "Q4" messages_with_one_deduplication_id_are_one,
                "Q4" a_deduplication_id_is_remembered_after_its_message_is_done,
                "Q4" a_deduplication_id_is_forgotten_when_its_window_is_over,
                "Q7" one_point_covers_queue_and_store_where_they_share_a_journal,
                "Q8" every_delivery_carries_the_id_its_message_was_sent_with,
            }
            failures {
                "Q5" a_message_that_fails_too_often_is_a_dead_letter_with_its_reason,
                "Q5" a_message_that_times_out_too_often_is_a_dead_letter_too,
                "Q5" no_message_is_given_up_for_another_of_its_batch,
                "Q5" dead_letters_are_listed_oldest_first,
                "Q5" a_message_that_blocks_its_group_raises_an_alarm_until_it_succeeds,
                "Q5" a_blocked_group_does_not_block_the_others,
                "Q10" a_backlog_counts_what_waits_and_what_was_given_up,
                "Q14" what_waits_is_shown_in_the_order_of_its_groups_and_not_delivered,
                "Q11" a_message_given_up_is_a_dead_letter_at_once,
                "Q11" a_stale_handle_gives_nothing_up,
                "Q12" a_delivery_counts_failures_of_its_message_and_not_of_those_before_it,
            }
            letters {
                "Q13" a_page_of_dead_letters_starts_after_any_of_them,
                "Q13" a_letter_that_is_redriven_is_a_message_again_and_no_letter,
                "Q13" a_page_of_dead_letters_starts_after_one_that_is_gone,
                "Q13" purging_removes_the_named_letters_and_no_others,
                "Q13" the_newest_dead_letters_are_kept,
                "Q13" letters_of_an_unknown_queue_and_too_many_letters_are_refused,
            }
        } }
    };
}
