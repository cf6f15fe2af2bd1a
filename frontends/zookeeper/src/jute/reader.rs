//! Reads jute's primitives from one frame, and never beyond it.

use std::ops::Range;

use bytes::Bytes;
use coordination::model::{Acl, Stat, Zxid};

/// Data up to this many bytes is copied out of the frame. Longer data shares the frame's memory.
///
/// A slice keeps the whole read buffer alive for as long as the service keeps the data. A kilobyte
/// could pin 64 of them, and the connection could not reuse its warm buffer. Copying so little is
/// cheaper.
const DATA_BYTES_COPIED_MAX: usize = 4096;

/// An ACL entry takes at least its permissions and two length fields.
const ACL_BYTES_MIN: usize = 12;

/// The bytes do not decode as the expected record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field extends beyond the end of the frame.
    #[error("the frame ends within a field")]
    Truncated,
    /// A length is below -1, or a length or count exceeds the rest of the frame.
    #[error("a length does not fit the frame")]
    Length,
    /// A multi has more parts than one decision may have.
    #[error("it has more than {0} parts, which is the limit")]
    Parts(usize),
    /// A part of a multi has an opcode that may not be there.
    #[error("opcode {0} may not be a part")]
    Part(i32),
    /// A part of a multi has the flags of no mode, or of one with a time to live that is not there.
    #[error("a part of a multi has flags that it may not have")]
    Flags,
    /// A required field is null.
    #[error("a required field is null")]
    Null,
}

/// A position in a frame. Each call reads the next field.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    block: &'a Bytes,
    position: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub fn new(frame: &'a Bytes) -> Self {
        Self {
            block: frame,
            position: 0,
            end: frame.len(),
        }
    }

    /// Reads the body that occupies part of a block of several frames.
    ///
    /// # Panics
    /// If the range is not within the block.
    pub fn within(block: &'a Bytes, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= block.len(),
            "a frame lies within its block"
        );
        Self {
            block,
            position: range.start,
            end: range.end,
        }
    }

    pub fn remaining(&self) -> usize {
        self.end - self.position
    }

    /// One byte. Any value but zero is true.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.array::<1>()?[0] != 0)
    }

    pub fn int(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn long(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    /// A string, or `None` for null. Invalid UTF-8 becomes U+FFFD, as in ZooKeeper, and the path
    /// check then refuses it.
    pub fn string(&mut self) -> Result<Option<String>, Malformed> {
        let Some(range) = self.sized()? else {
            return Ok(None);
        };
        Ok(Some(
            String::from_utf8_lossy(&self.block[range]).into_owned(),
        ))
    }

    /// A path. Null is malformed.
    pub fn path(&mut self) -> Result<String, Malformed> {
        self.string()?.ok_or(Malformed::Null)
    }

    /// A buffer, or `None` for null, borrowed.
    pub fn buffer(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        Ok(self.sized()?.map(|range| &self.block[range]))
    }

    /// A buffer, or `None` for null, which outlives the frame. Large ones share its memory.
    pub fn data(&mut self) -> Result<Option<Bytes>, Malformed> {
        Ok(self.sized()?.map(|range| match range.len() {
            0 => Bytes::new(),
            1..=DATA_BYTES_COPIED_MAX => Bytes::copy_from_slice(&self.block[range]),
            _ => self.block.slice(range),
        }))
    }

    /// A vector, or `None` for null, whose items take at least `item_bytes_min` bytes each. A count
    /// below -1 is an empty vector, as in ZooKeeper.
    pub fn vector<T>(
        &mut self,
        item_bytes_min: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<Vec<T>>, Malformed> {
        let count = match self.int()? {
            -1 => return Ok(None),
            count => usize::try_from(count).unwrap_or(0),
        };
        if count > self.remaining() / item_bytes_min {
            return Err(Malformed::Length);
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(Some(items))
    }

    /// An ACL. A null one is empty. A null scheme or id becomes empty, which no ACL may contain. As in
    /// ZooKeeper, null is malformed as an id whose form the scheme determines.
    pub fn acl(&mut self) -> Result<Vec<Acl>, Malformed> {
        let acl = self.vector(ACL_BYTES_MIN, |frame| {
            let (permissions, scheme, id) = (frame.int()?, frame.string()?, frame.string()?);
            let scheme = scheme.unwrap_or_default();
            if id.is_none() && matches!(scheme.as_str(), "world" | "digest" | "ip") {
                return Err(Malformed::Null);
            }
            Ok(Acl {
                permissions,
                scheme,
                id: id.unwrap_or_default(),
            })
        })?;
        Ok(acl.unwrap_or_default())
    }

    pub fn stat(&mut self) -> Result<Stat, Malformed> {
        Ok(Stat {
            czxid: Zxid(self.long()?),
            mzxid: Zxid(self.long()?),
            ctime: self.long()?,
            mtime: self.long()?,
            version: self.int()?,
            cversion: self.int()?,
            aversion: self.int()?,
            ephemeral_owner: self.long()?,
            data_length: self.int()?,
            num_children: self.int()?,
            pzxid: Zxid(self.long()?),
        })
    }

    /// What is not read yet. It shares the frame's memory.
    pub fn rest(self) -> Bytes {
        self.block.slice(self.position..self.end)
    }

    fn sized(&mut self) -> Result<Option<Range<usize>>, Malformed> {
        let length = match self.int()? {
            -1 => return Ok(None),
            length => usize::try_from(length).map_err(|_| Malformed::Length)?,
        };
        if length > self.remaining() {
            return Err(Malformed::Length);
        }
        let start = self.position;
        self.position += length;
        Ok(Some(start..self.position))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let field = self.block[self.position..self.end]
            .first_chunk()
            .ok_or(Malformed::Truncated)?;
        self.position += N;
        Ok(*field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_data_shares_the_memory_of_the_frame_and_small_data_does_not() {
        for (length, shares) in [
            (DATA_BYTES_COPIED_MAX, false),
            (DATA_BYTES_COPIED_MAX + 1, true),
        ] {
            let mut bytes = (length as u32).to_be_bytes().to_vec();
            bytes.resize(4 + length, 7);
            let frame = Bytes::from(bytes);
            let data = Reader::new(&frame)
                .data()
                .expect("it decodes")
                .expect("it is not null");
            assert_eq!(data.len(), length);
            assert_eq!(data.as_ptr() == frame[4..].as_ptr(), shares);
        }
    }

    #[test]
    fn null_and_empty_data_differ() {
        let frame = Bytes::from_static(b"\xff\xff\xff\xff\0\0\0\0");
        let mut reader = Reader::new(&frame);
        assert_eq!(reader.data(), Ok(None));
        assert_eq!(reader.data(), Ok(Some(Bytes::new())));
        assert_eq!(reader.data(), Err(Malformed::Truncated));
    }

    #[test]
    fn a_length_beyond_the_frame_is_refused() {
        for length in [i32::MIN, -2, 3, i32::MAX] {
            let mut bytes = length.to_be_bytes().to_vec();
            bytes.extend_from_slice(b"ab");
            let frame = Bytes::from(bytes);
            assert_eq!(
                Reader::new(&frame).string(),
                Err(Malformed::Length),
                "{length}"
            );
            let vector = Reader::new(&frame).vector(1, Reader::bool);
            let expected = if length < 0 {
                Ok(Some(Vec::new()))
            } else {
                Err(Malformed::Length)
            };
            assert_eq!(vector, expected, "{length}");
        }
    }

    #[test]
    fn a_reader_within_a_block_does_not_see_the_next_frame() {
        let block = Bytes::from_static(b"\0\0\0\x05abcde");
        assert_eq!(
            Reader::within(&block, 0..6).string(),
            Err(Malformed::Length)
        );
        assert_eq!(
            Reader::within(&block, 0..9).string(),
            Ok(Some("abcde".into()))
        );
    }
}
