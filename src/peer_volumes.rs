//! Volumes where several servers share a store: the server whose node leads serves them, and the
//! others send it the calls of their clients.
//!
//! ```text
//! front ends ──▶ RemoteVolumes ──▶ PeerVolumes ──▶ this server leads: the server of this term
//!                                       └─▶ another does: its HTTP listener ──▶ the server of its term
//! ```
//!
//! Also the server that leads sends its own calls this way. So a change of the leader is a reconnect
//! for all clients: they open volumes again, repeat proposals by their ids, and reclaim their locks.
//!
//! Invariants
//! - Each term of leading has a server of its own, with its own sessions and reapers. The engine
//!   refuses calls before and after it.
//! - A connection ends when another node leads, or when the node that made it is gone.

use std::{fmt, io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http_frontend::{HttpPeers, PeerStream, VolumePeers};
use in_process::SystemEntropy;
use parking_lot::Mutex;
use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional_with_sizes,
    },
    net::UnixStream,
    sync::mpsc,
    time::{sleep, timeout},
};
use transactions::{
    Engine,
    membership::Address,
    model::NodeId,
    peers::{VOLUMES_HEAD_BYTES, VolumesLeader},
    serializable::Volumes,
};
use volumes_frontend::{
    RemoteVolumes,
    remote::{self, Dial},
    server,
};

use crate::reaping::ReapedVolumes;

/// The most connections that wait for the server of the term to accept them.
const WAITING_MAX: usize = 64;
/// How long a new connection may take to send its first bytes.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// The interval for checking that the node of a connection is not gone.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The bytes of a connection between servers that are on their way in this process, in each
/// direction.
const BUFFER_BYTES: usize = 64 << 10;
/// How long calls at work may take when a term ends. The engine refuses them by then.
const END_MAX: Duration = Duration::from_millis(200);

/// The way to the volumes of the node that leads.
#[derive(Debug)]
pub(crate) struct PeerVolumes {
    engine: Engine,
    peers: Arc<HttpPeers>,
    connections_max: usize,
    /// Connections for the server of the present term, if this node leads.
    term: Mutex<Option<mpsc::Sender<UnixStream>>>,
}

impl PeerVolumes {
    /// The way for this server. Its clients may have `connections_max` connections.
    pub(crate) fn new(engine: Engine, peers: Arc<HttpPeers>, connections_max: usize) -> Arc<Self> {
        Arc::new(Self {
            engine,
            peers,
            connections_max,
            term: Mutex::default(),
        })
    }

    /// The volumes of the store, through changes of the leader.
    pub(crate) fn volumes(self: &Arc<Self>) -> Arc<dyn Volumes> {
        let config = remote::Config {
            server: Arc::<Self>::clone(self),
            ..remote::Config::new("")
        };
        let entropy = SystemEntropy::default();
        Arc::new(RemoteVolumes::connect_later(config, &entropy))
    }

    /// Serves volumes whenever this node leads.
    pub(crate) async fn lead(self: Arc<Self>) {
        let mut view = 0;
        loop {
            if let Ok(leader @ VolumesLeader::Here(_)) = self.engine.volumes_leader() {
                self.serve_term(&leader).await;
            }
            // A node that starts may lead before it serves, and no change follows.
            let changed = timeout(CHECK_EVERY, self.engine.members_changed(view)).await;
            view = changed.unwrap_or(view);
        }
    }

    async fn serve_term(&self, leader: &VolumesLeader) {
        let (sender, connections) = mpsc::channel(WAITING_MAX);
        let config = server::Config {
            connections_max: self.connections_max,
            stop_timeout: END_MAX,
            ..server::Config::new("")
        };
        // Holds come back in each term, and its reapers wait for that.
        let volumes = ReapedVolumes::new(self.engine.volumes());
        let server = server::over(connections, config, volumes, &SystemEntropy::default());
        *self.term.lock() = Some(sender);
        tracing::info!("this server serves the volumes of its store");
        let ended = async {
            until_other(&self.engine, leader).await;
            *self.term.lock() = None;
        };
        server.run(ended).await;
    }

    /// A connection to the server of the present term.
    fn here(&self) -> io::Result<UnixStream> {
        let term = self.term.lock();
        let busy = || io::Error::other("this server does not serve volumes yet");
        let term = term.as_ref().ok_or_else(busy)?;
        let (ours, theirs) = UnixStream::pair()?;
        term.try_send(theirs).map_err(|_| busy())?;
        Ok(ours)
    }

    /// A connection to the node that leads.
    async fn there(&self, node: NodeId, address: &Address) -> io::Result<UnixStream> {
        let failed = |error: io::Error| {
            let why = format!("the server {} that serves volumes: {error}", address.0);
            io::Error::new(error.kind(), why)
        };
        let connected = self.peers.connect_to_volumes(address).await;
        let mut stream = connected.map_err(failed)?;
        let head = self.engine.volumes_head(node).map_err(io::Error::other)?;
        stream.write_all(&head).await?;
        let (ours, mut theirs) = UnixStream::pair()?;
        let (engine, leader) = (
            self.engine.clone(),
            VolumesLeader::There(node, address.clone()),
        );
        tokio::spawn(async move {
            join(&mut stream, &mut theirs, until_other(&engine, &leader)).await;
        });
        Ok(ours)
    }
}

/// Returns when `leader` does not lead any more, as far as this node knows.
async fn until_other(engine: &Engine, leader: &VolumesLeader) {
    let mut view = 0;
    while engine.volumes_leader().is_ok_and(|now| now == *leader) {
        view = engine.members_changed(view).await;
    }
}

/// Returns when the node is gone.
async fn until_gone(engine: &Engine, node: NodeId) {
    while !matches!(engine.is_gone(node).await, Ok(true)) {
        sleep(CHECK_EVERY).await;
    }
}

/// Passes bytes on until either side or `end` ends.
async fn join(
    one: &mut (impl AsyncRead + AsyncWrite + Unpin),
    other: &mut (impl AsyncRead + AsyncWrite + Unpin),
    end: impl Future<Output = ()>,
) {
    tokio::select! {
        biased;
        () = end => {}
        _ = copy_bidirectional_with_sizes(one, other, BUFFER_BYTES, BUFFER_BYTES) => {}
    }
}

impl fmt::Display for PeerVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("volumes of several servers")
    }
}

impl Dial for PeerVolumes {
    fn dial(&self) -> BoxFuture<'_, io::Result<UnixStream>> {
        Box::pin(async {
            let leader = self.engine.volumes_leader().map_err(io::Error::other)?;
            match leader {
                VolumesLeader::Here(_) => self.here(),
                VolumesLeader::There(node, address) => self.there(node, &address).await,
            }
        })
    }
}

impl VolumePeers for PeerVolumes {
    fn serve(self: Arc<Self>, mut stream: PeerStream) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut head = [0; VOLUMES_HEAD_BYTES];
            let read = timeout(HEAD_MAX, stream.read_exact(&mut head)).await;
            if !matches!(read, Ok(Ok(_))) {
                return;
            }
            let Some(from) = self.engine.admits_volumes(&head) else {
                tracing::debug!("a connection for volumes is refused: this node does not lead");
                return;
            };
            if let Ok(mut served) = self.here() {
                join(&mut stream, &mut served, until_gone(&self.engine, from)).await;
            }
        })
    }
}
