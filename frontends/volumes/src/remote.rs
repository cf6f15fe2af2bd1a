//! The volumes of a server, for client processes.
//!
//! [`RemoteVolumes`] keeps one connection, and reconnects when it ends. Calls wait for that up to
//! [`Config::wait_max`], and are repeated if that is safe. After a reconnect, volumes are opened
//! again, holds repeated and locks reclaimed, before any call goes on.
//!
//! Invariants
//! - A call that changes something under an id, or sets something, may be sent twice. `create`,
//!   `clone_volume` and `delete` are sent once: after a lost answer they fail.
//! - A lock that may have been granted to another client meanwhile is never kept: it counts in
//!   [`Connected::locks_lost`].

mod client;
mod held;
mod held_locks;
mod link;
mod reconnect;
mod volume;

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, FutureExt as _};
use ports::Entropy;
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
};
use transactions::{
    Result,
    serializable::{
        VolumeStore, Volumes,
        model::Slot,
        volumes::{VolumeInfo, VolumeName, VolumeSettings},
    },
};

use self::{
    client::{Client, Repeat},
    held::{Possessions, Undo},
    reconnect::Connection,
    volume::Number,
};
use crate::{
    socket_path::SocketPath,
    wire::{Answer, Request, SessionKey, answer::unexpected},
};

/// Makes connections to a server. Errors name it by its `Display`.
pub trait Dial: fmt::Debug + fmt::Display + Send + Sync {
    /// A new connection, on which nothing was sent yet.
    fn dial(&self) -> BoxFuture<'_, io::Result<UnixStream>>;
}

/// The server that listens on a socket.
#[derive(Debug)]
struct SocketOf(PathBuf);

impl fmt::Display for SocketOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Dial for SocketOf {
    fn dial(&self) -> BoxFuture<'_, io::Result<UnixStream>> {
        Box::pin(async {
            let short = SocketPath::of(&self.0)?;
            UnixStream::connect(short.get()).await
        })
    }
}

/// How a client reaches its server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub server: Arc<dyn Dial>,
    /// How long a call may take, the time without a server included. A lock that waits has this
    /// long for each time without a server.
    pub wait_max: Duration,
}

impl Config {
    /// The usual waits, for the socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            server: Arc::new(SocketOf(path.into())),
            wait_max: Duration::from_secs(30),
        }
    }
}

/// The state of a server, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connected {
    /// Whether there is a connection.
    pub is_connected: bool,
    /// How many times another start of the server was found. Values that were cached before may be
    /// of a state that the store has lost; the points of answers tell.
    pub restarts: u64,
    /// How many locks were lost, because another client may have had them meanwhile.
    pub locks_lost: u64,
}

/// The volumes of a server. Clones share one connection and one session.
#[derive(Clone)]
pub struct RemoteVolumes(Arc<Handle>);

/// Ends the session when the last user of it is dropped.
#[derive(Debug)]
struct Handle {
    client: Arc<Client>,
    _stop: watch::Sender<()>,
}

impl RemoteVolumes {
    /// Connects to a server, on a runtime that has to go on. Errors: `Unavailable` if there is no
    /// server, or it refuses.
    pub async fn connect(config: Config, entropy: &dyn Entropy) -> Result<Self> {
        let (client, undos) = new_client(config, entropy);
        let first = reconnect::connect(&client).await?;
        Ok(Self::run(client, Some(first), undos))
    }

    /// The same without a wait for the first connection.
    pub fn connect_later(config: Config, entropy: &dyn Entropy) -> Self {
        let (client, undos) = new_client(config, entropy);
        Self::run(client, None, undos)
    }

    fn run(client: Arc<Client>, first: Option<Connection>, undos: mpsc::Receiver<Undo>) -> Self {
        let (stop, stopped) = watch::channel(());
        let shared = Arc::clone(&client);
        tokio::spawn(reconnect::run(shared, first, undos, stopped));
        let handle = Handle {
            client,
            _stop: stop,
        };
        Self(Arc::new(handle))
    }

    /// The state of the connection, and its changes.
    pub fn connected(&self) -> watch::Receiver<Connected> {
        self.0.client.connected.subscribe()
    }

    fn client(&self) -> &Client {
        &self.0.client
    }

    async fn done(&self, request: Request, repeat: Repeat) -> Result<()> {
        match self.client().call(&request, repeat).await? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

fn new_client(config: Config, entropy: &dyn Entropy) -> (Arc<Client>, mpsc::Receiver<Undo>) {
    let session = u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64());
    let (possessions, undos) = Possessions::new();
    let client = Client::new(config, SessionKey(session), possessions);
    (Arc::new(client), undos)
}

impl fmt::Debug for RemoteVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteVolumes")
            .field(&self.client().config.server)
            .finish()
    }
}

impl Volumes for RemoteVolumes {
    fn create(&self, name: VolumeName, settings: VolumeSettings) -> BoxFuture<'_, Result<()>> {
        self.done(Request::Create(name, settings), Repeat::Never)
            .boxed()
    }

    fn open<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<Arc<dyn VolumeStore>>> {
        let number = Number::new(&self.0, name);
        let opened = number.open(name);
        opened
            .map(|volume| volume.map(|volume| Arc::new(volume) as Arc<_>))
            .boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        Box::pin(async move {
            match self
                .client()
                .call(&Request::List, Repeat::WhileUnavailable)
                .await?
            {
                Answer::Listed(found) => Ok(found.0),
                _ => Err(unexpected()),
            }
        })
    }

    fn set_quota<'a>(
        &'a self,
        name: &'a VolumeName,
        quota_bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<()>> {
        let request = Request::SetQuota(name.clone(), quota_bytes);
        self.done(request, Repeat::WhileUnavailable).boxed()
    }

    fn clone_volume<'a>(
        &'a self,
        from: &'a VolumeName,
        at: Option<Slot>,
        to: VolumeName,
    ) -> BoxFuture<'a, Result<()>> {
        let from = from.clone();
        self.done(Request::Clone { from, at, to }, Repeat::Never)
            .boxed()
    }

    fn delete<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<()>> {
        self.done(Request::Delete(name.clone()), Repeat::Never)
            .boxed()
    }
}
