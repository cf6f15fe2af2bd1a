//! Request bodies of instances, received within bounds.
//!
//! A function may begin bodies that it never finishes, and may even be frozen meanwhile. The
//! received parts take the server's memory. A body must therefore make progress, and all bodies of
//! a function share an [`Allowance`]. It is less than the server's bound for all functions.
//!
//! Bytes count from their arrival until their request is answered.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    Request,
    body::{Body, Frame, SizeHint},
};
use tokio::{
    sync::Semaphore,
    time::{Sleep, sleep},
};

/// The bound on all bodies of a function: half of the server's bound for the bodies of all
/// functions.
const ALLOWED_BYTES: usize = 128 << 20;
/// How long the next [`PROGRESS_BYTES`] of a body, or its end, may take.
const QUIET_MAX: Duration = Duration::from_secs(10);
const PROGRESS_BYTES: usize = 64 * 1024;

/// The bound on the bytes in all bodies of a function.
#[derive(Debug, Clone)]
pub(crate) struct Allowance(Arc<Semaphore>);

/// The received bytes of one request. They are released when both the body and this are dropped.
#[derive(Debug)]
pub(crate) struct Charged {
    allowance: Allowance,
    bytes: AtomicUsize,
}

impl Default for Allowance {
    fn default() -> Self {
        Self::of(ALLOWED_BYTES)
    }
}

impl Allowance {
    fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Bounds the body of `request`. The caller holds the second value until the request is
    /// answered.
    pub(crate) fn receive<B>(&self, request: Request<B>) -> (Request<Incoming<B>>, Arc<Charged>) {
        let charged = Arc::new(Charged {
            allowance: self.clone(),
            bytes: AtomicUsize::new(0),
        });
        let request = request.map(|body| Incoming {
            body,
            charged: Arc::clone(&charged),
            since_progress: 0,
            is_streamed: false,
            quiet: None,
        });
        (request, charged)
    }
}

impl Charged {
    fn charge(&self, bytes: usize) -> io::Result<()> {
        let full = || {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "this function is sending too many request bodies",
            )
        };
        let permit = u32::try_from(bytes)
            .ok()
            .and_then(|bytes| self.allowance.0.try_acquire_many(bytes).ok());
        permit.ok_or_else(full)?.forget();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.allowance.0.add_permits(*self.bytes.get_mut());
    }
}

/// The request body of an instance.
///
/// Errors: `QuotaExceeded` if the bodies of its function exceed their bound; `TimedOut` without
/// progress; the connection's own.
#[derive(Debug)]
pub struct Incoming<B = hyper::body::Incoming> {
    body: B,
    charged: Arc<Charged>,
    since_progress: usize,
    is_streamed: bool,
    /// The time-out, while the next part is awaited.
    quiet: Option<Pin<Box<Sleep>>>,
}

impl<B> Incoming<B> {
    /// Charges nothing from here on: the reader holds few bytes at a time, whatever the length.
    #[must_use]
    pub fn streamed(mut self) -> Self {
        self.is_streamed = true;
        self
    }
}

impl<B> Body for Incoming<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                self.since_progress += bytes;
                if self.since_progress >= PROGRESS_BYTES {
                    self.since_progress = 0;
                    self.quiet = None;
                }
                let charged = if self.is_streamed { 0 } else { bytes };
                Poll::Ready(Some(self.charged.charge(charged).map(|()| frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(io::Error::other(error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let quiet = self.quiet.get_or_insert_with(|| Box::pin(sleep(QUIET_MAX)));
                let late = || {
                    io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the request body makes no progress",
                    )
                };
                quiet.as_mut().poll(context).map(|()| Some(Err(late())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::{sync::mpsc, time::Instant};

    use super::*;

    type Frames = mpsc::Sender<usize>;

    /// A request whose body delivers as many bytes at a time as the sender says.
    fn request(
        allowance: &Allowance,
    ) -> (
        Frames,
        Request<Incoming<impl Body<Data = Bytes, Error = Infallible> + Unpin>>,
        Arc<Charged>,
    ) {
        let (send, receive) = mpsc::channel(16);
        let frames =
            futures_util::stream::unfold(receive, async |mut receive: mpsc::Receiver<usize>| {
                let bytes = receive.recv().await?;
                Some((Ok(Frame::data(Bytes::from(vec![0; bytes]))), receive))
            });
        let (request, charged) = allowance.receive(Request::new(StreamBody::new(Box::pin(frames))));
        (send, request, charged)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_progress_is_cut_off() {
        let (begun, allowance) = (Instant::now(), Allowance::default());
        let (send, mut request, _charged) = request(&allowance);
        send.send(1).await.expect("received");
        assert!(request.body_mut().frame().await.expect("a frame").is_ok());
        let trickle = tokio::spawn(async move {
            while send.send(1).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let broken = loop {
            match request.body_mut().frame().await.expect("it never ends") {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(broken.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), QUIET_MAX.as_secs());
        trickle.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_with_progress_may_take_long() {
        let (begun, allowance) = (Instant::now(), Allowance::default());
        let (send, request, _charged) = request(&allowance);
        tokio::spawn(async move {
            for _ in 0..100 {
                send.send(PROGRESS_BYTES).await.expect("received");
                sleep(QUIET_MAX * 9 / 10).await;
            }
        });
        let whole = request
            .into_body()
            .collect()
            .await
            .expect("it makes progress")
            .to_bytes();
        assert_eq!(whole.len(), 100 * PROGRESS_BYTES);
        assert!(begun.elapsed() > 80 * QUIET_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_of_a_function_count_until_they_are_answered() {
        let allowance = Allowance::of(10);
        let (send, held, charged) = request(&allowance);
        send.send(8).await.expect("received");
        drop(send);
        assert_eq!(
            held.into_body()
                .collect()
                .await
                .expect("within bounds")
                .to_bytes()
                .len(),
            8
        );
        let broken = async || {
            let (send, other, _charged) = request(&allowance);
            send.send(3).await.expect("received");
            drop(send);
            other
                .into_body()
                .collect()
                .await
                .err()
                .map(|error| error.kind())
        };
        assert_eq!(
            broken().await,
            Some(io::ErrorKind::QuotaExceeded),
            "the first is not answered yet"
        );
        drop(charged);
        assert_eq!(broken().await, None);
        assert_eq!(allowance.0.available_permits(), 10);
    }
}
