//! Byte encoding: variable-length integers and length-prefixed bytes.
//!
//! The reader takes hostile bytes. It checks every length against the remaining bytes before it
//! allocates.

use bytes::Bytes;

/// Appends integers and bytes to a buffer.
pub(crate) trait Write {
    fn put_varint(&mut self, value: u64);
    fn put_bytes(&mut self, bytes: &[u8]);
}

impl Write for Vec<u8> {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

/// Reads what [`Write`] wrote. Every method answers none if the bytes do not decode.
#[derive(Debug)]
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        (!self.0.is_empty()).then(|| self.0.split_to(1)[0])
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.varint()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        let length = self.count()?;
        self.take(length)
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(crate) fn rest(self) -> Bytes {
        self.0
    }
}

/// ZigZag encoding, which keeps small negative numbers short.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
