//! The settings of the front end and their defaults.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use listener::Tls;

use crate::authentication::{Accounts, SuperDigest};

/// The front end's address and bounds.
#[derive(Debug, Clone)]
pub struct Config {
    /// The listening address. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// The port for TLS alone, beside the other. (ZooKeeper: `secureClientPort`.)
    pub secure: Option<(SocketAddr, Tls)>,
    /// Whether a session must prove an identity before its first request. (ZooKeeper:
    /// `enforce.auth.enabled`.)
    pub requires_authentication: bool,
    /// The account that every ACL permits, as `super:` and the digest of its password. (ZooKeeper:
    /// `zookeeper.DigestAuthenticationProvider.superDigest`.)
    pub super_digest: Option<SuperDigest>,
    /// The accounts whose passwords are accepted, beside that one. `None`: as in ZooKeeper, any
    /// password is, because it proves the identity that is made from it.
    pub accounts: Option<Accounts>,
    /// ZooKeeper's `jute.maxbuffer`, in bytes. A longer packet of a client closes its connection.
    /// The server's packets may be longer. At most [`Config::PACKET_BYTES_LIMIT`].
    pub packet_bytes_max: usize,
    /// The most open connections. Further ones are closed when they are accepted.
    pub connections_max: usize,
    /// The most open connections from one address. Further ones are closed when they are accepted.
    /// Zero means no bound per address. (ZooKeeper: `maxClientCnxns`.)
    pub connections_per_address_max: usize,
    /// The most unanswered requests per connection. At the bound the connection reads nothing more.
    pub requests_in_flight_max: usize,
    /// The most bytes of replies that one connection may leave unread, not counting the last reply.
    /// At the bound the connection reads and answers nothing more, and closes after a session
    /// timeout without progress. The service holds as many bytes in addition, and bounds waiting
    /// requests and events ([`coordination::Client`]).
    pub unsent_bytes_max: usize,
    /// How long a peer may take to send its first packet.
    pub first_packet_timeout: Duration,
    /// How long a client may then wait for its session. After that its connection closes without an
    /// answer, and the client tries this or another server again. (ZooKeeper:
    /// `zookeeper.nio.sessionlessCnxnTimeout`.)
    pub connect_timeout: Duration,
    /// The commands that peers beyond loopback may send, or `*` for all. (ZooKeeper:
    /// `4lw.commands.whitelist`.)
    pub four_letter_words: Vec<String>,
    /// The directory whose size the commands `conf` and `dirs` show.
    pub data_directory: Option<PathBuf>,
    /// How long connections may take to finish their current step when the server stops.
    pub stop_timeout: Duration,
}

impl Config {
    /// ZooKeeper's default for `jute.maxbuffer`.
    pub const PACKET_BYTES_DEFAULT: usize = 1_048_575;
    /// The most open connections from one address. ZooKeeper's 60 are too few for tests and for
    /// functions that share the address of their gateway. No client needs more than this bound, and
    /// a client that leaks connections does not take those of others.
    pub const CONNECTIONS_PER_ADDRESS_DEFAULT: usize = 1000;
    /// ZooKeeper's default for `4lw.commands.whitelist`.
    pub const FOUR_LETTER_WORDS_DEFAULT: &str = "srvr";
    /// All that are answered where they are allowed.
    pub const FOUR_LETTER_WORDS: [&str; 15] = [
        "conf", "cons", "crst", "dirs", "dump", "envi", "isro", "mntr", "ruok", "srst", "srvr",
        "stat", "wchc", "wchp", "wchs",
    ];
    /// A longer packet length could not be distinguished from the start of a TLS handshake or a
    /// line of text.
    pub const PACKET_BYTES_LIMIT: usize = 256 << 20;

    /// The defaults, with this listening address.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            secure: None,
            requires_authentication: false,
            super_digest: None,
            accounts: None,
            packet_bytes_max: Self::PACKET_BYTES_DEFAULT,
            connections_max: 10_000,
            connections_per_address_max: Self::CONNECTIONS_PER_ADDRESS_DEFAULT,
            requests_in_flight_max: 1000,
            unsent_bytes_max: 1 << 20,
            first_packet_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            four_letter_words: vec![Self::FOUR_LETTER_WORDS_DEFAULT.to_owned()],
            data_directory: None,
            stop_timeout: Duration::from_secs(5),
        }
    }

    /// Whether this peer may send this command. A peer on this machine may send all.
    pub(crate) fn allows(&self, word: &str, peer: SocketAddr) -> bool {
        let mut allowed = self.four_letter_words.iter();
        peer.ip().to_canonical().is_loopback() || allowed.any(|one| one == "*" || one == word)
    }
}
