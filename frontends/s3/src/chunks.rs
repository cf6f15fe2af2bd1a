//! The frames of the `aws-chunked` encoding, without its signatures.
//!
//! ```text
//! SIZE[;chunk-signature=...]\r\n  SIZE bytes  \r\n   ... again
//! 0[;chunk-signature=...]\r\n  trailers  \r\n
//! ```

use std::mem;

use bytes::{Buf, Bytes, BytesMut};

use crate::errors::Refusal;

/// The longest signed chunk: s3s must hold it to verify it. Clients send up to 1 MiB.
const SIGNED_BYTES_MAX: u64 = 16 << 20;
/// The longest line before a chunk.
const LINE_BYTES_MAX: usize = 256;

/// Follows the frames of a body.
#[derive(Debug)]
pub(crate) struct Chunks {
    is_signed: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// In the line before a chunk.
    Line(Vec<u8>),
    /// In a chunk, with so many bytes to come.
    Data(u64),
    /// Behind a chunk, with so many bytes of its line end to come.
    DataEnd(u8),
    /// Behind the line of the last chunk.
    Trailers,
}

impl Chunks {
    /// None unless the payload is chunked, as its hash header says.
    pub(crate) fn of(payload: &str) -> Option<Self> {
        let kind = payload.strip_prefix("STREAMING-")?;
        Some(Self {
            is_signed: !kind.starts_with("UNSIGNED"),
            state: State::Line(Vec::new()),
        })
    }

    /// What s3s reads for `bytes`: signed chunks as they are, unsigned ones cut as they arrive.
    pub(crate) fn receive(&mut self, mut bytes: Bytes) -> Result<Bytes, Refusal> {
        if self.is_signed {
            let whole = bytes.clone();
            while !bytes.is_empty() {
                self.step(&mut bytes, None)?;
            }
            return Ok(whole);
        }
        let mut cut = BytesMut::with_capacity(bytes.len() + 32);
        while !bytes.is_empty() {
            self.step(&mut bytes, Some(&mut cut))?;
        }
        Ok(cut.freeze())
    }

    /// Consumes a part of `bytes`, and writes it as chunks of its own into `cut`.
    fn step(&mut self, bytes: &mut Bytes, cut: Option<&mut BytesMut>) -> Result<(), Refusal> {
        match &mut self.state {
            State::Line(line) => {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let taken = bytes.split_to(end.map_or(bytes.len(), |at| at + 1));
                line.extend_from_slice(&taken);
                if line.len() > LINE_BYTES_MAX {
                    return Err(malformed());
                }
                if end.is_some() {
                    let line = mem::take(line);
                    self.begin(&line, cut)?;
                }
            }
            State::Data(missing) => {
                let taken = (*missing).min(bytes.len() as u64) as usize;
                let data = bytes.split_to(taken);
                *missing -= taken as u64;
                if let Some(cut) = cut {
                    cut.extend_from_slice(format!("{taken:x}\r\n").as_bytes());
                    cut.extend_from_slice(&data);
                    cut.extend_from_slice(b"\r\n");
                }
                if *missing == 0 {
                    self.state = State::DataEnd(2);
                }
            }
            State::DataEnd(missing) => {
                let expected = if *missing == 2 { b'\r' } else { b'\n' };
                if bytes.get_u8() != expected {
                    return Err(malformed());
                }
                *missing -= 1;
                if *missing == 0 {
                    self.state = State::Line(Vec::new());
                }
            }
            State::Trailers => {
                let rest = bytes.split_to(bytes.len());
                if let Some(cut) = cut {
                    cut.extend_from_slice(&rest);
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, line: &[u8], cut: Option<&mut BytesMut>) -> Result<(), Refusal> {
        let line = line.strip_suffix(b"\r\n").ok_or_else(malformed)?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or(line);
        let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = u64::from_str_radix(digits, 16).ok().filter(|_| is_hex);
        let size = size.ok_or_else(malformed)?;
        if self.is_signed && size > SIGNED_BYTES_MAX {
            return Err(Refusal::bad(
                "InvalidChunkSizeError",
                format!("A signed chunk has {size} bytes, more than {SIGNED_BYTES_MAX}."),
            ));
        }
        self.state = if size == 0 {
            if let Some(cut) = cut {
                cut.extend_from_slice(b"0\r\n");
            }
            State::Trailers
        } else {
            State::Data(size)
        };
        Ok(())
    }

    /// Errors: `IncompleteBody` if the last chunk is not there.
    pub(crate) fn finish(&self) -> Result<(), Refusal> {
        match self.state {
            State::Trailers => Ok(()),
            _ => Err(Refusal::incomplete()),
        }
    }
}

fn malformed() -> Refusal {
    Refusal::bad(
        "InvalidRequest",
        "The body is not in the aws-chunked encoding that x-amz-content-sha256 announces.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
    const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";

    /// The bytes in pieces of every length, through the frames.
    fn through(kind: &str, body: &str, piece: usize) -> Result<Vec<u8>, Refusal> {
        let mut chunks = Chunks::of(kind).expect("chunked");
        let mut passed = Vec::new();
        for bytes in body.as_bytes().chunks(piece) {
            passed.extend_from_slice(&chunks.receive(Bytes::copy_from_slice(bytes))?);
        }
        chunks.finish()?;
        Ok(passed)
    }

    /// The content of unsigned chunks, and what is behind the last.
    fn decoded(mut body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut content = Vec::new();
        loop {
            let at = body
                .windows(2)
                .position(|two| two == b"\r\n")
                .expect("a line");
            let size = std::str::from_utf8(&body[..at]).expect("digits");
            let size = usize::from_str_radix(size, 16).expect("a size");
            body = &body[at + 2..];
            if size == 0 {
                return (content, body.to_vec());
            }
            content.extend_from_slice(&body[..size]);
            body = &body[size + 2..];
        }
    }

    #[test]
    fn an_unsigned_chunk_is_cut_and_keeps_its_content_and_trailers() {
        let body = "a\r\n0123456789\r\n3\r\nabc\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        for piece in 1..body.len() {
            let passed = through(UNSIGNED, body, piece).expect("well formed");
            let (content, trailers) = decoded(&passed);
            assert_eq!(content, b"0123456789abc", "{piece}");
            assert_eq!(
                trailers, b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n",
                "{piece}"
            );
        }
    }

    #[test]
    fn signed_chunks_pass_as_they_are() {
        let body = "3;chunk-signature=00\r\nabc\r\n0;chunk-signature=00\r\n\r\n";
        for piece in 1..body.len() {
            assert_eq!(
                through(SIGNED, body, piece).expect("well formed"),
                body.as_bytes()
            );
        }
    }

    #[test]
    fn a_body_without_its_last_chunk_is_incomplete() {
        for body in ["", "3\r\nabc\r\n", "3\r\nab", "3"] {
            let refused = through(UNSIGNED, body, 4).expect_err(body);
            assert!(
                refused.to_string().starts_with("IncompleteBody"),
                "{body:?}"
            );
        }
    }

    #[test]
    fn frames_that_cannot_be_read_are_refused() {
        let long = "0".repeat(300);
        for body in [
            "x\r\n",
            "+3\r\nabc\r\n",
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "\r\n",
            long.as_str(),
        ] {
            let refused = through(UNSIGNED, body, 5).expect_err(body);
            assert!(
                refused.to_string().starts_with("InvalidRequest"),
                "{body:?}"
            );
        }
    }

    #[test]
    fn a_signed_chunk_that_s3s_would_have_to_hold_is_bounded() {
        let refused = through(SIGNED, "1000001;chunk-signature=00\r\n", 64).expect_err("too large");
        assert!(refused.to_string().starts_with("InvalidChunkSizeError"));
    }

    #[test]
    fn other_payloads_are_not_chunked() {
        assert!(Chunks::of("UNSIGNED-PAYLOAD").is_none());
    }
}
