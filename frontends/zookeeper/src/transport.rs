//! The bytes of a connection: TCP, or TLS over it.
//!
//! A connection writes without waiting and then waits for room, bytes and the service together.
//! Over TCP both are calls of the kernel. TLS takes bytes that the kernel does not take yet, so it
//! may keep some.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use listener::Stream;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use crate::framing::Frames;

/// A connection that serves sessions.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) stream: Stream,
    has_kept: bool,
}

/// What a connection waited for.
#[derive(Debug)]
pub(crate) enum Ready {
    /// As many bytes were read. Zero means that the peer closed its side.
    Read(usize),
    /// [`Transport::try_write`] may take bytes, and nothing is kept.
    Writable,
}

impl Transport {
    pub(crate) fn new(stream: Stream) -> Self {
        let has_kept = false;
        Self { stream, has_kept }
    }

    /// Writes as much as it takes without waiting. Errors: `WouldBlock`.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let tls = match &mut self.stream {
            Stream::Plain(tcp) => return tcp.try_write(bytes),
            Stream::Tls(tls) => tls,
        };
        // `ready` is what wakes the connection.
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(written) = Pin::new(&mut *tls).poll_write(&mut context, bytes)? else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        self.has_kept = Pin::new(tls).poll_flush(&mut context)?.is_pending();
        Ok(written)
    }

    /// Whether it keeps bytes that only waiting for room sends.
    pub(crate) fn has_kept(&self) -> bool {
        self.has_kept
    }

    /// Reads once. Frees an empty buffer until bytes arrive, because most connections are idle.
    /// Cancellation safe.
    pub(crate) async fn read(&mut self, frames: &mut Frames) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, frames)).await
    }

    /// Waits until there is room to write. Cancellation safe.
    pub(crate) async fn writable(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_writable(context)).await
    }

    /// Reads or waits for room, whichever is first of those that are wanted. Cancellation safe.
    pub(crate) async fn ready(
        &mut self,
        frames: &mut Frames,
        reads: bool,
        writes: bool,
    ) -> io::Result<Ready> {
        poll_fn(|context| {
            if reads && let Poll::Ready(read) = self.poll_read(context, frames)? {
                return Poll::Ready(Ok(Ready::Read(read)));
            }
            if writes && self.poll_writable(context)?.is_ready() {
                return Poll::Ready(Ok(Ready::Writable));
            }
            Poll::Pending
        })
        .await
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        frames: &mut Frames,
    ) -> Poll<io::Result<usize>> {
        let read = pin!(self.stream.read_buf(frames.space())).poll(context);
        if read.is_pending() {
            frames.release_unused();
        }
        read
    }

    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => tcp.poll_write_ready(context),
            Stream::Tls(tls) => {
                ready!(Pin::new(tls).poll_flush(context))?;
                self.has_kept = false;
                Poll::Ready(Ok(()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use http_client::{Connection, Trust};
    use listener::{Tls, TlsFiles, tls::TlsStream};
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
        let (server, mut client) = pair().await;
        let mut writer = Transport::new(Stream::Tls(Box::new(server)));
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
