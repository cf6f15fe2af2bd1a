//! Binds the listener, serves until told to stop, stops within a bound.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch};

use crate::{connection::Bounded, guard::Rules, routes, status::Snapshot};

/// How long open requests may take once the server is told to stop; then they are cut off.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// How to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to accept connections; port 0 picks a free one.
    pub address: SocketAddr,
    /// What `Authorization: Bearer` must carry if the address is not on loopback; health is open to all.
    pub token: Option<String>,
}

/// A bound listener: connections queue up until [`Server::run`].
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_address: SocketAddr,
    token: Option<String>,
}

/// Binds the address.
///
/// Errors: the system's, such as an address in use.
pub async fn bind(config: Config) -> io::Result<Server> {
    let listener = TcpListener::bind(config.address).await?;
    let local_address = listener.local_addr()?;
    Ok(Server { listener, local_address, token: config.token })
}

impl Server {
    /// The address with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Answers requests until `shutdown` completes, then ends within [`DRAIN_MAX`].
    pub async fn run(
        self,
        snapshot: Arc<dyn Snapshot>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let loopback = self.local_address.ip().is_loopback();
        let rules = Rules { loopback, token: self.token.filter(|_| !loopback) };
        let router = routes::router(snapshot, rules);
        let (stopping, mut stopped) = watch::channel(false);
        let signal = async move {
            shutdown.await;
            let _ = stopping.send(true);
        };
        let serving = axum::serve(Bounded::new(self.listener), router).with_graceful_shutdown(signal);
        let cut_off = async {
            // An error means that the server has ended by itself: the other branch has won already.
            let _ = stopped.wait_for(|is_stopping| *is_stopping).await;
            tokio::time::sleep(DRAIN_MAX).await;
        };
        tokio::select! {
            biased;
            ended = serving => ended,
            () = cut_off => {
                tracing::info!("http: open requests were cut off");
                Ok(())
            }
        }
    }
}
