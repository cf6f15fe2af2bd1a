//! The peers that may connect to an instance's listener.
//!
//! Only the instance itself reaches a listener in a network of its own. Every user of the machine
//! reaches a listener on the machine's loopback, and no secret can keep them out: clients of the
//! Runtime API know a host and a port, and nothing else. The server therefore asks the kernel for
//! the user of the socket at the other end. If the server is root, each instance has its own user.
//! Otherwise all instances run as the server's user, and can reach each other, but other users
//! cannot reach them.
//!
//! Invariants
//! - A peer of unknown user is rejected.
//! - A stranger's connection costs the server a query for one socket. The kernel's list of all
//!   sockets is long, and a process with many sockets makes it longer. It is read only if the
//!   kernel does not answer about one socket (its `tcp_diag` module is absent or not permitted),
//!   outside of the worker threads, and by one reader at a time.
//! - A query concerns a socket that is connected to the server now. The kernel attributes closed
//!   sockets to root, and a socket that is yet to be connected may have any owner that got the port
//!   by chance.
//!
//! From the kernel's documentation of its sockets (`sock_diag(7)`, and
//! `Documentation/networking/proc_net_tcp.rst`).

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsRawFd as _,
    sync::OnceLock,
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use tokio::{net::TcpStream, sync::Mutex, task::spawn_blocking};

use crate::order::Network;

/// `SOCK_DIAG_BY_FAMILY`, in both the query and its answer.
const BY_FAMILY: u16 = 20;
/// The state of a connection that neither side has closed.
const ESTABLISHED: u8 = 1;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// The offsets of the state and the user in an answer.
const STATE_AT: usize = HEADER_BYTES + 1;
const USER_AT: usize = HEADER_BYTES + 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peers {
    /// All: the listener is in a network of its own.
    Any,
    /// Those of this user.
    Of(u32),
}

impl Peers {
    /// The peers of an instance that runs as `user`.
    pub(crate) fn of(user: u32, network: Network, is_isolated: bool) -> Self {
        if is_isolated && network == Network::None {
            Self::Any
        } else {
            Self::Of(user)
        }
    }

    /// Whether the other end of `stream` is one of them.
    pub(crate) async fn admit(self, stream: &TcpStream) -> bool {
        let Self::Of(user) = self else { return true };
        let (Ok(SocketAddr::V4(peer)), Ok(SocketAddr::V4(ours))) =
            (stream.peer_addr(), stream.local_addr())
        else {
            return false;
        };
        let found = user_of(peer, ours).await;
        if !matches!(found, Ok(Some(found)) if found == user) {
            tracing::debug!(?found, user, %peer, "a connection of another user to a function's listener is closed");
            return false;
        }
        true
    }
}

/// Whether this machine's kernel reports the user of a single socket. It answers "no such socket"
/// and "unknown" alike, so it is asked once about a socket that exists.
fn reports_one_socket() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        let found = query_own_socket();
        let reports = matches!(found, Ok(Some(_)));
        if !reports {
            tracing::warn!(
                ?found,
                "the kernel does not report the user of a single socket (sock_diag): all sockets are read for each connection to a \
                 function, which is slow with many of them; load its module tcp_diag, or let the server use netlink"
            );
        }
        reports
    })
}

/// The user of the socket at `peer` that is connected to `ours`; none: there is none.
async fn user_of(peer: SocketAddrV4, ours: SocketAddrV4) -> io::Result<Option<u32>> {
    if reports_one_socket() {
        query(peer, ours)
    } else {
        listed_alone(peer, ours).await
    }
}

/// As [`listed`], by one reader at a time.
async fn listed_alone(peer: SocketAddrV4, ours: SocketAddrV4) -> io::Result<Option<u32>> {
    static LIST: Mutex<()> = Mutex::const_new(());
    let _alone = LIST.lock().await;
    spawn_blocking(move || listed(peer, ours))
        .await
        .map_err(io::Error::other)?
}

/// The kernel's answer about a socket of the server that is connected to another one.
fn query_own_socket() -> io::Result<Option<u32>> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let theirs = std::net::TcpStream::connect(listener.local_addr()?)?;
    match (theirs.local_addr()?, theirs.peer_addr()?) {
        (SocketAddr::V4(peer), SocketAddr::V4(ours)) => query(peer, ours),
        _ => Ok(None),
    }
}

fn query(peer: SocketAddrV4, ours: SocketAddrV4) -> io::Result<Option<u32>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkSockDiag,
    )?;
    send(socket.as_raw_fd(), &request(peer, ours), MsgFlags::empty())?;
    // The answer is there when the request was sent.
    let mut answer = [0; 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    Ok(user_in(&answer[..length]))
}

/// A header (`nlmsghdr`) and the socket (`inet_diag_req_v2`), in the layout of the kernel's
/// structures. Addresses and ports are in network order, and all other numbers in the machine's.
fn request(peer: SocketAddrV4, ours: SocketAddrV4) -> Vec<u8> {
    const REQUEST: u16 = 1;
    const NO_COOKIE: [u8; 8] = [0xff; 8];
    let address = |address: SocketAddrV4| [address.ip().octets().as_slice(), &[0; 12]].concat();
    let request = [
        &(REQUEST_BYTES as u32).to_ne_bytes()[..],
        &BY_FAMILY.to_ne_bytes(),
        &REQUEST.to_ne_bytes(),
        &[0; 8],
        &[libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0],
        &u32::MAX.to_ne_bytes(),
        &peer.port().to_be_bytes(),
        &ours.port().to_be_bytes(),
        &address(peer),
        &address(ours),
        &[0; 4],
        &NO_COOKIE,
    ]
    .concat();
    assert_eq!(
        request.len(),
        REQUEST_BYTES,
        "each part has the length that it has in the kernel's structures"
    );
    request
}

/// The user in an answer (`inet_diag_msg` after its header); none: there is no such socket.
fn user_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let state = *answer.get(STATE_AT)?;
    let user = u32::from_ne_bytes(answer.get(USER_AT..USER_AT + 4)?.try_into().ok()?);
    (kind == BY_FAMILY && state == ESTABLISHED).then_some(user)
}

/// The same from the kernel's lists of all sockets. A socket of IPv6 may be connected to an address
/// of IPv4.
fn listed(peer: SocketAddrV4, ours: SocketAddrV4) -> io::Result<Option<u32>> {
    #[cfg(test)]
    tests::LISTS_READ.with(|read| read.set(read.get() + 1));
    for (path, before) in [
        ("/proc/net/tcp", ""),
        ("/proc/net/tcp6", "0000000000000000FFFF0000"),
    ] {
        let end = |end: SocketAddrV4| {
            format!(
                "{before}{:08X}:{:04X}",
                u32::from_ne_bytes(end.ip().octets()),
                end.port()
            )
        };
        let (peer, ours) = (end(peer), end(ours));
        let file = match fs::File::open(path) {
            Ok(file) => file,
            // The machine has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines() {
            let line = line?;
            let mut fields = line.split_ascii_whitespace().skip(1);
            if fields.next() == Some(&peer)
                && fields.next() == Some(&ours)
                && fields.next() == Some("01")
            {
                return Ok(fields.nth(3).and_then(|user| user.parse().ok()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        net::{Shutdown, TcpListener, TcpStream},
    };

    use super::*;

    thread_local! {
        /// How often this thread read the kernel's lists.
        pub(super) static LISTS_READ: Cell<u32> = const { Cell::new(0) };
    }

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => SocketAddrV4::new(
                address.ip().to_ipv4_mapped().expect("mapped"),
                address.port(),
            ),
        }
    }

    /// Closes the connection even if another test has just forked: its child holds our descriptors
    /// until exec, so a stream that is only dropped stays connected until then.
    fn close(stream: TcpStream) {
        stream.shutdown(Shutdown::Both).expect("it was connected");
        drop(stream);
    }

    /// The answers of both lookups.
    fn both(peer: SocketAddrV4, ours: SocketAddrV4) -> [Option<u32>; 2] {
        [query(peer, ours), listed(peer, ours)].map(|user| user.expect("there is an answer"))
    }

    #[test]
    fn the_user_of_a_connected_socket_is_found_until_it_is_closed() {
        let us = Some(nix::unistd::Uid::effective().as_raw());
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let ours = v4(listener.local_addr().expect("bound"));
        let mapped = SocketAddr::new(ours.ip().to_ipv6_mapped().into(), ours.port());
        for to in [SocketAddr::V4(ours), mapped] {
            let theirs = TcpStream::connect(to).expect("connected");
            let peer = v4(theirs.local_addr().expect("connected"));
            assert_eq!(both(peer, ours), [us, us], "to {to}");
            let other = SocketAddrV4::new(*peer.ip(), peer.port() ^ 1);
            assert_eq!(
                both(other, ours),
                [None, None],
                "no other port is meant, nor the listener"
            );
            close(theirs);
            assert_eq!(both(peer, ours), [None, None], "to {to}, and closed");
        }
    }

    /// Otherwise a function that connects and closes in a loop would make the worker read the list
    /// of all sockets each time.
    #[tokio::test]
    async fn the_worker_reads_no_list_for_a_closed_socket() {
        assert!(
            reports_one_socket(),
            "the kernel under test answers about one socket"
        );
        let us = Peers::Of(nix::unistd::Uid::effective().as_raw());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let ours = listener.local_addr().expect("bound");
        for _ in 0..100 {
            close(TcpStream::connect(ours).expect("connected"));
            let (gone, _) = listener.accept().await.expect("accepted");
            assert!(!us.admit(&gone).await);
        }
        let theirs = TcpStream::connect(ours).expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        assert!(us.admit(&stream).await);
        let peer = v4(theirs.local_addr().expect("connected"));
        let listed = listed_alone(peer, v4(ours)).await.expect("it is listed");
        assert_eq!(listed, Some(nix::unistd::Uid::effective().as_raw()));
        assert_eq!(
            LISTS_READ.get(),
            0,
            "not by this worker, even without another way"
        );
    }
}
