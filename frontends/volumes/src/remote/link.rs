//! One connection to the server.
//!
//! A caller writes its request itself, unless another caller is writing: then that one takes it
//! along. One task reads all answers and wakes their callers.

use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt as _,
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    sync::{Notify, oneshot},
};
use transactions::serializable::model::{Granted, Wait};

use super::{
    held::Possessions,
    held_locks::{Piece, Ticket},
};
use crate::{
    frames::{self, ANSWER_BYTES_MAX, Frames, PUSH, REQUEST_BYTES_MAX},
    wire::{Answer, Call, Request, decode_answer},
};

/// The reason why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The connection had ended: the request was not sent.
    NotSent,
    /// The connection ended before the answer.
    Lost,
    /// The request is longer than a frame.
    TooLong,
}

/// An answer. If it grants a lock, also the earlier locks of the owner on its bytes.
#[derive(Debug)]
struct Reply {
    answer: Answer,
    before: Vec<Piece>,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Waiter {
    /// `None`: its caller is gone.
    caller: Option<oneshot::Sender<Reply>>,
    ticket: Option<Ticket>,
}

#[derive(Debug, Default)]
struct Out {
    unsent: BytesMut,
    /// A caller or the link's task is writing, and will take along what others append.
    is_writing: bool,
}

/// A connection that has been introduced.
#[derive(Debug)]
pub(super) struct Link {
    possessions: Possessions,
    writer: OwnedWriteHalf,
    out: Mutex<Out>,
    /// By their numbers; `None`: the connection has ended.
    waiting: Mutex<Option<BTreeMap<u64, Waiter>>>,
    number: AtomicU64,
    /// The socket is full, and the link's task has to write.
    is_full: Notify,
}

impl Link {
    pub(super) fn new(writer: OwnedWriteHalf, possessions: Possessions) -> Self {
        Self {
            possessions,
            writer,
            out: Mutex::default(),
            waiting: Mutex::new(Some(BTreeMap::new())),
            number: AtomicU64::new(PUSH),
            is_full: Notify::new(),
        }
    }

    /// Sends a request, and waits for its answer.
    pub(super) async fn request(&self, request: &Request) -> Result<Answer, NoAnswer> {
        let (_, receiver) = self.begin(request, None)?;
        let reply = receiver.await.map_err(|_| NoAnswer::Lost)?;
        Ok(reply.answer)
    }

    /// Asks for a lock. If the call is dropped, its wait ends; if the lock is granted nevertheless,
    /// the owner gets back its earlier locks.
    pub(super) async fn lock(&self, ticket: &Ticket) -> Result<Answer, NoAnswer> {
        let call = Call::Lock(ticket.owner, ticket.lock.clone());
        let request = Request::On(ticket.volume, call);
        let (number, receiver) = self.begin(&request, Some(ticket.clone()))?;
        let mut attempt = Attempt {
            link: self,
            number,
            ticket,
            receiver: Some(receiver),
        };
        let Some(receiver) = &mut attempt.receiver else {
            return Err(NoAnswer::Lost);
        };
        let reply = receiver.await;
        attempt.receiver = None;
        Ok(reply.map_err(|_| NoAnswer::Lost)?.answer)
    }

    fn begin(
        &self,
        request: &Request,
        ticket: Option<Ticket>,
    ) -> Result<(u64, oneshot::Receiver<Reply>), NoAnswer> {
        let (caller, receiver) = oneshot::channel();
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let waiter = Waiter {
            caller: Some(caller),
            ticket,
        };
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.insert(number, waiter),
            None => return Err(NoAnswer::NotSent),
        };
        if !self.put(number, request) {
            if let Some(waiting) = &mut *self.waiting.lock() {
                waiting.remove(&number);
            }
            return Err(NoAnswer::TooLong);
        }
        Ok((number, receiver))
    }

    /// Sends a request whose answer does not matter, if it has one.
    pub(super) fn tell(&self, request: &Request) {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(number, request);
    }

    /// Appends a request, and writes unless another thread does. False: it is too long.
    fn put(&self, number: u64, request: &Request) -> bool {
        let mut out = self.out.lock();
        if !frames::put(&mut out.unsent, number, request, REQUEST_BYTES_MAX) {
            return false;
        }
        if !std::mem::replace(&mut out.is_writing, true) {
            drop(out);
            self.write();
        }
        true
    }

    /// Writes until all is sent or the socket is full. Only the owner of `is_writing` calls it.
    fn write(&self) {
        let mut rest = BytesMut::new();
        loop {
            if rest.is_empty() {
                let mut out = self.out.lock();
                if out.unsent.is_empty() {
                    out.is_writing = false;
                    return;
                }
                std::mem::swap(&mut rest, &mut out.unsent);
            }
            match self.writer.try_write(&rest) {
                Ok(sent) => rest.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut out = self.out.lock();
                    rest.unsplit(std::mem::take(&mut out.unsent));
                    out.unsent = rest;
                    self.is_full.notify_one();
                    return;
                }
                Err(_) => return self.end(),
            }
        }
    }

    /// Reads answers until the connection ends. Everything that waits then fails.
    pub(super) async fn run(&self, mut reader: OwnedReadHalf) {
        let mut frames = Frames::new(ANSWER_BYTES_MAX);
        // Outside of the loop: an answer may arrive between the notification and the room.
        let mut is_full = false;
        loop {
            tokio::select! {
                biased;
                read = reader.read_buf(frames.buffer()) => {
                    if !matches!(read, Ok(1..)) {
                        break;
                    }
                }
                () = self.is_full.notified(), if !is_full => {
                    is_full = true;
                    continue;
                }
                // After an error the write fails, and ends the connection.
                _ = self.writer.writable(), if is_full => {
                    is_full = false;
                    self.write();
                    continue;
                }
            }
            loop {
                match frames.next_frame() {
                    Ok(Some(frame)) => self.answered(frame.number, &frame.body),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "the server of volumes sent no answer");
                        return self.end();
                    }
                }
            }
        }
        self.end();
    }

    fn answered(&self, number: u64, body: &[u8]) {
        // Pushes are reserved: a server of this version sends none.
        if number == PUSH {
            return;
        }
        let Some(waiting) = &mut *self.waiting.lock() else {
            return;
        };
        let Some(Waiter { caller, ticket }) = waiting.remove(&number) else {
            return;
        };
        let answer = decode_answer(body).unwrap_or_else(|error| Answer::failed(&error));
        let granted = ticket.filter(|ticket| {
            answer == Answer::Granted(Granted::Yes) && ticket.lock.wait != Wait::Test
        });
        let Some(caller) = caller else {
            if let Some(ticket) = granted {
                self.possessions.undo_unknown(&ticket);
            }
            return;
        };
        // Before any later end of the connection is noticed, so that the lock is reclaimed.
        let take = |ticket| self.possessions.held.lock().locks.take(ticket);
        let before = granted.as_ref().map(take).unwrap_or_default();
        if let (Err(reply), Some(ticket)) = (caller.send(Reply { answer, before }), granted) {
            self.possessions.undo(ticket, reply.before);
        }
    }

    /// Ends the connection: requests fail from now on.
    pub(super) fn end(&self) {
        drop(self.waiting.lock().take());
    }
}

/// Ends the wait of a lock whose call is dropped.
struct Attempt<'a> {
    link: &'a Link,
    number: u64,
    ticket: &'a Ticket,
    /// `None`: it has ended.
    receiver: Option<oneshot::Receiver<Reply>>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else {
            return;
        };
        let waiter = match &mut *self.link.waiting.lock() {
            Some(waiting) => waiting
                .get_mut(&self.number)
                .and_then(|waiter| waiter.caller.take()),
            None => None,
        };
        if waiter.is_some() {
            self.link.tell(&Request::Cancel(self.number));
        } else if let Ok(reply) = receiver.try_recv()
            && reply.answer == Answer::Granted(Granted::Yes)
            && self.ticket.lock.wait != Wait::Test
        {
            self.link
                .possessions
                .undo(self.ticket.clone(), reply.before);
        }
    }
}
