//! Splits the bytes of a connection into frames: an `int32` length and as many bytes.
//!
//! All complete frames that have arrived are split off as one block, so that a batch of pipelined
//! requests costs one split instead of one each. When the block is used up and no slice of it is
//! kept, its buffer is reused without an allocation.
//!
//! Invariants
//! - A length is checked before memory is allocated for it. The buffer grows with the received
//!   bytes, not with the announced length. It holds at most one unfinished frame and one more read;
//!   for a frame longer than a read, no more than that frame.
//! - An idle connection keeps no buffer ([`Frames::release_unused`]).
//!
//! A peer's first bytes may not be jute at all: [`Stranger`].

use bytes::{Bytes, BytesMut};

use crate::jute::{FrameWriter, Reader};

/// Bytes per read of a quiet connection.
const READ_BYTES_MIN: usize = 4 << 10;
/// Bytes per read of a busy connection.
const READ_BYTES_MAX: usize = 64 << 10;
/// After this many consecutive reads that needed less than a quarter of the buffer, it is halved.
const SMALL_READS_MAX: u32 = 64;

/// A frame length outside the protocol's range. The connection closes without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid packet length {length}, the limit is {limit}")]
pub struct LengthOutOfRange {
    pub length: i32,
    pub limit: usize,
}

/// The received bytes of one connection that are not parsed yet.
#[derive(Debug)]
pub struct Frames {
    /// Received bytes that are not split yet.
    buffer: BytesMut,
    /// Complete frames, used up to `position`.
    block: Bytes,
    position: usize,
    frame_bytes_max: usize,
    read_bytes: usize,
    small_reads: u32,
}

impl Frames {
    pub fn new(frame_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            block: Bytes::new(),
            position: 0,
            frame_bytes_max,
            read_bytes: READ_BYTES_MIN,
            small_reads: 0,
        }
    }

    /// The buffer for the next read. Read into it once, then report the number of bytes to
    /// [`Frames::received`].
    pub fn space(&mut self) -> &mut BytesMut {
        self.release();
        if !self.buffer.try_reclaim(self.read_bytes) {
            match self.large_frame_bytes() {
                Some(bytes) => self.make_room_within(bytes),
                None => self.buffer.reserve(self.read_bytes),
            }
        }
        &mut self.buffer
    }

    /// The length of the frame that has begun to arrive, if it is too large for one read.
    fn large_frame_bytes(&self) -> Option<usize> {
        let bytes = FrameWriter::LENGTH_BYTES + usize::try_from(announced(&self.buffer)?).ok()?;
        let is_unfinished = self.buffer.len() < bytes;
        (is_unfinished && bytes > READ_BYTES_MAX && self.frame_bytes(0).is_ok()).then_some(bytes)
    }

    /// Makes room for the next read of an incomplete frame of this length. Doubling the received
    /// bytes moves each byte once on average. `reserve` would double beyond the end of the frame.
    fn make_room_within(&mut self, frame_bytes: usize) {
        let arrived = self.buffer.len();
        let read_bytes = self.read_bytes.min(frame_bytes - arrived);
        if self.buffer.capacity() - arrived < read_bytes {
            let capacity = (2 * arrived).max(arrived + read_bytes).min(frame_bytes);
            let mut grown = BytesMut::with_capacity(capacity);
            grown.extend_from_slice(&self.buffer);
            self.buffer = grown;
        }
    }

    /// Frees the buffers if they hold nothing. The next read allocates one, of the same size.
    pub fn release_unused(&mut self) {
        self.release();
        if self.block.is_empty() && self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Number of received bytes that were not taken as frames yet.
    pub fn received_bytes(&self) -> usize {
        self.block.len() - self.position + self.buffer.len()
    }

    /// Adapts the size of the next read to a read of this many bytes.
    pub fn received(&mut self, bytes: usize) {
        if bytes >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
            self.small_reads = 0;
        } else if bytes >= self.read_bytes / 4 || self.read_bytes == READ_BYTES_MIN {
            self.small_reads = 0;
        } else {
            self.small_reads += 1;
            if self.small_reads > SMALL_READS_MAX {
                self.small_reads = 0;
                self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
                self.start_afresh();
            }
        }
    }

    /// The first four bytes that are not split yet.
    pub fn prefix(&self) -> Option<[u8; 4]> {
        self.buffer.first_chunk().copied()
    }

    pub fn next_frame(&mut self) -> Result<Option<Reader<'_>>, LengthOutOfRange> {
        if self.position == self.block.len() {
            self.release();
            let whole = self.whole_bytes()?;
            if whole == 0 {
                return Ok(None);
            }
            self.block = self.buffer.split_to(whole).freeze();
            if whole > READ_BYTES_MAX {
                // The buffer grew for a large frame. Do not keep it for small ones.
                self.start_afresh();
            }
        }
        let start = self.position + FrameWriter::LENGTH_BYTES;
        let length = announced(&self.block[self.position..]).expect("a block holds whole frames");
        let end =
            start + usize::try_from(length).expect("the length was checked when the block was cut");
        self.position = end;
        Ok(Some(Reader::within(&self.block, start..end)))
    }

    /// Whether [`Frames::next_frame`] returns a frame or an error.
    pub fn has_next(&self) -> bool {
        self.position < self.block.len() || self.frame_bytes(0) != Ok(None)
    }

    /// Whether an incomplete frame has arrived and no complete one is before it.
    pub fn has_unfinished(&self) -> bool {
        !self.has_next() && !self.buffer.is_empty()
    }

    /// Length of the complete frames at the front of the buffer in bytes. A bad length after valid
    /// frames is reported once these are used up, so that they are answered.
    fn whole_bytes(&self) -> Result<usize, LengthOutOfRange> {
        let mut whole = 0;
        loop {
            match self.frame_bytes(whole) {
                Ok(Some(bytes)) => whole += bytes,
                Err(error) if whole == 0 => return Err(error),
                Ok(None) | Err(_) => return Ok(whole),
            }
        }
    }

    /// The length of the frame at this position of the buffer, with its length field, if the frame
    /// is complete.
    fn frame_bytes(&self, at: usize) -> Result<Option<usize>, LengthOutOfRange> {
        let arrived = &self.buffer[at..];
        let Some(length) = announced(arrived) else {
            return Ok(None);
        };
        let out_of_range = LengthOutOfRange {
            length,
            limit: self.frame_bytes_max,
        };
        let bytes = usize::try_from(length).map_err(|_| out_of_range)?;
        if bytes > self.frame_bytes_max {
            return Err(out_of_range);
        }
        let bytes = FrameWriter::LENGTH_BYTES + bytes;
        Ok((bytes <= arrived.len()).then_some(bytes))
    }

    /// Drops a block that is used up, so that its memory can be reused.
    fn release(&mut self) {
        if self.position == self.block.len() && self.position > 0 {
            self.block = Bytes::new();
            self.position = 0;
        }
    }

    /// Replaces the buffer, and moves unfinished bytes over.
    fn start_afresh(&mut self) {
        self.buffer = BytesMut::from(&self.buffer[..]);
    }
}

fn announced(bytes: &[u8]) -> Option<i32> {
    bytes
        .first_chunk()
        .map(|length| i32::from_be_bytes(*length))
}

/// A peer whose first bytes are not a packet. As a length, they would be far out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stranger {
    /// One of ZooKeeper's commands for operators, as four letters.
    FourLetterWord(&'static str),
    /// A browser, a health check or a proxy.
    Http,
    /// A client that expects an encrypted port.
    Tls,
}

impl Stranger {
    /// All commands of ZooKeeper 3.9.
    const WORDS: [&'static str; 18] = [
        "conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "hash", "isro", "mntr", "ruok",
        "srst", "srvr", "stat", "stmk", "wchc", "wchp", "wchs",
    ];
    const VERBS: [&'static [u8; 4]; 9] = [
        b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ",
    ];

    /// Recognises a stranger by its first four bytes.
    pub fn recognise(prefix: [u8; 4]) -> Option<Self> {
        if let Some(word) = Self::WORDS
            .into_iter()
            .find(|word| word.as_bytes() == prefix)
        {
            return Some(Self::FourLetterWord(word));
        }
        if Self::VERBS.contains(&&prefix) {
            return Some(Self::Http);
        }
        // A handshake record of SSL 3.0 to TLS 1.3.
        (prefix[..2] == [0x16, 0x03]).then_some(Self::Tls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn frames(bytes: &[u8]) -> Frames {
        let mut frames = Frames::new(Config::PACKET_BYTES_DEFAULT);
        frames.space().extend_from_slice(bytes);
        frames.received(bytes.len());
        frames
    }

    #[test]
    fn frames_are_split_independently_of_the_reads() {
        let bytes = b"\0\0\0\x04\0\0\0\x07\0\0\0\0\0\0\0\x04\0\0\0\x08";
        for piece in 1..=bytes.len() {
            let mut frames = frames(b"");
            let mut seen = Vec::new();
            for bytes in bytes.chunks(piece) {
                frames.space().extend_from_slice(bytes);
                frames.received(bytes.len());
                while let Some(mut frame) = frames.next_frame().expect("the lengths are good") {
                    seen.push(frame.int().ok());
                }
                assert!(!frames.has_next());
            }
            assert_eq!(seen, [Some(7), None, Some(8)], "in pieces of {piece}");
        }
    }

    #[test]
    fn the_limit_itself_is_accepted_and_one_byte_more_is_not() {
        let limit = Config::PACKET_BYTES_DEFAULT as i32;
        for (length, accepted) in [
            (0, true),
            (limit, true),
            (limit + 1, false),
            (i32::MAX, false),
            (-1, false),
            (i32::MIN, false),
        ] {
            let mut frames = frames(&length.to_be_bytes());
            assert_eq!(frames.has_next(), length == 0 || !accepted, "{length}");
            assert_eq!(frames.next_frame().is_ok(), accepted, "{length}");
        }
    }

    #[test]
    fn frames_before_a_bad_length_are_returned_first() {
        let mut frames = frames(b"\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff");
        assert!(matches!(frames.next_frame(), Ok(Some(_))));
        assert!(frames.has_next());
        assert!(frames.next_frame().is_err());
    }

    #[test]
    fn an_announced_length_alone_allocates_nothing() {
        let mut frames = frames(&1_000_000_i32.to_be_bytes());
        assert_eq!(frames.next_frame().map(|frame| frame.is_none()), Ok(true));
        assert!(frames.space().capacity() <= 2 * READ_BYTES_MIN);
    }

    #[test]
    fn the_buffer_of_a_frame_is_bounded_by_the_frame_and_twice_the_received_bytes() {
        let length = Config::PACKET_BYTES_DEFAULT;
        for piece in [777, READ_BYTES_MIN, usize::MAX] {
            let mut frames = frames(&(length as i32).to_be_bytes());
            let mut arrived = FrameWriter::LENGTH_BYTES;
            while arrived < FrameWriter::LENGTH_BYTES + length {
                assert!(matches!(frames.next_frame(), Ok(None)), "{arrived} bytes");
                let space = frames.space();
                let capacity = space.capacity();
                assert!(
                    capacity <= FrameWriter::LENGTH_BYTES + length,
                    "{capacity} at {arrived} bytes"
                );
                assert!(
                    capacity <= 2 * arrived + READ_BYTES_MAX,
                    "{capacity} at {arrived} bytes"
                );
                let read = (capacity - space.len()).min(piece);
                assert!(read > 0, "the buffer has space at {arrived} bytes");
                space.extend_from_slice(&vec![7; read]);
                frames.received(read);
                arrived += read;
            }
            let frame = frames
                .next_frame()
                .expect("the length is good")
                .expect("it has arrived");
            assert_eq!(frame.remaining(), length);
        }
    }

    #[test]
    fn the_buffer_grows_with_the_traffic_and_shrinks_after_it() {
        let mut frames = frames(b"");
        for _ in 0..8 {
            let read = frames.read_bytes;
            frames.received(read);
        }
        assert_eq!(frames.read_bytes, READ_BYTES_MAX);
        assert!(frames.space().capacity() >= READ_BYTES_MAX);
        for _ in 0..8 * SMALL_READS_MAX {
            frames.received(12);
        }
        assert_eq!(frames.read_bytes, READ_BYTES_MIN);
        assert!(frames.space().capacity() <= 2 * READ_BYTES_MIN);
    }

    #[test]
    fn an_idle_connection_keeps_no_buffer_and_loses_no_byte() {
        let mut frames = frames(b"\0\0\0\x04\0\0\0\x07\0\0");
        frames.release_unused();
        assert!(matches!(frames.next_frame(), Ok(Some(_))));
        frames.release_unused();
        assert_eq!(frames.received_bytes(), 2, "of an unfinished frame");
        frames.space().extend_from_slice(b"\0\0");
        assert!(matches!(frames.next_frame(), Ok(Some(_))));
        frames.release_unused();
        assert_eq!(frames.buffer.capacity() + frames.block.len(), 0);
    }

    #[test]
    fn strangers_are_recognised_by_their_first_bytes_and_clients_are_not() {
        assert_eq!(
            Stranger::recognise(*b"ruok"),
            Some(Stranger::FourLetterWord("ruok"))
        );
        assert_eq!(Stranger::recognise(*b"GET "), Some(Stranger::Http));
        assert_eq!(Stranger::recognise([0x16, 3, 1, 0]), Some(Stranger::Tls));
        assert_eq!(Stranger::recognise([0, 0, 0, 45]), None);
        let lowest = i32::from_be_bytes([0x16, 3, 0, 0]) as usize;
        assert!(
            Config::PACKET_BYTES_LIMIT < lowest,
            "no packet begins like a stranger"
        );
    }
}
