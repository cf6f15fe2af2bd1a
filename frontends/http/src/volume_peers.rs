//! The volumes of this server, as other servers of its store reach them.

use std::{fmt::Debug, sync::Arc};

use futures_util::future::BoxFuture;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

/// A connection of another server, after the upgrade.
pub type PeerStream = TokioIo<Upgraded>;

/// Serves the volumes of this server to others of its store.
pub trait VolumePeers: Debug + Send + Sync {
    /// Serves a connection until it ends. Its first bytes tell whether its peer may use it.
    fn serve(self: Arc<Self>, stream: PeerStream) -> BoxFuture<'static, ()>;
}
