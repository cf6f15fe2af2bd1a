//! GlusterFS without its management daemon: one brick, and clients over loopback.
//!
//! The translators of the client are those that GlusterFS uses by default for small files. Paths
//! must be absolute: GlusterFS takes a relative log file for a directory.

use std::path::Path;

/// The brick's graph: it keeps its files in `brick`, and listens on `port` of loopback.
pub(super) fn server(brick: &Path, port: u16) -> String {
    let brick = brick.display();
    format!(
        "volume posix
  type storage/posix
  option directory {brick}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume threads
  type performance/io-threads
  subvolumes locks
end-volume
volume brick
  type debug/io-stats
  subvolumes threads
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.brick.allow 127.0.0.1
  subvolumes brick
end-volume
"
    )
}

/// A client's graph. A strict client keeps no attributes and no content: the caches of the other
/// translators show a change of another client up to a second late.
pub(super) fn client(port: u16, is_strict: bool) -> String {
    let remote = format!(
        "volume remote
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume brick
end-volume
"
    );
    if is_strict {
        return remote;
    }
    remote
        + "volume behind
  type performance/write-behind
  subvolumes remote
end-volume
volume quick
  type performance/quick-read
  subvolumes behind
end-volume
volume cache
  type performance/md-cache
  subvolumes quick
end-volume
"
}
