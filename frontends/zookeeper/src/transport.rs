//! The bytes of a connection: TCP, or TLS over it.
//!
//! A connection writes without waiting and then waits for room, bytes and the service together.
//! Over TCP both are calls of the kernel. TLS takes bytes that the kernel does not take yet, so a
//! writer also says whether it keeps some.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use listener::tls::TlsStream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, tcp},
};

/// A connection that serves sessions.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {
    type Reader<'a>: AsyncRead + Unpin
    where
        Self: 'a;
    type Writer<'a>: Writer
    where
        Self: 'a;

    fn tcp(&self) -> &TcpStream;

    fn split(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>);
}

/// The side that sends.
pub(crate) trait Writer: AsyncWrite + Unpin {
    /// Waits until [`Writer::try_write`] may take bytes, and nothing is kept. Cancellation safe.
    async fn writable(&mut self) -> io::Result<()>;

    /// Writes as much as it takes without waiting. Errors: `WouldBlock`.
    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Whether it keeps bytes that only [`Writer::writable`] sends.
    fn has_kept(&self) -> bool;
}

impl Transport for TcpStream {
    type Reader<'a> = tcp::ReadHalf<'a>;
    type Writer<'a> = tcp::WriteHalf<'a>;

    fn tcp(&self) -> &TcpStream {
        self
    }

    fn split(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>) {
        TcpStream::split(self)
    }
}

impl Writer for tcp::WriteHalf<'_> {
    #[inline]
    async fn writable(&mut self) -> io::Result<()> {
        tcp::WriteHalf::writable(self).await
    }

    #[inline]
    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        tcp::WriteHalf::try_write(self, bytes)
    }

    #[inline]
    fn has_kept(&self) -> bool {
        false
    }
}

impl Transport for TlsStream {
    type Reader<'a> = tokio::io::ReadHalf<&'a mut Self>;
    type Writer<'a> = TlsWriter<'a>;

    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }

    fn split(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>) {
        let (reader, half) = tokio::io::split(self);
        let writer = TlsWriter {
            half,
            has_kept: false,
        };
        (reader, writer)
    }
}

/// The side of a TLS connection that sends.
#[derive(Debug)]
pub(crate) struct TlsWriter<'a> {
    half: tokio::io::WriteHalf<&'a mut TlsStream>,
    has_kept: bool,
}

impl Writer for TlsWriter<'_> {
    async fn writable(&mut self) -> io::Result<()> {
        poll_fn(|context| Pin::new(&mut self.half).poll_flush(context)).await?;
        self.has_kept = false;
        Ok(())
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // `writable` is what wakes the connection.
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut *self).poll_write(&mut context, bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn has_kept(&self) -> bool {
        self.has_kept
    }
}

impl AsyncWrite for TlsWriter<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.half).poll_write(context, bytes))?;
        self.has_kept = match Pin::new(&mut self.half).poll_flush(context) {
            Poll::Ready(flushed) => flushed.map(|()| false)?,
            Poll::Pending => true,
        };
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use http_client::{Connection, Trust};
    use listener::{Tls, TlsFiles};
    use tokio::{io::AsyncReadExt as _, net::TcpListener};

    use super::*;

    /// The two ends of a TLS connection.
    async fn pair() -> (TlsStream, Connection) {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/clients/testdata/tls"
        );
        let of = |name: &str| format!("{folder}/{name}.pem").into();
        let tls = Tls::load(TlsFiles {
            certificate: of("server"),
            key: of("server-key"),
            client_ca: None,
        });
        let tls = tls.expect("good files");
        let trust = Trust::in_file(Path::new(&format!("{folder}/ca.pem"))).expect("an authority");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let connect = async {
            let uri = format!("https://{address}").parse().expect("an address");
            let connected = http_client::connect(uri, &trust, Duration::from_secs(10)).await;
            connected.expect("a handshake")
        };
        let accept = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            tls.accept(stream).await.expect("a handshake")
        };
        tokio::join!(accept, connect)
    }

    #[tokio::test]
    async fn a_writer_says_that_it_keeps_bytes_and_sends_them_once_there_is_room() {
        let (mut server, mut client) = pair().await;
        let (_reader, mut writer) = server.split();
        let mut taken = 0;
        while !writer.has_kept() {
            taken += writer
                .try_write(&[7; 1000])
                .expect("it keeps what is too much");
        }
        let received = tokio::spawn(async move {
            let mut received = vec![0; taken];
            client.read_exact(&mut received).await.map(|_| received)
        });
        writer.writable().await.expect("there is room again");
        assert!(!writer.has_kept());
        let received = received.await.expect("no panic").expect("all arrives");
        assert!(received.iter().all(|byte| *byte == 7));
    }
}
