//! The body of a request, with a clock and a bound in bytes.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::{config::Config, exchange::Exchange};

/// The bytes of a body that restart its clock.
pub const PROGRESS_BYTES: usize = 64 * 1024;

/// The body of a request.
///
/// Errors: [`io::ErrorKind::TimedOut`] if it makes no progress, [`io::ErrorKind::FileTooLarge`]
/// beyond the listener's bound, other kinds if the connection breaks.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Incoming,
    exchange: Arc<Exchange>,
    /// Runs from the first time that the body had to be waited for.
    deadline: Option<Pin<Box<Sleep>>>,
    progress_max: Duration,
    bytes: u64,
    bytes_max: u64,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, exchange: &Arc<Exchange>, config: &Config) -> Self {
        exchange.set_body_unread(!incoming.is_end_stream());
        Self {
            incoming,
            exchange: Arc::clone(exchange),
            deadline: None,
            progress_max: config.timeouts.progress,
            bytes: 0,
            bytes_max: config.body_bytes_max,
        }
    }

    fn received(&mut self, bytes: usize) -> io::Result<()> {
        let before = self.bytes;
        self.bytes += bytes as u64;
        if self.bytes > self.bytes_max {
            let why = format!("the body has more than {} bytes", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let progress = PROGRESS_BYTES as u64;
        if before / progress != self.bytes / progress
            && let Some(deadline) = &mut self.deadline
        {
            deadline.as_mut().reset(Instant::now() + self.progress_max);
        }
        Ok(())
    }

    fn poll_deadline<T>(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        let progress_max = self.progress_max;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(progress_max)));
        deadline.as_mut().poll(context).map(|()| {
            let why = format!(
                "neither {PROGRESS_BYTES} bytes of the body nor its end arrived within {} s",
                progress_max.as_secs()
            );
            Some(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
        })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) else {
            return self.poll_deadline(context);
        };
        let frame = frame.transpose().map_err(io::Error::other)?;
        if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
            self.received(data.len())?;
        }
        if frame.is_none() || self.incoming.is_end_stream() {
            self.exchange.set_body_unread(false);
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
