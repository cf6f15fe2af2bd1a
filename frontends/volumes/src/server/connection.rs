//! One connection: reads requests, performs them, and writes their answers.
//!
//! One task does all of it. Most calls finish when they are first polled, so a request costs one
//! read and one write. The answers of one batch are sent in one write.

use std::{collections::BTreeMap, io, pin::pin, sync::Arc, time::Duration};

use bytes::{Buf as _, BytesMut};
use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixStream, unix::WriteHalf},
    sync::{OwnedSemaphorePermit, watch},
    time::{sleep, timeout},
};
use transactions::{Error, serializable::volumes::VolumeName};

use super::{
    Shared,
    calls::{self, Opened, Sender},
};
use crate::{
    frames::{self, ANSWER_BYTES_MAX, Frame, Frames, REQUEST_BYTES_MAX},
    send_buffer,
    wire::{
        Answer, Call, Hello, Refusal, Request, SessionKey, VERSION, VolumeNumber, Welcome,
        decode_request,
    },
};

/// How long a new connection may take to introduce itself.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long calls of a connection that is gone may take.
const FINISH_MAX: Duration = Duration::from_secs(30);
/// The most locks of a connection that wait.
const LOCKS_WAITING_MAX: usize = 10_000;
/// The most volumes that a connection has open.
const VOLUMES_MAX: usize = 1_024;
/// An empty buffer that is larger is given back, in bytes. One that has grown to an answer of 1 MiB
/// of data is kept.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// Serves a connection until it ends. Then waits for its session to come back, and ends it if it
/// does not.
pub(super) async fn serve(
    shared: Arc<Shared>,
    mut stream: UnixStream,
    mut stopped: watch::Receiver<bool>,
    place: OwnedSemaphorePermit,
) {
    send_buffer::enlarge(&stream);
    let introduced = timeout(HELLO_MAX, introduce(&shared, &mut stream)).await;
    let Ok(Ok(Some(session))) = introduced else {
        return;
    };
    let mut conversation = Conversation::new(Sender {
        shared: Arc::clone(&shared),
        session,
    });
    if let Err(error) = conversation.run(&mut stream, &mut stopped).await {
        tracing::warn!(%error, "a connection to volumes was closed");
    }
    drop(stream);
    conversation.finish().await;
    drop(place);
    let Some(ended) = shared.sessions.leave(session) else {
        return;
    };
    tokio::select! {
        biased;
        () = stop(&mut stopped) => {}
        () = sleep(shared.config.session_grace) => shared.sessions.end_if_away(session, ended).await,
    }
}

/// Returns when the server stops.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which is a stop too.
    let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
}

/// Exchanges the first messages. `None`: the connection is refused.
async fn introduce(shared: &Shared, stream: &mut UnixStream) -> io::Result<Option<SessionKey>> {
    let mut bytes = [0; Hello::BYTES];
    stream.read_exact(&mut bytes).await?;
    let Some(hello) = Hello::decode(&bytes) else {
        return Ok(None);
    };
    let entered = if hello.version == VERSION {
        shared.sessions.enter(hello.session)
    } else {
        Err(Refusal::Version(VERSION))
    };
    let welcome = entered.map(|is_resumed| Welcome {
        server: shared.epoch().server,
        is_resumed,
        may_reclaim: shared.reclaim_until().is_some(),
    });
    if let Err(error) = stream.write_all(&Welcome::encode(welcome)).await {
        if entered.is_ok() {
            shared.sessions.leave(hello.session);
        }
        return Err(error);
    }
    Ok(entered.is_ok().then_some(hello.session))
}

/// A call that has ended.
struct Finished {
    number: u64,
    /// The bytes of its request.
    bytes: usize,
    answer: Answer,
    /// The volume that it opened.
    opened: Option<(VolumeNumber, Opened)>,
}

struct Conversation {
    sender: Sender,
    frames: Frames,
    unsent: BytesMut,
    volumes: BTreeMap<VolumeNumber, Opened>,
    running: FuturesUnordered<BoxFuture<'static, Finished>>,
    /// The locks and calls for recalls among them, which may wait, by their numbers.
    locks: BTreeMap<u64, AbortHandle>,
    /// The bytes of running requests.
    bytes: usize,
}

impl Conversation {
    fn new(sender: Sender) -> Self {
        Self {
            sender,
            frames: Frames::new(REQUEST_BYTES_MAX),
            unsent: BytesMut::new(),
            volumes: BTreeMap::new(),
            running: FuturesUnordered::new(),
            locks: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Returns when the peer closed the connection, or the server stops. Errors: the peer does not
    /// speak the protocol.
    async fn run(
        &mut self,
        stream: &mut UnixStream,
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<(), frames::Fault> {
        let (mut reader, writer) = stream.split();
        let mut stopped = pin!(stop(stopped));
        let mut losses = self.sender.shared.losses.subscribe();
        loop {
            let (has_room, is_unsent) = (self.has_room(), !self.unsent.is_empty());
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(()),
                _ = losses.changed() => return Ok(()),
                Some(finished) = self.running.next() => {
                    self.finished(finished);
                    while let Some(Some(finished)) = self.running.next().now_or_never() {
                        self.finished(finished);
                    }
                }
                read = reader.read_buf(self.frames.buffer()), if has_room => {
                    if !matches!(read, Ok(1..)) {
                        return Ok(());
                    }
                }
                ready = writer.writable(), if is_unsent => {
                    if ready.is_err() {
                        return Ok(());
                    }
                }
            }
            while self.has_room() {
                let Some(frame) = self.frames.next_frame()? else {
                    break;
                };
                self.start(&frame);
            }
            // A lock may be one that the volume granted after it forgot the others.
            let is_lost = losses.has_changed().unwrap_or(true);
            if is_lost || self.send(&writer).is_err() {
                return Ok(());
            }
        }
    }

    /// Whether another request may begin.
    fn has_room(&self) -> bool {
        let config = &self.sender.shared.config;
        // Locks do not count: an unlock must get through however many wait.
        self.running.len() - self.locks.len() < config.requests_in_flight_max
            && self.bytes < config.bytes_in_flight_max
            && self.unsent.len() < config.bytes_in_flight_max
    }

    fn send(&mut self, writer: &WriteHalf<'_>) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match writer.try_write(&self.unsent) {
                Ok(sent) => self.unsent.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.unsent.capacity() > KEPT_BYTES_MAX {
            self.unsent = BytesMut::new();
        }
        Ok(())
    }

    /// Begins a request, and finishes it if it does not have to wait.
    fn start(&mut self, frame: &Frame) {
        let (number, bytes) = (frame.number, frame.body.len());
        match decode_request(&frame.body) {
            Err(error) => self.answer(number, &Answer::failed(&error)),
            Ok(Request::Cancel(number)) => {
                if let Some(lock) = self.locks.get(&number) {
                    lock.abort();
                }
            }
            Ok(Request::Close(volume)) => {
                self.volumes.remove(&volume);
                self.answer(number, &Answer::Done);
            }
            Ok(Request::Open(volume, name)) => {
                if self.volumes.len() >= VOLUMES_MAX {
                    let error = Error::TooLarge("one client process opens at most 1,024 volumes");
                    return self.answer(number, &Answer::failed(&error));
                }
                let opened = open(self.sender.clone(), volume, name);
                self.run_call(
                    opened
                        .map(move |(answer, opened)| Finished {
                            number,
                            bytes,
                            answer,
                            opened,
                        })
                        .boxed(),
                    bytes,
                );
            }
            Ok(Request::On(volume, call)) => self.call((number, bytes), volume, call),
            Ok(request) => {
                let answer = calls::of_all(self.sender.clone(), request);
                self.run_call(finish((number, bytes), answer), bytes);
            }
        }
    }

    fn call(&mut self, (number, bytes): (u64, usize), volume: VolumeNumber, call: Call) {
        let Some(opened) = self.volumes.get(&volume) else {
            return self.answer(number, &Answer::failed(&Error::NoSuchVolume));
        };
        let may_wait = matches!(call, Call::Lock(..) | Call::Recalled(..));
        let answer = calls::of_one(self.sender.clone(), opened.clone(), call);
        if !may_wait {
            return self.run_call(finish((number, bytes), answer), bytes);
        }
        if self.locks.len() >= LOCKS_WAITING_MAX {
            let error = Error::TooLarge("at most 10,000 locks of a client process wait");
            return self.answer(number, &Answer::failed(&error));
        }
        let (abort, registration) = AbortHandle::new_pair();
        let answer = Abortable::new(answer, registration);
        let answer = answer.map(|answer| answer.unwrap_or(Answer::Cancelled));
        self.locks.insert(number, abort);
        self.run_call(finish((number, bytes), answer), bytes);
    }

    fn run_call(&mut self, mut call: BoxFuture<'static, Finished>, bytes: usize) {
        self.bytes += bytes;
        match call.as_mut().now_or_never() {
            Some(finished) => self.finished(finished),
            None => self.running.push(call),
        }
    }

    fn finished(&mut self, finished: Finished) {
        self.bytes -= finished.bytes;
        self.locks.remove(&finished.number);
        if let Some((number, opened)) = finished.opened {
            self.volumes.insert(number, opened);
        }
        if let Some(point) = finished.answer.point() {
            self.sender.shared.saw(point);
        }
        self.answer(finished.number, &finished.answer);
    }

    fn answer(&mut self, number: u64, answer: &Answer) {
        if !frames::put(&mut self.unsent, number, answer, ANSWER_BYTES_MAX) {
            let error = Error::TooLarge("the answer is longer than 16 MiB");
            let failed = Answer::failed(&error);
            let _ = frames::put(&mut self.unsent, number, &failed, ANSWER_BYTES_MAX);
        }
    }

    /// Ends waits, and lets calls finish: a commit may be in the middle.
    async fn finish(mut self) {
        for lock in self.locks.values() {
            lock.abort();
        }
        let all_ended = async { while self.running.next().await.is_some() {} };
        if timeout(FINISH_MAX, all_ended).await.is_err() {
            tracing::warn!("calls of a client that is gone did not end and are dropped");
        }
    }
}

fn finish(
    (number, bytes): (u64, usize),
    answer: impl Future<Output = Answer> + Send + 'static,
) -> BoxFuture<'static, Finished> {
    let finished = answer.map(move |answer| Finished {
        number,
        bytes,
        answer,
        opened: None,
    });
    finished.boxed()
}

async fn open(
    sender: Sender,
    number: VolumeNumber,
    name: VolumeName,
) -> (Answer, Option<(VolumeNumber, Opened)>) {
    match sender.shared.volumes.open(&name).await {
        Ok(volume) => {
            let answer = Answer::Opened(volume.block_bytes());
            (answer, Some((number, Opened { name, volume })))
        }
        Err(error) => (Answer::failed(&error), None),
    }
}
