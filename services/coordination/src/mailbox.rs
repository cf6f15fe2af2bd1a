//! A client's mailbox: what the tail hands to it, in order.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{
    Error,
    model::{EventKind, Zxid},
    records::Answer,
};

/// A client that lets this many letters lie is disconnected; it reconnects and sets its watches again.
const LETTERS_MAX: usize = 65_536;

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

/// Letters on their way to one client.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: Mutex<VecDeque<Letter>>,
    arrived: Notify,
    is_eager: AtomicBool,
}

impl Mailbox {
    /// Puts a letter in; the client notices at the next [`Mailbox::wake`].
    pub(crate) fn put(&self, letter: Letter) {
        let mut letters = self.letters.lock().expect("no panic while a mailbox is held");
        match letters.len() {
            len if len < LETTERS_MAX => letters.push_back(letter),
            LETTERS_MAX => letters.push_back(Letter::Overflow),
            _ => {}
        }
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
        self.letters.lock().expect("no panic while a mailbox is held").is_empty()
    }

    /// Wakes the client.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// The next letter.
    pub(crate) fn take(&self) -> Option<Letter> {
        self.letters.lock().expect("no panic while a mailbox is held").pop_front()
    }

    /// Returns once there may be a letter.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}
