//! What goes over the socket between us and a launched process.
//!
//! The order is its length in four bytes and postcard. What comes back is a listener beside the number of the function's user, once, and at the end
//! the four bytes of the function's wait status. A spare is given a second order, that of its function, and says one byte more. Each side trusts the other as little as it needs to: what comes from a
//! sandbox is a descriptor of a listening socket, or it is refused.

use std::{
    ffi::OsString,
    io::{self, IoSliceMut, Read as _},
    os::{fd::AsRawFd as _, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
};

use nix::sys::socket::{MsgFlags, getsockopt, recvmsg, sockopt::AcceptConn};
use serde::{Deserialize, Serialize};
use tokio::{
    io::Interest,
    net::{TcpListener, UnixStream},
};

use super::{Enforcement, Launch, Network};
use crate::{
    command::{RUNTIME_ROOT, TASK_ROOT},
    peers::Peers,
    system::received,
};

/// The longest order.
const ORDER_BYTES_MAX: usize = 4 << 20;

/// What a spare says that has become an instance.
pub(crate) const ADOPTED: u8 = b'A';

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// What runs at once.
    Function,
    /// What waits for a second order before it runs anything of a function's.
    Spare,
}

/// What the launcher is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) role: Role,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) code: PathBuf,
    pub(crate) runtime: PathBuf,
    pub(crate) memory_bytes: u64,
    pub(crate) processes_max: u32,
    pub(crate) scratch_bytes: u64,
    pub(crate) network: Network,
    /// The lists of members of its control groups.
    pub(crate) groups: Vec<PathBuf>,
    /// Whether namespaces can be had.
    pub(crate) is_isolated: bool,
    /// Whether system calls can be filtered.
    pub(crate) is_filtered: bool,
    /// Whether a control group bounds its memory; else the size of its data is.
    pub(crate) is_memory_grouped: bool,
    /// The process that started it.
    pub(crate) parent: u32,
}

impl Order {
    pub(super) fn new(
        role: Role,
        launch: Launch,
        enforcement: &Enforcement,
        groups: Vec<PathBuf>,
    ) -> Self {
        let Launch {
            command,
            environment,
            folders,
            code,
            runtime,
            memory_bytes,
            processes_max,
            scratch_bytes,
            network,
        } = launch;
        let is_isolated = enforcement.namespaces.is_enforced();
        let places = [
            (TASK_ROOT, code.as_path()),
            (RUNTIME_ROOT, runtime.as_path()),
        ];
        // Without a root of its own it sees its files where they are.
        let seen = |text: OsString| {
            if is_isolated {
                text
            } else {
                where_it_is(text, &places)
            }
        };
        let command = command.into_iter().map(seen).collect();
        let environment = environment
            .into_iter()
            .map(|(name, value)| (name, seen(value)))
            .collect();
        Self {
            role,
            command,
            environment,
            folders,
            code,
            runtime,
            memory_bytes,
            processes_max,
            scratch_bytes,
            network,
            groups,
            is_isolated,
            is_filtered: enforcement.system_calls.is_enforced(),
            is_memory_grouped: enforcement.memory.is_enforced(),
            parent: std::process::id(),
        }
    }

    /// One that nothing is executed by: whether it could be is tried.
    pub(crate) fn trial() -> Self {
        Self {
            role: Role::Function,
            command: Vec::new(),
            environment: Vec::new(),
            folders: Vec::new(),
            code: "/usr".into(),
            runtime: "/usr".into(),
            memory_bytes: 0,
            processes_max: 1,
            scratch_bytes: 1 << 20,
            network: Network::None,
            groups: Vec::new(),
            is_isolated: true,
            is_filtered: false,
            is_memory_grouped: true,
            parent: 0,
        }
    }

    /// Reads an order, in the launcher.
    pub(crate) fn read(socket: &mut StdUnixStream) -> io::Result<Self> {
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > ORDER_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the order is too long",
            ));
        }
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes)?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    }
}

/// `text`, if it is a path in one of these places, as a path where that place is.
fn where_it_is(text: OsString, places: &[(&str, &Path); 2]) -> OsString {
    let found = places
        .iter()
        .find_map(|(place, is)| Some((is, Path::new(&text).strip_prefix(place).ok()?)));
    match found {
        Some((is, rest)) if rest.as_os_str().is_empty() => is.as_os_str().to_owned(),
        Some((is, rest)) => is.join(rest).into(),
        None => text,
    }
}

/// Sends the order; returns the listener that comes back, and who may connect to it.
pub(super) async fn hand_over(
    socket: &UnixStream,
    order: &Order,
) -> io::Result<(TcpListener, Peers)> {
    send(socket, order).await?;
    let (listener, user) = socket
        .async_io(Interest::READABLE, || receive_listener(socket))
        .await?;
    listener.set_nonblocking(true)?;
    Ok((
        TcpListener::from_std(listener)?,
        Peers::of(user, order.network, order.is_isolated),
    ))
}

/// Sends a spare the order of its function; ends when it has become that.
pub(super) async fn adopt(socket: &UnixStream, order: &Order) -> io::Result<()> {
    send(socket, order).await?;
    let mut said = [0];
    let read = socket
        .async_io(Interest::READABLE, || socket.try_read(&mut said))
        .await?;
    if read == 0 || said != [ADOPTED] {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the spare has ended",
        ));
    }
    Ok(())
}

async fn send(socket: &UnixStream, order: &Order) -> io::Result<()> {
    let order = postcard::to_stdvec(order).map_err(io::Error::other)?;
    let mut bytes = (order.len() as u32).to_le_bytes().to_vec();
    bytes.extend(order);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        socket.writable().await?;
        match socket.try_write(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive_listener(socket: &UnixStream) -> io::Result<(std::net::TcpListener, u32)> {
    let mut user = [0; 4];
    let mut parts = [IoSliceMut::new(&mut user)];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let read = message.bytes;
    let descriptor = received(&message)?.filter(|_| read == size_of::<u32>());
    let Some(descriptor) = descriptor else {
        let why = if read == 0 {
            "its launcher ended:"
        } else {
            "the sandbox sent no listener"
        };
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
    };
    if !getsockopt(&descriptor, AcceptConn)? {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the sandbox sent something that is no listener",
        ));
    }
    Ok((
        std::net::TcpListener::from(descriptor),
        u32::from_le_bytes(user),
    ))
}

/// The function's wait status; none: it, or what waits for it, was killed.
pub(super) async fn status(socket: &UnixStream) -> Option<i32> {
    let mut bytes = [0; 4];
    let mut read = 0;
    while read < bytes.len() {
        socket.readable().await.ok()?;
        match socket.try_read(&mut bytes[read..]) {
            Ok(0) => return None,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    Some(i32::from_le_bytes(bytes))
}
