//! A session with a ZooKeeper server, over connections that are replaced when they break.
//!
//! Callers send requests without waiting for each other. Replies come in the order of the requests.
//! A request whose reply was lost is sent again over the next connection, so callers send only
//! requests that may be repeated. A session owns nothing here: each connection begins a new one.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use bytes::{Bytes, BytesMut};
use http_client::{Connection, Trust};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf},
    net::lookup_host,
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout},
};
use zookeeper_frontend::framing::Frames;

use super::protocol::{
    self, AUTH_XID, Code, NO_AUTH, OK, PING_XID, Reply, Request, SESSION_CLOSED_REQUIRE_AUTH,
    SESSION_EXPIRED,
};
use crate::settings::is_host_and_port;

/// The session timeout that is requested. The server may answer another one.
const SESSION_MS: i32 = 30_000;
/// The shortest accepted session timeout, so that pings keep their distance.
const SESSION_MS_MIN: i32 = 300;
/// How long a server may take to connect, and for each reply of the handshake.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long a lost server is tried again. Then the copy ends, and a further run continues it.
const RECONNECT_WAIT: Duration = Duration::from_mins(1);
/// The pause between two such attempts.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);
/// How often one request is sent before its losses are an error.
const ATTEMPTS_MAX: u32 = 64;
/// The same for a request of at least [`LONG_BYTES`]. Servers close the connection on a packet that is too long. Shorter
/// requests are lost with it, and must not fail.
const LONG_ATTEMPTS_MAX: u32 = 2;
const LONG_BYTES: usize = 64 << 10;
/// The longest accepted reply. The names of a million children take about half of it.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// What says that the servers have TLS.
const TLS: &str = "tls://";

/// The servers of one ensemble, or a single one: `[tls://]HOST:PORT,HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hosts {
    pub(super) is_tls: bool,
    hosts: Vec<String>,
}

impl FromStr for Hosts {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let is_tls = text.starts_with(TLS);
        let text = text.strip_prefix(TLS).unwrap_or(text);
        ensure!(
            !text.contains('/'),
            "give HOST:PORT or {TLS}HOST:PORT, and a chroot by --path"
        );
        let hosts: Vec<_> = text.split(',').map(str::to_owned).collect();
        ensure!(
            hosts.iter().all(|host| is_host_and_port(host)),
            "give HOST:PORT, as in 10.0.0.7:2181 or [::1]:2181"
        );
        Ok(Self { is_tls, hosts })
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { TLS } else { "" })?;
        f.write_str(&self.hosts.join(","))
    }
}

/// The end of a copy that a side is.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Source,
    Target,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// One side of a copy.
#[derive(Debug, Clone)]
pub(super) struct Side {
    pub(super) end: End,
    pub(super) hosts: Hosts,
    /// For hosts with TLS.
    pub(super) trust: Trust,
    pub(super) credentials: Option<Credentials>,
}

impl Side {
    /// An error that it answers. If the session lacks rights, also the flag that gives them.
    pub(super) fn refusal(&self, code: i32) -> String {
        let advice = match (code, self.end) {
            (NO_AUTH | SESSION_CLOSED_REQUIRE_AUTH, End::Source) => {
                ": give --from-auth of an account with READ and ADMIN"
            }
            (NO_AUTH | SESSION_CLOSED_REQUIRE_AUTH, End::Target) => {
                ": give --to-auth of an account with all permissions"
            }
            _ => "",
        };
        format!("{self} answers {}{advice}", Code(code))
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} {}", self.end, self.hosts)
    }
}

/// What a session proves of itself: `SCHEME:CREDENTIALS`, as `digest:USER:PASSWORD`.
#[derive(Clone)]
pub(super) struct Credentials {
    scheme: String,
    secret: String,
}

impl FromStr for Credentials {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some((scheme, secret)) if !scheme.is_empty() => Ok(Self {
                scheme: scheme.to_owned(),
                secret: secret.to_owned(),
            }),
            // The text is not repeated, because it may be a password.
            _ => Err("give SCHEME:CREDENTIALS, as digest:USER:PASSWORD"),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

/// A session that outlives connections.
#[derive(Debug)]
pub(super) struct Client {
    side: Side,
    current: tokio::sync::Mutex<Arc<Wire>>,
    /// A server that has not seen this zxid is refused, so reads never go back.
    last_zxid: Arc<AtomicI64>,
}

impl Client {
    pub(super) async fn connect(side: Side) -> anyhow::Result<Self> {
        let last_zxid = Arc::new(AtomicI64::new(0));
        let wire = connect_to_any(&side, &last_zxid).await?;
        Ok(Self {
            side,
            current: tokio::sync::Mutex::new(wire),
            last_zxid,
        })
    }

    pub(super) fn side(&self) -> &Side {
        &self.side
    }

    /// The addresses of its servers: of the one that is connected, and of all names that resolve.
    pub(super) async fn addresses(&self) -> BTreeSet<(IpAddr, u16)> {
        let mut found: BTreeSet<_> = self.current.lock().await.peer.into_iter().collect();
        for host in &self.side.hosts.hosts {
            if let Ok(Ok(resolved)) = timeout(CONNECT_WAIT, lookup_host(host)).await {
                found.extend(resolved);
            }
        }
        let found = found.iter();
        let plain = |address: &SocketAddr| (address.ip().to_canonical(), address.port());
        found.map(plain).collect()
    }

    /// The reply, over as many connections as it takes. Errors: no server could be reached for
    /// [`RECONNECT_WAIT`].
    pub(super) async fn call(&self, mut request: Request) -> anyhow::Result<Reply> {
        let bytes = request.bytes();
        let attempts_max = if bytes < LONG_BYTES {
            ATTEMPTS_MAX
        } else {
            LONG_ATTEMPTS_MAX
        };
        let mut attempts = 0;
        loop {
            let wire = self.wire().await?;
            if let Ok(reply) = wire.send(&mut request).await {
                return Ok(reply);
            }
            attempts += 1;
            if attempts == attempts_max {
                let reason = wire.queue.lock().ended.clone().unwrap_or_default();
                let side = self.side.to_string();
                return Err(Unanswered {
                    side,
                    reason,
                    bytes,
                }
                .into());
            }
        }
    }

    /// The connection, which is replaced if it broke.
    async fn wire(&self) -> anyhow::Result<Arc<Wire>> {
        let mut current = self.current.lock().await;
        let Some(reason) = current.queue.lock().ended.clone() else {
            return Ok(current.clone());
        };
        let until = Instant::now() + RECONNECT_WAIT;
        loop {
            match connect_to_any(&self.side, &self.last_zxid).await {
                Ok(wire) => {
                    *current = wire.clone();
                    return Ok(wire);
                }
                Err(error) if Instant::now() >= until => {
                    return Err(error.context(format!(
                        "{}: the connection is lost ({reason}); run the same command again to continue",
                        self.side
                    )));
                }
                Err(_) => sleep(RECONNECT_PAUSE).await,
            }
        }
    }

    /// Ends the session. Otherwise the server would keep it for its timeout.
    pub(super) async fn close(&self) {
        let wire = self.current.lock().await.clone();
        let reply = wire.send(&mut Request::close_session());
        // The timeout does it if this does not.
        let _ = timeout(Duration::from_secs(1), reply).await;
    }
}

/// Each connection that carried the request was lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "{side}: the connection is lost with each attempt at this request of {bytes} bytes ({reason}); if it is long, raise the limit \
     of packets (jute.maxbuffer of ZooKeeper, --zookeeper-packet-bytes-max of Landfast)"
)]
pub(super) struct Unanswered {
    side: String,
    reason: String,
    bytes: usize,
}

/// One connection. Its task ends when it breaks.
#[derive(Debug, Default)]
struct Wire {
    peer: Option<SocketAddr>,
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    unsent: BytesMut,
    /// The requests without a reply, in their order.
    waiting: VecDeque<(i32, oneshot::Sender<Reply>)>,
    last_xid: i32,
    /// Why the connection ended.
    ended: Option<String>,
}

impl Wire {
    /// Queues the request. Its reply fails if the connection is lost.
    fn send(&self, request: &mut Request) -> oneshot::Receiver<Reply> {
        let (sender, receiver) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.ended.is_none() {
            queue.last_xid = queue.last_xid % i32::MAX + 1;
            let xid = queue.last_xid;
            queue.unsent.extend_from_slice(request.numbered(xid));
            queue.waiting.push_back((xid, sender));
        }
        self.wake.notify_one();
        receiver
    }

    fn end(&self, reason: &anyhow::Error) {
        let mut queue = self.queue.lock();
        queue.ended = Some(crate::startup_error::of(reason));
        queue.waiting.clear();
        queue.unsent.clear();
    }
}

async fn connect_to_any(side: &Side, last_zxid: &Arc<AtomicI64>) -> anyhow::Result<Arc<Wire>> {
    let mut failed = None;
    for host in &side.hosts.hosts {
        let connected = timeout(CONNECT_WAIT, connect(host, side, last_zxid)).await;
        let late = || format!("it does not answer within {} s", CONNECT_WAIT.as_secs());
        let connected = connected.with_context(late).flatten();
        match connected.with_context(|| format!("the {} {host}", side.end)) {
            Ok(wire) => return Ok(wire),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.context("no host is given")?)
}

async fn connect(host: &str, side: &Side, last_zxid: &Arc<AtomicI64>) -> anyhow::Result<Arc<Wire>> {
    let (scheme, advice) = if side.hosts.is_tls {
        (
            "https",
            "no server can be reached with TLS; check the address, that it runs, and --tls-ca",
        )
    } else {
        (
            "http",
            "no server can be reached; check the address, and that it runs",
        )
    };
    // Only the connection is that of HTTP.
    let uri = format!("{scheme}://{host}").parse()?;
    let stream = http_client::connect(uri, &side.trust, CONNECT_WAIT).await;
    let mut stream = stream.context(advice)?;
    let peer = http_client::peer_address(&stream);
    let (mut sent, mut frames) = (BytesMut::new(), Frames::new(FRAME_BYTES_MAX));
    protocol::connect(last_zxid.load(Ordering::Relaxed), SESSION_MS, &mut sent);
    stream.write_all(&sent).await?;
    stream.flush().await?;
    let answer = next_frame(&mut stream, &mut frames, CONNECT_WAIT).await;
    let answer = answer.context(
        "it begins no session; check that this is ZooKeeper's port (tls:// for a secure one), maxClientCnxns, and whether \
         it wants a certificate",
    )?;
    let session_ms = protocol::connected(&answer)?;
    ensure!(
        session_ms >= SESSION_MS_MIN,
        "it begins no session, or one of {session_ms} ms"
    );
    if let Some(Credentials { scheme, secret }) = &side.credentials {
        let mut auth = Request::auth(scheme, secret.as_bytes());
        stream.write_all(auth.numbered(AUTH_XID)).await?;
        stream.flush().await?;
        let answer = next_frame(&mut stream, &mut frames, CONNECT_WAIT).await;
        let reply =
            Reply::decode(&answer.context("it closes the connection on these credentials")?)?;
        ensure!(reply.code == OK, "{}", Code(reply.code));
    }
    let wire = Arc::new(Wire {
        peer,
        ..Wire::default()
    });
    let session = Duration::from_millis(session_ms as u64);
    let driving = drive(stream, frames, wire.clone(), last_zxid.clone(), session);
    drop(tokio::spawn(driving));
    Ok(wire)
}

async fn next_frame(
    stream: &mut (impl AsyncRead + Unpin),
    frames: &mut Frames,
    silence_max: Duration,
) -> anyhow::Result<Bytes> {
    loop {
        let next = frames.next_frame();
        if let Some(frame) = next.context("it sent no packet of ZooKeeper's protocol")? {
            return Ok(frame.rest());
        }
        let read = timeout(silence_max, stream.read_buf(frames.space())).await;
        let silent = || format!("it was silent for {} s", silence_max.as_secs());
        let read = read.with_context(silent)??;
        ensure!(read > 0, "it closed the connection");
        frames.received(read);
    }
}

/// Sends and receives until the connection breaks.
async fn drive(
    stream: Connection,
    frames: Frames,
    wire: Arc<Wire>,
    last_zxid: Arc<AtomicI64>,
    session: Duration,
) {
    let (read, write) = tokio::io::split(stream);
    // Both at once: a server may read on only after its replies are read.
    let Err(reason) = tokio::select! {
        ended = receive(read, frames, &wire, &last_zxid, session * 2 / 3) => ended,
        ended = transmit(write, &wire, session / 3) => ended,
    };
    wire.end(&reason);
}

/// Gives each reply to its request. Pings make a server that lives answer within `silence_max`.
async fn receive(
    mut read: ReadHalf<Connection>,
    mut frames: Frames,
    wire: &Wire,
    last_zxid: &AtomicI64,
    silence_max: Duration,
) -> anyhow::Result<std::convert::Infallible> {
    loop {
        let frame = next_frame(&mut read, &mut frames, silence_max).await?;
        let reply = Reply::decode(&frame)?;
        last_zxid.fetch_max(reply.zxid, Ordering::Relaxed);
        ensure!(reply.code != SESSION_EXPIRED, "the session expired");
        // Numbered requests have positive xids. Others are pings and notifications.
        if reply.xid <= 0 {
            continue;
        }
        let waiting = wire.queue.lock().waiting.pop_front();
        match waiting {
            // A caller that has gone needs no reply.
            Some((xid, caller)) if xid == reply.xid => drop(caller.send(reply)),
            _ => bail!("it answered a request that was not next"),
        }
    }
}

/// Sends what callers queue, and a ping at least every `ping_every`.
async fn transmit(
    mut write: WriteHalf<Connection>,
    wire: &Wire,
    ping_every: Duration,
) -> anyhow::Result<std::convert::Infallible> {
    loop {
        let is_idle = timeout(ping_every, wire.wake.notified()).await.is_err();
        let unsent = {
            let mut queue = wire.queue.lock();
            if is_idle {
                queue
                    .unsent
                    .extend_from_slice(Request::ping().numbered(PING_XID));
            }
            queue.unsent.split()
        };
        write.write_all(&unsent).await?;
        write.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_and_no_chroot() {
        for right in ["a:1,[::1]:2181", "tls://a:1,b:2"] {
            assert_eq!(Hosts::from_str(right).expect("hosts").to_string(), right);
        }
        for wrong in [
            "",
            "a",
            "tls://",
            "ssl://a:1",
            ":1",
            "a:0",
            "a:1,",
            "a:1/chroot",
            "a:65536",
            "::1:2181",
            "u@a:1",
        ] {
            Hosts::from_str(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_session_without_rights_is_told_the_flag_of_its_side_alone() {
        for (end, code, expected) in [
            (
                End::Source,
                NO_AUTH,
                "the source a:1 answers NoAuth: give --from-auth of an account with READ and ADMIN",
            ),
            (
                End::Target,
                NO_AUTH,
                "the target a:1 answers NoAuth: give --to-auth of an account with all permissions",
            ),
            (
                End::Source,
                SESSION_CLOSED_REQUIRE_AUTH,
                "the source a:1 answers SessionClosedRequireAuth: give --from-auth of an account with READ and ADMIN",
            ),
            (
                End::Target,
                SESSION_CLOSED_REQUIRE_AUTH,
                "the target a:1 answers SessionClosedRequireAuth: give --to-auth of an account with all permissions",
            ),
            (End::Target, -125, "the target a:1 answers QuotaExceeded"),
        ] {
            let side = Side {
                end,
                hosts: "a:1".parse().expect("hosts"),
                trust: Trust::default(),
                credentials: None,
            };
            assert_eq!(side.refusal(code), expected);
        }
    }

    #[test]
    fn a_password_is_in_no_output() {
        let credentials: Credentials = "digest:u:secret".parse().expect("credentials");
        assert!(!format!("{credentials:?}").contains("secret"));
        assert!(
            !Credentials::from_str("secret")
                .expect_err("no scheme")
                .contains("secret")
        );
    }
}
