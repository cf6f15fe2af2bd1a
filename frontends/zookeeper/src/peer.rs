//! The other end of a connection.

use std::{fmt, net::SocketAddr};

/// What the network knows of a client before it says anything.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Where it connects from.
    pub(crate) address: SocketAddr,
    /// The verified client certificate's subject, as an id of the scheme `x509`.
    pub(crate) x509: Option<String>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        match &self.x509 {
            Some(subject) => write!(f, " ({subject})"),
            None => Ok(()),
        }
    }
}
