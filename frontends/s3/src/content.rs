//! The content of an upload between s3s and the service, verified as it streams.
//!
//! The last bytes are held back until the stream has ended: only then has s3s verified the payload's
//! hash, the signature of the last chunk and the trailers, and only then are length and checksum
//! known. Wrong content therefore fails [`memory::Service::store`], and no object can come of it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use s3s::{
    StdError, TrailingHeaders,
    dto::StreamingBlob,
    stream::{ByteStream, RemainingLength},
};

use crate::{
    checksums::{Algorithm, Hasher, Sums, bad_digest},
    errors::Refusal,
};

/// The content as s3s or a copy gives it.
pub(crate) type Source = Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send>>;

/// What the client says about its content.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// The checksum to compute.
    pub(crate) algorithm: Option<Algorithm>,
    /// Its value, from a header.
    pub(crate) value: Option<String>,
    /// Its value comes behind the content.
    pub(crate) trailers: Option<TrailingHeaders>,
}

/// The checksums of a content, there once it has been read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Computed(Arc<Mutex<Sums>>);

impl Computed {
    pub(crate) fn take(&self) -> Sums {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, algorithm: Algorithm, sum: String) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.insert(algorithm.header().to_owned(), sum);
    }
}

/// The body for the service, of exactly `bytes`, and its checksums.
pub(crate) fn body(source: Source, bytes: u64, claim: Claim) -> (memory::model::Body, Computed) {
    let computed = Computed::default();
    let upload = Upload {
        source,
        held: None,
        missing: bytes,
        hasher: claim.algorithm.map(Hasher::new),
        claim,
        computed: computed.clone(),
        is_done: false,
    };
    let body = stream::try_unfold(upload, Upload::next);
    (Box::pin(body), computed)
}

/// The body of a request; none is an empty one.
pub(crate) fn source(blob: Option<StreamingBlob>) -> Source {
    match blob {
        Some(blob) => Box::pin(blob),
        None => Box::pin(stream::empty()),
    }
}

struct Upload {
    source: Source,
    held: Option<Bytes>,
    missing: u64,
    hasher: Option<Hasher>,
    claim: Claim,
    computed: Computed,
    is_done: bool,
}

impl Upload {
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        while !self.is_done {
            match self.source.next().await {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    self.receive(&bytes)?;
                    if let Some(earlier) = self.held.replace(bytes) {
                        return Ok(Some((earlier, self)));
                    }
                }
                Some(Err(error)) => return Err(of_source(error)),
                None => {
                    self.is_done = true;
                    self.finish().map_err(Refusal::into_io)?;
                }
            }
        }
        Ok(self.held.take().map(|bytes| (bytes, self)))
    }

    fn receive(&mut self, bytes: &Bytes) -> io::Result<()> {
        let left = self.missing.checked_sub(bytes.len() as u64);
        self.missing = left.ok_or_else(|| Refusal::incomplete().into_io())?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Refusal> {
        if self.missing > 0 {
            return Err(Refusal::incomplete());
        }
        let Some(hasher) = self.hasher.take() else {
            return Ok(());
        };
        let algorithm = hasher.algorithm();
        let sum = hasher.finish();
        if let Some(claimed) = self.claimed(algorithm)?
            && claimed != sum
        {
            return Err(bad_digest(algorithm.header()));
        }
        self.computed.set(algorithm, sum);
        Ok(())
    }

    /// The checksum that the client sent, in a header or behind its content.
    fn claimed(&mut self, algorithm: Algorithm) -> Result<Option<String>, Refusal> {
        let Some(trailers) = self.claim.trailers.take() else {
            return Ok(self.claim.value.take());
        };
        let trailers = trailers.take().unwrap_or_default();
        let sum = trailers.get(algorithm.header());
        let sum = sum.and_then(|sum| sum.to_str().ok()).map(str::to_owned);
        let header = algorithm.header();
        let missing = || {
            Refusal::bad(
                "MalformedTrailerError",
                format!("The request announced the trailer {header}, and it did not arrive."),
            )
        };
        sum.ok_or_else(missing).map(Some)
    }
}

/// s3s hides its stream errors, so that only their texts tell them apart. A test of the real program
/// checks each of them.
fn of_source(error: StdError) -> io::Error {
    let error = match error.downcast::<io::Error>() {
        Ok(error) => return *error,
        Err(error) => error,
    };
    if error.is::<memory::Error>() {
        return io::Error::other(error);
    }
    let text = error.to_string();
    let refusal = if text.contains("Sha256Mismatch") {
        wrong_payload_hash()
    } else if text.contains("SignatureMismatch") {
        Refusal::new(
            "SignatureDoesNotMatch",
            http::StatusCode::FORBIDDEN,
            "The signature of a chunk or of the trailers does not match.",
        )
    } else if text.contains("FormatError") || text.contains("TooLarge") {
        Refusal::bad(
            "InvalidRequest",
            "The body is not in the aws-chunked encoding that x-amz-content-sha256 announces.",
        )
    } else {
        Refusal::incomplete()
    };
    refusal.into_io()
}

/// The payload has another SHA-256 than the signed header says.
pub(crate) fn wrong_payload_hash() -> Refusal {
    Refusal::bad(
        "XAmzContentSHA256Mismatch",
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    )
}

/// The content of an object on its way to a client.
pub(crate) struct Download {
    // A mutex that is never locked: s3s wants a stream that threads could share.
    content: Mutex<memory::model::Content>,
    missing: u64,
}

impl Download {
    pub(crate) fn blob(content: memory::model::Content, bytes: u64) -> StreamingBlob {
        StreamingBlob::new(Self {
            content: Mutex::new(content),
            missing: bytes,
        })
    }
}

impl Stream for Download {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let content = self
            .content
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let polled = content.as_mut().poll_next(context);
        if let Poll::Ready(Some(Ok(bytes))) = &polled {
            self.missing = self.missing.saturating_sub(bytes.len() as u64);
        }
        if let Poll::Ready(Some(Err(error))) = &polled {
            tracing::error!(%error, "s3: a download ended early; its connection is cut");
        }
        polled.map(|item| item.map(|bytes| bytes.map_err(StdError::from)))
    }
}

impl ByteStream for Download {
    fn remaining_length(&self) -> RemainingLength {
        usize::try_from(self.missing)
            .map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;

    use super::*;

    fn pieces(pieces: &[&'static str]) -> Source {
        let pieces = pieces
            .iter()
            .map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
        Box::pin(stream::iter(pieces.collect::<Vec<_>>()))
    }

    async fn read(source: Source, bytes: u64, claim: Claim) -> Result<(Vec<Bytes>, Sums), String> {
        let (body, computed) = body(source, bytes, claim);
        let read = body.try_collect::<Vec<_>>().await;
        let read = read.map_err(|error| error.to_string())?;
        Ok((read, computed.take()))
    }

    fn crc32(value: Option<&str>) -> Claim {
        Claim {
            algorithm: Some(Algorithm::Crc32),
            value: value.map(str::to_owned),
            trailers: None,
        }
    }

    #[tokio::test]
    async fn content_passes_whole_and_its_checksum_is_known_afterwards() {
        let source = pieces(&["1234", "", "56789"]);
        let (read, sums) = read(source, 9, crc32(None)).await.expect("content");
        assert_eq!(read.concat(), b"123456789");
        assert_eq!(sums["x-amz-checksum-crc32"], "y/Q5Jg==");
    }

    #[tokio::test]
    async fn content_with_another_checksum_fails_before_its_end() {
        let (body, _) = body(pieces(&["1234", "56789"]), 9, crc32(Some("AAAAAA==")));
        let (mut passed, mut failed) = (0, None);
        let mut body = body;
        while let Some(item) = body.next().await {
            match item {
                Ok(bytes) => passed += bytes.len(),
                Err(error) => {
                    failed = Some(error.to_string());
                    break;
                }
            }
        }
        assert_eq!(passed, 4, "the last piece is held back");
        assert!(failed.expect("an error").starts_with("BadDigest"));
    }

    #[tokio::test]
    async fn content_of_another_length_is_incomplete() {
        for bytes in [8, 10] {
            let error = read(pieces(&["123456789"]), bytes, Claim::default()).await;
            assert!(
                error.expect_err("length").starts_with("IncompleteBody"),
                "{bytes}"
            );
        }
    }

    #[tokio::test]
    async fn an_empty_content_is_content() {
        let (read, sums) = read(pieces(&[]), 0, crc32(Some("AAAAAA==")))
            .await
            .expect("empty");
        assert!(read.is_empty());
        assert_eq!(sums["x-amz-checksum-crc32"], "AAAAAA==");
    }
}
