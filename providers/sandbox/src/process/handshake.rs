//! The server's side of the conversation with a launched process.
//!
//! The process answers an [order](crate::order) with a listener and the number of the function's
//! user, once. At the end it sends the four bytes of the function's wait status. A spare confirms
//! its second order with one byte. Each side trusts the other as little as it must: a descriptor
//! from a sandbox is refused unless it is a listening socket.

use std::{
    io,
    os::fd::{AsRawFd as _, RawFd},
};

use nix::sys::socket::{getsockopt, sockopt::AcceptConn};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::{TcpListener, UnixStream},
};

use super::peers::Peers;
use crate::{
    order::{ADOPTED, Order},
    system::{receive_with, send_with},
};

/// Sends the order. Returns the listener that comes back, and the peers that may connect to it.
pub(super) async fn hand_over(
    socket: &mut UnixStream,
    order: &Order,
) -> io::Result<(TcpListener, Peers)> {
    send(socket, order).await?;
    let (listener, user) = socket
        .async_io(Interest::READABLE, || receive_listener(socket))
        .await?;
    listener.set_nonblocking(true)?;
    Ok((
        TcpListener::from_std(listener)?,
        Peers::of(user, order.launch.network, order.isolation.is_isolated),
    ))
}

/// Sends a spare the order of its function. Returns when the spare has become its instance.
pub(super) async fn adopt(socket: &mut UnixStream, order: &Order) -> io::Result<()> {
    send(socket, order).await?;
    match socket.read_u8().await? {
        ADOPTED => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn send(socket: &mut UnixStream, order: &Order) -> io::Result<()> {
    let bytes = order.encode()?;
    let descriptors = order.launch.descriptors.iter();
    let descriptors: Vec<RawFd> = descriptors.map(|(_, fd)| fd.as_raw_fd()).collect();
    let first = || send_with(socket, &bytes[..1], &descriptors);
    let sent = socket.async_io(Interest::WRITABLE, first).await?;
    socket.write_all(&bytes[sent..]).await
}

fn receive_listener(socket: &UnixStream) -> io::Result<(std::net::TcpListener, u32)> {
    let mut user = [0; 4];
    let (read, descriptors) = receive_with(socket, &mut user)?;
    let descriptor = descriptors
        .into_iter()
        .next()
        .filter(|_| read == size_of::<u32>());
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
            "the sandbox sent a descriptor that is not a listener",
        ));
    }
    Ok((
        std::net::TcpListener::from(descriptor),
        u32::from_le_bytes(user),
    ))
}

/// The function's wait status; none: the function, or its parent in the sandbox, was killed.
pub(super) async fn status(socket: &mut UnixStream) -> Option<i32> {
    socket.read_i32_le().await.ok()
}
