//! Listens on a Unix socket, and serves the volumes to processes of the same user.
//!
//! Invariants
//! - Only processes of the server's user, and of root, are served.
//! - At most `connections_max` connections are open. Each has bounded requests and bytes in flight:
//!   beyond the bounds the server does not read on.
//! - A socket file that is left at the start means that sessions had locks when the former server
//!   ended. For [`Config::reclaim_grace`] only such locks are granted then.

mod calls;
mod connection;
mod sessions;

use std::{
    fs::{self, Permissions},
    future::Future,
    io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream as StdStream,
    },
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use ports::{DurabilityPoint, Entropy};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use transactions::serializable::Volumes;

use self::sessions::Sessions;
use crate::{
    socket_path::SocketPath,
    wire::{Refusal, Welcome},
};

/// How long to wait before accepting again when the process has no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The bounds of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The socket's path.
    pub path: PathBuf,
    /// The most open connections.
    pub connections_max: usize,
    /// The most unanswered requests of a connection. Locks that wait do not count.
    pub requests_in_flight_max: usize,
    /// The most bytes of unanswered requests of a connection, and of its unsent answers.
    pub bytes_in_flight_max: usize,
    /// How long a session without a connection keeps its locks and holds.
    pub session_grace: Duration,
    /// How long only locks of earlier clients are granted after a start.
    pub reclaim_grace: Duration,
    /// How long calls at work may take when the server stops.
    pub stop_timeout: Duration,
}

impl Config {
    /// The usual bounds, for a socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            connections_max: 256,
            requests_in_flight_max: 1_024,
            bytes_in_flight_max: 32 << 20,
            session_grace: Duration::from_secs(5),
            reclaim_grace: Duration::from_secs(5),
            stop_timeout: Duration::from_secs(2),
        }
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct Shared {
    config: Config,
    volumes: Arc<dyn Volumes>,
    sessions: Sessions,
    epoch: Mutex<Epoch>,
    /// The latest start of the store that an answer named.
    incarnation: AtomicU64,
    /// How many times volumes lost their locks and holds. A change ends all connections.
    losses: watch::Sender<u64>,
}

/// A time in which volumes remember their locks and holds.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    /// Its random name. Clients call a change of it a restart.
    server: u128,
    /// Until when only locks of earlier clients are granted.
    reclaim_until: Option<Instant>,
}

impl Shared {
    fn epoch(&self) -> Epoch {
        *self.epoch.lock()
    }

    /// The moment from which all locks are granted, if it is not reached yet.
    fn reclaim_until(&self) -> Option<Instant> {
        self.epoch()
            .reclaim_until
            .filter(|until| Instant::now() < *until)
    }

    /// Notes the store's start in the point of an answer. If the store has started again within
    /// this process, volumes have forgotten their locks and holds. All clients then reconnect, and
    /// restore theirs as after a restart of the server.
    fn saw(self: &Arc<Self>, point: DurabilityPoint) {
        let now = point.incarnation.0;
        if now <= self.incarnation.load(Ordering::SeqCst) {
            return;
        }
        let uses = {
            // Another connection that saw it, too, answers nothing before all learn of it.
            let _epoch = self.epoch.lock();
            let before = self.incarnation.load(Ordering::SeqCst);
            if now <= before {
                return;
            }
            let uses = (before > 0).then(|| self.sessions.begin_loss());
            if uses.is_some() {
                self.losses.send_modify(|losses| *losses += 1);
            }
            self.incarnation.store(now, Ordering::SeqCst);
            uses
        };
        let Some(uses) = uses else {
            return;
        };
        tracing::warn!("the store went back to an earlier state: clients of volumes reconnect");
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            // Ends the locks and holds that sessions took since then, before the server noticed.
            sessions::end_all(uses).await;
            {
                let epoch = &mut *shared.epoch.lock();
                epoch.server = epoch.server.wrapping_add(1);
                epoch.reclaim_until = Some(Instant::now() + shared.config.reclaim_grace);
            }
            shared.sessions.end_loss();
        });
    }
}

/// A server that listens. [`Server::run`] serves.
#[derive(Debug)]
pub struct Server {
    incoming: Incoming,
    shared: Arc<Shared>,
}

/// The source of connections.
#[derive(Debug)]
enum Incoming {
    /// A socket for processes of one user.
    Socket { listener: UnixListener, uid: u32 },
    /// Connections that were checked before.
    Checked(mpsc::Receiver<UnixStream>),
}

/// Serves connections whose peers were checked already, and not the configured path. Locks that
/// clients had at another server can be reclaimed at first.
pub fn over(
    connections: mpsc::Receiver<UnixStream>,
    config: Config,
    volumes: Arc<dyn Volumes>,
    entropy: &dyn Entropy,
) -> Server {
    let incoming = Incoming::Checked(connections);
    Server::new(incoming, config, volumes, entropy, true)
}

/// Listens at the configured path, with mode 0600. A socket that no process listens on is replaced.
///
/// Errors: `AddrInUse` if another server listens there; `AlreadyExists` if the path is no socket;
/// or the directory does not permit it.
pub fn bind(
    config: Config,
    volumes: Arc<dyn Volumes>,
    entropy: &dyn Entropy,
) -> io::Result<Server> {
    let short = SocketPath::of(&config.path)?;
    let has_predecessor = remove_stale(&config.path, short.get())?;
    let listener = UnixListener::bind(short.get())?;
    fs::set_permissions(&config.path, Permissions::from_mode(0o600))?;
    let uid = fs::metadata(&config.path)?.uid();
    let incoming = Incoming::Socket { listener, uid };
    Ok(Server::new(
        incoming,
        config,
        volumes,
        entropy,
        has_predecessor,
    ))
}

/// Removes the socket of a server that has ended. Whether there was one.
fn remove_stale(path: &Path, short: &Path) -> io::Result<bool> {
    let file_type = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?.file_type(),
    };
    if !file_type.is_socket() {
        let message = format!("{} exists and is no socket; move it away", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match StdStream::connect(short) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path)?;
            Ok(true)
        }
        // A full backlog is a sign of life too.
        Ok(_) | Err(_) => {
            let message = format!("another server listens on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
    }
}

impl Server {
    fn new(
        incoming: Incoming,
        config: Config,
        volumes: Arc<dyn Volumes>,
        entropy: &dyn Entropy,
        has_predecessor: bool,
    ) -> Self {
        let reclaim_until = has_predecessor.then(|| Instant::now() + config.reclaim_grace);
        let server = u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64());
        let shared = Arc::new(Shared {
            sessions: Sessions::new(config.connections_max),
            config,
            volumes,
            epoch: Mutex::new(Epoch {
                server,
                reclaim_until,
            }),
            incarnation: AtomicU64::new(0),
            losses: watch::Sender::default(),
        });
        Self { incoming, shared }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.shared.config.path
    }

    /// Serves until `shutdown` resolves, then ends the connections. Calls at work may finish for up
    /// to `stop_timeout`. The socket's file stays if sessions have locks or holds, so that the next
    /// server lets them reclaim those.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { incoming, shared } = self;
        let is_socket = matches!(incoming, Incoming::Socket { .. });
        let mut shutdown = pin!(shutdown);
        let (stop, stopped) = watch::channel(false);
        let places = Arc::new(Semaphore::new(shared.config.connections_max));
        let mut accepting = Accepting {
            incoming,
            is_failing: false,
        };
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                stream = accepting.next() => {
                    let Some(place) = place(&stream, &places) else {
                        continue;
                    };
                    let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
                    connections.spawn(connection::serve(shared, stream, stopped, place));
                }
            }
        }
        drop(accepting);
        stop.send_replace(true);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        if timeout(shared.config.stop_timeout, all_ended)
            .await
            .is_err()
        {
            tracing::warn!(
                open = connections.len(),
                "calls of volumes did not end in time"
            );
            connections.shutdown().await;
        }
        if is_socket && !shared.sessions.have_any_use() {
            // Without the file the next server need not wait for clients.
            let _ = fs::remove_file(&shared.config.path);
        }
    }
}

/// The place of a new connection; `None`: it is refused.
fn place(stream: &UnixStream, places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let place = Arc::clone(places).try_acquire_owned().ok();
    if place.is_none() {
        // The client tries again, and tells its user the reason if that does not help.
        let _ = stream.try_write(&Welcome::encode(Err(Refusal::TooManyConnections)));
    }
    place
}

/// Whether the peer is a process of this user, or of root.
fn is_admitted(stream: &UnixStream, uid: u32) -> bool {
    let peer = stream.peer_cred().map(|peer| peer.uid());
    let is_admitted = peer.as_ref().is_ok_and(|peer| *peer == uid || *peer == 0);
    if !is_admitted {
        tracing::warn!(
            ?peer,
            "a process of another user asked for volumes and was refused"
        );
    }
    is_admitted
}

/// The source of connections, and whether its last accept failed.
struct Accepting {
    incoming: Incoming,
    is_failing: bool,
}

impl Accepting {
    /// The next connection. Waits while the system cannot provide one. Cancellation safe.
    async fn next(&mut self) -> UnixStream {
        loop {
            let (listener, uid) = match &mut self.incoming {
                Incoming::Socket { listener, uid } => (listener, *uid),
                Incoming::Checked(connections) => match connections.recv().await {
                    Some(stream) => return stream,
                    None => return std::future::pending().await,
                },
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.is_failing = false;
                    if is_admitted(&stream, uid) {
                        return stream;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(%error, "cannot accept connections to volumes; open ones are still served");
                    }
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}
