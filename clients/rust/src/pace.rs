//! The body of a response, read for as long as it keeps its pace.
//!
//! A bound on the total time would be a bound on the length: a value has up to 64 MiB, and lines
//! differ. A client requires of a response the pace that a server requires of a request, 64 KiB in
//! 10 s.

use std::{fmt::Display, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::time::{Instant, timeout_at};

use crate::limits::ANSWER_BYTES_MAX;

const WINDOW: Duration = Duration::from_secs(10);
const WINDOW_BYTES: usize = 64 * 1024;
pub(crate) const TOO_LATE: &str = "no answer in time";

/// All of `body`, or the reason of the failure. The body has a whole window from its start, however
/// little time was left for the response to begin. Otherwise a repeat near the end of that time
/// would be cut short.
pub(crate) async fn whole<B>(mut body: B) -> Result<Bytes, String>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let (mut whole, mut heard, mut ends) = (BytesMut::new(), 0, Instant::now() + WINDOW);
    loop {
        let frame = match timeout_at(ends, body.frame()).await {
            Err(_) => return Err(TOO_LATE.to_owned()),
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(frame)) => frame.map_err(|error| error.to_string())?,
        };
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if whole.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(format!(
                "the answer is longer than {ANSWER_BYTES_MAX} bytes"
            ));
        }
        whole.extend_from_slice(&piece);
        heard += piece.len();
        if heard >= WINDOW_BYTES {
            (heard, ends) = (0, Instant::now() + WINDOW);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll},
    };

    use hyper::body::Frame;
    use tokio::time::{Sleep, sleep};

    use super::*;

    const KIB: usize = 1024;

    /// A body of several pieces of `piece_bytes`, one every `every`.
    struct Dripping {
        left: usize,
        piece_bytes: usize,
        every: Duration,
        next: Pin<Box<Sleep>>,
    }

    fn dripping(pieces: usize, piece_bytes: usize, every: Duration) -> Dripping {
        Dripping {
            left: pieces,
            piece_bytes,
            every,
            next: Box::pin(sleep(every)),
        }
    }

    impl Body for Dripping {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            if self.next.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.left -= 1;
            self.next = Box::pin(sleep(self.every));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![
                7;
                self.piece_bytes
            ])))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_as_long_as_it_goes_on_coming() {
        let began = Instant::now();
        let found = whole(dripping(100, 32 * KIB, Duration::from_secs(1))).await;
        assert_eq!(found.map(|body| body.len()), Ok(100 * 32 * KIB));
        assert!(began.elapsed() >= Duration::from_secs(100));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_or_crawls_is_given_up() {
        for (pieces, every) in [(1000, Duration::from_secs(1)), (2, Duration::from_hours(1))] {
            let began = Instant::now();
            let found = whole(dripping(pieces, 4 * KIB, every)).await;
            assert_eq!(found, Err(TOO_LATE.to_owned()));
            assert_eq!(began.elapsed(), WINDOW);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_too_long_is_not_read_to_its_end() {
        let found = whole(dripping(70, 1024 * KIB, Duration::ZERO)).await;
        assert!(found.is_err_and(|reason| reason.contains("longer")));
    }
}
