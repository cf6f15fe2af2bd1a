//! The event queue of a client: answers and events that the tail delivers to it, in order.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

use crate::{
    Error,
    backlog::Backlog,
    model::{EventKind, Zxid},
    path,
    records::Answer,
};

/// A client whose queue reaches this many bytes is disconnected. It reconnects and sets its watches
/// again. The bound is about 50,000 events with short paths.
const LETTER_BYTES_MAX: usize = 8 << 20;

/// A delivery to a client.
#[derive(Debug)]
pub(crate) enum Letter {
    /// One of the client's updates was applied or refused.
    Answer {
        /// The zxid of the update.
        zxid: Zxid,
        /// The number of the request.
        request: u64,
        /// The result.
        answer: Result<Answer, Error>,
    },
    /// One of the client's watches fired.
    Event {
        /// The zxid of the change.
        zxid: Zxid,
        /// The kind of change.
        kind: EventKind,
        /// The znode.
        path: String,
    },
    /// The session has expired.
    Expired,
    /// Another connection acts for the session.
    Moved,
    /// This process has lost its position in the log.
    LostPlace,
    /// The queue reached its bound.
    Overflow,
}

impl Letter {
    /// The zxid of the delivery, or `None` if the connection ends with it.
    fn zxid(&self) -> Option<Zxid> {
        match self {
            Self::Answer { zxid, .. } | Self::Event { zxid, .. } => Some(*zxid),
            Self::Expired | Self::Moved | Self::LostPlace | Self::Overflow => None,
        }
    }

    fn bytes_len(&self) -> usize {
        match self {
            Self::Answer {
                answer: Ok(Answer::Created { path, .. }),
                ..
            }
            | Self::Event { path, .. } => path.len(),
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Letters {
    waiting: Backlog<Letter>,
    has_overflown: bool,
}

/// The queue of one client.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    arrived: Notify,
    is_eager: AtomicBool,
}

impl Mailbox {
    /// Appends an event. The client sees it after the next [`Mailbox::wake`].
    pub(crate) fn put(&self, letter: Letter) {
        let mut letters = self
            .letters
            .lock()
            .expect("no panic while the queue is locked");
        if letters.has_overflown {
            return;
        }
        letters.has_overflown = letters.waiting.bytes() >= LETTER_BYTES_MAX;
        let letter = if letters.has_overflown {
            Letter::Overflow
        } else {
            letter
        };
        letters.waiting.push_back(letter.bytes_len(), letter);
    }

    /// Inserts an event at its zxid, unless it is queued already. The client asked for this event
    /// after it had happened. As in ZooKeeper, the event of a znode precedes that of its parent.
    pub(crate) fn put_late(&self, zxid: Zxid, kind: EventKind, path: &str) {
        let mut letters = self
            .letters
            .lock()
            .expect("no panic while the queue is locked");
        let is_it = |letter: &Letter| matches!(letter, Letter::Event { zxid: of, kind: what, path: at } if (*of, *what, at.as_str()) == (zxid, kind, path));
        if letters.has_overflown || letters.waiting.iter().any(is_it) {
            return;
        }
        let parent = path::split(path).map(|(parent, _)| parent);
        let is_of_parent = |letter: &Letter| matches!(letter, Letter::Event { zxid: of, kind: EventKind::NodeChildrenChanged, path } if *of == zxid && kind != EventKind::NodeChildrenChanged && Some(path.as_str()) == parent);
        let is_later =
            |letter: &Letter| letter.zxid().is_none_or(|of| of > zxid) || is_of_parent(letter);
        let place = letters
            .waiting
            .iter()
            .position(is_later)
            .unwrap_or(letters.waiting.len());
        let letter = Letter::Event {
            zxid,
            kind,
            path: path.to_owned(),
        };
        letters.waiting.insert(place, letter.bytes_len(), letter);
    }

    /// Records whether the client can use an event before it is durable.
    pub(crate) fn set_eager(&self, is_eager: bool) {
        self.is_eager.store(is_eager, Ordering::Release);
    }

    /// Whether the client can use an event before it is durable.
    pub(crate) fn is_eager(&self) -> bool {
        self.is_eager.load(Ordering::Acquire)
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.letters
            .lock()
            .expect("no panic while the queue is locked")
            .waiting
            .is_empty()
    }

    /// Wakes the client.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// The next event if its zxid is at most `until`. The end of the connection is always returned.
    pub(crate) fn take(&self, until: Zxid) -> Option<Letter> {
        let mut letters = self
            .letters
            .lock()
            .expect("no panic while the queue is locked");
        let is_due = |letter: &Letter| letter.zxid().is_none_or(|zxid| zxid <= until);
        if let Some(letter) = letters.waiting.pop_front_if(is_due) {
            return Some(letter);
        }
        let is_over = letters
            .waiting
            .back()
            .is_some_and(|letter| letter.zxid().is_none());
        if is_over {
            letters.waiting.pop_back()
        } else {
            None
        }
    }

    /// Returns once there may be an event.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that takes no events is disconnected before they fill the memory, for any path
    /// length.
    #[test]
    fn a_client_that_reads_no_events_is_disconnected_at_the_bound() {
        for path_len in [1, 1000] {
            let (mailbox, mut put) = (Mailbox::default(), 0);
            while !mailbox
                .letters
                .lock()
                .expect("no panic while the queue is locked")
                .has_overflown
            {
                let path = "p".repeat(path_len);
                mailbox.put(Letter::Event {
                    zxid: Zxid(1),
                    kind: EventKind::NodeCreated,
                    path,
                });
                put += 1;
            }
            mailbox.put(Letter::Moved);
            assert!(put * path_len <= LETTER_BYTES_MAX, "{put} letters");
            let taken: Vec<Letter> = std::iter::from_fn(|| mailbox.take(Zxid(1))).collect();
            assert_eq!(taken.len(), put);
            assert!(matches!(taken.last(), Some(Letter::Overflow)));
        }
    }
    fn events(mailbox: &Mailbox, until: i64) -> Vec<i64> {
        let taken = std::iter::from_fn(|| mailbox.take(Zxid(until)));
        taken
            .map(|letter| letter.zxid().map_or(-1, |zxid| zxid.0))
            .collect()
    }

    #[test]
    fn events_are_taken_up_to_a_zxid_and_late_events_are_inserted_in_order() {
        let mailbox = Mailbox::default();
        for zxid in [2, 5, 9] {
            let path = "/n".to_owned();
            mailbox.put(Letter::Event {
                zxid: Zxid(zxid),
                kind: EventKind::NodeDataChanged,
                path,
            });
        }
        assert_eq!(events(&mailbox, 4), [2]);
        for _ in 0..2 {
            mailbox.put_late(Zxid(7), EventKind::NodeDeleted, "/n");
        }
        mailbox.put_late(Zxid(9), EventKind::NodeDataChanged, "/n");
        assert_eq!(events(&mailbox, 8), [5, 7]);
        assert_eq!(events(&mailbox, 9), [9]);
    }

    #[test]
    fn a_late_event_of_a_znode_precedes_that_of_its_parent() {
        let mailbox = Mailbox::default();
        for (zxid, path) in [(3, "/other"), (3, "/"), (4, "/")] {
            let kind = EventKind::NodeChildrenChanged;
            mailbox.put(Letter::Event {
                zxid: Zxid(zxid),
                kind,
                path: path.to_owned(),
            });
        }
        mailbox.put_late(Zxid(3), EventKind::NodeCreated, "/b");
        mailbox.put_late(Zxid(4), EventKind::NodeChildrenChanged, "/b");
        let paths: Vec<String> = std::iter::from_fn(|| mailbox.take(Zxid(4)))
            .map(|letter| match letter {
                Letter::Event { path, .. } => path,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(paths, ["/other", "/b", "/", "/", "/b"]);
    }

    /// A client that waits for the view to reach its read learns that the view never will.
    #[test]
    fn the_end_of_a_connection_overtakes_events_that_are_not_due() {
        let mailbox = Mailbox::default();
        let path = "/n".to_owned();
        mailbox.put(Letter::Event {
            zxid: Zxid(5),
            kind: EventKind::NodeCreated,
            path,
        });
        assert_eq!(events(&mailbox, 4), []);
        mailbox.put(Letter::LostPlace);
        assert_eq!(events(&mailbox, 4), [-1]);
    }
}
