//! Bodies of requests, read within bounds.
//!
//! Three bounds hold at once. One body has the limit of its route, else 413. All bodies that are
//! received or worked on share one budget of the node, else 429. And a body must make progress,
//! which the listener watches. The budget is taken as bytes arrive, not by `Content-Length`, so
//! that a few slow senders of large announcements cannot use it up.
//!
//! Many clients send their whole request before they read, and a connection that is closed with
//! bytes unread is reset. So a route only [borrows](lend) its body. What the route leaves unread is
//! read and dropped before the response is sent, up to [`DISCARD_BYTES_MAX`].

use std::{
    error::Error,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, HttpBody as _},
    extract::Request,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Kind, Problem};

/// The bytes of an unread body that are read and dropped, at most.
pub(crate) const DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// The refusal of a body that is sent too slowly, by the bounds of the listener.
const NO_PROGRESS: &str =
    "neither 64 KiB of the body nor its end arrived within 10 s: nothing changed; send it again";

/// The memory for all bodies together.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    bytes: Arc<Semaphore>,
}

/// A whole body. It counts against the budget until it is dropped.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    reserved: Option<OwnedSemaphorePermit>,
}

impl Whole {
    /// The bytes, and the permit that counts them until it is dropped.
    pub(crate) fn into_parts(self) -> (Bytes, Option<OwnedSemaphorePermit>) {
        (self.bytes, self.reserved)
    }
}

impl Budget {
    /// A budget of `bytes`. A number beyond what the semaphore can count is no bound.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))),
        }
    }

    fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let (all, bytes) = (Arc::clone(&self.bytes), u32::try_from(bytes).ok()?);
        all.try_acquire_many_owned(bytes).ok()
    }
}

/// Reads the whole `body`.
///
/// Errors: [`Kind::TooLarge`] beyond `bytes_max`, [`Kind::TooMuchBuffered`] beyond the budget,
/// [`Kind::RequestTimedOut`] if it makes no progress, [`Kind::InvalidRequest`] if it breaks off.
pub(crate) async fn read(body: Body, bytes_max: usize, budget: &Budget) -> Result<Whole, Problem> {
    read_by_kind(body, |_| bytes_max, budget).await
}

/// Refuses a body that is not empty, with the reason `why`.
///
/// Errors: [`Kind::InvalidRequest`] if it is not empty; the errors of [`read`] if it does not
/// arrive.
pub(crate) async fn refuse(body: Body, why: &str) -> Result<(), Problem> {
    let mut data = body.into_data_stream();
    while let Some(data) = data.next().await {
        if !data.map_err(|error| broken_off(&error))?.is_empty() {
            return Err(Problem::new(Kind::InvalidRequest, why));
        }
    }
    Ok(())
}

/// Like [`read`], where the first byte of a body determines its limit.
pub(crate) async fn read_by_kind(
    body: Body,
    bytes_max: impl Fn(u8) -> usize,
    budget: &Budget,
) -> Result<Whole, Problem> {
    let mut data = body.into_data_stream();
    let mut bytes = BytesMut::new();
    let mut reserved: Option<OwnedSemaphorePermit> = None;
    while let Some(data) = data.next().await {
        let data = data.map_err(|error| broken_off(&error))?;
        let Some(first) = bytes.first().or(data.first()) else {
            continue;
        };
        let bytes_max = bytes_max(*first);
        if data.len() > bytes_max - bytes.len() {
            return Err(too_large(bytes_max));
        }
        let more = budget.reserve(data.len()).ok_or_else(|| {
            Problem::new(Kind::TooMuchBuffered, "too many bodies are being received")
        })?;
        match &mut reserved {
            Some(reserved) => reserved.merge(more),
            None => reserved = Some(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Whole {
        bytes: bytes.freeze(),
        reserved,
    })
}

/// The refusal of a body that breaks off or makes no progress, or for which its sender has no
/// memory.
fn broken_off(error: &axum::Error) -> Problem {
    // A borrowed body wraps another body, and its errors wrap errors.
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| {
        error.source()
    });
    for error in causes.filter_map(<dyn Error>::downcast_ref::<io::Error>) {
        match error.kind() {
            io::ErrorKind::QuotaExceeded => {
                return Problem::new(Kind::TooMuchBuffered, error.to_string());
            }
            io::ErrorKind::FileTooLarge => return Problem::new(Kind::TooLarge, error.to_string()),
            io::ErrorKind::TimedOut => return Problem::new(Kind::RequestTimedOut, NO_PROGRESS),
            _ => {}
        }
    }
    Problem::invalid("the body breaks off")
}

/// The refusal of a body that is longer than its route accepts.
pub(crate) fn too_large(bytes_max: usize) -> Problem {
    Problem::new(Kind::TooLarge, format!("at most {bytes_max} bytes"))
}

/// Has `answer` respond to a request whose body it borrows. The unread rest is read before the
/// response is sent, or the response closes the connection.
pub(crate) async fn lend_to(
    request: Request,
    answer: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let (parts, body) = request.into_parts();
    let (lent, rest) = lend(body);
    let asks_before_sending = parts.headers.contains_key(header::EXPECT);
    let mut response = answer(Request::from_parts(parts, lent)).await;
    // A client that waits for 100 Continue sees the refusal without sending the body.
    let is_read = rest.is_empty() || (!asks_before_sending && rest.discard().await);
    if !is_read {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Lends `body` to a route. The other half reads what the route leaves.
fn lend(body: Body) -> (Body, Rest) {
    let has_ended = body.is_end_stream();
    let shared = Arc::new(Mutex::new(Shared {
        body,
        has_ended,
        has_failed: false,
    }));
    let rest = Rest(Arc::clone(&shared));
    if has_ended {
        return (Body::empty(), rest);
    }
    let data = stream::poll_fn(move |context| locked(&shared).poll_data(context));
    (Body::from_stream(data), rest)
}

/// The part of a body that its route has not read.
#[derive(Debug)]
struct Rest(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    body: Body,
    has_ended: bool,
    /// The bytes after it are not another request, so the connection cannot go on.
    has_failed: bool,
}

impl Rest {
    /// Whether nothing is left.
    fn is_empty(&self) -> bool {
        locked(&self.0).has_ended
    }

    /// Reads and drops it, up to the bound. Returns whether nothing is left.
    async fn discard(self) -> bool {
        let mut left = DISCARD_BYTES_MAX;
        let announced = locked(&self.0).body.size_hint().lower();
        while !self.is_empty() && announced <= DISCARD_BYTES_MAX as u64 {
            let Some(Ok(data)) = poll_fn(|context| locked(&self.0).poll_data(context)).await else {
                break;
            };
            match left.checked_sub(data.len()) {
                Some(less) => left = less,
                None => break,
            }
        }
        self.is_empty()
    }
}

impl Shared {
    /// The next bytes; `None` at the end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose();
            self.has_failed |= frame.is_err();
            let frame = frame?;
            self.has_ended = !self.has_failed && (frame.is_none() || self.body.is_end_stream());
            let Some(frame) = frame else {
                return Poll::Ready(None);
            };
            // No route uses trailers.
            if let Ok(data) = frame.into_data() {
                return Poll::Ready(Some(Ok(data)));
            }
        }
    }
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_within_its_bounds_is_read_and_gives_its_budget_back() {
        let budget = Budget::new(4);
        let whole = read(Body::from("four"), 4, &budget)
            .await
            .expect("within bounds");
        assert_eq!(whole.bytes, "four");
        assert_eq!(budget.bytes.available_permits(), 0);
        drop(whole);
        assert_eq!(budget.bytes.available_permits(), 4);
        assert_eq!(
            read(Body::empty(), 0, &budget)
                .await
                .expect("nothing")
                .bytes,
            ""
        );
    }

    #[tokio::test]
    async fn the_first_byte_says_how_long_a_body_may_be() {
        let budget = Budget::new(64);
        let by_kind = |first: u8| if first == b'l' { 8 } else { 2 };
        let chunks = |chunks: &'static [&'static str]| {
            Body::from_stream(stream::iter(
                chunks.iter().map(|chunk| Ok::<_, std::io::Error>(*chunk)),
            ))
        };
        let long = read_by_kind(chunks(&["", "l", "ong"]), by_kind, &budget)
            .await
            .expect("within bounds");
        assert_eq!(long.bytes, "long");
        let refused = read_by_kind(chunks(&["s", "h", "ort"]), by_kind, &budget)
            .await
            .expect_err("too long");
        assert_eq!(refused.kind(), Kind::TooLarge);
        assert!(
            read_by_kind(Body::empty(), by_kind, &budget)
                .await
                .expect("nothing")
                .bytes
                .is_empty()
        );
    }

    #[tokio::test]
    async fn a_body_beyond_a_bound_is_refused_by_the_bounds_name() {
        let budget = Budget::new(8);
        let refused = read(Body::from("five!"), 4, &budget)
            .await
            .expect_err("too long");
        assert_eq!(refused.kind(), Kind::TooLarge);
        let held = read(Body::from("five!"), 8, &budget)
            .await
            .expect("within bounds");
        let refused = read(Body::from("more"), 8, &budget)
            .await
            .expect_err("beyond the budget");
        assert_eq!(refused.kind(), Kind::TooMuchBuffered);
        drop(held);
        assert_eq!(budget.bytes.available_permits(), 8);
    }

    /// U2: a function that sends too much or too slowly gets that error, not the one of a body that
    /// broke off.
    #[tokio::test]
    async fn the_cause_of_a_failed_body_survives_every_wrapper() {
        let broken =
            |kind| Body::from_stream(stream::iter([Err::<Bytes, _>(io::Error::new(kind, "why"))]));
        for (kind, expected) in [
            (io::ErrorKind::QuotaExceeded, Kind::TooMuchBuffered),
            (io::ErrorKind::TimedOut, Kind::RequestTimedOut),
            (io::ErrorKind::ConnectionReset, Kind::InvalidRequest),
        ] {
            let (lent, _rest) = lend(broken(kind));
            for body in [broken(kind), lent] {
                let refused = read(body, 8, &Budget::new(8))
                    .await
                    .expect_err("it breaks off");
                assert_eq!(refused.kind(), expected, "{kind}");
            }
        }
    }
}
