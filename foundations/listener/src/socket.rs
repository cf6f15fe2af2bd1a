//! A connection's socket with the clocks of its reads and writes, and its orderly end.

use std::{
    io,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

use crate::{
    body::PROGRESS_BYTES,
    config::{Config, FilesInMemory, Timeouts},
    exchange::Exchange,
    places::Place,
    stream::Stream,
};

/// How long a connection that ends still reads what its client sends.
pub const LINGER_MAX: Duration = Duration::from_secs(1);
/// How many bytes of that it reads.
pub const LINGER_BYTES_MAX: usize = 128 << 20;
/// The bytes of a response that the kernel holds for its client. With the default of megabytes the
/// next write is possible only after the client has taken a third of them, so a client that reads
/// steadily but slowly would seem to make no progress.
const UNSENT_BYTES_MAX: u32 = 2 * PROGRESS_BYTES as u32;
const LINGER_CHUNK_BYTES: usize = 64 * 1024;
/// Shorter slices are copied. They belong to short responses, which lie in the processor's cache: a copy costs less there than the
/// handling of pages.
const FILE_BYTES_MIN: usize = 128 << 10;

pub(crate) struct Socket {
    stream: Stream,
    place: Place,
    timeouts: Timeouts,
    exchange: Arc<Exchange>,
    /// Exchanges that had ended when the socket last looked.
    ended: usize,
    waits_for: WaitsFor,
    deadline: Pin<Box<Sleep>>,
    /// Runs while the client takes nothing of a response.
    write_deadline: Option<Pin<Box<Sleep>>>,
    linger: Option<Linger>,
    files: Option<Arc<dyn FilesInMemory>>,
}

/// The meaning of the client's next bytes, unless an exchange is in progress.
#[derive(Debug, Clone, Copy)]
enum WaitsFor {
    /// The first byte of a request, since then.
    Request { since: Instant },
    /// The rest of a head.
    Head,
}

/// The end of a connection whose client may still send.
struct Linger {
    deadline: Pin<Box<Sleep>>,
    bytes_left: usize,
    chunk: Box<[u8]>,
}

impl Socket {
    pub(crate) fn new(
        stream: Stream,
        place: Place,
        config: &Config,
        exchange: &Arc<Exchange>,
    ) -> Self {
        let timeouts = config.timeouts;
        // Responses are single small writes. A failure costs only delay.
        let _ = stream.tcp().set_nodelay(true);
        // A failure gives a slow client less time.
        let _ = SockRef::from(stream.tcp()).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
        let now = Instant::now();
        Self {
            place,
            timeouts,
            exchange: Arc::clone(exchange),
            ended: 0,
            waits_for: WaitsFor::Request { since: now },
            deadline: Box::pin(sleep(timeouts.idle_when_full.min(timeouts.idle))),
            write_deadline: None,
            linger: None,
            // The kernel cannot encrypt them.
            files: config.files.clone().filter(|_| !stream.is_encrypted()),
            stream,
        }
    }

    /// Notices exchanges that have ended since the last call: the connection is idle from here on.
    fn refresh(&mut self) {
        let ended = self.exchange.ended();
        if self.ended != ended {
            self.ended = ended;
            self.wait_for_request();
        }
    }

    fn wait_for_request(&mut self) {
        let now = Instant::now();
        self.waits_for = WaitsFor::Request { since: now };
        let first_check = self.timeouts.idle_when_full.min(self.timeouts.idle);
        self.deadline.as_mut().reset(now + first_check);
    }

    /// An error once the client has taken too long to send.
    fn poll_read_deadline(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.exchange.is_in_progress() {
            return Poll::Pending;
        }
        loop {
            ready!(self.deadline.as_mut().poll(context));
            let WaitsFor::Request { since } = self.waits_for else {
                return Poll::Ready(Err(timed_out("the head of a request took too long")));
            };
            let ends = since + self.timeouts.idle;
            let now = Instant::now();
            if self.place.is_full() || now >= ends {
                return Poll::Ready(Err(timed_out("the connection was idle for too long")));
            }
            let next_check = ends.min(now + self.timeouts.idle_when_full);
            self.deadline.as_mut().reset(next_check);
        }
    }

    fn received(&mut self, bytes: usize) {
        let is_first = matches!(self.waits_for, WaitsFor::Request { .. });
        if bytes > 0 && is_first && !self.exchange.is_in_progress() {
            self.waits_for = WaitsFor::Head;
            let ends = Instant::now() + self.timeouts.head;
            self.deadline.as_mut().reset(ends);
        }
    }

    /// Passes a write's result on. An error once the client has taken nothing for too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let progress_max = self.timeouts.progress;
        let deadline = self
            .write_deadline
            .get_or_insert_with(|| Box::pin(sleep(progress_max)));
        deadline
            .as_mut()
            .poll(context)
            .map(|()| Err(timed_out("the client took nothing of its response")))
    }

    /// Writes the slices before the first one that lies in a file, or that one from its file.
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let is_long = |slice: &io::IoSlice<'_>| slice.len() >= FILE_BYTES_MIN;
        let found = self.files.as_ref().and_then(|files| {
            let mut slices = slices.iter().enumerate();
            slices.find_map(|(index, slice)| {
                let part = is_long(slice).then(|| files.file_of(slice)).flatten();
                Some((index, part?))
            })
        });
        match found {
            Some((0, part)) => poll_send_file(self.stream.tcp(), context, &part, slices[0].len()),
            Some((index, _)) => {
                Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..index])
            }
            None => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        }
    }

    /// Whether the client may be sending something that nothing reads any more.
    fn may_receive(&mut self) -> bool {
        self.refresh();
        matches!(self.waits_for, WaitsFor::Head) || self.exchange.is_body_unread()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.refresh();
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                self.received(buffer.filled().len() - before);
                Poll::Ready(read)
            }
            Poll::Pending => self.poll_read_deadline(context),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    /// hyper flushes after the last byte of a response, and need not read again then. So the clock
    /// of the idle connection is armed here.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.refresh();
        if !self.exchange.is_in_progress() {
            // Once it is over the task is woken, and the next read reports that.
            let _ = self.deadline.as_mut().poll(context);
        }
        // TLS has bytes of its own that the client has yet to take.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, flushed)
    }

    /// Ends the connection. A close with bytes unread would be a reset, which takes the last
    /// response away from a client that sends everything before it reads.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            let shut_down = Pin::new(&mut this.stream).poll_shutdown(context);
            ready!(this.written(context, shut_down))?;
            if !this.may_receive() {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = this.linger.get_or_insert_with(|| Linger {
            deadline: Box::pin(sleep(LINGER_MAX)),
            bytes_left: LINGER_BYTES_MAX,
            chunk: vec![0; LINGER_CHUNK_BYTES].into(),
        });
        loop {
            if linger.bytes_left == 0 || linger.deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut chunk = ReadBuf::new(&mut linger.chunk);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut chunk))?;
            let bytes = chunk.filled().len();
            if bytes == 0 {
                return Poll::Ready(Ok(()));
            }
            linger.bytes_left = linger.bytes_left.saturating_sub(bytes);
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_send(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Has the kernel send up to `bytes` bytes from a place in a file. Their pages go out as they are, so nothing is copied.
fn poll_send_file(
    stream: &TcpStream,
    context: &mut Context<'_>,
    (file, offset): &(Arc<OwnedFd>, u64),
    bytes: usize,
) -> Poll<io::Result<usize>> {
    let offset = usize::try_from(*offset).map_err(io::Error::other)?;
    loop {
        ready!(stream.poll_write_ready(context))?;
        let socket = SockRef::from(stream);
        let send = || socket.sendfile(&**file, offset, NonZeroUsize::new(bytes));
        match stream.try_io(Interest::WRITABLE, send) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
    }
}

fn timed_out(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}
