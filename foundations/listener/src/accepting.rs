//! A listener, and whether its last accept failed. The start and the end of this state are each
//! logged once.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// The pause after a failed accept, such as one for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Accepts connections of one listener.
#[derive(Debug)]
pub struct Accepting {
    listener: TcpListener,
    /// For the log.
    port: u16,
    is_failing: bool,
}

impl Accepting {
    /// Accepts those of this listener.
    pub fn of(listener: TcpListener) -> Self {
        Self {
            port: listener.local_addr().map_or(0, |address| address.port()),
            listener,
            is_failing: false,
        }
    }

    /// The next connection. Waits while the system cannot provide one. Cancellation safe.
    pub async fn next(&mut self) -> (TcpStream, SocketAddr) {
        let port = self.port;
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(port, "connections are accepted again");
                    }
                    return accepted;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(%error, port, "cannot accept connections; open ones are still served");
                    }
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}
