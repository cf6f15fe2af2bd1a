//! Dead letters: Q13.

use super::{LONG_MS, Line, Subject, bodies, message, text};
use crate::{
    ErrorKind,
    queue::{Backlog, DeadLetter, LetterId, Message, OnFailure, QueueOptions, Retention},
};

impl Line<'_> {
    /// Sends these messages and gives each up, in this order.
    async fn bury(&self, letters: &[&str]) {
        for body in letters {
            self.send(body, &[body]).await;
            let delivery = self.one().await;
            self.give_up(&delivery, "on purpose").await;
        }
    }

    async fn letters(&self, after: Option<LetterId>, letters_max: usize) -> Vec<DeadLetter> {
        let letters = self
            .subject
            .admin
            .dead_letters(self.queue, after, letters_max)
            .await;
        letters.expect("dead_letters answers")
    }

    async fn redrive(&self, letters: &[LetterId]) {
        self.subject
            .admin
            .redrive(self.queue, letters)
            .await
            .expect("redrive answers");
    }

    async fn purge(&self, letters: &[LetterId]) {
        self.subject
            .admin
            .purge(self.queue, letters)
            .await
            .expect("purge answers");
    }

    async fn holds(&self, messages: u64, dead_letters: u64) {
        let backlog = self
            .subject
            .admin
            .backlog(self.queue)
            .await
            .expect("backlog answers");
        assert_eq!(
            backlog,
            Backlog {
                messages,
                dead_letters
            }
        );
    }
}

impl Subject {
    async fn burying(&self, queue: &'static str, retention: Retention) -> Line<'_> {
        let options = QueueOptions {
            visibility_timeout_ms: LONG_MS,
            attempts_max: u32::MAX,
            on_failure: OnFailure::DeadLetter,
            retention,
        };
        self.create(queue, options).await
    }
}

fn said(letters: &[DeadLetter]) -> Vec<&str> {
    letters.iter().map(|letter| text(&letter.body)).collect()
}

fn ids(letters: &[DeadLetter]) -> Vec<LetterId> {
    letters.iter().map(|letter| letter.id).collect()
}

/// Q13.
pub(super) async fn a_page_of_dead_letters_starts_after_any_of_them(subject: Subject) {
    let line = subject.burying("paged", Retention::Durable).await;
    line.bury(&["d", "b", "c", "a"]).await;
    let mut read = Vec::new();
    for _ in 0..3 {
        read.extend(
            line.letters(read.last().map(|letter: &DeadLetter| letter.id), 3)
                .await,
        );
    }
    assert_eq!(said(&read), ["d", "b", "c", "a"]);
    assert_eq!(said(&line.letters(Some(read[1].id), 1).await), ["c"]);
    assert!(line.letters(None, 0).await.is_empty());
}

/// Q13. Letters are ordered as they were given up, and not as they were sent.
pub(super) async fn a_page_of_dead_letters_starts_after_one_that_is_gone(subject: Subject) {
    let line = subject.burying("paged-on", Retention::Durable).await;
    line.bury(&["oldest"]).await;
    for group in ["a", "b", "c"] {
        line.send(group, &[group]).await;
    }
    let given = [line.one().await, line.one().await, line.one().await];
    let order: Vec<_> = [1, 2, 0]
        .map(|place: usize| text(&given[place].body).to_owned())
        .into();
    for place in [1, 2, 0] {
        line.give_up(&given[place], "on purpose").await;
    }
    let letters = line.letters(None, 10).await;
    assert_eq!(said(&letters)[1..], order);
    assert!(letters.is_sorted_by_key(|letter| letter.id), "{letters:?}");
    line.purge(&[letters[1].id]).await;
    line.redrive(&[letters[2].id]).await;
    for gone in [1, 2] {
        assert_eq!(line.letters(Some(letters[gone].id), 10).await, letters[3..]);
    }
    let before = LetterId(letters[3].id.0 - 1);
    assert_eq!(line.letters(Some(before), 10).await, letters[3..]);
    line.purge(&[letters[3].id]).await;
    assert_eq!(line.letters(Some(letters[3].id), 10).await, []);
}

/// Q13, Q4, Q8: in durable and in transient queues.
pub(super) async fn a_letter_that_is_redriven_is_a_message_again_and_no_letter(subject: Subject) {
    for (name, retention) in [
        ("redriven", Retention::Durable),
        ("redriven-in-memory", Retention::Transient),
    ] {
        let line = subject.burying(name, retention).await;
        let named = Message {
            deduplication: Some("its-id".into()),
            ..message("group", "hopeless")
        };
        subject
            .queue
            .send(name, vec![named.clone()])
            .await
            .expect("send answers");
        line.send("group", &["behind"]).await;
        line.give_up(&line.one().await, "it cannot be helped").await;
        let letters = line.letters(None, 10).await;
        assert_eq!(
            (said(&letters), &letters[0].deduplication),
            (vec!["hopeless"], &named.deduplication)
        );
        // Twice in one call, and once more: a caller without a response repeats the call.
        line.redrive(&[letters[0].id, letters[0].id]).await;
        line.redrive(&ids(&letters)).await;
        line.holds(2, 0).await;
        assert_eq!(line.letters(None, 10).await, []);
        let given = line.next(2).await;
        assert_eq!(bodies(&given), ["behind", "hopeless"], "{retention:?}");
        let again = &given[1];
        assert_eq!(
            (again.handle.attempt, again.failures),
            (1, 0),
            "it has not been tried"
        );
        assert_eq!(again.deduplication, named.deduplication, "{retention:?}");
        line.acknowledge(&given).await;
        line.holds(0, 0).await;
    }
}

/// Q13.
pub(super) async fn purging_removes_the_named_letters_and_no_others(subject: Subject) {
    let line = subject.burying("purged", Retention::Durable).await;
    line.bury(&["a", "b", "c"]).await;
    let letters = line.letters(None, 10).await;
    line.purge(&[letters[1].id]).await;
    line.purge(&[letters[1].id, letters[0].id]).await;
    line.redrive(&[letters[1].id]).await;
    line.holds(0, 1).await;
    assert_eq!(line.letters(None, 10).await, letters[2..]);
}

/// Q13.
pub(super) async fn the_newest_dead_letters_are_kept(subject: Subject) {
    let most = subject.queue.limits().dead_letters_max;
    assert!(
        most <= 100,
        "a case cannot reach a bound of {most}: open the store with a lower one"
    );
    let line = subject.burying("bounded", Retention::Durable).await;
    let sent: Vec<String> = (0..most + 3).map(|number| format!("{number:03}")).collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    line.bury(&sent).await;
    line.holds(0, most as u64).await;
    assert_eq!(said(&line.letters(None, 2 * most).await), sent[3..]);
}

/// Q13.
pub(super) async fn letters_of_an_unknown_queue_and_too_many_letters_are_refused(subject: Subject) {
    subject.burying("few", Retention::Durable).await;
    let too_many = vec![LetterId(1); subject.queue.limits().batch_messages_max + 1];
    for (queue, letters) in [("unknown", &too_many[..1]), ("few", &too_many)] {
        for refused in [
            subject.admin.redrive(queue, letters).await,
            subject.admin.purge(queue, letters).await,
        ] {
            let refused = refused.expect_err("it is refused");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        }
    }
    subject
        .admin
        .purge("few", &too_many[1..])
        .await
        .expect("as many as may be");
}
