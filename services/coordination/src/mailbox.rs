//! A client's mailbox: what the tail hands to it, in order.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

use crate::{
    Error,
    backlog::Backlog,
    model::{EventKind, Zxid},
    records::Answer,
};

/// A client that lets letters of so many bytes lie is disconnected; it reconnects and sets its watches again. These are
/// some 50,000 events of short paths.
const LETTER_BYTES_MAX: usize = 8 << 20;

/// What a client is told.
#[derive(Debug)]
pub(crate) enum Letter {
    /// One of its updates was applied, or refused.
    Answer {
        /// Its place in the order.
        zxid: Zxid,
        /// Which of its requests.
        request: u64,
        /// How it ended.
        answer: Result<Answer, Error>,
    },
    /// One of its watches fired.
    Event {
        /// By which change.
        zxid: Zxid,
        /// What happened.
        kind: EventKind,
        /// To which znode.
        path: String,
    },
    /// Its session has expired.
    Expired,
    /// Another connection speaks for its session.
    Moved,
    /// This process has lost its place in the log.
    LostPlace,
    /// It has let too many letters lie.
    Overflow,
}

impl Letter {
    fn bytes_len(&self) -> usize {
        match self {
            Self::Answer { answer: Ok(Answer::Created { path, .. }), .. } | Self::Event { path, .. } => {
                path.len()
            }
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Letters {
    waiting: Backlog<Letter>,
    has_overflown: bool,
}

/// Letters on their way to one client.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    arrived: Notify,
    is_eager: AtomicBool,
}

impl Mailbox {
    /// Puts a letter in; the client notices at the next [`Mailbox::wake`].
    pub(crate) fn put(&self, letter: Letter) {
        let mut letters = self.letters.lock().expect("no panic while a mailbox is held");
        if letters.has_overflown {
            return;
        }
        letters.has_overflown = letters.waiting.bytes() >= LETTER_BYTES_MAX;
        let letter = if letters.has_overflown { Letter::Overflow } else { letter };
        letters.waiting.push_back(letter.bytes_len(), letter);
    }

    /// Says whether the client has something to do with a letter before it is durable.
    pub(crate) fn set_eager(&self, is_eager: bool) {
        self.is_eager.store(is_eager, Ordering::Release);
    }

    /// What was said last.
    pub(crate) fn is_eager(&self) -> bool {
        self.is_eager.load(Ordering::Acquire)
    }

    /// Whether there is no letter.
    pub(crate) fn is_empty(&self) -> bool {
        self.letters.lock().expect("no panic while a mailbox is held").waiting.is_empty()
    }

    /// Wakes the client.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// The next letter.
    pub(crate) fn take(&self) -> Option<Letter> {
        self.letters.lock().expect("no panic while a mailbox is held").waiting.pop_front()
    }

    /// Returns once there may be a letter.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that takes no events is let go before they fill the memory, whatever their paths are.
    #[test]
    fn a_client_that_lets_too_many_bytes_lie_is_told_so_once_and_last() {
        for path_len in [1, 1000] {
            let (mailbox, mut put) = (Mailbox::default(), 0);
            while !mailbox.letters.lock().expect("nobody panics here").has_overflown {
                let path = "p".repeat(path_len);
                mailbox.put(Letter::Event { zxid: Zxid(1), kind: EventKind::NodeCreated, path });
                put += 1;
            }
            mailbox.put(Letter::Moved);
            assert!(put * path_len <= LETTER_BYTES_MAX, "{put} letters");
            let taken: Vec<Letter> = std::iter::from_fn(|| mailbox.take()).collect();
            assert_eq!(taken.len(), put);
            assert!(matches!(taken.last(), Some(Letter::Overflow)));
        }
    }
}
