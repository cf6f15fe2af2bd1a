//! Mounts: mount(2), the threads or the task that read the device, the unmount.

use std::{
    fs,
    io::{self, Read as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
};

use nix::{
    errno::Errno as OsError,
    fcntl::{FcntlArg, OFlag, fcntl},
    mount::{MntFlags, MsFlags, umount2},
    unistd::{getgid, getuid},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
};

use crate::{
    handler::{Connection, Handler, Notifier},
    wire::{
        Errno, Fault, Operation, Reply, Request,
        init::{Init, InitReply, Negotiation, Refusal, Wishes, negotiate},
    },
};

const DEVICE: &str = "/dev/fuse";
/// Bytes of a buffer beyond the largest write: headers and names, and the value of an extended
/// attribute (64 KiB). The kernel refuses to fill a buffer of less than 8 KiB.
const BUFFER_BYTES_BEYOND_WRITE: usize = 72 * 1024;
/// Most threads of one mount, each with a buffer.
pub const THREADS_MAX: usize = 64;

/// How many dead mounts on one directory are detached.
const STALE_MOUNTS_MAX: usize = 100;

/// How to mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device that `df` and /proc/mounts show.
    pub source: String,
    /// Where requests are read.
    pub readers: Readers,
    /// The parameters to ask of the kernel.
    pub wishes: Wishes,
    /// Whether the kernel refuses changes.
    pub is_read_only: bool,
    /// Whether other users than the one that mounts may use it.
    pub allow_other: bool,
    /// Whether the kernel checks the permission bits of files. For each directory of a path it then
    /// asks for the attributes, unless it caches them. Without it, all who may use the mount may do
    /// anything: that is right where root alone may.
    pub checks_permissions: bool,
}

/// The readers of requests. Each has a buffer of one write.
#[derive(Debug, Clone)]
pub enum Readers {
    /// Threads, from 1 to [`THREADS_MAX`]: for answers that need no other thread.
    Threads(usize),
    /// A task of a runtime whose I/O is enabled: for answers that come over a socket of this
    /// runtime. The thread that waits for the socket then waits for requests too, so that a request
    /// and its answer wake it alone.
    Task(Handle),
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The device does not open.
    #[error(
        "cannot open /dev/fuse: {0}; load the kernel module fuse, or give this user access to the device"
    )]
    Device(#[source] io::Error),
    /// The mount point is missing, or mount(2) failed.
    #[error(
        "cannot mount on {0:?}: {1}; it must be a directory, and mounting needs root, or a user \
         and mount namespace (unshare -Ur --mount)"
    )]
    Point(PathBuf, #[source] io::Error),
    /// The kernel cannot serve us.
    #[error(transparent)]
    Kernel(#[from] Refusal),
    /// The first messages failed.
    #[error("the kernel did not establish the mount: {0}")]
    Handshake(#[source] io::Error),
}

/// A mounted file system. Dropping it unmounts, but does not wait.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    notifier: Notifier,
    readers: Vec<Reader>,
    running: Arc<AtomicUsize>,
    is_mounted: bool,
}

/// A reader that runs.
#[derive(Debug)]
enum Reader {
    Thread(JoinHandle<()>),
    Task(Handle, tokio::task::JoinHandle<()>),
}

/// When an unmounted file system ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It has ended, and the handler is not called again.
    Now,
    /// Files are open on it. The name is gone, and it ends with the last close.
    WhenUnused,
}

/// Mounts `handler` on the directory `path`. It returns once the kernel can send requests. Mounts
/// there whose process has died are detached first.
///
/// # Errors
/// See [`MountError`]. Nothing stays mounted.
pub fn mount(
    path: &Path,
    options: &Options,
    handler: &Arc<dyn Handler>,
) -> Result<Mount, MountError> {
    let device = fs::File::options()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(MountError::Device)?;
    let path = attach(path, options, &device)
        .map_err(|error| MountError::Point(path.to_owned(), error))?;
    let connection = Connection::new(device);
    let mut mount = Mount {
        path,
        notifier: Notifier(Arc::clone(&connection)),
        readers: Vec::new(),
        running: Arc::default(),
        is_mounted: true,
    };
    // From here on, an error drops `mount`, which unmounts.
    let terms = handshake(&connection, options.wishes)?;
    handler.started(terms);
    let session = || Session {
        connection: Arc::clone(&connection),
        alive: Alive::new(&mount.running, handler),
        buffer_bytes: terms.max_write as usize + BUFFER_BYTES_BEYOND_WRITE,
    };
    // Until all threads run, so that the first ones are not taken for the last ones.
    let starting = Alive::new(&mount.running, handler);
    match &options.readers {
        Readers::Threads(threads) => {
            for number in 0..(*threads).clamp(1, THREADS_MAX) {
                let session = session();
                let thread = Builder::new().name(format!("fuse-{number}"));
                let started = thread.spawn(move || session.run());
                let started = started.map_err(MountError::Handshake)?;
                mount.readers.push(Reader::Thread(started));
            }
        }
        Readers::Task(runtime) => {
            let entered = runtime.enter();
            let device = without_waiting(&connection.device).map_err(MountError::Handshake)?;
            let task = tokio::spawn(session().run_as_task(device));
            drop(entered);
            mount.readers.push(Reader::Task(runtime.clone(), task));
        }
    }
    drop(starting);
    Ok(mount)
}

/// Calls mount(2). Returns the path without links, by which umount(2) later finds the mount.
fn attach(path: &Path, options: &Options, device: &fs::File) -> io::Result<PathBuf> {
    for _ in 0..STALE_MOUNTS_MAX {
        // Only a mount without a process answers so.
        match fs::metadata(path) {
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOTCONN) => {
                umount2(path, MntFlags::MNT_DETACH)?;
                tracing::info!(path = %path.display(), "detached a mount whose process had died");
            }
            _ => break,
        }
    }
    let path = fs::canonicalize(path)?;
    let (fd, uid, gid) = (device.as_raw_fd(), getuid(), getgid());
    let mut data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}");
    if options.checks_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let (source, kind) = (Some(options.source.as_str()), Some("fuse.landfast"));
    let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    flags.set(MsFlags::MS_RDONLY, options.is_read_only);
    nix::mount::mount(source, &path, kind, flags, Some(data.as_str()))?;
    Ok(path)
}

/// Answers INIT. The kernel has queued it when mount(2) returns.
fn handshake(connection: &Connection, wishes: Wishes) -> Result<InitReply, MountError> {
    let mut buffer = vec![0; BUFFER_BYTES_BEYOND_WRITE];
    loop {
        let length = (&connection.device)
            .read(&mut buffer)
            .map_err(MountError::Handshake)?;
        let (unique, init) = init_of(&buffer[..length]).map_err(MountError::Handshake)?;
        match negotiate(&init, wishes) {
            Negotiation::Agreed(terms) => {
                connection.reply(unique, &Reply::Init(terms));
                return Ok(terms);
            }
            Negotiation::Again(ours) => connection.reply(unique, &Reply::Init(ours)),
            Negotiation::Refused(refusal) => {
                connection.reply(unique, &Reply::Error(Errno::EPROTO));
                return Err(refusal.into());
            }
        }
    }
}

/// The device for reads that do not block.
#[expect(
    deprecated,
    reason = "the replacement is unsafe, for types that lend descriptors; a file owns its own"
)]
fn without_waiting(device: &fs::File) -> io::Result<AsyncFd<fs::File>> {
    let device = device.try_clone()?;
    fcntl(&device, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // The end of a mount is reported as an error alone.
    AsyncFd::with_interest(device, Interest::READABLE | Interest::ERROR)
}

fn init_of(message: &[u8]) -> io::Result<(u64, Init)> {
    let invalid = |fault: Fault| io::Error::new(io::ErrorKind::InvalidData, fault);
    let (header, request) = Request::decode(message).map_err(invalid)?;
    match request.map_err(invalid)?.operation {
        Operation::Init(init) => Ok((header.unique, init)),
        other => Err(io::Error::other(format!("expected INIT, got {other:?}"))),
    }
}

impl Mount {
    /// The notifier, which changes the kernel's caches.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// The directory, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount is gone, by [`Mount::unmount`] or by umount(8).
    pub fn has_ended(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0
    }

    /// Unmounts. Where files are open on the mount, it goes from the tree of names at once, and
    /// ends with the last close. It blocks, so call it outside of asynchronous code.
    ///
    /// # Errors
    /// The system refuses the unmount; the file system stays mounted until the value is dropped.
    pub fn unmount(mut self) -> io::Result<Unmounted> {
        let unmounted = self.detach()?;
        self.is_mounted = false;
        let readers = std::mem::take(&mut self.readers);
        if unmounted == Unmounted::Now {
            join(readers);
        }
        Ok(unmounted)
    }

    /// Waits until the mount is gone. It blocks as [`unmount`](Self::unmount) does.
    pub fn wait(mut self) {
        join(std::mem::take(&mut self.readers));
        self.is_mounted = false;
    }

    fn detach(&self) -> io::Result<Unmounted> {
        // Another file system may have been mounted there since ours was unmounted.
        if !self.readers.is_empty() && self.has_ended() {
            return Ok(Unmounted::Now);
        }
        match umount2(&self.path, MntFlags::UMOUNT_NOFOLLOW) {
            Err(OsError::EBUSY) => {
                umount2(&self.path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
                Ok(Unmounted::WhenUnused)
            }
            Ok(()) => Ok(Unmounted::Now),
            // It is unmounted already, and ends soon or with the last close.
            Err(OsError::EINVAL) => Ok(Unmounted::WhenUnused),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.detach()
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot unmount");
        }
    }
}

fn join(readers: Vec<Reader>) {
    for reader in readers {
        let is_whole = match reader {
            Reader::Thread(thread) => thread.join().is_ok(),
            Reader::Task(runtime, task) => runtime.block_on(task).is_ok(),
        };
        if !is_whole {
            tracing::error!("a reader of the mount ended early");
        }
    }
}

/// Counts as a reader that runs. The end of the last one tells the handler.
struct Alive {
    running: Arc<AtomicUsize>,
    handler: Arc<dyn Handler>,
}

impl Alive {
    fn new(running: &Arc<AtomicUsize>, handler: &Arc<dyn Handler>) -> Self {
        running.fetch_add(1, Ordering::SeqCst);
        Self {
            running: Arc::clone(running),
            handler: Arc::clone(handler),
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.handler.ended();
        }
    }
}

/// One reader of a mount.
struct Session {
    connection: Arc<Connection>,
    alive: Alive,
    buffer_bytes: usize,
}

impl Session {
    fn run(self) {
        let mut buffer = vec![0; self.buffer_bytes];
        while self.serve_read((&self.connection.device).read(&mut buffer), &buffer) {}
    }

    async fn run_as_task(self, device: AsyncFd<fs::File>) {
        let mut buffer = vec![0; self.buffer_bytes];
        loop {
            let read = |mut device: &fs::File| device.read(&mut buffer);
            let read = device.async_io(Interest::READABLE | Interest::ERROR, read);
            if !self.serve_read(read.await, &buffer) {
                break;
            }
        }
    }

    /// Serves a request that was read into `buffer`. False: the mount has ended.
    fn serve_read(&self, read: io::Result<usize>, buffer: &[u8]) -> bool {
        match read {
            Ok(length) => self.serve(&buffer[..length]),
            Err(error) => match error.raw_os_error() {
                // ENOENT: the request was interrupted before it was read.
                Some(nix::libc::ENOENT | nix::libc::EINTR | nix::libc::EAGAIN) => {}
                Some(nix::libc::ENODEV) => return false,
                _ => {
                    tracing::error!(%error, "cannot read from /dev/fuse; the mount ends");
                    return false;
                }
            },
        }
        true
    }

    fn serve(&self, message: &[u8]) {
        let (header, request) = match Request::decode(message) {
            Ok(decoded) => decoded,
            Err(fault) => {
                tracing::error!(%fault, "a message of the kernel has no readable header");
                return;
            }
        };
        let refuse = |errno| self.connection.reply(header.unique, &Reply::Error(errno));
        let handler = &self.alive.handler;
        let request = match request {
            Ok(request) => request,
            Err(fault) => {
                tracing::error!(%fault, opcode = header.opcode, "a request of the kernel is malformed");
                return refuse(Errno::EIO);
            }
        };
        match request.operation {
            Operation::Forget(lookups) => handler.forget(header.inode, lookups),
            Operation::BatchForget(forgets) => {
                for (inode, lookups) in forgets.iter() {
                    handler.forget(inode, lookups);
                }
            }
            Operation::Interrupt(unique) => {
                if self.connection.mark_interrupted(unique) {
                    handler.interrupt(unique);
                } else {
                    // Another thread has read the request, and has not registered it yet. The
                    // kernel sends the interrupt again, unless the request was answered meanwhile.
                    refuse(Errno::EAGAIN);
                }
            }
            Operation::NotifyReply => {}
            Operation::Destroy => self.connection.reply(header.unique, &Reply::Done),
            Operation::Init(_) => refuse(Errno::EPROTO),
            Operation::Unsupported => refuse(Errno::ENOSYS),
            _ => handler.handle(request, self.connection.responder(header.unique)),
        }
    }
}

#[cfg(test)]
mod tests;
