//! Who may connect to an instance's listener.
//!
//! A listener inside of a network of its own is reached by that instance alone. One on the machine's loopback is reached by every user
//! of the machine, and no secret keeps them out: clients of the Runtime API know a host and a port, and nothing else. So the kernel is
//! asked whose socket is at the other end. That is its user, which is the instance's own where the server is root; else all instances
//! are the server's user, and each other's, but nobody else's.
//!
//! Invariants
//! - Who cannot be told is not let in.
//! - What strangers do costs the server a look at one socket. The kernel's list of all of them is long, and whoever has many sockets
//!   makes it longer: it is read only where the kernel answers nothing about one (its `tcp_diag` is absent, or kept from us), away from
//!   the workers that serve everybody, and by one look at a time.
//! - What is asked for is a socket that is connected to us at that moment. One that was closed is nobody's to the kernel, which calls
//!   that root's; and one that is still to be connected may be anybody's who has its port by chance.
//!
//! From the notes of the kernel on its sockets (`sock_diag(7)`, and `Documentation/networking/proc_net_tcp.rst`).

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

use crate::process::Network;

/// `SOCK_DIAG_BY_FAMILY`: both the question and its answer.
const BY_FAMILY: u16 = 20;
/// The state of a connection that neither side has closed.
const ESTABLISHED: u8 = 1;
const HEADER_BYTES: usize = 16;
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// Where an answer has its state and its user.
const STATE_AT: usize = HEADER_BYTES + 1;
const USER_AT: usize = HEADER_BYTES + 64;

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Whoever can: the listener is in a network that has nobody else.
    Any,
    /// This user alone.
    Of(u32),
}

impl Peers {
    /// Those of an instance that is `user` here.
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
        let found = Look::of_this_machine().user_of(peer, ours).await;
        if !matches!(found, Ok(Some(found)) if found == user) {
            tracing::debug!(?found, user, %peer, "somebody else's connection to a function's listener is closed");
            return false;
        }
        true
    }
}

/// How it is found whose a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// By asking about that one.
    AtOne,
    /// By reading the list of all.
    AtAll,
}

impl Look {
    /// The one that this machine's kernel has: it does not say "no such socket" otherwise than "I cannot say", so it is asked, once,
    /// about a socket that there is.
    fn of_this_machine() -> Self {
        static LOOK: OnceLock<Look> = OnceLock::new();
        *LOOK.get_or_init(|| match asked_about_ours() {
            Ok(Some(_)) => Self::AtOne,
            other => {
                tracing::warn!(
                    ?other,
                    "the kernel does not say whose one socket is (sock_diag): all are read for each connection to a function, \
                     which is slow where there are many; load its module tcp_diag, or let the server use netlink"
                );
                Self::AtAll
            }
        })
    }

    /// The user of the socket at `peer` that is connected to `ours`; none: there is none.
    async fn user_of(self, peer: SocketAddrV4, ours: SocketAddrV4) -> io::Result<Option<u32>> {
        static LIST: Mutex<()> = Mutex::const_new(());
        match self {
            Self::AtOne => asked(peer, ours),
            Self::AtAll => {
                let _alone = LIST.lock().await;
                spawn_blocking(move || listed(peer, ours))
                    .await
                    .map_err(io::Error::other)?
            }
        }
    }
}

/// What the kernel answers about a socket that we have connected to one of ours.
fn asked_about_ours() -> io::Result<Option<u32>> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let theirs = std::net::TcpStream::connect(listener.local_addr()?)?;
    match (theirs.local_addr()?, theirs.peer_addr()?) {
        (SocketAddr::V4(peer), SocketAddr::V4(ours)) => asked(peer, ours),
        _ => Ok(None),
    }
}

/// What the kernel answers about this one socket.
fn asked(peer: SocketAddrV4, ours: SocketAddrV4) -> io::Result<Option<u32>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkSockDiag,
    )?;
    send(socket.as_raw_fd(), &question(peer, ours), MsgFlags::empty())?;
    // It is answered by the time that it is sent.
    let mut answer = [0; 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    Ok(answered(&answer[..length]))
}

/// A header (`nlmsghdr`) and which socket is meant (`inet_diag_req_v2`), in the order of the kernel's structures; addresses and ports as on
/// the wire, all else as this machine has numbers.
fn question(peer: SocketAddrV4, ours: SocketAddrV4) -> Vec<u8> {
    const REQUEST: u16 = 1;
    const NO_COOKIE: [u8; 8] = [0xff; 8];
    let address = |address: SocketAddrV4| [address.ip().octets().as_slice(), &[0; 12]].concat();
    let question = [
        &(QUESTION_BYTES as u32).to_ne_bytes()[..],
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
        question.len(),
        QUESTION_BYTES,
        "each part has the length that it has in the kernel's structures"
    );
    question
}

/// The user that an answer (`inet_diag_msg` behind its header) names; none: it says that there is no such socket.
fn answered(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let state = *answer.get(STATE_AT)?;
    let user = u32::from_ne_bytes(answer.get(USER_AT..USER_AT + 4)?.try_into().ok()?);
    (kind == BY_FAMILY && state == ESTABLISHED).then_some(user)
}

/// What the kernel's lists of all sockets say; one of IPv6 may be connected to an address of IPv4.
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
            // A machine without IPv6.
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

    /// Also where another test has just forked, whose child has what we have open until it is another program: what is only dropped stays
    /// connected for as long.
    fn close(stream: TcpStream) {
        stream.shutdown(Shutdown::Both).expect("it was connected");
        drop(stream);
    }

    /// What both ways of finding out say of a socket.
    fn both(peer: SocketAddrV4, ours: SocketAddrV4) -> [Option<u32>; 2] {
        [asked(peer, ours), listed(peer, ours)].map(|user| user.expect("it is said"))
    }

    #[test]
    fn the_user_of_a_connected_socket_is_found_and_nobody_once_it_was_closed() {
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

    /// A function that connects and closes in a loop would otherwise have the worker read the list of all sockets each time.
    #[tokio::test]
    async fn the_worker_reads_no_list_for_who_is_gone_already() {
        assert_eq!(
            Look::of_this_machine(),
            Look::AtOne,
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
        let listed = Look::AtAll
            .user_of(peer, v4(ours))
            .await
            .expect("it is listed");
        assert_eq!(listed, Some(nix::unistd::Uid::effective().as_raw()));
        assert_eq!(
            LISTS_READ.get(),
            0,
            "none by this worker, even where there is no other way"
        );
    }
}
