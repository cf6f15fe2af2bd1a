//! The inside of an instance: the channels that the server opens to this program.
//!
//! [`instances`](crate::instances) describes the descriptors and the format. A program in Rust
//! needs neither.

use std::{
    env, io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    sync::Arc,
};

use futures_util::{Stream, stream};
use ports::instances::Channel;
use tokio::{io::Interest, net::UnixStream};

use crate::{
    instances::{CONTROL_VARIABLE, SocketChannel},
    system::{receive_with, take_control},
};

/// The channels that the server opens to this program, in their order. The stream ends when the
/// server is gone. It needs a runtime with I/O.
///
/// Errors: the server did not start this program as an instance.
pub fn channels_of_instance() -> io::Result<impl Stream<Item = Arc<dyn Channel>> + Send> {
    let number = env::var(CONTROL_VARIABLE).ok();
    let number = number.and_then(|number| number.parse().ok());
    let control = number.and_then(take_control).ok_or_else(|| {
        io::Error::other(format!(
            "{CONTROL_VARIABLE} is not the number of a descriptor, or was taken before"
        ))
    })?;
    let control = unix_stream(control)?;
    Ok(stream::unfold(control, |control| async move {
        match accept(&control).await {
            Ok(channel) => Some((channel?, control)),
            Err(error) => {
                tracing::error!(%error, "the instance accepts no more channels");
                None
            }
        }
    }))
}

/// The next channel; none: the server is gone.
async fn accept(control: &UnixStream) -> io::Result<Option<Arc<dyn Channel>>> {
    let receive = || receive_with(control, &mut [0]);
    let (bytes, descriptors) = control.async_io(Interest::READABLE, receive).await?;
    if bytes == 0 {
        return Ok(None);
    }
    let channel = descriptors.into_iter().next();
    let channel = channel.ok_or_else(|| io::Error::other("a channel has no descriptor"))?;
    let channel = SocketChannel::new(unix_stream(channel)?);
    Ok(Some(Arc::new(channel)))
}

fn unix_stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let socket = StdUnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
