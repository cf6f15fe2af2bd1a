//! A connection that is read a little at a time.
//!
//! The HTTP parser doubles its read buffer whenever a read fills it, up to the longest head that it
//! accepts, and keeps it. Short reads never fill a buffer of 64 KiB. A connection that may send a
//! long head therefore takes as little memory as another one, unless it sends one.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};

/// One byte less than a read buffer holds.
pub(crate) const READ_BYTES_MAX: usize = 64 * 1024 - 1;

#[derive(Debug)]
pub(crate) struct ShortReads<S>(Take<S>);

impl<S: AsyncRead> ShortReads<S> {
    pub(crate) fn of(stream: S) -> Self {
        Self(stream.take(0))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ShortReads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.set_limit(READ_BYTES_MAX as u64);
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ShortReads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_shutdown(context)
    }
}
