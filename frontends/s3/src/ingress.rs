//! The body of a request before s3s reads it.
//!
//! s3s reports a broken body in a hidden type or as an internal error. This stream notes the true
//! reason on its way, and the response is made from that.
//!
//! In the `aws-chunked` encoding s3s holds a whole chunk in memory, and takes the end of the body
//! for the end of the encoding. Some clients send all of their content as one chunk. Unsigned chunks
//! are therefore cut into small ones here, signed ones are bounded, and the last one must be there.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, header};
use http_body_util::{BodyDataStream, combinators::UnsyncBoxBody};
use s3s::{
    StdError,
    crypto::{Checksum as _, Md5},
    stream::{ByteStream, RemainingLength},
};

use crate::{
    checksums::check_md5,
    chunks::Chunks,
    errors::{Refusal, of_read},
};

/// Bodies up to this length are hashed here for their `Content-MD5`. Content is hashed by the
/// service; this is for requests in XML, whose bytes no handler sees.
const MD5_BYTES_MAX: u64 = 1 << 20;

/// How much of a body is read and dropped after an early response, so that its connection serves on.
const DISCARD_BYTES_MAX: usize = 1 << 20;

/// The body of a request, from the listener or from a function.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, io::Error>;
type Source = Arc<Mutex<BodyDataStream<RequestBody>>>;
type Trouble = Arc<Mutex<Option<Refusal>>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body once s3s has done with it.
#[derive(Debug)]
pub(crate) struct Rest {
    source: Source,
    trouble: Trouble,
    is_broken: bool,
}

impl Rest {
    /// Why the body could not be read, if that is so.
    pub(crate) fn trouble(&mut self) -> Option<Refusal> {
        let trouble = locked(&self.trouble).take();
        self.is_broken |= trouble.is_some();
        trouble
    }

    /// Reads what s3s left. False: the connection cannot serve another request.
    pub(crate) async fn discard(&self) -> bool {
        let mut left = DISCARD_BYTES_MAX;
        if self.is_broken {
            return false;
        }
        loop {
            let next = poll_fn(|context| Pin::new(&mut *locked(&self.source)).poll_next(context));
            match next.await {
                None => return true,
                Some(Ok(bytes)) if bytes.len() <= left => left -= bytes.len(),
                Some(_) => return false,
            }
        }
    }
}

/// The body as s3s reads it.
pub(crate) struct Ingress {
    source: Source,
    trouble: Trouble,
    chunks: Option<Chunks>,
    md5: Option<(Md5, String)>,
    /// The bytes that s3s still gets, if that is known.
    missing: Option<u64>,
    is_done: bool,
}

impl Ingress {
    pub(crate) fn new(body: RequestBody, headers: &HeaderMap) -> (Self, Rest) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let exact = match text("content-length") {
            Some(bytes) => bytes.parse::<u64>().ok(),
            None if headers.contains_key(header::TRANSFER_ENCODING) => None,
            None => Some(0),
        };
        let chunks = text("x-amz-content-sha256").and_then(Chunks::of);
        let is_short = exact.is_some_and(|bytes| bytes <= MD5_BYTES_MAX);
        let md5 = text("content-md5").filter(|_| is_short && chunks.is_none());
        let trouble = Trouble::default();
        let source = Arc::new(Mutex::new(BodyDataStream::new(body)));
        let rest = Rest {
            source: Arc::clone(&source),
            trouble: Arc::clone(&trouble),
            is_broken: false,
        };
        let ingress = Self {
            source,
            trouble,
            missing: exact.filter(|_| chunks.is_none()),
            chunks,
            md5: md5.map(|claimed| (Md5::new(), claimed.to_owned())),
            is_done: false,
        };
        (ingress, rest)
    }

    fn receive(&mut self, bytes: Bytes) -> Result<Bytes, Refusal> {
        if let Some((md5, _)) = &mut self.md5 {
            md5.update(&bytes);
        }
        if let Some(missing) = &mut self.missing {
            *missing = missing.saturating_sub(bytes.len() as u64);
        }
        match &mut self.chunks {
            Some(chunks) => chunks.receive(bytes),
            None => Ok(bytes),
        }
    }

    fn finish(&mut self) -> Result<(), Refusal> {
        if let Some((md5, claimed)) = self.md5.take() {
            check_md5(Some(&claimed), md5.finalize())?;
        }
        self.chunks.as_ref().map_or(Ok(()), Chunks::finish)
    }
}

impl Stream for Ingress {
    type Item = Result<Bytes, StdError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_done {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut *locked(&this.source)).poll_next(context);
        let item = match ready!(polled) {
            Some(Ok(bytes)) => this.receive(bytes),
            Some(Err(error)) => Err(of_read(&error)),
            None => {
                this.is_done = true;
                match this.finish() {
                    Ok(()) => return Poll::Ready(None),
                    Err(refusal) => Err(refusal),
                }
            }
        };
        Poll::Ready(Some(item.map_err(|refusal| {
            this.is_done = true;
            locked(&this.trouble).get_or_insert_with(|| refusal.clone());
            refusal.into_io().into()
        })))
    }
}

impl ByteStream for Ingress {
    fn remaining_length(&self) -> RemainingLength {
        let missing = self.missing.and_then(|bytes| usize::try_from(bytes).ok());
        missing.map_or_else(RemainingLength::unknown, RemainingLength::new_exact)
    }
}
