//! The encoding of stored records: a version byte, then postcard.
//!
//! The byte lets a later build read the records of an earlier one. A service has one
//! [`RecordFormat`] for all its records. A change of any record's layout raises the version.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};

/// The format of one service's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFormat {
    version: u8,
}

impl RecordFormat {
    /// The format whose records start with `version`.
    pub const fn new(version: u8) -> Self {
        Self { version }
    }

    /// Encodes `record`. The buffer does not grow for records of up to `bytes_len` bytes.
    pub fn encode<T: Serialize>(self, record: &T, bytes_len: usize) -> Bytes {
        self.encode_after(&[], record, bytes_len)
    }

    /// As [`RecordFormat::encode`], with `head` before the version byte, in one buffer.
    ///
    /// # Panics
    /// If `record` holds a value that postcard cannot encode.
    pub fn encode_after<T: Serialize>(self, head: &[u8], record: &T, bytes_len: usize) -> Bytes {
        let mut buffer = BytesMut::with_capacity(bytes_len);
        buffer.put_slice(head);
        self.encode_at_end(&mut buffer, record);
        buffer.freeze()
    }

    /// Encodes `record` after the bytes that `buffer` has.
    ///
    /// # Panics
    /// If `record` holds a value that postcard cannot encode.
    pub fn encode_at_end<T: Serialize>(self, buffer: &mut BytesMut, record: &T) {
        buffer.put_u8(self.version);
        postcard::to_io(record, buffer.writer())
            .expect("records hold only values that postcard encodes");
    }

    /// Decodes a record that [`RecordFormat::encode`] made. `what` names it in errors.
    ///
    /// Errors: `Corrupt` if the version differs or the bytes do not decode.
    pub fn decode<T: DeserializeOwned>(self, bytes: &[u8], what: &'static str) -> Result<T> {
        match bytes.split_first() {
            Some((version, rest)) if *version == self.version => postcard::from_bytes(rest)
                .map_err(|cause| Error::corrupt(format!("decode {what}")).caused_by(cause)),
            Some((version, _)) => Err(Error::corrupt(format!(
                "decode {what} of record version {version}, this build reads {}",
                self.version
            ))),
            None => Err(Error::corrupt(format!("decode {what} from nothing"))),
        }
    }
}
