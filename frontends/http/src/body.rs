//! Bodies of requests, read within bounds.
//!
//! Three bounds hold at once. One body has the limit of its route: beyond it 413. All bodies that are being
//! read or worked on have one budget for the node: beyond it 429. And a body has to make progress, which its
//! connection watches. The budget is taken as the bytes arrive, not as they are announced, so that a few slow
//! senders of announcements cannot use it up.
//!
//! An answer that leaves before the body has been sent is often not read: many clients send everything first,
//! and a connection that is closed with bytes unread is reset. So a body is only [lent](lend) to its route, and
//! what the route leaves of it is read and forgotten before the answer leaves, if it is not too much.

use std::{
    error::Error,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::body::{Body, HttpBody as _};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Kind, Problem};

/// The most that is read of what a route leaves of a body.
pub(crate) const DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// What is said to whoever sends too slowly, by the bounds of [`crate::connection`].
const DOES_NOT_GET_ON: &str =
    "of a body 64 KiB, or its end, arrive within ten seconds: nothing changed; send it again";

/// Memory for all bodies together.
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
    /// The bytes, and what counts for them until it is dropped.
    pub(crate) fn into_parts(self) -> (Bytes, Option<OwnedSemaphorePermit>) {
        (self.bytes, self.reserved)
    }
}

impl Budget {
    /// A budget of `bytes`; beyond what the counter can count it is no bound.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))),
        }
    }

    fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bytes)
            .try_acquire_many_owned(u32::try_from(bytes).ok()?)
            .ok()
    }
}

/// Reads `body` whole.
///
/// Errors: [`Kind::TooLarge`] beyond `bytes_max`, [`Kind::TooMuchBuffered`] beyond the budget,
/// [`Kind::RequestTimedOut`] if it does not get on, [`Kind::InvalidRequest`] if it breaks off.
pub(crate) async fn read(body: Body, bytes_max: usize, budget: &Budget) -> Result<Whole, Problem> {
    read_by_kind(body, |_| bytes_max, budget).await
}

/// Refuses a body that has anything in it, and says `why`.
///
/// Errors: [`Kind::InvalidRequest`] if there is one; as [`read`] if what may be one does not come.
pub(crate) async fn refuse(body: Body, why: &str) -> Result<(), Problem> {
    let mut data = body.into_data_stream();
    while let Some(data) = data.next().await {
        if !data.map_err(|error| broken_off(&error))?.is_empty() {
            return Err(Problem::new(Kind::InvalidRequest, why));
        }
    }
    Ok(())
}

/// The same as [`read`] where the first byte of a body says how long it may be.
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
        let Some(more) = budget.reserve(data.len()) else {
            return Err(Problem::new(
                Kind::TooMuchBuffered,
                "too many bodies are being received",
            ));
        };
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

/// The refusal of a body that breaks off, that does not get on, or which whoever brings it here has no room for.
fn broken_off(error: &axum::Error) -> Problem {
    // A body that is lent is one around another, and so are their errors.
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| {
        error.source()
    });
    for error in causes.filter_map(<dyn Error>::downcast_ref::<io::Error>) {
        match error.kind() {
            io::ErrorKind::QuotaExceeded => {
                return Problem::new(Kind::TooMuchBuffered, error.to_string());
            }
            io::ErrorKind::TimedOut => return Problem::new(Kind::RequestTimedOut, DOES_NOT_GET_ON),
            _ => {}
        }
    }
    Problem::new(Kind::InvalidRequest, "the body breaks off")
}

/// The refusal of a body longer than its route takes.
pub(crate) fn too_large(bytes_max: usize) -> Problem {
    Problem::new(Kind::TooLarge, format!("at most {bytes_max} bytes"))
}

/// Lends `body` to a route; the other half is what the route leaves of it.
pub(crate) fn lend(body: Body) -> (Body, Rest) {
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
    (
        Body::from_stream(stream::poll_fn(move |context| {
            locked(&shared).poll_data(context)
        })),
        rest,
    )
}

/// What a route leaves of the body that it was lent.
#[derive(Debug)]
pub(crate) struct Rest(Arc<Mutex<Shared>>);

#[derive(Debug)]
pub(crate) struct Shared {
    body: Body,
    has_ended: bool,
    /// What follows is no end of it, whatever it says: its connection cannot go on.
    has_failed: bool,
}

impl Rest {
    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.0).has_ended
    }

    /// Reads and forgets it, unless that is too much. Whether nothing is left then.
    pub(crate) async fn discard(self) -> bool {
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
    /// The next bytes; none at the end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose();
            self.has_failed |= frame.is_err();
            let frame = frame?;
            self.has_ended = !self.has_failed && (frame.is_none() || self.body.is_end_stream());
            let Some(frame) = frame else {
                return Poll::Ready(None);
            };
            // Trailers say nothing to any route.
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

    /// U2: what a function may not send more of, or does not send in time, is refused as such, and not as a body that broke off.
    #[tokio::test]
    async fn why_a_body_was_not_waited_for_is_heard_however_that_was_passed_on() {
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
