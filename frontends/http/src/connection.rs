//! Connections that cannot be held open for nothing.
//!
//! A peer that sends one byte a minute costs a connection for ever (the "slow loris"). Here a connection
//! has [`QUIET_MAX`] to get on: to bring [`PROGRESS_BYTES`] or the rest of its request, to be answered, to
//! begin the next one. Every read and write checks that. It also ends idle keep-alive connections and peers
//! that never read, and it bounds how long a route may take. A request has a bound in bytes besides.
//!
//! The first byte of a request starts the time anew: a request that follows a long silence would otherwise be
//! cut off while it is worked on.
//!
//! What is no request never reaches a route: hyper refuses it with a bare status, which leaves as a problem document
//! ([`crate::refusals`]). That is looked for only while no byte of a route's answer can be on its way: from the end of an answer's body
//! and the flush behind it to the next request that reaches a route.
//!
//! A connection that ends is not closed under its peer's hands ([`crate::ending`]). One for which there is no place is told so, and
//! ended alike; so is one that speaks HTTP/2. Whoever cannot even be told for now waits in the system's queue: to somebody who asks whether
//! this server lives, an end without a word would say that it does not.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Extension,
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request, connect_info::Connected},
    serve::{IncomingStream, Listener},
};
use hyper::body::{Frame, SizeHint};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

use crate::{
    ending::{ENDS_MAX, Wire},
    refusals,
};

/// How long a connection may go without getting on.
pub(crate) const QUIET_MAX: Duration = Duration::from_secs(10);
/// What counts as getting on while a request is received; of an answer it is about this as well.
pub(crate) const PROGRESS_BYTES: usize = 64 * 1024;
/// So much of an answer waits in the system for its peer at the most. Without a bound those are megabytes, and the next write is possible
/// only once a third of them has gone: a peer that reads steadily, and not fast, would seem to do nothing meanwhile.
const UNSENT_BYTES_MAX: u32 = 2 * PROGRESS_BYTES as u32;
/// How long to wait when the system has no more sockets to give.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How whoever speaks HTTP/2 without being asked begins.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A listener whose connections are bounded in number, time and bytes.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: TcpListener,
    connections_max: usize,
    places: Arc<Semaphore>,
    /// Places of those that end.
    ends: Arc<Semaphore>,
    request_bytes_max: usize,
    /// Whether none could be accepted when it was last tried, which is said once.
    is_failing: bool,
    /// Whether there was no place for the last one, which is said once.
    is_full: bool,
}

impl Bounded {
    /// Connections of `listener`, so many at once; one request, headers and all, has at most `request_bytes_max`.
    pub(crate) fn new(
        listener: TcpListener,
        connections_max: usize,
        request_bytes_max: usize,
    ) -> Self {
        Self {
            listener,
            connections_max,
            places: Arc::new(Semaphore::new(connections_max)),
            ends: Arc::new(Semaphore::new(ENDS_MAX)),
            request_bytes_max,
            is_failing: false,
            is_full: false,
        }
    }

    async fn accept_any(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!("http: connections are accepted again");
                    }
                    return accepted;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(%error, "http: cannot accept connections; those that are open are served");
                    }
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Waits until whoever comes next can be served, or be told that it cannot.
    async fn room(&self) -> Room {
        const NEVER_CLOSED: &str = "nobody closes it";
        tokio::select! {
            biased;
            place = Arc::clone(&self.places).acquire_owned() => Room::Place(place.expect(NEVER_CLOSED)),
            end = Arc::clone(&self.ends).acquire_owned() => Room::End(end.expect(NEVER_CLOSED)),
        }
    }

    /// Says why, once to the log and to each peer.
    fn turn_away(&mut self, wire: Wire) {
        if !std::mem::replace(&mut self.is_full, true) {
            tracing::warn!(
                connections = self.connections_max,
                "http: more connections than there are places; the last ones are refused"
            );
        }
        tokio::spawn(wire.turn_away(refusals::no_place(self.connections_max)));
    }
}

/// What there is for the next connection.
enum Room {
    /// A place of those that are served.
    Place(OwnedSemaphorePermit),
    /// One of those that end.
    End(OwnedSemaphorePermit),
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let room = self.room().await;
            let (stream, peer) = self.accept_any().await;
            // Answers are single small writes; failing to say so costs only delay.
            let _ = stream.set_nodelay(true);
            // Without it a slow peer has less time.
            let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
            let place = match room {
                Room::Place(place) => Ok(place),
                // One may have been given back since.
                Room::End(end) => Arc::clone(&self.places)
                    .try_acquire_owned()
                    .map_err(|_| end),
            };
            match place {
                Ok(place) => {
                    self.is_full = false;
                    let wire = Wire::new(stream, place);
                    return (
                        Connection::new(wire, Arc::clone(&self.ends), self.request_bytes_max),
                        peer,
                    );
                }
                Err(end) => self.turn_away(Wire::new(stream, end)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One bounded connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// None once it has ended.
    wire: Option<Wire>,
    ends: Arc<Semaphore>,
    /// Whether anything has been read from it.
    has_begun: bool,
    deadline: Pin<Box<Sleep>>,
    request_bytes: usize,
    request_bytes_max: usize,
    patience: Patience,
    /// What is being written in place of what hyper gave.
    instead: Option<Instead>,
}

#[derive(Debug)]
struct Instead {
    answer: Vec<u8>,
    written: usize,
    /// How many bytes it stands for.
    stands_for: usize,
}

/// What a route says to its connection: while it waits for what may take long, the connection may be quiet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience {
    said: Arc<Said>,
    peer: Option<SocketAddr>,
}

/// That of the connection that a request came over, if it came over one of ours.
pub(crate) type OfConnection = Option<Extension<ConnectInfo<Patience>>>;

/// From here on the connection that a request came over may be quiet, until this is dropped.
pub(crate) fn wait(connection: &OfConnection) -> Option<Waits<'_>> {
    connection
        .as_ref()
        .map(|Extension(ConnectInfo(patience))| patience.wait())
}

#[derive(Debug, Default)]
struct Said {
    waiting: AtomicUsize,
    /// A route's answer may be on its way.
    is_answering: AtomicBool,
    /// The last of its bytes has been handed over.
    has_answered: AtomicBool,
}

/// While this is held, the connection may be quiet.
#[derive(Debug)]
pub(crate) struct Waits<'a>(&'a Patience);

/// While this is held, what the connection writes is a route's.
#[derive(Debug)]
pub(crate) struct Answering(Patience);

/// The body of an answer, until its end.
struct Answer {
    body: Body,
    _answering: Answering,
}

impl Patience {
    /// That of the connection that brought `request`; none: it came over none of ours.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        request
            .extensions()
            .get::<ConnectInfo<Self>>()
            .map(|ConnectInfo(patience)| patience.clone())
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// From here on the connection may be quiet.
    pub(crate) fn wait(&self) -> Waits<'_> {
        self.said.waiting.fetch_add(1, Ordering::Relaxed);
        Waits(self)
    }

    /// From here on what the connection writes is a route's.
    pub(crate) fn answer(&self) -> Answering {
        self.said.has_answered.store(false, Ordering::Relaxed);
        self.said.is_answering.store(true, Ordering::Relaxed);
        Answering(self.clone())
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.said.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.said.has_answered.store(true, Ordering::Relaxed);
    }
}

impl Answering {
    /// Holds on until `body` has been handed over.
    pub(crate) fn until_the_end_of(self, body: Body) -> Body {
        Body::new(Answer {
            body,
            _answering: self,
        })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Patience {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self {
            peer: Some(*stream.remote_addr()),
            ..stream.io().patience.clone()
        }
    }
}

impl Connection {
    fn new(wire: Wire, ends: Arc<Semaphore>, request_bytes_max: usize) -> Self {
        let deadline = Box::pin(sleep(QUIET_MAX));
        let patience = Patience::default();
        Self {
            wire: Some(wire),
            ends,
            has_begun: false,
            deadline,
            request_bytes: 0,
            request_bytes_max,
            patience,
            instead: None,
        }
    }

    /// The socket. Errors: the connection has ended.
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let ended = || io::Error::new(io::ErrorKind::NotConnected, "the connection has ended");
        self.wire
            .as_mut()
            .map(|wire| Pin::new(&mut wire.stream))
            .ok_or_else(ended)
    }

    /// Ends the connection, once. Nothing is read from it or written to it any more.
    fn end(&mut self, last_words: Vec<u8>) {
        if let Some(wire) = self.wire.take() {
            tokio::spawn(wire.apart(&self.ends).end(last_words));
        }
    }

    /// Whether the first that has been read of the connection says that its peer speaks HTTP/2.
    fn is_http_2(&mut self, read: &[u8]) -> bool {
        let is_first = !read.is_empty() && !std::mem::replace(&mut self.has_begun, true);
        is_first && read.starts_with(HTTP_2)
    }

    /// An error once the deadline has passed; pending, with the task to be woken then, before.
    fn poll_deadline<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        while self.deadline.as_mut().poll(context).is_ready() {
            if self.patience.said.waiting.load(Ordering::Relaxed) == 0 {
                let why = "the connection was quiet for too long";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            self.got_on();
        }
        Poll::Pending
    }

    /// So many more bytes of a request have arrived.
    fn received(&mut self, bytes: usize) -> io::Result<()> {
        let before = self.request_bytes;
        self.request_bytes += bytes;
        if self.request_bytes > self.request_bytes_max {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the request is too large",
            ));
        }
        let has_begun = before == 0 && bytes > 0;
        if has_begun || before / PROGRESS_BYTES != self.request_bytes / PROGRESS_BYTES {
            self.got_on();
        }
        Ok(())
    }

    fn answered(&mut self, written: &io::Result<usize>) {
        if matches!(written, Ok(1..)) {
            self.got_on();
            self.request_bytes = 0;
        }
    }

    /// What leaves in place of `bytes`, the last of `stands_for`; none: they leave as they are.
    fn refuse_by_name(&mut self, bytes: &[u8], stands_for: usize) {
        let is_routed = self.patience.said.is_answering.load(Ordering::Relaxed);
        if self.instead.is_none() && !is_routed && bytes.len() == stands_for {
            let answer = refusals::in_place_of(bytes);
            self.instead = answer.map(|answer| Instead {
                answer,
                written: 0,
                stands_for,
            });
        }
    }

    /// Writes on what leaves in place of something else, which counts as written once all of it has left.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        loop {
            let Instead {
                answer,
                written,
                stands_for,
            } = self.instead.as_mut()?;
            if *written == answer.len() {
                let stands_for = *stands_for;
                self.instead = None;
                return Some(Poll::Ready(Ok(stands_for)));
            }
            let Some(wire) = &mut self.wire else {
                return None;
            };
            match Pin::new(&mut wire.stream).poll_write(context, &answer[*written..]) {
                Poll::Ready(Ok(bytes)) => *written += bytes,
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => return Some(self.poll_deadline(context)),
            }
        }
    }

    fn got_on(&mut self) {
        self.deadline.as_mut().reset(Instant::now() + QUIET_MAX);
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
        ready!(self.stream()?.poll_read(context, buffer))?;
        if self.is_http_2(&buffer.filled()[before..]) {
            // Read as if its peer had ended it before it began.
            buffer.set_filled(before);
            self.end(refusals::http_2());
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(self.received(buffer.filled().len() - before))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.refuse_by_name(bytes, bytes.len());
        if let Some(written) = self.poll_instead(context) {
            return written;
        }
        match self.stream()?.poll_write(context, bytes) {
            Poll::Ready(written) => {
                self.answered(&written);
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_deadline(context),
        }
    }

    /// All that was given has been written: of an answer that has been handed over nothing is left.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Said {
            is_answering,
            has_answered,
            ..
        } = &*self.patience.said;
        if has_answered.swap(false, Ordering::Relaxed) {
            is_answering.store(false, Ordering::Relaxed);
        }
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(Vec::new());
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = slices.iter().find(|slice| !slice.is_empty()) {
            self.refuse_by_name(first, slices.iter().map(|slice| slice.len()).sum());
        }
        if let Some(written) = self.poll_instead(context) {
            return written;
        }
        match self.stream()?.poll_write_vectored(context, slices) {
            Poll::Ready(written) => {
                self.answered(&written);
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_deadline(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.wire
            .as_ref()
            .is_some_and(|wire| wire.stream.is_write_vectored())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// More than any test here sends, in bytes.
    const PLENTY: usize = 1024 * 1024;
    const ALMOST_QUIET: Duration = Duration::from_secs(9);

    /// A bounded connection and its peer.
    async fn pair(request_bytes_max: usize) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut bounded = Bounded::new(listener, 1, request_bytes_max);
        let (peer, (connection, _)) = tokio::join!(TcpStream::connect(address), bounded.accept());
        (connection, peer.expect("it accepts"))
    }

    async fn hears(connection: &mut Connection, bytes: usize) -> io::Result<()> {
        connection.read_exact(&mut vec![0; bytes]).await.map(|_| ())
    }

    /// T15. Time stands still but for the pauses, as far as nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_gets_on_is_waited_for_and_one_that_does_not_is_ended() {
        let (mut connection, mut peer) = pair(PLENTY).await;
        for _ in 0..8 {
            peer.write_all(&vec![0; PROGRESS_BYTES])
                .await
                .expect("sent");
            hears(&mut connection, PROGRESS_BYTES)
                .await
                .expect("it gets on");
            sleep(ALMOST_QUIET).await;
        }
        peer.write_all(&vec![0; PROGRESS_BYTES - 1])
            .await
            .expect("sent");
        let ended = hears(&mut connection, PROGRESS_BYTES)
            .await
            .expect_err("one byte is missing");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }

    /// Else a peer that reads slowly and steadily would seem to do nothing for as long as it takes to read a third of it.
    #[tokio::test]
    async fn little_of_an_answer_waits_in_the_system_for_a_peer_that_does_not_read() {
        let (mut connection, _peer) = pair(PLENTY).await;
        let (answer, mut taken) = (vec![0; PROGRESS_BYTES], 0);
        while let Some(written) = connection.write(&answer).now_or_never() {
            taken += written.expect("it goes on");
        }
        assert!(taken < PLENTY, "{taken}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_after_a_silence_has_its_own_time_but_one_byte_buys_no_more() {
        let (mut connection, mut peer) = pair(PLENTY).await;
        sleep(ALMOST_QUIET).await;
        for _ in 0..2 {
            peer.write_all(b"x").await.expect("sent");
            hears(&mut connection, 1).await.expect("in time");
            sleep(ALMOST_QUIET / 2).await;
        }
        sleep(ALMOST_QUIET / 2).await;
        peer.write_all(b"x").await.expect("sent");
        let ended = hears(&mut connection, 1)
            .await
            .expect_err("its time is over");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_route_waits_may_be_quiet_and_no_longer() {
        let (mut connection, mut peer) = pair(PLENTY).await;
        let patience = connection.patience.clone();
        let waits = patience.wait();
        let (heard, ()) = tokio::join!(hears(&mut connection, 1), async {
            sleep(10 * QUIET_MAX).await;
            peer.write_all(b"x").await.expect("sent");
        });
        heard.expect("it was waited for");
        drop(waits);
        let ended = hears(&mut connection, 1)
            .await
            .expect_err("nobody waits any more");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_request_ends_at_its_bound_and_an_answer_begins_the_next() {
        let (mut connection, mut peer) = pair(4).await;
        for _ in 0..2 {
            peer.write_all(b"four").await.expect("sent");
            hears(&mut connection, 4).await.expect("within bounds");
            connection.write_all(b"ok").await.expect("answered");
        }
        peer.write_all(b"five!").await.expect("sent");
        let ended = hears(&mut connection, 5).await.expect_err("too large");
        assert_eq!(ended.kind(), io::ErrorKind::InvalidData);
    }

    /// Whoever ends a connection, such as a server that stops, does not wait for its peer; whose sending is no reset.
    #[tokio::test(start_paused = true)]
    async fn an_end_is_not_waited_for_and_takes_what_is_still_sent() {
        let (mut connection, mut peer) = pair(PLENTY).await;
        let began = Instant::now();
        connection.write_all(b"no").await.expect("answered");
        connection.shutdown().await.expect("ended");
        drop(connection);
        assert_eq!(Instant::now(), began);
        peer.write_all(&vec![0; PLENTY]).await.expect("taken");
        peer.shutdown().await.expect("all is sent");
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.expect("no reset");
        assert_eq!(answer, b"no");
    }
}
