//! Connections that cannot be held open for nothing.
//!
//! A peer that sends one byte a minute costs a connection for ever (the "slow loris"). Here a connection
//! has [`QUIET_MAX`] from its start, or from the last byte written to it, to bring a whole request, and
//! [`REQUEST_BYTES_MAX`] to bring it in; every read and write checks both. That also ends idle keep-alive
//! connections and peers that never read. No route takes longer than that to answer, so nothing else needs
//! a timer.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Connections at once; the next one waits in the kernel's queue until one ends.
pub(crate) const CONNECTIONS_MAX: usize = 256;
/// How long a connection may go without being answered.
pub(crate) const QUIET_MAX: Duration = Duration::from_secs(10);
/// Bytes of one request, headers and all; a longer one ends its connection.
pub(crate) const REQUEST_BYTES_MAX: usize = 128 * 1024;
/// How long to wait when the system has no more sockets to give.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listener whose connections are bounded in number, time and bytes.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Answers are single small writes; failing to say so costs only delay.
                    let _ = stream.set_nodelay(true);
                    return (Connection::new(stream, place), peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "http: a connection could not be accepted");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One bounded connection; its place is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    request_bytes: usize,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self { stream, deadline: Box::pin(sleep(QUIET_MAX)), request_bytes: 0, _place: place }
    }

    /// An error once the deadline has passed; pending, with the task to be woken then, before.
    fn poll_deadline<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.deadline
            .as_mut()
            .poll(context)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was quiet for too long")))
    }

    fn answered(&mut self, written: &io::Result<usize>) {
        if matches!(written, Ok(1..)) {
            self.deadline.as_mut().reset(Instant::now() + QUIET_MAX);
            self.request_bytes = 0;
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(ended) = self.poll_deadline(context) {
            return Poll::Ready(ended);
        }
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.request_bytes += buffer.filled().len() - before;
        if self.request_bytes > REQUEST_BYTES_MAX {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the request is too large")));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(written) => {
                self.answered(&written);
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_deadline(context),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, slices) {
            Poll::Ready(written) => {
                self.answered(&written);
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_deadline(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
