//! Bodies of what instances ask, received within bounds.
//!
//! A function may begin bodies that it never finishes: what has arrived of them is the server's memory, on behalf of
//! somebody who may be frozen. So a body has to get on, and all bodies of one function together have an [`Allowance`], which
//! is less than the server has for those of all functions.
//!
//! Bytes count from when they arrive until their request is answered.

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

/// What all bodies of one function have together: half of what the bodies of all functions have at the server.
const ALLOWED_BYTES: usize = 128 << 20;
/// How long a body may take to bring [`PROGRESS_BYTES`] or its end.
const QUIET_MAX: Duration = Duration::from_secs(10);
const PROGRESS_BYTES: usize = 64 * 1024;

/// What all bodies of one function may have at a time.
#[derive(Debug, Clone)]
pub(crate) struct Allowance(Arc<Semaphore>);

/// What has arrived for one request. It is given back when both the body and who holds this have gone.
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

    /// The same request, whose body is bounded; what is returned beside it is kept until it is answered.
    pub(crate) fn receive<B>(&self, request: Request<B>) -> (Request<Incoming<B>>, Arc<Charged>) {
        let charged = Arc::new(Charged {
            allowance: self.clone(),
            bytes: AtomicUsize::new(0),
        });
        let request = request.map(|body| Incoming {
            body,
            charged: Arc::clone(&charged),
            since_progress: 0,
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
                "this function has too many bodies that are being received",
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

/// The body of what an instance asks.
///
/// Errors: `QuotaExceeded` if its function has too many, `TimedOut` if it does not get on, and what breaks a connection.
#[derive(Debug)]
pub struct Incoming<B = hyper::body::Incoming> {
    body: B,
    charged: Arc<Charged>,
    since_progress: usize,
    /// While it is waited for.
    quiet: Option<Pin<Box<Sleep>>>,
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
                Poll::Ready(Some(self.charged.charge(bytes).map(|()| frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(io::Error::other(error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let quiet = self.quiet.get_or_insert_with(|| Box::pin(sleep(QUIET_MAX)));
                let late = || io::Error::new(io::ErrorKind::TimedOut, "the body does not get on");
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

    /// A request whose body brings as many bytes at a time as it is told to, for as long as that goes on.
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
    async fn a_body_that_does_not_get_on_breaks_off() {
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
    async fn a_body_that_gets_on_may_take_long() {
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
            .expect("it gets on")
            .to_bytes();
        assert_eq!(whole.len(), 100 * PROGRESS_BYTES);
        assert!(begun.elapsed() > 80 * QUIET_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_of_a_function_have_an_allowance_until_they_are_answered() {
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
