//! One connection from its first byte to its last: the shell that reads, writes and waits.
//!
//! A turn takes every request that has arrived, lets the service work once, and sends every answer
//! with one write. Then the connection waits for bytes, room to write and the service together. A
//! turn takes at most as many requests as one connection may have in flight. Other tasks run
//! between turns, however much a peer sends.
//!
//! Back-pressure bounds what a peer can make this process hold. The connection reads nothing while
//! the service has no room or too many requests are in flight, and answers nothing while the peer
//! leaves too much unread. A peer that then neither reads nor sends anything for a session timeout
//! is disconnected.
//!
//! Requests before the last one, or before bytes that contain no request, are answered before the
//! connection closes. (ZooKeeper drops answers that are not ready when it finds such bytes.)

use std::{
    io,
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use coordination::{Client, ConnectError, Ended, model::Output};
use listener::{HandshakeError, Line, Stream, Tls, tls::client_subject};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    time::timeout,
};

use crate::{
    authentication::Authentication,
    conversation::{Conversation, Violation},
    figures::Entry,
    four_letter_words,
    framing::{Frames, Stranger},
    jute::{
        connect::{ConnectRequest, ConnectResponse},
        request::Fault,
    },
    peer::Peer,
    shared::Shared,
    transport::{Ready, Transport},
};

/// The first packet is 44 or 45 bytes long. The rest is for fields that later clients may append.
const FIRST_PACKET_BYTES_MAX: usize = 1024;
/// Output buffer that a connection keeps after a turn that needed less than a quarter of it, in
/// bytes.
const OUTGOING_BYTES_KEPT: usize = 64 << 10;
/// Bytes received and not parsed while the peer leaves too much unread. Enough for pings over more
/// than any session timeout.
const UNREAD_BYTES_KEPT: usize = 64 << 10;
/// How long, and for how many bytes, the server still reads after it has closed its side. So the
/// peer reads our last answer before the kernel reports that we did not read its last bytes.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 2 << 20;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the server is stopping")]
    Stopped,
    #[error("the peer disconnected")]
    PeerGone,
    #[error("the conversation is over")]
    Over,
    #[error("the first packet did not arrive in time")]
    Silent,
    #[error("no session could be opened in time")]
    NoSessionInTime,
    #[error("the peer stopped reading")]
    Stalled,
    #[error("answered a four-letter word")]
    Word,
    #[error("the peer speaks {0}, not ZooKeeper's protocol")]
    Foreign(&'static str),
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("{0}")]
    Violation(#[from] Violation),
    #[error("no session: {0}")]
    Refused(#[from] ConnectError),
    #[error("{0}")]
    Ended(#[from] Ended),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Serves a connection of the secure port from its handshake on.
pub(crate) async fn serve_encrypted(
    shared: &Shared,
    tls: &Tls,
    stream: TcpStream,
    peer: &mut Peer,
    stopped: &mut oneshot::Receiver<()>,
) {
    let accepted = tokio::select! {
        biased;
        _ = &mut *stopped => return,
        accepted = tls.accept(stream) => accepted,
    };
    match accepted {
        Ok(stream) => {
            peer.x509 = client_subject(&stream);
            let mut transport = Transport::new(Stream::Tls(Box::new(stream)));
            serve(shared, &mut transport, peer, stopped).await;
        }
        Err(HandshakeError::PeerGone) => report(shared, peer, &End::PeerGone),
        Err(error) => report(shared, peer, &error.into()),
    }
}

/// Serves a connection until either side ends it. The caller owns its parts, because a future
/// keeps each argument beside the place that it moves it to.
pub(crate) async fn serve(
    shared: &Shared,
    transport: &mut Transport,
    peer: &Peer,
    stopped: &mut oneshot::Receiver<()>,
) {
    let lingers = {
        let end = match converse(shared, transport, peer, stopped).await {
            Ok(end) | Err(end) => end,
        };
        report(shared, peer, &end);
        !matches!(
            end,
            End::PeerGone | End::Io(_) | End::Stalled | End::Stopped
        )
    };
    if lingers {
        // On the heap, like all that a connection does rarely, so that its task stays small.
        Box::pin(linger(&mut transport.stream)).await;
    }
}

/// Counts the end of a connection, and logs it where an operator should know.
fn report(shared: &Shared, peer: &Peer, end: &End) {
    match end {
        End::Foreign(_) | End::Violation(_) | End::Handshake(_) => {
            shared.statistics.malformed.add(1);
        }
        End::Refused(_) | End::NoSessionInTime => shared.statistics.sessions_refused.add(1),
        _ => {}
    }
    match end {
        End::Foreign(_)
        | End::Violation(_)
        | End::Handshake(_)
        | End::NoSessionInTime
        | End::Stalled => {
            if let Some(Line { suppressed }) = shared.log.line() {
                tracing::warn!(%peer, suppressed, %end, "connection closed");
            }
        }
        End::Refused(error) => {
            if let Some(Line { suppressed }) = shared.log.line() {
                tracing::info!(%peer, suppressed, %error, "connection closed without a session");
            }
        }
        End::Ended(Ended::Store(_) | Ended::LeaseLost) => {
            tracing::warn!(%peer, %end, "connection closed");
        }
        _ => tracing::debug!(%peer, %end, "connection closed"),
    }
}

async fn converse(
    shared: &Shared,
    transport: &mut Transport,
    peer: &Peer,
    stopped: &mut oneshot::Receiver<()>,
) -> Result<End, End> {
    transport.stream.tcp().set_nodelay(true)?;
    let mut connection = Box::pin(open(shared, transport, peer, stopped)).await?;
    let end = connection.talk(stopped).await;
    Box::pin(connection.finish(end)).await
}

/// Opens a connection's session.
async fn open<'a>(
    shared: &'a Shared,
    transport: &'a mut Transport,
    peer: &'a Peer,
    stopped: &mut oneshot::Receiver<()>,
) -> Result<Connection<'a>, End> {
    let mut frames = Frames::new(FIRST_PACKET_BYTES_MAX);
    let first_packet = first_packet(transport, &mut frames);
    let opening = tokio::select! {
        biased;
        _ = &mut *stopped => return Err(End::Stopped),
        opening = timeout(shared.config.first_packet_timeout, first_packet) => {
            opening.map_err(|_| End::Silent)??
        }
    };
    let figures = shared.figures.open(peer.address);
    let request = match opening {
        Opening::Client(request) => request,
        Opening::Stranger(stranger) => {
            return Err(greet(shared, stranger, peer, &mut transport.stream).await?);
        }
    };
    let mut client = open_session(shared, &request, &mut transport.stream).await?;
    let conversation = conversation(shared, peer);
    client.add_identities(conversation.authentication().of_peer());
    figures.has_session(client.session().0, client.timeout().as_millis());
    let mut outgoing = BytesMut::new();
    ConnectResponse {
        timeout_ms: i32::try_from(client.timeout().as_millis()).unwrap_or(i32::MAX),
        session: client.session(),
        password: client.password(),
        has_read_only: request.has_read_only,
    }
    .encode(&mut outgoing);
    frames.limit(shared.config.packet_bytes_max);
    Ok(Connection {
        shared,
        peer,
        figures,
        started: Instant::now(),
        transport,
        frames,
        conversation,
        violation: None,
        client,
        outputs: Vec::new(),
        encoded: 0,
        outgoing,
    })
}

fn conversation(shared: &Shared, peer: &Peer) -> Conversation {
    let super_digest = shared.config.super_digest.clone();
    let accounts = shared.config.accounts.clone();
    let is_required = shared.config.requires_authentication;
    let authentication = Authentication::new(
        peer.address.ip(),
        peer.x509.clone(),
        super_digest,
        accounts,
        is_required,
    );
    Conversation::new(match shared.config.secure {
        Some(_) => authentication.with_x509(),
        None => authentication,
    })
}

/// The first bytes of a connection.
enum Opening {
    Client(ConnectRequest),
    Stranger(Stranger),
}

async fn first_packet(transport: &mut Transport, frames: &mut Frames) -> Result<Opening, End> {
    loop {
        if let Some(stranger) = frames.prefix().and_then(Stranger::recognise) {
            return Ok(Opening::Stranger(stranger));
        }
        if let Some(frame) = frames.next_frame().map_err(Violation::from)? {
            let request = ConnectRequest::decode(frame).map_err(Violation::from)?;
            return Ok(Opening::Client(request));
        }
        let bytes = transport.read(frames).await?;
        if bytes == 0 {
            return Err(if frames.has_unfinished() {
                Violation::Unfinished.into()
            } else {
                End::PeerGone
            });
        }
        frames.received(bytes);
    }
}

async fn greet(
    shared: &Shared,
    stranger: Stranger,
    peer: &Peer,
    stream: &mut Stream,
) -> Result<End, End> {
    match stranger {
        Stranger::FourLetterWord(word) => {
            let text = four_letter_words::answer(word, peer.address, shared).await;
            timeout(LINGER, send_whole(stream, text.as_bytes()))
                .await
                .map_err(|_| End::Stalled)??;
            Ok(End::Word)
        }
        Stranger::Http => Err(End::Foreign("HTTP")),
        Stranger::Tls => Err(End::Foreign("TLS")),
    }
}

async fn open_session(
    shared: &Shared,
    request: &ConnectRequest,
    stream: &mut Stream,
) -> Result<Client, End> {
    let opened = async {
        let connect = request.connect().ok_or(ConnectError::Expired)?;
        shared.gateway.connect(connect).await
    };
    let opened = timeout(shared.config.connect_timeout, opened)
        .await
        .map_err(|_| End::NoSessionInTime)?;
    if matches!(opened, Err(ConnectError::Expired)) {
        let mut outgoing = BytesMut::new();
        ConnectResponse::expired(request.has_read_only).encode(&mut outgoing);
        timeout(LINGER, send_whole(stream, &outgoing))
            .await
            .map_err(|_| End::Stalled)??;
    }
    Ok(opened?)
}

async fn send_whole(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Closes our side, and gives the peer time to read our last answer.
async fn linger(stream: &mut Stream) {
    let rest = async {
        stream.shutdown().await?;
        let mut dropped = 0;
        let mut buffer = [0; 4096];
        while dropped < LINGER_BYTES_MAX {
            match stream.read(&mut buffer).await? {
                0 => break,
                bytes => dropped += bytes,
            }
        }
        io::Result::Ok(())
    };
    // The connection is over either way.
    let _ = timeout(LINGER, rest).await;
}

struct Connection<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
    figures: Entry<'a>,
    started: Instant,
    transport: &'a mut Transport,
    frames: Frames,
    conversation: Conversation,
    /// Why nothing more is read. The requests before it are still answered.
    violation: Option<Violation>,
    client: Client,
    /// Outputs of the service, encoded into `outgoing` up to `encoded`.
    outputs: Vec<Output>,
    encoded: usize,
    outgoing: BytesMut,
}

impl Connection<'_> {
    /// Ends the service's side of a conversation that ended with `end`.
    async fn finish(&mut self, end: Result<(), End>) -> Result<End, End> {
        if matches!(end, Err(End::PeerGone | End::Io(_))) {
            self.go_on_without_peer().await;
        }
        // A peer whose process ends or whose network breaks has not violated the protocol.
        if matches!(end, Err(End::PeerGone)) && self.frames.has_unfinished() {
            self.violation.get_or_insert(Violation::Unfinished);
        }
        // If the store does not respond now, the connection does not wait for it.
        let _ = timeout(LINGER, self.client.disconnect()).await;
        self.count();
        match self.violation.take() {
            Some(violation) => Err(violation.into()),
            None => end.map(|()| End::Over),
        }
    }

    async fn talk(&mut self, stopped: &mut oneshot::Receiver<()>) -> Result<(), End> {
        loop {
            self.turn().await?;
            if self.conversation.is_over() {
                return Box::pin(self.send_all()).await;
            }
            tokio::task::yield_now().await;
            if self.has_too_much_unsent() {
                Box::pin(self.wait_for_reader(stopped)).await?;
            } else if !(self.may_submit() && self.frames.has_next()) {
                self.wait(stopped).await?;
            }
        }
    }

    /// Answers what has arrived. A function of its own, so that a connection that waits keeps
    /// nothing of it.
    async fn turn(&mut self) -> Result<(), End> {
        self.submit();
        let ended = self.pump().await.err();
        let sent = self.send();
        self.count();
        let Some(ended) = ended else {
            return Ok(sent?);
        };
        match Box::pin(self.send_all()).await {
            Ok(()) | Err(End::Io(_)) => Err(ended.into()),
            stalled => stalled,
        }
    }

    /// Lets the service work once. Its state is on the heap, because an idle connection has none.
    async fn pump(&mut self) -> Result<(), Ended> {
        Box::pin(self.client.pump(&mut self.outputs)).await
    }

    /// Adds what this turn did to the figures of the connection and of the server.
    fn count(&mut self) {
        let queued = self.conversation.awaited();
        self.figures.add(&self.conversation.tally, queued);
        self.shared.statistics.add(&mut self.conversation.tally);
    }

    fn read_clock(&mut self) {
        let elapsed = self.started.elapsed().as_millis();
        self.conversation.now_ms = u32::try_from(elapsed).unwrap_or(u32::MAX);
    }

    /// Submits the requests that have arrived, while there is room.
    fn submit(&mut self) {
        self.read_clock();
        while self.may_submit() {
            match self.conversation.next_request(&mut self.frames) {
                Ok(Some((tag, request))) => {
                    if let Some(fault) = self.conversation.take_fault() {
                        self.report(fault);
                    }
                    self.client.submit(tag, request);
                }
                Ok(None) => break,
                Err(violation) => self.violation = Some(violation),
            }
        }
    }

    /// Counts and logs a request that no client sends.
    #[cold]
    fn report(&self, fault: Fault) {
        self.shared.statistics.malformed.add(1);
        if let Some(Line { suppressed }) = self.shared.log.line() {
            let session = format_args!("{:#x}", self.client.session().0);
            tracing::warn!(peer = %self.peer, suppressed, session, %fault, "request refused");
        }
    }

    fn may_submit(&self) -> bool {
        !self.conversation.is_ending()
            && self.conversation.awaited() < self.shared.config.requests_in_flight_max
            && self.client.has_room()
    }

    fn has_too_much_unsent(&self) -> bool {
        self.encoded < self.outputs.len()
            || self.outgoing.len() >= self.shared.config.unsent_bytes_max
    }

    /// Sends as much as the peer takes without waiting.
    fn send(&mut self) -> io::Result<()> {
        self.read_clock();
        loop {
            self.encode();
            if !self.write()? || self.outputs.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends until nothing is left.
    async fn send_all(&mut self) -> Result<(), End> {
        while !self.is_all_sent() {
            timeout(self.client.timeout(), self.transport.writable())
                .await
                .map_err(|_| End::Stalled)??;
            self.send()?;
        }
        Ok(())
    }

    fn is_all_sent(&self) -> bool {
        self.outgoing.is_empty() && self.outputs.is_empty() && !self.transport.has_kept()
    }

    /// Sends until half of the allowed unsent bytes are left. A peer that reads or sends anything
    /// meanwhile keeps its session, however long this takes.
    async fn wait_for_reader(&mut self, stopped: &mut oneshot::Receiver<()>) -> Result<(), End> {
        while self.outgoing.len() > self.shared.config.unsent_bytes_max / 2
            || !self.outputs.is_empty()
        {
            let stall = self.client.timeout();
            let may_read = self.frames.received_bytes() < UNREAD_BYTES_KEPT;
            tokio::select! {
                biased;
                _ = &mut *stopped => return Err(End::Stopped),
                ready = timeout(stall, self.transport.ready(&mut self.frames, may_read, true)) => {
                    match ready.map_err(|_| End::Stalled)?? {
                        Ready::Read(bytes) => self.received(bytes)?,
                        Ready::Writable => self.send()?,
                    }
                }
            }
            self.client.keep_alive().await?;
        }
        Ok(())
    }

    /// Records a read of this many bytes. Zero means that the peer closed its side.
    fn received(&mut self, bytes: usize) -> Result<(), End> {
        if bytes == 0 {
            return Err(End::PeerGone);
        }
        self.frames.received(bytes);
        self.conversation.tally.bytes_received += bytes as u64;
        Ok(())
    }

    /// Encodes outputs, up to the number of bytes that a peer may leave unread.
    fn encode(&mut self) {
        while self.outgoing.len() < self.shared.config.unsent_bytes_max
            && let Some(output) = self.outputs.get(self.encoded)
        {
            self.conversation.encode(output, &mut self.outgoing);
            self.encoded += 1;
        }
        if self.encoded == self.outputs.len() {
            self.outputs.clear();
            self.encoded = 0;
        }
    }

    /// Writes as much as the kernel takes. Returns whether that was all.
    fn write(&mut self) -> io::Result<bool> {
        let waiting = self.outgoing.len();
        while !self.outgoing.is_empty() {
            match self.transport.try_write(&self.outgoing) {
                Ok(bytes) => {
                    self.conversation.tally.bytes_sent += bytes as u64;
                    if bytes == self.outgoing.len() {
                        // Unlike advancing, this keeps the whole buffer for the next turn.
                        self.outgoing.clear();
                    } else {
                        self.outgoing.advance(bytes);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.outgoing.capacity() > OUTGOING_BYTES_KEPT && waiting < OUTGOING_BYTES_KEPT / 4 {
            self.outgoing = BytesMut::new();
        }
        Ok(true)
    }

    /// Frees what a connection without a request in flight does not need.
    fn release_unused(&mut self) {
        if self.conversation.awaited() == 0 && self.is_all_sent() {
            self.outgoing = BytesMut::new();
            self.outputs = Vec::new();
            self.conversation.release_unused();
        }
    }

    /// Waits for bytes, the service, or room to write.
    ///
    /// Bytes come first, so that a turn answers as many requests as it can; the service works in
    /// every turn, so it cannot starve.
    async fn wait(&mut self, stopped: &mut oneshot::Receiver<()>) -> Result<(), End> {
        self.release_unused();
        let may_read = self.may_submit();
        let may_write = !self.outgoing.is_empty() || self.transport.has_kept();
        tokio::select! {
            biased;
            _ = stopped => Err(End::Stopped),
            ready = self.transport.ready(&mut self.frames, may_read, may_write) => match ready? {
                Ready::Read(bytes) => self.received(bytes),
                Ready::Writable => Ok(()),
            },
            () = self.client.wait() => Ok(()),
        }
    }

    /// Submits the requests that a peer sent before it disconnected, and lets the service finish a
    /// close. The ephemerals of a closed session are deleted at once even if its client does not
    /// wait for the answer.
    async fn go_on_without_peer(&mut self) {
        self.discard();
        loop {
            self.submit();
            let ended = self.pump().await.is_err();
            self.discard();
            self.count();
            let is_unfinished = if self.conversation.is_ending() {
                !self.conversation.is_over()
            } else {
                self.frames.has_next() || self.client.has_unsent()
            };
            if ended
                || !is_unfinished
                || timeout(self.client.timeout(), self.client.wait())
                    .await
                    .is_err()
            {
                return;
            }
        }
    }

    /// Discards outputs that have no reader.
    fn discard(&mut self) {
        while !self.outputs.is_empty() {
            self.outgoing.clear();
            self.encode();
        }
    }
}
