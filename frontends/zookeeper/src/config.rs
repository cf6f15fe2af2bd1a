//! What an operator can set, and the bounds it has if they do not.

use std::{net::SocketAddr, time::Duration};

/// The front end's address and bounds.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// ZooKeeper's `jute.maxbuffer`: a longer packet of a client closes its connection. Packets of the
    /// server may be longer. At most [`Config::PACKET_BYTES_LIMIT`].
    pub packet_bytes_max: usize,
    /// How many connections are open at once; more are closed as they come.
    pub connections_max: usize,
    /// How many of them may come from one address; more are closed as they come. Zero: no bound of its own. (ZooKeeper:
    /// `maxClientCnxns`.)
    pub connections_per_address_max: usize,
    /// How many requests of one connection may be unanswered; at the bound nothing more is read from it.
    pub requests_in_flight_max: usize,
    /// How many bytes of replies one connection may leave unread, not counting the last one; at the bound nothing
    /// more is read or answered, and after a session timeout without progress the connection closes. The service holds
    /// as much besides, and bounds requests and events that wait ([`coordination::Client`]).
    pub unsent_bytes_max: usize,
    /// How long a peer may take to send its first packet.
    pub first_packet_timeout: Duration,
    /// How long a client may wait for its session after that; then its connection closes without an answer,
    /// and it tries another server or this one again. (ZooKeeper: `zookeeper.nio.sessionlessCnxnTimeout`.)
    pub connect_timeout: Duration,
    /// How long connections may take to finish what they do when the server stops.
    pub stop_timeout: Duration,
}

impl Config {
    /// ZooKeeper's default for `jute.maxbuffer`.
    pub const PACKET_BYTES_DEFAULT: usize = 1_048_575;
    /// The connections that one address may have open. ZooKeeper's 60 are few for tests and for functions that share
    /// the address of their gateway; this is so many that no client needs more, and one that leaks connections leaves
    /// those of others alone.
    pub const CONNECTIONS_PER_ADDRESS_DEFAULT: usize = 1000;
    /// Above it a TLS handshake or a line of text would be taken for the length of a packet.
    pub const PACKET_BYTES_LIMIT: usize = 256 << 20;

    /// The defaults, at an address.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            packet_bytes_max: Self::PACKET_BYTES_DEFAULT,
            connections_max: 10_000,
            connections_per_address_max: Self::CONNECTIONS_PER_ADDRESS_DEFAULT,
            requests_in_flight_max: 1000,
            unsent_bytes_max: 1 << 20,
            first_packet_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(5),
        }
    }
}
