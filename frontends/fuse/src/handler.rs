//! The interface to a file system, and the owner of each reply.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, IoSlice, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::wire::{Errno, Notification, Reply, Request, init::InitReply};

/// A file system that answers requests.
///
/// Several threads call it at once. A call that takes long should hand its [`Responder`] to another
/// task and return, because the threads of a mount are few.
pub trait Handler: Send + Sync + 'static {
    /// The connection is established, on these terms. It is called once, before all others.
    fn started(&self, _terms: InitReply) {}

    /// Answers a request. Copy what outlives the call: the request borrows from a buffer.
    ///
    /// INIT, FORGET, BATCH_FORGET, INTERRUPT and DESTROY do not arrive here. Operations that the
    /// codec does not support do not arrive either.
    fn handle(&self, request: Request<'_>, responder: Responder);

    /// The kernel drops `lookups` references to an inode.
    fn forget(&self, inode: u64, lookups: u64);

    /// The caller of a request got a signal. End the request soon: answer it with
    /// [`Errno::EINTR`] if it changed nothing. If it is answered already, there is nothing to do.
    ///
    /// It may come while [`Handler::handle`] still has the request. A handler that is about to let
    /// a request wait therefore checks [`Responder::is_interrupted`] under the lock that its
    /// `interrupt` takes.
    fn interrupt(&self, unique: u64);

    /// The mount is gone, and no further call comes.
    fn ended(&self) {}
}

/// The device of one mount, and the requests that were not answered yet.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) device: fs::File,
    in_flight: Mutex<BTreeMap<u64, Arc<AtomicBool>>>,
}

impl Connection {
    pub(crate) fn new(device: fs::File) -> Arc<Self> {
        let in_flight = Mutex::default();
        Arc::new(Self { device, in_flight })
    }

    /// Registers a request, so that an interrupt finds it.
    pub(crate) fn responder(self: &Arc<Self>, unique: u64) -> Responder {
        let interrupted = Arc::<AtomicBool>::default();
        self.in_flight
            .lock()
            .insert(unique, Arc::clone(&interrupted));
        let connection = Arc::clone(self);
        Responder {
            connection,
            unique,
            interrupted,
            is_sent: false,
        }
    }

    /// Marks a request as interrupted. Returns whether it is registered.
    pub(crate) fn mark_interrupted(&self, unique: u64) -> bool {
        let in_flight = self.in_flight.lock();
        let found = in_flight.get(&unique);
        found
            .inspect(|mark| mark.store(true, Ordering::SeqCst))
            .is_some()
    }

    /// Writes a reply. Errors are logged only: the caller could do nothing about them.
    pub(crate) fn reply(&self, unique: u64, reply: &Reply<'_>) {
        let mut head = Vec::new();
        let payload = reply.encode(unique, &mut head);
        match self.write(&head, payload) {
            Ok(()) => {}
            // The kernel no longer waits: the request was aborted, or the mount is gone.
            Err(error) if is_gone(&error) => {}
            Err(error) => tracing::warn!(unique, %error, "the kernel refuses a reply"),
        }
    }

    fn write(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(head), IoSlice::new(payload)];
        (&self.device).write_vectored(&parts).map(drop)
    }
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [nix::libc::ENOENT, nix::libc::ENODEV];
    error
        .raw_os_error()
        .is_some_and(|number| gone.contains(&number))
}

/// The duty to answer one request. If it is dropped, the request is answered with
/// [`Errno::EIO`], so that no caller waits forever.
#[derive(Debug)]
pub struct Responder {
    connection: Arc<Connection>,
    unique: u64,
    interrupted: Arc<AtomicBool>,
    is_sent: bool,
}

impl Responder {
    /// Answers the request.
    pub fn send(mut self, reply: &Reply<'_>) {
        self.answer(reply);
    }

    /// Answers the request with an error.
    pub fn fail(self, errno: Errno) {
        self.send(&Reply::Error(errno));
    }

    /// The number by which [`Handler::interrupt`] names the request.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Whether the caller got a signal.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    fn answer(&mut self, reply: &Reply<'_>) {
        self.is_sent = true;
        // The kernel may give the number to another request once it has the reply.
        self.connection.in_flight.lock().remove(&self.unique);
        self.connection.reply(self.unique, reply);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.is_sent {
            self.answer(&Reply::Error(Errno::EIO));
        }
    }
}

/// Changes the kernel's caches for one mount.
#[derive(Debug, Clone)]
pub struct Notifier(pub(crate) Arc<Connection>);

impl Notifier {
    /// Sends a notification. It is no error if the kernel has nothing cached there, or if the mount
    /// is gone. Never call it from a thread that handles a request.
    ///
    /// # Errors
    /// The kernel does not know the notification, or refuses its values.
    pub fn send(&self, notification: &Notification<'_>) -> io::Result<()> {
        let mut head = Vec::new();
        let payload = notification.encode(&mut head);
        match self.0.write(&head, payload) {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }
}
