//! Ends of connections: last words that arrive.
//!
//! A connection that ends while its peer still sends is not closed under its hands: a close with bytes unread is a reset, which
//! takes the last answer away from who sends everything before it reads. So who ends a connection here says that nothing more
//! will come, and reads and forgets what arrives, [for a moment](LINGER_FOR) and [so many bytes](LINGER_BYTES_MAX) at the most. No stop of
//! the server waits for it.
//!
//! Connections that end have [places of their own](ENDS_MAX), and whoever is turned away for want of a place takes one of these. Where all
//! are taken, a connection that was served keeps its place until it has ended.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// How many connections end at a time beside those that are served.
pub(crate) const ENDS_MAX: usize = 64;
/// How long one that is to be turned away may take to ask: who is answered before takes that for nobody's answer.
const ASKED_WITHIN: Duration = Duration::from_millis(500);
/// How long a peer may go on sending what nobody reads, and take to read why.
const LINGER_FOR: Duration = Duration::from_secs(1);
/// How much of that is taken: twice the longest value.
const LINGER_BYTES_MAX: usize = 128 << 20;
/// How much of it at a time.
const LINGER_CHUNK_BYTES: usize = 64 * 1024;

/// A connection's socket and its place, which is given back with it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            _place: place,
        }
    }

    /// The same at a place of `ends`, if there is one: its own can be another's from here on.
    pub(crate) fn apart(self, ends: &Arc<Semaphore>) -> Self {
        match Arc::clone(ends).try_acquire_owned() {
            Ok(place) => Self {
                _place: place,
                ..self
            },
            Err(_) => self,
        }
    }

    /// Ends it with its last words, which may be none, and takes what its peer sends meanwhile.
    pub(crate) async fn end(mut self, last_words: Vec<u8>) {
        let ending = async {
            self.say(&last_words).await?;
            self.linger().await
        };
        // Whatever is left unread then is the peer's own trouble.
        let _ = timeout(LINGER_FOR, ending).await;
    }

    /// Ends it with the answer to whatever its peer asks, and at once if that is nothing: then nothing is left unread.
    pub(crate) async fn turn_away(mut self, answer: Vec<u8>) {
        let has_asked = timeout(ASKED_WITHIN, self.stream.peek(&mut [0]))
            .await
            .is_ok();
        if has_asked {
            return self.end(answer).await;
        }
        let _ = timeout(LINGER_FOR, self.say(&answer)).await;
    }

    async fn say(&mut self, last_words: &[u8]) -> io::Result<()> {
        self.stream.write_all(last_words).await?;
        self.stream.shutdown().await
    }

    /// Reads and forgets.
    async fn linger(&mut self) -> io::Result<()> {
        let mut left = LINGER_BYTES_MAX;
        let mut rest = vec![0; LINGER_CHUNK_BYTES];
        while left > 0 {
            match self.stream.read(&mut rest).await? {
                0 => break,
                bytes => left = left.saturating_sub(bytes),
            }
        }
        Ok(())
    }
}
