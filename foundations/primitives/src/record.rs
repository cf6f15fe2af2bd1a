//! The encoding of stored records: a version byte, then postcard.
//!
//! The byte lets a later build read the records of an earlier one. A service has one
//! [`RecordFormat`] for all its records. A change of any record's layout raises the version.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};

/// Records expected to be this short are encoded without a buffer that may be too large, in bytes.
const SHORT_BYTES: usize = 128;

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
        if bytes_len > SHORT_BYTES {
            return self.encode_after(&[], record, bytes_len);
        }
        // On the stack first, so that the result takes one allocation of its exact length.
        let mut short = [self.version; SHORT_BYTES];
        match postcard::to_slice(record, &mut short[1..]) {
            Ok(rest) => {
                let length = 1 + rest.len();
                Bytes::copy_from_slice(&short[..length])
            }
            Err(_) => self.encode_after(&[], record, bytes_len),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_any_length_is_encoded_alike_whatever_length_was_expected() {
        let format = RecordFormat::new(3);
        for length in [0, 1, 125, 126, 127, 128, 1000] {
            let record = "r".repeat(length);
            let expected = format.encode(&record, 2000);
            for bytes_len in [0, SHORT_BYTES, SHORT_BYTES + 1] {
                assert_eq!(format.encode(&record, bytes_len), expected, "{length}");
            }
            let decoded: Result<String> = format.decode(&expected, "a text");
            assert_eq!(decoded.expect("it decodes"), record);
        }
    }
}
